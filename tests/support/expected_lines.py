"""The lines of a low-level stream, byte by byte."""

import json


def event(partition: str, value: str) -> str:
    """The text of a stored event. The hashes of the keys `0`, `1` and `2` select the partitions with these names."""
    return f'{{"v":"{value}","to":"{partition}"}}'


def cursors(**offsets: str) -> str:
    """The header with cursors: `cursors(_0="BEGIN")`."""
    return json.dumps([{"partition": name.lstrip("_"), "offset": offset} for name, offset in offsets.items()])


def position(offset: int, timeline: int = 1) -> str:
    return f"001-{timeline:04x}-{offset:018d}" if offset >= 0 else f"001-{timeline:04x}--1"


def cursor(partition: str, offset: int, timeline: int = 1) -> str:
    return f'{{"partition":"{partition}","offset":"{position(offset, timeline)}"}}'


def batch(partition: str, offset: int, *values: str, timeline: int = 1) -> bytes:
    """A batch line, byte by byte."""
    events = ",".join(event(partition, value) for value in values)
    return f'{{"cursor":{cursor(partition, offset, timeline)},"events":[{events}]}}\n'.encode()


def keep_alive(partition: str, offset: int, timeline: int = 1) -> bytes:
    return f'{{"cursor":{cursor(partition, offset, timeline)}}}\n'.encode()

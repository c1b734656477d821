"""Archive objects: gzip members one after the other, one for each partition, of one JSON object a line.

A whole object is a plain `.json.gz`; a member alone, by its range of bytes, is the events of one partition from one
offset to another. Offsets may be missing where events were compacted away.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import msgspec
import orjson

from nakadi.model.authorization import Attribute
from nakadi.model.events import Record, StoredEvent

LEVEL = 2
"""On events, higher levels take much longer and save little."""

GZIP = 16 + zlib.MAX_WBITS


ABSENT = msgspec.Raw()


class BadArchive(Exception):
    """Raised when bytes are not a member of an archive object."""


class Line(msgspec.Struct, gc=False):
    """One event as it is written. `event` is the published text to the byte; a tombstone has none."""

    topic: str
    partition: int
    offset: int
    time: datetime
    event_type: str | None = None
    key: str | None = None
    owner: tuple[str, str] | None = None
    directed_to: str | None = None
    event: msgspec.Raw = ABSENT


class Packer:
    """Writes a member, some events at a time."""

    def __init__(self, topic: str, partition: int, event_type: str | None = None) -> None:
        self._head = b'{"topic":%b,"partition":%d,"offset":' % (orjson.dumps(topic), partition)
        self._event_type = b"" if event_type is None else b',"event_type":' + orjson.dumps(event_type)
        self._packer = zlib.compressobj(LEVEL, zlib.DEFLATED, GZIP)
        self._packed: list[bytes] = []

    def add(self, events: Iterable[StoredEvent]) -> None:
        head, event_type = self._head, self._event_type
        lines: list[bytes] = []
        moment: datetime | None = None
        time = b""
        for offset, record, stored_at in events:
            if stored_at is not moment:
                moment, time = stored_at, b',"time":"%b"%b' % (_written(stored_at), event_type)
            lines.append(b"%b%d%b%b\n" % (head, offset, time, _rest(record)))
        self._packed.append(self._packer.compress(b"".join(lines)))

    def finish(self) -> bytes:
        return b"".join([*self._packed, self._packer.flush()])


def member(topic: str, partition: int, events: Iterable[StoredEvent], event_type: str | None = None) -> bytes:
    """The events of a partition as one member."""
    packer = Packer(topic, partition, event_type)
    packer.add(events)
    return packer.finish()


def events_in(content: bytes) -> Sequence[StoredEvent]:
    """The events of a member."""
    return [_event(line) for line in _lines(content)]


def events_of(content: bytes, topic: str, partition: int) -> Sequence[StoredEvent]:
    """The events of a member, which must be of this partition and in their order."""
    lines = _lines(content)
    last = -1
    for line in lines:
        if line.topic != topic or line.partition != partition or line.offset <= last:
            raise BadArchive(f"{line.topic}/{line.partition} at {line.offset} is not what should follow {last}")
        last = line.offset
    return [_event(line) for line in lines]


def _lines(content: bytes) -> list[Line]:
    """Whoever unpacks a member finds out by its checksum whether it is what was written."""
    try:
        unpacker = zlib.decompressobj(GZIP)
        text = unpacker.decompress(content)
        if not unpacker.eof or unpacker.unused_data:
            raise BadArchive("its end is not where it should be")
        return _DECODER.decode_lines(text)
    except (zlib.error, msgspec.DecodeError) as error:
        raise BadArchive(str(error)) from error


def compressed(text: bytes) -> bytes:
    """A gzip member without name and time, so that the same events make the same bytes."""
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, GZIP)
    return packer.compress(text) + packer.flush()


def _rest(record: Record) -> bytes:
    """What follows the time in a line."""
    value, key, owner, directed_to = record
    rest = b"" if value is None else b',"event":' + value
    if directed_to is not None:
        rest = b',"directed_to":' + orjson.dumps(directed_to) + rest
    if owner is not None:
        rest = b',"owner":' + orjson.dumps((owner.data_type, owner.value)) + rest
    if key is not None:
        rest = b',"key":' + orjson.dumps(key) + rest
    return rest + b"}"


def _written(moment: datetime) -> bytes:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ").encode()


def _event(line: Line) -> StoredEvent:
    value = bytes(line.event) or None
    owner = None if line.owner is None else Attribute(*line.owner)
    return StoredEvent(line.offset, Record(value, line.key, owner, line.directed_to), line.time)


_DECODER = msgspec.json.Decoder(Line)

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
    key: str | None = None
    owner: tuple[str, str] | None = None
    directed_to: str | None = None
    event: msgspec.Raw = ABSENT


def member(topic: str, partition: int, events: Iterable[StoredEvent]) -> bytes:
    """The events of a partition as one member."""
    head = b'{"topic":%b,"partition":%d,"offset":' % (orjson.dumps(topic), partition)
    lines: list[bytes] = []
    moment: datetime | None = None
    time = b""
    for offset, record, stored_at in events:
        if stored_at is not moment:
            moment, time = stored_at, b',"time":"%b"' % _written(stored_at)
        lines.append(b"%b%d%b%b\n" % (head, offset, time, _rest(record)))
    return compressed(b"".join(lines))


def events_in(content: bytes) -> Sequence[StoredEvent]:
    """The events of a member."""
    try:
        lines = _DECODER.decode_lines(zlib.decompress(content, GZIP))
    except (zlib.error, msgspec.DecodeError) as error:
        raise BadArchive(str(error)) from error
    return [_event(line) for line in lines]


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

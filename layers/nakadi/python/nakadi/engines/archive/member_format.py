"""The contents of an archive object: a sequence of gzip members, one or a few for each partition.

A member holds one JSON object on each line: an event with its offset and the time at which it was stored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain

import msgspec
import orjson

from nakadi.engines.archive.gzip_format import BadArchive, decompress_members, new_compressor
from nakadi.model.authorization import Attribute
from nakadi.model.events import EventTextBlock, LazyEvents, Record, StoredEvent, TopicPartition

GZIP_MEMBER_BYTES = 500_000
"""The size of a member's text, which a reader unpacks at once. It should stay in the processor's cache: otherwise,
unpacking takes half as long again."""

NO_EVENT = msgspec.Raw()

EVENT_FIELD = b',"event":'
"""The text just before the event in the line of a plain event."""

CLOSING_BRACE = ord("}")


class ArchivedLine(msgspec.Struct, gc=False):
    """One event as it is written. `event` is exactly the stored text; a tombstone has no `event`."""

    topic: str
    partition: int
    offset: int
    time: datetime
    event_type: str | None = None
    key: str | None = None
    owner: tuple[str, str] | None = None
    directed_to: str | None = None
    event: msgspec.Raw = NO_EVENT


class MemberPacker:
    """Packs the events of a partition, which are added in portions, into one member or, if there are many events, a
    few.
    """

    def __init__(self, topic: str, partition: int, event_type: str | None = None) -> None:
        self._head = _line_prefix(topic, partition)
        self._event_type = b"" if event_type is None else b',"event_type":' + orjson.dumps(event_type)
        self._packer = new_compressor()
        self._packed: list[bytes] = []
        self._bytes = 0

    def add_events(self, events: Iterable[StoredEvent]) -> None:
        head, event_type = self._head, self._event_type
        lines: list[bytes] = []
        moment: datetime | None = None
        time = b""
        for offset, record, stored_at in events:
            if stored_at is not moment:
                moment, time = stored_at, b',"time":"%b"%b' % (_format_time(stored_at), event_type)
            lines.append(b"%b%d%b%b\n" % (head, offset, time, _line_suffix(record)))
        text = b"".join(lines)
        if self._bytes and self._bytes + len(text) > GZIP_MEMBER_BYTES:
            self._packed.append(self._packer.flush())
            self._packer, self._bytes = new_compressor(), 0
        self._packed.append(self._packer.compress(text))
        self._bytes += len(text)

    def finish(self) -> bytes:
        return b"".join([*self._packed, self._packer.flush()])


def pack_member(topic: str, partition: int, events: Iterable[StoredEvent], event_type: str | None = None) -> bytes:
    packer = MemberPacker(topic, partition, event_type)
    packer.add_events(events)
    return packer.finish()


def _line_prefix(topic: str, partition: int) -> bytes:
    return b'{"topic":%b,"partition":%d,"offset":' % (orjson.dumps(topic), partition)


def parse_member(content: bytes, is_wanted: Callable[[ArchivedLine], bool] | None = None) -> Sequence[StoredEvent]:
    """The events of members of any topics; `is_wanted` selects lines."""
    return [
        _event_of_line(line)
        for text in decompress_members(content)
        for line in _decode_lines(text)
        if is_wanted is None or is_wanted(line)
    ]


def end_offsets(content: bytes) -> Mapping[TopicPartition, int]:
    """The end offset of an object's events in each partition. Raises `BadArchive`."""
    ends: dict[TopicPartition, int] = {}
    for text in decompress_members(content):
        ends |= {(line.topic, line.partition): line.offset + 1 for line in _decode_lines(text)}
    return ends


def parse_partition_member(content: bytes, topic: str, partition: int) -> Sequence[StoredEvent]:
    """The events of a member, which must belong to this partition and be in order."""
    parts: list[Sequence[StoredEvent]] = []
    last = -1
    for text in decompress_members(content):
        plain = _parse_plain_lines(text, topic, partition)
        part = plain if plain is not None else _parse_all_lines(text, topic, partition)
        if part:
            if part[0].offset <= last:
                raise BadArchive(f"{part[0].offset} follows {last}")
            last = part[-1].offset
            parts.append(part)
    return join_events(parts)


def join_events(parts: Sequence[Sequence[StoredEvent]]) -> Sequence[StoredEvent]:
    """Join adjacent sequences of events; the result is lazy, as text, if all of them are."""
    if len(parts) == 1:
        return parts[0]
    texts = [each for each in parts if isinstance(each, LazyEvents)]
    if len(texts) < len(parts):
        return tuple(chain.from_iterable(parts))
    return LazyEvents([block for each in texts for block in each.blocks])


def _parse_plain_lines(text: bytes, topic: str, partition: int) -> LazyEvents | None:
    """The events of lines in the form that this module writes, without a key or other extras: most members have only
    such lines.

    None if there are other lines. No event objects are created, because most events are sent as their stored text.
    Adjacent events that were stored at the same time form one block of text; the beginnings of their lines differ only
    in the offset, so only that of the first line is parsed.
    """
    head, pattern = _line_prefix(topic, partition), _plain_line_prefix_pattern(topic, partition)
    found: list[EventTextBlock] = []
    place = following = 0
    while place < len(text):
        begin = pattern.match(text, place)
        if begin is None:
            return None
        first = offset = int(begin[1])
        if first < following:
            raise BadArchive("its offsets do not grow")
        rest, place = begin[2], begin.end()
        values: list[bytes] = []
        while True:
            end = text.find(b"\n", place)
            value = text[place : end - 1]
            if end < 0 or not value or text[end - 1] != CLOSING_BRACE:
                return None
            values.append(value)
            place, offset = end + 1, offset + 1
            beginning = b"%b%d%b" % (head, offset, rest)
            if not text.startswith(beginning, place):
                break
            place += len(beginning)
        found.append(EventTextBlock.join(first, _parse_time(begin[3]), values))
        following = offset
    return LazyEvents(found)


def _parse_time(time: bytes) -> datetime:
    try:
        return datetime.fromisoformat(time.decode())
    except ValueError as error:
        raise BadArchive(str(error)) from error


@lru_cache(maxsize=1000)
def _plain_line_prefix_pattern(topic: str, partition: int) -> re.Pattern[bytes]:
    """A pattern for the text before an event in its line. Its groups are the offset, the text between the offset and
    the event, and the time in that text.
    """
    event_type = rb'(?:,"event_type":"[^"\\\n]*")?'
    return re.compile(
        rb'%b(\d+)(,"time":"([^"\n]*)"%b%b)' % (re.escape(_line_prefix(topic, partition)), event_type, EVENT_FIELD)
    )


def _parse_all_lines(text: bytes, topic: str, partition: int) -> Sequence[StoredEvent]:
    lines = _decode_lines(text)
    last = -1
    for line in lines:
        if line.topic != topic or line.partition != partition or line.offset <= last:
            raise BadArchive(f"{line.topic}/{line.partition} at {line.offset} is not what should follow {last}")
        last = line.offset
    return [_event_of_line(line) for line in lines]


def _decode_lines(text: bytes) -> list[ArchivedLine]:
    try:
        return _LINE_DECODER.decode_lines(text)
    except msgspec.DecodeError as error:
        raise BadArchive(str(error)) from error


def _line_suffix(record: Record) -> bytes:
    """The end of a line, after the time."""
    value, key, owner, directed_to = record
    rest = b"" if value is None else EVENT_FIELD + value
    if directed_to is not None:
        rest = b',"directed_to":' + orjson.dumps(directed_to) + rest
    if owner is not None:
        rest = b',"owner":' + orjson.dumps((owner.data_type, owner.value)) + rest
    if key is not None:
        rest = b',"key":' + orjson.dumps(key) + rest
    return rest + b"}"


def _format_time(moment: datetime) -> bytes:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ").encode()


def _event_of_line(line: ArchivedLine) -> StoredEvent:
    value = bytes(line.event) or None
    owner = None if line.owner is None else Attribute(*line.owner)
    return StoredEvent(line.offset, Record(value, line.key, owner, line.directed_to), line.time)


_LINE_DECODER = msgspec.json.Decoder(ArchivedLine)

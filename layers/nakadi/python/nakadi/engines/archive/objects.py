"""Archive objects: their contents, their keys, and the segments of the log index that refer to them.

An object is a sequence of gzip members, one or a few for each partition, with one JSON object on each line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import accumulate, chain
from typing import Any
from uuid import uuid4

import msgspec
import orjson

from nakadi.model.authorization import Attribute
from nakadi.model.events import EventTextBlock, LazyEvents, Record, StoredEvent, TopicPartition
from nakadi.model.log_index import IndexSegment
from nakadi.ports.log_index import LogIndex

# Gzip -----------------------------------------------------------------------------------------------------------------


try:
    from isal import isal_zlib as library

    COMPRESSION_LEVEL = 1
except ImportError:
    import zlib as library  # type: ignore[no-redef]

    COMPRESSION_LEVEL = 2

# On events, higher levels take longer and save little.

GZIP_WINDOW_BITS = 16 + library.MAX_WBITS


class BadArchive(Exception):
    """Raised when bytes are not a member of an archive object, or not whole gzip members."""


def new_compressor() -> Any:
    """What compresses a member, without name and time, so that the same events make the same bytes."""
    return library.compressobj(COMPRESSION_LEVEL, library.DEFLATED, GZIP_WINDOW_BITS)


def decompress_members(content: bytes) -> Iterator[bytes]:
    """What is in members that follow each other. Their checksums and lengths say whether it is what was packed."""
    rest = content
    while True:
        unpacker = library.decompressobj(GZIP_WINDOW_BITS)
        try:
            text: bytes = unpacker.decompress(rest)
        except Exception as error:  # each library has its own
            raise BadArchive(str(error)) from error
        if not unpacker.eof:
            raise BadArchive("it ends early")
        yield text
        rest = unpacker.unused_data
        if not rest:
            return


# Members --------------------------------------------------------------------------------------------------------------


GZIP_MEMBER_BYTES = 500_000
"""Of text. What is unpacked at once should stay near the processor: it takes half as long again when it does not."""

NO_EVENT = msgspec.Raw()

EVENT_FIELD = b',"event":'
"""What a plain event stands behind."""

CLOSING_BRACE = ord("}")


class ArchivedLine(msgspec.Struct, gc=False):
    """One event as it is written. `event` is the published text to the byte; a tombstone has none."""

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
    """Writes the events of a partition, some at a time: as one member, or a few when they are many."""

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
    """The events of members, of any topics; those of some lines alone, if it is said which."""
    return [
        _event_of_line(line)
        for text in decompress_members(content)
        for line in _decode_lines(text)
        if is_wanted is None or is_wanted(line)
    ]


def end_offsets(content: bytes) -> Mapping[TopicPartition, int]:
    """Where the events end that an object has of each partition. Raises `BadArchive`."""
    ends: dict[TopicPartition, int] = {}
    for text in decompress_members(content):
        ends |= {(line.topic, line.partition): line.offset + 1 for line in _decode_lines(text)}
    return ends


def parse_partition_member(content: bytes, topic: str, partition: int) -> Sequence[StoredEvent]:
    """The events of a member, which must be of this partition and in their order."""
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
    """Events that follow each other, as text where all of them are."""
    if len(parts) == 1:
        return parts[0]
    texts = [each for each in parts if isinstance(each, LazyEvents)]
    if len(texts) < len(parts):
        return tuple(chain.from_iterable(parts))
    return LazyEvents([lines for each in texts for lines in each.lines])


def _parse_plain_lines(text: bytes, topic: str, partition: int) -> LazyEvents | None:
    """The events of lines that are as they are written here, without a key and the like: what most members have.

    None when there are others. No event is made here: most of them are sent as the text that they are. Neighbours that
    were stored at one time make one text; their lines begin alike, so that only the first of them has to be understood.
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
        found.append(EventTextBlock(first, _parse_time(begin[3]), *_join_lines_with_ends(values)))
        following = offset
    return LazyEvents(found)


def _join_lines_with_ends(values: Sequence[bytes]) -> tuple[bytes, list[int]]:
    """Values as lines, and where each of them ends."""
    return b"\n".join(values), [end + breaks for breaks, end in enumerate(accumulate(map(len, values)))]


def _parse_time(time: bytes) -> datetime:
    try:
        return datetime.fromisoformat(time.decode())
    except ValueError as error:
        raise BadArchive(str(error)) from error


@lru_cache(maxsize=1000)
def _plain_line_prefix_pattern(topic: str, partition: int) -> re.Pattern[bytes]:
    """What is in front of an event: its offset, what stands between that and the event, and the time in there."""
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
    """What follows the time in a line."""
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


# Keys -----------------------------------------------------------------------------------------------------------------


LOG_FOLDER = "log/"
"""Events as they came, of one partition or of many."""

REWRITTEN_FOLDER = "compacted/"
"""Objects in here hold rewritten events of one partition, and no other events."""

UNKNOWN_EVENT_TYPE = "_"
"""In place of the name of an event type that is not known."""


def new_log_key(namespace: str, event_type: str | None, topic: str, first_stored_at: datetime) -> str:
    folder = f"{LOG_FOLDER}{namespace}/{event_type or UNKNOWN_EVENT_TYPE}/{first_stored_at:%Y-%m-%d}"
    return f"{folder}/{topic}-{uuid4().hex}.json.gz"


def new_rewritten_key(old_key: str, topic: str, partition: int, first_offset: int) -> str:
    """A new name for events that so far were in the object `old_key`."""
    return new_rewritten_key_in(namespace_of_key(old_key), topic, partition, first_offset)


def new_rewritten_key_in(namespace: str, topic: str, partition: int, first_offset: int) -> str:
    return f"{REWRITTEN_FOLDER}{namespace}/{topic}/{partition}/{first_offset:018d}-{uuid4().hex}.json.gz"


def new_key_beside(key: str) -> str:
    """A new name for what is left of an object, in its folder."""
    folder, _, name = key.rpartition("/")
    return f"{folder}/{name.split('.')[0].rpartition('-')[0] or 'rest'}-{uuid4().hex}.json.gz"


def namespace_of_key(key: str) -> str:
    return key.split("/", 2)[1]


# Segments -------------------------------------------------------------------------------------------------------------


SEGMENTS_PER_INDEX_QUERY = 200

MAX_FOLLOWING_SEGMENTS = 100
"""Segments that are asked for with one that may not have enough."""


def archived_segments_from(index: LogIndex, topic: str, partition: int, start: int = 0) -> Iterator[IndexSegment]:
    segment = index.segment_at_or_before(topic, partition, start)
    following = start
    if segment is not None and segment.end_offset > start:
        yield segment
        following = segment.end_offset
    while found := index.segments_from(topic, partition, following, SEGMENTS_PER_INDEX_QUERY):
        yield from found
        following = found[-1].end_offset


def segments_for_read(
    index: LogIndex, segment: IndexSegment, topic: str, partition: int, start: int, limit: int
) -> Sequence[IndexSegment]:
    """A segment, and if it has fewer events from `start` on than are asked for, some of those behind it: as many as
    have enough, if they are like this one."""
    missing = limit - count_events_from(segment, start)
    if missing <= 0:
        return [segment]
    wanted = min(-(-missing // max(count_events_from(segment, 0), 1)), MAX_FOLLOWING_SEGMENTS)
    return [segment, *index.segments_from(topic, partition, segment.end_offset, wanted)]


def count_events_from(segment: IndexSegment, start: int) -> int:
    """How many events of a segment lie behind an offset; at most, where compaction has left holes."""
    behind = segment.end_offset - max(start, segment.first_offset)
    return behind if segment.event_count is None else min(behind, segment.event_count)


def first_segment_offset_since(
    index: LogIndex, topic: str, partition: int, start: int, end: int, stored_at: int
) -> int:
    """Where the first segment begins that holds an event stored then or later; `end` when none does."""
    low, high = start, end
    while low < high:
        segment = index.segment_at_or_before(topic, partition, (low + high) // 2)
        if segment is None:
            return low
        if segment.last_stored_at < stored_at:
            low = max(segment.end_offset, low + 1)
        elif segment.first_offset <= low:
            return low
        else:
            high = segment.first_offset
    return low

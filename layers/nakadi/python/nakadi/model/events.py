"""Events as a log stores them, and what the log index knows of a log: how far it is counted, where it is archived."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate, count, repeat
from typing import NamedTuple, overload

from msgspec import Struct, field

from nakadi.model.authorization import Attribute

# Moments --------------------------------------------------------------------------------------------------------------


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def microseconds_since_epoch(moment: datetime) -> int:
    return (moment - EPOCH) // MICROSECOND


def datetime_from_microseconds(microseconds: int) -> datetime:
    return EPOCH + microseconds * MICROSECOND


# Events ---------------------------------------------------------------------------------------------------------------


TopicPartition = tuple[str, int]
"""A partition of a topic: the name of the one and the number of the other."""


class Record(NamedTuple):
    """What a publisher hands to the log.

    `value` is the event as compact JSON text in UTF-8, without any line break; None is a tombstone.
    `key` is what compaction goes by. `owner` is who may read this single event, `directed_to` the one subscription
    that may see it; most events have neither.
    """

    value: bytes | None
    key: str | None = None
    owner: Attribute | None = None
    directed_to: str | None = None


class RecordLines(Sequence[Record]):
    """Records that have nothing but a value, one a line without a last break. They are made only where looked at."""

    __slots__ = ("number", "text")

    def __init__(self, text: bytes, number: int) -> None:
        self.text = text
        self.number = number

    def __len__(self) -> int:
        return self.number

    def __iter__(self) -> Iterator[Record]:
        return map(Record, self.text.split(b"\n"))

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        return list(self)[index]

    def parts(self, most_bytes: int) -> Iterator[RecordLines]:
        """The same in parts of no more bytes than this, but for a longer line."""
        text, begin = self.text, 0
        while begin <= len(text):
            end = len(text)
            if end - begin > most_bytes:
                end = text.rfind(b"\n", begin, begin + most_bytes)
                if end < 0:
                    end = text.find(b"\n", begin + most_bytes)
                if end < 0:
                    end = len(text)
            part = text[begin:end]
            yield RecordLines(part, part.count(b"\n") + 1)
            begin = end + 1


class StoredEvent(NamedTuple):
    """A record in its place."""

    offset: int
    record: Record
    stored_at: datetime


class EventTextBlock(NamedTuple):
    """Neighbours that were stored at one time and have nothing but a value: one event a line, without a last break.

    `ends` says where each line ends: looking for that takes longer than copying the text.
    """

    first: int
    stored_at: datetime
    text: bytes
    ends: Sequence[int]

    def text_between(self, first: int, last: int) -> bytes:
        """The text of lines from one up to, not including, another."""
        if not first and last == len(self.ends):
            return self.text
        return self.text[self.ends[first - 1] + 1 if first else 0 : self.ends[last - 1]]

    def cut(self, first: int, last: int) -> EventTextBlock:
        """These lines from one up to, not including, another."""
        if not first and last == len(self.ends):
            return self
        begin = self.ends[first - 1] + 1 if first else 0
        return EventTextBlock(
            self.first + first,
            self.stored_at,
            self.text_between(first, last),
            [end - begin for end in self.ends[first:last]],
        )


class LazyEvents(Sequence[StoredEvent]):
    """Events that are made only where they are looked at. Those who want nothing but the text take it from `lines`.

    A stream sends most events without a look at them, and making them would take longer than everything else.
    """

    __slots__ = ("_starts", "lines")

    def __init__(self, lines: Sequence[EventTextBlock]) -> None:
        self.lines = lines
        # The index of the first event of each, and the number of all events.
        self._starts = list(accumulate((len(each.ends) for each in lines), initial=0))

    def __len__(self) -> int:
        return self._starts[-1]

    def __iter__(self) -> Iterator[StoredEvent]:
        for first, stored_at, text, _ in self.lines:
            yield from map(StoredEvent._make, zip(count(first), map(Record, text.split(b"\n")), repeat(stored_at)))

    @overload
    def __getitem__(self, index: int) -> StoredEvent: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[StoredEvent]: ...

    def __getitem__(self, index: int | slice) -> StoredEvent | Sequence[StoredEvent]:
        if isinstance(index, slice):
            return tuple(self)[index]
        lines, line = self.find_block_and_index(index)
        return StoredEvent(lines.first + line, Record(lines.text_between(line, line + 1)), lines.stored_at)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # as other sequences that are compared by what is in them

    def find_block_and_index(self, index: int) -> tuple[EventTextBlock, int]:
        """In which lines an event is, and in which of them."""
        index = range(len(self))[index]
        at = bisect_right(self._starts, index) - 1
        return self.lines[at], index - self._starts[at]

    def cut(self, first: int, last: int) -> Iterator[EventTextBlock]:
        """The lines of the events from one up to, not including, another."""
        at = bisect_right(self._starts, first) - 1
        while first < last:
            start, end = self._starts[at], min(self._starts[at + 1], last)
            yield self.lines[at].cut(first - start, end - start)
            first = end
            at += 1

    def texts_between(self, first: int, last: int) -> Iterator[bytes]:
        """The text of the events from one up to, not including, another, in pieces of neighbours."""
        at = bisect_right(self._starts, first) - 1
        while first < last:
            start, end = self._starts[at], min(self._starts[at + 1], last)
            yield self.lines[at].text_between(first - start, end - start)
            first = end
            at += 1


class EventSlice(Struct, frozen=True):
    """What a read found: events in order, and the offset to read on from.

    `next_offset` is past the last event, and also past offsets that compaction has emptied. `at_end` says that nothing
    followed when the read began; without it something may or may not.
    """

    events: Sequence[StoredEvent]
    next_offset: int
    at_end: bool = False


class TopicContinuation(Struct, frozen=True):
    """A topic that continues another one, whose partitions ended in front of these offsets."""

    topic: str
    ends: Mapping[int, int]


class OffsetBounds(Struct, frozen=True):
    """`oldest` is the first offset still there, `next_offset` the one that the next event will get; equal when empty.

    Only deleting old events moves `oldest`: after compaction there may be a hole, which reads step over.
    """

    oldest: int
    next_offset: int

    @property
    def newest(self) -> int:
        """The newest event's offset; one before `oldest` when there is none."""
        return self.next_offset - 1


class Stored(Struct, frozen=True):
    """The fate of a partition's part of an append: it is durable."""


class Refused(Struct, frozen=True):
    """The fate of a partition's part of an append: not (or not provably) stored, in the words of the API."""

    reason: str


AppendResult = Stored | Refused


# The log index: records of a stream in the order of their numbers, and archived segments ------------------------------


class RecordPosition(NamedTuple):
    """A record's place in a stream. Sequence numbers of different shards say nothing about each other."""

    shard: str
    sequence: int


class UnfinishedAppend(NamedTuple):
    """A record that holds a part of an append whose last part was not met yet."""

    append: bytes
    number: int
    mark: RecordPosition
    arrived: int


class IndexingState(Struct, frozen=True, kw_only=True):
    """A partition up to and including the record at `mark`: everything that the offsets behind it depend on."""

    mark: RecordPosition | None = None
    next_offset: int = 0
    latest: int = 0
    sealed_at: RecordPosition | None = None
    parts: tuple[UnfinishedAppend, ...] = ()


NOTHING_INDEXED = IndexingState()

SEALED_AT_INDEX_END = RecordPosition("", 0)
"""The seal of a partition that ends where it is indexed: no record has this place."""


class ShardProgress(NamedTuple):
    """How far a shard is indexed: every record up to `sequence`; 0 is none.

    `complete_at` is a time, in milliseconds, up to which none is missing; None where that was never noted. A shard has
    `ended` when it is closed and all of it is indexed. Later progress is greater.
    """

    sequence: int
    ended: bool = False
    complete_at: int | None = None


class ShardGap(Struct, frozen=True):
    """A shard that has forgotten records before they were indexed, and how far it is indexed."""

    shard: str
    progress: ShardProgress

    def __str__(self) -> str:
        return f"{self.shard}/{self.progress.sequence}/{self.progress.complete_at}"


class ArchiveLocation(NamedTuple):
    """A range of bytes in an archive object."""

    key: str
    start: int
    length: int


class IndexSegment(Struct, frozen=True, kw_only=True):
    """Neighbouring events: `count` places from `before.next_offset` on. The first of them was stored at
    `first_stored_at`, the last one at `last_stored_at`, in microseconds.

    Counting on from `before` through the stream finds them; so does a look at `archived`, when there is one.
    `events` is how many of them are still there, if they were counted when they were written.
    """

    before: IndexingState
    count: int
    first_stored_at: int
    last_stored_at: int
    archived: ArchiveLocation | None = None
    events: int | None = None

    @property
    def first_offset(self) -> int:
        return self.before.next_offset

    @property
    def end_offset(self) -> int:
        return self.before.next_offset + self.count


class IndexHead(Struct, frozen=True):
    """How far a partition is indexed. `revision` grows with every change; 0 is what was never written."""

    state: IndexingState = NOTHING_INDEXED
    revision: int = 0


class Topic(Struct, frozen=True, kw_only=True):
    """A topic of the log. `oldest` and `compacted` tell offsets per partition; a partition they lack is at 0.

    What is before `oldest` is gone. What is before `compacted` is to be read from the archive alone.

    A topic may have been ended where it was indexed. Then the topic `continued_in` shares its records, and counts those
    that follow; that one `continues` it, and was `begun_after_gaps`. A topic that was deleted but is continued stays as
    one without partitions, for its records go on coming.
    """

    partitions: int
    sealed: bool = False
    oldest: Mapping[int, int] = field(default_factory=dict)
    compacted: Mapping[int, int] = field(default_factory=dict)
    continues: str | None = None
    continued_in: str | None = None
    begun_after_gaps: tuple[str, ...] = ()

"""Events as a log stores them."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate, count, repeat
from operator import add
from typing import NamedTuple, overload

from msgspec import Struct

from nakadi.model.authorization import Attribute

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def microseconds_since_epoch(moment: datetime) -> int:
    return (moment - EPOCH) // MICROSECOND


def datetime_from_microseconds(microseconds: int) -> datetime:
    return EPOCH + microseconds * MICROSECOND


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

    def split_by_size(self, max_bytes: int) -> Iterator[RecordLines]:
        """The same in parts of no more bytes than this, but for a longer line."""
        text, begin = self.text, 0
        while begin <= len(text):
            end = len(text)
            if end - begin > max_bytes:
                end = text.rfind(b"\n", begin, begin + max_bytes)
                if end < 0:
                    end = text.find(b"\n", begin + max_bytes)
                if end < 0:
                    end = len(text)
            part = text[begin:end]
            yield RecordLines(part, part.count(b"\n") + 1)
            begin = end + 1


class StoredEvent(NamedTuple):
    offset: int
    record: Record
    stored_at: datetime


class EventTextBlock(NamedTuple):
    """Neighbours that were stored at one time and have nothing but a value: one event a line, without a last break.

    `line_ends` says where each line ends: looking for that takes longer than copying the text.
    """

    first_offset: int
    stored_at: datetime
    text: bytes
    line_ends: Sequence[int]

    @classmethod
    def join(cls, first_offset: int, stored_at: datetime, values: Sequence[bytes]) -> EventTextBlock:
        """The block of values without line breaks."""
        ends = list(map(add, accumulate(map(len, values)), count()))
        return cls(first_offset, stored_at, b"\n".join(values), ends)

    def text_between(self, first: int, last: int) -> bytes:
        """The text of lines from one up to, not including, another."""
        if not first and last == len(self.line_ends):
            return self.text
        return self.text[self.line_ends[first - 1] + 1 if first else 0 : self.line_ends[last - 1]]

    def lines_between(self, first: int, last: int) -> EventTextBlock:
        """These lines from one up to, not including, another."""
        if not first and last == len(self.line_ends):
            return self
        begin = self.line_ends[first - 1] + 1 if first else 0
        return EventTextBlock(
            self.first_offset + first,
            self.stored_at,
            self.text_between(first, last),
            [end - begin for end in self.line_ends[first:last]],
        )


class LazyEvents(Sequence[StoredEvent]):
    """Events that are made only where they are looked at. Those who want nothing but the text take it from `lines`.

    A stream sends most events without a look at them, and making them would take longer than everything else.
    """

    __slots__ = ("_starts", "lines")

    def __init__(self, lines: Sequence[EventTextBlock]) -> None:
        self.lines = lines
        # The index of the first event of each, and the number of all events.
        self._starts = list(accumulate((len(each.line_ends) for each in lines), initial=0))

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
        return StoredEvent(lines.first_offset + line, Record(lines.text_between(line, line + 1)), lines.stored_at)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # as other sequences that are compared by what is in them

    def find_block_and_index(self, index: int) -> tuple[EventTextBlock, int]:
        """In which lines an event is, and in which of them."""
        index = range(len(self))[index]
        at = bisect_right(self._starts, index) - 1
        return self.lines[at], index - self._starts[at]

    def blocks_between(self, first: int, last: int) -> Iterator[EventTextBlock]:
        at = bisect_right(self._starts, first) - 1
        while first < last:
            start, end = self._starts[at], min(self._starts[at + 1], last)
            yield self.lines[at].lines_between(first - start, end - start)
            first = end
            at += 1

    def size_between(self, first: int, last: int) -> int:
        """The bytes of the events from one up to, not including, another, without the breaks between them."""
        size, at = 0, bisect_right(self._starts, first) - 1
        while first < last:
            start, end, ends = self._starts[at], min(self._starts[at + 1], last), self.lines[at].line_ends
            begin = ends[first - start - 1] + 1 if first > start else 0
            size += ends[end - start - 1] - begin - (end - first - 1)
            first = end
            at += 1
        return size

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
    end_offsets: Mapping[int, int]


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


class EventPlace(Struct, frozen=True, array_like=True):
    """Where an event of an event type is: the order of its timeline, its partition and its offset."""

    timeline: int
    partition: int
    offset: int


class Duplicate(Struct, frozen=True):
    """The fate of an event that is not stored again, as one with its id is there: in this place, if that is known."""

    first: EventPlace | None


class StoredExcept(Struct, frozen=True):
    """The fate of a partition's part of an append: it is durable, except for these of its events, by their index."""

    exceptions: Mapping[int, Duplicate | Refused]


AppendResult = Stored | Refused | StoredExcept


def indices_within_partitions(partitions: Sequence[int]) -> Iterator[int]:
    """The index of each event of a batch among the events of its partition."""
    counts: Counter[int] = Counter()
    for partition in partitions:
        yield counts[partition]
        counts[partition] += 1


def fates_of_events(
    partitions: Sequence[int], fates: Mapping[int, AppendResult]
) -> Iterator[Duplicate | Refused | None]:
    """The fate of each event of a batch; None for one that is stored."""
    for partition, index in zip(partitions, indices_within_partitions(partitions), strict=True):
        fate = fates[partition]
        if isinstance(fate, StoredExcept):
            yield fate.exceptions.get(index)
        else:
            yield fate if isinstance(fate, Refused) else None

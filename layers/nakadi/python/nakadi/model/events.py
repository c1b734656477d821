"""Events in the form in which logs store them."""

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
"""A partition of a topic: the topic's name and the partition's number."""


class Record(NamedTuple):
    """An event as the publisher gives it to the log.

    `value` is the event as compact JSON text in UTF-8, without line breaks; None is a tombstone. Compaction uses the
    `key`. `owner` is the only subject that may read this event, `directed_to` the only subscription that may see it;
    most events have neither.
    """

    value: bytes | None
    key: str | None = None
    owner: Attribute | None = None
    directed_to: str | None = None


class RecordLines(Sequence[Record]):
    """Records that have only a value, and perhaps a key each: one value per line, without a final line break. A record
    is created only when it is accessed.
    """

    __slots__ = ("keys", "number", "text")

    def __init__(self, text: bytes, number: int, keys: Sequence[str] | None = None) -> None:
        self.text = text
        self.number = number
        self.keys = keys

    def __len__(self) -> int:
        return self.number

    def __iter__(self) -> Iterator[Record]:
        lines = self.text.split(b"\n")
        return map(Record, lines) if self.keys is None else map(Record, lines, self.keys)

    @classmethod
    def join(cls, parts: Sequence[RecordLines]) -> RecordLines:
        """The records of all parts, which either all have keys or all have none."""
        keys = None if parts[0].keys is None else [key for part in parts for key in part.keys or ()]
        return cls(b"\n".join([part.text for part in parts]), sum([part.number for part in parts]), keys)

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        return list(self)[index]

    def split_by_size(self, max_bytes: int) -> Iterator[RecordLines]:
        """Split into parts of at most this size, except for longer lines."""
        text, keys, begin, first = self.text, self.keys, 0, 0
        while begin <= len(text):
            end = len(text)
            if end - begin > max_bytes:
                end = text.rfind(b"\n", begin, begin + max_bytes)
                if end < 0:
                    end = text.find(b"\n", begin + max_bytes)
                if end < 0:
                    end = len(text)
            part = text[begin:end]
            number = part.count(b"\n") + 1
            yield RecordLines(part, number, None if keys is None else keys[first : first + number])
            begin, first = end + 1, first + number


class StoredEvent(NamedTuple):
    offset: int
    record: Record
    stored_at: datetime


class EventTextBlock(NamedTuple):
    """Adjacent events of one commit that have only a value, with commas between them.

    A stream sends them in this form: a batch is a piece of the text. `ends` has the end of each event in the text,
    because searching for these ends would take longer than copying the text.
    """

    first_offset: int
    stored_at: datetime
    text: bytes
    ends: Sequence[int]

    @classmethod
    def join(cls, first_offset: int, stored_at: datetime, values: Sequence[bytes]) -> EventTextBlock:
        """The block of these values."""
        ends = list(map(add, accumulate(map(len, values)), count()))
        return cls(first_offset, stored_at, b",".join(values), ends)

    def view_between(self, first: int, last: int) -> memoryview:
        """The text of events from one index up to, but not including, another; it is not copied."""
        return memoryview(self.text)[self._begin_of(first) : self.ends[last - 1]]

    def block_between(self, first: int, last: int) -> EventTextBlock:
        """The events from one index up to, but not including, another."""
        if not first and last == len(self.ends):
            return self
        begin = self._begin_of(first)
        text, ends = self.text[begin : self.ends[last - 1]], [end - begin for end in self.ends[first:last]]
        return EventTextBlock(self.first_offset + first, self.stored_at, text, ends)

    def values(self) -> list[bytes]:
        """The text of each event."""
        text = self.text
        return [text[begin:end] for begin, end in self._bounds()]

    def views(self) -> list[memoryview]:
        """The text of each event, which is not copied."""
        text = memoryview(self.text)
        return [text[begin:end] for begin, end in self._bounds()]

    def _bounds(self) -> Iterator[tuple[int, int]]:
        return zip([0, *[end + 1 for end in self.ends]], self.ends, strict=False)

    def _begin_of(self, index: int) -> int:
        return self.ends[index - 1] + 1 if index else 0


class LazyEvents(Sequence[StoredEvent]):
    """Events that are created only when they are accessed. Code that needs only their text takes it from `blocks`.

    Streams send most events without accessing them, and creating them would take longer than all other work.
    """

    __slots__ = ("_starts", "blocks")

    def __init__(self, blocks: Sequence[EventTextBlock]) -> None:
        self.blocks = blocks
        # The index of the first event of each block, and the number of all events.
        self._starts = list(accumulate((len(each.ends) for each in blocks), initial=0))

    def __len__(self) -> int:
        return self._starts[-1]

    def __iter__(self) -> Iterator[StoredEvent]:
        for block in self.blocks:
            records = map(Record, block.values())
            yield from map(StoredEvent._make, zip(count(block.first_offset), records, repeat(block.stored_at)))

    @overload
    def __getitem__(self, index: int) -> StoredEvent: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[StoredEvent]: ...

    def __getitem__(self, index: int | slice) -> StoredEvent | Sequence[StoredEvent]:
        if isinstance(index, slice):
            return tuple(self)[index]
        block, within = self.find_block_and_index(index)
        value = bytes(block.view_between(within, within + 1))
        return StoredEvent(block.first_offset + within, Record(value), block.stored_at)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # as other sequences that are compared by what is in them

    def find_block_and_index(self, index: int) -> tuple[EventTextBlock, int]:
        """The block that an event is in, and its index there."""
        index = range(len(self))[index]
        at = bisect_right(self._starts, index) - 1
        return self.blocks[at], index - self._starts[at]

    def blocks_between(self, first: int, last: int) -> Iterator[EventTextBlock]:
        at = bisect_right(self._starts, first) - 1
        while first < last:
            start, end = self._starts[at], min(self._starts[at + 1], last)
            yield self.blocks[at].block_between(first - start, end - start)
            first = end
            at += 1

    def size_between(self, first: int, last: int) -> int:
        """The bytes of the events from one up to, but not including, another, without the commas between them."""
        size, at = 0, bisect_right(self._starts, first) - 1
        while first < last:
            start, end, ends = self._starts[at], min(self._starts[at + 1], last), self.blocks[at].ends
            begin = ends[first - start - 1] + 1 if first > start else 0
            size += ends[end - start - 1] - begin - (end - first - 1)
            first = end
            at += 1
        return size

    def views_between(self, first: int, last: int) -> Iterator[memoryview]:
        """The text of the events from one up to, but not including, another, a piece for each block."""
        at = bisect_right(self._starts, first) - 1
        while first < last:
            start, end = self._starts[at], min(self._starts[at + 1], last)
            yield self.blocks[at].view_between(first - start, end - start)
            first = end
            at += 1


class EventSlice(Struct, frozen=True):
    """The result of a read: events in order, and the offset for the next read.

    `next_offset` is past the last event, and past offsets that compaction has emptied. `at_end` says that nothing
    followed when the read began; if it is false, events may or may not follow.
    """

    events: Sequence[StoredEvent]
    next_offset: int
    at_end: bool = False


class TopicContinuation(Struct, frozen=True):
    """A topic that continues another one, whose partitions ended just before these offsets."""

    topic: str
    end_offsets: Mapping[int, int]


class OffsetBounds(Struct, frozen=True):
    """`oldest` is the first stored offset, `next_offset` the next event's; they are equal if nothing is stored.

    Only deleting old events moves `oldest`: compaction may leave a hole, which reads skip.
    """

    oldest: int
    next_offset: int

    @property
    def newest(self) -> int:
        """The offset of the newest event; one below `oldest` if there is none."""
        return self.next_offset - 1


class AppendStored(Struct, frozen=True):
    """The result for a partition's part of an append: it is durable."""


class AppendRefused(Struct, frozen=True):
    """The result for a partition's part of an append: it is not stored, or not known to be stored, with the reason in
    the words of the API.
    """

    reason: str


class EventPlace(Struct, frozen=True, array_like=True):
    """Where an event of an event type is: the order of its timeline, its partition and its offset."""

    timeline: int
    partition: int
    offset: int


class DuplicateEvent(Struct, frozen=True):
    """The result for an event that is not stored again, because an event with its id is already stored: at this place,
    if that is known.
    """

    first: EventPlace | None


class AppendStoredExcept(Struct, frozen=True):
    """The result for a partition's part of an append: it is durable except for these events, by their index in the
    part.
    """

    exceptions: Mapping[int, DuplicateEvent | AppendRefused]


AppendResult = AppendStored | AppendRefused | AppendStoredExcept


def indices_within_partitions(partitions: Sequence[int]) -> Iterator[int]:
    """The index of each event of a batch among the events of its partition."""
    counts: Counter[int] = Counter()
    for partition in partitions:
        yield counts[partition]
        counts[partition] += 1


def fates_of_events(
    partitions: Sequence[int], fates: Mapping[int, AppendResult]
) -> Iterator[DuplicateEvent | AppendRefused | None]:
    """The result for each event of a batch; None for a stored event."""
    for partition, index in zip(partitions, indices_within_partitions(partitions), strict=True):
        fate = fates[partition]
        if isinstance(fate, AppendStoredExcept):
            yield fate.exceptions.get(index)
        else:
            yield fate if isinstance(fate, AppendRefused) else None

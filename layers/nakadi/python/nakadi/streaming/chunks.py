"""Chunks: consecutive events of a partition as they were read, shared by all streams that send them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import groupby
from operator import attrgetter

from nakadi.model.event_type import Position
from nakadi.model.events import Record, Slice

MayRead = Callable[[Record], bool]

_OFFSET = attrgetter("offset")
_RESTRICTIONS = attrgetter("owner", "directed_to")


class EventChunk:
    """Consecutive events of one partition of one timeline, from offset `start` up to, not including, `next`.

    Never changes, except that it caches its serialised events: streams that cut batches at the same places share the
    bytes. What is done for every event here limits how fast events can be streamed, so it is done for all at once.
    """

    def __init__(self, order: int, start: int, found: Slice) -> None:
        self.order = order
        self.start = start
        self.next = found.next_offset
        self.events = found.events
        self.records = list(map(attrgetter("record"), found.events))
        self.values = list(map(attrgetter("value"), self.records))
        self.size = sum(map(len, filter(None, self.values)))
        # Whether every reader of the event type gets every event: no tombstones, no owners, no addressees.
        self.plain = None not in self.values and not any(map(any, map(_RESTRICTIONS, self.records)))
        # About how many bytes of memory it takes.
        self.weight = self.size + 500 * len(self.records) + 1000
        # Whether several streams read it. For a single one, memory that is used again at once is worth more.
        self.shared = False
        self._cached: dict[tuple[int, int], bytes] = {}
        self._cache_bytes_left = 2 * self.weight

    def from_offset(self, offset: int) -> EventRun:
        first = 0 if offset == self.start else bisect_left(self.events, offset, key=_OFFSET)
        return EventRun(self, first, len(self.records))

    def serialised(self, first: int, last: int, serialise: Callable[[Sequence[bytes]], bytes]) -> bytes:
        """The bytes of events `first` up to, not including, `last`; `serialise` is always the same rule."""
        known = self._cached.get((first, last))
        if known is None:
            known = serialise(self.values[first:last])
            # Streams that cut at many different places would multiply the memory and share nothing.
            if self.shared and len(known) <= self._cache_bytes_left:
                self._cache_bytes_left -= len(known)
                self._cached[first, last] = known
        return known


class EventRun:
    """The events of a chunk from index `first` up to, not including, `last`; `count` of them."""

    __slots__ = ("chunk", "count", "first", "last")

    def __init__(self, chunk: EventChunk, first: int, last: int) -> None:
        self.chunk = chunk
        self.first = first
        self.last = last
        self.count = last - first

    @property
    def size(self) -> int:
        """The bytes of its events."""
        if self.count == len(self.chunk.values):
            return self.chunk.size
        return sum(map(len, self.chunk.values[self.first : self.last]))

    @property
    def end(self) -> Position:
        """The position of the last event."""
        return Position(self.chunk.order, self.chunk.events[self.last - 1].offset)

    def stored_at(self, index: int) -> datetime:
        """When the event at an index was stored, counted from the run's first one; -1 is its last."""
        return self.chunk.events[(self.first if index >= 0 else self.last) + index].stored_at

    @property
    def values(self) -> Sequence[bytes]:
        return self.chunk.values[self.first : self.last]

    def serialised(self, serialise: Callable[[Sequence[bytes]], bytes]) -> bytes:
        return self.chunk.serialised(self.first, self.last, serialise)

    def split(self, count: int) -> tuple[EventRun, EventRun]:
        """The first `count` events, and the rest."""
        middle = self.first + count
        return EventRun(self.chunk, self.first, middle), EventRun(self.chunk, middle, self.last)

    def readable(self, may_read: MayRead) -> Iterator[EventRun]:
        """The parts of it that a reader may see."""
        if self.chunk.plain:
            yield self
            return
        indices = range(self.first, self.last)
        for wanted, group in groupby(indices, key=lambda index: may_read(self.chunk.records[index])):
            stretch = list(group)
            if wanted:
                yield EventRun(self.chunk, stretch[0], stretch[-1] + 1)


def is_public(record: Record) -> bool:
    """Whether every reader of its event type may see an event."""
    return record.value is not None and record.owner is None and record.directed_to is None

"""Chunks: stretches of a partition as they were read, shared by all streams that pass through them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import groupby

from nakadi.model.cursor import Position
from nakadi.model.events import Record, Slice

MayRead = Callable[[Record], bool]


class Chunk:
    """Consecutive events of one partition of one timeline, from offset `start` up to, not including, `next`.

    Never changes, except that it remembers what was made of it: streams that cut at the same places share the bytes.
    What is done for every event here limits how fast events can be streamed at all, so it is done all at once.
    """

    def __init__(self, order: int, start: int, found: Slice) -> None:
        self.order = order
        self.start = start
        self.next = found.next_offset
        self.records = [event.record for event in found.events]
        self.values = [record.value for record in self.records]
        self.size = sum(map(len, filter(None, self.values)))
        owners_and_addressees = [each.owner or each.directed_to for each in self.records]
        self.plain = None not in self.values and not any(owners_and_addressees)
        # Whether several streams pass. For a single one, memory that is used again at once is worth more.
        self.shared = False
        self._events = found.events
        self._made: dict[tuple[int, int], bytes] = {}
        self._room = 2 * self.weight

    @property
    def weight(self) -> int:
        """About how many bytes of memory it takes."""
        return self.size + 500 * len(self.records) + 1000

    def offset(self, index: int) -> int:
        return self._events[index].offset

    def stored_at(self, index: int) -> datetime:
        return self._events[index].stored_at

    def behind(self, offset: int) -> Run:
        """The events from this offset on."""
        first = 0 if offset == self.start else bisect_left(self._events, offset, key=lambda event: event.offset)
        return Run(self, first, len(self.records))

    def made(self, first: int, last: int, make: Callable[[Sequence[bytes]], bytes]) -> bytes:
        """The bytes that are made of events `first` up to, not including, `last`; always by the same rule."""
        known = self._made.get((first, last))
        if known is None:
            known = make(self.values[first:last])  # type: ignore[arg-type]  # only tombstones are None, and not sent
            if self.shared:
                self._remember(first, last, known)
        return known

    def _remember(self, first: int, last: int, made: bytes) -> None:
        # Streams that cut at many different places would multiply the memory and share nothing.
        if len(made) <= self._room:
            self._room -= len(made)
            self._made[first, last] = made


class Run:
    """The events of a chunk from index `first` up to, not including, `last`."""

    __slots__ = ("chunk", "first", "last")

    def __init__(self, chunk: Chunk, first: int, last: int) -> None:
        self.chunk = chunk
        self.first = first
        self.last = last

    def __len__(self) -> int:
        return self.last - self.first

    @property
    def size(self) -> int:
        return sum(map(len, self.values))

    @property
    def end(self) -> Position:
        """The place of the last event."""
        return Position(self.chunk.order, self.chunk.offset(self.last - 1))

    def stored_at(self, index: int) -> datetime:
        """When the event at an index was stored, counted from the run's first one; -1 is its last."""
        return self.chunk.stored_at((self.first if index >= 0 else self.last) + index)

    @property
    def values(self) -> Sequence[bytes]:
        return self.chunk.values[self.first : self.last]  # type: ignore[return-value]  # no tombstones are sent

    def made(self, make: Callable[[Sequence[bytes]], bytes]) -> bytes:
        return self.chunk.made(self.first, self.last, make)

    def split(self, count: int) -> tuple[Run, Run]:
        """The first `count` events, and the rest."""
        middle = self.first + count
        return Run(self.chunk, self.first, middle), Run(self.chunk, middle, self.last)

    def readable(self, may_read: MayRead) -> Iterator[Run]:
        """The stretches of it that a reader gets to see."""
        if self.chunk.plain:
            yield self
            return
        indices = range(self.first, self.last)
        for wanted, group in groupby(indices, key=lambda index: may_read(self.chunk.records[index])):
            stretch = list(group)
            if wanted:
                yield Run(self.chunk, stretch[0], stretch[-1] + 1)


def is_public(record: Record) -> bool:
    """Whether an event may be shown to all who may read its event type."""
    return record.value is not None and record.owner is None and record.directed_to is None

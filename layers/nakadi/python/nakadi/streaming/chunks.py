"""Chunks: stretches of a partition as they were read, shared by all streams that pass through them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate, groupby

from nakadi.model.cursor import Position
from nakadi.model.events import Record, Slice

MayRead = Callable[[Record], bool]


class Chunk:
    """Consecutive events of one partition of one timeline, from offset `start` up to, not including, `next`.

    Never changes, except that it remembers what was joined: streams that cut at the same places share the bytes.
    """

    __slots__ = ("_joined", "_room", "_sizes", "next", "offsets", "order", "plain", "records", "start")

    def __init__(self, order: int, start: int, found: Slice) -> None:
        self.order = order
        self.start = start
        self.next = found.next_offset
        self.records = tuple(event.record for event in found.events)
        self.offsets = tuple(event.offset for event in found.events)
        self.plain = all(for_everybody(record) for record in self.records)
        self._sizes = (0, *accumulate(len(record.value or b"") for record in self.records))
        self._joined: dict[tuple[int, int], bytes] = {}
        self._room = 2 * self._sizes[-1]

    @property
    def size(self) -> int:
        return self._sizes[-1]

    @property
    def weight(self) -> int:
        """About how many bytes of memory it takes."""
        return self._sizes[-1] + 300 * len(self.records) + 1000

    def size_of(self, first: int, last: int) -> int:
        return self._sizes[last] - self._sizes[first]

    def behind(self, offset: int) -> Run:
        """The events from this offset on."""
        return Run(self, bisect_left(self.offsets, offset), len(self.records))

    def joined(self, first: int, last: int) -> bytes:
        """The events from index `first` up to, not including, `last`, with commas between them."""
        if last - first == 1:
            return self.records[first].value or b""
        known = self._joined.get((first, last))
        if known is None:
            known = b",".join([record.value or b"" for record in self.records[first:last]])
            self._remember((first, last), known)
        return known

    def _remember(self, cut: tuple[int, int], joined: bytes) -> None:
        # Streams that cut at many different places would multiply the memory and share nothing.
        if len(joined) <= self._room:
            self._room -= len(joined)
            self._joined[cut] = joined


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
        return self.chunk.size_of(self.first, self.last)

    @property
    def end(self) -> Position:
        """The place of the last event."""
        return Position(self.chunk.order, self.chunk.offsets[self.last - 1])

    @property
    def joined(self) -> bytes:
        return self.chunk.joined(self.first, self.last)

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


def for_everybody(record: Record) -> bool:
    """Whether an event may be shown to all who may read its event type."""
    return record.value is not None and record.owner is None and record.directed_to is None

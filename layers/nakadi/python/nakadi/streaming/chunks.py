"""Chunks: consecutive events of a partition as they were read, shared by all streams that send them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import cached_property, partial
from itertools import groupby
from operator import attrgetter
from typing import TypeVar

from nakadi.model.event_type import Position
from nakadi.model.events import EventSlice, LazyEvents, Record

MayRead = Callable[[Record], bool]
EventKind = TypeVar("EventKind")

# Processing this many events takes a few milliseconds, however small they are.
MAX_STEP_EVENTS = 256

_RESTRICTIONS_OF = attrgetter("owner", "directed_to")


class EventChunk:
    """Consecutive events of one partition of one timeline, from offset `start` up to, but not including, `next_offset`.

    Never changes, except that it caches its serialised events: streams that cut batches at the same places share the
    bytes. Any work for each single event limits the speed of streams. So if the log provides the text of plain events,
    there is no such work: streams send the stored text, divided where batches end.
    """

    def __init__(self, order: int, start: int, found: EventSlice) -> None:
        self.order = order
        self.start = start
        self.next_offset = found.next_offset
        # Whether no event followed when these events were read.
        self.at_end = found.at_end
        self.events = found.events
        self.count = len(found.events)
        # The position of the last event; for a chunk without events, the one after which reading continues.
        self.end = Position(order, found.events[-1].offset if found.events else found.next_offset - 1)
        # The events as the log has returned them if it has returned their text, otherwise None.
        self.lazy = found.events if isinstance(found.events, LazyEvents) else None
        if self.lazy is not None:
            self.size = sum(len(each.text) + 1 - len(each.ends) for each in self.lazy.blocks)
            self.plain = True
        else:
            self.records = list(map(attrgetter("record"), found.events))
            self.values = list(map(attrgetter("value"), self.records))
            self.size = sum(map(len, filter(None, self.values)))
            # Whether every reader of the event type gets every event: no tombstones, no owners, no addressees.
            self.plain = None not in self.values and not any(map(any, map(_RESTRICTIONS_OF, self.records)))
        # The approximate number of bytes that the chunk takes in memory.
        self.weight = self.size + (500 if self.lazy is None else 100) * self.count + 1000
        # Whether several streams read the chunk. For a single stream, it is better to free memory at once than to
        # cache.
        self.shared = False
        self._cached: dict[tuple[int, int], bytes] = {}
        self._cache_bytes_left = 2 * self.weight

    @cached_property
    def records(self) -> list[Record]:
        return list(map(attrgetter("record"), self.events))

    @cached_property
    def values(self) -> list[bytes]:
        """The values of the events. A value may be None if not every reader gets the event."""
        if self.lazy is not None:
            return [value for block in self.lazy.blocks for value in block.values()]
        return list(map(attrgetter("value"), self.records))

    def run_from_offset(self, offset: int) -> EventRun:
        first = 0 if offset == self.start else bisect_left(range(self.count), offset, key=self.offset_at)
        return EventRun(self, first, self.count)

    def offset_at(self, index: int) -> int:
        if self.lazy is None:
            return self.events[index].offset
        block, within = self.lazy.find_block_and_index(index)
        return block.first_offset + within

    def size_between(self, first: int, last: int) -> int:
        """The bytes of the events from `first` up to, but not including, `last`."""
        if self.lazy is None:
            return sum(map(len, filter(None, self.values[first:last])))
        return self.lazy.size_between(first, last)

    def cached_bytes(self, first: int, last: int, serialise: Callable[[], bytes]) -> bytes:
        """The result of `serialise` for these events, cached because it never changes."""
        known = self._cached.get((first, last))
        if known is None:
            known = serialise()
            # If streams divide chunks at many different places, caching all results would take much memory and share
            # nothing.
            if self.shared and len(known) <= self._cache_bytes_left:
                self._cache_bytes_left -= len(known)
                self._cached[first, last] = known
        return known


class EventRun:
    """The `count` events of a chunk from index `first` up to, but not including, `last`, with `size` bytes.

    `end` is the position of the last one.
    """

    __slots__ = ("chunk", "count", "end", "first", "last", "size")

    def __init__(self, chunk: EventChunk, first: int, last: int, size: int | None = None) -> None:
        self.chunk = chunk
        self.first = first
        self.last = last
        self.count = last - first
        self.end = chunk.end if last == chunk.count else Position(chunk.order, chunk.offset_at(last - 1))
        if size is None:
            size = chunk.size if self.count == chunk.count else chunk.size_between(first, last)
        self.size = size

    def stored_at(self, index: int) -> datetime:
        """When an event was stored; the index counts from the run's first event, and -1 is its last."""
        chunk, at = self.chunk, (self.first if index >= 0 else self.last) + index
        return chunk.events[at].stored_at if chunk.lazy is None else chunk.lazy.find_block_and_index(at)[0].stored_at

    def position_at(self, index: int) -> Position:
        """The position of an event; the index counts from the run's first event."""
        return Position(self.chunk.order, self.chunk.offset_at(self.first + index))

    @property
    def values(self) -> Sequence[bytes]:
        return self.chunk.values[self.first : self.last]

    def split(self, count: int) -> tuple[EventRun, EventRun]:
        """The first `count` events, and the rest."""
        middle = self.first + count
        head = EventRun(self.chunk, self.first, middle)
        return head, EventRun(self.chunk, middle, self.last, self.size - head.size)

    def readable_parts(self, may_read: MayRead) -> Iterator[EventRun]:
        """The parts of the run that a reader may see."""
        if self.chunk.plain:
            yield self
            return
        for wanted, part in self.parts_by_kind(may_read):
            if wanted:
                yield part

    def parts_by_kind(self, kind_of: Callable[[Record], EventKind]) -> Iterator[tuple[EventKind, EventRun]]:
        """Cut the run where the kind of its events changes."""
        indices = range(self.first, self.last)
        for kind, group in groupby(indices, key=lambda index: kind_of(self.chunk.records[index])):
            same = list(group)
            yield kind, EventRun(self.chunk, same[0], same[-1] + 1)

    def parts_by_position(self, kind_of: Callable[[Position], EventKind]) -> Iterator[tuple[EventKind, EventRun]]:
        """Cut the run where the kind of its events' positions changes."""
        for kind, group in groupby(range(self.count), key=lambda index: kind_of(self.position_at(index))):
            same = list(group)
            yield kind, EventRun(self.chunk, self.first + same[0], self.first + same[-1] + 1)

    def part_after(self, position: Position) -> EventRun:
        """The part after a position, which may lie inside the run."""
        if self.chunk.order != position.timeline or self.chunk.offset_at(self.first) > position.offset:
            return self
        first = self.chunk.run_from_offset(position.offset + 1).first
        return EventRun(self.chunk, max(self.first, first), self.last)

    def part_until(self, position: Position) -> EventRun | None:
        """The part up to and including a position; None if that is before its first event."""
        if self.end <= position:
            return self
        last = self.chunk.run_from_offset(position.offset + 1).first if self.chunk.order == position.timeline else 0
        return EventRun(self.chunk, self.first, last) if last > self.first else None


def runs_in_steps(runs: Sequence[EventRun], max_bytes: int) -> Iterator[EventRun]:
    """The same events in small runs, for work with a pause after each run: a run has at most this size, or one
    event.
    """
    for run in runs:
        rest = run
        while rest.count > MAX_STEP_EVENTS or (rest.size > max_bytes and rest.count > 1):
            ends = range(rest.first + 1, min(rest.first + MAX_STEP_EVENTS, rest.last) + 1)
            fitting = bisect_right(ends, max_bytes, key=partial(rest.chunk.size_between, rest.first))
            head, rest = rest.split(max(1, fitting))
            yield head
        yield rest


def joined_json(head: bytes, runs: Sequence[EventRun], tail: bytes) -> bytes:
    """The events of runs with commas between them, between `head`, which has no line breaks, and `tail`.

    Clients can split the text into lines (`escape_line_separators`). Events are most of the bytes of a stream, so they
    are copied as rarely as possible.
    """
    return escape_line_separators(_joined_texts(head, runs, tail))


def _joined_texts(head: bytes, runs: Sequence[EventRun], tail: bytes) -> bytes:
    texts: list[bytes | memoryview] = []
    for run in runs:
        if run.chunk.lazy is None:
            texts += run.chunk.values[run.first : run.last]
        else:
            # Adjacent events come in one text, with commas between them.
            texts += run.chunk.lazy.views_between(run.first, run.last)
    between: list[bytes | memoryview] = [b","] * (2 * len(texts) - 1)
    between[::2] = texts
    return b"".join([head, *between, tail])


_LINE_SEPARATORS = (
    (b"\xe2", b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2", b"\xe2\x80\xa9", b"\\u2029"),
    (b"\x85", b"\xc2\x85", b"\\u0085"),
)


def escape_line_separators(text: bytes) -> bytes:
    """JSON text with U+2028, U+2029 and U+0085 as escapes, which means the same.

    Many client libraries also split lines at these characters (`iter_lines` of httpx and requests, all that use
    `str.splitlines`), and would tear an object apart. JSON allows them only inside strings, where an escape may replace
    them. Almost no text has these characters, and most is plain ASCII, which can be checked much faster than searched.
    """
    if text.isascii():
        return text
    # A search for single bytes is ten times faster than a search for several, and these bytes are rare in most
    # languages.
    for rare, separator, escape in _LINE_SEPARATORS:
        if rare in text and separator in text:
            text = text.replace(separator, escape)
    return text


def is_public(record: Record) -> bool:
    """Whether every reader of its event type may see an event."""
    return record.value is not None and record.owner is None and record.directed_to is None

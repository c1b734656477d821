"""The queues of a partition: which of its events wait, which may be sent next, and up to which position everything is
delivered.

`InOrderQueue` releases one batch at a time. `KeyedQueue` releases events of different keys at the same time, and the
events of one key batch after batch. Events without a key are in the order of their partition, as if they shared a key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Protocol

from nakadi.model.event_type import Position
from nakadi.model.subscription import OffsetRange, joined_ranges
from nakadi.streaming.chunks import EventRun

# The approximate maximum length of a body with more than one event.
MAX_BATCH_BYTES = 1_000_000

Runs = Sequence[EventRun]


class DeliveryQueue(Protocol):
    """Events come in with `receive`, in order. Taken events block those that must follow them, until `release`."""

    def receive(self, runs: Runs) -> None: ...

    @property
    def may_take(self) -> bool: ...

    def take(self, limit: int) -> tuple[EventRun, ...]:
        """The next events that may share a batch, at most `limit`, in the order of their positions."""

    def give_back(self, runs: Runs) -> None:
        """Put back events that were taken, so that they are taken again later. The events that must follow them stay
        blocked.
        """

    def complete(self, runs: Runs) -> None:
        """Record that events which were taken are delivered. The events that must follow them stay blocked."""

    def release(self, runs: Runs, but: Runs = ()) -> None:
        """Unblock the events that must follow `runs`, unless they must also follow events in `but`."""

    def is_next(self, position: Position) -> bool:
        """Whether everything before a position is delivered."""

    @property
    def reached(self) -> Position:
        """The position up to which everything is delivered; valid after `complete`."""

    def done_ahead(self) -> tuple[OffsetRange, ...]:
        """The events after `reached` that are already delivered."""


class InOrderQueue:
    def __init__(self) -> None:
        # A list, because there are few runs; an empty list takes a tenth of the memory of a deque, and thousands of
        # sinks may have no events.
        self._runs: list[EventRun] = []
        self._count = 0
        self._is_taken = False
        self._reached: Position | None = None

    @property
    def may_take(self) -> bool:
        return bool(self._runs) and not self._is_taken

    @property
    def reached(self) -> Position:
        assert self._reached is not None, "nothing was delivered"
        return self._reached

    def receive(self, runs: Runs) -> None:
        self._runs.extend(runs)
        self._count += sum(run.count for run in runs)

    def take(self, limit: int) -> tuple[EventRun, ...]:
        taken: list[EventRun] = []
        missing, size = min(limit, self._count), 0
        while missing:
            run = self._runs.pop(0)
            wanted = min(run.count, missing, _events_within(run, MAX_BATCH_BYTES - size))
            if not wanted and taken:
                self._runs.insert(0, run)
                break
            if (wanted := max(wanted, 1)) < run.count:
                run, rest = run.split(wanted)
                self._runs.insert(0, rest)
            taken.append(run)
            missing -= run.count
            size += run.size
        self._count -= sum(run.count for run in taken)
        self._is_taken = bool(taken)
        return tuple(taken)

    def give_back(self, runs: Runs) -> None:
        self._runs[:0] = runs
        self._count += sum(run.count for run in runs)

    def complete(self, runs: Runs) -> None:
        self._reached = runs[-1].end

    def release(self, runs: Runs, but: Runs = ()) -> None:  # noqa: ARG002  # each event follows all before it
        self._is_taken = bool(but)

    def is_next(self, position: Position) -> bool:  # noqa: ARG002  # the one batch that was taken is the next one
        return True

    def done_ahead(self) -> tuple[OffsetRange, ...]:
        return ()


class KeyedQueue:
    """A queue that holds each event separately, with its key, in the order of the events with that key."""

    def __init__(self) -> None:
        # The waiting events, by key.
        self._waiting: dict[str | None, deque[EventRun]] = {}
        # The first position of each waiting key that is not blocked, as a heap without duplicates.
        self._free: list[tuple[Position, str | None]] = []
        self._blocked: set[str | None] = set()
        # `_order` has the events in the order in which they came, from the first undelivered one; `_delivered` has
        # those that are delivered.
        self._order: deque[Position] = deque()
        self._delivered: set[Position] = set()
        self._reached: Position | None = None

    @property
    def may_take(self) -> bool:
        return bool(self._free)

    @property
    def reached(self) -> Position:
        assert self._reached is not None, "nothing came"
        return self._reached

    def receive(self, runs: Runs) -> None:
        for event in _single_events(runs):
            if self._reached is None:
                # Everything before the first event is already consumed, or the filter of the sink excludes it.
                self._reached = Position(event.end.timeline, event.end.offset - 1)
            self._order.append(event.end)
            key = _key_of_event(event)
            queue = self._waiting.get(key)
            if queue is not None:
                queue.append(event)
                continue
            self._waiting[key] = deque([event])
            if key not in self._blocked:
                heappush(self._free, (event.end, key))

    def take(self, limit: int) -> tuple[EventRun, ...]:
        taken: list[EventRun] = []
        keys: set[str | None] = set()
        size = 0
        while self._free and len(taken) < limit:
            _, key = self._free[0]
            queue = self._waiting[key]
            if taken and size + queue[0].size > MAX_BATCH_BYTES:
                break
            heappop(self._free)
            event = queue.popleft()
            if queue:
                heappush(self._free, (queue[0].end, key))
            else:
                del self._waiting[key]
            keys.add(key)
            taken.append(event)
            size += event.size
        self._blocked |= keys
        if not keys.isdisjoint(self._waiting):
            self._free = [each for each in self._free if each[1] not in keys]
            heapify(self._free)
        return tuple(_join_neighbours(taken))

    def give_back(self, runs: Runs) -> None:
        for event in reversed(list(_single_events(runs))):
            self._waiting.setdefault(_key_of_event(event), deque()).appendleft(event)

    def complete(self, runs: Runs) -> None:
        self._delivered.update(event.end for event in _single_events(runs))
        while self._order and self._order[0] in self._delivered:
            self._reached = self._order.popleft()
            self._delivered.remove(self._reached)

    def release(self, runs: Runs, but: Runs = ()) -> None:
        for key in _keys_of(runs) - _keys_of(but):
            self._blocked.remove(key)
            if key in self._waiting:
                heappush(self._free, (self._waiting[key][0].end, key))

    def is_next(self, position: Position) -> bool:
        return self._order[0] == position

    def done_ahead(self) -> tuple[OffsetRange, ...]:
        single = (OffsetRange(each.timeline, each.offset, each.offset) for each in self._delivered)
        return joined_ranges(single, self.reached)


def _keys_of(runs: Runs) -> set[str | None]:
    return set(map(_key_of_event, _single_events(runs)))


def _key_of_event(event: EventRun) -> str | None:
    # A log makes records lazily only if its events have nothing besides their text, so these have no key.
    return event.chunk.records[event.first].key if event.chunk.lazy is None else None


def _single_events(runs: Iterable[EventRun]) -> Iterator[EventRun]:
    for run in runs:
        if run.count == 1:
            yield run
        else:
            yield from (EventRun(run.chunk, index, index + 1) for index in range(run.first, run.last))


def _join_neighbours(events: Iterable[EventRun]) -> Iterator[EventRun]:
    """Join neighbours into one run, whose text is copied at once."""
    before: EventRun | None = None
    for event in events:
        if before is not None and before.chunk is event.chunk and before.last == event.first:
            before = EventRun(event.chunk, before.first, event.last, before.size + event.size)
            continue
        if before is not None:
            yield before
        before = event
    if before is not None:
        yield before


def split_runs(runs: Runs, count: int) -> tuple[tuple[EventRun, ...], tuple[EventRun, ...]]:
    """The first `count` events, and the rest."""
    head: list[EventRun] = []
    rest = list(runs)
    while rest and rest[0].count <= count:
        head.append(rest.pop(0))
        count -= head[-1].count
    if rest and count:
        first, rest[0] = rest[0].split(count)
        head.append(first)
    return tuple(head), tuple(rest)


def _events_within(run: EventRun, size: int) -> int:
    """How many of the first events of a run have about this number of bytes in total."""
    if run.size <= size:
        return run.count
    return max(0, int(run.count * size / run.size))

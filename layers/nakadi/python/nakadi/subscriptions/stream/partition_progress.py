"""A partition as a session reads it: what is committed, sent, waiting to be sent, and passed over."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from enum import Enum, auto
from functools import partial
from itertools import groupby

from nakadi.model.coordination import Entry, Replay
from nakadi.model.cursor import Position
from nakadi.model.events import Record
from nakadi.model.subscription import EventTypePartition
from nakadi.streaming.chunks import Run

IsDeliverable = Callable[[EventTypePartition, Record], bool]
MeasureDistance = Callable[[EventTypePartition, Position, Position], int]
"""How many events lie behind the first position, up to and including the second."""


class Disposition(Enum):
    """What becomes of an event that was read."""

    SEND = auto()
    PASS_OVER = auto()
    FOLLOW = auto()  # to where others of its key are parked


class PartitionProgress:
    """Positions only grow here: committed <= sent <= taken. Whoever goes back makes a new one.

    `stored` is the offset as it was last seen. `committed` is at least where reading began, so that events that were
    gone before they could be sent are not waited for. `parked` are the keys that wait in the lot.
    """

    __slots__ = (
        "_parking",
        "_skipped",
        "_unsure",
        "committed",
        "count",
        "dropping",
        "fails",
        "flushed_at",
        "handing_over",
        "hurried",
        "keep_alives",
        "learned",
        "lost",
        "open",
        "opening",
        "outstanding",
        "parked",
        "place",
        "release_by",
        "released",
        "replay",
        "runs",
        "search_end",
        "sent",
        "size",
        "stored",
        "taken",
        "window_end",
    )

    def __init__(self, entry: Entry, stored: Position, now: float, *, counts: bool) -> None:
        self.place = entry.place
        self.stored = self.committed = self.sent = self.taken = stored
        self.fails = entry.fails if counts else 0
        self.search_end = entry.search_end if counts else None
        self.replay: Replay | None = entry.replay
        self.hurried = False
        self.flushed_at = now
        self.keep_alives = 0
        # How many events are sent and not committed, counted by their positions.
        self.outstanding = 0
        # How many events were gone before they could be sent; told once.
        self.lost = 0
        self.open = False
        self.opening = 0
        # Until when the client has time to commit what it got, since somebody else waits for the partition.
        self.release_by: float | None = None
        # Whether nothing may be sent any more because it was let go; and whether that is still under way.
        self.released = False
        self.handing_over = False
        # Where the event is that is being dealt with as the policy says.
        self.dropping: Position | None = None
        self.runs: deque[Run] = deque()
        self.count = 0
        self.size = 0
        self.window_end: datetime | None = None
        self.parked: frozenset[str] = frozenset()
        # The assignment's revision when the keys in the lot were asked for.
        self.learned = 0
        # Events that are being put away: where they begin, and their keys.
        self._parking: deque[tuple[Position, frozenset[str]]] = deque()
        # Batches that were sent and are not committed: where each ends, and when its first event was stored.
        self._unsure: deque[tuple[Position, datetime]] = deque()
        # Stretches that are not for this client: behind which event each follows, and where it ends.
        self._skipped: deque[tuple[Position, Position]] = deque()

    @property
    def sendable(self) -> bool:
        return self.open and not self.released and self.release_by is None and not self.putting_away

    @property
    def putting_away(self) -> bool:
        """Whether an event is being dealt with that nobody behind it may be sent before."""
        return self.dropping is not None or bool(self._parking)

    @property
    def replay_is_passed(self) -> bool:
        """Whether nothing but a commit is missing until a replay is over."""
        return self.replay is not None and self.reached() >= self.replay.until > self.committed

    @property
    def searching(self) -> bool:
        return self.search_end is not None

    def opened(self, start: Position, lost: int, measure: MeasureDistance) -> None:
        """Reading goes on behind `start`."""
        self.open = True
        self.lost = lost
        self.committed = max(self.committed, start)
        self.sent = max(self.sent, self.committed)
        self.taken = max(self.sent, start)
        self._count_outstanding(measure)

    def reopened(self) -> None:
        """What was read and not sent will be read again."""
        self.open = False
        self._parking.clear()
        self._drop_everything()

    # Events

    def take_in(self, run: Run, deliverable: IsDeliverable, *, closely: bool) -> Sequence[Run]:
        """Events were read: keep those that are for the client, and remember those that are not. The answer are those
        that have to follow others into the lot."""
        following = []
        for fate, stretch in stretches(run, partial(self._fate, deliverable), closely=closely or bool(self.parked)):
            if fate is Disposition.SEND:
                self.runs.append(stretch)
                self.count += len(stretch)
                self.size += stretch.size
            else:
                self._skip(stretch.end)
                if fate is Disposition.FOLLOW:
                    following.append(stretch)
            self.taken = stretch.end
        return following

    def take(self, count: int, measure: MeasureDistance) -> tuple[Run, ...]:
        """The first `count` events that wait; they count as sent."""
        taken, missing = [], count
        while missing:
            run = self.runs.popleft()
            if len(run) > missing:
                run, rest = run.split(missing)
                self.runs.appendleft(rest)
            taken.append(run)
            missing -= len(run)
        self.count -= count
        self.size -= sum(run.size for run in taken)
        self.window_end = None
        self.sent = taken[-1].end
        self._unsure.append((self.sent, taken[0].stored_at(0)))
        self.keep_alives = 0
        self._count_outstanding(measure)
        return tuple(taken)

    def first(self) -> Run:
        """The first event that waits; it goes on waiting."""
        return self.runs[0].split(1)[0]

    def beyond_timespan(self, seconds: float) -> int:
        """How many events make up a batch by their age, once the newest of them is from after its time."""
        if not seconds or not self.runs:
            return 0
        if self.window_end is None:
            self.window_end = self.runs[0].stored_at(0) + timedelta(seconds=seconds)
        end = self.window_end
        if self.runs[-1].stored_at(-1) < end:
            return 0
        older = sum(run.stored_at(index) < end for run in self.runs for index in range(len(run)))
        return max(1, older)

    # Parking

    def waits_for(self, events: Sequence[Run]) -> None:
        """Send nothing before these are put away."""
        keys = frozenset(key for each in events if (key := each.chunk.records[each.first].key) is not None)
        self._parking.append((events[0].end, keys))

    def put_away(self) -> None:
        """Those that waited longest are."""
        self._parking.popleft()

    def learn(self, keys: frozenset[str]) -> None:
        """These keys were in the lot before what is being put away now."""
        self.parked = keys.union(*(being_parked for _, being_parked in self._parking))

    # Commits

    def advance(self, stored: Position, measure: MeasureDistance) -> int:
        """The offset has grown: by how many events."""
        before = self.committed
        self.stored = stored
        self.committed = max(self.committed, stored)
        self.sent = max(self.sent, self.committed)
        while self.runs and self.runs[0].end <= self.committed:
            self._drop(self.runs.popleft())
        if self.runs and (begun := _behind(self.runs[0], self.committed)) is not self.runs[0]:
            self._drop(self.runs.popleft())
            self.runs.appendleft(begun)
            self.count += len(begun)
            self.size += begun.size
        while self._skipped and self._skipped[0][1] <= self.committed:
            self._skipped.popleft()
        if self.dropping is not None and self.dropping <= self.committed:
            self.dropping = None
        self._count_outstanding(measure)
        return measure(self.place, before, self.committed)

    def committable(self) -> Position | None:
        """How far everything is committed, was passed over or put away, if that is further than what is committed."""
        reached = self.reached(short_of=self._parking[0][0] if self._parking else None)
        return reached if reached > self.committed else None

    def reached(self, short_of: Position | None = None) -> Position:
        """How far there is nothing that waits for a commit; not as far as a position that must not be passed."""
        reached = self.committed
        for after, end in self._skipped:
            if after > reached or (short_of is not None and end >= short_of):
                break
            reached = max(reached, end)
        return reached

    # Inside

    def _fate(self, deliverable: IsDeliverable, record: Record) -> Disposition:
        if not deliverable(self.place, record):
            return Disposition.PASS_OVER
        return Disposition.FOLLOW if record.key in self.parked else Disposition.SEND

    def _skip(self, end: Position) -> None:
        after = self.runs[-1].end if self.runs else self.sent
        if self._skipped and self._skipped[-1][0] >= after:
            after, _ = self._skipped.pop()
        self._skipped.append((after, end))

    def _drop(self, run: Run) -> None:
        self.count -= len(run)
        self.size -= run.size

    def _drop_everything(self) -> None:
        self.runs.clear()
        self._skipped.clear()
        self.count = self.size = 0
        self.taken = self.sent
        self.window_end = None

    def oldest(self) -> datetime | None:
        """When the oldest event was stored that waits to be sent or to be committed. Asked by other threads than the
        one that changes it, so it is copied first, which no other thread can interrupt."""
        unsure, waiting = tuple(self._unsure), tuple(self.runs)
        return unsure[0][1] if unsure else waiting[0].stored_at(0) if waiting else None

    def _count_outstanding(self, measure: MeasureDistance) -> None:
        while self._unsure and self._unsure[0][0] <= self.committed:
            self._unsure.popleft()
        self.outstanding = measure(self.place, self.committed, self.sent)


def stretches(
    run: Run, fate_of: Callable[[Record], Disposition], *, closely: bool
) -> Iterator[tuple[Disposition, Run]]:
    """A run cut by what becomes of the events; `closely` looks at every one of them whatever it is."""
    if run.chunk.plain and not closely:
        if len(run):
            yield Disposition.SEND, run
        return
    for fate, group in groupby(range(run.first, run.last), key=lambda index: fate_of(run.chunk.records[index])):
        indices = list(group)
        yield fate, Run(run.chunk, indices[0], indices[-1] + 1)


def _behind(run: Run, position: Position) -> Run:
    """The part of a run behind a position that may lie inside of it."""
    if run.chunk.order != position.timeline or run.chunk.offset(run.first) > position.offset:
        return run
    first = run.chunk.behind(position.offset + 1).first
    return Run(run.chunk, max(run.first, first), run.last)

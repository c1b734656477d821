"""The session: what a subscription's stream sends, what it lets go of, and when it ends.

It never waits, knows no clock and no store: facts come in as calls, and each answers with the actions that follow from
it. Calls among those are carried out one after the other, and what comes of them is another fact.

A session is *streaming* until something ends it in an orderly way. Then it is *closing*: silent, but still there for
commits of what it has sent, for one commit timeout at most. In the end `end` is set, and nothing but its `farewell` is
left to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf

from nakadi.model.coordination import Assignment, Entry
from nakadi.model.cursor import Position
from nakadi.model.subscription import EventTypePartition
from nakadi.streaming.chunks import Run
from nakadi.subscriptions.api.fields import RetryPolicy, failure_info
from nakadi.subscriptions.stream.actions import (
    AutoCommit,
    ClosePartition,
    EndReplay,
    HandOver,
    OpenPartition,
    ParkEvents,
    RecordFailures,
    ReloadParkedKeys,
    SendKeepAlive,
    SessionAction,
    SessionContext,
    SessionEnd,
    SessionProgress,
    SessionResult,
    SharedState,
)
from nakadi.subscriptions.stream.outbox import Outbox
from nakadi.subscriptions.stream.parameters import SubscriptionStreamLimits
from nakadi.subscriptions.stream.parking import parking_calls
from nakadi.subscriptions.stream.partition_progress import PartitionProgress

AUTO_COMMIT_SECONDS = 5.0


class SubscriptionSession:
    """`id` is the session's in the assignment, which it is in already."""

    def __init__(
        self,
        session_id: str,
        limits: SubscriptionStreamLimits,
        now: float,
        around: SessionContext,
        policy: RetryPolicy | None = None,
    ) -> None:
        self.id = session_id
        self.end: SessionEnd | None = None
        self.closing: SessionEnd | None = None
        self._limits = limits
        self._around = around
        self._policy = policy
        self._readings: dict[EventTypePartition, PartitionProgress] = {}
        self._outbox = Outbox(self._readings, limits, around, now, policy)
        self._ends_at = now + limits.stream_seconds
        self._closed_by = inf
        self._auto_commit_at = now + AUTO_COMMIT_SECONDS
        self._idle_since: float | None = now
        self._committed_events = 0
        self._stop: SessionEnd | None = None
        self._openings = 0
        # What is older than this was read before something that we have done since.
        self._revision = 0
        self._seen = 0

    # Facts

    def looked(self, shared: SharedState, now: float) -> list[SessionAction]:
        """Somebody has joined, left, let go or committed: this is how it is now."""
        if self._is_over(now):
            return []
        if shared.assignment.session(self.id) is None:
            return self._stopped(SessionEnd.REMOVED)
        if shared.assignment.revision < self._revision:
            return []
        self._seen = shared.assignment.revision
        mine = {entry.place: entry for entry in shared.assignment.entries if entry.owner == self.id}
        actions: list[SessionAction] = [self._forgotten(place) for place in self._readings.keys() - mine.keys()]
        for entry in mine.values():
            offset = shared.offsets.get(entry.place)
            # An offset of somebody else is newer than the assignment: the next look will tell.
            if offset is not None and offset.owner == self.id:
                actions += self._owned(entry, offset.position, now)
        actions += self._relearned(shared.assignment.revision)
        self._note_idleness(shared.assignment, now)
        if self._policy and any(isinstance(each, OpenPartition) for each in actions):
            self._outbox.tracking = failure_info(mine.values())
        if shared.resetting:
            actions += self._close(SessionEnd.RESET, now, "Resetting subscription cursors")
        return [*actions, *self._went_on(now)]

    def opened(
        self, opening: OpenPartition, start: Position, lost: int, now: float, parked: frozenset[str] = frozenset()
    ) -> list[SessionAction]:
        """Events of a partition will come from behind `start`; as many as `lost` were gone before. Those with the keys
        that are `parked` are to be put away."""
        if self._is_over(now) or not self.expects(opening):
            return []
        reading = self._readings[opening.place]
        reading.learn(parked)
        reading.opened(start, lost, self._around.measure)
        return self._went_on(now)

    def parked(self, call: ParkEvents, now: float) -> list[SessionAction]:
        """Events were put away: what is behind them may be sent."""
        reading = self._readings.get(call.place)
        if reading is not None and reading.opening == call.number:
            reading.put_away()
        return [] if self._is_over(now) else self._went_on(now)

    def learned(self, call: ReloadParkedKeys, keys: frozenset[str]) -> list[SessionAction]:
        """These keys are parked, and those of what we have put away since this was asked."""
        reading = self._readings.get(call.place)
        if reading is not None and reading.opening == call.number:
            reading.learn(keys)
        return []

    def handed_over(self, places: Iterable[EventTypePartition], revision: int, now: float) -> list[SessionAction]:
        """Partitions were let go, or nobody waited for them any more; `revision` is the assignment's since then."""
        self._revision = max(self._revision, revision)
        for place in places:
            if place in self._readings:
                self._readings[place].handing_over = False
                # Whoever has seen the assignment since then knows that the partition has stayed.
                self._readings[place].released = self._seen < revision
        return [] if self._is_over(now) else self._went_on(now)

    def arrived(self, place: EventTypePartition, run: Run, now: float) -> list[SessionAction]:
        """Events of a partition were read, in order, none left out."""
        reading = self._readings.get(place)
        if self._is_over(now) or self.closing or reading is None or not reading.open:
            return []
        following = reading.take_in(run, self._around.deliverable, closely=self._around.closely())
        return [*parking_calls(reading, following), *self._outbox.sent(reading, now), *self._outbox.relieved(now)]

    def tick(self, now: float) -> list[SessionAction]:
        """Time has passed."""
        if self._is_over(now):
            return []
        actions = self._due(now)
        actions += self._auto_committed(now)
        return [*actions, *self._went_on(now)]

    def blocked(self) -> list[SessionAction]:
        """An administrator has blocked the client or what it reads; the next tick does the rest."""
        self._stop = SessionEnd.BLOCKED
        return []

    def refused(self, _error: Exception) -> list[SessionAction]:
        """The client may not go on, or cannot. It is not told why: there is no place for that in these streams."""
        return self._stopped(SessionEnd.REFUSED)

    def drain(self) -> list[SessionAction]:
        """The process is about to end."""
        return self._stopped(SessionEnd.DRAINED)

    def lapsed(self) -> list[SessionAction]:
        """Others take us for dead, or are about to."""
        return self._stopped(SessionEnd.LEASE_LOST)

    def gone(self, now: float) -> list[SessionAction]:
        """Nobody listens; but what was sent may still be committed."""
        return [] if self._is_over(now) else self._close(SessionEnd.GONE, now)

    # What whoever carries out asks

    def expects(self, opening: OpenPartition) -> bool:
        """Whether this is the latest that was asked for of the partition, and still to come."""
        reading = self._readings.get(opening.place)
        return reading is not None and not reading.open and reading.opening == opening.number and not self.closing

    def wants(self, place: EventTypePartition) -> bool:
        """Whether more events of a partition are of use."""
        reading = self._readings.get(place)
        return not self.closing and not self.end and reading is not None and self._outbox.wants(reading)

    def deadline(self) -> float:
        """When the next tick has something to do."""
        if self._stop is not None:
            return -inf
        auto = self._auto_commit_at if any(map(PartitionProgress.committable, self._readings.values())) else inf
        if self.closing:
            return min(self._closed_by, auto)
        commit_by = self._commit_by() if self._outbox.outstanding() else inf
        releases = [each.release_by for each in self._readings.values() if each.release_by is not None]
        return min(commit_by, auto, self._ends_at, self._idle_until(), self._outbox.deadline(), *releases)

    def progress(self) -> SessionProgress:
        """How far its client is; may be asked by any thread."""
        readings = tuple(self._readings.values())
        oldest = min([found for each in readings if (found := each.oldest()) is not None], default=None)
        return SessionProgress(len(readings), sum([each.outstanding for each in readings]), oldest)

    def farewell(self) -> SessionResult:
        """What is to be written down when the session leaves the assignment."""
        if self.end in (SessionEnd.REMOVED, SessionEnd.LEASE_LOST):
            return SessionResult()
        graceful = self.end is self.closing and self._policy is not None
        failed = frozenset(place for place, each in self._readings.items() if each.outstanding) if graceful else ()
        return SessionResult(frozenset(failed), self._committable(self._readings.values()))

    # The assignment

    def _owned(self, entry: Entry, stored: Position, now: float) -> Iterator[SessionAction]:
        """A partition is ours, and committed up to there."""
        reading = self._readings.get(entry.place)
        if reading is None or stored < reading.stored:
            reading = PartitionProgress(entry, stored, now, counts=self._policy is not None)
            self._readings[entry.place] = reading
            yield from self._begun(reading)
        elif stored > reading.stored:
            yield from self._advanced(reading, stored, now)
        if not reading.handing_over:
            reading.released = False
        if entry.next is None:
            reading.release_by = None
        elif reading.release_by is None:
            reading.release_by = now + self._limits.commit_seconds

    def _begun(self, reading: PartitionProgress) -> Iterator[SessionAction]:
        if self.closing:
            return
        if self._policy and reading.fails >= self._policy.most_fails and not reading.searching:
            end = Position(reading.stored.timeline, reading.stored.offset + self._limits.batch_limit)
            yield self._note(reading, end)
        elif reading.search_end is not None and reading.stored >= reading.search_end:
            yield self._note(reading, None)
        yield from self._replayed(reading)
        yield self._open(reading)

    def _open(self, reading: PartitionProgress) -> SessionAction:
        self._openings += 1
        reading.opening = self._openings
        reading.learned = self._seen
        return OpenPartition(reading.place, reading.stored, self._openings, reading.replay)

    def _replayed(self, reading: PartitionProgress) -> Iterator[SessionAction]:
        """What follows once everything is consumed that was to be sent once more."""
        if reading.replay is not None and reading.stored >= reading.replay.until:
            yield EndReplay(reading.place, reading.replay)
            reading.replay = None

    def _relearned(self, revision: int) -> Iterator[SessionAction]:
        """Whoever takes events out of the lot changes the assignment; more often it is for other reasons."""
        for reading in self._readings.values():
            if reading.parked and reading.learned < revision and not self.closing:
                reading.learned = revision
                yield ReloadParkedKeys(reading.place, reading.replay, reading.opening)

    def _note(self, reading: PartitionProgress, search_end: Position | None) -> SessionAction:
        reading.fails, reading.search_end = 0, search_end
        return RecordFailures(reading.place, 0, search_end)

    def _advanced(self, reading: PartitionProgress, stored: Position, now: float) -> Iterator[SessionAction]:
        dropped = reading.dropping
        self._committed_events += reading.advance(stored, self._around.measure)
        self._outbox.last_commit = now
        yield from self._replayed(reading)
        if (stored > reading.taken or self._parked_one(reading, dropped)) and not self.closing:
            reading.reopened()
            yield self._open(reading)
        found_all = reading.search_end is not None and stored >= reading.search_end
        if reading.fails or found_all:
            yield self._note(reading, None if found_all else reading.search_end)

    def _parked_one(self, reading: PartitionProgress, dropped: Position | None) -> bool:
        """Whether an event was parked at last, so that those of its key behind it are to be looked at anew."""
        return self._policy is not None and self._policy.parks and dropped is not None and reading.dropping is None

    def _forgotten(self, place: EventTypePartition) -> SessionAction:
        del self._readings[place]
        return ClosePartition(place)

    def _note_idleness(self, assignment: Assignment, now: float) -> None:
        if any(self.id in (entry.owner, entry.next) for entry in assignment.entries):
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now

    def _idle_until(self) -> float:
        return inf if self._idle_since is None else self._idle_since + 2 * self._limits.commit_seconds

    # Time

    def _due(self, now: float) -> list[SessionAction]:
        """What ends the stream by now, if anything does."""
        if self._stop is not None:
            return self._close(self._stop, now, "Consumption is blocked")
        if self.closing:
            return []
        if self._outbox.outstanding() and now >= self._commit_by():
            return self._close(SessionEnd.COMMIT_TIMEOUT, now, "Commit timeout reached")
        if now >= self._ends_at:
            flushed = [each for reading in self._readings.values() for each in self._outbox.flushed(reading, now)]
            return [*flushed, *self._close(SessionEnd.TIMEOUT, now, "Stream timeout reached")]
        if any(each.release_by is not None and now >= each.release_by for each in self._readings.values()):
            return self._close(SessionEnd.RELEASE_TIMEOUT, now)
        return self._close(SessionEnd.IDLE, now) if now >= self._idle_until() else []

    def _auto_committed(self, now: float) -> list[SessionAction]:
        # When everything was sent once more that was to be, nobody should have to wait to see it.
        ready = [each for each in self._readings.values() if each.replay_is_passed and not each.hurried]
        if now < self._auto_commit_at and not ready:
            return []
        for each in ready:
            each.hurried = True
        self._auto_commit_at = now + AUTO_COMMIT_SECONDS
        positions = self._committable(self._readings.values())
        return [AutoCommit(positions)] if positions else []

    def _committable(self, readings: Iterable[PartitionProgress]) -> dict[EventTypePartition, Position]:
        found = ((each.place, each.committable()) for each in readings)
        return {place: position for place, position in found if position is not None}

    # Going on

    def _went_on(self, now: float) -> list[SessionAction]:
        """What follows whenever something has changed."""
        actions: list[SessionAction] = []
        if not self.closing and 0 < self._limits.stream_limit <= self._committed_events:
            actions += self._close(SessionEnd.LIMIT, now, f"Stream limit in events reached: {self._committed_events}")
        actions += self._handed_over()
        if not self.closing:
            for reading in self._readings.values():
                actions += self._outbox.sent(reading, now)
        if not self.closing and self._outbox.all_silent():
            actions += self._close(SessionEnd.KEEP_ALIVES, now)
        if not self.closing and not actions:
            actions += self._outbox.sign_of_life(now)
        if self.closing and not self.end:
            self._end_if_committed(now)
        return actions

    def _handed_over(self) -> Iterator[SessionAction]:
        """Partitions that others wait for, and of which nothing is outstanding any more."""
        waited_for = [each for each in self._readings.values() if each.release_by is not None and not each.released]
        drained = [each for each in waited_for if not each.outstanding and not each.putting_away]
        if drained:
            for each in drained:
                each.released = each.handing_over = True
            yield HandOver(frozenset(each.place for each in drained), self._committable(drained))

    def _close(self, end: SessionEnd, now: float, info: str = "") -> list[SessionAction]:
        """Send nothing more, and wait for commits of what was sent."""
        if self.closing or self.end:
            return []
        self.closing = end
        # From here on no commit puts the end off: others wait for the partitions, or for the reset, that it delays.
        self._closed_by = self._commit_by()
        some = next(iter(self._readings.values()), None)
        actions: list[SessionAction] = []
        if info and some is not None:
            actions.append(SendKeepAlive(some.place, some.sent, self._outbox.info(info)))
        for each in self._readings.values():
            each.runs.clear()
            each.count = each.size = 0
        self._end_if_committed(now)
        return actions

    def _end_if_committed(self, now: float) -> None:
        if not self._outbox.outstanding() or now >= self._closed_by:
            self.end = self.closing

    def _commit_by(self) -> float:
        """When the client's time to commit what is outstanding is over."""
        return self._outbox.last_commit + self._limits.commit_seconds

    def _stopped(self, end: SessionEnd) -> list[SessionAction]:
        self.end = self.end or end
        return []

    def _is_over(self, now: float) -> bool:
        if self.end is None and now >= self._around.leased_until():
            self.end = SessionEnd.LEASE_LOST
        return self.end is not None

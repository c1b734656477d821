"""How sessions join a subscription, hand partitions over and leave, and how streams are informed of these changes.

Each change reads the assignment, has a pure function decide the next one, and writes it only over the assignment that
it read; if another process was faster, it starts over. So no lock between processes is needed. Each change can be
repeated after it was carried out, so a caller that got no answer simply repeats it.

Assignment and offsets are read once for all streams of this process that share them. A subscription is read when the
store reports a change, and every minute in case a report was lost. A listener gets only states that were read after it
began to follow, so no session sees a state from before it joined. A commit through this process reports its own moves,
and after a commit through another process only the offsets are read. After a minute, everything is read, because
continuous commits would otherwise hide a change whose report was lost.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from nakadi.common.chores import run_and_log_failure
from nakadi.common.waiting import run_blocking
from nakadi.model.event_type import Position
from nakadi.model.outcomes import Unavailable
from nakadi.model.subscription import (
    Assignment,
    CommitResult,
    EventTypePartition,
    OffsetsCommitted,
    Replay,
    Session,
    SubscriptionChange,
    SubscriptionChangeNotice,
)
from nakadi.ports.clock import Clock
from nakadi.ports.coordination import AssignmentChanged, Coordination
from nakadi.subscriptions.api import assignments
from nakadi.subscriptions.stream.actions import DepartureRecord, FailureCountChange, SharedState

log = logging.getLogger(__name__)

# How often a change of the assignment is attempted. With a hundred partitions, up to a hundred sessions may join at
# once.
SESSION_CHANGE_ATTEMPTS = 200
ATTEMPTS_WITHOUT_PAUSE = 3
MAX_CONFLICT_PAUSE_SECONDS = 0.05

ChangeAssignment = Callable[[Assignment], Assignment]


class SubscriptionSessions(Struct, frozen=True):
    """The sessions of one subscription. `execute_reset` carries out a pending reset, if no session is left."""

    coordination: Coordination
    subscription_id: str
    clock: Clock
    execute_reset: Callable[[str], object]
    pause: Callable[[float], None] = time.sleep

    def assignment(self) -> Assignment:
        return self.coordination.assignment(self.subscription_id)

    def check_room_for(self, session: Session) -> None:
        """Raise `Conflict` if there is no room."""
        assignments.with_session(self.assignment(), session, self.subscription_id, self.clock.now())

    def join(self, session: Session) -> Assignment:
        """Add a session to the assignment. Raises `Conflict` if there is no room."""

        def joined(assignment: Assignment) -> Assignment:
            # A write whose answer was lost may have been carried out; then the session is already there.
            if assignment.session(session.id) is not None:
                return assignment
            return assignments.with_session(assignment, session, self.subscription_id, self.clock.now())

        # First carry out a pending reset that waits for the last session to leave: while it is pending, no session may
        # join.
        self._execute_reset(self.assignment())
        self._write_until_unchanged(joined)
        # One write assigns only so many partitions. If this process dies before it has assigned the rest, the next
        # process that reads the assignment assigns them: see `read_shared_state`.
        return self.rebalance()

    def rebalance(self) -> Assignment:
        """Give every session its fair share, in as many writes as it takes."""
        while True:
            before = self.assignment()
            after = self._write_until_unchanged(assignments.with_rebalanced_partitions)
            if after.revision == before.revision:
                return after

    def remove(self, sessions: Collection[str]) -> int:
        """Remove sessions that have ended, and return how many of them were still in the assignment."""
        there: set[str] = set()

        def without(assignment: Assignment) -> Assignment:
            nonlocal there
            # Computed for each attempt: another process may have removed some of them in between, and counted them.
            there = {each.id for each in assignment.sessions if each.id in sessions}
            return assignments.without_sessions(assignment, there) if there else assignment

        self._write_until_unchanged(without)
        # A reset may have waited for this last session to leave. Several processes may notice that: all but the first
        # find the reset done.
        self._execute_reset(self.rebalance())
        return len(there)

    def leave(self, session_id: str, departure: DepartureRecord) -> None:
        """Leave the assignment, and record the failures of its partitions."""
        # Commit while the session still has the partitions: afterwards they may belong to other sessions, and commits
        # are refused.
        self.commit(session_id, departure.commit_positions)

        def without(assignment: Assignment) -> Assignment:
            session = assignment.session(session_id)
            if session is None:
                return assignment
            if departure.has_timed_out:
                assignment = assignments.with_timed_out_session(assignment, session, self.clock.now())
            # A partition that was taken from the session meanwhile has not failed.
            own = {entry.partition: entry for entry in assignment.entries if entry.owner == session_id}
            counted = [
                replace(own[each.partition], failed_streams=each.failed_streams, search_end=each.search_end)
                for each in departure.failure_counts
                if each.partition in own
            ]
            assignment = assignments.with_entries(assignment, counted)
            stands = [each for each in departure.standstills if each.partition in own]
            return assignments.without_sessions(assignments.with_standstills(assignment, stands), {session_id})

        self._write_until_unchanged(without)
        self._execute_reset(self.rebalance())

    def hand_over(self, session_id: str, partitions: Collection[EventTypePartition]) -> Assignment:
        """Hand over those partitions that other sessions wait for."""
        return self._write_until_unchanged(
            lambda assignment: assignments.with_partitions_handed_over(assignment, session_id, partitions)
        )

    def change_failure_count(self, session_id: str, call: FailureCountChange) -> None:
        """Record the failures of a partition, if it is still the session's."""

        def with_recorded_entry(assignment: Assignment) -> Assignment:
            entry = assignment.entry(call.partition)
            if entry is None or entry.owner != session_id:
                return assignment
            changed = replace(entry, failed_streams=call.failed_streams, search_end=call.search_end)
            return assignments.with_entries(assignment, [changed])

        self._write_until_unchanged(with_recorded_entry)

    def end_replay(self, session_id: str, partition: EventTypePartition, replay: Replay) -> None:
        """Record that a replay has ended, if the partition is still the session's."""

        def ended(assignment: Assignment) -> Assignment:
            entry = assignment.entry(partition)
            if entry is None or entry.owner != session_id or entry.replay != replay:
                return assignment
            return assignments.with_entries(assignment, [replace(entry, replay=None)])

        self._write_until_unchanged(ended)

    def commit(self, session_id: str, positions: Mapping[EventTypePartition, Position]) -> Sequence[EventTypePartition]:
        """Commit on behalf of a session, and return the partitions that are no longer its own."""
        if not positions:
            return ()
        commit = self.coordination.commit(self.subscription_id, session_id, positions, self.clock.now())
        verdicts = run_blocking(commit)
        return [partition for partition, verdict in verdicts.items() if verdict is CommitResult.NOT_OWNED]

    def grant_extension(self, session_id: str, number: int, commit_by: float) -> None:
        """Record that a session has granted more time to commit, until a moment on the monotonic clock."""
        until = self.clock.now() + timedelta(seconds=commit_by - self.clock.monotonic())
        self._write_until_unchanged(
            lambda assignment: assignments.with_extension_granted(assignment, session_id, number, until)
        )

    def _execute_reset(self, assignment: Assignment) -> None:
        """Carry out a pending reset. A failure does no harm: the session's own change is written, the next session
        tries the reset again, and otherwise the reset is given up when its time ends.
        """
        if assignment.reset is not None and not assignment.sessions:
            run_and_log_failure("reset", self.subscription_id, partial(self.execute_reset, self.subscription_id))

    def _write_until_unchanged(self, decide: ChangeAssignment) -> Assignment:
        for attempt in range(SESSION_CHANGE_ATTEMPTS):
            # Read and decide again each time: the assignment may have changed.
            old = self.assignment()
            new = decide(old)
            if new == old:
                # Nothing is left to do: another process has made the change, or an earlier attempt whose answer was
                # lost has made it.
                return old
            try:
                return self.coordination.replace_assignment(self.subscription_id, old, new, self.clock.now())
            except AssignmentChanged:
                # The store found another revision and wrote nothing, so the next decision starts from what the other
                # process wrote.
                if attempt >= ATTEMPTS_WITHOUT_PAUSE:
                    self.pause(random.uniform(0, MAX_CONFLICT_PAUSE_SECONDS))  # noqa: S311  # so that they do not all come back together
        raise Unavailable(
            f"Writing the assignment of {self.subscription_id} failed: "
            f"it was changed by others {SESSION_CHANGE_ATTEMPTS} times."
        )


StateListener = Callable[[SharedState], None]

FULL_READ_INTERVAL_SECONDS = 60.0

# The shortest and the longest pause between attempts to read while the store does not answer.
MIN_STATE_RETRY_PAUSE_SECONDS = 0.1
MAX_STATE_RETRY_PAUSE_SECONDS = 5.0


class SubscriptionWatch:
    """Follows subscriptions for the streams of one event loop, to which this object belongs; only the store is read in
    threads.
    """

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._watched: dict[str, _WatchedSubscription] = {}

    def follow(self, members: SubscriptionSessions, listener: StateListener) -> Callable[[], None]:
        """Call `listener` with the state now and after each change; the returned function ends that."""
        watched = self._watched.get(members.subscription_id)
        if watched is None:
            watched = self._watched[members.subscription_id] = _WatchedSubscription(members, self._threads)
        watched.listeners.append(listener)
        # A read in progress began before this listener was added, so the listener needs another read: see `_read`.
        watched.add_change(SubscriptionChange.ASSIGNMENT)
        return lambda: self._stop_following(watched, listener)

    def last_read_assignments(self) -> Mapping[SubscriptionSessions, Assignment]:
        """Every followed subscription, as it was last read."""
        read = [(each.members, each.state_reader.shared) for each in tuple(self._watched.values())]
        return {members: shared.assignment for members, shared in read if shared is not None}

    def _stop_following(self, watched: _WatchedSubscription, listener: StateListener) -> None:
        watched.listeners.remove(listener)
        if not watched.listeners:
            del self._watched[watched.members.subscription_id]
            watched.close()


class _WatchedSubscription:
    """The streams of one subscription, and the reads of its state for them.

    Threads of the store call `add_change`, which only notes the change and wakes the loop. On the loop, commits are
    passed on at once. For everything else, a task reads the state. It clears the noted changes first: changes during
    the read are noted again, and the next read follows. Between two reads there is no task, only a timer: most
    subscriptions are idle.
    """

    __slots__ = (
        "_changes",
        "_is_read_due",
        "_lock",
        "_loop",
        "_reading",
        "_stop",
        "_task",
        "_threads",
        "_timer",
        "listeners",
        "members",
        "state_reader",
    )

    def __init__(self, members: SubscriptionSessions, threads: Executor) -> None:
        self.members = members
        self.listeners: list[StateListener] = []
        self.state_reader = SharedStateReader(members)
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._changes: set[SubscriptionChangeNotice] = set()
        self._reading = False
        self._is_read_due = False
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stop: Callable[[], None] | None = None

    def add_change(self, change: SubscriptionChangeNotice) -> None:
        """Note a change. May be called from any thread. Many changes wake the loop only once until it processes
        them.
        """
        with self._lock:
            already_woken = bool(self._changes)
            self._changes.add(change)
        if not already_woken:
            with suppress(RuntimeError):  # the loop was closed: no stream is left on it
                self._loop.call_soon_threadsafe(self._process_changes)

    def close(self) -> None:
        # A thread of the store that was already calling `add_change` may still wake the loop: no listener is left.
        if self._stop is not None:
            self._stop()
        self._stop_timer()
        if self._task is not None:
            self._task.cancel()

    def _process_changes(self) -> None:
        """Inform the listeners if the noted commits suffice to bring the state up to date. Otherwise, or during a read,
        request another read.
        """
        if not self.listeners:
            return  # the watch was closed after the change
        with self._lock:
            # `_reading` changes only on the loop, where this code runs. While it is set, a thread uses the state
            # reader.
            is_all = not self._reading and self.state_reader.add_commits(self._changes)
            if is_all:
                self._changes = set()
        if is_all:
            self._inform_listeners(self.listeners)
        else:
            self._begin_reading()

    def _begin_reading(self) -> None:
        """Request that the state is read soon, by the running task or by a new one."""
        self._stop_timer()
        self._is_read_due = True
        if self._task is None:
            self._task = self._loop.create_task(self._read_while_due())

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _read_while_due(self) -> None:
        pause = MIN_STATE_RETRY_PAUSE_SECONDS
        while self._is_read_due:
            # Reset before the read takes the noted changes, so that the state is read again after a later change.
            self._is_read_due = False
            try:
                # The watch begins before the first read, so that changes in between are noted, and the state is read
                # again.
                if self._stop is None:
                    await self._watch()
                await self._read()
                pause = MIN_STATE_RETRY_PAUSE_SECONDS
            except Exception:  # any error: streams without the state would neither send nor end
                log.warning(
                    "Reading the assignment and the offsets of %s failed, trying again in %s s",
                    self.members.subscription_id,
                    pause,
                    exc_info=True,
                )
                self._is_read_due = True
                await asyncio.sleep(pause)
                pause = min(2 * pause, MAX_STATE_RETRY_PAUSE_SECONDS)
        # There is no `await` between the last check of `_is_read_due` and this line, so a change from now on begins a
        # new task.
        self._task = None
        if self.listeners:
            self._timer = self._loop.call_later(FULL_READ_INTERVAL_SECONDS, self._begin_reading)

    async def _watch(self) -> None:
        """Begin to note changes. The engine is called in a thread, because it may read the latest change from its
        store.
        """
        add = self.members.coordination.add_change_listener
        watching = self._loop.run_in_executor(self._threads, add, self.members.subscription_id, self.add_change)
        try:
            # A thread that has begun cannot be cancelled, and its result would be lost.
            self._stop = await asyncio.shield(watching)
        except asyncio.CancelledError:
            watching.add_done_callback(_end_watch)
            raise

    async def _read(self) -> None:
        with self._lock:
            changes, self._changes = self._changes, set()
        # Only the listeners that are here now get this state: it may be older than a listener that joins later.
        listeners = tuple(self.listeners)
        self._reading = True
        try:
            await self._loop.run_in_executor(self._threads, self.state_reader.read, changes)
        except BaseException:
            # Put the changes back, even after a cancellation, because they must still be read.
            with self._lock:
                self._changes |= changes
            raise
        finally:
            self._reading = False
        # Some listeners may have left while the thread was reading.
        self._inform_listeners(each for each in listeners if each in self.listeners)

    def _inform_listeners(self, listeners: Iterable[StateListener]) -> None:
        shared = self.state_reader.shared
        assert shared is not None, "it was read"
        for listener in tuple(listeners):
            listener(shared)


def _end_watch(watching: asyncio.Future[Callable[[], None]]) -> None:
    """End a watch whose last listener left while it was starting."""
    if not watching.cancelled() and watching.exception() is None:
        watching.result()()


class SharedStateReader:
    """Reads the state of a subscription, and keeps the last result. Call it from one thread at a time."""

    def __init__(self, members: SubscriptionSessions) -> None:
        self.shared: SharedState | None = None
        self._members = members
        self._whole_at = -inf

    def read(self, changes: Collection[SubscriptionChangeNotice]) -> SharedState:
        """Read the parts of the state that may have changed; without any reported change, all of it."""
        if self.shared is not None and self.add_commits(changes):
            return self.shared
        # The time is taken before the read, so that a change during the read is not missed for more than a minute.
        now = self._members.clock.monotonic()
        known = self.shared if changes and SubscriptionChange.ASSIGNMENT not in changes and self._is_recent() else None
        self.shared = shared = read_shared_state(self._members, known)
        if known is None:
            self._whole_at = now
        return shared

    def add_commits(self, changes: Collection[SubscriptionChangeNotice]) -> bool:
        """Bring the state up to date without reading anything; return False if these changes do not suffice for that.

        An offset only grows as long as one session owns it, so it does not matter whether a commit was already read. If
        the known offset has another owner than the session that committed, then either the commit belongs to a newer
        assignment, which is reported too, or the commit is an old one.
        """
        if self.shared is None or not changes or not self._is_recent():
            return False
        offsets = dict(self.shared.offsets)
        for change in changes:
            if not isinstance(change, OffsetsCommitted):
                return False
            for partition, position in change.positions:
                known = offsets.get(partition)
                if known is not None and known.owner == change.session and known.position < position:
                    offsets[partition] = replace(known, position=position)
        resetting = assignments.is_being_reset(self.shared.assignment, self._members.clock.now())
        # The state is replaced in one step, because the thread that keeps the lease reads it without a lock.
        self.shared = SharedState(self.shared.assignment, offsets, resetting)
        return True

    def _is_recent(self) -> bool:
        """Whether the whole state was read within the last minute."""
        return self._members.clock.monotonic() < self._whole_at + FULL_READ_INTERVAL_SECONDS


def read_shared_state(members: SubscriptionSessions, known: SharedState | None) -> SharedState:
    """Read the state that the streams of a subscription share; if there is a `known` state, its assignment is used, and
    only the offsets are read.

    The assignment is read before the offsets: an offset that is newer than the assignment is recognized by its owner.
    If partitions are not shared evenly, because a process died between a change and the rebalancing after it, this call
    rebalances them.
    """
    assignment = known.assignment if known is not None else members.assignment()
    resetting = assignments.is_being_reset(assignment, members.clock.now())
    if known is None and assignments.with_rebalanced_partitions(assignment) != assignment:
        assignment = members.rebalance()
    return SharedState(assignment, members.coordination.committed_offsets(members.subscription_id), resetting)

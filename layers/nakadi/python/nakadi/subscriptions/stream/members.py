"""How sessions join a subscription, hand partitions over and leave; and the lease of the process that serves them.

For each change the assignment is read, the next one is decided by a pure function, and written only over the one that
was read; if another process was faster, all that is done again. So no lock between processes is needed. Each change can
be repeated after it was carried out, so a caller that got no answer simply repeats it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache, partial
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import replace

from nakadi.common.chores import attempted
from nakadi.common.metrics import Metrics
from nakadi.model.coordination import Assignment, Replay, Session, Verdict
from nakadi.model.outcomes import Unavailable
from nakadi.model.subscription import EventTypePartition
from nakadi.model.timeline import Position
from nakadi.ports.clock import Clock
from nakadi.ports.coordination import AssignmentChanged, Coordination
from nakadi.subscriptions.api import assignments, leases
from nakadi.subscriptions.stream.actions import RecordFailures, SessionResult

# With a hundred partitions there are a hundred sessions at most, who may all come at once.
ATTEMPTS = 200
PATIENT_ATTEMPTS = 3
LONGEST_PAUSE = 0.05

ChangeAssignment = Callable[[Assignment], Assignment]


class SubscriptionSessions(Struct, frozen=True):
    """The sessions of one subscription. `execute_reset` carries out a pending reset, if no session is left."""

    coordination: Coordination
    subscription: str
    clock: Clock
    execute_reset: Callable[[str], object]
    pause: Callable[[float], None] = time.sleep

    def assignment(self) -> Assignment:
        return self.coordination.assignment(self.subscription)

    def check(self, session: Session) -> None:
        """Raise `Conflict` if there is no room."""
        assignments.joined(self.assignment(), session, self.subscription, self.clock.now())

    def join(self, session: Session) -> Assignment:
        """Take part. Raises `Conflict` if there is no room."""

        def joined(assignment: Assignment) -> Assignment:
            if assignment.session(session.id) is not None:
                return assignment
            return assignments.joined(assignment, session, self.subscription, self.clock.now())

        self._execute_reset(self.assignment())
        self._apply(joined)
        return self.rebalance()

    def rebalance(self) -> Assignment:
        """Give every session its fair share, in as many writes as it takes."""
        while True:
            before = self.assignment()
            after = self._apply(assignments.rebalanced)
            if after.revision == before.revision:
                return after

    def remove(self, sessions: Collection[str]) -> int:
        """Remove sessions that are over; how many of them were still there."""
        there: set[str] = set()

        def without(assignment: Assignment) -> Assignment:
            nonlocal there
            there = {each.id for each in assignment.sessions if each.id in sessions}
            return assignments.left(assignment, there) if there else assignment

        self._apply(without)
        self._execute_reset(self.rebalance())
        return len(there)

    def leave(self, session: str, result: SessionResult) -> None:
        """Leave the assignment; partitions whose events the client did not commit get one failure more."""
        self.commit(session, result.positions)

        def without(assignment: Assignment) -> Assignment:
            if assignment.session(session) is None:
                return assignment
            failed = [
                replace(entry, fails=entry.fails + 1)
                for entry in assignment.entries
                if entry.place in result.failed and entry.owner == session
            ]
            return assignments.left(assignments.with_entries(assignment, failed), {session})

        self._apply(without)
        self._execute_reset(self.rebalance())

    def hand_over(self, session: str, places: Collection[EventTypePartition]) -> Assignment:
        """Hand over those partitions that other sessions wait for."""
        return self._apply(lambda assignment: assignments.handed_over(assignment, session, places))

    def record_failures(self, session: str, call: RecordFailures) -> None:
        """Record the failures of a partition, if it is still the session's."""

        def recorded(assignment: Assignment) -> Assignment:
            entry = assignment.entry(call.place)
            if entry is None or entry.owner != session:
                return assignment
            changed = replace(entry, fails=call.fails, search_end=call.search_end)
            return assignments.with_entries(assignment, [changed])

        self._apply(recorded)

    def end_replay(self, session: str, place: EventTypePartition, replay: Replay) -> None:
        """Record that a replay is over, if the partition is still the session's."""

        def ended(assignment: Assignment) -> Assignment:
            entry = assignment.entry(place)
            if entry is None or entry.owner != session or entry.replay != replay:
                return assignment
            return assignments.with_entries(assignment, [replace(entry, replay=None)])

        self._apply(ended)

    def commit(self, session: str, positions: Mapping[EventTypePartition, Position]) -> Collection[EventTypePartition]:
        """Commit on behalf of a session; the partitions that are not its own any more."""
        if not positions:
            return ()
        verdicts = self.coordination.commit(self.subscription, session, positions, self.clock.now())
        return [place for place, verdict in verdicts.items() if verdict is Verdict.NOT_OWNED]

    def _execute_reset(self, assignment: Assignment) -> None:
        """A failure does no harm: the session has left, or may join; the reset is tried again by the next session, or
        given up when its time is over."""
        if assignment.reset is not None and not assignment.sessions:
            attempted("reset", self.subscription, partial(self.execute_reset, self.subscription))

    def _apply(self, decide: ChangeAssignment) -> Assignment:
        for attempt in range(ATTEMPTS):
            old = self.assignment()
            new = decide(old)
            if new == old:
                return old
            try:
                return self.coordination.write(self.subscription, old, new, self.clock.now())
            except AssignmentChanged:
                if attempt >= PATIENT_ATTEMPTS:
                    self.pause(random.uniform(0, LONGEST_PAUSE))  # noqa: S311  # so that they do not all come back together
        raise Unavailable(
            f"Writing the assignment of {self.subscription} failed: it was changed by others {ATTEMPTS} times."
        )


# The lease of this process --------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

RENEWAL_SECONDS = leases.LEASE_DURATION.total_seconds() / 4

# A session that begins should not begin on a lease that is about to end.
SHORTEST_REMAINING_SECONDS = leases.LEASE_DURATION.total_seconds() / 2


class ProcessLease(Struct):
    """`good_until` is on the steady clock of this process."""

    holder: str
    good_until: float

    def is_good(self, now: float) -> bool:
        return now < self.good_until


class LeaseKeeper:
    """The lease of this process, and the removal of sessions whose process has none any more.

    Other processes regard a lease as over a while after it is over for its own process, so that clocks may differ by
    that much. If it was over even for a moment, others may have given the partitions away: then the sessions of this
    process end, and later ones belong to another lease under another name.

    The lock has one thread renew at a time; a thread that reads `_lease` without it may see the one before, and then
    removes no session that it would not remove anyway. Sessions to be removed are kept in a set whose single operations
    are atomic; removing one twice does no harm.
    """

    def __init__(
        self,
        coordination: Coordination,
        clock: Clock,
        new_name: Callable[[], str] = lambda: str(uuid4()),
        metrics: Metrics | None = None,
    ) -> None:
        self._metrics = metrics or Metrics()
        self._coordination = coordination
        self._clock = clock
        self._new_name = new_name
        self._lock = threading.Lock()
        self._leases = leases.LeaseWatch(coordination, clock)
        self._lease = ProcessLease("", 0.0)
        # Sessions that are over, but could not be removed yet.
        self._unremoved: set[tuple[str, str]] = set()

    def lease(self) -> ProcessLease:
        """A lease that is good for some time to come. Raises `Unavailable`."""
        with self._lock:
            if not self._lease.is_good(self._clock.monotonic() + SHORTEST_REMAINING_SECONDS):
                self._renew()
            return self._lease

    def renew(self) -> None:
        """Renew the lease. Raises `Unavailable`."""
        with self._lock:
            self._renew()

    def remove_expired_sessions(self, subscriptions: Iterable[tuple[SubscriptionSessions, Assignment]]) -> None:
        """Remove the sessions whose process has no lease. The assignments must have been read before: leases are read
        once, and only if other processes have sessions there.
        """
        living = cache(self._leases.living)
        for members, assignment in subscriptions:
            others = [each for each in assignment.sessions if each.holder != self._lease.holder]
            dead = leases.sessions_without_lease(others, living()) if others else frozenset()
            if dead:
                log.info(
                    "Removing sessions of %s whose lease has expired: %s", members.subscription, ", ".join(sorted(dead))
                )
                attempted("removal of expired sessions", members.subscription, partial(self._remove, members, dead))

    def _remove(self, members: SubscriptionSessions, dead: Collection[str]) -> None:
        self._metrics.dead_sessions.add(members.remove(dead))

    # Sessions that could not be removed

    def retry_removal(self, subscription: str, session: str) -> None:
        """A session is over, but may still be in the assignment: remove it later."""
        self._unremoved.add((subscription, session))

    @property
    def has_unremoved(self) -> bool:
        return bool(self._unremoved)

    def remove_remaining(self, members_of: Callable[[str], SubscriptionSessions]) -> None:
        """Try again to remove the sessions that are over."""
        for subscription, session in tuple(self._unremoved):
            if attempted(
                "removal of an ended session", subscription, partial(members_of(subscription).remove, {session})
            ):
                self._unremoved.discard((subscription, session))

    def close(self) -> None:
        with self._lock:
            try:
                self._coordination.release(self._lease.holder)
            except Unavailable:
                log.warning("Releasing the lease failed, it will expire", exc_info=True)

    def _renew(self) -> None:
        outcome = "failed"
        try:
            self._prolong()
            outcome = "renewed"
        finally:
            self._metrics.lease_renewals.add(1, outcome)

    def _prolong(self) -> None:
        began = self._clock.monotonic()
        seconds = leases.LEASE_DURATION.total_seconds()
        lease = self._lease if self._lease.is_good(began) else ProcessLease(self._new_name(), began + seconds)
        self._coordination.renew(lease.holder, self._clock.now() + leases.LEASE_DURATION)
        # An answer that came too late does not count: meanwhile other processes could see that there was no lease.
        if lease.is_good(self._clock.monotonic()):
            lease.good_until = began + seconds
            self._lease = lease
        else:
            raise Unavailable("The lease could not be renewed in time.")


def renew_and_clean_up(
    keeper: LeaseKeeper,
    subscriptions: Iterable[tuple[SubscriptionSessions, Assignment]],
    members_of: Callable[[str], SubscriptionSessions],
) -> None:
    """What a process does every few seconds for its subscriptions, whose assignments were read before."""
    keeper.renew()
    keeper.remove_remaining(members_of)
    keeper.remove_expired_sessions(subscriptions)

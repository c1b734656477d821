"""Members: how sessions join a subscription, let go of partitions, and leave.

Each change is read, decided by a pure function, and written if nobody was faster, else begun anew. Every one of them
can be carried out again after it was carried out: so whoever got no answer simply asks again.
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
from nakadi.model.cursor import Position
from nakadi.model.outcomes import Unavailable
from nakadi.model.subscription import EventTypePartition
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
    """Of one subscription. `fulfil_wish` does what a reset wishes that stands, if no session is left."""

    coordination: Coordination
    subscription: str
    clock: Clock
    fulfil_wish: Callable[[str], object]
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

        self._fulfil_wish(self.assignment())
        self._changed(joined)
        return self.settle()

    def settle(self) -> Assignment:
        """Have everybody get a fair share, in as many steps as it takes."""
        while True:
            before = self.assignment()
            after = self._changed(assignments.rebalanced)
            if after.revision == before.revision:
                return after

    def remove(self, sessions: Collection[str]) -> int:
        """See to it that these take part no more; how many of them still did."""
        there: set[str] = set()

        def without(assignment: Assignment) -> Assignment:
            nonlocal there
            there = {each.id for each in assignment.sessions if each.id in sessions}
            return assignments.left(assignment, there) if there else assignment

        self._changed(without)
        self._fulfil_wish(self.settle())
        return len(there)

    def leave(self, session: str, farewell: SessionResult) -> None:
        """Take part no more; what could not be committed is counted."""
        self.commit(session, farewell.positions)

        def without(assignment: Assignment) -> Assignment:
            if assignment.session(session) is None:
                return assignment
            failed = [
                replace(entry, fails=entry.fails + 1)
                for entry in assignment.entries
                if entry.place in farewell.failed and entry.owner == session
            ]
            return assignments.left(assignments.with_entries(assignment, failed), {session})

        self._changed(without)
        self._fulfil_wish(self.settle())

    def hand_over(self, session: str, places: Collection[EventTypePartition]) -> Assignment:
        """Let go of those that somebody waits for."""
        return self._changed(lambda assignment: assignments.handed_over(assignment, session, places))

    def note(self, session: str, note: RecordFailures) -> None:
        """Write something down about a partition, if it is still the session's."""

        def noted(assignment: Assignment) -> Assignment:
            entry = assignment.entry(note.place)
            if entry is None or entry.owner != session:
                return assignment
            changed = replace(entry, fails=note.fails, search_end=note.search_end)
            return assignments.with_entries(assignment, [changed])

        self._changed(noted)

    def end_replay(self, session: str, place: EventTypePartition, replay: Replay) -> None:
        """Write down that nothing is left to be sent once more, if the partition is still the session's."""

        def ended(assignment: Assignment) -> Assignment:
            entry = assignment.entry(place)
            if entry is None or entry.owner != session or entry.replay != replay:
                return assignment
            return assignments.with_entries(assignment, [replace(entry, replay=None)])

        self._changed(ended)

    def commit(self, session: str, positions: Mapping[EventTypePartition, Position]) -> Collection[EventTypePartition]:
        """Commit on behalf of a session; the partitions that are not its own any more."""
        if not positions:
            return ()
        verdicts = self.coordination.commit(self.subscription, session, positions, self.clock.now())
        return [place for place, verdict in verdicts.items() if verdict is Verdict.NOT_OWNED]

    def _fulfil_wish(self, assignment: Assignment) -> None:
        """Whatever comes of it, the session has left or may ask to join: others try again, and streams may begin when
        the time of the reset is over."""
        if assignment.reset is not None and not assignment.sessions:
            attempted("reset", self.subscription, partial(self.fulfil_wish, self.subscription))

    def _changed(self, decide: ChangeAssignment) -> Assignment:
        for attempt in range(ATTEMPTS):
            old = self.assignment()
            new = decide(old)
            if new == old:
                return old
            try:
                return self.coordination.write(self.subscription, old, new, self.clock.now())
            except AssignmentChanged:
                if attempt >= PATIENT_ATTEMPTS:
                    self.pause(random.uniform(0, LONGEST_PAUSE))  # noqa: S311  # so that not all come back together
        raise Unavailable(f"The assignment of {self.subscription} changes all the time.")


# The lease of this process --------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

RENEWAL_SECONDS = leases.LEASE_DURATION.total_seconds() / 4

# A session that begins should not begin on a lease that is about to end.
SHORTEST_REMAINING_SECONDS = leases.LEASE_DURATION.total_seconds() / 2


class ProcessLease(Struct):
    """`good_until` is on our own steady clock."""

    holder: str
    good_until: float

    def is_good(self, now: float) -> bool:
        return now < self.good_until


class LeaseKeeper:
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
        self._leftovers: set[tuple[str, str]] = set()

    def lease(self) -> ProcessLease:
        """A lease that is good for some time to come. Raises `Unavailable`."""
        with self._lock:
            if not self._lease.is_good(self._clock.monotonic() + SHORTEST_REMAINING_SECONDS):
                self._renew()
            return self._lease

    def renew(self) -> None:
        """Hold on to the lease. Raises `Unavailable`."""
        with self._lock:
            self._renew()

    def bury(self, members: SubscriptionSessions, assignment: Assignment) -> None:
        """Remove the dead sessions of a subscription."""
        self.bury_all([(members, assignment)])

    def bury_all(self, circles: Iterable[tuple[SubscriptionSessions, Assignment]]) -> None:
        """Remove the dead sessions of many subscriptions, whose assignments must have been read before: leases are read
        once, and only if somebody else has sessions there.
        """
        living = cache(self._leases.living)
        for members, assignment in circles:
            others = [each for each in assignment.sessions if each.holder != self._lease.holder]
            dead = leases.sessions_without_lease(others, living()) if others else frozenset()
            if dead:
                log.info("Sessions of %s without a living process: %s", members.subscription, ", ".join(sorted(dead)))
                attempted("removal of dead sessions", members.subscription, partial(self._remove, members, dead))

    def _remove(self, members: SubscriptionSessions, dead: Collection[str]) -> None:
        self._metrics.dead_sessions.add(members.remove(dead))

    # What could not be removed

    def left_behind(self, subscription: str, session: str) -> None:
        """A session is over, and might still be in the assignment."""
        self._leftovers.add((subscription, session))

    @property
    def has_leftovers(self) -> bool:
        return bool(self._leftovers)

    def clear(self, members_of: Callable[[str], SubscriptionSessions]) -> None:
        """Try again to remove sessions that are over."""
        for subscription, session in tuple(self._leftovers):
            if attempted(
                "removal of an ended session", subscription, partial(members_of(subscription).remove, {session})
            ):
                self._leftovers.discard((subscription, session))

    def close(self) -> None:
        with self._lock:
            try:
                self._coordination.release(self._lease.holder)
            except Unavailable:
                log.warning("Releasing the lease failed, it is left to run out", exc_info=True)

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
        # An answer that came too late is worth nothing: meanwhile others could see that there was no lease.
        if lease.is_good(self._clock.monotonic()):
            lease.good_until = began + seconds
            self._lease = lease
        else:
            raise Unavailable("The lease could not be renewed in time.")


def renew_and_clean_up(
    host: LeaseKeeper,
    circles: Iterable[tuple[SubscriptionSessions, Assignment]],
    members_of: Callable[[str], SubscriptionSessions],
) -> None:
    """What a host does every few seconds, for every subscription it serves: `circles` are as they were last read."""
    host.renew()
    host.clear(members_of)
    host.bury_all(circles)

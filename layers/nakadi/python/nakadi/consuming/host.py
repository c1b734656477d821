"""The host: this process among those that serve sessions. It holds a lease, and finds those whose lease ran out.

Others see a lease end a while after it has ended for us, so that clocks may differ by that much. Once it was not good,
even for a moment, others may have given our partitions away: then its sessions are over, and those that come after
belong to another lease under another name.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cache, partial
from uuid import uuid4

from nakadi.chores import attempted
from nakadi.consuming.members import Members
from nakadi.metrics import Metrics
from nakadi.model.coordination import Assignment
from nakadi.model.outcomes import Unavailable
from nakadi.ports import Clock, Coordination
from nakadi.subscriptions import liveness

log = logging.getLogger(__name__)

TURN_SECONDS = liveness.LEASE.total_seconds() / 4

# A session that begins should not begin on a lease that is about to end.
LONG_ENOUGH = liveness.LEASE.total_seconds() / 2


@dataclass(slots=True)
class Lease:
    """`good_until` is on our own steady clock."""

    holder: str
    good_until: float

    def is_good(self, now: float) -> bool:
        return now < self.good_until


class Host:
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
        self._leases = liveness.LeaseWatch(coordination, clock)
        self._lease = Lease("", 0.0)
        # Sessions that are over, but could not be removed yet.
        self._leftovers: set[tuple[str, str]] = set()

    def lease(self) -> Lease:
        """A lease that is good for some time to come. Raises `Unavailable`."""
        with self._lock:
            if not self._lease.is_good(self._clock.monotonic() + LONG_ENOUGH):
                self._renew()
            return self._lease

    def renew(self) -> None:
        """Hold on to the lease. Raises `Unavailable`."""
        with self._lock:
            self._renew()

    def bury(self, members: Members, assignment: Assignment) -> None:
        """Remove the dead sessions of a subscription."""
        self.bury_all([(members, assignment)])

    def bury_all(self, circles: Iterable[tuple[Members, Assignment]]) -> None:
        """Remove the dead sessions of many subscriptions, whose assignments must have been read before: leases are read
        once, and only if somebody else has sessions there.
        """
        living = cache(self._leases.living)
        for members, assignment in circles:
            others = [each for each in assignment.sessions if each.holder != self._lease.holder]
            dead = liveness.dead(others, living()) if others else frozenset()
            if dead:
                log.info("Sessions of %s without a living process: %s", members.subscription, ", ".join(sorted(dead)))
                attempted("removal of dead sessions", members.subscription, partial(self._remove, members, dead))

    def _remove(self, members: Members, dead: Collection[str]) -> None:
        self._metrics.dead_sessions.add(members.remove(dead))

    # What could not be removed

    def left_behind(self, subscription: str, session: str) -> None:
        """A session is over, and might still be in the assignment."""
        self._leftovers.add((subscription, session))

    @property
    def has_leftovers(self) -> bool:
        return bool(self._leftovers)

    def clear(self, members_of: Callable[[str], Members]) -> None:
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
        seconds = liveness.LEASE.total_seconds()
        lease = self._lease if self._lease.is_good(began) else Lease(self._new_name(), began + seconds)
        self._coordination.renew(lease.holder, self._clock.now() + liveness.LEASE)
        # An answer that came too late is worth nothing: meanwhile others could see that there was no lease.
        if lease.is_good(self._clock.monotonic()):
            lease.good_until = began + seconds
            self._lease = lease
        else:
            raise Unavailable("The lease could not be renewed in time.")


def tend(host: Host, circles: Iterable[tuple[Members, Assignment]], members_of: Callable[[str], Members]) -> None:
    """What a host does every few seconds, for every subscription it serves: `circles` are as they were last read."""
    host.renew()
    host.clear(members_of)
    host.bury_all(circles)

"""The lease of a process, which shows others that it is alive, and the removal of sessions whose process has none."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from functools import cache, partial
from uuid import uuid4

from nakadi.common.chores import run_and_log_failure
from nakadi.common.metrics import Metrics
from nakadi.model.outcomes import Unavailable
from nakadi.model.subscription import Assignment
from nakadi.ports.clock import Clock
from nakadi.ports.coordination import Coordination
from nakadi.subscriptions.api import lease_watch
from nakadi.subscriptions.stream.actions import ProcessLease
from nakadi.subscriptions.stream.members import SubscriptionSessions

log = logging.getLogger(__name__)

LEASE_RENEWAL_INTERVAL_SECONDS = lease_watch.LEASE_DURATION.total_seconds() / 4

# How long a lease has to remain valid for a new session, so that none begins with a lease that is about to end.
MIN_REMAINING_LEASE_SECONDS = lease_watch.LEASE_DURATION.total_seconds() / 2


class LeaseKeeper:
    """The lease of this process, and the removal of sessions whose process no longer has one.

    Other processes consider a lease expired a while after its own process does, so that clocks may differ by that much.
    If the lease expired even for a moment, other processes may have given the partitions of this process's sessions to
    others. Then these sessions end, and later sessions belong to another lease with another name.

    The lock lets one thread renew at a time. A thread that reads `_lease` without the lock may see the previous lease,
    and then removes no more sessions than it would remove with the current one. Sessions to remove later are in a set,
    whose single operations are atomic; removing a session twice does no harm.
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
        self._leases = lease_watch.LeaseWatch(coordination, clock)
        self._lease = ProcessLease("", 0.0)
        # Sessions that have ended, but could not be removed yet.
        self._unremoved: set[tuple[str, str]] = set()

    def ensure_lease(self) -> ProcessLease:
        """A lease that is valid for some time to come. Raises `Unavailable`."""
        with self._lock:
            if not self._lease.is_valid(self._clock.monotonic() + MIN_REMAINING_LEASE_SECONDS):
                self._renew_and_count()
            return self._lease

    def renew(self) -> None:
        """Renew the lease. Raises `Unavailable`."""
        with self._lock:
            self._renew_and_count()

    def remove_expired_sessions(self, subscriptions: Iterable[tuple[SubscriptionSessions, Assignment]]) -> None:
        """Remove the sessions whose process has no lease. The assignments must have been read before this call, which
        reads the leases once, and only if other processes have sessions in the assignments.
        """
        living = cache(self._leases.live_holders)
        for members, assignment in subscriptions:
            # Another thread may renew meanwhile, perhaps under a new name. The store has that name before `_lease`
            # does, so sessions with it are found alive; sessions with the previous name stay until the next round.
            others = [each for each in assignment.sessions if each.process_id != self._lease.process_id]
            dead = lease_watch.sessions_without_lease(others, living()) if others else frozenset()
            if dead:
                name = members.subscription_id
                log.info("Removing sessions of %s whose lease has expired: %s", name, ", ".join(sorted(dead)))
                run_and_log_failure("removal of expired sessions", name, partial(self._remove_dead, members, dead))

    def _remove_dead(self, members: SubscriptionSessions, dead: Collection[str]) -> None:
        self._metrics.dead_sessions.add(members.remove(dead))

    # Sessions that could not be removed

    def remove_session_later(self, subscription_id: str, session_id: str) -> None:
        """Remove a session later: it has ended, but may still be in the assignment."""
        self._unremoved.add((subscription_id, session_id))

    @property
    def has_unremoved_sessions(self) -> bool:
        return bool(self._unremoved)

    def retry_session_removals(self, members_of: Callable[[str], SubscriptionSessions]) -> None:
        """Try again to remove the sessions that have ended."""
        # A copy is needed, because streams that end in other threads add to the set.
        for subscription, session in tuple(self._unremoved):
            if run_and_log_failure(
                "removal of an ended session", subscription, partial(members_of(subscription).remove, {session})
            ):
                self._unremoved.discard((subscription, session))

    def close(self) -> None:
        # Under the lock: otherwise, a renewal in progress would write the lease again after its release.
        with self._lock:
            try:
                self._coordination.release_lease(self._lease.process_id)
            except Unavailable:
                log.warning("Releasing the lease failed, it will expire", exc_info=True)

    def _renew_and_count(self) -> None:
        outcome = "failed"
        try:
            self._prolong_lease()
            outcome = "renewed"
        finally:
            self._metrics.lease_renewals.add(1, outcome)

    def _prolong_lease(self) -> None:
        # The lease begins at the time before the request, because the answer may take long.
        began = self._clock.monotonic()
        seconds = lease_watch.LEASE_DURATION.total_seconds()
        lease = self._lease if self._lease.is_valid(began) else ProcessLease(self._new_name(), began + seconds)
        self._coordination.renew_lease(lease.process_id, self._clock.now() + lease_watch.LEASE_DURATION)
        # An answer after the end of the lease is useless: other processes may meanwhile have found the lease expired.
        if lease.is_valid(self._clock.monotonic()):
            # Changed in place: the sessions that began with this lease hold the same object, and see how long it is
            # valid.
            lease.valid_until = began + seconds
            self._lease = lease
        else:
            raise Unavailable("The lease could not be renewed in time.")


def renew_and_clean_up(
    keeper: LeaseKeeper,
    subscriptions: Iterable[tuple[SubscriptionSessions, Assignment]],
    members_of: Callable[[str], SubscriptionSessions],
) -> None:
    """Renew the lease, and remove sessions that have ended or expired. The assignments must have been read before this
    call.
    """
    keeper.renew()
    keeper.retry_session_removals(members_of)
    keeper.remove_expired_sessions(subscriptions)

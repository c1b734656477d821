"""Leases: which processes are alive, and therefore which sessions.

A lease has an end by the clock of its holder, and clocks may be set back: by an hour, for example, and then a lease
would last an hour too long, or would have expired before it was written. So each process measures with its own steady
clock how long each lease has been unchanged. A holder renews its lease long before it expires, and stops sending if it
cannot: a lease that was not renewed for its whole length has expired, whatever its time says, and one that was renewed
a moment ago has not. The end that a lease names is used only when the lease is read for the first time.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from nakadi.model.subscription import Session
from nakadi.ports.clock import Clock
from nakadi.ports.coordination import Coordination

LEASE_DURATION = timedelta(seconds=10)
"""How long a process may go without renewing its lease. It renews three times as often, and stops sending if it
cannot."""

CLOCK_MARGIN = timedelta(seconds=2)
"""How long after the end of its lease other processes still consider a process alive: clocks differ, and messages take
time to arrive.
"""

_SECONDS_UNTIL_LEASE_EXPIRES = (LEASE_DURATION + CLOCK_MARGIN).total_seconds()


class LeaseObservation(Struct, frozen=True):
    """A lease as it was last read: `unchanged_since` is a moment on the steady clock of this process. `was_renewed`
    says that this process has seen the lease change.
    """

    expires_at: datetime
    unchanged_since: float
    was_renewed: bool = False

    def after_reading(self, expires_at: datetime, now: float) -> LeaseObservation:
        if expires_at == self.expires_at:
            return self
        return replace(self, expires_at=expires_at, unchanged_since=now, was_renewed=True)

    def is_valid(self, wall: datetime, now: float) -> bool:
        if now >= self.unchanged_since + _SECONDS_UNTIL_LEASE_EXPIRES:
            return False
        return self.was_renewed or wall < self.expires_at + CLOCK_MARGIN


class LeaseWatch:
    """One process's observations of all leases. Keep the object, because it compares leases with earlier
    observations.
    """

    def __init__(self, coordination: Coordination, clock: Clock) -> None:
        self._coordination = coordination
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: Mapping[str, LeaseObservation] = {}

    def live_holders(self) -> Collection[str]:
        """The processes that have a lease. Raises `Unavailable`.

        Neither a slow answer nor a clock that is set back meanwhile makes a lease look expired: a lease is compared
        with the time before it was read, and counts as unchanged since the time after it was read.
        """
        wall, now = self._clock.now(), self._clock.monotonic()
        leases = self._coordination.lease_expiries()
        wall, after = min(wall, self._clock.now()), self._clock.monotonic()
        with self._lock:
            self._seen = {
                holder: self._observation_of(holder, expires_at, after) for holder, expires_at in leases.items()
            }
            return frozenset(holder for holder, each in self._seen.items() if each.is_valid(wall, now))

    def _observation_of(self, holder: str, expires_at: datetime, now: float) -> LeaseObservation:
        known = self._seen.get(holder)
        return LeaseObservation(expires_at, now) if known is None else known.after_reading(expires_at, now)


def sessions_without_lease(sessions: Iterable[Session], live_processes: Collection[str]) -> frozenset[str]:
    """The sessions whose process has no lease. A process takes its lease before its first session."""
    return frozenset(each.id for each in sessions if each.process_id not in live_processes)

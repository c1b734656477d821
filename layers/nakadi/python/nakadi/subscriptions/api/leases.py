"""Leases: which processes are alive, and so the sessions that they serve.

A lease says by the clock of its holder until when it is good, and a clock may be set back: then it is good an hour too
long, or has run out before it was written. So each process measures with its own steady clock
how long each lease has not changed. A holder renews its lease long before it runs out, and stops sending when it could
not: a lease that has not been renewed for its whole length has run out, whatever it says, and one that was renewed a
moment ago has not. What a lease says counts only when it is read for the first time.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from nakadi.model.coordination import Session
from nakadi.ports.clock import Clock
from nakadi.ports.coordination import Coordination

LEASE_DURATION = timedelta(seconds=10)
"""How long a process may be silent. It renews three times as often, and stops sending when it could not."""

CLOCK_MARGIN = timedelta(seconds=2)
"""How much later others regard it as dead: clocks differ, and what was sent takes its time to arrive."""

_PATIENCE = (LEASE_DURATION + CLOCK_MARGIN).total_seconds()


class LeaseObservation(Struct, frozen=True):
    """A lease as it was last read: unchanged `since` a moment on the steady clock of this process. `renewed` says that
    it was seen to change before."""

    until: datetime
    since: float
    renewed: bool = False

    def next(self, until: datetime, now: float) -> LeaseObservation:
        return self if until == self.until else replace(self, until=until, since=now, renewed=True)

    def is_good(self, wall: datetime, now: float) -> bool:
        if now >= self.since + _PATIENCE:
            return False
        return self.renewed or wall < self.until + CLOCK_MARGIN


class LeaseWatch:
    """What one process has seen of the leases of all. To be kept: who looks twice sees more."""

    def __init__(self, coordination: Coordination, clock: Clock) -> None:
        self._coordination = coordination
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: Mapping[str, LeaseObservation] = {}

    def living(self) -> Collection[str]:
        """The processes that have a lease. Raises `Unavailable`.

        Neither a slow answer nor a clock that is set back meanwhile makes a lease look expired: it is compared with the
        time before it was read, and counts as unchanged since the time after that.
        """
        wall, now = self._clock.now(), self._clock.monotonic()
        leases = self._coordination.leases()
        wall, after = min(wall, self._clock.now()), self._clock.monotonic()
        with self._lock:
            self._seen = {holder: self._sighting(holder, until, after) for holder, until in leases.items()}
            return frozenset(holder for holder, each in self._seen.items() if each.is_good(wall, now))

    def _sighting(self, holder: str, until: datetime, now: float) -> LeaseObservation:
        known = self._seen.get(holder)
        return LeaseObservation(until, now) if known is None else known.next(until, now)


def sessions_without_lease(sessions: Iterable[Session], living: Collection[str]) -> frozenset[str]:
    """The sessions whose process has no lease. A process takes its lease before its first session."""
    return frozenset(each.id for each in sessions if each.holder not in living)

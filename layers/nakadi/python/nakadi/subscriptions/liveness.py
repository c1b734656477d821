"""Who is still alive: what leases say of sessions, with time handed in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from nakadi.model.coordination import Session

LEASE = timedelta(seconds=10)
"""How long a process may be silent. It renews three times as often, and stops sending when it could not."""

MARGIN = timedelta(seconds=2)
"""How much later others regard it as dead: clocks differ, and what was sent takes its time to arrive."""

Leases = Mapping[str, datetime]


def is_alive(session: Session, leases: Leases, now: datetime) -> bool:
    """Whether a session's process has shown itself. A process takes its lease before its first session."""
    until = leases.get(session.holder)
    return until is not None and now < until + MARGIN


def dead(sessions: Iterable[Session], leases: Leases, now: datetime) -> frozenset[str]:
    return frozenset(each.id for each in sessions if not is_alive(each, leases, now))

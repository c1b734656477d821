"""Rehearsals as documents of the registry, so that every process can show each of them."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

from msgspec import Struct, to_builtins

from nakadi.common.converting import Converter
from nakadi.event_types.documents import DocumentBody
from nakadi.ports.clock import Clock
from nakadi.ports.registry import Registry, RemoveDocument
from nakadi.rehearsals.findings import Findings
from nakadi.rehearsals.history import Span

REHEARSALS_KIND = "rehearsals"
"""The kind of the documents with rehearsals. Their keys are the ids of the event type and of the rehearsal, so the
documents of one event type are adjacent.
"""

LOST_AFTER = timedelta(minutes=1)
KEPT_FOR = timedelta(days=1)


class RehearsalState(StrEnum):
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    LOST = "lost"
    """The process that ran the rehearsal ended before the rehearsal did."""


class Rehearsal(Struct, frozen=True, kw_only=True):
    """A rehearsal, as its process last stored it. `expected_count` is the maximum number of events that it has to
    check.
    """

    id: str
    event_type_id: str
    span: Span
    state: RehearsalState = RehearsalState.RUNNING
    detail: str = ""
    started_by: str
    started_at: datetime
    updated_at: datetime
    expected_count: int
    findings: Findings

    @property
    def key(self) -> str:
        return rehearsal_key(self.event_type_id, self.id)

    def state_at(self, now: datetime) -> RehearsalState:
        """The state of the rehearsal at `now`: a running rehearsal without an update for a minute is lost."""
        is_silent = self.state is RehearsalState.RUNNING and now - self.updated_at > LOST_AFTER
        return RehearsalState.LOST if is_silent else self.state


def rehearsal_key(event_type_id: str, rehearsal_id: str) -> str:
    return f"{event_type_id}/{rehearsal_id}"


_rehearsals = Converter(Rehearsal)


def rehearsal_body(rehearsal: Rehearsal) -> DocumentBody:
    body: DocumentBody = to_builtins(rehearsal)
    return body


def rehearsal_from_body(body: DocumentBody) -> Rehearsal:
    return _rehearsals.from_builtins(body)


def remove_expired_rehearsals(registry: Registry, clock: Clock) -> None:
    """Remove the rehearsals that are older than a day, including those of deleted event types."""
    oldest = clock.now() - KEPT_FOR
    for document in registry.list(REHEARSALS_KIND):
        if rehearsal_from_body(document.body).updated_at < oldest:
            registry.write(RemoveDocument(REHEARSALS_KIND, document.key))

"""The objective of a table: how soon events should be in it, according to an annotation of the event type.

    nakadi.io/table-objective: "99% within 1 hour"

When jobs store the state of a table (`table_states.py`), they count which of the added events were in time.
`table_lag.py` measures the waiting events. Neither the counting nor the measuring reads events a second time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from nakadi.model.annotations import TABLE_OBJECTIVE_ANNOTATION
from nakadi.model.event_type import EventType
from nakadi.model.objective import (
    MAX_OBJECTIVE_PERCENT,
    MAX_OBJECTIVE_SECONDS,
    ConsumedBatch,
    MinuteCounts,
    Objective,
    Window,
    count_batches,
    merge_counts,
    pressure_of,
    windows_of,
)

TABLE_WINDOWS_IN_MINUTES = 60, 1440
"""The windows of tables. They are longer than those of subscriptions, because a job may add events only once an hour,
or once a night.
"""

COUNTED_MINUTES = 10
"""Counts of this many minutes are stored as one, so that the state of a table stays small."""

_OBJECTIVE_PATTERN = re.compile(r"([0-9]{1,2}(?:\.[0-9]{1,3})?)% within ([1-9][0-9]{0,5}) (second|minute|hour|day)s?")
_SECONDS_BY_UNIT = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}


class BadTableObjective(Exception):
    """Raised for an annotation that is no objective; the message names it."""


class TableObjective(Struct, frozen=True):
    """`percent` of the events should be in the table within `within_seconds` after they were stored."""

    percent: float
    within_seconds: int


class TableFreshness(Struct, frozen=True):
    """The events that jobs have counted for an objective with this `within_seconds`. Events that were stored before
    `since` are not counted.
    """

    within_seconds: int
    since: datetime
    counts: tuple[MinuteCounts, ...] = ()


class WaitingPartition(Struct, frozen=True):
    """A partition, and how long its oldest archived event has waited for the table."""

    partition: str
    lag_seconds: float


class TableObjectiveStatus(Struct, frozen=True, kw_only=True):
    """How well a table meets its objective. `slowest` is None if no archived event waits."""

    objective: TableObjective
    windows: Sequence[Window]
    slowest: WaitingPartition | None = None

    @property
    def pressure(self) -> float:
        """The age of the longest waiting event, in relation to what the objective allows."""
        return 0.0 if self.slowest is None else pressure_of(self.slowest.lag_seconds, self.objective.within_seconds)


def table_objective(annotations: Mapping[str, str | None]) -> TableObjective | None:
    """The objective that annotations state, if they state one. Raises `BadTableObjective`."""
    text = annotations.get(TABLE_OBJECTIVE_ANNOTATION)
    if text is None:
        return None
    found = _OBJECTIVE_PATTERN.fullmatch(text)
    if found is not None:
        stated = TableObjective(float(found[1]), int(found[2]) * _SECONDS_BY_UNIT[found[3]])
        if 0 < stated.percent <= MAX_OBJECTIVE_PERCENT and stated.within_seconds <= MAX_OBJECTIVE_SECONDS:
            return stated
    raise BadTableObjective(
        f"Annotation {TABLE_OBJECTIVE_ANNOTATION} is not valid: it has the form 99% within 1 hour, with at most "
        f'{MAX_OBJECTIVE_PERCENT}% and 7 days. Provided value: "{text}".'
    )


def valid_table_objective(event_type: EventType) -> TableObjective | None:
    """The objective of a table; None also for an invalid one, which administrators may store."""
    try:
        return table_objective(event_type.annotations)
    except BadTableObjective:
        return None


def count_commit(
    objective: TableObjective,
    known: TableFreshness | None,
    added: Iterable[ConsumedBatch],
    since: datetime,
    now: datetime,
) -> TableFreshness:
    """Count the events that a commit has added. Without `known` counts for the same `within_seconds`, counting begins
    at `since`.
    """
    if known is None or known.within_seconds != objective.within_seconds:
        known = TableFreshness(objective.within_seconds, since)
    counts = count_batches(Objective(objective.percent, objective.within_seconds, known.since), added, now)
    counts = replace(counts, minute=counts.minute - counts.minute % COUNTED_MINUTES)
    return replace(known, counts=merge_counts((*known.counts, counts), now, max(TABLE_WINDOWS_IN_MINUTES)))


def table_windows(objective: TableObjective, known: TableFreshness | None, now: datetime) -> Sequence[Window]:
    """The windows of an objective; empty ones if nothing has been counted for it."""
    counts = known.counts if known is not None and known.within_seconds == objective.within_seconds else ()
    return windows_of(objective.percent, counts, now, TABLE_WINDOWS_IN_MINUTES)

"""The reports of job runs about the table of an event type: which events each run added, and which defects they had.

A job writes them into the registry, which keeps the newest ones: `TableRuns.keep` adds a run, and drops the oldest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec import Struct, to_builtins

from nakadi.common.converting import Converter
from nakadi.event_types.documents import DocumentBody

TABLE_RUNS_KIND = "table-runs"
"""The kind of the documents with runs, whose keys are the ids of event types."""

MAX_KEPT_RUNS = 50
"""How many runs the registry keeps for each event type."""

MAX_MISFIT_REASONS = 20
"""How many reasons for misfits the report of a run has at most."""


class MisfitReason(Struct, frozen=True):
    """Why events do not fit the columns of their table: the type of the column at a path, which cannot hold the events'
    values.
    """

    rule: str
    path: str
    event_count: int


class ExpectationCount(Struct, frozen=True):
    """How many events of a run do not meet an expectation, which is the condition of an annotation."""

    annotation: str
    condition: str
    unmet_count: int


class TableRun(Struct, frozen=True, kw_only=True):
    """The result of a run of a job for the events of one event type.

    `late_count` are events that occurred long before the broker stored them, and `duplicate_count` events with an `eid`
    that an earlier event has. Both are None if the run did not count them. `missing_count` are events whose part of the
    archive turned out to be damaged. `lag_seconds` is how long the oldest event had waited until it was in the table;
    `seconds`, `bytes_read` (from the archive, compressed) and `bytes_written` are the cost of the run.
    """

    job: str
    started_at: datetime
    ended_at: datetime
    row_count: int
    missing_count: int
    misfit_count: int
    misfit_reasons: Sequence[MisfitReason] = ()
    expectations: Sequence[ExpectationCount] = ()
    late_count: int | None = None
    duplicate_count: int | None = None
    lag_seconds: float
    seconds: float
    bytes_read: int
    bytes_written: int

    def defects(self) -> Mapping[str, int]:
        """The numbers of events with defects, by kind. A kind that was not counted, or that no event has, is
        missing."""
        counts = {
            "late": self.late_count,
            "duplicate": self.duplicate_count,
            "missing": self.missing_count,
            "misfit": self.misfit_count,
            "unmet": sum(each.unmet_count for each in self.expectations),
        }
        return {kind: count for kind, count in counts.items() if count}


class TableRuns(Struct, frozen=True):
    """The newest runs, newest first."""

    runs: Sequence[TableRun] = ()

    def with_run(self, run: TableRun) -> TableRuns:
        """Add a run that is newer than all others."""
        return TableRuns([run, *self.runs[: MAX_KEPT_RUNS - 1]])


_table_runs = Converter(TableRuns)


def table_runs_body(runs: TableRuns) -> DocumentBody:
    body: DocumentBody = to_builtins(runs)
    return body


def table_runs_from_body(body: DocumentBody) -> TableRuns:
    return _table_runs.from_builtins(body)

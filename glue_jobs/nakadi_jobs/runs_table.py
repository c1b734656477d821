"""The table of runs: the events that each run added to the table of each event type."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta

from msgspec import to_builtins
from pyspark.sql import SparkSession

from nakadi.event_types.table_runs import TableRun
from nakadi.model.event_type import EventType
from nakadi_jobs.small_tables import Row, SmallTable

RUNS = SmallTable(
    # No event type's table has two adjacent underscores.
    name="nakadi__runs",
    columns=(
        ("event_type", "string", "the name of the event type"),
        ("event_type_id", "string", "its id, which is new when a name is used again"),
        ("job", "string", "the job that ran"),
        ("started_at", "timestamp", "when the run began"),
        ("ended_at", "timestamp", "when it was done with this event type"),
        ("rows", "bigint", "events that it added to the table"),
        ("late_events", "bigint", "events that occurred long before the broker stored them"),
        ("duplicates", "bigint", "events with the eid of an earlier event"),
        ("missing_events", "bigint", "events that it could not read"),
        ("misfits", "bigint", "events that do not fit the columns"),
        ("misfit_reasons", "string", "why, as JSON: rule, path and event_count"),
        ("unmet_expectations", "bigint", "the sum over expectations of events that do not meet them"),
        ("expectations", "string", "the expectations, as JSON: annotation, condition and unmet_count"),
        ("lag_seconds", "double", "how long ago the oldest event had been stored"),
        ("seconds", "double", "how long the run worked on the event type"),
        ("bytes_read", "bigint", "bytes of the archive, compressed"),
        ("bytes_written", "bigint", "bytes of new files"),
    ),
    time="ended_at",
    order=("event_type", "ended_at"),
)


def record_runs(spark: SparkSession, database: str, runs: Sequence[tuple[EventType, TableRun]]) -> None:
    """Add runs to the table. Raises `ChangedMeanwhile`."""
    ends = [run.ended_at for _, run in runs]
    between = min(ends), max(ends) + timedelta(microseconds=1)
    RUNS.replace(spark, database, [_row(event_type, run) for event_type, run in runs], between, lambda _: False)


def _row(event_type: EventType, run: TableRun) -> Row:
    return {
        "event_type": event_type.name,
        "event_type_id": event_type.id,
        "job": run.job,
        "started_at": run.started_at,
        "ended_at": run.ended_at,
        "rows": run.row_count,
        "late_events": run.late_count,
        "duplicates": run.duplicate_count,
        "missing_events": run.missing_count,
        "misfits": run.misfit_count,
        "misfit_reasons": json.dumps(to_builtins(run.misfit_reasons)),
        "unmet_expectations": sum(each.unmet_count for each in run.expectations),
        "expectations": json.dumps(to_builtins(run.expectations)),
        "lag_seconds": run.lag_seconds,
        "seconds": run.seconds,
        "bytes_read": run.bytes_read,
        "bytes_written": run.bytes_written,
    }

"""Reports the quality of what a run added to tables: to the registry, and to the table of runs.

If a run is killed before it reports, there is no report about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from py4j.protocol import Py4JError
from pyarrow import ArrowException
from pyspark.errors import PySparkException

from nakadi.event_types.table_runs import TABLE_RUNS_KIND, TableRun, TableRuns, table_runs_body, table_runs_from_body
from nakadi.model.event_type import Category, EventType
from nakadi.model.outcomes import Unavailable
from nakadi.ports.archive_store import ArchiveObjectGone
from nakadi.ports.registry import ABSENT_REVISION, ChangedMeanwhile, PutDocument, Registry
from nakadi_jobs import table_states, tables
from nakadi_jobs.command import JobContext
from nakadi_jobs.event_type_tables import events_table
from nakadi_jobs.file_counts import File
from nakadi_jobs.leftovers import Unreadable, relative_folder
from nakadi_jobs.reports import first_line
from nakadi_jobs.row_counts import MAX_ROWS, RowCounts, compared_times, count_rows
from nakadi_jobs.run_ledger import RunCounts
from nakadi_jobs.runs_table import record_runs

ERRORS = (
    ArchiveObjectGone,
    Unavailable,
    OSError,
    ArrowException,
    Py4JError,
    PySparkException,
    tables.ChangedMeanwhile,
)
"""Errors that leave a report incomplete. The tables have their events nevertheless."""


def report_runs(work: JobContext, since: timedelta = timedelta()) -> None:
    """Report about each event type with new events whose counts began at least this long ago: to the registry, to the
    table of runs, and to an OpenLineage service if there is one.
    """
    runs = []
    for counts in work.runs.take(since):
        rows = None if work.options.no_quality else _count_rows(work, counts)
        run = counts.report(work.runs.job, work.clock.now(), rows)
        _store_run(work.registry, counts.event_type, run)
        table_states.store_last_run(work.registry, counts.event_type, run)
        runs.append((counts.event_type, run))
    if runs and not work.options.no_quality:
        try:
            with work.exclusive("runs"):
                record_runs(work.spark, work.database, runs)
        except ERRORS as error:
            work.report.info("runs", f"the table of runs is not complete. {first_line(error)}")
    if runs and work.options.lineage_url:
        _send_lineage(work, runs)


def _send_lineage(work: JobContext, runs: Sequence[tuple[EventType, TableRun]]) -> None:
    try:
        from nakadi_jobs import lineage  # noqa: PLC0415  # it needs a package that need not be installed

        filled = [
            lineage.FilledTable(run, each.name, events_table(work.spark, work.database, each).location())
            for each, run in runs
        ]
        lineage.send_lineage(work.options.lineage_url, work.options.lineage_namespace, filled)
    except Exception as error:  # noqa: BLE001  # the client sends with a library, and the tables are complete anyway
        work.report.warn("lineage", f"{work.options.lineage_url} did not get all events. {first_line(error)}")


def _count_rows(work: JobContext, counts: RunCounts) -> RowCounts | None:
    """Count late events and duplicates. Returns None if they cannot be counted: if events have no metadata, if there
    are none or too many, or if the files cannot be read without Spark.
    """
    event_type, parts = counts.event_type, counts.parts()
    if event_type.category is Category.UNDEFINED or not parts or sum(each.rows for each in counts.batches) > MAX_ROWS:
        return None
    try:
        found = events_table(work.spark, work.database, event_type).plan_files(compared_times(parts)).files
        if not all(file.is_plain for file in found):
            return None
        files = [File(relative_folder(work.tables, file.path), file.size) for file in found]
        return count_rows(work.files_of_tables(), files, parts, timedelta(minutes=work.options.late_after_minutes))
    except Unreadable:
        # The catalog may keep tables elsewhere.
        return None
    except ERRORS as error:
        work.report.info(event_type.name, f"late events and duplicates are not counted. {first_line(error)}")
        return None


def _store_run(registry: Registry, event_type: EventType, run: TableRun) -> None:
    """Add a report to the reports of its event type. Two runs may do so at the same time."""
    while True:
        document = registry.get(TABLE_RUNS_KIND, event_type.id)
        known = TableRuns() if document is None else table_runs_from_body(document.body)
        expected = ABSENT_REVISION if document is None else document.revision
        body = table_runs_body(known.with_run(run))
        try:
            registry.write(PutDocument(TABLE_RUNS_KIND, event_type.id, body, expected))
        except ChangedMeanwhile:
            continue
        return

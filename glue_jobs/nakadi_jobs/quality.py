"""The quality of what a run adds to tables.

A `RunLedger` collects counts while a job works. `report_runs` turns them into reports, one for each event type with
new events, and stores them in the registry. If a run is killed before, there is no report about it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from datetime import datetime, timedelta

from msgspec import Struct, field

from nakadi.event_types.table_runs import (
    MAX_MISFIT_REASONS,
    TABLE_RUNS_KIND,
    MisfitReason,
    TableRun,
    TableRuns,
    table_runs_body,
    table_runs_from_body,
)
from nakadi.model.event_type import EventType
from nakadi.ports.clock import Clock
from nakadi.ports.registry import ABSENT_REVISION, ChangedMeanwhile, PutDocument, Registry, RemoveDocument
from nakadi_jobs.archive_ranges import ArchiveRange
from nakadi_jobs.misfits import Reason


class BatchCounts(Struct, frozen=True, kw_only=True):
    """What a batch added to a table, and how long its oldest event had waited."""

    read: Sequence[ArchiveRange]
    damaged: Sequence[ArchiveRange]
    rows: int
    misfits: int
    misfit_reasons: Counter[Reason]
    lag_seconds: float
    bytes_written: int


class RunCounts(Struct, kw_only=True):
    """What a run has done so far with the events of an event type."""

    event_type: EventType
    started_at: datetime
    seconds: float = 0.0
    batches: list[BatchCounts] = field(default_factory=list)

    def report(self, job: str, now: datetime) -> TableRun:
        reasons: Counter[Reason] = Counter()
        for batch in self.batches:
            reasons.update(batch.misfit_reasons)
        return TableRun(
            job=job,
            started_at=self.started_at,
            ended_at=now,
            row_count=sum(batch.rows for batch in self.batches),
            missing_count=sum(part.end - part.first for batch in self.batches for part in batch.damaged),
            misfit_count=sum(batch.misfits for batch in self.batches),
            misfit_reasons=[
                MisfitReason(rule, path, count) for (rule, path), count in reasons.most_common(MAX_MISFIT_REASONS)
            ],
            lag_seconds=round(max(batch.lag_seconds for batch in self.batches), 3),
            seconds=round(self.seconds, 3),
            bytes_read=sum(part.location.length for batch in self.batches for part in batch.read),
            bytes_written=sum(batch.bytes_written for batch in self.batches),
        )


class RunLedger(Struct):
    """The counts of a run by the id of the event type. One thread at a time works on an event type."""

    job: str
    clock: Clock
    counts: dict[str, RunCounts] = field(default_factory=dict)

    def add_batch(self, event_type: EventType, batch: BatchCounts) -> None:
        self._of(event_type).batches.append(batch)

    def add_seconds(self, event_type: EventType, seconds: float) -> None:
        """Add the time that the run has just spent on an event type."""
        counts = self._of(event_type)
        if not counts.seconds:
            counts.started_at = self.clock.now() - timedelta(seconds=seconds)
        counts.seconds += seconds

    def take(self, since: timedelta) -> Iterator[RunCounts]:
        """Take the counts of event types with new events that began at least this long ago. Others stay."""
        now = self.clock.now()
        for key, counts in list(self.counts.items()):
            if not counts.batches:
                del self.counts[key]
            elif now - counts.started_at >= since:
                yield self.counts.pop(key)

    def _of(self, event_type: EventType) -> RunCounts:
        return self.counts.setdefault(event_type.id, RunCounts(event_type=event_type, started_at=self.clock.now()))


def report_runs(registry: Registry, ledger: RunLedger, since: timedelta = timedelta()) -> Sequence[TableRun]:
    """Store a report for each event type with new events, and return the reports."""
    reports = []
    for counts in ledger.take(since):
        run = counts.report(ledger.job, ledger.clock.now())
        _keep(registry, counts.event_type, run)
        reports.append(run)
    return reports


def remove_stale_runs(registry: Registry, there: Container[str]) -> None:
    """Remove the reports about event types that are gone. `there` has the ids of the others."""
    for document in registry.list(TABLE_RUNS_KIND):
        if document.key not in there:
            registry.write(RemoveDocument(TABLE_RUNS_KIND, document.key))


def _keep(registry: Registry, event_type: EventType, run: TableRun) -> None:
    """Add a report to those of its event type. Two runs may do so at the same time."""
    while True:
        document = registry.get(TABLE_RUNS_KIND, event_type.id)
        known = TableRuns() if document is None else table_runs_from_body(document.body)
        expected = ABSENT_REVISION if document is None else document.revision
        body = table_runs_body(known.keep(run))
        try:
            registry.write(PutDocument(TABLE_RUNS_KIND, event_type.id, body, expected))
        except ChangedMeanwhile:
            continue
        return

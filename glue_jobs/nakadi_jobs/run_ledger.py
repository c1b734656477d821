"""Counts what a run adds to tables, and makes reports from the counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct, field

from nakadi.event_types.expectations import MAX_EXPECTATIONS, Expectation
from nakadi.event_types.table_runs import (
    MAX_MISFIT_REASONS,
    ExpectationCount,
    MisfitReason,
    TableRun,
)
from nakadi.model.event_type import EventType
from nakadi.ports.clock import Clock
from nakadi_jobs.archive_ranges import ArchiveRange
from nakadi_jobs.misfits import Reason
from nakadi_jobs.row_counts import RowCounts


class BatchCounts(Struct, frozen=True, kw_only=True):
    """The rows that a batch added to a table, and how long its oldest event had waited."""

    read: Sequence[ArchiveRange]
    damaged: Sequence[ArchiveRange]
    rows: int
    misfits: int
    misfit_reasons: Counter[Reason]
    unmet: Mapping[Expectation, int]
    lag_seconds: float
    bytes_written: int


class RunCounts(Struct, kw_only=True):
    """The counts of a run so far for the events of an event type."""

    event_type: EventType
    started_at: datetime
    seconds: float = 0.0
    batches: list[BatchCounts] = field(default_factory=list)

    def parts(self) -> Sequence[ArchiveRange]:
        """The parts of the archive whose events are in the table now."""
        return [part for batch in self.batches for part in batch.read]

    def report(self, job: str, now: datetime, rows: RowCounts | None) -> TableRun:
        """The report of the run, which ends now. `rows` is None if the run counted no late events and duplicates."""
        reasons: Counter[Reason] = Counter()
        unmet: Counter[Expectation] = Counter()
        for batch in self.batches:
            reasons.update(batch.misfit_reasons)
            unmet.update(batch.unmet)
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
            expectations=[
                ExpectationCount(each.annotation, each.condition, count)
                for each, count in unmet.most_common(MAX_EXPECTATIONS)
            ],
            late_count=None if rows is None else rows.late,
            duplicate_count=None if rows is None else rows.duplicates,
            lag_seconds=round(max(batch.lag_seconds for batch in self.batches), 3),
            seconds=round(self.seconds, 3),
            bytes_read=sum(part.location.length for part in self.parts()),
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
        """Remove from the ledger, and yield, the counts that have new events and began at least this long ago."""
        now = self.clock.now()
        for key, counts in list(self.counts.items()):
            if not counts.batches:
                del self.counts[key]
            elif now - counts.started_at >= since:
                yield self.counts.pop(key)

    def _of(self, event_type: EventType) -> RunCounts:
        return self.counts.setdefault(event_type.id, RunCounts(event_type=event_type, started_at=self.clock.now()))

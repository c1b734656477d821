"""One rehearsal, from its first event to its last, in a thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime

from msgspec.structs import replace

from nakadi.common.metrics import Metrics
from nakadi.model.event_type import EventType
from nakadi.model.events import Record
from nakadi.model.outcomes import Outcome, TryLater, Unavailable
from nakadi.ports.clock import Clock
from nakadi.ports.registry import ChangedMeanwhile, PutDocument, Registry
from nakadi.rehearsals.documents import REHEARSALS_KIND, Rehearsal, RehearsalState, rehearsal_body
from nakadi.rehearsals.findings import FindingsCollector
from nakadi.rehearsals.history import RETRY_PAUSES_SECONDS, HistoryReader, PartitionSpan
from nakadi.rehearsals.judge import EventJudge
from nakadi.rehearsals.pacing import Pacer
from nakadi.streaming.chunks import EventRun

log = logging.getLogger(__name__)

# The number of events that are judged between two checks of the time, which mostly takes a quarter of a millisecond.
PIECE_EVENTS = 64
REPORT_INTERVAL_SECONDS = 2.0

LOST, REMOVED = RehearsalState.LOST.value, "removed"
"""The labels, in metrics, of rehearsals that did not end by themselves."""

LOST_MESSAGE = "The process that ran the rehearsal has ended"
FAILED_MESSAGE = "The rehearsal failed inside the broker, whose log says why"


class RehearsalStopped(Exception):
    """Raised when the process is about to end."""


class RehearsalRemoved(Exception):
    """Raised when the rehearsal was removed."""


class RehearsalJob:
    """Reads, judges and counts events, and writes its findings every two seconds and at the end.

    While it runs, only it writes the rehearsal's document. Removing the document ends the job.
    """

    def __init__(  # noqa: PLR0913  # every part by its name
        self,
        *,
        rehearsal: Rehearsal,
        revision: int,
        event_type: EventType,
        spans: Sequence[PartitionSpan],
        judge: EventJudge,
        reader: HistoryReader,
        may_read: Callable[[Record], bool],
        pause: Callable[[float], None],
        registry: Registry,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._rehearsal = rehearsal
        self._revision = revision
        self._event_type = event_type
        self._spans = spans
        self._judge = judge
        self._reader = reader
        self._may_read = may_read
        self._pause = pause
        self._pacer = Pacer(pause)
        self._registry = registry
        self._clock = clock
        self._metrics = metrics
        self._collector = FindingsCollector()
        self._reported_at = clock.monotonic()

    def run(self) -> None:
        """Run the rehearsal to its end. A failure ends it, and is recorded in its document."""
        ending = LOST
        try:
            state, detail = self._run_to_state()
            self._write_until_stored(state, detail)
            ending = state.value
        except RehearsalRemoved:
            ending = REMOVED
        except (RehearsalStopped, Unavailable):
            log.warning("Writing the rehearsal %s failed, it will count as lost", self._rehearsal.key, exc_info=True)
        self._metrics.rehearsals_ended.add(1, ending)

    def _run_to_state(self) -> tuple[RehearsalState, str]:
        try:
            for span in self._spans:
                for run in self._reader.read_span(self._event_type, span):
                    for part in run.readable_parts(self._may_read):
                        self._judge_run(span.partition, part)
                    self._report_if_due()
        except RehearsalRemoved:
            raise
        except (RehearsalStopped, TryLater):
            return RehearsalState.LOST, LOST_MESSAGE
        except Outcome as outcome:
            return RehearsalState.FAILED, outcome.detail
        except Exception:
            log.exception("The rehearsal %s of %s failed", self._rehearsal.id, self._event_type.name)
            return RehearsalState.FAILED, FAILED_MESSAGE
        return RehearsalState.FINISHED, ""

    def _judge_run(self, partition: int, run: EventRun) -> None:
        texts = run.values
        failed_before = self._collector.findings.failed_count
        for first in range(0, run.count, PIECE_EVENTS):
            self._judge_piece(partition, run, first, texts[first : first + PIECE_EVENTS])
        failed = self._collector.findings.failed_count - failed_before
        self._metrics.rehearsed_events.add(run.count - failed, "accepted")
        if failed:
            self._metrics.rehearsed_events.add(failed, "refused")

    def _judge_piece(self, partition: int, run: EventRun, first: int, texts: Sequence[bytes]) -> None:
        findings = self._collector.findings
        for failure in self._judge.find_failures(texts):
            rules = self._judge.broken_rules(failure) if findings.explains_more else ()
            index = first + failure.index
            self._collector.add_failure(
                partition, run.position_at(index), run.stored_at(index), failure.publisher, rules
            )
            self._pacer.give_way()
        findings.seen_count += len(texts)
        self._pacer.give_way()

    def _report_if_due(self) -> None:
        if self._judge.is_stopping():
            raise RehearsalStopped
        now = self._clock.monotonic()
        if now - self._reported_at >= REPORT_INTERVAL_SECONDS:
            self._reported_at = now
            try:
                self._write(RehearsalState.RUNNING, "")
            except Unavailable:
                log.warning("Writing the rehearsal %s failed, it continues", self._rehearsal.key, exc_info=True)

    def _write_until_stored(self, state: RehearsalState, detail: str) -> None:
        for seconds in RETRY_PAUSES_SECONDS:
            try:
                return self._write(state, detail)
            except Unavailable:
                self._pause(seconds)
        return self._write(state, detail)

    def _write(self, state: RehearsalState, detail: str) -> None:
        """Write the document. Raises `RehearsalRemoved`, or `Unavailable` if it may or may not have been written."""
        now: datetime = self._clock.now()
        written = replace(
            self._rehearsal, state=state, detail=detail, updated_at=now, findings=self._collector.findings
        )
        try:
            self._put(written)
        except ChangedMeanwhile as error:
            # Either a client has removed the document, or an earlier write of this job did succeed.
            found = self._registry.get(REHEARSALS_KIND, written.key)
            if found is None:
                raise RehearsalRemoved from error
            self._revision = found.revision
            self._put(written)

    def _put(self, written: Rehearsal) -> None:
        self._registry.write(
            PutDocument(REHEARSALS_KIND, written.key, rehearsal_body(written), expected_revision=self._revision)
        )
        self._revision += 1

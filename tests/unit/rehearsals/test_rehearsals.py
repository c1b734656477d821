"""Rehearsals start, continue and end, whichever process is asked and whatever happens meanwhile."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from nakadi.app.broker import open_broker
from nakadi.app.settings import Settings
from nakadi.common.work import LongWorkQueue
from nakadi.http.bodies import ObjectReader
from nakadi.http.drafts import event_type_draft
from nakadi.model.authorization import UNAUTHENTICATED, BlockedKind, Feature
from nakadi.model.event_type import SchemaDraft, SchemaType
from nakadi.model.events import EventSlice
from nakadi.model.outcomes import NotFound, NotPermitted, TryLater, Unavailable
from nakadi.ports.event_log import EventLog
from nakadi.ports.registry import DocumentChange, Registry
from nakadi.rehearsals.documents import KEPT_FOR, LOST_AFTER, REHEARSALS_KIND, RehearsalState
from nakadi.rehearsals.history import Span
from nakadi.rehearsals.job import FAILED_MESSAGE, LOST_MESSAGE, REPORT_INTERVAL_SECONDS
from nakadi.rehearsals.rehearsals import MAX_RUNNING, RehearsalDraft, Rehearsals
from nakadi.streaming.access import ReadAccess
from tests.support.api import a_definition
from tests.support.clock import HandMovedClock
from tests.support.metrics import collect_samples, sample_value
from tests.support.patience import PATIENCE, until

CHUNK = 1000


class GatedLog:
    """A log whose reads wait until the test releases them, or fail."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self.reads = 0
        self.passes = threading.Semaphore(0)
        self.trouble: Exception | None = None

    def read(self, *place: Any, **limits: Any) -> EventSlice:
        self.reads += 1
        assert self.passes.acquire(timeout=PATIENCE)
        if self.trouble is not None:
            raise self.trouble
        return self._log.read(*place, **limits)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


class UnreliableRegistry:
    """A registry whose next writes of rehearsals fail, without effect or after their effect."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.failing_writes = 0
        self.fails_after_effect = False

    def write(self, *changes: DocumentChange) -> None:
        fails = self.failing_writes > 0
        if fails:
            self.failing_writes -= 1
        if not fails or self.fails_after_effect:
            self._registry.write(*changes)
        if fails:
            raise Unavailable("The registry does not answer")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._registry, name)


class RehearsalSetup:
    """A broker in memory with `chunks` batches of a thousand events, and rehearsals whose requests never wait."""

    def __init__(self, chunks: int = 3) -> None:
        self.clock = HandMovedClock()
        self.broker = open_broker(Settings(), self.clock, self._gate)
        self.name = self.create_event_type()
        body = json.dumps([{"number": number} for number in range(CHUNK)]).encode()
        for _ in range(chunks):
            self.broker.publisher.publish(self.name, body, UNAUTHENTICATED, "")
        self.registry = UnreliableRegistry(self.broker.registry)
        self.rehearsals = self.open_rehearsals()

    def _gate(self, log: EventLog) -> EventLog:
        self.log = GatedLog(log)
        return self.log  # type: ignore[return-value]

    def create_event_type(self) -> str:
        draft = event_type_draft(ObjectReader(a_definition(schema={"properties": {"number": {}}})))
        return self.broker.registration.creation.create(draft, UNAUTHENTICATED).name

    def open_rehearsals(self) -> Rehearsals:
        """The rehearsals of a process."""
        core = self.broker
        return Rehearsals(
            event_types=core.event_types,
            permissions=core.permissions,
            features=core.features,
            access=ReadAccess(core.event_types, core.permissions, core.features),
            logs=core.logs,
            registry=self.registry,  # type: ignore[arg-type]
            clock=self.clock,
            long_work_queue=LongWorkQueue(),
            metrics=core.metrics,
            answer_within_seconds=0.0,
        )

    def start(self) -> str:
        schema = {"properties": {"number": {"maximum": 989}}}
        draft = RehearsalDraft(
            schema=SchemaDraft(type=SchemaType.JSON, text=json.dumps(schema)), span=Span(events=10 * CHUNK)
        )
        return self.rehearsals.start(self.name, draft, UNAUTHENTICATED).rehearsal.id

    def read_counts(self, rehearsal_id: str) -> tuple[RehearsalState, int, int]:
        """The state, and the numbers of events that were checked and that failed."""
        # Samples would be read from the log, which does not answer.
        [found] = [
            each for each in self.rehearsals.list(self.name, UNAUTHENTICATED) if each.rehearsal.id == rehearsal_id
        ]
        return found.state, found.rehearsal.findings.seen_count, found.rehearsal.findings.failed_count

    def count_ended(self) -> dict[str, float]:
        """How many rehearsals ended in which way, as the metrics have it."""
        return {state: count for (state,), count in self.broker.metrics.rehearsals_ended.rows().items()}

    def open_gate(self, reads: int = 1000) -> None:
        self.log.passes.release(reads)

    def await_reads(self, reads: int) -> None:
        until(lambda: self.log.reads >= reads)

    def close(self) -> None:
        self.open_gate()
        self.rehearsals.close()
        self.broker.close()


@pytest.fixture
def setup() -> Iterator[RehearsalSetup]:
    setup = RehearsalSetup()
    yield setup
    setup.close()


def test_a_long_rehearsal_shows_its_progress(setup):
    """Every two seconds, a rehearsal writes its findings so far, and finally the result. (H1, H10)"""
    identity = setup.start()
    setup.await_reads(1)
    assert setup.read_counts(identity) == (RehearsalState.RUNNING, 0, 0)
    setup.clock.move(REPORT_INTERVAL_SECONDS)
    setup.open_gate(1)
    setup.await_reads(2)
    assert setup.read_counts(identity) == (RehearsalState.RUNNING, CHUNK, 10)
    setup.open_gate(1)
    setup.await_reads(3)
    assert setup.read_counts(identity) == (RehearsalState.RUNNING, CHUNK, 10)
    setup.open_gate()
    until(lambda: setup.read_counts(identity) == (RehearsalState.FINISHED, 3 * CHUNK, 30))
    assert len(setup.rehearsals.get(setup.name, identity, UNAUTHENTICATED).samples) == 5


def test_a_removed_rehearsal_ends(setup):
    """Another process removes the rehearsal; the job notices when it writes, and leaves nothing behind. (H11)"""
    identity = setup.start()
    setup.await_reads(1)
    other = setup.open_rehearsals()
    other.remove(setup.name, identity, UNAUTHENTICATED)
    other.close()
    setup.clock.move(REPORT_INTERVAL_SECONDS)
    setup.open_gate()
    setup.rehearsals._threads.shutdown()

    assert setup.log.reads == 1
    assert setup.broker.registry.list(REHEARSALS_KIND) == []
    assert setup.count_ended() == {"removed": 1}


def test_a_process_runs_two_at_once(setup):
    """A third rehearsal is refused until one of two running ones has ended. (H12)"""
    started = [setup.start() for _ in range(MAX_RUNNING)]
    with pytest.raises(TryLater):
        setup.start()
    assert len(setup.broker.registry.list(REHEARSALS_KIND)) == MAX_RUNNING
    assert sample_value(collect_samples(setup.broker.metrics), "nakadi_rehearsals_running") == MAX_RUNNING
    setup.open_gate()
    until(lambda: all(setup.read_counts(each)[0] is RehearsalState.FINISHED for each in started))
    setup.rehearsals.close()
    assert setup.count_ended() == {"finished": MAX_RUNNING}
    assert sample_value(collect_samples(setup.broker.metrics), "nakadi_rehearsals_running") == 0
    setup.rehearsals = setup.open_rehearsals()
    setup.log.passes = threading.Semaphore(0)
    assert setup.start()


def test_a_process_that_ends_says_so(setup):
    """The rehearsals of a process that ends are reported as lost, without their findings. (H10)"""
    identity = setup.start()
    setup.await_reads(1)
    closing = threading.Thread(target=setup.rehearsals.close)
    closing.start()
    until(setup.rehearsals._stopping.is_set)
    setup.open_gate(1)
    closing.join()

    state, seen, _ = setup.read_counts(identity)
    assert (state, seen <= CHUNK) == (RehearsalState.LOST, True)
    [document] = setup.broker.registry.list(REHEARSALS_KIND)
    assert document.body["detail"] == LOST_MESSAGE
    assert setup.count_ended() == {"lost": 1}


def test_a_silent_process_counts_as_lost(setup):
    """A rehearsal whose process is silent counts as lost, because nobody reports a killed process. If the process
    was only slow, the rehearsal continues. (H10)
    """
    identity = setup.start()
    setup.await_reads(1)
    setup.clock.move(LOST_AFTER.total_seconds() + 1)
    assert setup.read_counts(identity)[0] is RehearsalState.LOST
    setup.open_gate()
    until(lambda: setup.read_counts(identity)[0] is RehearsalState.FINISHED)


def test_a_rehearsal_that_fails_says_no_more_than_clients_may_know(setup, caplog):
    """A failed rehearsal does not tell clients the reason, which is in the broker's log. (H10)"""
    setup.log.trouble = RuntimeError("a secret of the engine")
    identity = setup.start()
    setup.open_gate(1)
    until(lambda: setup.read_counts(identity)[0] is RehearsalState.FAILED)

    [document] = setup.broker.registry.list(REHEARSALS_KIND)
    assert document.body["detail"] == FAILED_MESSAGE
    assert "a secret of the engine" in caplog.text


@pytest.mark.parametrize("fails_after_effect", [False, True])
def test_a_report_that_fails_is_repeated(setup, fails_after_effect):
    """If the registry does not answer a report, the rehearsal continues, whether or not the report was stored. (H10)"""
    identity = setup.start()
    setup.await_reads(1)
    setup.registry.failing_writes, setup.registry.fails_after_effect = 1, fails_after_effect
    setup.clock.move(REPORT_INTERVAL_SECONDS)
    setup.open_gate(1)
    setup.await_reads(2)
    assert setup.registry.failing_writes == 0
    setup.clock.move(REPORT_INTERVAL_SECONDS)
    setup.open_gate(1)
    setup.await_reads(3)
    assert setup.read_counts(identity) == (RehearsalState.RUNNING, 2 * CHUNK, 20)
    setup.open_gate()
    until(lambda: setup.read_counts(identity) == (RehearsalState.FINISHED, 3 * CHUNK, 30))


@pytest.mark.parametrize("fails_after_effect", [False, True])
def test_a_result_that_cannot_be_stored_is_stored_later(setup, fails_after_effect):
    """The result of a long rehearsal is not lost because the registry does not answer for a moment. (H10)"""
    identity = setup.start()
    setup.await_reads(1)
    setup.registry.failing_writes, setup.registry.fails_after_effect = 2, fails_after_effect
    setup.open_gate()
    until(lambda: setup.count_ended() == {"finished": 1})
    assert setup.read_counts(identity) == (RehearsalState.FINISHED, 3 * CHUNK, 30)


def test_results_are_kept_for_a_day(setup):
    """Housekeeping removes older results, including those of deleted event types. (H12)"""
    setup.open_gate()
    identity = setup.start()
    until(lambda: setup.read_counts(identity)[0] is RehearsalState.FINISHED)
    setup.broker.housekeeping.run()
    assert setup.read_counts(identity)
    setup.clock.move((KEPT_FOR + timedelta(seconds=1)).total_seconds())
    setup.broker.housekeeping.run()
    assert setup.broker.registry.list(REHEARSALS_KIND) == []
    with pytest.raises(NotFound):
        setup.rehearsals.get(setup.name, identity, UNAUTHENTICATED)


def test_while_the_registry_is_read_only_none_starts(setup):
    """While the registry is read-only, no rehearsal starts, and none is removed. (H9)"""
    setup.open_gate()
    identity = setup.start()
    setup.broker.features.switch(Feature.DISABLE_DB_WRITE_OPERATIONS, on=True)
    with pytest.raises(TryLater):
        setup.start()
    with pytest.raises(TryLater):
        setup.rehearsals.remove(setup.name, identity, UNAUTHENTICATED)


def test_a_blocked_consumer_may_not_rehearse(setup):
    """A blocked consumer may not rehearse, just as it may not read. (H9)"""
    setup.broker.blacklist.block(BlockedKind.CONSUMER_EVENT_TYPE, setup.name)
    with pytest.raises(NotPermitted):
        setup.rehearsals.list(setup.name, UNAUTHENTICATED)

"""How metrics count, and the metrics of failures and waiting."""

import asyncio
import os
import sqlite3
import sys
import threading
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from nakadi.app.broker import open_broker
from nakadi.app.settings import Settings
from nakadi.common.chores import run_and_log_failure
from nakadi.common.counting import OTHER_LABEL_VALUE
from nakadi.common.metrics import Metrics
from nakadi.common.waiting import run_blocking
from nakadi.common.work import LongWorkQueue
from nakadi.engines.archive.archive_worker import ArchiveWorker
from nakadi.engines.archive.policy import ArchivePolicy
from nakadi.engines.archive.segment_cache import SegmentCache, UnreadableSegment
from nakadi.engines.archive.stores import FolderStore, MemoryStore
from nakadi.engines.memory.coordination import MemoryCoordination
from nakadi.engines.memory.event_log import MemoryLog
from nakadi.engines.memory.log_index import MemoryLogIndex
from nakadi.engines.sqlite.event_log import SqliteLog
from nakadi.http.application import Application
from nakadi.http.asgi import AsgiApplication
from nakadi.http.message import empty_response
from nakadi.http.metrics_json import metrics_view
from nakadi.http.router import Lane, Route
from nakadi.model.authorization import UNAUTHENTICATED
from nakadi.model.event_type import Position
from nakadi.model.events import EventSlice, Record, StoredEvent
from nakadi.model.log_index import ArchiveLocation, IndexingState, IndexSegment
from nakadi.model.outcomes import Unavailable
from nakadi.model.subscription import EMPTY_ASSIGNMENT, EventTypePartition
from nakadi.streaming.chunks import EventChunk
from nakadi.subscriptions.stream.actions import GiveUpOnEvent
from nakadi.subscriptions.stream.calls import DeadLetterPublisher
from nakadi.subscriptions.stream.leases import LeaseKeeper
from nakadi.subscriptions.stream.members import SubscriptionSessions
from tests.support.clock import HandMovedClock
from tests.support.coordination import a_session, an_assignment
from tests.support.engines import append_and_wait
from tests.support.metrics import collect_samples, sample_value
from tests.support.patience import PATIENCE, until


@pytest.fixture
def metrics():
    return Metrics(max_names=2)


def read_sample(metrics, name, **labels):
    return sample_value(collect_samples(metrics), name, **labels)


# Counting


def test_threads_that_count_at_once_lose_nothing(metrics):
    """No count is lost, whatever the order in which threads run."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    class YieldingText(str):
        """Lets other threads run in the middle of counting, while a label is looked up."""

        __slots__ = ()

        def __hash__(self):
            time.sleep(0)
            return super().__hash__()

        __eq__ = str.__eq__

    def count():
        label = YieldingText("low-level")
        for _ in range(500):
            metrics.streams_opened.add(1, label)
            metrics.stored("a", 2, 10)
            metrics.answered("publish_events", 200, 0.5, 10, 0)

    threads = [threading.Thread(target=count) for _ in range(4)]
    try:
        for each in threads:
            each.start()
        for each in threads:
            each.join(PATIENCE)
    finally:
        sys.setswitchinterval(interval)

    assert read_sample(metrics, "nakadi_streams_opened_total", api="low-level") == 2000
    assert read_sample(metrics, "nakadi_events_published_total", event_type="a") == 4000
    assert read_sample(metrics, "nakadi_http_request_duration_seconds_count", operation="publish_events") == 2000


def test_event_types_beyond_a_number_are_counted_together(metrics):
    """A limited number of event types, the first ones, have their own values in every metric; all others share one."""
    for name in ("a", "b", "c", "d"):
        metrics.stored(name, 1, 10)
        metrics.events_refused.add(1, name, "validating")

    counted = {
        name: read_sample(metrics, "nakadi_events_published_total", event_type=name)
        for name in ("a", "b", "c", OTHER_LABEL_VALUE)
    }
    assert counted == {"a": 1, "b": 1, "c": 0, OTHER_LABEL_VALUE: 2}
    assert read_sample(metrics, "nakadi_events_refused_total", event_type=OTHER_LABEL_VALUE, reason="validating") == 2


def test_the_largest_subscriptions_are_reported_by_their_ids(metrics):
    """If there are too many subscriptions, those with the largest values are reported by id, and the others as a
    sum.
    """
    lags = {("s1",): 5.0, ("s2",): 70.0, ("s3",): 1.0, ("s4",): 20.0}
    metrics.subscription_lag.add_source(lambda: lags)
    metrics.subscription_uncommitted.add_source(lambda: lags)

    rows = {
        each: read_sample(metrics, "nakadi_subscription_lag_seconds", subscription=each)
        for each in ("s2", "s4", OTHER_LABEL_VALUE)
    }
    assert rows == {"s2": 70, "s4": 20, OTHER_LABEL_VALUE: 5}
    assert read_sample(metrics, "nakadi_subscription_uncommitted_events", subscription=OTHER_LABEL_VALUE) == 6


def test_values_are_put_into_buckets(metrics):
    """A bucket counts every value up to its bound, including the bound."""
    for seconds in (0.001, 0.002, 40.0):
        metrics.request_seconds.observe(seconds, "x")

    buckets = {
        bound: read_sample(metrics, "nakadi_http_request_duration_seconds_bucket", operation="x", le=bound)
        for bound in ("0.001", "0.0025", "30.0", "+Inf")
    }
    assert buckets == {"0.001": 1, "0.0025": 2, "30.0": 2, "+Inf": 3}


def test_json_keeps_its_names():
    """The JSON members that are older than the Prometheus metrics keep their names. (R245)"""
    metrics = Metrics(started=10)
    metrics.answered("get_health", 200, 0.25)
    metrics.kpi_figures.add(7, "dropped")
    run_and_log_failure("a try of json", "x", lambda: 1 / 0)

    found = metrics_view(metrics, now=70)
    assert found["gauges"]["nakadi.uptime"] == {"value": 60}
    assert found["counters"]["nakadi.http.get_health.200"] == {"count": 1}
    assert found["counters"]["nakadi.kpi.dropped"] == {"count": 7}
    assert found["counters"]["nakadi.chores.failed.a-try-of-json"] == {"count": 1}
    assert found["timers"]["nakadi.http.get_health"] == {
        "count": 1,
        **dict.fromkeys(("max", "mean", "min", "p50", "p75", "p95", "p98", "p99", "p999"), 0.25),
        "mean_rate": 1 / 60,
        "duration_units": "seconds",
        "rate_units": "calls/second",
    }


# Failures


def test_failed_chores_are_counted(metrics):
    """A failed step of housekeeping is counted by its operation."""
    before = read_sample(metrics, "nakadi_chore_failures_total", operation="a try")
    run_and_log_failure("a try", "x", lambda: 1 / 0)

    assert read_sample(metrics, "nakadi_chore_failures_total", operation="a try") == before + 1


def test_a_process_reports_its_id(metrics):
    """The metrics of a process contain its id, with which operators find the process on its machine."""
    assert read_sample(metrics, "nakadi_process_info", process=str(os.getpid())) == 1


def test_a_commit_that_fails_is_counted(metrics, tmp_path):
    """A failed commit of the event log is counted, and its appends no longer count as waiting."""
    with closing(SqliteLog(tmp_path / "nakadi.db", HandMovedClock(), metrics, patience=0.0)) as log:
        log.create_topic("t", 1)
        with closing(sqlite3.connect(tmp_path / "nakadi.db")) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(Unavailable):
                run_blocking(log.append("t", {0: []}))

    assert read_sample(metrics, "nakadi_sqlite_commit_failures_total") == 1
    assert read_sample(metrics, "nakadi_sqlite_commit_duration_seconds_count") == 1
    assert read_sample(metrics, "nakadi_sqlite_appends_waiting") == 0


def test_appends_that_wait_are_reported(metrics, tmp_path):
    """While the writer is busy, the number and the bytes of the waiting appends are reported."""
    busy, free = threading.Event(), threading.Event()

    class BlockingClock(HandMovedClock):
        """Keeps the writer in its first commit."""

        def now(self) -> datetime:
            busy.set()
            assert free.wait(PATIENCE)
            return super().now()

    with closing(SqliteLog(tmp_path / "nakadi.db", BlockingClock(), metrics)) as log:
        log.create_topic("t", 1)
        threads = [threading.Thread(target=append_and_wait, args=(log, "t", {0: []})) for _ in range(2)]
        threads[0].start()
        assert busy.wait(PATIENCE)
        threads[1].start()
        until(lambda: read_sample(metrics, "nakadi_sqlite_appends_waiting") == 1)
        bytes_waiting = read_sample(metrics, "nakadi_sqlite_bytes_waiting")
        free.set()
        for each in threads:
            each.join(PATIENCE)

    assert bytes_waiting == 0
    assert read_sample(metrics, "nakadi_sqlite_commit_appends_count") == 2


def test_work_on_the_archive_that_fails_is_counted(metrics):
    """A topic that could not be archived counts as a failure of archiving, and keeps waiting: its lag grows over all
    attempts until one succeeds."""

    class UnreachableStore(MemoryStore):
        reachable = False

        def put(self, key, content):
            if not self.reachable:
                raise Unavailable("on purpose")
            super().put(key, content)

    clock, store = HandMovedClock(), UnreachableStore()
    hot = MemoryLog(clock)
    hot.create_topic("t", 1)
    worker = ArchiveWorker(
        hot,
        MemoryLogIndex(),
        store,
        clock,
        OneTopicCatalog(),
        ArchivePolicy(hot_retention=0, unreferenced_grace=0),
        metrics,
    )
    run_blocking(hot.append("t", {0: [Record(b"{}")]}))
    worker.schedule_archiving("t", [0])
    for failures in (1, 2):
        clock.move(100)
        with pytest.raises(Unavailable):
            worker.archive_all()
        assert read_sample(metrics, "nakadi_archive_failures_total", operation="archiving") == failures
        assert read_sample(metrics, "nakadi_archive_partitions_waiting") == 1
        assert read_sample(metrics, "nakadi_archive_lag_seconds") == failures * 100
    store.reachable = True
    worker.archive_all()
    worker.stop()

    assert read_sample(metrics, "nakadi_archive_lag_seconds") == 0


class OneTopicCatalog:
    def topics(self):
        return [("t", 1)]

    def event_type_name_of(self, _topic):
        return "order.placed"

    def may_remove_records_from(self, _topic):
        return True


MISSING_SEGMENT = IndexSegment(
    state_before=IndexingState(next_offset=0),
    offset_count=1,
    first_stored_at=0,
    last_stored_at=0,
    location=ArchiveLocation("gone", 0, 10),
    event_count=1,
)


def test_segments_that_cannot_be_read_are_counted():
    """A read of a missing segment counts as a cache miss and as the last fault of its kind, and its location is
    named."""
    metrics = Metrics(now=lambda: 1000.0)
    with closing(SegmentCache(MemoryStore(), metrics=metrics)) as segment_cache, pytest.raises(UnreadableSegment):
        segment_cache.read_segment("t", 0, MISSING_SEGMENT)

    assert read_sample(metrics, "nakadi_archive_unreadable_total") == 1
    place = {"event_type": "t", "partition": "0", "offsets": "0-0", "object": "gone"}
    assert read_sample(metrics, "nakadi_archive_damaged_offsets", **place) == 1
    assert read_sample(metrics, "nakadi_last_fault_timestamp_seconds", metric="nakadi_archive_unreadable_total") == 1000
    assert read_sample(metrics, "nakadi_cache_misses_total", cache="archive") == 1


def test_reads_that_do_not_reach_the_archive_are_counted(metrics, tmp_path):
    """A read from an archive whose file system is not mounted counts as a failed read, and not as damage."""
    store = FolderStore(tmp_path / "archive")
    with closing(SegmentCache(store, metrics=metrics)) as segment_cache, pytest.raises(Unavailable):
        segment_cache.read_segment("t", 0, MISSING_SEGMENT)

    assert read_sample(metrics, "nakadi_archive_read_failures_total") == 1
    assert metrics.archive_damaged_offsets.rows() == {}


def test_renewals_that_fail_are_counted(metrics):
    """A lease that cannot be renewed counts as failed."""

    class SilentCoordination(MemoryCoordination):
        def renew_lease(self, _holder, _until):
            raise Unavailable("no")

    host = LeaseKeeper(SilentCoordination(), HandMovedClock(), metrics=metrics)
    with pytest.raises(Unavailable):
        host.renew()

    assert read_sample(metrics, "nakadi_lease_renewals_total", outcome="failed") == 1


def test_dead_letters_that_are_not_stored_are_counted(metrics):
    """A failed attempt to publish a dead letter is counted."""

    class NothingToDo:
        def ensure_exists(self, _name):
            pass

        def publish(self, *_args, **_more):
            raise Unavailable("no")

    letters = DeadLetterPublisher(
        system_event_types=NothingToDo(),
        publisher=NothingToDo(),
        clock=HandMovedClock(),
        event_type_name="dead",
        metrics=metrics,
    )
    with pytest.raises(Unavailable):
        letters.publish("subscription", a_drop())

    assert read_sample(metrics, "nakadi_dead_letters_total", outcome="failed") == 1


def a_drop():
    found = EventSlice((StoredEvent(0, Record(b"{}"), datetime(2026, 11, 21, tzinfo=UTC)),), 1)
    return GiveUpOnEvent(EventTypePartition("order", "0"), EventChunk(1, 0, found).run_from_offset(0), 3)


def test_sessions_of_dead_processes_are_counted(metrics):
    """Each stream that is removed because its process has no lease any more is counted."""
    clock, coordination = HandMovedClock(), MemoryCoordination()
    host = LeaseKeeper(coordination, clock, metrics=metrics)
    sessions = [
        a_session("mine", process_id=host.ensure_lease().process_id),
        a_session("theirs", process_id="a dead process"),
    ]
    new = an_assignment("mine", "theirs", sessions=sessions)
    offsets = {each.partition: Position(1, -1) for each in new.entries}
    members = SubscriptionSessions(coordination, "s", clock, lambda _subscription: None)
    assignment = coordination.replace_assignment("s", EMPTY_ASSIGNMENT, new, clock.now(), offsets)
    for _ in range(2):  # earlier reads are repeated once
        host.remove_expired_sessions([(members, assignment)])

    assert read_sample(metrics, "nakadi_dead_sessions_removed_total") == 1


# Waiting


def test_turns_that_are_waited_for_are_reported(metrics):
    """While one thread has its turn at long work, the threads that wait for a turn are counted."""
    turns = LongWorkQueue()
    metrics.turns_waiting.add_source(lambda: {("publishing",): turns.waiting_count})
    with turns.wait_for_turn(lambda: False):
        thread = threading.Thread(target=turn, args=(turns,))
        thread.start()
        until(lambda: read_sample(metrics, "nakadi_turns_waiting", work="publishing") == 1)
    thread.join(PATIENCE)

    assert read_sample(metrics, "nakadi_turns_waiting", work="publishing") == 0


def turn(turns):
    with turns.wait_for_turn(lambda: False):
        pass


def test_requests_in_work_are_reported_with_their_memory(metrics):
    """While all threads of a lane are busy, the requests that wait for one are counted, and so are the bytes of all
    bodies."""
    entered, free = threading.Event(), threading.Event()

    def answer_when_free(_request):
        entered.set()
        assert free.wait(PATIENCE)
        return empty_response()

    route = Route(
        method="POST",
        template="/x",
        handler=answer_when_free,
        operation="x",
        accepts_any_content_type=True,
        lane=Lane.EVENTS,
    )
    application = Application([route], lambda _: UNAUTHENTICATED)
    scope = {
        "type": "http",
        "method": "POST",
        "raw_path": b"/x",
        "query_string": b"",
        "headers": [(b"content-length", b"1000")],
    }

    async def receive():
        return {"type": "http.request", "body": b"x" * 1000}

    async def send(_message):
        pass

    async def run():
        edge = AsgiApplication(application, threads=1, metrics=metrics)
        requests = [asyncio.create_task(edge(scope, receive, send)) for _ in range(2)]
        assert await asyncio.to_thread(entered.wait, PATIENCE)
        await asyncio.to_thread(until, lambda: read_sample(metrics, "nakadi_http_requests_waiting", lane="events") == 1)
        taken = read_sample(metrics, "nakadi_http_request_memory_bytes")
        free.set()
        await asyncio.gather(*requests)
        edge.shut_down_threads()
        return taken

    assert asyncio.run(run()) >= 1000
    assert read_sample(metrics, "nakadi_http_request_memory_bytes") == 0


def test_index_lag_is_reported_once_it_was_measured():
    """The lag of the log indexer, if there is one, is reported as soon as housekeeping has measured it."""

    class LateIndexLog(MemoryLog):
        def measure_index_lag(self):
            return timedelta(seconds=7)

    clock = HandMovedClock()
    with closing(open_broker(Settings(), clock, wrap_log=lambda _: LateIndexLog(clock))) as broker:
        assert not broker.metrics.index_lag.rows()
        assert broker.run_housekeeping() == timedelta(seconds=7)
        assert read_sample(broker.metrics, "nakadi_index_lag_seconds") == 7


def test_what_was_counted_of_deleted_event_types_goes():
    """All metrics forget deleted event types, whose names make room for others; the sums over all event types stay."""
    metrics = Metrics(max_names=2)
    metrics.find_deleted = lambda names: [name for name in names if name.startswith("gone")]
    for name in ("gone", "order", "late"):
        metrics.stored(name, 1, 10)
        metrics.sent("low", name, 1, 10, 0.1)
        metrics.events_refused.add(1, name, "validating")
        metrics.events_deleted.add(1, name)
    metrics.forget_deleted_event_types()
    families = [metrics.events_published, metrics.published_bytes, metrics.events_refused, metrics.events_deleted]
    assert {labels[0] for family in families for labels in family.rows()} == {"order", "other"}
    assert set(metrics.events_sent.rows()) == {("low", "order"), ("low", "other")}
    assert dict(metrics.sent_bytes.rows()) == {("low",): 30}

    metrics.stored("late", 1, 10)
    assert dict(metrics.events_published.rows()) == {("order",): 1, ("other",): 1, ("late",): 1}

"""How far tables lag behind the archive, and when jobs are started."""

from contextlib import closing
from datetime import timedelta

import pytest

from nakadi.app.broker import open_broker
from nakadi.app.settings import Settings
from nakadi.common.caching import Cache
from nakadi.common.metrics import Metrics
from nakadi.engines.memory.log_index import MemoryLogIndex
from nakadi.engines.memory.registry import MemoryRegistry
from nakadi.event_types.compaction_guard import CompactionGuard
from nakadi.event_types.repository import EventTypes
from nakadi.event_types.table_lag import TABLE_JOB_STARTS_KIND, TableLagMonitor
from nakadi.event_types.table_objective import TableFreshness
from nakadi.event_types.table_states import (
    TABLE_STATES_KIND,
    LastRun,
    TableState,
    table_state_body,
    table_state_from_body,
)
from nakadi.model.events import OffsetBounds
from nakadi.model.log_index import ArchiveLocation, IndexHead, IndexingState, IndexSegment
from nakadi.model.objective import MinuteCounts, minute_of
from nakadi.ports.registry import PutDocument, RemoveDocument
from tests.support.builders import A_MOMENT, a_timeline, an_event_type
from tests.support.clock import HandMovedClock
from tests.support.metrics import collect_samples, sample_value

JOB = "nakadi-test-compaction"


class TableSetup:
    """Event types with archived events, some of which are in tables."""

    def __init__(self):
        self.clock = HandMovedClock(A_MOMENT)
        self.registry = MemoryRegistry()
        self.index = MemoryLogIndex()
        self.event_types = EventTypes(self.registry, Cache(self.clock, 0))
        self.lags = self.seen_by_jobs(always=False)

    def seen_by_jobs(self, *, always):
        return TableLagMonitor(
            event_types=self.event_types,
            registry=self.registry,
            log_index=self.index,
            clock=self.clock,
            measures_without_tables=always,
        )

    def event_type(self, name, **changes):
        made = an_event_type(name=name, id=name, timelines=(a_timeline(topic=name, partitions=2),), **changes)
        self.event_types.add(made)
        self.index.create_topic(name, 2)
        return made

    def archive_events(self, event_type, count, seconds_ago, partition=0):
        topic = event_type.timeline.topic
        head = self.index.index_heads([(topic, partition)])[topic, partition]
        at = round((self.clock.now().timestamp() - seconds_ago) * 1e6)
        segment = IndexSegment(
            state_before=head.state,
            offset_count=count,
            first_stored_at=at,
            last_stored_at=at,
            location=ArchiveLocation("log/o", 0, 1),
        )
        following = IndexHead(IndexingState(next_offset=head.state.next_offset + count, latest_stored_at=at))
        assert self.index.advance_head(topic, partition, head.revision, following, segment)

    def has(self, event_type, **following):
        state = TableState(
            table_name=event_type.name,
            next_offsets={(event_type.timeline.topic, int(name[1:])): offset for name, offset in following.items()},
            row_count=sum(following.values()),
            misfit_count=1,
            unreadable_count=2,
            updated_at=self.clock.now(),
            latency_seconds=12.5,
        )
        self.registry.write(PutDocument(TABLE_STATES_KIND, event_type.id, table_state_body(state)))
        return state


@pytest.fixture
def setup():
    return TableSetup()


def test_the_state_of_a_table_is_stored_completely(setup):
    """A job's findings are read as they were stored, and are found by the event type alone."""
    first = setup.event_type("a.b")
    state = setup.has(first, p0=5, p1=7)

    assert table_state_from_body(table_state_body(state)) == state
    assert setup.event_types.table_state(first) == state
    assert setup.event_types.table_state(an_event_type(name="a.b", id="another")) is None


def test_the_lag_is_the_age_of_the_oldest_event_that_is_in_no_table(setup):
    """Partitions and segments that are in a table do not count; segments beyond it do, and so do tables that do not
    exist yet."""
    behind, up_to_date, new = (setup.event_type(name) for name in ("behind", "up.to.date", "new"))
    off = setup.event_type("off", annotations={"datalake.zalando.org/materialize-events": "off"})
    for event_type in (behind, up_to_date, off):
        setup.archive_events(event_type, 3, 900)
        setup.archive_events(event_type, 3, 600)
        setup.archive_events(event_type, 3, 500, partition=1)
    setup.lags.measure()
    assert setup.lags.lag_seconds_by_event_type == {}, "where no job has run, nothing is late"

    setup.has(behind, p0=3, p1=3)
    setup.has(up_to_date, p0=6, p1=3)
    setup.lags.measure()
    assert setup.lags.lag_seconds_by_event_type == pytest.approx({"behind": 600, "up.to.date": 0, "new": 0})

    setup.has(behind, p0=1, p1=3)
    setup.archive_events(new, 1, 30)
    setup.lags.measure()
    assert setup.lags.lag_seconds_by_event_type == pytest.approx({"behind": 900, "up.to.date": 0, "new": 30})

    setup.event_types.remove(setup.event_types.get("behind"))
    setup.lags.measure()
    assert set(setup.lags.lag_seconds_by_event_type) == {"up.to.date", "new"}
    assert set(setup.lags.table_states_by_event_type) == {"up.to.date"}


def test_the_objective_of_a_table_is_measured_with_its_lag(setup):
    """For a table with an objective, the lag comes with the slowest partition and the pressure, also when one event
    type is asked for. Both are forgotten with the event type. (T15)
    """
    behind = setup.event_type("behind", annotations={"nakadi.io/table-objective": "99% within 10 minutes"})
    plain, no_table = (setup.event_type(name) for name in ("plain", "no.table"))
    for event_type in (behind, plain):
        setup.archive_events(event_type, 3, 900, partition=1)
        setup.archive_events(event_type, 3, 300)
        setup.has(event_type, p0=0)
    setup.lags.measure()

    assert setup.lags.objectives_by_event_type.keys() == {"behind"}
    status = setup.lags.objectives_by_event_type["behind"]
    assert (status.slowest.partition, status.slowest.lag_seconds) == ("1", pytest.approx(900))
    assert (status.pressure, setup.lags.greatest_pressure, setup.lags.greatest_burn_rate) == (1.5, 1.5, 0)
    assert setup.lags.objective_status(behind) == status
    assert setup.lags.objective_status(no_table) is None

    setup.has(behind, p0=3, p1=3)
    assert setup.lags.objective_status(behind).slowest is None
    assert setup.lags.objective_status(behind).pressure == 0
    setup.event_types.remove(setup.event_types.get("behind"))
    setup.lags.measure()
    assert setup.lags.objectives_by_event_type == {}


def test_events_that_are_gone_from_the_archive_are_not_waited_for(setup):
    """Events that retention removed before a job read them are in no table, and tables do not wait for them."""
    event_type = setup.event_type("forgotten")
    setup.has(event_type, p0=0)
    setup.archive_events(event_type, 3, 900)
    setup.index.drop_segments_before("forgotten", 0, 3)
    setup.lags.measure()

    assert setup.lags.lag_seconds_by_event_type == {"forgotten": 0}


def test_offsets_without_a_segment_are_passed_over(setup):
    """Offsets that were indexed but never archived count as if they were in the table: the event after them waits."""
    event_type = setup.event_type("holed")
    setup.archive_events(event_type, 3, 900)
    setup.has(event_type, p0=3)
    head = setup.index.index_heads([("holed", 0)])["holed", 0]
    assert setup.index.advance_head("holed", 0, head.revision, IndexHead(IndexingState(next_offset=5)), None)
    setup.archive_events(event_type, 1, 60)
    setup.lags.measure()

    assert setup.lags.lag_seconds_by_event_type == pytest.approx({"holed": 60})


def test_a_job_is_started_for_news_once_and_less_often_when_that_does_not_help(setup):
    """One of several processes starts the job; if a table stays behind, a job is started again after a quarter of the
    lag."""
    lags, others = setup.seen_by_jobs(always=True), setup.seen_by_jobs(always=True)
    event_type = setup.event_type("busy")

    def job_starts():
        for each in (lags, others):
            each.measure()
        return [each.claim_job_start(JOB, 600) for each in (lags, others)]

    assert job_starts() == [False, False], "without events"
    setup.archive_events(event_type, 1, 0)
    setup.clock.move(599)
    assert job_starts() == [False, False], "they do not wait for long yet"
    setup.clock.move(1)
    assert job_starts() == [True, False]
    setup.clock.move(599)
    assert job_starts() == [False, False]
    setup.clock.move(1)
    assert job_starts() == [True, False]

    setup.clock.move(4 * 3600)
    assert job_starts() == [True, False]
    setup.clock.move(3600)
    assert job_starts() == [False, False], "four hours behind, it is not tried each ten minutes"
    setup.clock.move(1600)
    assert job_starts() == [True, False]

    setup.has(event_type, p0=1)
    setup.clock.move(10_000)
    assert job_starts() == [False, False]


def test_only_one_of_two_processes_starts_a_job(setup):
    """If two processes want to start a job, a conditional write lets only one of them do it."""
    lags = setup.seen_by_jobs(always=True)
    setup.archive_events(setup.event_type("busy"), 1, 3600)
    lags.measure()

    class RegistryWithLateWrite(MemoryRegistry):
        """Another process starts the job between this process's read and its write."""

        def get(self, kind, key):
            found = setup.registry.get(kind, key)
            setup.registry.write(PutDocument(TABLE_JOB_STARTS_KIND, key, {"started_at": setup.clock.now().isoformat()}))
            return found

        def write(self, *changes):
            setup.registry.write(*changes)

    late = TableLagMonitor(
        event_types=setup.event_types,
        registry=RegistryWithLateWrite(),
        log_index=setup.index,
        clock=setup.clock,
        measures_without_tables=True,
    )
    late.lag_seconds_by_event_type.update(lags.lag_seconds_by_event_type)

    assert not late.claim_job_start(JOB, 600)
    setup.registry.write(RemoveDocument(TABLE_JOB_STARTS_KIND, JOB))
    assert lags.claim_job_start(JOB, 600)


def test_metrics_put_tables_without_a_name_of_their_own_together():
    """In metrics, tables beyond the limit on names share the name `other`: its lag is the greatest of theirs, and its
    rows are their sum.
    """
    metrics = Metrics(max_names=1)
    metrics.table_lag.add_named_source(lambda: {"a": 1.0, "b": 3.0, "c": 2.0})
    metrics.table_rows.add_named_source(lambda: {"a": 1.0, "b": 3.0, "c": 2.0})

    assert metrics.table_lag.rows() == {("a",): 1.0, ("other",): 3.0}
    assert metrics.table_rows.rows() == {("a",): 1.0, ("other",): 5.0}


def test_tables_are_counted_as_housekeeping_saw_them(tmp_path):
    """The process that does the housekeeping reports a job's notes about a table, its lag, and its objective. (T16)"""
    file = f"sqlite:///{tmp_path / 'nakadi.db'}"
    clock = HandMovedClock(A_MOMENT)
    with closing(open_broker(Settings(registry=file, event_log=file), clock)) as broker:
        annotations = {"nakadi.io/table-objective": "99% within 20 seconds"}
        event_type = an_event_type(name="a.b", timelines=(a_timeline(topic="a.b"),), annotations=annotations)
        broker.event_types.add(event_type)
        state = TableState(
            table_name="a_b",
            next_offsets={},
            row_count=5,
            misfit_count=2,
            unreadable_count=1,
            updated_at=clock.now(),
            latency_seconds=71.5,
            last_run=LastRun(ended_at=clock.now(), defects={"late": 3, "misfit": 2}),
            freshness=TableFreshness(20, clock.now(), (MinuteCounts(minute_of(clock.now()) - 90, 97, 3),)),
        )
        broker.registry.write(PutDocument(TABLE_STATES_KIND, event_type.id, table_state_body(state)))
        index = broker.table_lag_monitor.log_index
        index.create_topic("a.b", 1)
        at = round(clock.now().timestamp() * 1e6)
        segment = IndexSegment(
            state_before=IndexingState(),
            offset_count=1,
            first_stored_at=at,
            last_stored_at=at,
            location=ArchiveLocation("log/one", 0, 1),
        )
        index.advance_head("a.b", 0, 0, IndexHead(IndexingState(next_offset=1)), segment)
        clock.move(40)
        broker.run_housekeeping()

        for name, expected in (
            ("nakadi_table_lag_seconds", 40),
            ("nakadi_table_latency_seconds", 71.5),
            ("nakadi_table_rows", 5),
            ("nakadi_table_misfits", 2),
            ("nakadi_table_missing_events", 1),
            ("nakadi_table_objective_pressure", 2),
        ):
            assert sample_value(collect_samples(broker.metrics), name, event_type="a.b") == expected
        for minutes, expected in (("60", 0), ("1440", 3)):
            samples = collect_samples(broker.metrics)
            name = "nakadi_table_objective_burn_rate"
            assert sample_value(samples, name, event_type="a.b", minutes=minutes) == expected

        def defects():
            samples = collect_samples(broker.metrics)
            return [
                sample_value(samples, "nakadi_table_defects", event_type="a.b", kind=kind)
                for kind in ("late", "misfit")
            ]

        assert defects() == [3, 2]
        clock.move(3560)
        assert defects() == [3, 2]
        clock.move(1)
        assert not any(defects()), "they are reported for an hour"


def history_of(setup, event_type, next_offset, partition=0, hours=48):
    """How long ago, in seconds, the first event was stored that compaction must not touch; 0 if there is none."""

    class Log:
        def bounds(self, _topic, partitions):
            return {each: OffsetBounds(0, next_offset) for each in partitions}

    guard = CompactionGuard(event_types=setup.event_types, log_index=setup.index, longest_delay=timedelta(hours=hours))
    now = setup.clock.now()
    place = (event_type.timeline.topic, partition)
    return (now - guard.compactable_until(event_type, place, Log(), now)).total_seconds()


def test_compaction_leaves_events_alone_that_are_in_no_table(setup):
    """Compaction stops before the first event that the table does not have, and before events that are not archived
    yet."""
    event_type = setup.event_type("changed")
    for seconds_ago in (900, 600):
        setup.archive_events(event_type, 3, seconds_ago)

    assert history_of(setup, event_type, 6) == 900
    setup.has(event_type, p0=2)
    assert history_of(setup, event_type, 6) == 900
    setup.has(event_type, p0=3)
    assert history_of(setup, event_type, 6) == 600
    setup.has(event_type, p0=6)
    assert history_of(setup, event_type, 9) == 600
    assert history_of(setup, event_type, 6) == 0


def test_compaction_waits_only_where_there_can_be_a_table_and_not_for_ever(setup):
    """Compaction does not wait for event types without a table, for topics that are not archived, or if the setting is
    off."""
    event_type = setup.event_type("changed")
    setup.archive_events(event_type, 3, 49 * 3600)
    off = setup.event_type("off", annotations={"datalake.zalando.org/materialize-events": "off"})
    setup.archive_events(off, 3, 900)
    unknown = an_event_type(name="unknown", id="unknown", timelines=(a_timeline(topic="unknown", partitions=1),))

    assert history_of(setup, event_type, 3) == 48 * 3600
    assert history_of(setup, event_type, 3, partition=1) == 48 * 3600, "nothing of it is archived yet"
    assert history_of(setup, event_type, 3, hours=0) == 0
    assert history_of(setup, off, 3) == 0
    assert history_of(setup, unknown, 3) == 0

from datetime import timedelta

import pytest
from msgspec.structs import replace

from nakadi.app.broker import open_broker
from nakadi.app.settings import Settings
from nakadi.common.chores import failed_chore_counts
from nakadi.common.waiting import run_blocking
from nakadi.event_types.housekeeping import COMPACTION_LAG, expired_timelines
from nakadi.http.metrics_json import metrics_view
from nakadi.model.authorization import UNAUTHENTICATED
from nakadi.model.event_type import Category, CleanupPolicy, EnrichmentStrategy
from nakadi.model.events import Record
from nakadi.model.outcomes import Unavailable
from nakadi.ports.event_log import UnknownTopic
from nakadi.ports.registry import PutDocument
from tests.support.builders import A_MOMENT, a_timeline, an_event_type
from tests.support.clock import HandMovedClock
from tests.support.logs import records_of_this_thread

HOUR = 3600.0
RETENTION = timedelta(hours=3)


@pytest.fixture
def clock():
    return HandMovedClock()


@pytest.fixture
def broker(clock):
    broker = open_broker(Settings(), clock)
    yield broker
    broker.close()


def register(broker, **changes):
    event_type = an_event_type(retention_time=int(RETENTION.total_seconds() * 1000), **changes)
    broker.logs.for_storage("default").create_topic(event_type.timeline.topic, event_type.timeline.partitions)
    broker.event_types.add(event_type)
    return broker.event_types.get(event_type.name)


def append(broker, event_type, *records):
    run_blocking(broker.logs.for_storage("default").append(event_type.timeline.topic, {0: records}))


def values(broker, event_type):
    event_log, topic = broker.logs.for_storage("default"), event_type.timeline.topic
    oldest = event_log.bounds(topic, [0])[0].oldest
    return [each.record.value for each in event_log.read(topic, 0, oldest).events]


def test_events_are_removed_after_their_retention_time(broker, clock):
    """Events that are older than the retention time are removed; younger ones are kept. (R128)"""
    event_type = register(broker)
    append(broker, event_type, Record(b"old"))
    clock.move(2 * HOUR)
    append(broker, event_type, Record(b"young"))
    clock.move(2 * HOUR)

    broker.housekeeping.run()

    assert values(broker, event_type) == [b"young"]


def test_partitions_are_trimmed_as_often_as_their_retention_time_needs(broker, clock, monkeypatch):
    """A round skips the partitions that it has trimmed within a hundredth of their retention time. A trim that fails is
    due in the next round, and a deleted partition is forgotten. (R128)"""
    event_type, event_log = register(broker), broker.logs.for_storage("default")
    trims, trim = [], event_log.trim
    failures = []

    def observed_trim(topic, *arguments):
        if topic == event_type.timeline.topic:
            trims.append(clock.monotonic())
            if failures:
                raise failures.pop()
            trim(topic, *arguments)

    monkeypatch.setattr(event_log, "trim", observed_trim)
    began = clock.monotonic()
    for _ in range(5):
        broker.housekeeping.run()
        clock.move(0.004 * RETENTION.total_seconds())
    assert [round((each - began) / RETENTION.total_seconds(), 3) for each in trims] == [0, 0.012]

    failures.append(Unavailable("not now"))
    clock.move(0.01 * RETENTION.total_seconds())
    for _ in range(3):
        broker.housekeeping.run()
    assert len(trims) == 4

    broker.event_types.remove(event_type)
    broker.housekeeping.run()
    assert event_type.timeline.topic not in {topic for topic, _ in broker.housekeeping.trimmed_at}


@pytest.mark.parametrize(
    ("policy", "left"),
    [
        (CleanupPolicy.DELETE, []),
        (CleanupPolicy.COMPACT, [b"a2", b"b1"]),
        (CleanupPolicy.COMPACT_AND_DELETE, []),
    ],
)
def test_each_cleanup_policy_removes_its_events(broker, clock, policy, left):
    """After the retention time, only a purely compacted event type still has events: the newest event of each key.
    (P97)"""
    event_type = register(
        broker,
        category=Category.BUSINESS,
        enrichment_strategies=(EnrichmentStrategy.METADATA,),
        cleanup_policy=policy,
    )
    append(broker, event_type, Record(b"a1", key="a"), Record(b"a2", key="a"), Record(b"b1", key="b"))
    clock.move(4 * HOUR)

    broker.housekeeping.run()

    assert values(broker, event_type) == left


def test_new_events_are_not_compacted_yet(broker, clock):
    """A reader close behind the newest event sees every event, even if there is a newer one with the same key. (P97,
    P144)"""
    event_type = register(broker, category=Category.BUSINESS, cleanup_policy=CleanupPolicy.COMPACT)
    append(broker, event_type, Record(b"a1", key="a"), Record(b"a2", key="a"), Record(b"b1", key="b"))

    broker.housekeeping.run()
    assert values(broker, event_type) == [b"a1", b"a2", b"b1"]
    clock.move(COMPACTION_LAG.total_seconds() + 1)
    broker.housekeeping.run()

    assert values(broker, event_type) == [b"a2", b"b1"]


def test_a_closed_timeline_is_removed_as_a_whole(broker, clock):
    """When a closed timeline has been kept for as long as promised, its topic is removed and the timeline is marked as
    deleted. (R243)"""
    event_type = register(broker)
    append(broker, event_type, Record(b"1"))
    broker.timelines.move_to_new_timeline(event_type.name, "default", UNAUTHENTICATED)
    clock.move(3 * HOUR + 1)

    broker.housekeeping.run()

    old, new = broker.event_types.get(event_type.name).timelines
    assert (old.deleted, new.deleted) == (True, False)
    with pytest.raises(UnknownTopic):
        broker.logs.for_storage("default").read(old.topic, 0, 0)
    assert broker.registry.list("leftovers") == []


def test_only_closed_timelines_expire():
    """A timeline expires once, at the time that was set when it was closed."""
    due = a_timeline(cleaned_up_at=A_MOMENT, latest_positions={})
    later = a_timeline(cleaned_up_at=A_MOMENT + timedelta(seconds=1), latest_positions={})
    gone = replace(due, deleted=True)
    event_type = an_event_type(timelines=(gone, due, later, a_timeline()))

    assert expired_timelines(event_type, A_MOMENT) == (due,)


def test_a_failed_removal_is_repeated_later(broker, monkeypatch):
    """A deletion succeeds even if the events cannot be removed at once; housekeeping removes them. (R131, R134)"""
    event_type = register(broker)
    append(broker, event_type, Record(b"1"))
    event_log = broker.logs.for_storage("default")

    def out_of_reach(_topic):
        raise Unavailable("not now")

    with monkeypatch.context() as patch:
        patch.setattr(event_log, "delete_topic", out_of_reach)
        broker.registration.deletion.delete(event_type.name, UNAUTHENTICATED)
    assert broker.event_types.find(event_type.name) is None
    assert values(broker, event_type) == [b"1"]

    broker.housekeeping.run()

    with pytest.raises(UnknownTopic):
        event_log.read(event_type.timeline.topic, 0, 0)
    assert broker.registry.list("leftovers") == []
    assert broker.registry.list("schemas", prefix=f"{event_type.id}/") == []


def test_a_failure_of_one_event_type_does_not_stop_the_others(broker, clock, monkeypatch):
    """If a round of housekeeping fails for one event type, it continues with the others."""
    broken, fine = register(broker, name="a.broken"), register(broker, name="b.fine")
    append(broker, fine, Record(b"old"))
    clock.move(4 * HOUR)
    event_log = broker.logs.for_storage("default")
    trim = event_log.trim

    def fails_for_one(topic, partition, before):
        if topic == broken.timeline.topic:
            raise Unavailable("not now")
        trim(topic, partition, before)

    monkeypatch.setattr(event_log, "trim", fails_for_one)

    broker.housekeeping.run()

    assert values(broker, fine) == []


def test_an_event_type_that_is_deleted_during_a_round_is_no_failure(broker, clock, monkeypatch, caplog):
    """If an event type is deleted during a round, the round continues with the others and reports no failure: nothing
    is left to do."""
    doomed, fine = register(broker, name="a.doomed", partitions=2), register(broker, name="b.fine")
    append(broker, fine, Record(b"old"))
    clock.move(4 * HOUR)
    event_log = broker.logs.for_storage("default")
    trim = event_log.trim

    def deleted_before(topic, partition, before):
        if topic == doomed.timeline.topic and broker.event_types.find("a.doomed"):
            broker.registration.deletion.delete("a.doomed", UNAUTHENTICATED)
        trim(topic, partition, before)

    monkeypatch.setattr(event_log, "trim", deleted_before)
    before = failed_chore_counts()

    broker.housekeeping.run()

    assert values(broker, fine) == []
    assert failed_chore_counts() == before
    assert [each for each in records_of_this_thread(caplog) if each.levelname == "WARNING"] == []


@pytest.mark.parametrize("error", [Unavailable("not now"), UnknownTopic("lost"), KeyError("damaged"), OSError("disk")])
def test_a_failure_is_logged_with_operation_thing_and_cause(broker, clock, monkeypatch, caplog, error):
    """Any failure in a round ends only its own step: the next partition of the same event type is still processed, and
    the log and the metrics record the failure."""
    event_type = register(broker, name="a.broken", partitions=2)
    event_log = broker.logs.for_storage("default")
    for partition in range(2):
        run_blocking(event_log.append(event_type.timeline.topic, {partition: [Record(b"old")]}))
    clock.move(4 * HOUR)
    trim = event_log.trim

    def fails_for_one(topic, partition, before):
        if (topic, partition) == (event_type.timeline.topic, 0):
            raise error
        trim(topic, partition, before)

    monkeypatch.setattr(event_log, "trim", fails_for_one)
    before = failed_chore_counts().get("retention", 0)

    broker.housekeeping.run()

    assert [each.oldest for each in event_log.bounds(event_type.timeline.topic, [0, 1]).values()] == [0, 1]
    assert f"The retention of a.broken failed, trying again later: {error!r}" in caplog.text
    assert failed_chore_counts()["retention"] == before + 1
    assert metrics_view(broker.metrics, 0)["counters"]["nakadi.chores.failed.retention"]["count"] == before + 1


def test_a_failed_removal_does_not_stop_the_others(broker, monkeypatch):
    """If the remains of one deleted event type or subscription cannot be cleared, the remains of the others are still
    cleared."""
    event_log = broker.logs.for_storage("default")
    event_types = [register(broker, name=name) for name in ("a", "b", "c")]
    with monkeypatch.context() as patch:
        patch.setattr(event_log, "delete_topic", lambda _: record_error(Unavailable("not now")))
        for each in event_types:
            broker.registration.deletion.delete(each.name, UNAUTHENTICATED)
    broker.registry.write(*(PutDocument("subscription-leftovers", name, {}) for name in "abc"))
    delete_topic, forget = event_log.delete_topic, broker.coordination.remove_subscription_state
    monkeypatch.setattr(
        event_log,
        "delete_topic",
        lambda topic: record_error(OSError("disk")) if topic == event_types[0].timeline.topic else delete_topic(topic),
    )
    monkeypatch.setattr(
        broker.coordination,
        "remove_subscription_state",
        lambda name: record_error(KeyError(name)) if name == "a" else forget(name),
    )

    broker.housekeeping.run()

    assert [note.key for note in broker.registry.list("leftovers")] == [event_types[0].id]
    assert [note.key for note in broker.registry.list("subscription-leftovers")] == ["a"]


def test_a_round_that_is_stopped_ends_after_its_step(broker, monkeypatch):
    """Closing the broker does not wait for a round over all event types, and the stopped round is not a failure."""
    for name in "abc":
        register(broker, name=name)
    event_log = broker.logs.for_storage("default")
    trimmed = []
    monkeypatch.setattr(event_log, "trim", lambda topic, *_: (trimmed.append(topic), broker.housekeeping.stop()))
    before = failed_chore_counts()

    broker.housekeeping.run()

    assert len(trimmed) == 1
    assert failed_chore_counts() == before


def record_error(error):
    raise error

"""Events that the stream forgot before they were indexed: a new timeline announces the gap, and no offset is given
twice."""

import json

import pytest
from msgspec.structs import replace

from nakadi.common.waiting import run_blocking
from nakadi.event_types.positions import count_events_between, next_event_location
from nakadi.event_types.system_event_type_definitions import AUDIT_LOG
from nakadi.event_types.timelines import next_timeline
from nakadi.http.views import timeline_view
from nakadi.model.authorization import UNAUTHENTICATED, Feature
from nakadi.model.event_type import Cursor, Position
from nakadi.model.events import Record
from nakadi.model.outcomes import Unavailable
from nakadi.ports.event_log import UnknownTopic
from tests.support.kinesis_hours import HoursOfKinesis, run_in_hours


@pytest.fixture(params=[False, True], ids=["lenient", "strict"])
def kinesis_hours(request):
    with run_in_hours(strict=request.param) as kinesis_hours:
        yield kinesis_hours


@pytest.fixture
def name(kinesis_hours: HoursOfKinesis) -> str:
    return kinesis_hours.an_event_type("orders")


def publish(kinesis_hours: HoursOfKinesis, name: str, *values: int, partition: int = 0) -> None:
    topic = kinesis_hours.broker.event_types.get(name).timeline.topic
    for value in values:
        run_blocking(
            kinesis_hours.broker.logs.for_storage("default").append(topic, {partition: [Record(b"%d" % value)]})
        )


def follow(
    kinesis_hours: HoursOfKinesis, name: str, log, after: Position, partition: int = 0
) -> list[tuple[Position, int]]:
    """The events that a consumer gets after its position, in the event type's current timelines."""
    event_type = kinesis_hours.broker.event_types.get(name)
    found = []
    while True:
        timeline, offset = next_event_location(event_type, after, partition)
        piece = log.read(timeline.topic, partition, offset)
        if piece.next_offset == offset:
            return found
        after = Position(timeline.order, piece.next_offset - 1)
        found += [(Position(timeline.order, each.offset), int(each.record.value or b"")) for each in piece.events]


def values(found: list[tuple[Position, int]]) -> list[int]:
    return [value for _, value in found]


def test_a_consumer_that_is_ahead_of_the_index_misses_nothing_behind_a_gap(kinesis_hours: HoursOfKinesis, name: str):
    """Events up to 4 are indexed and events up to 9 delivered, but 5 and 6 are forgotten: the consumer's next events
    are those from 7 on, in a new timeline.
    """
    publish(kinesis_hours, name, *range(5))
    kinesis_hours.index_all()
    publish(kinesis_hours, name, 5, 6)
    task = kinesis_hours.a_log()
    kinesis_hours.pass_by(2)
    publish(kinesis_hours, name, 7, 8, 9)
    delivered = follow(kinesis_hours, name, task, Position(1, -1))
    assert delivered == [(Position(1, number), number) for number in range(10)]
    kinesis_hours.pass_by(22.5)

    with pytest.raises(Unavailable):
        kinesis_hours.index_all()
    with pytest.raises(Unavailable):
        follow(kinesis_hours, name, kinesis_hours.a_log(), Position(1, 9))
    kinesis_hours.broker.housekeeping.run()
    publish(kinesis_hours, name, 10, 11)
    kinesis_hours.index_all()

    for log in (task, kinesis_hours.a_log()):
        assert follow(kinesis_hours, name, log, Position(1, 9)) == [
            (Position(2, offset), number) for offset, number in enumerate(range(7, 12))
        ]
        assert values(follow(kinesis_hours, name, log, Position(1, -1))) == [0, 1, 2, 3, 4, 7, 8, 9, 10, 11]
    old, new = kinesis_hours.broker.event_types.get(name).timelines
    assert (old.latest_positions, new.after_loss, new.order) == ({0: 4}, True, 2)


def test_with_nothing_indexed_what_is_left_is_in_a_new_timeline(kinesis_hours: HoursOfKinesis, name: str):
    """When no event was ever indexed, consumers that had the first events continue with the remaining ones."""
    kinesis_hours.broker.housekeeping.run()
    publish(kinesis_hours, name, 0, 1)
    kinesis_hours.pass_by(2)
    publish(kinesis_hours, name, 2, 3)
    kinesis_hours.pass_by(22.5)
    kinesis_hours.broker.housekeeping.run()
    publish(kinesis_hours, name, 4)
    kinesis_hours.index_all()

    assert follow(kinesis_hours, name, kinesis_hours.a_log(), Position(1, 3)) == [
        (Position(2, at), at + 2) for at in range(3)
    ]


def test_an_idle_shard_is_no_gap(kinesis_hours: HoursOfKinesis, name: str):
    """Housekeeping records that no event waits to be indexed: after days without events, offsets continue where they
    were.
    """
    publish(kinesis_hours, name, 0, 1)
    kinesis_hours.index_all()
    for _ in range(8):
        kinesis_hours.pass_by(12)
        kinesis_hours.broker.housekeeping.run()
    publish(kinesis_hours, name, 2)
    kinesis_hours.index_all()

    assert follow(kinesis_hours, name, kinesis_hours.a_log(), Position(1, 1)) == [(Position(1, 2), 2)]


def test_a_shard_that_was_forgotten_whole_is_a_gap(kinesis_hours: HoursOfKinesis, name: str):
    """A shard that split, and left the stream before it was indexed to its end, has lost its remaining events."""
    publish(kinesis_hours, name, 0)
    kinesis_hours.index_all()
    publish(kinesis_hours, name, 1)
    kinesis_hours.kinesis.split(kinesis_hours.kinesis.open()[0])
    kinesis_hours.broker.housekeeping.run()
    kinesis_hours.pass_by(20)
    publish(kinesis_hours, name, 2)
    kinesis_hours.pass_by(4.5)

    with pytest.raises(Unavailable):
        kinesis_hours.index_all()
    kinesis_hours.broker.housekeeping.run()
    kinesis_hours.index_all()
    assert follow(kinesis_hours, name, kinesis_hours.a_log(), Position(1, 1)) == [(Position(2, 0), 2)]


def test_publishers_that_know_of_no_new_timeline_lose_nothing(kinesis_hours: HoursOfKinesis, name: str):
    """Events that are appended to a topic that another topic continues are stored in the other topic, even after the
    first one is deleted.
    """
    old = kinesis_hours.broker.event_types.get(name).timeline.topic
    lose_some(kinesis_hours, name)
    log = kinesis_hours.broker.logs.for_storage("default")
    run_blocking(log.append(old, {0: [Record(b"10")]}))
    log.delete_topic(old)
    kinesis_hours.pass_by(0.1)
    run_blocking(log.append(old, {0: [Record(b"11")]}))
    kinesis_hours.index_all()

    assert values(follow(kinesis_hours, name, kinesis_hours.a_log(), Position(1, 9)))[-2:] == [10, 11]
    with pytest.raises(UnknownTopic):
        kinesis_hours.a_log().read(old, 0, 0)


def test_a_closed_timeline_keeps_the_offsets_of_what_is_left(kinesis_hours: HoursOfKinesis, name: str):
    """The end of a closed timeline is known, so its remaining events are counted backwards from the end, and lost ones
    are skipped.
    """
    publish(kinesis_hours, name, *range(5))
    kinesis_hours.index_all()
    publish(kinesis_hours, name, 5, 6)
    kinesis_hours.pass_by(2)
    publish(kinesis_hours, name, 7, 8, 9)
    kinesis_hours.broker.timelines.move_to_new_timeline(name, "default", UNAUTHENTICATED)
    publish(kinesis_hours, name, 10)
    kinesis_hours.pass_by(22.5)
    kinesis_hours.broker.housekeeping.run()
    kinesis_hours.index_all()

    found = follow(kinesis_hours, name, kinesis_hours.a_log(), Position(1, 3))
    assert found[:4] == [(Position(1, number), number) for number in (4, 7, 8, 9)]
    assert values(found[4:]) == [10]


def test_a_switch_that_was_cut_short_goes_on_from_the_new_timeline(kinesis_hours: HoursOfKinesis, name: str):
    """If a switch was cut short after it had announced its timeline, the timeline for the gap comes before the
    announced one, in which publishing continues.
    """
    event_type = kinesis_hours.broker.event_types.get(name)
    announced = next_timeline(event_type, "default", kinesis_hours.broker.clock.now())
    kinesis_hours.broker.logs.for_storage("default").create_topic(announced.topic, 1)
    kinesis_hours.broker.event_types.replace(event_type, replace(event_type, switching_to=announced))
    lose_some(kinesis_hours, name)

    found = kinesis_hours.broker.event_types.get(name)
    assert found.switching_to is None
    assert [(each.order, each.after_loss, each.closed) for each in found.timelines] == [
        (1, False, True),
        (2, True, True),
        (3, False, False),
    ]
    assert values(follow(kinesis_hours, name, kinesis_hours.a_log(), Position(1, 9))) == [7, 8, 9]


def test_an_event_type_that_lost_nothing_keeps_its_timeline(kinesis_hours: HoursOfKinesis):
    """A gap in one shard does not affect event types whose events are in other shards."""
    kinesis_hours.kinesis.split(kinesis_hours.kinesis.open()[0])
    kinesis_hours.broker.housekeeping.run()
    names = [kinesis_hours.an_event_type(f"type-{number}") for number in range(4)]
    for each in names:
        publish(kinesis_hours, each, 1)
    low, _ = kinesis_hours.kinesis.open()
    kinesis_hours.pass_by(2)
    for each in names:
        publish(kinesis_hours, each, 2)
    kinesis_hours.an_indexer().catch_up(low.id)
    kinesis_hours.pass_by(22.5)
    kinesis_hours.broker.housekeeping.run()

    lost = {each for each in names if len(kinesis_hours.broker.event_types.get(each).timelines) == 2}
    assert 0 < len(lost) < len(names)
    kinesis_hours.index_all()
    for each in names:
        assert values(follow(kinesis_hours, each, kinesis_hours.a_log(), Position(1, -1))) == (
            [2] if each in lost else [1, 2]
        )


def test_a_consumer_of_the_live_end_goes_on_without_an_error_it_cannot_explain(
    kinesis_hours: HoursOfKinesis, name: str
):
    """A consumer at an offset beyond the end of its timeline gets a temporary error, and then continues at the start of
    the next timeline.
    """
    old = kinesis_hours.broker.event_types.get(name).timeline.topic
    lose_some(kinesis_hours, name)

    with pytest.raises(Unavailable):
        kinesis_hours.a_log().read(old, 0, 10)
    cursors = kinesis_hours.broker.cursor_resolver
    event_type = kinesis_hours.broker.event_types.get(name)
    cursors.check_readable(event_type, "0", Position(1, 9))
    assert cursors.resolve(event_type, Cursor("0", "001-0001-000000000000000009")) == Position(2, -1)
    assert count_events_between(event_type, "0", Position(1, 9), Position(2, 2)) == 3


def test_what_happened_is_reported(kinesis_hours: HoursOfKinesis, name: str, caplog):
    """The log and the audit log record new timelines, and the list of timelines gives the reason."""
    kinesis_hours.broker.features.switch(Feature.AUDIT_LOG_COLLECTION, on=True)
    kinesis_hours.broker.system_event_types.create_missing()
    lose_some(kinesis_hours, name)

    assert kinesis_hours.broker.lost_events_recovery.gap_count == 1
    assert f"Event type {name} may have lost events" in caplog.text
    shown = [timeline_view(each, name) for each in kinesis_hours.broker.event_types.get(name).timelines]
    assert [each.get("after_loss") for each in shown] == [None, True]
    kinesis_hours.index_all()
    told = [
        json.loads(event)["data"]
        for event in values_of(kinesis_hours, AUDIT_LOG)
        if json.loads(event)["data"]["resource_id"] == name
    ]
    assert [(each["resource_type"], each["user"]) for each in told] == [("timeline", "nakadi")]
    assert [each.get("after_loss") for each in told[0]["new_object"]] == [None, True]


def lose_some(kinesis_hours: HoursOfKinesis, name: str) -> None:
    """Store ten events; the stream forgets the sixth and the seventh before they are indexed, and keeps the last
    three.
    """
    publish(kinesis_hours, name, *range(5))
    kinesis_hours.index_all()
    publish(kinesis_hours, name, 5, 6)
    kinesis_hours.pass_by(2)
    publish(kinesis_hours, name, 7, 8, 9)
    kinesis_hours.pass_by(22.5)
    kinesis_hours.broker.housekeeping.run()


def values_of(kinesis_hours: HoursOfKinesis, name: str) -> list[bytes]:
    event_type = kinesis_hours.broker.event_types.get(name)
    log = kinesis_hours.a_log()
    timeline = event_type.timeline
    return [
        event.record.value or b""
        for partition in range(timeline.partitions)
        for event in log.read(timeline.topic, partition, 0).events
    ]


@pytest.mark.parametrize("later", [0.1, 30], ids=["at once", "when the shards between are gone"])
def test_a_reader_follows_shards_that_split_and_merge_between_two_reads(
    kinesis_hours: HoursOfKinesis, name: str, later: float
):
    """A reader of a shard counts the events of all the shards that follow it, although the index already has them."""
    publish(kinesis_hours, name, 0)
    task = kinesis_hours.a_log()
    assert values(follow(kinesis_hours, name, task, Position(1, -1))) == [0]
    other = kinesis_hours.an_event_type("other", partitions=8)
    for number in (1, 2, 3):
        if number == 2:
            kinesis_hours.kinesis.merge(*kinesis_hours.kinesis.open())
        else:
            kinesis_hours.kinesis.split(kinesis_hours.kinesis.open()[0])
        publish(kinesis_hours, name, number)
        kinesis_hours.index_all()
        kinesis_hours.broker.housekeeping.run()
    for _ in range(int(later)):
        kinesis_hours.pass_by(1)
        kinesis_hours.broker.housekeeping.run()
        follow(kinesis_hours, other, task, Position(1, -1))

    assert follow(kinesis_hours, name, task, Position(1, 0)) == [(Position(1, number), number) for number in (1, 2, 3)]
    publish(kinesis_hours, name, 4)
    assert follow(kinesis_hours, name, task, Position(1, 3)) == [(Position(1, 4), 4)]

from datetime import timedelta

import pytest
from msgspec.structs import replace

from nakadi.app.broker import open_broker
from nakadi.app.settings import Settings
from nakadi.common.waiting import run_blocking
from nakadi.event_types.timelines import (
    SWITCH_ABANDONED_AFTER,
    is_switch_abandoned,
    next_timeline,
    with_completed_switch,
)
from nakadi.model.authorization import UNAUTHENTICATED
from nakadi.model.event_type import Category, EventTypeDraft, SchemaDraft, SchemaType, Storage, StorageType
from nakadi.model.events import Record
from nakadi.model.outcomes import Conflict, NotFound, TryLater, Unavailable
from nakadi.ports.event_log import SealedTopic, UnknownTopic
from nakadi.ports.registry import PutDocument
from tests.support.builders import A_MOMENT, an_event_type
from tests.support.clock import HandMovedClock
from tests.support.registry import WriteFate, act_before_next_writes, let_next_writes_fail
from tests.support.storages import recorded_topics


@pytest.fixture
def clock():
    return HandMovedClock()


@pytest.fixture
def broker(clock):
    broker = open_broker(Settings(), clock)
    yield broker
    broker.close()


@pytest.fixture
def event_type(broker):
    """A registered event type with two events in its first partition."""
    event_type = an_event_type(partitions=2)
    broker.logs.for_storage("default").create_topic(event_type.timeline.topic, 2)
    broker.event_types.add(event_type)
    run_blocking(
        broker.logs.for_storage("default").append(event_type.timeline.topic, {0: [Record(b"1"), Record(b"2")]})
    )
    return broker.event_types.get(event_type.name)


def test_the_next_timeline_follows(event_type):
    """The next timeline has the next order, a topic of its own, and as many partitions as the one before it. (R243)"""
    following = next_timeline(event_type, "other", A_MOMENT)

    assert (following.order, following.partitions, following.storage_id) == (2, 2, "other")
    assert following.topic != event_type.timeline.topic
    assert following.switched_at is None


def test_a_switch_closes_the_old_timeline(event_type):
    """The closed timeline has its last offsets, and the time until which its events are kept. (R243)"""
    announced = replace(event_type, switching_to=next_timeline(event_type, "default", A_MOMENT))

    result = with_completed_switch(announced, {0: 1, 1: -1}, A_MOMENT)

    old, new = result.timelines
    assert old.latest_positions == {0: 1, 1: -1}
    assert old.cleaned_up_at == A_MOMENT + timedelta(milliseconds=event_type.retention_time)
    assert new.switched_at == A_MOMENT
    assert result.switching_to is None


def test_after_a_switch_the_old_topic_is_closed(broker, event_type):
    """Events are written to the new timeline; the old one accepts no more. (R243)"""
    broker.timelines.move_to_new_timeline(event_type.name, "default", UNAUTHENTICATED)

    old, new = broker.event_types.get(event_type.name).timelines
    with pytest.raises(SealedTopic):
        run_blocking(broker.logs.for_storage("default").append(old.topic, {0: [Record(b"3")]}))
    run_blocking(broker.logs.for_storage("default").append(new.topic, {0: [Record(b"3")]}))
    assert old.latest_positions == {0: 1, 1: -1}


def test_one_switch_at_a_time(broker, event_type):
    """While a timeline is being created, the request for another one is a conflict. (R242)"""
    announced = replace(event_type, switching_to=next_timeline(event_type, "default", broker.clock.now()))
    broker.event_types.replace(event_type, announced)

    with pytest.raises(Conflict, match=f"Timeline is already being created for: {event_type.name}"):
        broker.timelines.move_to_new_timeline(event_type.name, "default", UNAUTHENTICATED)


def test_an_interrupted_switch_is_finished(broker, event_type, clock):
    """Housekeeping completes a switch whose process died after the switch had begun."""
    following = next_timeline(event_type, "default", clock.now())
    broker.logs.for_storage("default").create_topic(following.topic, following.partitions)
    broker.event_types.replace(event_type, replace(event_type, switching_to=following))

    broker.housekeeping.run()
    assert len(broker.event_types.get(event_type.name).timelines) == 1
    clock.move(SWITCH_ABANDONED_AFTER.total_seconds() + 1)
    broker.housekeeping.run()

    assert len(broker.event_types.get(event_type.name).timelines) == 2
    assert broker.event_types.get(event_type.name).switching_to is None


def test_the_next_switch_finishes_an_interrupted_one(broker, event_type, clock):
    """After 30 seconds, a switch whose process died blocks no other: the next request finishes it, and begins its own.
    (R242)
    """
    following = next_timeline(event_type, "default", clock.now())
    broker.logs.for_storage("default").create_topic(following.topic, following.partitions)
    broker.event_types.replace(event_type, replace(event_type, switching_to=following))
    clock.move(SWITCH_ABANDONED_AFTER.total_seconds() + 1)

    broker.timelines.move_to_new_timeline(event_type.name, "default", UNAUTHENTICATED)

    found = broker.event_types.get(event_type.name)
    assert found.switching_to is None
    first, second, third = found.timelines
    assert (first.closed, second.closed, third.closed) == (True, True, False)
    assert second.topic == following.topic


def test_a_switch_in_progress_is_not_finished_by_others(event_type):
    """Only a switch that has taken much too long counts as interrupted."""
    announced = replace(event_type, switching_to=next_timeline(event_type, "default", A_MOMENT))

    assert not is_switch_abandoned(event_type, A_MOMENT + timedelta(days=1))
    assert not is_switch_abandoned(announced, A_MOMENT + SWITCH_ABANDONED_AFTER)
    assert is_switch_abandoned(announced, A_MOMENT + SWITCH_ABANDONED_AFTER + timedelta(seconds=1))


def test_a_switch_begun_in_the_future_counts_as_interrupted(event_type):
    """A switch that was interrupted before the clock was set back is completed by the next process, not an hour later:
    until then, publishers find the topic closed."""
    announced = replace(event_type, switching_to=next_timeline(event_type, "default", A_MOMENT))

    assert is_switch_abandoned(announced, A_MOMENT - timedelta(hours=1))


def test_a_storage_out_of_reach_changes_nothing(broker, event_type):
    """If the new storage does not answer, events keep going to the old timeline. (R242)"""
    added = {"type": "kinesis", "configuration": {"stream": "s"}, "closed": False}
    broker.registry.write(PutDocument("storages", "far", added))
    with pytest.raises(Unavailable):
        broker.timelines.move_to_new_timeline(event_type.name, "far", UNAUTHENTICATED)

    topic = broker.event_types.get(event_type.name).timeline.topic
    assert topic == event_type.timeline.topic
    run_blocking(broker.logs.for_storage("default").append(topic, {0: [Record(b"3")]}))
    assert broker.event_types.get(event_type.name).switching_to is None


def change_label(broker, name):
    """The event type's owner changes one of its labels."""
    old = broker.event_types.get(name)
    broker.event_types.replace(old, replace(old, labels={"a": str(old.revision)}))


@pytest.mark.parametrize("before", [0, 1])
def test_a_change_of_the_event_type_does_not_break_a_switch(broker, event_type, before):
    """An owner may change the event type at any time during a switch: both the change and the switch take effect.
    (R242, R243)"""
    name = event_type.name
    act_before_next_writes(broker.registry, *[lambda: None] * before, lambda: change_label(broker, name))

    broker.timelines.move_to_new_timeline(name, "default", UNAUTHENTICATED)

    found = broker.event_types.get(name)
    assert [each.order for each in found.timelines] == [1, 2]
    assert found.timelines[0].latest_positions == {0: 1, 1: -1}
    assert found.labels


def test_two_processes_may_finish_a_switch(broker, event_type):
    """A switch that another process completes first is completed only once. (R242)"""
    name = event_type.name

    def finished_by_another():
        broker.timelines.complete_switch(broker.event_types.get(name))

    act_before_next_writes(broker.registry, lambda: None, finished_by_another)

    broker.timelines.move_to_new_timeline(name, "default", UNAUTHENTICATED)

    assert [each.order for each in broker.event_types.get(name).timelines] == [1, 2]


@pytest.mark.parametrize("fate", [WriteFate.NOT_WRITTEN, WriteFate.WRITTEN_WITHOUT_ANSWER])
def test_a_switch_whose_topic_is_sealed_is_completed_by_its_own_request(broker, event_type, clock, fate):
    """If the registry does not answer once the old topic accepts no more events, the request tries again: publishers
    do not wait for housekeeping. (R242)
    """
    let_next_writes_fail(broker.registry, WriteFate.ANSWERED, *[fate] * 3)

    replace_sleep(broker.timelines, clock).move_to_new_timeline(event_type.name, "default", UNAUTHENTICATED)

    found = broker.event_types.get(event_type.name)
    assert [each.order for each in found.timelines] == [1, 2]
    assert found.switching_to is None


def test_a_switch_is_given_up_while_the_registry_does_not_answer(broker, event_type, clock):
    """A request tries only a few times to complete its switch, and then ends with 503; housekeeping completes the
    switch. (R242)
    """
    let_next_writes_fail(broker.registry, WriteFate.ANSWERED, *[WriteFate.NOT_WRITTEN] * 100)

    began = clock.monotonic()
    with pytest.raises(Unavailable):
        replace_sleep(broker.timelines, clock).move_to_new_timeline(event_type.name, "default", UNAUTHENTICATED)

    assert 1 < clock.monotonic() - began < 10
    assert broker.event_types.get(event_type.name).switching_to is not None


def test_an_announcement_without_an_answer_is_continued(broker, event_type):
    """If the registry stores the announcement of a switch, but its answer gets lost, the request completes the switch.
    (R242)
    """
    let_next_writes_fail(broker.registry, WriteFate.WRITTEN_WITHOUT_ANSWER)

    broker.timelines.move_to_new_timeline(event_type.name, "default", UNAUTHENTICATED)

    assert [each.order for each in broker.event_types.get(event_type.name).timelines] == [1, 2]


def test_an_announcement_that_was_not_stored_leaves_no_topic(broker, event_type):
    """If the registry does not store the announcement of a switch, the topic of the new timeline is deleted. (R242)"""
    let_next_writes_fail(broker.registry, WriteFate.NOT_WRITTEN)

    with recorded_topics(broker.logs.for_storage("default")) as topics, pytest.raises(Unavailable):
        broker.timelines.move_to_new_timeline(event_type.name, "default", UNAUTHENTICATED)

    [topic] = topics
    with pytest.raises(UnknownTopic):
        broker.logs.for_storage("default").bounds(topic, [0])
    assert broker.event_types.get(event_type.name).switching_to is None


def replace_sleep(timelines, clock):
    """These timelines, with pauses that only move the clock."""
    return replace(timelines, sleep=clock.move)


def test_a_switch_of_an_event_type_deleted_meanwhile_is_refused(broker, event_type):
    """If the event type is deleted while its timeline is switched, the request is refused as not found. (R242)"""
    name = event_type.name
    act_before_next_writes(
        broker.registry, lambda: None, lambda: broker.registration.deletion.delete(name, UNAUTHENTICATED)
    )

    with pytest.raises(NotFound):
        broker.timelines.move_to_new_timeline(name, "default", UNAUTHENTICATED)


def test_partitions_for_an_event_type_deleted_meanwhile_are_refused(broker, event_type):
    """If the event type is deleted before it gets its new partitions, the request is refused as not found. (R208)"""
    name = event_type.name
    before = broker.subscriptions_of_event_types.before_repartitioning

    class DeletesMeanwhile:
        def __getattr__(self, other):
            return getattr(broker.subscriptions_of_event_types, other)

        def before_repartitioning(self, found):
            before(found)
            broker.registration.deletion.delete(name, UNAUTHENTICATED)

    with pytest.raises(NotFound):
        replace(broker.registration.repartitioning, dependents=DeletesMeanwhile).set_partition_count(
            name, 4, UNAUTHENTICATED
        )


def a_draft(name):
    return EventTypeDraft(
        name=name,
        owning_application="shop",
        category=Category.UNDEFINED,
        schema=SchemaDraft(type=SchemaType.JSON, text="{}"),
        enrichment_strategies=(),
    )


@pytest.fixture
def spare_storage(broker):
    """A storage that new event types use temporarily."""
    broker.storages.add(Storage(id="spare", type=StorageType.EMBEDDED, default=True))


@pytest.mark.usefixtures("spare_storage")
def test_a_storage_may_change_while_an_event_type_is_created(broker):
    """An event type is still created if the storage for new event types changes meanwhile. (R104)"""
    document = broker.registry.get("storages", "spare")
    act_before_next_writes(
        broker.registry, lambda: broker.registry.write(PutDocument("storages", "spare", document.body))
    )

    broker.registration.creation.create(a_draft("a.b"), UNAUTHENTICATED)

    assert broker.event_types.get("a.b").timeline.storage_id == "spare"


@pytest.mark.usefixtures("spare_storage")
def test_a_storage_may_be_removed_while_an_event_type_is_created(broker):
    """An event type whose storage is removed while it is created uses the storage that replaces it. (R104)"""

    def list_removed():
        broker.storages.choose("default")
        broker.storages.remove("spare", lambda _: False)

    act_before_next_writes(broker.registry, list_removed)

    broker.registration.creation.create(a_draft("a.b"), UNAUTHENTICATED)

    assert broker.event_types.get("a.b").timeline.storage_id == "default"


@pytest.mark.usefixtures("spare_storage")
def test_a_storage_being_removed_gets_no_event_type(broker):
    """If the storage is being removed while an event type is created in it, the client has to repeat the request, and
    no topic is left. (R104)
    """
    document = broker.registry.get("storages", "spare")
    broker.registry.write(PutDocument("storages", "spare", {**document.body, "closed": True}))
    made, gone = [], []
    log = broker.logs.for_storage("spare")
    create_topic, delete_topic = log.create_topic, log.delete_topic
    log.create_topic = lambda topic, partitions: (made.append(topic), create_topic(topic, partitions))
    log.delete_topic = lambda topic: (gone.append(topic), delete_topic(topic))

    with pytest.raises(TryLater, match="please repeat request"):
        broker.registration.creation.create(a_draft("a.b"), UNAUTHENTICATED)

    assert made == gone
    assert broker.event_types.find("a.b") is None

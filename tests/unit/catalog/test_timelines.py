from dataclasses import replace
from datetime import timedelta

import pytest

from nakadi.bootstrap import open_broker
from nakadi.catalog.timelines import ABANDONED_AFTER, abandoned, next_timeline, switched
from nakadi.model.authorization import UNAUTHENTICATED
from nakadi.model.events import Record
from nakadi.model.outcomes import Conflict, Unavailable
from nakadi.model.storage import Storage, StorageType
from nakadi.ports import SealedTopic
from nakadi.settings import Settings
from tests.support.builders import A_MOMENT, an_event_type
from tests.support.clock import HandMovedClock


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
    broker.logs.of("default").create_topic(event_type.timeline.topic, 2)
    broker.event_types.add(event_type)
    broker.logs.of("default").append(event_type.timeline.topic, {0: [Record(b"1"), Record(b"2")]})
    return broker.event_types.get(event_type.name)


def test_the_next_timeline_follows(event_type):
    """The next timeline has the next order, a topic of its own, and as many partitions. (R243)"""
    following = next_timeline(event_type, "other", A_MOMENT)

    assert (following.order, following.partitions, following.storage_id) == (2, 2, "other")
    assert following.topic != event_type.timeline.topic
    assert following.switched_at is None


def test_a_switch_closes_the_old_timeline(event_type):
    """The old timeline knows its last events and how long they are kept. (R243)"""
    announced = replace(event_type, switching_to=next_timeline(event_type, "default", A_MOMENT))

    result = switched(announced, {0: 1, 1: -1}, A_MOMENT)

    old, new = result.timelines
    assert old.latest_positions == {0: 1, 1: -1}
    assert old.cleaned_up_at == A_MOMENT + timedelta(milliseconds=event_type.retention_time)
    assert new.switched_at == A_MOMENT
    assert result.switching_to is None


def test_after_a_switch_the_old_topic_is_closed(broker, event_type):
    """What is written goes to the new timeline; the old one takes no more. (R243)"""
    broker.timelines.switch(event_type.name, "default", UNAUTHENTICATED)

    old, new = broker.event_types.get(event_type.name).timelines
    with pytest.raises(SealedTopic):
        broker.logs.of("default").append(old.topic, {0: [Record(b"3")]})
    broker.logs.of("default").append(new.topic, {0: [Record(b"3")]})
    assert old.latest_positions == {0: 1, 1: -1}


def test_one_switch_at_a_time(broker, event_type):
    """While a timeline is being created, another one is a conflict. (R242)"""
    announced = replace(event_type, switching_to=next_timeline(event_type, "default", broker.clock.now()))
    broker.event_types.replace(event_type, announced)

    with pytest.raises(Conflict, match=f"Timeline is already being created for: {event_type.name}"):
        broker.timelines.switch(event_type.name, "default", UNAUTHENTICATED)


def test_a_switch_that_was_cut_short_is_finished(broker, event_type, clock):
    """Housekeeping finishes a switch whose process died after it had begun."""
    following = next_timeline(event_type, "default", clock.now())
    broker.logs.of("default").create_topic(following.topic, following.partitions)
    broker.event_types.replace(event_type, replace(event_type, switching_to=following))

    broker.housekeeping.run()
    assert len(broker.event_types.get(event_type.name).timelines) == 1
    clock.move(ABANDONED_AFTER.total_seconds() + 1)
    broker.housekeeping.run()

    assert len(broker.event_types.get(event_type.name).timelines) == 2
    assert broker.event_types.get(event_type.name).switching_to is None


def test_a_switch_is_left_alone_while_it_may_be_going_on(event_type):
    """Only a switch that has taken much too long counts as cut short."""
    announced = replace(event_type, switching_to=next_timeline(event_type, "default", A_MOMENT))

    assert not abandoned(event_type, A_MOMENT + timedelta(days=1))
    assert not abandoned(announced, A_MOMENT + ABANDONED_AFTER)
    assert abandoned(announced, A_MOMENT + ABANDONED_AFTER + timedelta(seconds=1))


def test_a_storage_out_of_reach_leaves_everything_as_it_was(broker, event_type):
    """When the new storage does not answer, events go on to the old timeline. (R242)"""
    broker.storages.add(Storage(id="far", type=StorageType.KAFKA))
    with pytest.raises(Unavailable):
        broker.timelines.switch(event_type.name, "far", UNAUTHENTICATED)

    topic = broker.event_types.get(event_type.name).timeline.topic
    assert topic == event_type.timeline.topic
    broker.logs.of("default").append(topic, {0: [Record(b"3")]})
    assert broker.event_types.get(event_type.name).switching_to is None

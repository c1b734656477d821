"""The directory that finds the event type of a topic."""

import pytest
from msgspec.structs import replace

from nakadi.common.caching import Cache
from nakadi.engines.memory.registry import MemoryRegistry
from nakadi.event_types.repository import EventTypes
from nakadi.event_types.timelines import next_timeline
from nakadi.event_types.topic_directory import MIN_SECONDS_BETWEEN_SCANS, TopicDirectory
from tests.support.builders import an_event_type
from tests.support.clock import HandMovedClock


@pytest.fixture
def clock():
    return HandMovedClock()


@pytest.fixture
def event_types(clock):
    return EventTypes(MemoryRegistry(), Cache(clock, 0))


@pytest.fixture
def directory(event_types, clock):
    return TopicDirectory(event_types, clock.monotonic)


def test_every_topic_is_listed(event_types, directory, clock):
    """The directory has the topics of all timelines, including one that is being created, but none whose events are
    removed."""
    event_types.add(an_event_type(name="a"))
    event_types.add(an_event_type(name="b"))
    b = event_types.get("b")
    gone, current = replace(b.timeline, topic="gone", deleted=True), b.timeline
    following = next_timeline(b, "default", clock.now())
    event_types.replace(b, replace(b, timelines=(gone, current), switching_to=following))
    topics = [(event_types.get("a").timeline.topic, event_types.get("a").timeline.partitions)]
    topics += [(current.topic, current.partitions), (following.topic, following.partitions)]
    assert sorted(directory.topics()) == sorted(topics)
    assert [directory.event_type_name_of(name) for name in (current.topic, following.topic, "gone")] == ["b", "b", "b"]


def test_a_new_topic_is_found_soon(event_types, directory, clock):
    """An unknown topic is looked up, but not at every call."""
    assert directory.event_type_name_of("t") is None
    event_types.add(an_event_type(name="a"))
    topic = event_types.get("a").timeline.topic
    assert directory.event_type_name_of(topic) is None
    clock.move(MIN_SECONDS_BETWEEN_SCANS)
    assert directory.event_type_name_of(topic) == "a"

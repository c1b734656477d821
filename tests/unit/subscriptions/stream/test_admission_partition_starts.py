"""Where reading starts, and the event type that this position belongs to."""

import pytest
from msgspec.structs import replace

from nakadi.common.caching import Cache
from nakadi.common.waiting import run_blocking
from nakadi.engines.memory.event_log import MemoryLog
from nakadi.engines.memory.registry import MemoryRegistry
from nakadi.event_types.repository import EventTypes
from nakadi.event_types.snapshot import CursorResolver
from nakadi.model.event_type import Position
from nakadi.model.events import Record
from nakadi.model.outcomes import NotFound, UnusableCursor
from nakadi.subscriptions.stream.admission import KnownEventTypes, PartitionStarts
from tests.support.builders import a_timeline, an_event_type
from tests.support.clock import HandMovedClock
from tests.support.coordination import a_place

BEGIN = Position(1, -1)


class PartitionStartsSetup:
    """The event type "order" with two partitions and one event in each, and the start positions over it."""

    def __init__(self) -> None:
        self.clock = HandMovedClock()
        self.log = MemoryLog(self.clock)
        self.event_types = EventTypes(MemoryRegistry(), Cache(self.clock, 1.0))
        self.looks = 0
        self.starts = PartitionStarts(self.event_types, CursorResolver(self), self.clock)
        self.order = self.make_event_type("first")

    def for_storage(self, _storage_id):
        self.looks += 1
        return self.log

    def make_event_type(self, event_type_id, events=1):
        timeline = a_timeline(topic=f"topic-of-{event_type_id}", partitions=2)
        self.log.create_topic(timeline.topic, 2)
        self.append_events(timeline, events)
        self.event_types.add(an_event_type(name="order", id=event_type_id, timelines=(timeline,)))
        return self.event_types.get("order")

    def append_events(self, timeline, events):
        for partition in range(2):
            run_blocking(self.log.append(timeline.topic, {partition: [Record(b"{}")] * events}))

    def switch_timeline(self):
        """Move the event type to a second timeline."""
        old = self.order.timeline
        new = a_timeline(order=2, topic="the second", partitions=2)
        self.log.create_topic(new.topic, 2)
        closed = replace(old, latest_positions={0: 0, 1: 0}, cleaned_up_at=self.clock.now())
        return self.event_types.replace(self.order, replace(self.order, timelines=(closed, new)))


@pytest.fixture
def setup():
    return PartitionStartsSetup()


def test_one_look_at_the_log_serves_all_partitions(setup):
    """If a stream opens many partitions at once, the log is read once."""
    for partition in range(2):
        setup.starts.find(a_place(partition), BEGIN, setup.order)
    assert setup.looks == 1


def test_an_event_type_that_was_made_again_is_another(setup):
    """Within the second for which a result is cached, an event type is deleted and created again: a stream that opens
    the new one does not read the old one. (S299)"""
    setup.starts.find(a_place(), BEGIN, setup.order)
    setup.event_types.remove(setup.order)
    second = setup.make_event_type("second", events=3)
    assert setup.starts.find(a_place(), Position(1, 2), second).event_type.id == "second"


def test_an_event_type_that_moved_is_looked_at_anew(setup):
    """Within the second for which a result is cached, an event type moves to another timeline: a stream that knows the
    new timeline is not sent to the old one. (S299)"""
    setup.starts.find(a_place(), BEGIN, setup.order)
    moved = setup.switch_timeline()
    assert setup.starts.find(a_place(), Position(1, 0), moved).event_type.timelines == moved.timelines


def test_a_stream_with_an_older_event_type_learns_of_the_change(setup):
    """A stream that knows an older revision of an event type learns of the change with the next partition."""
    known, moved = setup.order, setup.switch_timeline()
    assert setup.starts.find(a_place(), BEGIN, known).event_type.revision == moved.revision


def test_a_stream_does_not_go_on_with_the_successor_of_its_event_type(setup):
    """A stream whose event type was deleted does not get the events of another event type with the same name. (S299)"""
    setup.event_types.remove(setup.order)
    setup.make_event_type("second")
    with pytest.raises(UnusableCursor, match="was deleted"):
        setup.starts.find(a_place(), BEGIN, setup.order)


def test_streams_of_a_deleted_event_type_are_refused(setup):
    """For a deleted event type, there are no start positions."""
    setup.event_types.remove(setup.order)
    with pytest.raises(NotFound):
        setup.starts.find(a_place(), BEGIN, setup.order)


def test_events_that_came_after_the_look_are_found(setup):
    """A position that was beyond the end when the log was read may exist by now. (S207)"""
    setup.starts.find(a_place(), BEGIN, setup.order)
    setup.append_events(setup.order.timeline, 1)
    assert setup.starts.find(a_place(), Position(1, 1), setup.order).position == Position(1, 1)


def test_the_latest_revision_is_remembered():
    """Of two reads of an event type, the later revision counts, whichever is reported first; of two event types with
    the same name, the last reported one counts."""
    first = an_event_type(name="order", revision=1)
    known = KnownEventTypes([first], lambda: None)
    second = replace(first, revision=2)
    assert known.keep_newest(second) is second
    assert known.keep_newest(first) is second
    another = an_event_type(name="order", id="another", revision=1)
    assert known.keep_newest(another) is another

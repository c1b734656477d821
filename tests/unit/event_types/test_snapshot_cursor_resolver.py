import pytest

from nakadi.event_types.cursors import CursorError
from nakadi.event_types.snapshot import CursorResolver
from nakadi.model.event_type import Cursor, Position
from tests.support.places import TimelineWithPast, an_event_type_with_past


def test_each_call_asks_the_log_again():
    """The result of a second call includes the events that were stored since the first one."""
    event_type, logs = an_event_type_with_past(TimelineWithPast([1]))
    cursors = CursorResolver(logs)
    before = cursors.end_positions(event_type)["0"]
    logs.topics[event_type.timeline.topic] = TimelineWithPast([5]).bounds()
    assert (before, cursors.end_positions(event_type)["0"]) == (Position(1, 0), Position(1, 4))


def test_results_are_those_of_a_snapshot():
    """The results for an event type match a snapshot of it. (C13, L35, S97)"""
    event_type, logs = an_event_type_with_past(TimelineWithPast([9], expired=[4]))
    cursors = CursorResolver(logs)
    assert cursors.take_snapshot(event_type).oldest_and_newest_events() == {"0": (Position(1, 4), Position(1, 8))}
    assert cursors.positions_before_oldest(event_type) == {"0": Position(1, 3)}
    assert cursors.resolve(event_type, Cursor("0", "BEGIN")) == Position(1, 3)
    assert cursors.start_positions(event_type, [Cursor("0", "5")]) == {"0": Position(1, 5)}


def test_position_can_be_checked_without_a_cursor():
    """A stored position is checked like a cursor, and reported as it is published. (L28, S102)"""
    event_type, logs = an_event_type_with_past(TimelineWithPast([9], expired=[4]), name="order.created")
    cursors = CursorResolver(logs)
    cursors.check_readable(event_type, "0", Position(1, 8))
    with pytest.raises(CursorError, match="offset 000000000000000009 for partition 0 event type"):
        cursors.check_readable(event_type, "0", Position(1, 9))


def test_the_next_event_is_found_only_in_a_known_partition():
    """The next event is known only for the event type's partitions. (L24, L67)"""
    event_type, logs = an_event_type_with_past(TimelineWithPast([2]), TimelineWithPast([2]))
    timeline, offset = CursorResolver(logs).next_event_location(event_type, Position(1, 1), "0")
    assert (timeline.order, offset) == (2, 0)
    with pytest.raises(CursorError, match="non existing partition 4"):
        CursorResolver(logs).next_event_location(event_type, Position(1, 1), "4")

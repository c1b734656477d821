import pytest
from hypothesis import given
from hypothesis import strategies as some

from nakadi.event_types import positions
from nakadi.event_types.cursors import CursorError
from nakadi.model.event_type import Position
from nakadi.model.outcomes import Invalid
from tests.support.builders import a_timeline, an_event_type
from tests.support.places import TimelineWithPast, an_event_type_with_past


def event_type_with(*counts: int):
    """An event type with one partition, and a timeline for each of these counts of events."""
    return an_event_type_with_past(*[TimelineWithPast([count]) for count in counts])[0]


@pytest.mark.parametrize(
    ("name", "number"), [("0", 0), ("2", 2), ("3", None), ("00", None), ("x", None), ("", None), ("-1", None)]
)
def test_partition_is_known_by_its_exact_name(name, number):
    """The partitions are called 0, 1, 2 and so on; no other name refers to one."""
    assert positions.partition_number(an_event_type(partitions=3), name) == number


@pytest.mark.parametrize(
    ("first", "last", "distance"),
    [
        (Position(1, -1), Position(1, 1), 2),
        (Position(1, 0), Position(1, 1), 1),
        (Position(1, 1), Position(1, 1), 0),
        (Position(1, 1), Position(1, -1), -2),
    ],
)
def test_distance_counts_events_behind_first_up_to_last(first, last, distance):
    """The distance is the signed number of events after the first position, up to and including the last. (C38)"""
    assert positions.count_events_between(event_type_with(2), "0", first, last) == distance


@pytest.mark.parametrize(
    ("first", "last", "distance"),
    [
        (Position(1, 0), Position(3, 0), 7),  # 2 events left in the first timeline, 4 in the second, 1 in the third
        (Position(1, -1), Position(3, -1), 7),
        (Position(2, 3), Position(3, -1), 0),
        (Position(1, 2), Position(2, -1), 0),
        (Position(3, 0), Position(1, 0), -7),
    ],
)
def test_distance_adds_up_timelines_between(first, last, distance):
    """All events of the timelines between two positions count, and the end of a timeline is the same position as the
    start of the next one. (C39)
    """
    assert positions.count_events_between(event_type_with(3, 4, 1), "0", first, last) == distance


def test_distance_of_expired_timelines_is_still_known():
    """Removed events are counted: a timeline keeps its size when its events are removed. (C39, C57)"""
    event_type, _ = an_event_type_with_past(
        TimelineWithPast([3], deleted=True), TimelineWithPast([4], deleted=True), TimelineWithPast([1])
    )
    assert positions.count_events_between(event_type, "0", Position(1, 0), Position(3, 0)) == 7


def test_distance_over_a_missing_timeline_is_refused():
    """If a timeline between two positions is missing, their distance is unknown. (C42)"""
    known = tuple(a_timeline(order=order, latest_positions=None if order == 3 else {0: 1}) for order in (1, 3))
    with pytest.raises(Invalid) as refused:
        positions.count_events_between(an_event_type(timelines=known), "0", Position(1, 0), Position(3, 0))
    assert refused.value.detail == (
        "Timeline not found. It might happen in case the cursor refers to a timeline that has already expired."
    )


def test_distance_across_timelines_needs_the_partition():
    """If the positions are in different timelines, a partition that the event type does not have is refused. (C43)"""
    with pytest.raises(Invalid) as refused:
        positions.count_events_between(event_type_with(2, 2), "9", Position(1, 0), Position(2, 0))
    assert refused.value.detail == "Partition not found."


def test_a_partition_that_was_added_later_is_empty_before():
    """A partition that was added later counts as empty in the earlier timelines. (C43)"""
    event_type, _ = an_event_type_with_past(TimelineWithPast([5]), TimelineWithPast([5, 3]))
    assert positions.count_events_between(event_type, "1", Position(1, -1), Position(2, 2)) == 3


def test_distance_within_a_timeline_does_not_require_the_partition():
    """Within one timeline, neither the positions nor the partition need to exist. (C44)"""
    assert positions.count_events_between(event_type_with(2), "9", Position(1, 5), Position(1, 1_000_005)) == 1_000_000


def test_sums_beyond_64_bits_are_refused():
    """A distance that no client could represent is refused rather than wrapped around."""
    with pytest.raises(Invalid):
        positions.count_events_between(event_type_with(2), "0", Position(1, -(2**63)), Position(1, 2**63 - 1))
    with pytest.raises(Invalid):
        positions.shifted_position(event_type_with(2), "0", Position(1, 2**63 - 1), 1)


TWO_IN_TWO_AND_THREE = (0, 2, 2)


@pytest.mark.parametrize(
    ("start", "shift", "reached"),
    [
        (Position(1, -1), 0, "001-0001--1"),
        (Position(1, -1), 1, "001-0002-000000000000000000"),
        (Position(1, -1), 2, "001-0002-000000000000000001"),
        (Position(1, -1), 3, "001-0003-000000000000000000"),
        (Position(1, -1), 5, "001-0003-000000000000000002"),
        (Position(3, 1), -1, "001-0003-000000000000000000"),
        (Position(3, 1), -2, "001-0003--1"),
        (Position(3, 1), -3, "001-0002-000000000000000000"),
        (Position(3, 1), -4, "001-0002--1"),
        (Position(3, 1), 100, "001-0003-000000000000000101"),
    ],
)
def test_shifts_over_timelines_have_known_answers(start, shift, reached):
    """Shifts from one timeline to another have the results that clients have learnt to expect. (C61, C62, C64)"""
    assert str(positions.shifted_position(event_type_with(*TWO_IN_TWO_AND_THREE), "0", start, shift)) == reached


@pytest.mark.parametrize(
    ("counts", "start", "shift"),
    [((2,), Position(1, -1), -1), ((2, 2), Position(2, 1), -5), ((2,), Position(1, 1), -9)],
)
def test_a_shift_back_needs_an_earlier_timeline(counts, start, shift):
    """Before the first timeline, there is no position to shift to. (C62, C65)"""
    with pytest.raises(Invalid, match=r"Timeline not found\. It might happen"):
        positions.shifted_position(event_type_with(*counts), "0", start, shift)


def test_a_shift_ignores_retention():
    """A position whose event is removed is still a position, even in a timeline without any remaining events. (C63)"""
    event_type, _ = an_event_type_with_past(TimelineWithPast([3], deleted=True), TimelineWithPast([4], expired=[4]))
    assert positions.shifted_position(event_type, "0", Position(2, 3), -6) == Position(1, 0)


def test_a_shift_within_the_open_timeline_does_not_require_the_partition():
    """In the open timeline, positions can be shifted in a partition that does not exist. (C67)"""
    assert positions.shifted_position(event_type_with(2), "9", Position(1, 3), 4) == Position(1, 7)


@given(
    counts=some.lists(some.integers(0, 4), min_size=1, max_size=5),
    steps=some.integers(0, 12),
    data=some.data(),
)
def test_shift_is_the_inverse_of_distance(counts, steps, data):
    """The distance from a position to the shifted position is the shift, forwards and backwards. (C38, C39, C61,
    C62)"""
    event_type = event_type_with(*counts)
    order = data.draw(some.integers(1, len(counts)))
    start = Position(order, data.draw(some.integers(-1, counts[order - 1] - 1)))
    there = positions.shifted_position(event_type, "0", start, steps)
    assert positions.count_events_between(event_type, "0", start, there) == steps
    back = positions.shifted_position(event_type, "0", there, -steps)
    assert positions.count_events_between(event_type, "0", start, back) == 0


@pytest.mark.parametrize(
    ("position", "carried"),
    [
        (Position(1, 1), Position(3, -1)),  # across the empty second timeline
        (Position(1, 0), Position(1, 0)),
        (Position(2, -1), Position(3, -1)),
        (Position(3, 1), Position(3, 1)),
        (Position(9, 1), Position(9, 1)),
    ],
)
def test_end_of_a_closed_timeline_is_the_start_of_the_next(position, carried):
    """The last event of a closed timeline is the position before the next timeline, even across empty timelines. (C7,
    S91)"""
    assert positions.canonical_position(event_type_with(2, 0, 2), position, 0) == carried


@pytest.mark.parametrize(
    ("position", "order", "offset"),
    [
        (Position(1, -1), 1, 0),
        (Position(1, 0), 1, 1),
        (Position(1, 1), 3, 0),
        (Position(3, 1), 3, 2),
        (Position(3, 17), 3, 18),
    ],
)
def test_the_next_event_is_in_the_next_timeline_that_has_events(position, order, offset):
    """After the last event of a timeline comes the first event of the next timeline that has one. (L67)"""
    timeline, following = positions.next_event_location(event_type_with(2, 0, 2), position, 0)
    assert (timeline.order, following) == (order, offset)


def test_the_next_event_is_not_in_a_deleted_timeline():
    """After a position in a deleted timeline comes the first timeline that is not deleted. (L67)"""
    event_type, _ = an_event_type_with_past(
        TimelineWithPast([3], deleted=True),
        TimelineWithPast([3], deleted=True),
        TimelineWithPast([4]),
        TimelineWithPast([0]),
    )
    timeline, following = positions.next_event_location(event_type, Position(1, 0), 0)
    assert (timeline.order, following) == (3, 0)


def test_there_is_no_next_event_in_an_unknown_timeline():
    """A position in a timeline that never existed has no next event. (L27)"""
    with pytest.raises(CursorError):
        positions.next_event_location(event_type_with(1), Position(4, 0), 0)


@given(counts=some.lists(some.integers(0, 3), min_size=1, max_size=5))
def test_next_events_are_all_events_in_order(counts):
    """Moving from each event to the next visits every event of every timeline once. (L67, L68)"""
    event_type = event_type_with(*counts)
    every = [Position(order, offset) for order, count in enumerate(counts, start=1) for offset in range(count)]
    visited, position = [], Position(1, -1)
    for _ in every:
        timeline, offset = positions.next_event_location(event_type, position, 0)
        position = Position(timeline.order, offset)
        visited.append(position)
    assert visited == every


def test_a_position_before_a_partition_was_added_is_moved_to_its_first_timeline():
    """A position at the start of a timeline that did not have the partition yet becomes the start of the first one that
    has it. (C7, C71)"""
    event_type, _ = an_event_type_with_past(TimelineWithPast([5]), TimelineWithPast([5, 3]))
    assert positions.canonical_position(event_type, Position(1, -1), 1) == Position(2, -1)
    timeline, following = positions.next_event_location(event_type, Position(1, -1), 1)
    assert (timeline.order, following) == (2, 0)


def test_a_shift_by_zero_changes_nothing():
    """A shift by zero returns the same position, even one that is in no timeline. (C60)"""
    assert positions.shifted_position(event_type_with(2, 2), "0", Position(1, 7), 0) == Position(1, 7)
    assert positions.shifted_position(event_type_with(2, 2), "0", Position(1, -7), 0) == Position(1, -7)

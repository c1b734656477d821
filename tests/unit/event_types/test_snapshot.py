from datetime import timedelta

import pytest

from nakadi.event_types.cursors import CursorError
from nakadi.event_types.snapshot import PartitionSnapshot
from nakadi.model.event_type import Cursor, Position
from nakadi.model.outcomes import Invalid, Unavailable
from tests.support.builders import A_MOMENT
from tests.support.places import TimelineWithPast, an_event_type_with_past


def a_view(*generations: TimelineWithPast) -> PartitionSnapshot:
    return PartitionSnapshot(*an_event_type_with_past(*generations, name="order.created"))


def ends_of(view: PartitionSnapshot, partition: str = "0") -> tuple[str, str]:
    oldest, newest = view.oldest_and_newest_events()[partition]
    return str(oldest), str(newest)


def resolve_offset(view: PartitionSnapshot, offset: str, partition: str = "0") -> str:
    return str(view.resolve(Cursor(partition, offset)))


def refusal_of(view: PartitionSnapshot, offset: str, partition: str = "0") -> str:
    with pytest.raises(CursorError) as refused:
        view.start_positions([Cursor(partition, offset)])
    return str(refused.value)


def unavailable(number: str, partition: str = "0") -> str:
    return (
        f"offset {number} for partition {partition} event type order.created is unavailable as retention time of data "
        "elapsed. PATCH partition offset with valid and available offset"
    )


# Ends


def test_ends_of_an_empty_partition():
    """A partition that never had an event has the oldest offset 0, and its newest offset is one before. (C2, C13)"""
    assert ends_of(a_view(TimelineWithPast([0]))) == ("001-0001-000000000000000000", "001-0001--1")


def test_ends_are_the_oldest_and_the_newest_event():
    """The ends of a partition are the oldest event that is still there and the newest event. (C13)"""
    view = a_view(TimelineWithPast([5, 9], expired=[0, 4]))
    assert ends_of(view) == ("001-0001-000000000000000000", "001-0001-000000000000000004")
    assert ends_of(view, "1") == ("001-0001-000000000000000004", "001-0001-000000000000000008")


def test_ends_after_all_events_have_expired():
    """When all events are removed, the newest offset is one before the oldest. (C14)"""
    view = a_view(TimelineWithPast([5], expired=[5]))
    assert ends_of(view) == ("001-0001-000000000000000005", "001-0001-000000000000000004")


@pytest.mark.parametrize(
    ("counts", "newest"),
    [
        ((3, 0), "001-0001-000000000000000002"),
        ((3, 2, 0, 0), "001-0002-000000000000000001"),
        ((0, 0), "001-0001--1"),
        ((0, 4), "001-0002-000000000000000003"),
    ],
)
def test_empty_newest_timeline_does_not_hide_the_newest_event(counts, newest):
    """While the newest timeline is empty, the newest event is that of the last timeline that has events. (C15, C53)"""
    view = a_view(*[TimelineWithPast([count]) for count in counts])
    assert ends_of(view) == ("001-0001-000000000000000000", newest)


def test_a_partition_begins_in_the_timeline_that_added_it():
    """The oldest offset of a partition that was added later, and BEGIN, are in the timeline that was active then.

    (C43)
    """
    view = a_view(TimelineWithPast([5]), TimelineWithPast([5, 3]))
    assert ends_of(view, "1") == ("001-0002-000000000000000000", "001-0002-000000000000000002")
    assert resolve_offset(view, "BEGIN", "1") == "001-0002--1"


def test_deleted_timelines_are_ignored():
    """The ends are those of the timelines that still have their events. (C13, C15)"""
    view = a_view(TimelineWithPast([3], deleted=True), TimelineWithPast([4], expired=[2]), TimelineWithPast([0]))
    assert ends_of(view) == ("001-0002-000000000000000002", "001-0002-000000000000000003")


def test_ends_of_a_partition_that_was_added_later():
    """A partition that was added later begins in the timeline to which it was added. (C71)"""
    view = a_view(TimelineWithPast([3]), TimelineWithPast([4, 2]))
    assert ends_of(view, "1") == ("001-0002-000000000000000000", "001-0002-000000000000000001")


def test_partitions_are_listed_by_number():
    """Partitions are sorted by number: 10 comes after 9. (C19)"""
    assert list(a_view(TimelineWithPast([0] * 12)).oldest_and_newest_events()) == [str(number) for number in range(12)]


def test_beginning_is_just_before_the_oldest():
    """The beginning of every partition is one before its oldest event, in the oldest timeline. (S97)"""
    view = a_view(TimelineWithPast([3, 0], expired=[2]), TimelineWithPast([4, 4]))
    assert view.positions_before_oldest() == {"0": Position(1, 1), "1": Position(1, -1)}


def test_newest_is_the_end_of_the_newest_timeline():
    """A reader of new events starts at the end of the newest timeline, even while that timeline is empty. (L36, L69,
    S96)"""
    view = a_view(TimelineWithPast([3, 0]), TimelineWithPast([0, 4]))
    assert view.end_positions() == {"0": Position(2, -1), "1": Position(2, 3)}


def test_bounds_of_each_timeline_are_requested_once():
    """However often a snapshot is used, it calls the log once for each timeline that it needs."""
    event_type, logs = an_event_type_with_past(
        TimelineWithPast([3, 3]), TimelineWithPast([2, 2]), TimelineWithPast([1, 1])
    )
    view = PartitionSnapshot(event_type, logs)
    view.oldest_and_newest_events()
    view.positions_before_oldest()
    view.start_positions([Cursor("0", "BEGIN"), Cursor("1", "BEGIN")])
    assert sorted(logs.asked) == sorted([event_type.timelines[0].topic, event_type.timelines[2].topic])


@pytest.mark.parametrize("offset", ["BEGIN", "2026-11-21T12:00:00Z"])
def test_a_log_that_does_not_answer_is_unavailable(offset):
    """If the log does not answer, its positions are unavailable for now. (C29, C68, L19)"""
    event_type, logs = an_event_type_with_past(TimelineWithPast([3]))
    logs.down = True
    with pytest.raises(Unavailable, match="Error occurred when fetching partitions offsets"):
        PartitionSnapshot(event_type, logs).resolve(Cursor("0", offset))


def test_a_topic_that_was_deleted_is_unavailable():
    """If a topic disappears while it is read, the client may retry; this is not an internal error. (C29)"""
    event_type, logs = an_event_type_with_past(TimelineWithPast([3]))
    logs.topics.clear()
    with pytest.raises(Unavailable):
        PartitionSnapshot(event_type, logs).oldest_and_newest_events()


# Resolving


def test_begin_is_before_the_oldest_event():
    """The beginning is one before the oldest event of the oldest timeline that is not deleted. (C5, C6, L34, S97)"""
    assert resolve_offset(a_view(TimelineWithPast([3])), "BEGIN") == "001-0001--1"
    assert resolve_offset(a_view(TimelineWithPast([9], expired=[4])), "begin") == "001-0001-000000000000000003"
    assert resolve_offset(a_view(TimelineWithPast([9], deleted=True), TimelineWithPast([3])), "BEGIN") == "001-0002--1"


def test_begin_may_be_in_an_empty_closed_timeline():
    """A beginning in an empty, closed timeline is not moved to the next timeline. (C7)"""
    assert resolve_offset(a_view(TimelineWithPast([0]), TimelineWithPast([3])), "BEGIN") == "001-0001--1"


def test_plain_number_is_of_the_first_timeline():
    """A plain number belongs to the first timeline, whether that is deleted or not, and is not moved beyond its end.
    (C5, C7, S90)"""
    view = a_view(TimelineWithPast([3], deleted=True), TimelineWithPast([3]), TimelineWithPast([0]))
    assert resolve_offset(view, "1") == "001-0001-000000000000000001"
    assert resolve_offset(view, "2") == "001-0001-000000000000000002"


def test_the_end_of_a_closed_timeline_is_the_start_of_the_next():
    """A versioned cursor at the end of a closed timeline becomes the start of the next timeline. (C7, S91)"""
    view = a_view(TimelineWithPast([3]), TimelineWithPast([0]), TimelineWithPast([4]))
    assert resolve_offset(view, "001-0001-2") == "001-0003--1"
    assert resolve_offset(view, "001-0001-1") == "001-0001-000000000000000001"


def test_cursor_of_an_unknown_timeline_is_refused_without_names():
    """The refusal of a timeline that the event type never had does not name the partition and the offset. (L27, S94)"""
    with pytest.raises(CursorError) as refused:
        a_view(TimelineWithPast([3])).resolve(Cursor("0", "001-0007-1"))
    assert str(refused.value) == unavailable("null", "null")


@pytest.mark.parametrize("offset", ["BEGIN", "2026-11-21T12:00:00Z"])
def test_unknown_partition_has_no_beginning(offset):
    """A request for the beginning of a missing partition is refused with the partition's name. (C25, L25)"""
    with pytest.raises(CursorError) as refused:
        a_view(TimelineWithPast([3])).resolve(Cursor("7", offset))
    assert str(refused.value) == "non existing partition 7"


def test_number_beyond_64_bits_is_no_position():
    """A number that no event can have is refused; the message contains the number as it was sent. (C49, L29)"""
    with pytest.raises(CursorError) as refused:
        a_view(TimelineWithPast([3])).resolve(Cursor("0", "001-0001-9223372036854775808"))
    assert str(refused.value) == "invalid cursor format, partition: 0 offset: 9223372036854775808"


@pytest.mark.parametrize(
    ("minutes", "place"),
    [
        (0, "001-0001--1"),  # long before all events
        (60, "001-0001--1"),  # exactly at the first event
        (61.5, "001-0001-000000000000000001"),  # between the second and the third event
        (62, "001-0001-000000000000000001"),
        (63, "001-0003--1"),  # after the first timeline's last event, across the empty timeline
        (181, "001-0003-000000000000000000"),
        (500, "001-0003-000000000000000001"),  # after all events
    ],
)
def test_a_time_is_before_the_first_event_stored_then_or_later(minutes, place):
    """A time means the position just before the first event that was stored then or later, in any timeline. (C5)"""
    view = a_view(TimelineWithPast([3]), TimelineWithPast([0]), TimelineWithPast([2]))
    moment = A_MOMENT + timedelta(minutes=minutes)
    assert resolve_offset(view, moment.isoformat()) == place
    assert view.start_positions([Cursor("0", moment.isoformat())]) == {"0": view.resolve(Cursor("0", place))}


def test_a_time_before_expired_events_is_before_the_oldest_event():
    """A time whose events are removed means the position just before the oldest remaining event. (C5)"""
    view = a_view(TimelineWithPast([9], deleted=True), TimelineWithPast([9], expired=[4]))
    assert resolve_offset(view, A_MOMENT.isoformat()) == "001-0002-000000000000000003"


# Starting a stream


@pytest.mark.parametrize("offset", ["001-0001-000000000000000003", "001-0001-4", "8", "BEGIN", "001-0001-8"])
def test_cursor_from_before_the_oldest_to_the_newest_is_readable(offset):
    """Reading can continue after any existing event, and from the position before the oldest. (L33, L35, S92)"""
    assert a_view(TimelineWithPast([9], expired=[4])).start_positions([Cursor("0", offset)])["0"].timeline == 1


@pytest.mark.parametrize(
    ("offset", "number"),
    [
        ("001-0001-000000000000000002", "000000000000000002"),
        ("001-0001-2", "2"),
        ("2", "000000000000000002"),
        ("-1", "-1"),
        ("001-0001--5", "-5"),
        ("001-0001-000000000000000009", "000000000000000009"),
        ("9", "000000000000000009"),
    ],
)
def test_cursor_out_of_range_is_unavailable(offset, number):
    """Expired events, and positions beyond the newest event, cannot be read. (L28, S93, S94, S102)"""
    assert refusal_of(a_view(TimelineWithPast([9], expired=[4])), offset) == unavailable(number)


def test_cursor_of_a_deleted_timeline_is_unavailable():
    """A position in a deleted timeline is unavailable, unless it is the timeline's end. (C7, L28)"""
    view = a_view(TimelineWithPast([9], deleted=True), TimelineWithPast([3]))
    assert refusal_of(view, "001-0001-000000000000000007") == unavailable("000000000000000007")
    assert refusal_of(view, "8") == unavailable("000000000000000008")
    assert view.start_positions([Cursor("0", "001-0001-8")]) == {"0": Position(2, -1)}


@pytest.mark.parametrize("partition", ["1", "x", "00", ""])
def test_unknown_partition_cannot_be_read(partition):
    """The refusal names the partition that the event type does not have. (L24, L25, S93)"""
    assert refusal_of(a_view(TimelineWithPast([9])), "001-0001-3", partition) == f"non existing partition {partition}"
    assert refusal_of(a_view(TimelineWithPast([9])), "BEGIN", partition) == f"non existing partition {partition}"


def test_number_beyond_64_bits_cannot_be_read():
    """A number beyond 64 bits is checked with the form of the cursor, after the existence of its partition. (L29,
    L36a)"""
    view = a_view(TimelineWithPast([9]))
    too_big = "9" * 30
    assert refusal_of(view, too_big) == f"invalid cursor format, partition: 0 offset: {too_big}"
    assert refusal_of(view, too_big, "5") == "non existing partition 5"


def test_no_cursors_are_refused():
    """A stream with an empty list of cursors is refused. (L22)"""
    with pytest.raises(CursorError) as refused:
        a_view(TimelineWithPast([9])).start_positions([])
    assert str(refused.value) == "invalid cursor format, partition: null offset: null"


@pytest.mark.parametrize(
    ("cursors", "reported"),
    [
        # cursors that cannot be converted, then deleted timelines, then missing positions
        ([("7", "2-3"), ("0", "5"), ("9", "001-0002-1")], "invalid offset 2-3 for partition 7"),
        ([("9", "001-0002-1"), ("0", "5"), ("7", "2-3")], "invalid offset 2-3 for partition 7"),
        ([("9", "001-0002-1"), ("0", "5")], unavailable("000000000000000005")),
        ([("0", "001-0002-99"), ("9", "001-0002-1")], unavailable("99")),
        ([("9", "001-0002-1"), ("0", "001-0002-99")], "non existing partition 9"),
        ([("0", "001-0002-1"), ("0", "001-0002-99")], unavailable("99")),
    ],
)
def test_cursors_are_checked_in_order(cursors, reported):
    """All cursors are converted first; then deleted timelines are refused; then each cursor's partition and range are
    checked. (L36a)"""
    view = a_view(TimelineWithPast([9], deleted=True), TimelineWithPast([3]))
    with pytest.raises(CursorError) as refused:
        view.start_positions([Cursor(*each) for each in cursors])
    assert str(refused.value) == reported


def test_partition_named_twice_is_refused():
    """Two cursors for one partition are refused, because a stream reads each partition from one position. (L30)"""
    with pytest.raises(Invalid, match="duplicate partition ids provided in cursors"):
        a_view(TimelineWithPast([9])).start_positions([Cursor("0", "3"), Cursor("0", "4")])


def test_closed_timeline_has_its_own_range():
    """In a closed timeline, a cursor cannot be beyond the last event. (L28)"""
    view = a_view(TimelineWithPast([3]), TimelineWithPast([9]))
    assert refusal_of(view, "001-0001-3") == unavailable("3")
    assert view.start_positions([Cursor("0", "2")]) == {"0": Position(1, 2)}

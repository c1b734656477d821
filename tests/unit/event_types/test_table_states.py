"""The state of a table, and the positions in the log that follow from it."""

from datetime import UTC, datetime

from nakadi.event_types.table_states import TableState, positions_after_table
from tests.support.builders import a_timeline, an_event_type


def a_state(**offsets):
    """A state with offsets by topic; each list has an offset for each partition."""
    return TableState(
        table_name="t",
        next_offsets={(topic, n): offset for topic, found in offsets.items() for n, offset in enumerate(found)},
        row_count=0,
        misfit_count=0,
        unreadable_count=0,
        updated_at=datetime(2026, 11, 20, tzinfo=UTC),
    )


def places(state, *timelines):
    event_type = an_event_type(timelines=timelines)
    return [(partition, str(position)) for partition, position in positions_after_table(state, event_type)]


def test_a_partition_goes_on_where_the_table_ends():
    """There is a cursor for each partition, even for one without events in the table. (Q1)"""
    found = places(a_state(a=[18250, 0]), a_timeline(order=1, topic="a", partitions=3))
    assert found == [("0", "001-0001-000000000000018249"), ("1", "001-0001--1"), ("2", "001-0001--1")]


def test_an_older_timeline_counts_as_long_as_the_table_lacks_events_of_it():
    """A closed timeline has a cursor if the table lacks events of it, and no cursor if the table has all of them or
    they are removed. (Q1)"""
    new = a_timeline(order=3, topic="c", partitions=2)
    old = a_timeline(order=2, topic="b", partitions=1, latest_positions={0: 9})
    gone = a_timeline(order=1, topic="a", partitions=1, latest_positions={0: 9}, deleted=True)
    behind = ("0", "001-0003-000000000000000004"), ("1", "001-0003--1")
    assert places(a_state(b=[10], c=[5]), gone, old, new) == [*behind]
    assert places(a_state(b=[9], c=[5]), gone, old, new) == [("0", "001-0002-000000000000000008"), *behind]

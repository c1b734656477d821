"""What jobs count against the objective of a table."""

from datetime import timedelta

from msgspec.structs import replace

from nakadi.event_types.table_states import TableState
from nakadi.model.log_index import ArchiveLocation
from nakadi_jobs.archive_ranges import ArchiveRange
from nakadi_jobs.table_states import count_freshness
from tests.support.builders import A_MOMENT, an_event_type

ORDERS = an_event_type(
    annotations={"nakadi.io/table-objective": "99% within 1 hour"}, updated_at=A_MOMENT - timedelta(hours=3)
)
STATE = TableState(
    table_name="o", next_offsets={}, row_count=0, misfit_count=0, unreadable_count=0, updated_at=A_MOMENT
)


def archived_part(offsets, hours_ago, events=None):
    at = round((A_MOMENT - timedelta(hours=hours_ago)).timestamp() * 1e6)
    location = ArchiveLocation("log/one", 0, 1)
    return ArchiveRange(
        topic="t", timeline=1, partition=0, first=0, end=offsets, location=location, since=at, until=at, events=events
    )


def counts_of(freshness):
    return [(each.in_time, each.late) for each in freshness.counts]


def test_a_part_of_the_archive_is_as_old_as_its_oldest_event():
    """Events that were stored before the event type had the objective do not count, and neither do removed events.
    (T14)
    """
    added = [archived_part(10, 0.5), archived_part(10, 2, events=4), archived_part(10, 4)]
    first = count_freshness(ORDERS, None, added, A_MOMENT, is_new=True)
    assert (first.since, counts_of(first)) == (ORDERS.updated_at, [(10, 4)])
    found = replace(STATE, freshness=first)
    assert counts_of(count_freshness(ORDERS, found, [archived_part(1, 2)], A_MOMENT, is_new=False)) == [(10, 5)]


def test_a_table_that_is_rebuilt_is_not_late():
    """When a table is rebuilt, its events are added again long after they were stored; this does not count as late.
    (T14)
    """
    known = count_freshness(ORDERS, None, [archived_part(10, 0.5)], A_MOMENT, is_new=True)
    rebuilt = count_freshness(ORDERS, replace(STATE, freshness=known), [archived_part(10, 2)], A_MOMENT, is_new=True)
    assert (rebuilt.since, counts_of(rebuilt)) == (A_MOMENT, [(0, 0)])


def test_without_an_objective_nothing_is_counted():
    """Nothing is counted without an objective, or for an event type that no longer has one. (T14)"""
    known = count_freshness(ORDERS, None, [archived_part(10, 0.5)], A_MOMENT, is_new=True)
    plain = replace(ORDERS, annotations={})
    assert (
        count_freshness(plain, replace(STATE, freshness=known), [archived_part(1, 1)], A_MOMENT, is_new=False) is None
    )

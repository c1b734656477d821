"""Counting events that do not meet the expectations of their event type."""

from msgspec.structs import replace

from nakadi_jobs.archive_ranges import NO_PROGRESS, unread_parts
from nakadi_jobs.expectations import count_in_share


def test_events_are_counted_as_they_are_stored(data):
    """Only events with wanted offsets count; a text that is not JSON meets no expectation, and a tombstone is not an
    event. (T6)"""
    orders = data.event_type("order.placed")
    deep = b'{"a":1,"deep":' + b"[" * 900 + b"]" * 900 + b"}"
    data.archive_events(orders, [{"a": 1}, {"a": -1}, None, {"b": {"a": 1}}, b"{broken", deep])
    [part] = unread_parts(data.index, orders, NO_PROGRESS)

    conditions = ["a >= 0", "a or b.a", "not a"]
    assert count_in_share(data.store, conditions, [part]) == [3, 1, 4]
    assert count_in_share(data.store, conditions, [replace(part, first=1, end=3)]) == [1, 0, 1]

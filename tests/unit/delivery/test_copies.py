"""Cycles of copies are found."""

from nakadi.delivery.copies import copies_from_sinks, reachable_event_types


def test_copies_are_followed_over_several_event_types_and_around_circles():
    """(X63)"""
    copies = copies_from_sinks([(("a", "b"), "c"), (("c",), "d"), (("d",), "c"), (("x",), "a"), (("a",), "e")])
    assert set(reachable_event_types(copies, "a")) == {"a", "c", "d", "e"}
    assert set(reachable_event_types(copies, "e")) == {"e"}

"""Ids and keys."""

from datetime import timedelta
from uuid import RFC_4122, UUID

from nakadi.model.cursor import Position
from nakadi.subscriptions.identity import key_of, new_id
from tests.support.builders import A_MOMENT


def test_ids_are_uuids():
    """An id is a well-formed UUID, and no two are the same. (S2)"""
    ids = {new_id(A_MOMENT) for _ in range(1000)}
    assert len(ids) == 1000
    assert all(UUID(each).variant == RFC_4122 and str(UUID(each)) == each for each in ids)


def test_younger_ids_come_first():
    """In the order of ids the newest is the first, to the millisecond and for thousands of years. (S43)"""
    moments = [A_MOMENT + each for each in (timedelta(0), timedelta(milliseconds=1), timedelta(days=365 * 1000))]
    ids = [new_id(each) for each in moments]
    assert sorted(ids) == ids[::-1]


def test_keys_are_of_sets():
    """The key depends on application, group and the set of event types, and on where one ends and the next begins.
    (S11)"""
    assert key_of("a", ["x", "y"], "g") == key_of("a", ["y", "x", "y"], "g")
    others = {key_of("a", ["x"], "g"), key_of("b", ["x"], "g"), key_of("a", ["x"], "h"), key_of("a", ["x,g"], "g")}
    assert len(others) == 4


def test_positions_are_ordered_as_they_are_published():
    """Positions compare as their published forms do, character by character. (S88, S89)"""
    numbers = (-1, 0, 1, 9, 10, 99, 10**9, 10**18 - 1)
    positions = [Position(timeline, number) for timeline in (1, 2, 10, 16, 255, 0xFFFF) for number in numbers]
    assert positions == sorted(positions)
    assert [str(each) for each in positions] == sorted(str(each) for each in positions)
    assert str(Position(1, 4)) == "001-0001-000000000000000004"
    assert str(Position(1, -1)) == "001-0001--1"

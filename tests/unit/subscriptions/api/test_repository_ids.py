"""Ids and keys."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import pairwise
from uuid import RFC_4122, UUID

from nakadi.model.event_type import Position
from nakadi.subscriptions.api.repository import SubscriptionIds, uniqueness_key
from tests.support.builders import A_MOMENT


def test_ids_are_uuids():
    """An id is a well-formed UUID of version 8, and no two are the same. (S2)"""
    ids = SubscriptionIds()
    made = {ids.new_id(A_MOMENT) for _ in range(1000)}
    assert len(made) == 1000
    assert all(UUID(each).variant == RFC_4122 and UUID(each).version == 8 and str(UUID(each)) == each for each in made)


def test_ids_say_when_they_were_made():
    """Of ids from any processes, younger ones sort first, to the millisecond and for thousands of years. (S43)"""
    moments = [A_MOMENT + each for each in (timedelta(0), timedelta(milliseconds=1), timedelta(days=365 * 1000))]
    made = [SubscriptionIds().new_id(each) for each in moments]
    assert sorted(made) == made[::-1]


def test_ids_made_in_one_millisecond_are_in_order():
    """If there are more ids than fit into a millisecond, the newest still sorts first. (S43)"""
    ids = SubscriptionIds()
    made = [ids.new_id(A_MOMENT) for _ in range(10_000)]
    assert sorted(made, reverse=True) == made


def test_ids_are_in_order_when_the_clock_was_set_back():
    """Even if the clock is set back repeatedly, new ids sort before older ones. (S43)"""
    ids = SubscriptionIds()
    made = [ids.new_id(A_MOMENT + timedelta(hours=hours)) for hours in (0, 1, 0, -1000, 1, -1, 2)]
    assert sorted(made, reverse=True) == made


def test_ids_cannot_be_guessed_from_each_other():
    """Two ids of the same moment differ by more bits than an attacker could try. (S2)"""
    ids = SubscriptionIds()
    made = [UUID(ids.new_id(A_MOMENT)).int for _ in range(1000)]
    distances = [older - newer for older, newer in pairwise(made)]
    assert len(set(distances)) == len(distances)
    assert sorted(distances)[10] > 1 << 50


def test_ids_of_many_threads_are_in_order():
    """Each thread gets its own ids in order, and none twice, while other threads make theirs. (S2, S43)"""
    ids = SubscriptionIds()
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda _: [ids.new_id(A_MOMENT) for _ in range(500)], range(8)))
    assert all(sorted(each, reverse=True) == each for each in made)
    assert len({each for some in made for each in some}) == 4000


def test_keys_are_of_sets():
    """The key depends on the application, the group and the set of event types, including the boundaries between them.
    (S11)"""
    assert uniqueness_key("a", ["x", "y"], "g") == uniqueness_key("a", ["y", "x", "y"], "g")
    others = {
        uniqueness_key("a", ["x"], "g"),
        uniqueness_key("b", ["x"], "g"),
        uniqueness_key("a", ["x"], "h"),
        uniqueness_key("a", ["x,g"], "g"),
    }
    assert len(others) == 4


def test_positions_are_ordered_as_they_are_published():
    """Positions are ordered like their published forms, character by character. (S88, S89)"""
    numbers = (-1, 0, 1, 9, 10, 99, 10**9, 10**18 - 1)
    positions = [Position(timeline, number) for timeline in (1, 2, 10, 16, 255, 0xFFFF) for number in numbers]
    assert positions == sorted(positions)
    assert [str(each) for each in positions] == sorted(str(each) for each in positions)
    assert str(Position(1, 4)) == "001-0001-000000000000000004"
    assert str(Position(1, -1)) == "001-0001--1"

"""Events that are parked after others with the same key, and sent again."""

import pytest

from nakadi.model.events import Record
from nakadi.model.subscription import PartitionAssignment, Replay
from nakadi.ports.coordination import MAX_PARKED_BYTES_PER_CALL, MAX_PARKED_EVENTS_PER_CALL
from nakadi.subscriptions.api.fields import RetryPolicy, UnprocessablePolicy
from nakadi.subscriptions.stream.actions import (
    AutoCommit,
    EndReplay,
    HandOverPartitions,
    OpenPartition,
    ParkEvents,
    ReloadParkedKeys,
)
from nakadi.subscriptions.stream.parking import empty_run_ending_at
from tests.support.chunks import a_chunk
from tests.support.consuming import ME, SessionHarness, at
from tests.support.coordination import a_parked_event, a_place, entry

PARKING = RetryPolicy(UnprocessablePolicy.PARK_KEY, 3)
STARTED = "Stream started"


def events(*keys, start=0):
    """Events with these keys."""
    return a_chunk(*[Record(b"{}", key or None) for key in keys], start=start).run_from_offset(start)


def a_harness(*list_parked, replay=None, **limits):
    """A harness that owns partition 0, in which these keys have parked events."""
    harness = SessionHarness(
        entries=[PartitionAssignment(a_place(0), ME, replay=replay)],
        policy=PARKING,
        opening=False,
        **{"batch_limit": 1, "max_uncommitted_events": 20} | limits,
    )
    answer_opening(harness, *list_parked)
    return harness


def answer_opening(harness, *list_parked):
    """Answer the last request to open a partition with these keys, which have parked events."""
    [opening] = (each for each in harness.take_calls() if isinstance(each, OpenPartition))
    harness.tell(harness.session.handle_opening(opening, opening.position, 0, harness.now, frozenset(list_parked)))


def list_parked(call):
    return [each.end.offset for each in call.events]


def test_events_of_a_parked_key_are_put_away_before_anything_is_sent():
    """While events that follow parked ones are being parked, nothing is sent; afterwards, everything else is."""
    harness = a_harness("a")
    harness.arrive(events("b", "a", "c", "a", ""))
    [call] = harness.take_calls()
    assert (list_parked(call), call.commit_position, harness.take_messages()) == ([1, 3], None, [])
    assert not harness.session.wants_events(a_place(0))
    harness.tell(harness.session.handle_parking_end(call, harness.now))
    assert harness.take_messages() == [f"0:0-0 {STARTED}", "0:2-2", "0:4-4"]


def test_the_cursor_moves_with_them_if_nothing_is_outstanding():
    """If no earlier event is uncommitted, parking events moves the cursor past them in the same step."""
    harness = a_harness("a")
    harness.arrive(events("a", "a", "b", "a"))
    [call] = harness.take_calls()
    assert (list_parked(call), call.commit_position) == ([0, 1, 3], None)
    harness = a_harness("a")
    harness.arrive(events("a", "a"))
    assert harness.take_calls()[0].commit_position == at(1)


def test_the_cursor_does_not_pass_what_is_not_put_away():
    """Until events are known to be parked, nothing after them is committed, not even at the end."""
    harness = a_harness("a", commit_seconds=60)
    harness.arrive(events("a", "b"))
    [call] = harness.take_calls()
    harness.wait(6)
    assert harness.take_calls() == []
    assert harness.session.departure_record().commit_positions == {}
    harness.tell(harness.session.handle_parking_end(call, harness.now))
    harness.wait(1)
    assert harness.take_calls() == [AutoCommit({a_place(0): at(0)})]
    harness.tell(harness.session.handle_shutdown())
    assert harness.session.departure_record().commit_positions == {a_place(0): at(0)}


def test_a_partition_is_not_handed_over_meanwhile():
    """No session gets a partition while its events are being parked. (S316)"""
    harness = a_harness("a")
    harness.arrive(events("a"))
    [call] = harness.take_calls()
    harness.change(entry(0, f"{ME}>other"))
    assert not [each for each in harness.take_calls() if isinstance(each, HandOverPartitions)]
    harness.tell(harness.session.handle_parking_end(call, harness.now))
    assert harness.take_calls() == [HandOverPartitions(frozenset({a_place(0)}), {a_place(0): at(0)})]


def test_many_are_put_away_in_several_steps():
    """No step parks more events than one write may."""
    harness = a_harness("a")
    harness.arrive(events(*["a"] * (MAX_PARKED_EVENTS_PER_CALL + 1)))
    assert [len(call.events) for call in harness.take_calls()] == [MAX_PARKED_EVENTS_PER_CALL, 1]
    harness = a_harness("a")
    large = Record(b"x" * (MAX_PARKED_BYTES_PER_CALL // 2 + 1), "a")
    harness.arrive(a_chunk(large, large, Record(b"{}", "a")).run_from_offset(0))
    assert [list_parked(call) for call in harness.take_calls()] == [[0], [1, 2]]


def test_what_waits_is_looked_at_anew_once_its_key_is_parked():
    """When an event is parked, events that were read after it are read again, because they may have to follow it.
    (S259, S260)"""
    harness = SessionHarness(
        entries=[PartitionAssignment(a_place(0), ME, failed_streams=3, search_end=at(4))],
        policy=PARKING,
        max_uncommitted_events=20,
    )
    harness.arrive(events("a", "a", "b"))
    [drop] = harness.take_calls()
    assert (drop.event.end, drop.failed_streams, drop.replay_id) == (at(0), 3, None)
    harness.opening = False
    harness.commit(0)
    answer_opening(harness, "a")
    assert harness.take_messages() == []
    harness.arrive(events("a", "b", start=1))
    [call] = harness.take_calls()
    assert (list_parked(call), call.commit_position) == ([1], at(1))
    harness.tell(harness.session.handle_parking_end(call, harness.now))
    assert len(harness.take_messages()) == 1


def test_keys_are_asked_for_again_when_the_assignment_changes():
    """When the assignment changes, the keys with parked events are read again, because the last event of a key may have
    been removed. Events that are parked after this read began still count.
    """
    harness = a_harness("a", "b")
    harness.change(entry(0, ME))
    [call] = harness.take_calls()
    assert isinstance(call, ReloadParkedKeys)
    harness.arrive(events("b"))
    [park] = harness.take_calls()
    harness.tell(harness.session.handle_parked_keys(call, frozenset()))
    harness.tell(harness.session.handle_parking_end(park, harness.now))
    harness.arrive(events("a", "b", start=1))
    assert [list_parked(each) for each in harness.take_calls() if isinstance(each, ParkEvents)] == [[2]]


def test_answers_that_came_too_late():
    """The answer to a request from before a partition was opened again does not affect the new opening."""
    harness = a_harness("a")
    harness.arrive(events("a"))
    [park] = harness.take_calls()
    harness.change(entry(0, ME))
    [relearn] = harness.take_calls()
    harness.commit(5)
    answer_opening(harness, "a")
    harness.tell(harness.session.handle_parking_end(park, harness.now))
    harness.tell(harness.session.handle_parked_keys(relearn, frozenset()))
    harness.arrive(events("a", start=6))
    assert [list_parked(each) for each in harness.take_calls()] == [[6]]


def test_without_the_policy_nothing_follows():
    """If a subscription does not park events any more, parked events have no effect."""
    harness = SessionHarness(0, batch_limit=1, max_uncommitted_events=9)
    harness.arrive(events("a", "a"))
    assert harness.take_messages() == [f"0:0-0 {STARTED}", "0:1-1"]


# Replays


def test_a_replay_is_asked_for_and_ended():
    """A partition with a replay is opened with it; when the cursor has reached its earlier position, the replay is
    over."""
    replay = Replay("r", at(9), ("a",))
    harness = SessionHarness(
        entries=[PartitionAssignment(a_place(0), ME, replay=replay)], policy=PARKING, opening=False
    )
    [opening] = harness.take_calls()
    assert opening.replay == replay
    harness.commit(8)
    assert EndReplay(a_place(0), replay) not in harness.take_calls()
    harness.commit(9)
    assert [each for each in harness.take_calls() if isinstance(each, EndReplay)] == [EndReplay(a_place(0), replay)]
    harness.commit(10)
    assert not [each for each in harness.take_calls() if isinstance(each, EndReplay)]


def test_the_end_of_a_replay_is_committed_at_once():
    """When the last event of a replay is committed, the cursor returns to its earlier position, at once and only
    once."""
    harness = a_harness(replay=Replay("r", at(9)))
    harness.arrive(events("a"))
    harness.arrive(empty_run_ending_at(at(9)))
    harness.tick()
    assert harness.take_calls() == []
    harness.commit(0)
    harness.tick()
    harness.tick()
    assert harness.take_calls() == [AutoCommit({a_place(0): at(9)})]


def test_what_is_parked_again_is_no_part_of_the_replay():
    """An event that is parked during a replay is marked, so that it stays parked."""
    harness = a_harness("a", replay=Replay("r", at(9)))
    harness.arrive(events("a"))
    assert harness.take_calls()[0].replay_id == "r"


@pytest.mark.parametrize(
    ("keys", "offset", "during", "has"),
    [
        (("a",), 5, None, True),
        (("b",), 5, None, False),
        (None, 5, None, True),
        (("a",), 10, None, False),
        (("a",), 9, "an earlier one", True),
        (("a",), 5, "r", False),
    ],
)
def test_what_a_replay_has(keys, offset, during, has):
    """A replay has the parked events of its keys up to the earlier position of the cursor, but none that were parked
    later."""
    event = a_parked_event(offset, key="a", replay=during).parked
    assert Replay("r", at(9), keys).includes(event) is has

"""The permitted changes of a partition's state, and the refused ones."""

import pytest

from nakadi.common.states import UnexpectedFact, following_states
from nakadi.subscriptions.stream.partition_states import (
    AT_WORK,
    TRANSITIONS,
    PartitionFact,
    PartitionState,
)
from tests.support.chunks import some_events
from tests.support.consuming import SessionHarness
from tests.support.coordination import a_place


def test_every_state_can_be_reached():
    """From the first state, every state can be reached."""
    reached = {PartitionState.OPENING}
    for _ in PartitionState:
        reached |= {to for (state, _), following in TRANSITIONS.items() if state in reached for to in following}
    assert reached == set(PartitionState)


def test_every_fact_is_expected_somewhere():
    """For every fact, there is a state in which it may arrive."""
    assert {fact for _, fact in TRANSITIONS} == set(PartitionFact)


def test_events_are_sent_again_only_after_somebody_said_that_nobody_waits():
    """From a partition for which another session waits, there is no way back to reading except through an assignment
    that was read afterwards. (S312, S313)"""
    ways_back = {
        (state, fact)
        for (state, fact), following in TRANSITIONS.items()
        if state not in AT_WORK and set(following) & set(AT_WORK)
    }
    assert ways_back == {
        (PartitionState.DRAINING, PartitionFact.UNWANTED),
        (PartitionState.RELEASED, PartitionFact.UNWANTED),
        (PartitionState.HANDING_OVER, PartitionFact.STILL_OURS),
    }


def test_what_a_state_does_not_expect_is_an_error():
    """A fact without an entry in the table is refused, with the names of the fact and the state."""
    with pytest.raises(UnexpectedFact, match="'drained' came in the state 'reading'"):
        following_states(TRANSITIONS, PartitionState.READING, PartitionFact.DRAINED)


def test_a_method_refuses_a_state_that_it_does_not_expect():
    """A partition that is not being read sends and receives nothing, whatever its caller expects."""
    harness = SessionHarness(0, opening=False)
    partition = harness.session._partitions[a_place(0)]
    assert partition.state is PartitionState.OPENING
    with pytest.raises(AssertionError):
        partition.take_runs(1, lambda *_: 0)
    with pytest.raises(AssertionError):
        partition.receive_run(some_events(1, 0), lambda *_: True, check_each=False)
    with pytest.raises(UnexpectedFact):
        partition.begin_hand_over()

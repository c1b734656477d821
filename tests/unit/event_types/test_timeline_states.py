"""The permitted changes of a timeline's state."""

from datetime import UTC, datetime

import pytest

from nakadi.common.states import UnexpectedFact
from nakadi.event_types.timeline_states import (
    TRANSITIONS,
    TimelineFact,
    TimelineState,
    timeline_after,
    timeline_state,
)
from nakadi.model.event_type import Timeline

NOW = datetime(2026, 11, 26, tzinfo=UTC)
ANNOUNCED = Timeline(id="t", order=2, storage_id="default", topic="a-topic", partitions=1, created_at=NOW)

KNOWN = {
    TimelineFact.SWITCHED: {"switched_at": NOW},
    TimelineFact.ENDED: {"latest_positions": {0: -1}},
    TimelineFact.LOST: {"latest_positions": {0: 7}, "cleaned_up_at": NOW},
    TimelineFact.EXPIRED: {"deleted": True},
    TimelineFact.MISSED: {"deleted": True},
}
A_LIFE = (TimelineFact.SWITCHED, TimelineFact.ENDED, TimelineFact.EXPIRED)


def timeline_in(state: TimelineState) -> Timeline:
    timeline = ANNOUNCED
    for fact in A_LIFE[: [*TimelineState].index(state)]:
        timeline = timeline_after(timeline, fact, **KNOWN[fact])
    return timeline


def test_a_life_goes_through_all_states():
    assert [timeline_state(timeline_in(state)) for state in TimelineState] == [*TimelineState]


@pytest.mark.parametrize("state", TimelineState)
@pytest.mark.parametrize("fact", TimelineFact)
def test_only_what_is_in_the_table_can_happen(state, fact):
    timeline = timeline_in(state)
    if (state, fact) in TRANSITIONS:
        assert (timeline_state(timeline_after(timeline, fact, **KNOWN[fact])),) == TRANSITIONS[state, fact]
    else:
        with pytest.raises(UnexpectedFact):
            timeline_after(timeline, fact, **KNOWN[fact])


def test_what_does_not_say_what_happened_is_refused():
    """A closed timeline without its last offsets is refused, because it would look open to every reader."""
    with pytest.raises(AssertionError):
        timeline_after(timeline_in(TimelineState.OPEN), TimelineFact.ENDED, cleaned_up_at=NOW)

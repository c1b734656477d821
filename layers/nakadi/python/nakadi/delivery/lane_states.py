"""The states of a lane and of a sink's deliveries, and which one follows from which fact.

The tables are all there is, and `docs/architecture.md` shows them as diagrams.
"""

from __future__ import annotations

from enum import Enum

from nakadi.common.states import Transitions


class LaneState(Enum):
    """What becomes of one batch; at most one attempt at a time is under way."""

    READY = "ready"
    """It waits for its turn."""
    SENDING = "sending"
    WAITING = "waiting"
    """An attempt failed, and the next has its time."""
    BLOCKED = "blocked"
    """The event was found that the sink fails at; the subscription's policy says what becomes of it."""
    ENDED = "ended"
    """What was not delivered is back in the queue."""


class LaneFact(Enum):
    BEGUN = "begun"
    DELIVERED = "delivered"
    FAILED = "failed"
    FOUND = "found"
    """An attempt failed, and its only event is to blame."""
    DUE = "due"
    """The time for the next attempt has come."""


class DeliveryState(Enum):
    """How the deliveries of one stream of a sink go."""

    DELIVERING = "delivering"
    SETTLING = "settling"
    """No attempt begins any more; those under way end, and what they delivered is committed."""
    SETTLED = "settled"


class DeliveryFact(Enum):
    STOPPED = "stopped"
    FINISHED = "finished"
    """Nothing is under way any more."""


def _lane_table() -> Transitions[LaneState, LaneFact]:
    state, fact = LaneState, LaneFact
    return {
        (state.READY, fact.BEGUN): (state.SENDING,),
        (state.SENDING, fact.DELIVERED): (state.READY, state.ENDED),
        (state.SENDING, fact.FAILED): (state.WAITING,),
        (state.SENDING, fact.FOUND): (state.BLOCKED,),
        (state.WAITING, fact.DUE): (state.READY,),
    }


LANE_TRANSITIONS = _lane_table()

DELIVERY_TRANSITIONS: Transitions[DeliveryState, DeliveryFact] = {
    (DeliveryState.DELIVERING, DeliveryFact.STOPPED): (DeliveryState.SETTLING,),
    (DeliveryState.SETTLING, DeliveryFact.STOPPED): (DeliveryState.SETTLING,),
    (DeliveryState.SETTLING, DeliveryFact.FINISHED): (DeliveryState.SETTLED,),
    (DeliveryState.SETTLED, DeliveryFact.STOPPED): (DeliveryState.SETTLED,),
}

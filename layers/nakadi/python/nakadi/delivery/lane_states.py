"""The states of a lane and of a sink's deliveries, and which state follows from which fact.

The tables are complete, and `docs/architecture.md` shows them as diagrams.
"""

from __future__ import annotations

from enum import Enum

from nakadi.common.states import Transitions


class LaneState(Enum):
    """The state of one batch; at most one attempt at a time is in progress."""

    READY = "ready"
    """The batch waits for its turn."""
    SENDING = "sending"
    WAITING = "waiting"
    """An attempt failed, and the next one is not due yet."""
    BLOCKED = "blocked"
    """The lane has found the event that the sink fails at; the subscription's policy decides what happens to it."""
    ENDED = "ended"
    """The attempts of the lane are over; undelivered events are back in the queue."""


class LaneFact(Enum):
    BEGUN = "begun"
    DELIVERED = "delivered"
    FAILED = "failed"
    FOUND = "found"
    """An attempt with a single event failed as often as the policy allows, and that event is to blame."""
    DUE = "due"
    """The time for the next attempt has come."""


class DeliveryState(Enum):
    """The state of the deliveries of one stream of a sink."""

    DELIVERING = "delivering"
    SETTLING = "settling"
    """No further attempt begins; those in progress end, and the events that they delivered are committed."""
    SETTLED = "settled"


class DeliveryFact(Enum):
    STOPPED = "stopped"
    FINISHED = "finished"
    """No attempt or commit is in progress any longer."""


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

"""The states of a partition in a stream, and which state follows from which fact.

`TRANSITIONS` is complete, and `docs/architecture.md` shows it as a diagram. A fact that is impossible in a state is an
error in the broker's code: it raises `UnexpectedFact`, which ends the stream.
"""

from __future__ import annotations

from enum import Enum

from nakadi.common.states import Transitions


class PartitionState(Enum):
    """Events are sent only in `READING`."""

    OPENING = "opening"
    """The place where reading begins is not known yet."""
    READING = "reading"
    PARKING = "parking"
    """Events are being parked; later events of the partition have to wait."""
    DROPPING = "dropping"
    """An event at which consumers fail is being given up; later events of the partition have to wait."""
    DRAINING = "draining"
    """Another session waits for the partition, and gets it once nothing is outstanding."""
    HANDING_OVER = "handing_over"
    """The other session is being written into the assignment."""
    RELEASED = "released"
    """The session has handed the partition over, and sends no more of its events.

    The next assignment shows whether the partition now belongs to the other session, or no session waits for it any
    longer.
    """


class PartitionFact(Enum):
    """Facts about a partition, from outside or from the session itself."""

    OPENED = "opened"
    REOPENED = "reopened"
    """Reading has to start again, at events that were read and not sent."""
    PARKING_BEGAN = "parking began"
    PARKED = "parked"
    GIVEN_UP = "given up"
    PASSED = "passed"
    """The event that was given up counts as consumed."""
    WANTED = "wanted"
    """An assignment shows another session that waits for the partition."""
    UNWANTED = "unwanted"
    """An assignment shows no other session that waits for the partition."""
    DRAINED = "drained"
    HANDED_OVER = "handed over"
    STILL_OURS = "still ours"
    """The hand-over has ended, and an assignment that was read since shows the partition as ours."""


AT_WORK = (PartitionState.OPENING, PartitionState.READING, PartitionState.PARKING, PartitionState.DROPPING)
"""The states of a partition for which no other session waits, and which was not handed over."""


def _table() -> Transitions[PartitionState, PartitionFact]:
    state, fact = PartitionState, PartitionFact
    going = (state.DRAINING, state.HANDING_OVER, state.RELEASED)
    going_on = (fact.OPENED, fact.REOPENED, fact.PARKING_BEGAN, fact.PARKED)
    return {
        (state.OPENING, fact.OPENED): (state.READING,),
        # Reading starts again after a commit beyond the events that were read, or when an event is parked whose key may
        # have later events.
        **{(each, fact.REOPENED): (state.OPENING,) for each in (state.OPENING, state.READING, state.PARKING)},
        # Events that were already being read may still arrive, and have to be parked, while the partition gives up an
        # event.
        **{(each, fact.PARKING_BEGAN): (state.PARKING,) for each in (state.READING, state.PARKING)},
        (state.DROPPING, fact.PARKING_BEGAN): (state.DROPPING,),
        (state.PARKING, fact.PARKED): (state.PARKING, state.READING),
        (state.DROPPING, fact.PARKED): (state.DROPPING,),
        (state.READING, fact.GIVEN_UP): (state.DROPPING,),
        (state.DROPPING, fact.PASSED): (state.PARKING, state.READING),
        # Another session begins to wait, or no longer waits.
        **{(each, fact.UNWANTED): (each,) for each in AT_WORK},
        **{(each, fact.WANTED): (state.DRAINING,) for each in (*AT_WORK, state.DRAINING, state.RELEASED)},
        **{(each, fact.UNWANTED): AT_WORK for each in (state.DRAINING, state.RELEASED)},
        (state.DRAINING, fact.DRAINED): (state.HANDING_OVER,),
        # Assignments that arrive during the hand-over may be older.
        **{(state.HANDING_OVER, each): (state.HANDING_OVER,) for each in (fact.WANTED, fact.UNWANTED)},
        (state.HANDING_OVER, fact.HANDED_OVER): (state.RELEASED,),
        (state.HANDING_OVER, fact.STILL_OURS): (*AT_WORK, state.DRAINING),
        # Work that was in progress when another session began to wait is finished.
        **{(each, other): (each,) for each in going for other in going_on},
        # This fact never comes in a later state, because a partition counts as drained only once its dropped event is
        # done.
        (state.DRAINING, fact.PASSED): (state.DRAINING,),
        # The offset was set back during the hand-over, so the partition started again.
        **{(each, fact.HANDED_OVER): (state.RELEASED,) for each in (*AT_WORK, state.DRAINING)},
        **{(each, fact.STILL_OURS): (each,) for each in (*AT_WORK, state.DRAINING)},
    }


TRANSITIONS = _table()

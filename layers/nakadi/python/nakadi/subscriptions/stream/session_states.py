"""The states of a session, and which state follows from which fact: `TRANSITIONS` is complete."""

from __future__ import annotations

from enum import Enum

from nakadi.common.states import Transitions


class SessionState(Enum):
    STREAMING = "streaming"
    CLOSING = "closing"
    """The session sends nothing more, and the client may still commit the events that it received."""
    ENDED = "ended"
    """The client had the chance to commit, or gave it up, so the events that it left uncommitted have failed."""
    CUT_OFF = "cut_off"
    """The session ended without a chance to commit, so uncommitted events have not failed."""


class SessionFact(Enum):
    CLOSED = "one of its limits was reached"
    SETTLED = "all is committed, or the time has ended"
    LEFT = "its client does not want to commit"
    CUT = "it may not, or cannot, go on"


OPEN = (SessionState.STREAMING, SessionState.CLOSING)
OVER = (SessionState.ENDED, SessionState.CUT_OFF)

TRANSITIONS: Transitions[SessionState, SessionFact] = {
    (SessionState.STREAMING, SessionFact.CLOSED): (SessionState.CLOSING,),
    (SessionState.CLOSING, SessionFact.SETTLED): (SessionState.ENDED,),
    **{(each, SessionFact.LEFT): (SessionState.ENDED,) for each in OPEN},
    **{(each, SessionFact.CUT): (SessionState.CUT_OFF,) for each in OPEN},
}

"""The states of a timeline, and the table of transitions between them, `TRANSITIONS`.

A timeline is stored as facts, from which `timeline_state` reads its state. Only `timeline_after` changes a timeline.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from msgspec.structs import replace

from nakadi.common.states import Transitions, following_state
from nakadi.model.event_type import Timeline


class TimelineState(Enum):
    ANNOUNCED = "announced"
    """The topic of the timeline exists, and no other switch can begin. Events are still appended to the previous
    timeline.
    """
    OPEN = "open"
    """Events are appended to the timeline."""
    CLOSED = "closed"
    """The timeline accepts no more events, and its last offsets are known. Its events are readable."""
    DELETED = "deleted"
    """The events of the timeline are removed, or soon will be."""


class TimelineFact(Enum):
    SWITCHED = "the one before is closed"
    ENDED = "its topic is sealed"
    LOST = "events were lost after it"
    EXPIRED = "its retention time has ended"
    MISSED = "its topic is gone"


TRANSITIONS: Transitions[TimelineState, TimelineFact] = {
    (TimelineState.ANNOUNCED, TimelineFact.SWITCHED): (TimelineState.OPEN,),
    (TimelineState.OPEN, TimelineFact.ENDED): (TimelineState.CLOSED,),
    (TimelineState.OPEN, TimelineFact.LOST): (TimelineState.CLOSED,),
    (TimelineState.CLOSED, TimelineFact.EXPIRED): (TimelineState.DELETED,),
    (TimelineState.CLOSED, TimelineFact.MISSED): (TimelineState.DELETED,),
}


def timeline_state(timeline: Timeline) -> TimelineState:
    if timeline.deleted:
        return TimelineState.DELETED
    if timeline.closed:
        return TimelineState.CLOSED
    return TimelineState.ANNOUNCED if timeline.switched_at is None else TimelineState.OPEN


def timeline_after(timeline: Timeline, fact: TimelineFact, **known: Any) -> Timeline:
    """The timeline after a fact. Raises `UnexpectedFact` if this fact is impossible in its state."""
    following = following_state(TRANSITIONS, timeline_state(timeline), fact)
    changed = replace(timeline, **known)
    assert timeline_state(changed) is following, f"{known} does not make a timeline {following.value}"
    return changed

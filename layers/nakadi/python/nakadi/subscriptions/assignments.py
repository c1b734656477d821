"""From one assignment to the next: sessions come and go, partitions change hands. Nothing here is stored.

Whoever wants a change reads the assignment, asks for the next one here, writes it, and begins anew if somebody else was
faster. One write moves `MOST_PLACES` partitions at most; what does not fit is moved by the next `rebalanced`, which is
to be asked for until it answers what it was given.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import datetime

from nakadi.model.coordination import Assignment, EndedReset, Entry, Session, SetOffsets
from nakadi.model.outcomes import Conflict
from nakadi.model.subscription import EventTypePartition
from nakadi.ports import MOST_PLACES
from nakadi.subscriptions import rebalance
from nakadi.subscriptions.liveness import MARGIN

RESET_IN_PROGRESS = "Resetting subscription cursors request is still in progress"
TIMEOUT = "Timeout resetting cursors"


def joined(assignment: Assignment, session: Session, subscription: str, now: datetime) -> Assignment:
    """With one more session, and the partitions shared anew; raises `Conflict` if there is no room for it."""
    if session.requested:
        _check_unclaimed(assignment.sessions, session.requested)
    else:
        _check_slots(assignment, subscription)
    if being_reset(assignment, now):
        raise Conflict(RESET_IN_PROGRESS)
    if assignment.reset is not None:
        # Its time is over, and other sessions have not ended.
        assignment = reset_ended(assignment, assignment.reset.id, now, TIMEOUT)
    return rebalanced(replace(assignment, sessions=(*assignment.sessions, session)))


def left(assignment: Assignment, gone: Collection[str]) -> Assignment:
    """Without these sessions. What they had goes to whom it was promised to, or is shared anew."""
    staying = tuple(each for each in assignment.sessions if each.id not in gone)
    released = tuple(_released(entry, gone) for entry in assignment.entries)
    shared = _changed(released, rebalance.rebalance(staying, released))
    return replace(assignment, sessions=staying, entries=_within_one_write(assignment.entries, shared))


def rebalanced(assignment: Assignment) -> Assignment:
    """With everybody's fair share, as far as live owners have let go."""
    shared = _changed(assignment.entries, rebalance.rebalance(assignment.sessions, assignment.entries))
    return replace(assignment, entries=_within_one_write(assignment.entries, shared))


def handed_over(assignment: Assignment, session: str, places: Collection[EventTypePartition]) -> Assignment:
    """With what a session lets go of in the hands of those who wait for it."""
    changes = rebalance.given_to_next(assignment.entries, session, places)
    return replace(assignment, entries=_within_one_write(assignment.entries, _changed(assignment.entries, changes)))


def with_entries(assignment: Assignment, changes: Iterable[Entry]) -> Assignment:
    """With these entries in the places of those that were there."""
    return replace(assignment, entries=_changed(assignment.entries, changes))


def being_reset(assignment: Assignment, now: datetime) -> bool:
    """Whether somebody sets offsets. A marker of the future went up before a clock was set back, and does not count:
    whoever put it up may be long gone, or finds out in time, for offsets are only set while there is no session."""
    reset = assignment.reset
    return reset is not None and now < reset.until and (reset.since is None or reset.since <= now + MARGIN)


def reset_ended(assignment: Assignment, reset_id: str, now: datetime, failure: str = "") -> Assignment:
    """With this reset at its end, if it still stands."""
    reset = assignment.reset
    if reset is None or reset.id != reset_id:
        return assignment
    # That streams were to end is not remembered: the next request for it is about other partitions.
    wish = None if reset.wish == SetOffsets() else reset.wish
    return replace(assignment, reset=None, ended=EndedReset(reset_id, now, failure, wish))


def _check_slots(assignment: Assignment, subscription: str) -> None:
    sharing = sum(not each.requested for each in assignment.sessions)
    claimed = {place for each in assignment.sessions for place in each.requested}
    total = len(assignment.entries)
    if sharing >= total - len(claimed):
        raise Conflict(f"No free slots for streaming available for subscription {subscription}. Total slots: {total}")


def _check_unclaimed(sessions: Iterable[Session], requested: Iterable[EventTypePartition]) -> None:
    claimed = {place for each in sessions for place in each.requested}
    taken = [str(place) for place in requested if place in claimed]
    if taken:
        raise Conflict(
            "The following partitions are already requested by other stream(s) of this subscription: " + ",".join(taken)
        )


def _released(entry: Entry, gone: Collection[str]) -> Entry:
    following = None if entry.next in gone else entry.next
    if entry.owner in gone:
        return replace(entry, owner=following, next=None)
    return replace(entry, next=following)


def _changed(entries: Iterable[Entry], changes: Iterable[Entry]) -> tuple[Entry, ...]:
    new = {each.place: each for each in changes}
    return tuple(new.get(each.place, each) for each in entries)


def _within_one_write(old: Iterable[Entry], new: Iterable[Entry]) -> tuple[Entry, ...]:
    """The new entries, but the old ones once so many owners have changed as one write may change."""
    room, kept = MOST_PLACES, []
    for before, after in zip(old, new, strict=True):
        room -= before.owner != after.owner
        kept.append(after if room >= 0 else before)
    return tuple(kept)

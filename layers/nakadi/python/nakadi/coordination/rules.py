"""What engines have in common: what a write may ask for, and what it does to the offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from nakadi.model.coordination import Assignment, Offset, ParkedEvent, Verdict
from nakadi.model.cursor import Position
from nakadi.model.subscription import EventTypePartition
from nakadi.ports import MOST_PARKED, MOST_PARKED_BYTES, MOST_PLACES

Positions = Mapping[EventTypePartition, Position]

BEFORE_EVERYTHING = Position(0, -1)


def successor(old: Assignment, new: Assignment) -> Assignment:
    """The new assignment as it is stored."""
    return replace(new, revision=old.revision + 1)


def moves(old: Assignment, new: Assignment, positions: Positions) -> Mapping[EventTypePartition, str | None]:
    """The partitions whose offsets a write touches, with their owners; raises `ValueError` for what no engine does."""
    before = {entry.place: entry.owner for entry in old.entries}
    after = {entry.place: entry.owner for entry in new.entries}
    if len(after) < len(new.entries):
        raise ValueError("two entries for one partition")
    if not before.keys() <= after.keys() or not positions.keys() <= after.keys():
        raise ValueError("a partition without an entry")
    if after.keys() - before.keys() - positions.keys():
        raise ValueError("a new entry without a position")
    touched = {place: owner for place, owner in after.items() if place in positions or before[place] != owner}
    if len(touched) > MOST_PLACES:
        raise ValueError(f"{len(touched)} partitions in one write, {MOST_PLACES} are the most")
    return touched


def verdict(offset: Offset | None, session: str, position: Position) -> Verdict:
    """What becomes of a commit where this is stored."""
    if offset is None or offset.owner != session:
        return Verdict.NOT_OWNED
    return Verdict.COMMITTED if position > offset.position else Verdict.OUTDATED


def moved(old: Offset | None, owner: str | None, position: Position | None, now: datetime) -> Offset:
    """The offset after a write gave it this owner, and perhaps this position."""
    at = position if position is not None else old.position if old is not None else None
    assert at is not None, "a new entry has a position"
    return Offset(at, owner, now)


def parking_place(events: Sequence[ParkedEvent]) -> EventTypePartition:
    """The one partition of events that are to be parked; raises `ValueError` for what no engine does."""
    places = {each.parked.place for each in events}
    if len(places) != 1:
        raise ValueError(f"events of {len(places)} partitions are parked at once")
    if len({each.parked.position for each in events}) < len(events):
        raise ValueError("two events at one position")
    size = sum(len(each.value) for each in events)
    if len(events) > MOST_PARKED or (size > MOST_PARKED_BYTES and len(events) > 1):
        raise ValueError(f"{len(events)} events with {size} bytes are too many for one step")
    return places.pop()


def parking_verdict(offset: Offset | None, session: str, upto: Position | None) -> Verdict:
    """What becomes of events to be parked where this is stored."""
    if upto is None and offset is not None and offset.owner == session:
        return Verdict.COMMITTED
    return verdict(offset, session, upto if upto is not None else BEFORE_EVERYTHING)

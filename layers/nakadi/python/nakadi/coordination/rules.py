"""What engines have in common: what a write may ask for, and what it does to the offsets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from nakadi.model.coordination import Assignment, Offset, Verdict
from nakadi.model.cursor import Position
from nakadi.model.subscription import EventTypePartition
from nakadi.ports import MOST_PLACES

Positions = Mapping[EventTypePartition, Position]


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

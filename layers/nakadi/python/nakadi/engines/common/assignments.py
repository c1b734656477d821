"""Rules that all coordination engines share: the effect of a write on an assignment and its offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec.structs import replace

from nakadi.model.event_type import Position
from nakadi.model.subscription import (
    Assignment,
    CommitResult,
    CommittedOffset,
    EventTypePartition,
    OffsetRange,
    OffsetsCommitted,
    ParkedEvent,
    joined_ranges,
)
from nakadi.ports.coordination import MAX_PARKED_BYTES_PER_CALL, MAX_PARKED_EVENTS_PER_CALL, MAX_PARTITIONS_PER_WRITE

PositionsByPartition = Mapping[EventTypePartition, Position]

FIRST_COMMIT_POSITION = Position(0, -1)


def with_next_revision(old: Assignment, new: Assignment) -> Assignment:
    return replace(new, revision=old.revision + 1)


def owner_sessions_of_changed_offsets(
    old: Assignment, new: Assignment, positions: PositionsByPartition
) -> Mapping[EventTypePartition, str | None]:
    """The partitions whose offsets a write touches, with their owners; raises `ValueError` for changes that no engine
    makes."""
    before = {entry.partition: entry.owner for entry in old.entries}
    after = {entry.partition: entry.owner for entry in new.entries}
    if len(after) < len(new.entries):
        raise ValueError("two entries for one partition")
    if not before.keys() <= after.keys() or not positions.keys() <= after.keys():
        raise ValueError("a partition without an entry")
    if after.keys() - before.keys() - positions.keys():
        raise ValueError("a new entry without a position")
    touched = {
        partition: owner for partition, owner in after.items() if partition in positions or before[partition] != owner
    }
    if len(touched) > MAX_PARTITIONS_PER_WRITE:
        raise ValueError(f"{len(touched)} partitions in one write, {MAX_PARTITIONS_PER_WRITE} are the most")
    return touched


def partitions_consumed_again(new: Assignment, positions: PositionsByPartition) -> frozenset[EventTypePartition]:
    """The partitions that get another position without a replay, after which no event counts as consumed any longer."""
    return frozenset(entry.partition for entry in new.entries if entry.partition in positions and entry.replay is None)


def commit_result(offset: CommittedOffset | None, session: str, position: Position) -> CommitResult:
    """The result of a session's commit, given the stored offset."""
    if offset is None or offset.owner != session:
        return CommitResult.NOT_OWNED
    return CommitResult.COMMITTED if position > offset.position else CommitResult.OUTDATED


def commit_report(
    session: str, positions: PositionsByPartition, results: Mapping[EventTypePartition, CommitResult]
) -> OffsetsCommitted | None:
    """The change that is reported to listeners after a commit; None if the commit moved no offset."""
    moved = [item for item in positions.items() if results[item[0]] is CommitResult.COMMITTED]
    return OffsetsCommitted(session, tuple(moved)) if moved else None


def offset_after_commit(
    offset: CommittedOffset, position: Position, now: datetime, done_ahead: Sequence[OffsetRange]
) -> CommittedOffset:
    """The offset after a commit by its owner."""
    if position > offset.position:
        offset = replace(offset, position=position, changed_at=now)
    return replace(offset, done_ahead=joined_ranges((*offset.done_ahead, *done_ahead), offset.position))


def offset_after_change(
    old: CommittedOffset | None, owner: str | None, position: Position | None, now: datetime
) -> CommittedOffset:
    """The offset after a write gave it this owner, and perhaps this position. Events done ahead are ignored."""
    at = position if position is not None else old.position if old is not None else None
    assert at is not None, "a new entry has a position"
    return CommittedOffset(at, owner, now)


def partition_to_park_in(events: Sequence[ParkedEvent]) -> EventTypePartition:
    """The partition of events to park, which must be the same for all; raises `ValueError` for writes that no engine
    makes.
    """
    partitions = {each.parked.partition for each in events}
    if len(partitions) != 1:
        raise ValueError(f"events of {len(partitions)} partitions are parked at once")
    if len({each.parked.position for each in events}) < len(events):
        raise ValueError("two events at one position")
    size = sum(len(each.value) for each in events)
    if len(events) > MAX_PARKED_EVENTS_PER_CALL or (size > MAX_PARKED_BYTES_PER_CALL and len(events) > 1):
        raise ValueError(f"{len(events)} events with {size} bytes are too many for one step")
    return partitions.pop()


def parking_result(offset: CommittedOffset | None, session: str, commit_to: Position | None) -> CommitResult:
    """The result of parking events of a session, given the stored offset of their partition."""
    if commit_to is None and offset is not None and offset.owner == session:
        return CommitResult.COMMITTED
    return commit_result(offset, session, commit_to if commit_to is not None else FIRST_COMMIT_POSITION)

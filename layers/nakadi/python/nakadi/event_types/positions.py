"""Positions in the timelines of an event type: the next event to read, distances, and shifts.

The newest timeline has no end, since events are still written to it. A partition that was added later is empty in the
timelines before: it ends at -1 there.
"""

from __future__ import annotations

from nakadi.event_types.cursors import MAX_OFFSET, MIN_OFFSET, CursorError, CursorErrorKind
from nakadi.model.event_type import EventType
from nakadi.model.outcomes import Invalid
from nakadi.model.timeline import Position, Timeline

TIMELINE_NOT_FOUND = (
    "Timeline not found. It might happen in case the cursor refers to a timeline that has already expired."
)
PARTITION_NOT_FOUND = "Partition not found."
OUT_OF_RANGE = "The result does not fit 64 bits."


def partition_number(event_type: EventType, partition: str) -> int | None:
    """The number of a partition; None if the event type has no partition of this name."""
    return int(partition) if partition in event_type.partitions else None


def timeline_of(event_type: EventType, order: int) -> Timeline | None:
    """The timeline with this order, also one whose events were deleted; None if there never was one."""
    # Nearly every position is in the newest timeline, which is the last one.
    for timeline in reversed(event_type.timelines):
        if timeline.order == order:
            return timeline
    return None


def timelines_with(event_type: EventType, partition: int) -> tuple[Timeline, ...]:
    """The timelines that have the partition, oldest first, without those whose events were deleted."""
    return tuple(each for each in event_type.timelines if not each.deleted and partition < each.partitions)


def end_of(timeline: Timeline, partition: int) -> int | None:
    """The last offset of a closed timeline; None while it is open."""
    return None if timeline.latest_positions is None else timeline.latest_positions.get(partition, -1)


def not_past_loss(event_type: EventType, position: Position, partition: int) -> Position:
    """The position, but at most the end of its timeline if the events behind that end were lost."""
    following = timeline_of(event_type, position.timeline + 1)
    timeline = None if following is None else timeline_of(event_type, position.timeline)
    if timeline is None or following is None or not following.after_loss:
        return position
    end = end_of(timeline, partition)
    return position if end is None else min(position, Position(timeline.order, end))


def canonical_position(event_type: EventType, position: Position, partition: int) -> Position:
    """The position; at the end of a closed timeline, the start of the next one, which is equivalent."""
    if position.timeline == event_type.timelines[-1].order:
        return position
    position = not_past_loss(event_type, position, partition)
    timeline = timeline_of(event_type, position.timeline)
    while timeline is not None and end_of(timeline, partition) == position.offset:
        timeline = timeline_of(event_type, timeline.order + 1)
        if timeline is not None:
            position = Position(timeline.order, -1)
    return position


def next_event(event_type: EventType, position: Position, partition: int) -> tuple[Timeline, int]:
    """The timeline and the offset of the event behind a position. Timelines whose events were deleted are skipped."""
    timeline = timeline_of(event_type, position.timeline)
    if timeline is None:
        raise CursorError(CursorErrorKind.UNAVAILABLE, event_type=event_type.name)
    offset = position.offset + 1
    while _exhausted(timeline, partition, offset):
        following = timeline_of(event_type, timeline.order + 1)
        assert following is not None, "the newest timeline is open"
        timeline, offset = following, 0
    return timeline, offset


def _exhausted(timeline: Timeline, partition: int, offset: int) -> bool:
    end = end_of(timeline, partition)
    return end is not None and (timeline.deleted or offset > end)


def distance(event_type: EventType, partition: str, first: Position, last: Position) -> int:
    """The number of events behind `first`, up to and including `last`; negative if `last` comes before `first`."""
    if first.timeline > last.timeline:
        return -distance(event_type, partition, last, first)
    first = _not_past_loss(event_type, partition, first)
    last = _not_past_loss(event_type, partition, last)
    between = sum(_event_count(event_type, order, partition) for order in range(first.timeline, last.timeline))
    return _within_64_bits(between + last.offset - first.offset)


def shifted(event_type: EventType, partition: str, position: Position, shift: int) -> Position:
    """The position `shift` events further on, or back if it is negative. An event need not exist there."""
    position = _not_past_loss(event_type, partition, position)
    target = Position(position.timeline, _within_64_bits(position.offset + shift))
    if shift > 0:
        return _shifted_forward(event_type, partition, target)
    if shift < 0:
        return _shifted_back(event_type, partition, target)
    return position


def _shifted_forward(event_type: EventType, partition: str, target: Position) -> Position:
    order, offset = target.timeline, target.offset
    while order < event_type.timeline.order:
        size = _event_count(event_type, order, partition)
        if offset < size:
            break
        order, offset = order + 1, offset - size
    return Position(order, offset)


def _shifted_back(event_type: EventType, partition: str, target: Position) -> Position:
    order, offset = target.timeline, target.offset
    while offset < -1:
        order, offset = order - 1, offset + _event_count(event_type, order - 1, partition)
    return Position(order, offset)


def _not_past_loss(event_type: EventType, partition: str, position: Position) -> Position:
    number = partition_number(event_type, partition)
    return position if number is None else not_past_loss(event_type, position, number)


def _event_count(event_type: EventType, order: int, partition: str) -> int:
    """The number of events that a closed timeline ever had in the partition."""
    timeline = timeline_of(event_type, order)
    if timeline is None or timeline.latest_positions is None:
        raise Invalid(TIMELINE_NOT_FOUND)
    number = partition_number(event_type, partition)
    if number is None:
        raise Invalid(PARTITION_NOT_FOUND)
    return timeline.latest_positions.get(number, -1) + 1


def _within_64_bits(number: int) -> int:
    if not MIN_OFFSET <= number <= MAX_OFFSET:
        raise Invalid(OUT_OF_RANGE)
    return number

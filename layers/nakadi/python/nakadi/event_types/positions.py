"""Places and timelines: where reading goes on, how far apart places are, what lies a number of events away.

A timeline that events are still written to has no end. A partition that was added later is empty in the timelines
before: it ends at -1 there.
"""

from __future__ import annotations

from nakadi.event_types.cursors import GREATEST, SMALLEST, CursorError, CursorErrorKind
from nakadi.model.cursor import Position
from nakadi.model.event_type import EventType
from nakadi.model.outcomes import Invalid
from nakadi.model.timeline import Timeline

TIMELINE_NOT_FOUND = (
    "Timeline not found. It might happen in case the cursor refers to a timeline that has already expired."
)
PARTITION_NOT_FOUND = "Partition not found."
OUT_OF_RANGE = "The result does not fit 64 bits."


def partition_number(event_type: EventType, partition: str) -> int | None:
    """The number that a partition's name says, None if the event type has no such partition."""
    return int(partition) if partition in event_type.partitions else None


def timeline_of(event_type: EventType, order: int) -> Timeline | None:
    return next((each for each in event_type.timelines if each.order == order), None)


def active(event_type: EventType) -> tuple[Timeline, ...]:
    """The timelines whose events are not gone, oldest first."""
    return tuple(each for each in event_type.timelines if not each.deleted)


def first_with(event_type: EventType, partition: int) -> Timeline:
    """The oldest active timeline that has the partition."""
    return next(each for each in active(event_type) if partition < each.partitions)


def end_of(timeline: Timeline, partition: int) -> int | None:
    """The last offset of a closed timeline; None while it is open."""
    return None if timeline.latest_positions is None else timeline.latest_positions.get(partition, -1)


def within(event_type: EventType, position: Position, partition: int) -> Position:
    """The place, or the end of its timeline, if events were lost behind that and it ends in front of the place."""
    timeline, following = timeline_of(event_type, position.timeline), timeline_of(event_type, position.timeline + 1)
    if timeline is None or following is None or not following.after_loss:
        return position
    end = end_of(timeline, partition)
    return position if end is None else min(position, Position(timeline.order, end))


def carried_over(event_type: EventType, position: Position, partition: int) -> Position:
    """The same place as the start of the next timeline, if it is the end of a closed one."""
    position = within(event_type, position, partition)
    timeline = timeline_of(event_type, position.timeline)
    while timeline is not None and end_of(timeline, partition) == position.offset:
        timeline = timeline_of(event_type, timeline.order + 1)
        if timeline is not None:
            position = Position(timeline.order, -1)
    return position


def going_on(event_type: EventType, position: Position, partition: int) -> tuple[Timeline, int]:
    """The timeline and the offset of the event behind a position. What is gone is stepped over."""
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
    """How many events lie behind `first`, up to and including `last`; negative if they are the other way round."""
    if first.timeline > last.timeline:
        return -distance(event_type, partition, last, first)
    first, last = _within(event_type, partition, first), _within(event_type, partition, last)
    between = sum(_size(event_type, order, partition) for order in range(first.timeline, last.timeline))
    return _within_64_bits(between + last.offset - first.offset)


def shifted(event_type: EventType, partition: str, position: Position, shift: int) -> Position:
    """The place `shift` events further on, or back. There need not be an event yet, or any more."""
    position = _within(event_type, partition, position)
    target = Position(position.timeline, _within_64_bits(position.offset + shift))
    if shift > 0:
        return _forward(event_type, partition, target)
    if shift < 0:
        return _back(event_type, partition, target)
    return position


def _forward(event_type: EventType, partition: str, target: Position) -> Position:
    order, offset = target.timeline, target.offset
    while order < event_type.timeline.order:
        size = _size(event_type, order, partition)
        if offset < size:
            break
        order, offset = order + 1, offset - size
    return Position(order, offset)


def _back(event_type: EventType, partition: str, target: Position) -> Position:
    order, offset = target.timeline, target.offset
    while offset < -1:
        order, offset = order - 1, offset + _size(event_type, order - 1, partition)
    return Position(order, offset)


def _within(event_type: EventType, partition: str, position: Position) -> Position:
    number = partition_number(event_type, partition)
    return position if number is None else within(event_type, position, number)


def _size(event_type: EventType, order: int, partition: str) -> int:
    """How many events a closed timeline ever had in the partition."""
    timeline = timeline_of(event_type, order)
    if timeline is None or timeline.latest_positions is None:
        raise Invalid(TIMELINE_NOT_FOUND)
    number = partition_number(event_type, partition)
    if number is None:
        raise Invalid(PARTITION_NOT_FOUND)
    return timeline.latest_positions.get(number, -1) + 1


def _within_64_bits(number: int) -> int:
    if not SMALLEST <= number <= GREATEST:
        raise Invalid(OUT_OF_RANGE)
    return number

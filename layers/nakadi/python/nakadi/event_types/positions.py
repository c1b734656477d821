"""Positions in the timelines of an event type: the next event to read, distances, and shifts.

The newest timeline has no end, since events are still written to it. A partition that was added later is empty in
earlier timelines, where its last offset is -1.
"""

from __future__ import annotations

from nakadi.event_types.cursors import (
    MAX_OFFSET,
    MAX_SAFE_OFFSET_DIGITS,
    MIN_OFFSET,
    VERSIONED_OFFSET_PATTERN,
    CursorError,
    CursorErrorKind,
)
from nakadi.model.event_type import EventType, Position, Timeline
from nakadi.model.outcomes import Invalid


def position_in_newest_timeline(event_type: EventType, offset: str) -> Position | None:
    """The position of an offset in the newest timeline, written as the broker writes offsets, as in nearly every
    cursor. None for any other offset, which `parse_offset` reads.
    """
    versioned = VERSIONED_OFFSET_PATTERN.fullmatch(offset)
    if (
        versioned is None
        or len(versioned[2]) > MAX_SAFE_OFFSET_DIGITS
        or int(versioned[1], 16) != event_type.timelines[-1].order
    ):
        return None
    return Position(event_type.timelines[-1].order, int(versioned[2]))


TIMELINE_NOT_FOUND_MESSAGE = (
    "Timeline not found. It might happen in case the cursor refers to a timeline that has already expired."
)
PARTITION_NOT_FOUND_MESSAGE = "Partition not found."
OUT_OF_RANGE_MESSAGE = "The result does not fit 64 bits."


def partition_number(event_type: EventType, partition: str) -> int | None:
    return int(partition) if partition in event_type.partitions else None


def timeline_with_order(event_type: EventType, order: int) -> Timeline | None:
    """The timeline with this order, also one whose events were deleted; None if there never was such a timeline."""
    # Nearly every position is in the newest timeline, which is the last one.
    for timeline in reversed(event_type.timelines):
        if timeline.order == order:
            return timeline
    return None


def timelines_with_partition(event_type: EventType, partition: int) -> tuple[Timeline, ...]:
    """The timelines that have the partition, oldest first, without those whose events were deleted."""
    return tuple(each for each in event_type.timelines if not each.deleted and partition < each.partitions)


def last_offset_if_closed(timeline: Timeline, partition: int) -> int | None:
    """The last offset of a closed timeline; None while it is open."""
    return None if timeline.latest_positions is None else timeline.latest_positions.get(partition, -1)


def position_before_lost_events(event_type: EventType, position: Position, partition: int) -> Position:
    """The position, but at most the end of its timeline if the events after it were lost."""
    following = timeline_with_order(event_type, position.timeline + 1)
    timeline = None if following is None else timeline_with_order(event_type, position.timeline)
    if timeline is None or following is None or not following.after_loss:
        return position
    end = last_offset_if_closed(timeline, partition)
    return position if end is None else min(position, Position(timeline.order, end))


def canonical_position(event_type: EventType, position: Position, partition: int) -> Position:
    """The position itself; if it is the end of a closed timeline, the equivalent start of the next timeline."""
    if position.timeline == event_type.timelines[-1].order:
        return position
    position = position_before_lost_events(event_type, position, partition)
    timeline = timeline_with_order(event_type, position.timeline)
    while timeline is not None and last_offset_if_closed(timeline, partition) == position.offset:
        timeline = timeline_with_order(event_type, timeline.order + 1)
        if timeline is not None:
            position = Position(timeline.order, -1)
    return position


def next_event_location(event_type: EventType, position: Position, partition: int) -> tuple[Timeline, int]:
    """The timeline and the offset of the event after a position. Timelines whose events were deleted are skipped."""
    timeline = timeline_with_order(event_type, position.timeline)
    if timeline is None:
        raise CursorError(CursorErrorKind.UNAVAILABLE, event_type=event_type.name)
    offset = position.offset + 1
    while _is_behind_last_event(timeline, partition, offset):
        following = timeline_with_order(event_type, timeline.order + 1)
        assert following is not None, "the newest timeline is open"
        timeline, offset = following, 0
    return timeline, offset


def _is_behind_last_event(timeline: Timeline, partition: int, offset: int) -> bool:
    end = last_offset_if_closed(timeline, partition)
    return end is not None and (timeline.deleted or offset > end)


def count_events_between(event_type: EventType, partition: str, first: Position, last: Position) -> int:
    """The number of events after `first`, up to and including `last`; negative if `last` comes before `first`."""
    if first.timeline > last.timeline:
        return -count_events_between(event_type, partition, last, first)
    first = _position_before_lost_events(event_type, partition, first)
    last = _position_before_lost_events(event_type, partition, last)
    between = sum(
        _count_events_of_closed_timeline(event_type, order, partition) for order in range(first.timeline, last.timeline)
    )
    return _require_64_bits(between + last.offset - first.offset)


def shifted_position(event_type: EventType, partition: str, position: Position, shift: int) -> Position:
    """The position `shift` events further on, or back if it is negative. An event need not exist there."""
    position = _position_before_lost_events(event_type, partition, position)
    target = Position(position.timeline, _require_64_bits(position.offset + shift))
    if shift > 0:
        return _into_later_timelines(event_type, partition, target)
    if shift < 0:
        return _into_earlier_timelines(event_type, partition, target)
    return position


def _into_later_timelines(event_type: EventType, partition: str, target: Position) -> Position:
    order, offset = target.timeline, target.offset
    while order < event_type.timeline.order:
        size = _count_events_of_closed_timeline(event_type, order, partition)
        if offset < size:
            break
        order, offset = order + 1, offset - size
    return Position(order, offset)


def _into_earlier_timelines(event_type: EventType, partition: str, target: Position) -> Position:
    order, offset = target.timeline, target.offset
    while offset < -1:
        order, offset = order - 1, offset + _count_events_of_closed_timeline(event_type, order - 1, partition)
    return Position(order, offset)


def _position_before_lost_events(event_type: EventType, partition: str, position: Position) -> Position:
    number = partition_number(event_type, partition)
    return position if number is None else position_before_lost_events(event_type, position, number)


def _count_events_of_closed_timeline(event_type: EventType, order: int, partition: str) -> int:
    """The number of events that a closed timeline ever had in the partition."""
    timeline = timeline_with_order(event_type, order)
    if timeline is None or timeline.latest_positions is None:
        raise Invalid(TIMELINE_NOT_FOUND_MESSAGE)
    number = partition_number(event_type, partition)
    if number is None:
        raise Invalid(PARTITION_NOT_FOUND_MESSAGE)
    return timeline.latest_positions.get(number, -1) + 1


def _require_64_bits(number: int) -> int:
    if not MIN_OFFSET <= number <= MAX_OFFSET:
        raise Invalid(OUT_OF_RANGE_MESSAGE)
    return number

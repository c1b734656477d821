"""Cursors as clients write them, and the positions in the timelines of an event type that they stand for.

The newest timeline has no end, since events are still written to it. A partition that was added later is empty in the
timelines before: it ends at -1 there.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Literal

from msgspec import Struct

from nakadi.model.event_type import Cursor, EventType, Position, Timeline
from nakadi.model.outcomes import Invalid

BEGIN: Literal["BEGIN"] = "BEGIN"

CURSOR_VERSION = "001"
PLAIN_OFFSET_PATTERN = re.compile(r"-?[0-9]+", re.ASCII)
VERSIONED_OFFSET_PATTERN = re.compile(rf"{CURSOR_VERSION}-([0-9a-fA-F]{{4}})-(-?[0-9]+)", re.ASCII)
DATE_TIME_PATTERN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII | re.IGNORECASE)
MAX_SAFE_OFFSET_DIGITS = 18

MIN_OFFSET = -(2**63)
MAX_OFFSET = 2**63 - 1


class CursorErrorKind(Enum):
    PARTITION_NOT_FOUND = auto()
    UNAVAILABLE = auto()
    NULL_OFFSET = auto()
    NULL_PARTITION = auto()
    INVALID_FORMAT = auto()
    INVALID_OFFSET = auto()


class CursorError(Exception):
    """Raised when a cursor leads to no position. Its text is for the client; the status depends on the endpoint."""

    def __init__(
        self,
        kind: CursorErrorKind,
        partition: str | None = None,
        offset: str | None = None,
        event_type: str | None = None,
    ) -> None:
        self.kind = kind
        self.partition = partition
        self.offset = offset
        self.event_type = event_type
        super().__init__(
            _cursor_error_text(
                kind, "null" if partition is None else partition, "null" if offset is None else offset, event_type
            )
        )


def _cursor_error_text(kind: CursorErrorKind, partition: str, offset: str, event_type: str | None) -> str:
    match kind:
        case CursorErrorKind.PARTITION_NOT_FOUND:
            return f"non existing partition {partition}"
        case CursorErrorKind.UNAVAILABLE:
            return (
                f"offset {offset} for partition {partition} event type {event_type} is unavailable as retention time "
                "of data elapsed. PATCH partition offset with valid and available offset"
            )
        case CursorErrorKind.NULL_OFFSET:
            return "offset must not be null"
        case CursorErrorKind.NULL_PARTITION:
            return "partition must not be null"
        case CursorErrorKind.INVALID_FORMAT:
            return f"invalid cursor format, partition: {partition} offset: {offset}"
        case CursorErrorKind.INVALID_OFFSET:
            return f"invalid offset {offset} for partition {partition}"


class NumberedOffset(Struct, frozen=True):
    """A number in a timeline, in the oldest without a `timeline_order`. `digits` are as the client wrote them."""

    timeline_order: int | None
    digits: str

    @property
    def offset(self) -> int:
        """The number; one that does not fit 64 bits becomes the nearest one that does not."""
        if len(self.digits) <= MAX_SAFE_OFFSET_DIGITS:
            return int(self.digits)
        magnitude = self.digits.lstrip("-").lstrip("0")[: len(str(MAX_OFFSET)) + 1]
        number = int(magnitude or "0")
        return max(MIN_OFFSET - 1, -number) if self.digits.startswith("-") else min(MAX_OFFSET + 1, number)


# `BEGIN` is just before the oldest event that is still stored, a time just before the first event that was stored at
# this time or later.
ParsedOffset = Literal["BEGIN"] | datetime | NumberedOffset


def parse_offset(cursor: Cursor) -> ParsedOffset:
    """Parse the offset of a cursor: `001-0001-000000000000000012`, `12`, `BEGIN` or a time. Raises `CursorError`."""
    versioned = VERSIONED_OFFSET_PATTERN.fullmatch(cursor.offset)
    if versioned:
        return NumberedOffset(int(versioned[1], 16), versioned[2])
    if cursor.offset.startswith(CURSOR_VERSION):
        # Clients know this error without the partition and the offset.
        raise CursorError(CursorErrorKind.INVALID_OFFSET)
    if cursor.offset.upper() == BEGIN:
        return BEGIN
    if PLAIN_OFFSET_PATTERN.fullmatch(cursor.offset):
        return NumberedOffset(None, _padded_digits(cursor.offset))
    time = _time_from_text(cursor.offset)
    if time is None:
        raise CursorError(CursorErrorKind.INVALID_OFFSET, cursor.partition, cursor.offset)
    return time


def position_in_newest_timeline(event_type: EventType, offset: str) -> Position | None:
    """The position of an offset as it is sent to clients, in the newest timeline: what nearly every cursor has. None
    for any other, which `parse_offset` reads."""
    versioned = VERSIONED_OFFSET_PATTERN.fullmatch(offset)
    if (
        versioned is None
        or len(versioned[2]) > MAX_SAFE_OFFSET_DIGITS
        or int(versioned[1], 16) != event_type.timelines[-1].order
    ):
        return None
    return Position(event_type.timelines[-1].order, int(versioned[2]))


def offset_digits(position: Position, sent_offset: str = "") -> str:
    """The number of a position: as in `sent_offset` if that is an offset with this number, else as published."""
    try:
        parsed = parse_offset(Cursor("", sent_offset))
    except CursorError:
        parsed = None
    if isinstance(parsed, NumberedOffset) and parsed.offset == position.offset:
        return parsed.digits
    return str(position).split("-", 2)[2]


def offset_as_sent(position: Position, sent_offset: str) -> str:
    """The offset of a position, its number spelt as the client sent_offset it: `001-0001-5` is returned as it is."""
    version, order, _ = str(position).split("-", 2)
    return f"{version}-{order}-{offset_digits(position, sent_offset)}"


def fits_64_bits(position: Position) -> bool:
    """Whether an event could have the number of this position."""
    return MIN_OFFSET <= position.offset <= MAX_OFFSET


def _padded_digits(digits: str) -> str:
    return digits if digits.startswith("-") else digits.zfill(MAX_SAFE_OFFSET_DIGITS)


def _time_from_text(text: str) -> datetime | None:
    if not DATE_TIME_PATTERN.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


# Positions: the next event to read, distances, and shifts -------------------------------------------------------------


TIMELINE_NOT_FOUND_MESSAGE = (
    "Timeline not found. It might happen in case the cursor refers to a timeline that has already expired."
)
PARTITION_NOT_FOUND_MESSAGE = "Partition not found."
OUT_OF_RANGE_MESSAGE = "The result does not fit 64 bits."


def partition_number(event_type: EventType, partition: str) -> int | None:
    return int(partition) if partition in event_type.partitions else None


def timeline_with_order(event_type: EventType, order: int) -> Timeline | None:
    """The timeline with this order, also one whose events were deleted; None if there never was one."""
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
    """The position, but at most the end of its timeline if the events behind that end were lost."""
    following = timeline_with_order(event_type, position.timeline + 1)
    timeline = None if following is None else timeline_with_order(event_type, position.timeline)
    if timeline is None or following is None or not following.after_loss:
        return position
    end = last_offset_if_closed(timeline, partition)
    return position if end is None else min(position, Position(timeline.order, end))


def canonical_position(event_type: EventType, position: Position, partition: int) -> Position:
    """The position; at the end of a closed timeline, the start of the next one, which is equivalent."""
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
    """The timeline and the offset of the event behind a position. Timelines whose events were deleted are skipped."""
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
    """The number of events behind `first`, up to and including `last`; negative if `last` comes before `first`."""
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

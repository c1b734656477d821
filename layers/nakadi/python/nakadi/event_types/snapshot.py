"""The partitions of an event type at one moment: their first and last events, and the positions of cursors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime

from msgspec import Struct, field

from nakadi.event_types.cursors import (
    CursorError,
    CursorErrorKind,
    NumberedOffset,
    fits_64_bits,
    offset_digits,
    parse_offset,
)
from nakadi.event_types.positions import (
    canonical_position,
    last_offset_if_closed,
    next_event_location,
    partition_number,
    position_before_lost_events,
    timeline_with_order,
    timelines_with_partition,
)
from nakadi.model.event_type import Cursor, EventType, Position, Timeline
from nakadi.model.events import OffsetBounds
from nakadi.model.outcomes import Invalid, Unavailable
from nakadi.ports.event_log import EventLogs, UnknownTopic

LOG_DOES_NOT_ANSWER_MESSAGE = "Error occurred when fetching partitions offsets"
DUPLICATE_PARTITIONS_MESSAGE = "duplicate partition ids provided in cursors"

EMPTY_PARTITION_BOUNDS = OffsetBounds(oldest=0, next_offset=0)


class CursorResolver:
    """Finds positions in event types.

    Each method reads the event logs again. A caller that needs several positions takes one snapshot, whose answers
    agree.
    """

    def __init__(self, logs: EventLogs) -> None:
        self._logs = logs

    def take_snapshot(self, event_type: EventType) -> PartitionSnapshot:
        return PartitionSnapshot(event_type, self._logs)

    def resolve(self, event_type: EventType, cursor: Cursor) -> Position:
        return PartitionSnapshot(event_type, self._logs).resolve(cursor)

    def start_positions(self, event_type: EventType, cursors: Sequence[Cursor]) -> Mapping[str, Position]:
        return PartitionSnapshot(event_type, self._logs).start_positions(cursors)

    def check_readable(self, event_type: EventType, partition: str, position: Position, sent_offset: str = "") -> None:
        PartitionSnapshot(event_type, self._logs).check_readable(partition, position, sent_offset)

    def positions_before_oldest(self, event_type: EventType) -> Mapping[str, Position]:
        return PartitionSnapshot(event_type, self._logs).positions_before_oldest()

    def end_positions(self, event_type: EventType) -> Mapping[str, Position]:
        """The position in each partition where a stream without cursors begins."""
        return PartitionSnapshot(event_type, self._logs).end_positions()

    def next_event_location(self, event_type: EventType, position: Position, partition: str) -> tuple[Timeline, int]:
        number = partition_number(event_type, partition)
        if number is None:
            raise CursorError(CursorErrorKind.PARTITION_NOT_FOUND, partition)
        return next_event_location(event_type, position, number)


class PartitionSnapshot(Struct):
    """The partitions of an event type at one moment.

    It reads the bounds of a timeline at their first use, and only once, so that all answers agree.
    """

    _event_type: EventType
    _logs: EventLogs
    _bounds_by_timeline: dict[int, Mapping[int, OffsetBounds]] = field(default_factory=dict)

    # Beginnings and ends

    def oldest_and_newest_events(self) -> Mapping[str, tuple[Position, Position]]:
        """The oldest stored event and the newest event of each partition, by partition number.

        In a partition without events, the newest position is one below the oldest.
        """
        numbers = range(self._event_type.timeline.partitions)
        return {
            str(number): (self._oldest_event_position(number), self._newest_event_position(number))
            for number in numbers
        }

    def positions_before_oldest(self) -> Mapping[str, Position]:
        """The position just before the oldest stored event of each partition."""
        numbers = range(self._event_type.timeline.partitions)
        return {str(number): self._position_before_oldest(number) for number in numbers}

    def end_positions(self) -> Mapping[str, Position]:
        """The end of each partition in the newest timeline, even if that timeline has no events yet."""
        timeline = self._event_type.timeline
        bounds = self._bounds_of(timeline)
        return {str(number): Position(timeline.order, each.newest) for number, each in bounds.items()}

    def _oldest_event_position(self, partition: int) -> Position:
        timeline = timelines_with_partition(self._event_type, partition)[0]
        return Position(timeline.order, self._bounds_of(timeline)[partition].oldest)

    def _position_before_oldest(self, partition: int) -> Position:
        oldest = self._oldest_event_position(partition)
        return Position(oldest.timeline, oldest.offset - 1)

    def _newest_event_position(self, partition: int) -> Position:
        """The newest event in any timeline: the newest timelines may be empty."""
        timelines = timelines_with_partition(self._event_type, partition)
        ends = [Position(each.order, self._last_offset_of(each, partition)) for each in timelines]
        return next((end for end in reversed(ends) if end.offset >= 0), ends[0])

    def _last_offset_of(self, timeline: Timeline, partition: int) -> int:
        end = last_offset_if_closed(timeline, partition)
        return self._bounds_of(timeline)[partition].newest if end is None else end

    # Cursors

    def resolve(self, cursor: Cursor) -> Position:
        """The position of a cursor, whether or not the events after it are readable."""
        position = self._position_of_cursor(cursor)
        if not fits_64_bits(position):
            raise self._invalid_format_error(cursor.partition, position, cursor.offset)
        return position

    def start_positions(self, cursors: Sequence[Cursor]) -> Mapping[str, Position]:
        """The positions where a stream begins, by partition. Raises for the first unreadable cursor."""
        if not cursors:
            raise CursorError(CursorErrorKind.INVALID_FORMAT)
        positions = [self._position_of_cursor(cursor) for cursor in cursors]
        for cursor, position in zip(cursors, positions, strict=True):
            self._stored_timeline(cursor.partition, position, cursor.offset)
        for cursor, position in zip(cursors, positions, strict=True):
            self.check_readable(cursor.partition, position, cursor.offset)
        by_partition = {cursor.partition: position for cursor, position in zip(cursors, positions, strict=True)}
        if len(by_partition) < len(cursors):
            raise Invalid(DUPLICATE_PARTITIONS_MESSAGE)
        return by_partition

    def check_readable(self, partition: str, position: Position, sent_offset: str = "") -> None:
        """Raise unless the events after a position are readable; `sent_offset` is the offset as the client wrote it."""
        timeline = self._stored_timeline(partition, position, sent_offset)
        number = partition_number(self._event_type, partition)
        if number is None:
            raise CursorError(CursorErrorKind.PARTITION_NOT_FOUND, partition, sent_offset)
        if not fits_64_bits(position):
            raise self._invalid_format_error(partition, position, sent_offset)
        position = position_before_lost_events(self._event_type, position, number)
        bounds = self._bounds_of(timeline)[number]
        if not bounds.oldest - 1 <= position.offset <= bounds.newest:
            raise self._unavailable_error(partition, position, sent_offset)

    def _position_of_cursor(self, cursor: Cursor) -> Position:
        offset = parse_offset(cursor)
        if isinstance(offset, NumberedOffset):
            return self._position_of_numbered_offset(cursor, offset)
        number = partition_number(self._event_type, cursor.partition)
        if number is None:
            raise CursorError(CursorErrorKind.PARTITION_NOT_FOUND, cursor.partition, cursor.offset)
        match offset:
            case "BEGIN":
                return self._position_before_oldest(number)
            case datetime() as at:
                return self._position_before_time(at, number)

    def _position_of_numbered_offset(self, cursor: Cursor, offset: NumberedOffset) -> Position:
        timelines = self._event_type.timelines
        if offset.timeline_order is None:
            return Position(timelines[0].order, offset.offset)
        position = Position(offset.timeline_order, offset.offset)
        if offset.timeline_order == timelines[-1].order:  # nearly every cursor is in this timeline
            return position
        if timeline_with_order(self._event_type, offset.timeline_order) is None:
            # The error does not name the partition and the offset, as clients expect.
            raise CursorError(CursorErrorKind.UNAVAILABLE, event_type=self._event_type.name)
        number = partition_number(self._event_type, cursor.partition)
        return position if number is None else canonical_position(self._event_type, position, number)

    def _position_before_time(self, time: datetime, partition: int) -> Position:
        for timeline in timelines_with_partition(self._event_type, partition):
            with event_log_errors_as_unavailable():
                log = self._logs.for_storage(timeline.storage_id)
                position = Position(timeline.order, log.first_offset_since(timeline.topic, partition, time) - 1)
            end = last_offset_if_closed(timeline, partition)
            if end is None or position.offset < end:
                return position
        raise AssertionError("the newest timeline is open")

    # Errors

    def _stored_timeline(self, partition: str, position: Position, sent_offset: str) -> Timeline:
        timeline = timeline_with_order(self._event_type, position.timeline)
        if timeline is None or timeline.deleted:
            raise self._unavailable_error(partition, position, sent_offset)
        return timeline

    def _unavailable_error(self, partition: str, position: Position, sent_offset: str) -> CursorError:
        digits = offset_digits(position, sent_offset)
        return CursorError(CursorErrorKind.UNAVAILABLE, partition, digits, self._event_type.name)

    def _invalid_format_error(self, partition: str, position: Position, sent_offset: str) -> CursorError:
        return CursorError(CursorErrorKind.INVALID_FORMAT, partition, offset_digits(position, sent_offset))

    # Bounds

    def _bounds_of(self, timeline: Timeline) -> Mapping[int, OffsetBounds]:
        """The bounds of a timeline's partitions. A partition that was added after the timeline was closed is empty in
        it.
        """
        if timeline.order not in self._bounds_by_timeline:
            with event_log_errors_as_unavailable():
                log = self._logs.for_storage(timeline.storage_id)
                found = log.bounds(timeline.topic, range(timeline.partitions))
            added_later = range(timeline.partitions, self._event_type.timeline.partitions)
            self._bounds_by_timeline[timeline.order] = {**found, **dict.fromkeys(added_later, EMPTY_PARTITION_BOUNDS)}
        return self._bounds_by_timeline[timeline.order]


@contextmanager
def event_log_errors_as_unavailable() -> Iterator[None]:
    """Within the block, raise the outcomes that clients expect if a log does not answer, or a topic is deleted during a
    read.
    """
    try:
        yield
    except Unavailable as error:
        raise Unavailable(
            LOG_DOES_NOT_ANSWER_MESSAGE,
            public=LOG_DOES_NOT_ANSWER_MESSAGE,
            retry_after_seconds=error.retry_after_seconds,
        ) from error
    except UnknownTopic as error:
        raise Unavailable(LOG_DOES_NOT_ANSWER_MESSAGE, public=LOG_DOES_NOT_ANSWER_MESSAGE) from error

"""An event type's partitions as they are at one moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime

from nakadi.event_types import cursors, positions
from nakadi.event_types.cursors import Begin, CursorError, CursorErrorKind, Moment, Numbered
from nakadi.model.cursor import Cursor, Position
from nakadi.model.event_type import EventType
from nakadi.model.events import Bounds
from nakadi.model.outcomes import Invalid, Unavailable
from nakadi.model.timeline import Timeline
from nakadi.ports.event_log import EventLogs, UnknownTopic

NO_ANSWER = "Error occurred when fetching partitions offsets"
DUPLICATE = "duplicate partition ids provided in cursors"

NEVER_USED = Bounds(oldest=0, next=0)


class View:
    """Looks at a timeline's bounds when they are first needed, and once: all that it says is of one moment."""

    def __init__(self, event_type: EventType, logs: EventLogs) -> None:
        self._event_type = event_type
        self._logs = logs
        self._bounds: dict[int, Mapping[int, Bounds]] = {}

    # Ends

    def ends(self) -> Mapping[str, tuple[Position, Position]]:
        """Per partition, by number: the oldest event still there, and the newest event.

        In a partition without events the newest is one before the oldest.
        """
        numbers = range(self._event_type.timeline.partitions)
        return {str(number): (self._oldest(number), self._last(number)) for number in numbers}

    def beginning(self) -> Mapping[str, Position]:
        """Per partition: just before the oldest event."""
        return {str(number): self._begin(number) for number in range(self._event_type.timeline.partitions)}

    def newest(self) -> Mapping[str, Position]:
        """Per partition: the end of the newest timeline, also when nothing was written to it yet."""
        timeline = self._event_type.timeline
        return {str(number): Position(timeline.order, bounds.newest) for number, bounds in self._of(timeline).items()}

    def _oldest(self, partition: int) -> Position:
        timeline = positions.first_with(self._event_type, partition)
        return Position(timeline.order, self._of(timeline)[partition].oldest)

    def _begin(self, partition: int) -> Position:
        oldest = self._oldest(partition)
        return Position(oldest.timeline, oldest.offset - 1)

    def _last(self, partition: int) -> Position:
        """The newest event wherever it is: a timeline without one does not hide those before it."""
        active = [each for each in positions.active(self._event_type) if partition < each.partitions]
        lasts = [Position(each.order, self._end(each, partition)) for each in active]
        return next((last for last in reversed(lasts) if last.offset >= 0), lasts[0])

    def _end(self, timeline: Timeline, partition: int) -> int:
        end = positions.end_of(timeline, partition)
        return self._of(timeline)[partition].newest if end is None else end

    # Cursors

    def resolve(self, cursor: Cursor) -> Position:
        """The place that a cursor means, whether or not there is anything to read at it."""
        position = self._resolved(cursor)
        if not cursors.fits(position):
            raise self._misfit(cursor.partition, position, cursor.offset)
        return position

    def starts(self, cursors: Sequence[Cursor]) -> Mapping[str, Position]:
        """Where a stream over these partitions begins; raises for the first cursor that nothing can be read from."""
        if not cursors:
            raise CursorError(CursorErrorKind.INVALID_FORMAT)
        positions = [self._resolved(cursor) for cursor in cursors]
        for cursor, position in zip(cursors, positions, strict=True):
            self._refuse_deleted(cursor.partition, position, cursor.offset)
        for cursor, position in zip(cursors, positions, strict=True):
            self.check_readable(cursor.partition, position, cursor.offset)
        found = {cursor.partition: position for cursor, position in zip(cursors, positions, strict=True)}
        if len(found) < len(cursors):
            raise Invalid(DUPLICATE)
        return found

    def check_readable(self, partition: str, position: Position, sent: str = "") -> None:
        """Raise unless reading can go on behind a position; `sent` is the offset as the client wrote it."""
        timeline = self._refuse_deleted(partition, position, sent)
        number = positions.partition_number(self._event_type, partition)
        if number is None:
            raise CursorError(CursorErrorKind.PARTITION_NOT_FOUND, partition, sent)
        if not cursors.fits(position):
            raise self._misfit(partition, position, sent)
        position = positions.within(self._event_type, position, number)
        bounds = self._of(timeline)[number]
        if not bounds.oldest - 1 <= position.offset <= bounds.newest:
            raise self._unavailable(partition, position, sent)

    def _resolved(self, cursor: Cursor) -> Position:
        place = cursors.parsed(cursor)
        if isinstance(place, Numbered):
            return self._numbered(cursor, place)
        number = positions.partition_number(self._event_type, cursor.partition)
        if number is None:
            raise CursorError(CursorErrorKind.PARTITION_NOT_FOUND, cursor.partition, cursor.offset)
        match place:
            case Begin():
                return self._begin(number)
            case Moment(at):
                return self._before(at, number)

    def _numbered(self, cursor: Cursor, place: Numbered) -> Position:
        if place.order is None:
            return Position(self._event_type.timelines[0].order, place.offset)
        if positions.timeline_of(self._event_type, place.order) is None:
            # Clients know this error without names in it.
            raise CursorError(CursorErrorKind.UNAVAILABLE, event_type=self._event_type.name)
        position = Position(place.order, place.offset)
        number = positions.partition_number(self._event_type, cursor.partition)
        return position if number is None else positions.carried_over(self._event_type, position, number)

    def _before(self, moment: datetime, partition: int) -> Position:
        active = [each for each in positions.active(self._event_type) if partition < each.partitions]
        for timeline in active:
            with asking():
                log = self._logs.of(timeline.storage_id)
                position = Position(timeline.order, log.offset_at(timeline.topic, partition, moment) - 1)
            end = positions.end_of(timeline, partition)
            if end is None or position.offset < end:
                return position
        raise AssertionError("the newest timeline is open")

    # Refusing

    def _refuse_deleted(self, partition: str, position: Position, sent: str) -> Timeline:
        timeline = positions.timeline_of(self._event_type, position.timeline)
        if timeline is None or timeline.deleted:
            raise self._unavailable(partition, position, sent)
        return timeline

    def _unavailable(self, partition: str, position: Position, sent: str) -> CursorError:
        digits = cursors.digits(position, sent)
        return CursorError(CursorErrorKind.UNAVAILABLE, partition, digits, self._event_type.name)

    def _misfit(self, partition: str, position: Position, sent: str) -> CursorError:
        return CursorError(CursorErrorKind.INVALID_FORMAT, partition, cursors.digits(position, sent))

    # Asking

    def _of(self, timeline: Timeline) -> Mapping[int, Bounds]:
        """Where a timeline's partitions begin and end; one that it does not have yet is empty."""
        if timeline.order not in self._bounds:
            with asking():
                log = self._logs.of(timeline.storage_id)
                found = log.bounds(timeline.topic, range(timeline.partitions))
            added_later = range(timeline.partitions, self._event_type.timeline.partitions)
            self._bounds[timeline.order] = {**found, **dict.fromkeys(added_later, NEVER_USED)}
        return self._bounds[timeline.order]


@contextmanager
def asking() -> Iterator[None]:
    """A log that does not answer is unavailable, and so is a topic that goes away while it is being looked at."""
    try:
        yield
    except (Unavailable, UnknownTopic) as error:
        raise Unavailable(NO_ANSWER, told=NO_ANSWER) from error


class Cursors:
    """Each method looks at the event logs anew; who asks several things at once takes a view with `at`."""

    def __init__(self, logs: EventLogs) -> None:
        self._logs = logs

    def at(self, event_type: EventType) -> View:
        """The event type's partitions as they are now."""
        return View(event_type, self._logs)

    def resolve(self, event_type: EventType, cursor: Cursor) -> Position:
        """The place that a cursor means, whether or not there is anything to read at it. Raises `CursorError`."""
        return self.at(event_type).resolve(cursor)

    def starts(self, event_type: EventType, cursors: Sequence[Cursor]) -> Mapping[str, Position]:
        """Where a stream from these cursors begins, all of them checked. Raises `CursorError`."""
        return self.at(event_type).starts(cursors)

    def check_readable(self, event_type: EventType, partition: str, position: Position, sent: str = "") -> None:
        """Raise `CursorError` unless reading can go on behind a position; `sent` is the offset as it was written."""
        self.at(event_type).check_readable(partition, position, sent)

    def ends(self, event_type: EventType) -> Mapping[str, tuple[Position, Position]]:
        """Per partition, by number: the oldest event still there, and the newest."""
        return self.at(event_type).ends()

    def beginning(self, event_type: EventType) -> Mapping[str, Position]:
        """Per partition: just before the oldest event still there."""
        return self.at(event_type).beginning()

    def newest(self, event_type: EventType) -> Mapping[str, Position]:
        """Per partition: where a stream that asks for nothing else begins."""
        return self.at(event_type).newest()

    def distance(self, event_type: EventType, partition: str, first: Position, last: Position) -> int:
        """How many events lie behind `first`, up to and including `last`."""
        return positions.distance(event_type, partition, first, last)

    def shifted(self, event_type: EventType, partition: str, position: Position, shift: int) -> Position:
        """The place `shift` events further on, or back when it is negative."""
        return positions.shifted(event_type, partition, position, shift)

    def following(self, event_type: EventType, position: Position, partition: str) -> tuple[Timeline, int]:
        """The timeline and the offset in it where reading goes on behind a position."""
        number = positions.partition_number(event_type, partition)
        if number is None:
            raise CursorError(CursorErrorKind.PARTITION_NOT_FOUND, partition)
        return positions.going_on(event_type, position, number)

"""Cursors: the one door to places in event types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nakadi.cursors import timelines
from nakadi.cursors.conversion import CursorError, CursorErrorKind
from nakadi.cursors.view import View
from nakadi.model.cursor import Cursor, Position
from nakadi.model.event_type import EventType
from nakadi.model.timeline import Timeline
from nakadi.ports.event_log import EventLogs


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
        return timelines.distance(event_type, partition, first, last)

    def shifted(self, event_type: EventType, partition: str, position: Position, shift: int) -> Position:
        """The place `shift` events further on, or back when it is negative."""
        return timelines.shifted(event_type, partition, position, shift)

    def following(self, event_type: EventType, position: Position, partition: str) -> tuple[Timeline, int]:
        """The timeline and the offset in it where reading goes on behind a position."""
        number = timelines.partition_number(event_type, partition)
        if number is None:
            raise CursorError(CursorErrorKind.PARTITION_NOT_FOUND, partition)
        return timelines.going_on(event_type, position, number)

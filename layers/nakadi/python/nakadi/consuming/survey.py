"""The survey: where in a partition reading can go on."""

from __future__ import annotations

from dataclasses import dataclass

from nakadi.catalog.event_types import EventTypes
from nakadi.cursors import timelines
from nakadi.cursors.conversion import CursorError
from nakadi.cursors.service import Cursors
from nakadi.cursors.view import View
from nakadi.model.coordination import Parked
from nakadi.model.cursor import Position
from nakadi.model.event_type import EventType
from nakadi.model.outcomes import Invalid, Unusable
from nakadi.model.subscription import EventTypePartition
from nakadi.ports import Clock

# A session opens many partitions at once, and one look at the log serves them all.
VIEW_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Again:
    """Parked events come once more; what else there is up to `until` is done, and reading goes on behind `onward`."""

    events: tuple[Parked, ...]
    until: Position
    onward: Position


@dataclass(frozen=True, slots=True)
class Beginning:
    """Reading goes on behind `start`; as many events as `lost` are gone that would have come before.

    `parked` are the keys of events that wait in the lot.
    """

    event_type: EventType
    start: Position
    lost: int = 0
    parked: frozenset[str] = frozenset()
    again: Again | None = None


class Survey:
    """Looks things up, and so belongs into a thread."""

    def __init__(self, event_types: EventTypes, cursors: Cursors, clock: Clock) -> None:
        self._event_types = event_types
        self._cursors = cursors
        self._clock = clock
        self._views: dict[str, tuple[float, EventType, View]] = {}

    def beginning(self, place: EventTypePartition, stored: Position) -> Beginning:
        """Where to begin behind what is committed. Raises `Unusable` if there is no such place."""
        known = self._views.get(place.event_type)
        if known is not None and self._clock.monotonic() < known[0] + VIEW_SECONDS:
            try:
                return self._in_view(known[1], known[2], place, stored)
            except Unusable:
                pass  # there may have come events since
        event_type = self._event_types.get(place.event_type)
        view = self._cursors.at(event_type)
        self._views[place.event_type] = (self._clock.monotonic(), event_type, view)
        return self._in_view(event_type, view, place, stored)

    def _in_view(self, event_type: EventType, view: View, place: EventTypePartition, stored: Position) -> Beginning:
        oldest = view.beginning().get(place.partition, stored)
        start = max(stored, oldest)
        try:
            view.check_readable(place.partition, start)
        except CursorError as error:
            raise Unusable(str(error)) from error
        return Beginning(event_type, start, distance(event_type, place, stored, start))


def distance(event_type: EventType | None, place: EventTypePartition, first: Position, last: Position) -> int:
    """How many events lie behind the first position, up to and including the second; across timelines, too."""
    if first.timeline == last.timeline:
        return last.offset - first.offset
    try:
        if event_type is not None:
            return timelines.distance(event_type, place.partition, first, last)
    except Invalid:
        pass
    return 1  # nobody knows, or not any more; but there were some

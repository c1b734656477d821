"""The survey: where in a partition reading can go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from nakadi.caching import Cache
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


class KnownEventTypes:
    """The event types of a stream, each as it was last seen, whoever saw it.

    Two look independently of each other: the survey when a partition is opened, and the oversight once a second. What
    one of them saw later must not be forgotten for what the other one saw before: a partition that is read by an event
    type as it was before it moved to another timeline would wait for events that never come there.
    """

    def __init__(self, event_types: Iterable[EventType], look_again: Callable[[], None]) -> None:
        """`look_again` has the oversight look soon."""
        self._by_name = {each.name: each for each in event_types}
        self.look_again = look_again

    def get(self, name: str) -> EventType | None:
        return self._by_name.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def newest(self, seen: EventType) -> EventType:
        """The event type as it was last seen, this time included. To be called on the loop alone."""
        known = self._by_name.get(seen.name)
        if known is not None and known.id == seen.id and known.revision > seen.revision:
            return known
        self._by_name[seen.name] = seen
        return seen


class Survey:
    """Looks things up, and so belongs into a thread."""

    def __init__(self, event_types: EventTypes, cursors: Cursors, clock: Clock) -> None:
        self._event_types = event_types
        self._cursors = cursors
        # By the id of the event type and the revision that is known at least: another one may get its name, and who
        # knows of a change must not be told what was before.
        self._views: Cache[tuple[str, int], tuple[EventType, View]] = Cache(clock, VIEW_SECONDS)

    def beginning(self, place: EventTypePartition, stored: Position, known: EventType | None = None) -> Beginning:
        """Where to begin behind what is committed. Raises `Unusable` if there is no such place.

        `known` is the event type as the caller knows it; without it, it is looked up.
        """
        event_type = known or self._event_types.get(place.event_type)
        key = (event_type.id, event_type.revision)
        try:
            return self._in_view(*self._views.get(key, lambda: self._look(event_type)), place, stored)
        except Unusable:
            self._views.forget(key)  # events may have come since
        return self._in_view(*self._views.get(key, lambda: self._look(event_type)), place, stored)

    def _look(self, known: EventType) -> tuple[EventType, View]:
        current = self._event_types.get(known.name)
        if current.id != known.id:
            raise Unusable(f"The event type {known.name} was deleted, and another one has its name")
        return current, self._cursors.at(current)

    @staticmethod
    def _in_view(event_type: EventType, view: View, place: EventTypePartition, stored: Position) -> Beginning:
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

"""Places: where a stream is in a partition, across the timelines of its event type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from nakadi.cursors.conversion import CursorError, CursorErrorKind, digits
from nakadi.model.cursor import Position
from nakadi.model.event_type import EventType
from nakadi.model.outcomes import Unusable
from nakadi.model.timeline import Timeline
from nakadi.ports import OffsetUnavailable, UnknownTopic
from nakadi.streaming.chunks import Run
from nakadi.streaming.feed import Follower
from nakadi.streaming.feeds import Feeds


class Following(Protocol):
    def following(self, event_type: EventType, position: Position, partition: str) -> tuple[Timeline, int]:
        """The timeline and the offset in it where reading goes on behind a position."""


class Place:
    """A stream's place in one partition. It is moved once before anything is taken, and left in the end."""

    __slots__ = ("_cursors", "_event_type", "_feeds", "_follower", "_position", "_timeline", "lost", "partition")

    def __init__(
        self, feeds: Feeds, cursors: Following, event_type: EventType, partition: str, position: Position
    ) -> None:
        self._feeds = feeds
        self._cursors = cursors
        self._event_type = event_type
        self._position = position
        self._timeline: Timeline | None = None
        self._follower: Follower | None = None
        self.partition = partition
        # Whether the topic was found missing. What became of it, the event type will tell.
        self.lost = False

    @property
    def at_border(self) -> bool:
        """Whether reading can only go on after a move: nothing is followed, or it has no more and never will."""
        if self._follower is None or self._timeline is None:
            return not self.lost
        last = self._timeline.latest_positions
        return last is not None and self._follower.offset > last.get(int(self.partition), -1)

    async def move(self, wake: Callable[[], None]) -> None:
        """Go to wherever the next event is or will be, in this timeline or another one."""
        position = self._here()
        try:
            timeline, offset = self._cursors.following(self._event_type, position, self.partition)
        except CursorError as error:
            raise Unusable(str(error)) from error
        self.leave()
        self._position = Position(timeline.order, offset - 1)
        self._timeline = timeline
        self._follower = await self._feeds.follow(timeline, int(self.partition), offset, wake)

    def update(self, event_type: EventType) -> None:
        """The event type has changed: its timelines may be others. Raises when our events are gone with one."""
        self._event_type = event_type
        order = self._here().timeline
        self._timeline = next((each for each in event_type.timelines if each.order == order), None)
        if self._timeline is None or (self._timeline.deleted and not self.at_border):
            raise self._unavailable()
        if self.lost:
            self.leave()
            self.lost = False

    def take(self) -> Run | None:
        """The next events at hand, None when there are none yet. Raises `Unusable` when they are not there any more."""
        if self.lost or self._follower is None:
            return None
        try:
            return self._follower.take()
        except UnknownTopic:
            self.lost = True
            return None
        except OffsetUnavailable as error:
            raise self._unavailable() from error

    def leave(self) -> None:
        self._position = self._here()
        if self._follower is not None:
            self._follower.leave()
            self._follower = None

    def _here(self) -> Position:
        """The place of the last event taken, or passed by."""
        if self._follower is None:
            return self._position
        return Position(self._position.timeline, self._follower.offset - 1)

    def _unavailable(self) -> Unusable:
        name = self._event_type.name
        return Unusable(str(CursorError(CursorErrorKind.UNAVAILABLE, self.partition, digits(self._here()), name)))

"""Feeds: one reader per partition and process, for all streams that follow the partition.

A feed keeps what it read last in a bounded window. Streams take from the window at their own pace; one that falls out
of it, or comes from further back, is given what it needs beside the window until it is inside again. So no stream waits
for the slowest, and the log is read once for all that keep up.

Everything here belongs to one event loop. Only the log is read in threads.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

from nakadi.event_types.cursors import CursorError, CursorErrorKind, offset_digits
from nakadi.model.event_type import EventType
from nakadi.model.outcomes import Unusable
from nakadi.model.timeline import Position, Timeline
from nakadi.ports.event_log import EventLog, EventLogs, OffsetUnavailable, UnknownTopic
from nakadi.streaming.chunks import EventChunk, EventRun
from nakadi.streaming.feed import FeedFollower, PartitionFeed, RetryingReader

log = logging.getLogger(__name__)

# One read's share: large enough that reading costs little an event, small enough to be passed on soon.
CHUNK_EVENTS = 1000
CHUNK_BYTES = 1_000_000

THREADS = 8

TopicPartition = tuple[str, int]
"""A topic and the number of a partition."""


class Feeds:
    """The feeds of a process; a log is watched, and a feed kept, as long as it has followers."""

    def __init__(self, logs: EventLogs, threads: int = THREADS) -> None:
        self._logs = logs
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="nakadi-feeds")
        # To open a log, the registry is asked for its storage. If that does not answer, logs that are open are read on.
        self._opening = ThreadPoolExecutor(1, thread_name_prefix="nakadi-logs")
        self._watched: dict[str, _WatchedLog] = {}

    async def follow(self, timeline: Timeline, partition: int, offset: int, wake: Callable[[], None]) -> FeedFollower:
        """Follow a partition from an offset on. `wake` is called when there may be something to take."""
        watched = self._watched.get(timeline.storage_id) or await self._watch(timeline.storage_id)
        make = partial(self._new_feed, timeline, watched.event_log, partition, offset)
        return watched.feed((timeline.topic, partition), make).joined_by(offset, wake)

    def close(self) -> None:
        self._opening.shutdown(wait=False, cancel_futures=True)
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def _watch(self, storage_id: str) -> _WatchedLog:
        loop = asyncio.get_running_loop()
        event_log = await loop.run_in_executor(self._opening, self._logs.of, storage_id)
        # Another thread may have been here in between.
        if storage_id not in self._watched:
            self._watched[storage_id] = _WatchedLog(event_log, loop)
        return self._watched[storage_id]

    def _new_feed(self, timeline: Timeline, event_log: EventLog, partition: int, offset: int) -> PartitionFeed:
        def fetch(start: int) -> EventChunk:
            found = event_log.read(timeline.topic, partition, start, limit=CHUNK_EVENTS, max_bytes=CHUNK_BYTES)
            return EventChunk(timeline.order, start, found)

        def forget() -> None:
            watched = self._watched[timeline.storage_id]
            if watched.forget((timeline.topic, partition)):
                del self._watched[timeline.storage_id]

        return PartitionFeed(RetryingReader(fetch, self._threads), offset, forget)


class _WatchedLog:
    """A log that reports new events, and the feeds of its partitions."""

    def __init__(self, event_log: EventLog, loop: asyncio.AbstractEventLoop) -> None:
        self.event_log = event_log
        self._feeds: dict[TopicPartition, PartitionFeed] = {}
        self._loop = loop
        self._lock = threading.Lock()
        self._changed: set[TopicPartition] = set()
        self._stop = event_log.watch(self._on_change)

    def feed(self, place: TopicPartition, make: Callable[[], PartitionFeed]) -> PartitionFeed:
        if place not in self._feeds:
            self._feeds[place] = make()
        return self._feeds[place]

    def forget(self, place: TopicPartition) -> bool:
        """Whether that was the last one."""
        del self._feeds[place]
        if not self._feeds:
            self._stop()
        return not self._feeds

    def _on_change(self, topic: str, partition: int) -> None:
        """Called by the log, from any thread. However many events come, the loop is woken once until it has run.

        The set is taken whole under the lock: a partition that is added after that wakes the loop again.
        """
        if (topic, partition) not in self._feeds:
            return
        with self._lock:
            already_woken = bool(self._changed)
            self._changed.add((topic, partition))
        if not already_woken:
            try:
                self._loop.call_soon_threadsafe(self._tell)
            except RuntimeError:
                log.debug("Events came after the loop was closed")

    def _tell(self) -> None:
        with self._lock:
            changed, self._changed = self._changed, set()
        for place in changed:
            if place in self._feeds:
                self._feeds[place].refresh()


# Across timelines -----------------------------------------------------------------------------------------------------


class FindsNextTimeline(Protocol):
    def next_event(self, event_type: EventType, position: Position, partition: str) -> tuple[Timeline, int]:
        """The timeline and the offset in it where reading goes on behind a position."""


class PartitionReader:
    """A stream's place in one partition. It is moved once before anything is taken, and left in the end."""

    __slots__ = ("_cursors", "_event_type", "_feeds", "_follower", "_position", "_timeline", "lost", "partition")

    def __init__(
        self, feeds: Feeds, cursors: FindsNextTimeline, event_type: EventType, partition: str, position: Position
    ) -> None:
        self._feeds = feeds
        self._cursors = cursors
        self._event_type = event_type
        self._position = position
        self._timeline: Timeline | None = None
        self._follower: FeedFollower | None = None
        self.partition = partition
        # Whether the topic was found missing. The event type will say what has happened to it.
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
            timeline, offset = self._cursors.next_event(self._event_type, position, self.partition)
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

    def take(self) -> EventRun | None:
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
        return Unusable(
            str(CursorError(CursorErrorKind.UNAVAILABLE, self.partition, offset_digits(self._here()), name))
        )

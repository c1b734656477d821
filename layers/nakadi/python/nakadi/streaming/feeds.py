"""Feeds: one reader per partition and process, for all streams that follow the partition.

A feed keeps what it read last in a bounded window. Streams take from the window at their own pace; one that falls out
of it, or comes from further back, is given what it needs beside the window until it is inside again. So nobody waits
for the slowest, and the log is read once for everybody who keeps up.

Everything here belongs to one event loop. Only the log is read in threads.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from nakadi.model.timeline import Timeline
from nakadi.ports import EventLog, EventLogs
from nakadi.streaming.chunks import Chunk
from nakadi.streaming.feed import Feed, Follower, Reader

log = logging.getLogger(__name__)

# One read's share: large enough that reading costs little an event, small enough to be passed on soon.
CHUNK_EVENTS = 1000
CHUNK_BYTES = 1_000_000

THREADS = 8

Place = tuple[str, int]
"""A topic and the number of a partition."""


class Feeds:
    """The feeds of a process; a log is watched, and a feed kept, as long as anybody follows."""

    def __init__(self, logs: EventLogs, threads: int = THREADS) -> None:
        self._logs = logs
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="nakadi-feeds")
        # To open a log, the registry is asked for its storage. If that does not answer, logs that are open are read on.
        self._opening = ThreadPoolExecutor(1, thread_name_prefix="nakadi-logs")
        self._watched: dict[str, _Watched] = {}

    async def follow(self, timeline: Timeline, partition: int, offset: int, wake: Callable[[], None]) -> Follower:
        """Follow a partition from an offset on. `wake` is called when there may be something to take."""
        watched = self._watched.get(timeline.storage_id) or await self._watch(timeline.storage_id)
        make = partial(self._new_feed, timeline, watched.event_log, partition, offset)
        return watched.feed((timeline.topic, partition), make).joined_by(offset, wake)

    def close(self) -> None:
        self._opening.shutdown(wait=False, cancel_futures=True)
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def _watch(self, storage_id: str) -> _Watched:
        loop = asyncio.get_running_loop()
        event_log = await loop.run_in_executor(self._opening, self._logs.of, storage_id)
        # Somebody else may have been here meanwhile.
        if storage_id not in self._watched:
            self._watched[storage_id] = _Watched(event_log, loop)
        return self._watched[storage_id]

    def _new_feed(self, timeline: Timeline, event_log: EventLog, partition: int, offset: int) -> Feed:
        def fetch(start: int) -> Chunk:
            found = event_log.read(timeline.topic, partition, start, limit=CHUNK_EVENTS, max_bytes=CHUNK_BYTES)
            return Chunk(timeline.order, start, found)

        def forget() -> None:
            watched = self._watched[timeline.storage_id]
            if watched.forget((timeline.topic, partition)):
                del self._watched[timeline.storage_id]

        return Feed(Reader(fetch, self._threads), offset, forget)


class _Watched:
    """A log that tells us of new events, and the feeds that want to know."""

    def __init__(self, event_log: EventLog, loop: asyncio.AbstractEventLoop) -> None:
        self.event_log = event_log
        self._feeds: dict[Place, Feed] = {}
        self._loop = loop
        self._lock = threading.Lock()
        self._changed: set[Place] = set()
        self._stop = event_log.watch(self._on_change)

    def feed(self, place: Place, make: Callable[[], Feed]) -> Feed:
        if place not in self._feeds:
            self._feeds[place] = make()
        return self._feeds[place]

    def forget(self, place: Place) -> bool:
        """Whether that was the last one."""
        del self._feeds[place]
        if not self._feeds:
            self._stop()
        return not self._feeds

    def _on_change(self, topic: str, partition: int) -> None:
        """Called by the log, from any thread. However many events come, the loop is told once until it listens."""
        if (topic, partition) not in self._feeds:
            return
        with self._lock:
            told = bool(self._changed)
            self._changed.add((topic, partition))
        if not told:
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

"""A feed: one partition's reader, the window of what it read last, and those who follow.

Everything here belongs to one event loop, but for the function that reads.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import attrgetter

from nakadi.model.outcomes import Unavailable
from nakadi.streaming.chunks import EventChunk, EventRun

log = logging.getLogger(__name__)

WINDOW_BYTES = 4_000_000
RECENT_CHUNKS = 4

# Reading is tried again after these pauses while a log does not answer.
SHORTEST_PAUSE = 0.1
LONGEST_PAUSE = 5.0

ReadOutcome = EventChunk | BaseException

_START = attrgetter("start")


class RetryingReader:
    """Reads chunks in threads, and again with growing pauses while the log does not answer."""

    def __init__(self, fetch: Callable[[int], EventChunk], threads: ThreadPoolExecutor) -> None:
        self._fetch = fetch
        self._threads = threads
        self._pause = SHORTEST_PAUSE
        self._closed = False

    def read(self, start: int, done: Callable[[ReadOutcome], None]) -> None:
        """Have `done` called on the loop with what begins at `start`, or with why there cannot be anything."""
        if not self._closed:
            future = asyncio.get_running_loop().run_in_executor(self._threads, self._fetch, start)
            future.add_done_callback(partial(self._finished, start, done))

    def close(self) -> None:
        self._closed = True

    def _finished(self, start: int, done: Callable[[ReadOutcome], None], future: asyncio.Future[EventChunk]) -> None:
        if self._closed or future.cancelled():
            return
        error = future.exception()
        if isinstance(error, Unavailable):
            log.warning("Reading is tried again in %s s: %s", self._pause, error)
            asyncio.get_running_loop().call_later(self._pause, self.read, start, done)
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        else:
            self._pause = SHORTEST_PAUSE
            done(error or future.result())


class PartitionFeed:
    """One partition's reader and window. `tip` is the first offset that was not read yet."""

    def __init__(self, reader: RetryingReader, tip: int, forget: Callable[[], None]) -> None:
        self._reader = reader
        self._forget = forget
        self._tip = tip
        self._window: list[EventChunk] = []
        self._weight = 0
        self._followers: set[FeedFollower] = set()
        self._waiting: set[FeedFollower] = set()
        self._behind: dict[int, set[FeedFollower]] = {}
        self._recent: dict[int, EventChunk] = {}
        self._reading = False
        # Whether the log may hold more than was read. Only a read that finds nothing says that it does not.
        self._more = True

    def joined_by(self, offset: int, wake: Callable[[], None]) -> FeedFollower:
        follower = FeedFollower(self, offset, wake)
        self._followers.add(follower)
        return follower

    def left_by(self, follower: FeedFollower) -> None:
        if follower not in self._followers:
            return
        self._followers.discard(follower)
        self._waiting.discard(follower)
        if not self._followers:
            self._reader.close()
            self._forget()

    def refresh(self) -> None:
        """There are new events."""
        self._more = True
        if self._waiting:
            self._read_on()

    def take(self, follower: FeedFollower) -> EventChunk | None:
        """The chunk that the follower's next event is in; without one, the follower is woken when it is there."""
        if follower.offset > self._tip:
            self._start_at(follower.offset)
        if follower.offset == self._tip:
            self._wait(follower)
            return None
        chunk = self._in_window(follower.offset) or self._recent.get(follower.offset)
        if chunk is None:
            self._catch_up(follower)
        elif chunk.next == self._tip and self._more:
            self._read_on()  # while the follower is busy with this one
        return chunk

    # The tip

    def _start_at(self, offset: int) -> None:
        """A follower is ahead of the reader: it goes there, and the followers that it leaves behind catch up."""
        self._tip = offset
        self._clear()
        self._more = True
        self._wake(self._waiting)

    def _wait(self, follower: FeedFollower) -> None:
        self._waiting.add(follower)
        if self._more:
            self._read_on()

    def _read_on(self) -> None:
        if not self._reading:
            self._reading = True
            self._more = False
            self._reader.read(self._tip, partial(self._found, self._tip))

    def _found(self, start: int, found: ReadOutcome) -> None:
        self._reading = False
        if start != self._tip:
            self._more = True
        elif isinstance(found, BaseException):
            self._more = True
            self._fail(self._waiting, found)
        elif found.next > start:
            self._more = True
            self._append(found)
            self._wake(self._waiting)
        elif len(self._waiting) == len(self._followers):
            self._clear()  # all followers have what was read
        if self._more and self._waiting:
            self._read_on()

    def _append(self, chunk: EventChunk) -> None:
        chunk.shared = len(self._followers) > 1
        self._window.append(chunk)
        self._weight += chunk.weight
        self._tip = chunk.next
        while self._weight > WINDOW_BYTES and len(self._window) > 1:
            self._weight -= self._window.pop(0).weight

    def _clear(self) -> None:
        self._window.clear()
        self._weight = 0
        self._recent.clear()

    def _in_window(self, offset: int) -> EventChunk | None:
        at = bisect_right(self._window, offset, key=_START)
        return self._window[at - 1] if at else None

    # Behind the window

    def _catch_up(self, follower: FeedFollower) -> None:
        """Read for one that is behind, and for all who wait for the same."""
        start = follower.offset
        if start not in self._behind:
            self._behind[start] = set()
            self._reader.read(start, partial(self._caught_up, start))
        self._behind[start].add(follower)

    def _caught_up(self, start: int, found: ReadOutcome) -> None:
        waiting = self._behind.pop(start)
        if isinstance(found, BaseException):
            self._fail(waiting, found)
            return
        found.shared = len(waiting) > 1
        for follower in waiting:
            follower.given = found
        self._recent[start] = found
        if len(self._recent) > RECENT_CHUNKS:
            del self._recent[next(iter(self._recent))]
        self._wake(waiting)

    # Telling

    def _wake(self, waiting: set[FeedFollower]) -> None:
        woken = list(waiting)
        waiting.clear()
        for follower in woken:
            follower.wake()

    def _fail(self, waiting: set[FeedFollower], error: BaseException) -> None:
        for follower in waiting:
            follower.error = error
        self._wake(waiting)


class FeedFollower:
    """A stream's place in a partition. `offset` is that of the next event."""

    __slots__ = ("_feed", "error", "given", "offset", "wake")

    def __init__(self, feed: PartitionFeed, offset: int, wake: Callable[[], None]) -> None:
        self._feed = feed
        self.offset = offset
        self.wake = wake
        self.given: EventChunk | None = None
        self.error: BaseException | None = None

    def take(self) -> EventRun | None:
        """The next events, as many as there are at hand. None: `wake` will be called. Raises why there are no more."""
        if self.error is not None:
            raise self.error
        chunk, self.given = self.given or self._feed.take(self), None
        if chunk is None:
            return None
        run = chunk.from_offset(self.offset)
        self.offset = chunk.next
        return run

    def leave(self) -> None:
        self._feed.left_by(self)

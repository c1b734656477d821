"""Feeds: each process has one reader per partition, for all streams that follow the partition.

A feed keeps its latest chunks in a bounded window. Streams take from the window at their own pace; a stream that falls
behind the window, or begins before it, gets its chunks separately until it has caught up. So no stream waits for the
slowest one, and one read of the log serves all streams that keep up.

Everything here belongs to one event loop. Only the log is read in threads.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from bisect import bisect_right
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from operator import attrgetter

from nakadi.event_types.cursors import CursorError, CursorErrorKind, offset_digits
from nakadi.event_types.snapshot import CursorResolver
from nakadi.model.event_type import EventType, Position, Timeline
from nakadi.model.events import TopicPartition
from nakadi.model.outcomes import Unavailable, UnreadableEvents, UnusableCursor
from nakadi.ports.event_log import EventLog, EventLogs, OffsetUnavailable, UnknownTopic
from nakadi.streaming.chunks import EventChunk, EventRun

log = logging.getLogger(__name__)

FEED_WINDOW_BYTES = 4_000_000
MAX_RECENT_CHUNKS = 4

# The shortest and the longest pause between attempts to read while a log does not answer.
MIN_READ_RETRY_PAUSE_SECONDS = 0.1
MAX_READ_RETRY_PAUSE_SECONDS = 5.0

FAILURES_BEFORE_REPORT = 4
"""After this many failures of a read, streams report it if they must not stay silent. Short pauses of a log, such as
throttled calls, are over by then."""

SLOW_READ_SECONDS = 30.0
"""After this time, and again each time that it passes, streams report a read that has not ended, if they must not stay
silent. A file system that is out of reach may let a read wait for ever."""

ReadOutcome = EventChunk | BaseException

_START_OF = attrgetter("start")


class RetryingReader:
    """Reads chunks in threads, and again with growing pauses while the log does not answer.

    It does not wait for events that cannot be read until an operator repairs the archive: streams have to report them.
    `on_failure` is called with the start of a read that has failed several times, each time that it fails again, and
    with that of a read that takes long. A thread cannot be interrupted, so such a read goes on; `on_slow_read_end` is
    called when it ends.
    """

    def __init__(
        self,
        fetch: Callable[[int], EventChunk],
        threads: ThreadPoolExecutor,
        place: str,
    ) -> None:
        self._fetch = fetch
        self._place = place
        self._threads = threads
        self.on_failure: Callable[[int, Unavailable], None] = lambda _start, _error: None
        self.on_slow_read_end: Callable[[], None] = lambda: None
        self._slow_reads: set[asyncio.Future[EventChunk]] = set()
        self._closed = False

    @property
    def has_slow_read(self) -> bool:
        return bool(self._slow_reads)

    def read(self, start: int, done: Callable[[ReadOutcome], None], failures: int = 0) -> None:
        """Call `done` on the loop with the chunk that begins at `start`, or with the reason why there cannot be one."""
        if not self._closed:
            loop = asyncio.get_running_loop()
            future = loop.run_in_executor(self._threads, self._fetch, start)
            timer = loop.call_later(SLOW_READ_SECONDS, self._report_slow_read, start, future)
            future.add_done_callback(partial(self._pass_on_or_retry, start, done, failures, timer))

    def close(self) -> None:
        self._closed = True

    def _report_slow_read(self, start: int, future: asyncio.Future[EventChunk]) -> None:
        if self._closed or future.done():
            return
        self._slow_reads.add(future)
        reason = f"The log has not answered for {SLOW_READ_SECONDS:.0f} seconds."
        error = Unavailable(reason, public=reason)
        log.warning("Reading %s takes long: %s", self._place, error)
        asyncio.get_running_loop().call_later(SLOW_READ_SECONDS, self._report_slow_read, start, future)
        self.on_failure(start, error)

    def _pass_on_or_retry(
        self,
        start: int,
        done: Callable[[ReadOutcome], None],
        failures: int,
        timer: asyncio.TimerHandle,
        future: asyncio.Future[EventChunk],
    ) -> None:
        timer.cancel()
        if future.cancelled():
            return
        if future in self._slow_reads:
            self._slow_reads.discard(future)
            self.on_slow_read_end()
        # The result is fetched even if nobody needs it, because asyncio logs exceptions that are never retrieved.
        error = future.exception()
        if self._closed:
            return
        if isinstance(error, Unavailable) and not isinstance(error, UnreadableEvents):
            pause = min(MIN_READ_RETRY_PAUSE_SECONDS * 2 ** min(failures, 10), MAX_READ_RETRY_PAUSE_SECONDS)
            log.warning("Reading %s failed, trying again in %s s: %s", self._place, pause, error)
            asyncio.get_running_loop().call_later(pause, self.read, start, done, failures + 1)
            if failures + 1 >= FAILURES_BEFORE_REPORT:
                self.on_failure(start, error)
        else:
            done(error or future.result())


class PartitionFeed:
    """One partition's reader and window. `tip` is the first offset that was not read yet.

    It belongs to the event loop. Only the log is read in threads, and the loop passes on their results.
    """

    def __init__(self, reader: RetryingReader, tip: int, forget: Callable[[], None]) -> None:
        self._reader = reader
        reader.on_failure = self._report_failure
        reader.on_slow_read_end = self._end_if_unused
        self._forget = forget
        self._tip = tip
        self._window: list[EventChunk] = []
        self._weight = 0
        self._followers: set[FeedFollower] = set()
        self._waiting: set[FeedFollower] = set()
        self._behind: dict[int, set[FeedFollower]] = {}
        self._recent: dict[int, EventChunk] = {}
        # The start of the read whose result is the next chunk; None while there is no such read.
        self._reading_from: int | None = None
        # Whether the log may have more events than were read. Only a read shows that it has none. Later events are
        # reported by the log, which is watched from before the read.
        self._more = True

    def add_follower(self, offset: int, wake: Callable[[], None]) -> FeedFollower:
        follower = FeedFollower(self, offset, wake)
        self._followers.add(follower)
        return follower

    def remove_follower(self, follower: FeedFollower) -> None:
        if follower not in self._followers:
            return
        self._followers.discard(follower)
        self._waiting.discard(follower)
        self._end_if_unused()

    def _end_if_unused(self) -> None:
        """End without followers. A slow read is kept for the next follower: each further read would occupy one more
        thread, perhaps for ever.
        """
        if not self._followers and not self._reader.has_slow_read:
            # A read in progress in a thread finishes, and its result is dropped.
            self._reader.close()
            self._forget()

    def refresh(self) -> None:
        """Read on, because the log has new events."""
        self._more = True
        if self._waiting:
            self._read_on()

    def take_chunk(self, follower: FeedFollower) -> EventChunk | None:
        """The chunk with the follower's next event; None if it is not there yet; the follower is woken when it arrives.

        If the chunk is the last one that was read, the follower already waits for the next chunk, without another call.
        """
        if follower.offset > self._tip:
            self._jump_to(follower.offset)
        if follower.offset == self._tip:
            self._wait_for_more(follower)
            return None
        at = bisect_right(self._window, follower.offset, key=_START_OF)
        chunk = self._window[at - 1] if at else self._recent.get(follower.offset)
        if chunk is None:
            self._read_behind_window(follower)
        elif chunk.next_offset == self._tip:
            self._wait_for_more(follower)  # the next chunk is read while the follower processes this one
        return chunk

    def is_waiting(self, follower: FeedFollower) -> bool:
        return follower in self._waiting

    # The tip

    def _jump_to(self, offset: int) -> None:
        """Continue reading at the offset of a follower that is beyond the tip. Followers before that offset catch up
        with reads of their own.
        """
        self._tip = offset
        self._drop_chunks()
        self._more = True
        self._wake(self._waiting)

    def _wait_for_more(self, follower: FeedFollower) -> None:
        self._waiting.add(follower)
        if self._more:
            self._read_on()
        else:
            self._drop_chunks_if_all_wait()

    def _read_on(self) -> None:
        # If a follower has moved the tip since the last read began, that read may be slow, and is not waited for.
        if self._reading_from != self._tip:
            self._reading_from = self._tip
            # This is set before the read rather than after it, because events that are reported during the read may
            # come after its result.
            self._more = False
            self._reader.read(self._tip, partial(self._add_newest_chunk, self._tip))

    def _add_newest_chunk(self, start: int, found: ReadOutcome) -> None:
        if start != self._tip:
            # A follower has moved the tip during the read, so this chunk is before the tip, and no follower waits for
            # it.
            return
        self._reading_from = None
        if isinstance(found, BaseException):
            # The waiting followers get the failure. A read for a later follower may succeed.
            self._more = True
            self._fail_followers(self._waiting, found)
        elif found.next_offset > start:
            self._more = self._more or not found.at_end
            found.shared = len(self._followers) > 1
            self._window.append(found)
            self._weight += found.weight
            self._tip = found.next_offset
            while self._weight > FEED_WINDOW_BYTES and len(self._window) > 1:
                self._weight -= self._window.pop(0).weight
            self._wake(self._waiting)
        else:
            self._drop_chunks_if_all_wait()
        if self._more and self._waiting:
            self._read_on()

    def _drop_chunks_if_all_wait(self) -> None:
        """Drop chunks once all followers have them."""
        if len(self._waiting) == len(self._followers):
            self._drop_chunks()

    def _drop_chunks(self) -> None:
        self._window.clear()
        self._weight = 0
        self._recent.clear()

    # Behind the window

    def _read_behind_window(self, follower: FeedFollower) -> None:
        """Read for a follower before the window, and for all followers that wait for the same chunk."""
        start = follower.offset
        if start not in self._behind:
            # One read serves all followers that need the same chunk: there are many when their streams begin together.
            self._behind[start] = set()
            self._reader.read(start, partial(self._give_chunk_to_waiting, start))
        self._behind[start].add(follower)

    def _give_chunk_to_waiting(self, start: int, found: ReadOutcome) -> None:
        waiting = self._behind.pop(start)
        if isinstance(found, BaseException):
            self._fail_followers(waiting, found)
            return
        found.shared = len(waiting) > 1
        for follower in waiting:
            follower.given = found
        self._recent[start] = found
        if len(self._recent) > MAX_RECENT_CHUNKS:
            del self._recent[next(iter(self._recent))]
        self._wake(waiting)

    def _report_failure(self, start: int, error: Unavailable) -> None:
        """Pass the failure of a read to the followers that wait for it. They continue to wait for the read."""
        for follower in tuple(self._waiting if start == self._tip else self._behind.get(start, ())):
            follower.failure = error
            follower.wake()

    # Waking followers

    def _wake(self, waiting: set[FeedFollower]) -> None:
        # The set is emptied first, because a follower that is woken may find nothing, and wait in the same set again at
        # once.
        woken = list(waiting)
        waiting.clear()
        for follower in woken:
            follower.wake()

    def _fail_followers(self, waiting: set[FeedFollower], error: BaseException) -> None:
        for follower in waiting:
            follower.error = error
        self._wake(waiting)


class FeedFollower:
    """A stream's place in a partition. `offset` is that of the next event."""

    __slots__ = ("_feed", "error", "failure", "given", "offset", "wake")

    def __init__(self, feed: PartitionFeed, offset: int, wake: Callable[[], None]) -> None:
        self._feed = feed
        self.offset = offset
        self.wake = wake
        self.given: EventChunk | None = None
        self.error: BaseException | None = None
        # Why the read for which this follower waits keeps failing; None if it does not.
        self.failure: Unavailable | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether no event is ready. If so, `wake` will be called when there are events."""
        return self._feed.is_waiting(self)

    def take_run(self) -> EventRun | None:
        """The next events, as many as are ready. None means that `wake` will be called. If reading has failed for good,
        raises the reason.

        After `UnreadableEvents`, the next call reads again.
        """
        if self.error is not None:
            error = self.error
            if isinstance(error, UnreadableEvents):
                self.error = None
            raise error
        chunk, self.given = self.given or self._feed.take_chunk(self), None
        if chunk is None:
            return None
        run = chunk.run_from_offset(self.offset)
        self.offset = chunk.next_offset
        self.failure = None
        return run

    def take_failure(self) -> Unavailable | None:
        """Return why the read for which this follower waits keeps failing, and forget it: further calls return None
        until the read fails again.
        """
        failure, self.failure = self.failure, None
        return failure

    def release(self) -> None:
        self._feed.remove_follower(self)


# The size of one read: large enough that reading costs little per event, small enough to be passed on soon.
MAX_CHUNK_EVENTS = 1000
MAX_CHUNK_BYTES = 1_000_000

READING_THREAD_COUNT = 8


class Feeds:
    """The feeds of a process; a log is watched, and a feed exists, as long as it has followers."""

    def __init__(self, logs: EventLogs, threads: int = READING_THREAD_COUNT) -> None:
        self._logs = logs
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="nakadi-feeds")
        # Opening a log reads its storage from the registry. It has a thread of its own, so that open logs are still
        # read if the registry does not answer.
        self._opening = ThreadPoolExecutor(1, thread_name_prefix="nakadi-logs")
        self._watched: dict[str, _WatchedLog] = {}

    async def follow(
        self, timeline: Timeline, partition: int, offset: int, wake: Callable[[], None], event_type: str = "events"
    ) -> FeedFollower:
        """Follow a partition, beginning at an offset. `wake` is called when there may be events to take. Log lines name
        `event_type`."""
        watched = self._watched.get(timeline.storage_id) or await self._watch(timeline.storage_id)
        # Nothing is awaited between finding the feed and following it, and the last follower that leaves also removes
        # the feed in one step. So no follower gets a closed feed.
        make = partial(self._new_feed, timeline, watched.event_log, partition, offset, event_type)
        return watched.feed_or_new((timeline.topic, partition), make).add_follower(offset, wake)

    def close(self) -> None:
        self._opening.shutdown(wait=False, cancel_futures=True)
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def _watch(self, storage_id: str) -> _WatchedLog:
        loop = asyncio.get_running_loop()

        def open_watched_log() -> _WatchedLog:
            return _WatchedLog(self._logs.for_storage(storage_id), loop)

        # The log is opened in a thread, because an engine may read the end of its log before it watches the log.
        opening = self._opening.submit(open_watched_log)
        try:
            watched = await asyncio.wrap_future(opening)
        except asyncio.CancelledError:
            # The stream has ended, but the thread continues, and its watch must be ended too.
            opening.add_done_callback(_stop_unused_watch)
            raise
        # Another stream may have opened a watch of the log while this one waited; only one of the two is kept.
        kept = self._watched.setdefault(storage_id, watched)
        if kept is not watched:
            watched.stop()
        return kept

    def _new_feed(
        self, timeline: Timeline, event_log: EventLog, partition: int, offset: int, event_type: str
    ) -> PartitionFeed:
        def fetch(start: int) -> EventChunk:
            found = event_log.read(timeline.topic, partition, start, limit=MAX_CHUNK_EVENTS, max_bytes=MAX_CHUNK_BYTES)
            return EventChunk(timeline.order, start, found)

        def forget() -> None:
            watched = self._watched[timeline.storage_id]
            if watched.remove_feed((timeline.topic, partition)):
                del self._watched[timeline.storage_id]

        reader = RetryingReader(fetch, self._threads, f"partition {partition} of {event_type}")
        return PartitionFeed(reader, offset, forget)


def _stop_unused_watch(opening: Future[_WatchedLog]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().stop()


class _WatchedLog:
    """A log that reports new events, and the feeds of its partitions."""

    def __init__(self, event_log: EventLog, loop: asyncio.AbstractEventLoop) -> None:
        self.event_log = event_log
        self._feeds: dict[TopicPartition, PartitionFeed] = {}
        self._loop = loop
        self._lock = threading.Lock()
        self._changed: set[TopicPartition] = set()
        self.stop = event_log.add_change_listener(self._note_new_events)

    def feed_or_new(self, partition: TopicPartition, make: Callable[[], PartitionFeed]) -> PartitionFeed:
        if partition not in self._feeds:
            self._feeds[partition] = make()
        return self._feeds[partition]

    def remove_feed(self, partition: TopicPartition) -> bool:
        """Remove a feed, and return whether it was the last one."""
        del self._feeds[partition]
        if not self._feeds:
            self.stop()
        return not self._feeds

    def _note_new_events(self, topic: str, partition: int) -> None:
        """Called by the log, from any thread. However many events come, the loop is woken only once until it has
        processed them.

        It takes the whole set under the lock, so a partition that is added later wakes it again.
        """
        # Another thread may change `_feeds`, but this read of it is one step. A feed that is added just after this has
        # read nothing yet, and finds the event when it reads.
        if (topic, partition) not in self._feeds:
            return
        with self._lock:
            already_woken = bool(self._changed)
            self._changed.add((topic, partition))
        if not already_woken:
            try:
                self._loop.call_soon_threadsafe(self._refresh_changed_feeds)
            except RuntimeError:
                log.debug("Events came after the loop was closed")

    def _refresh_changed_feeds(self) -> None:
        with self._lock:
            changed, self._changed = self._changed, set()
        for partition in changed:
            # Its last follower may have left since the loop was woken.
            if partition in self._feeds:
                self._feeds[partition].refresh()


class PartitionReader:
    """A stream's place in one partition. Its owner calls `move_to_next_event` before it first takes events, and
    `release` when it is done.

    With `until`, it takes no event after that position. With `until` or `reports_failures`, it raises
    `UnreadableEvents` while the log does not answer, because its client
    would otherwise take the silence for the end of the events.
    """

    __slots__ = (
        "_cursor_resolver",
        "_event_type",
        "_feeds",
        "_follower",
        "_position",
        "_reports_failures",
        "_timeline",
        "is_topic_missing",
        "partition",
        "until",
    )

    def __init__(  # callers pass every argument by name
        self,
        feeds: Feeds,
        cursor_resolver: CursorResolver,
        event_type: EventType,
        partition: str,
        position: Position,
        until: Position | None = None,
        *,
        reports_failures: bool = False,
    ) -> None:
        self._feeds = feeds
        self._cursor_resolver = cursor_resolver
        self._event_type = event_type
        self._position = position
        self._reports_failures = reports_failures or until is not None
        self._timeline: Timeline | None = None
        self._follower: FeedFollower | None = None
        self.partition = partition
        self.until = until
        # Whether the topic does not exist any longer; a newer event type says why.
        self.is_topic_missing = False

    @property
    def needs_move(self) -> bool:
        """Whether reading can continue only after a move: no feed is followed, or the followed one has ended."""
        if self._follower is None or self._timeline is None:
            return not self.is_topic_missing
        last = self._timeline.latest_positions
        return last is not None and self._follower.offset > last.get(int(self.partition), -1)

    @property
    def has_more(self) -> bool:
        """Whether more events may be ready after a run was taken. If not, `wake` will be called."""
        return self._follower is None or not self._follower.is_waiting or self.needs_move

    @property
    def is_complete(self) -> bool:
        """Whether everything up to `until` was taken or skipped."""
        return self.until is not None and self._position_reached() >= self.until

    async def move_to_next_event(self, wake: Callable[[], None]) -> None:
        """Move to where the next event is or will be, in this timeline or another one."""
        position = self._position_reached()
        try:
            timeline, offset = self._cursor_resolver.next_event_location(self._event_type, position, self.partition)
        except CursorError as error:
            raise UnusableCursor(str(error)) from error
        self.release()
        self._position = Position(timeline.order, offset - 1)
        self._timeline = timeline
        self._follower = await self._feeds.follow(timeline, int(self.partition), offset, wake, self._event_type.name)

    def update_event_type(self, event_type: EventType) -> None:
        """The event type has changed, perhaps with other timelines. Raises `UnusableCursor` if the next events were
        deleted with their timeline.
        """
        self._event_type = event_type
        order = self._position_reached().timeline
        self._timeline = next((each for each in event_type.timelines if each.order == order), None)
        if self._timeline is None or (self._timeline.deleted and not self.needs_move):
            raise self._unavailable_error()
        if self.is_topic_missing:
            self.release()
            self.is_topic_missing = False

    def take_run(self) -> EventRun | None:
        """The next events that are ready; None if there are none yet. Raises `UnusableCursor` if they are gone, and
        `UnreadableEvents` if they cannot be read now.
        """
        if self.is_topic_missing or self._follower is None:
            return None
        try:
            run = self._follower.take_run()
            if run is None and self._reports_failures and (failure := self._follower.take_failure()):
                raise self._unreadable_error(failure)
            return run if run is None or self.until is None else run.part_until(self.until)
        except UnknownTopic:
            self.is_topic_missing = True
            return None
        except OffsetUnavailable as error:
            raise self._unavailable_error() from error

    def release(self) -> None:
        self._position = self._position_reached()
        if self._follower is not None:
            self._follower.release()
            self._follower = None

    def _position_reached(self) -> Position:
        """The position of the last event that was taken or skipped."""
        if self._follower is None:
            return self._position
        return Position(self._position.timeline, self._follower.offset - 1)

    def _unreadable_error(self, failure: Unavailable) -> UnreadableEvents:
        name, next_offset = self._event_type.name, self._position_reached().offset + 1
        last_offset = next_offset
        if self.until is None:
            what = f"The next events of partition {self.partition} of {name} cannot be read"
        else:
            what = f"Events up to {self.until} of partition {self.partition} of {name} exist, but could not be read"
            if self.until.timeline == self._position.timeline:
                last_offset = self.until.offset
        return UnreadableEvents(
            str(failure),
            event_type=name,
            partition=int(self.partition),
            first_offset=next_offset,
            last_offset=last_offset,
            public=f"{what}: {failure.public or 'The log does not answer.'}",
        )

    def _unavailable_error(self) -> UnusableCursor:
        name = self._event_type.name
        return UnusableCursor(
            str(CursorError(CursorErrorKind.UNAVAILABLE, self.partition, offset_digits(self._position_reached()), name))
        )

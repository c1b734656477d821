"""Reads segments of archive objects, several at a time, and caches them for a moment."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import NamedTuple

from nakadi.common.metrics import Metrics
from nakadi.engines.archive import gzip_format, member_format
from nakadi.engines.archive.damage import ArchiveDamage, DamagedPart
from nakadi.engines.archive.policy import EmptyTopicCatalog, TopicCatalog, describe_partition
from nakadi.engines.archive.presence import check_mounted_after_failed_read
from nakadi.engines.archive.segments import count_events_from
from nakadi.model.events import LazyEvents, StoredEvent
from nakadi.model.log_index import ArchiveLocation, IndexSegment
from nakadi.model.outcomes import Unavailable
from nakadi.ports.archive_store import ArchiveObjectGone, ArchiveStore

log = logging.getLogger(__name__)


MAX_CACHED_BYTES = 16_000_000
"""The size of the cache in bytes of memory. Events take three to fifty times as many bytes in memory as in the
store.
"""

BYTES_PER_EVENT_OBJECT = 350
BYTES_PER_EVENT_IN_TEXT = 50
BYTES_PER_TEXT = 300
"""How many bytes of memory an event, and a text of several events, take beside the values."""

CONCURRENT_READS = 16
"""How many objects a process requests at the same time."""

CONCURRENT_UNPACKINGS = 2
"""How many segments a process unpacks at the same time: each takes several megabytes, and more at a time are not
faster, because most of this work needs the interpreter."""

MAX_OBJECTS_READ_AHEAD = 16
MAX_BYTES_READ_AHEAD = 2_000_000
"""How many objects, and how many of their stored bytes, may be requested before a reader takes the first object. The
same number of bytes limits all reads ahead of a process together, because the cache would drop further events before
they are used.
"""

MIN_COMPRESSION_RATIO = 4
"""Unpacked events are assumed to take at least this many times their bytes in the store, to guess which segments are
enough for a reader."""

MAX_SEQUENTIAL_READS = 1000
"""How many readers are recognized when they return for the following events."""

NO_UNPACKING_LIMIT = nullcontext()

WHAT_TO_DO = "See NakadiArchiveCannotBeRead in docs/operations.md."

Events = Sequence[StoredEvent]


class UnreadableSegment(ArchiveObjectGone):
    """Raised for events that the archive should have, but that are missing or damaged; the message names offsets."""

    def __init__(self, topic: str, partition: int, segment: IndexSegment, why: str) -> None:
        self.first_offset = segment.first_offset
        self.last_offset = segment.end_offset - 1
        self._object_and_why = f"the archive object {segment.location.key if segment.location else ''} {why}"
        super().__init__(self.describe(f"{topic}/{partition}"))

    def describe(self, partition: str) -> str:
        offsets = f"Offsets {self.first_offset} to {self.last_offset} of {partition}"
        return f"{offsets} cannot be read: {self._object_and_why}"


class SequentialRead(NamedTuple):
    """What is known of a reader that returns for the following events: how many segments were last read ahead for it,
    and up to which offset.
    """

    segment_count: int = 0
    end_offset: int = 0


class _CachedSegment(NamedTuple):
    events: Events
    size: int


class SegmentCache:
    """Archived segments that were read lately, and threads that read ahead."""

    def __init__(
        self,
        store: ArchiveStore,
        most_bytes: int = MAX_CACHED_BYTES,
        metrics: Metrics | None = None,
        catalog: TopicCatalog | None = None,
    ) -> None:
        self._store = store
        self._metrics = metrics or Metrics()
        self._catalog = catalog or EmptyTopicCatalog()
        self._damage = ArchiveDamage(self._catalog, self._check_damage_again)
        self._metrics.archive_damaged_offsets.add_bounded_source(self._damage.rows)
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._members: OrderedDict[ArchiveLocation, _CachedSegment] = OrderedDict()
        self._bytes = 0
        self._unpacking = threading.BoundedSemaphore(CONCURRENT_UNPACKINGS)
        self._ahead: dict[ArchiveLocation, Future[Events]] = {}
        self._bytes_ahead = 0
        self._sequential_reads: OrderedDict[tuple[str, int, int], SequentialRead] = OrderedDict()
        self._readers: ThreadPoolExecutor | None = None
        self._closed = False

    def read_segment(self, topic: str, partition: int, segment: IndexSegment) -> Events:
        """The events of an archived segment. Raises `UnreadableSegment`.

        The segment is read once for all readers that need it at the same time.
        """
        location = _archived_location(segment)
        own: Future[Events] | None = None
        with self._lock:
            known, ahead = self._cached_or_pending(location)
            if known is None and ahead is None:
                own = Future()
                own.set_running_or_notify_cancel()  # from now on, another reader cannot cancel this future
                self._ahead[location] = own
                self._bytes_ahead += location.length
        if own is not None:
            own.add_done_callback(self._pending_read_remover(location))
            return self._read_for_all(own, location, topic, partition, segment)
        if known is None and ahead is not None:
            # If the reader that began this read has cancelled it, read the segment here.
            with suppress(CancelledError):
                return ahead.result()
        if known is None:
            return self._read_segment(location, topic, partition, segment)
        self._metrics.cache_hits.add(1, "archive")
        return known

    def _read_for_all(
        self, own: Future[Events], location: ArchiveLocation, topic: str, partition: int, segment: IndexSegment
    ) -> Events:
        """Read a segment in this thread, and pass the result, or the failure, to the readers that wait for `own`."""
        try:
            events = self._read_segment(location, topic, partition, segment)
        except BaseException as error:
            own.set_exception(error)
            raise
        own.set_result(events)
        return events

    def read_in_order(
        self, topic: str, partition: int, segments: Iterable[IndexSegment], start: int, limit: int, max_bytes: int
    ) -> Generator[tuple[IndexSegment, Events], None, None]:
        """Yield the events of these segments in order, while the next segments are read.

        At first, only the segments that a reader probably needs for `limit` events or `max_bytes` from `start` on are
        requested. A reader that needs no more closes the generator, which cancels reads that have not begun. Raises
        `UnreadableSegment` when it reaches an unreadable segment.
        """
        behind = iter(segments)
        waiting: deque[tuple[IndexSegment, Future[Events] | None]] = deque()
        following = next(behind, None)
        events = size = 0
        try:
            while following is not None or waiting:
                while following is not None and self._fits_read_ahead(
                    waiting, following, events < limit, size < max_bytes
                ):
                    # If this segment has all the events that are still needed, the calling thread reads it.
                    alone = not waiting and count_events_from(following, start) >= limit
                    waiting.append((following, None if alone else self._begin_read(topic, partition, following)))
                    events += count_events_from(following, start)
                    size += MIN_COMPRESSION_RATIO * _archived_location(following).length
                    following = next(behind, None)
                segment, future = waiting.popleft()
                yield segment, self._await_result(topic, partition, segment, future)
        finally:
            for _, future in waiting:
                if future is not None:
                    future.cancel()

    def _fits_read_ahead(
        self,
        waiting: Sequence[tuple[IndexSegment, object]],
        following: IndexSegment,
        more_events: bool,
        more_bytes: bool,
    ) -> bool:
        if not waiting:
            return True
        length = _archived_location(following).length
        asked = sum(_archived_location(each).length for each, _ in waiting)
        fits = len(waiting) < MAX_OBJECTS_READ_AHEAD and asked + length <= MAX_BYTES_READ_AHEAD
        return fits and more_events and more_bytes and self._has_room_ahead(length)

    def _has_room_ahead(self, length: int) -> bool:
        """Whether this many more bytes may be read ahead in this process. Several threads may find room at the same
        moment, so the limit is not exact.
        """
        return not self._bytes_ahead or self._bytes_ahead + length <= MAX_BYTES_READ_AHEAD

    def begin_reading_ahead(self, topic: str, partition: int, segments: Iterable[IndexSegment]) -> int:
        """Read ahead as many of these segments as fit, because they will be needed soon. Return the end offset of the
        last of them, or 0.
        """
        end = size = 0
        for segment in segments:
            if segment.location is None or not self._has_room_ahead(segment.location.length):
                break
            if size and size + segment.location.length > MAX_BYTES_READ_AHEAD:
                break
            size += segment.location.length
            self._begin_read(topic, partition, segment)
            end = segment.end_offset
        return end

    # Returning readers

    def pop_sequential_read(self, topic: str, partition: int, start: int) -> SequentialRead | None:
        """The sequential read that continues at this offset; None if no reader stopped there."""
        with self._lock:
            return self._sequential_reads.pop((topic, partition, start), None)

    def remember_sequential_read(
        self, topic: str, partition: int, next_offset: int, sequential: SequentialRead
    ) -> None:
        with self._lock:
            self._sequential_reads[topic, partition, next_offset] = sequential
            while len(self._sequential_reads) > MAX_SEQUENTIAL_READS:
                self._sequential_reads.popitem(last=False)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            readers = self._readers
        if readers is not None:
            readers.shutdown(cancel_futures=True)

    def _cached_or_pending(self, location: ArchiveLocation) -> tuple[Events | None, Future[Events] | None]:
        """The caller holds the lock."""
        known = self._members.get(location)
        if known is not None:
            self._members.move_to_end(location)
        return known and known.events, self._ahead.get(location)

    def _begin_read(self, topic: str, partition: int, segment: IndexSegment) -> Future[Events] | None:
        """The read of a segment, started unless it is in progress; None if its events are known, or after closing."""
        location = _archived_location(segment)
        with self._lock:
            if self._closed or location in self._members:
                return None
            begun = self._ahead.get(location)
            if begun is not None:
                return begun
            begun = self._threads().submit(self._read_segment, location, topic, partition, segment)
            self._ahead[location] = begun
            self._bytes_ahead += location.length
        begun.add_done_callback(self._pending_read_remover(location))
        return begun

    def _threads(self) -> ThreadPoolExecutor:
        """The threads that read. The caller holds the lock."""
        self._readers = self._readers or ThreadPoolExecutor(CONCURRENT_READS, thread_name_prefix="archive-reader")
        return self._readers

    def _check_damage_again(self, part: DamagedPart) -> None:
        with self._lock:
            if not self._closed:
                self._threads().submit(self._forget_repaired_part, part)

    def _forget_repaired_part(self, part: DamagedPart) -> None:
        with suppress(UnreadableSegment, Unavailable):
            read_segment(self._store, part.topic, part.partition, part.segment)
            self._damage.remove(part.segment.location)

    def _pending_read_remover(self, location: ArchiveLocation) -> Callable[[Future[Events]], None]:
        def when_done(future: Future[Events]) -> None:
            with self._lock:
                if self._ahead.get(location) is future:
                    del self._ahead[location]
                    self._bytes_ahead -= location.length

        return when_done

    def _await_result(self, topic: str, partition: int, segment: IndexSegment, future: Future[Events] | None) -> Events:
        if future is not None:
            with suppress(CancelledError):
                return future.result()
        return self.read_segment(topic, partition, segment)

    def _read_segment(self, location: ArchiveLocation, topic: str, partition: int, segment: IndexSegment) -> Events:
        self._metrics.cache_misses.add(1, "archive")
        try:
            events = read_segment(self._store, topic, partition, segment, self._unpacking)
        except UnreadableSegment as error:
            place = describe_partition(self._catalog, topic, partition)
            log.error("%s", error.describe(place))  # noqa: TRY400  # the place is all that matters
            self._metrics.archive_unreadable.add()
            self._damage.add(topic, partition, segment)
            raise
        except Unavailable as error:
            self._metrics.archive_read_failures.add()
            raise Unavailable(
                str(error),
                public=f"{error.public or 'The archive does not answer.'} {WHAT_TO_DO}",
                retry_after_seconds=error.retry_after_seconds,
            ) from error
        self._damage.remove(location)
        self._add_to_cache(location, events)
        return events

    def _add_to_cache(self, location: ArchiveLocation, events: Events) -> None:
        size = _bytes_in_memory(events)
        with self._lock:
            if location not in self._members:
                self._members[location] = _CachedSegment(events, size)
                self._bytes += size
            while self._bytes > self._most_bytes and len(self._members) > 1:
                _, gone = self._members.popitem(last=False)
                self._bytes -= gone.size


def _bytes_in_memory(events: Events) -> int:
    """About how many bytes of memory events take."""
    if isinstance(events, LazyEvents):
        texts = sum(len(block.text) for block in events.blocks)
        return texts + BYTES_PER_TEXT * len(events.blocks) + BYTES_PER_EVENT_IN_TEXT * len(events)
    return sum(len(event.record.value or b"") for event in events) + BYTES_PER_EVENT_OBJECT * len(events)


def _archived_location(segment: IndexSegment) -> ArchiveLocation:
    assert segment.location is not None
    return segment.location


def read_segment(
    store: ArchiveStore,
    topic: str,
    partition: int,
    segment: IndexSegment,
    unpacking: AbstractContextManager[object] = NO_UNPACKING_LIMIT,
) -> Sequence[StoredEvent]:
    """The events of a segment in the store, which must be unchanged. Raises `UnreadableSegment`, and `Unavailable` if
    the archive is not there.

    The context `unpacking` is entered after the object is read.
    """
    location = segment.location
    assert location is not None
    try:
        content = store.read_range(location)
        with unpacking:
            events = member_format.parse_partition_member(content, topic, partition)
        _check_contents(events, segment)
    except gzip_format.BadArchive as error:
        raise UnreadableSegment(topic, partition, segment, f"is damaged: {error}") from error
    except ArchiveObjectGone as error:
        check_mounted_after_failed_read(store)
        raise UnreadableSegment(topic, partition, segment, "is not there") from error
    return events


def _check_contents(events: Sequence[StoredEvent], segment: IndexSegment) -> None:
    if events and not segment.first_offset <= events[0].offset <= events[-1].offset < segment.end_offset:
        raise gzip_format.BadArchive(f"it has offsets {events[0].offset} to {events[-1].offset}")
    if segment.event_count is not None and len(events) != segment.event_count:
        raise gzip_format.BadArchive(f"it has {len(events)} events of {segment.event_count}")

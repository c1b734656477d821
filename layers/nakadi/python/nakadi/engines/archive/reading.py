"""Reading the archive: its objects, several at a time, and with them a partition by offset or by time."""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import datetime
from typing import NamedTuple

from nakadi.common.metrics import Metrics
from nakadi.engines.archive import objects
from nakadi.engines.archive.objects import count_events_from, first_segment_offset_since, segments_for_read
from nakadi.model.events import EventSlice, EventTextBlock, LazyEvents, StoredEvent
from nakadi.model.log_index import ArchiveLocation, IndexSegment
from nakadi.ports.archive_store import ArchiveObjectGone, ArchiveStore
from nakadi.ports.log_index import LogIndex

MAX_CACHED_BYTES = 4_000_000
"""Compressed, as they are in the store: some segments for each of those who read at the same time."""

CONCURRENT_READS = 16
"""Objects that a process asks for at the same time."""

MAX_OBJECTS_READ_AHEAD = 16
MAX_BYTES_READ_AHEAD = 2_000_000
"""Objects, and their bytes as they are in the store, that are asked for before a reader takes the first of them."""

MIN_COMPRESSION_RATIO = 4
"""Times larger at least than in the store: to guess which segments are enough for a reader."""

MAX_SEQUENTIAL_READS = 1000
"""Readers that are recognized when they come back for what follows."""

Events = Sequence[StoredEvent]

log = logging.getLogger(__name__)


class UnreadableSegment(ArchiveObjectGone):
    """Raised for events that the archive should have, and has not, or not as they were; the message tells offsets."""


class SequentialRead(NamedTuple):
    """A reader that comes back for what follows: how many segments were read for it the last time, and up to where."""

    segment_count: int = 0
    end_offset: int = 0


class SegmentCache:
    """Archived segments that were read lately, and threads that read ahead."""

    def __init__(self, store: ArchiveStore, most_bytes: int = MAX_CACHED_BYTES, metrics: Metrics | None = None) -> None:
        self._store = store
        self._metrics = metrics or Metrics()
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._members: OrderedDict[ArchiveLocation, Events] = OrderedDict()
        self._bytes = 0
        self._ahead: dict[ArchiveLocation, Future[Events]] = {}
        self._sequential_reads: OrderedDict[tuple[str, int, int], SequentialRead] = OrderedDict()
        self._readers: ThreadPoolExecutor | None = None
        self._closed = False

    def read_segment(self, topic: str, partition: int, segment: IndexSegment) -> Events:
        """The events of a segment that is archived. Raises `UnreadableSegment`."""
        location = _archived_location(segment)
        known, ahead = self._cached_or_pending(location)
        if known is None and ahead is not None:
            # Its reader may never come back, and leave it.
            with suppress(CancelledError):
                return ahead.result()
        if known is None:
            return self._read_segment(location, topic, partition, segment)
        self._metrics.cache_hits.add(1, "archive")
        return known

    def read_in_order(
        self, topic: str, partition: int, segments: Iterable[IndexSegment], start: int, limit: int, max_bytes: int
    ) -> Generator[tuple[IndexSegment, Events], None, None]:
        """The events of these segments, one after the other in their order, while those that follow are read.

        No more is asked for at once than what a reader is likely to need for so many events, or bytes, from `start` on.
        To be closed by a reader that needs no more: then what has not begun is not read. Raises
        `UnreadableSegment` where a segment is that cannot be read.
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
                    # What is read alone needs no thread of its own.
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

    @staticmethod
    def _fits_read_ahead(
        waiting: Sequence[tuple[IndexSegment, object]], following: IndexSegment, more_events: bool, more_bytes: bool
    ) -> bool:
        if not waiting:
            return True
        asked = sum(_archived_location(each).length for each, _ in waiting)
        fits = (
            len(waiting) < MAX_OBJECTS_READ_AHEAD
            and asked + _archived_location(following).length <= MAX_BYTES_READ_AHEAD
        )
        return fits and more_events and more_bytes

    def begin_reading_ahead(self, topic: str, partition: int, segments: Iterable[IndexSegment]) -> int:
        """Read as many of these ahead as fit, since they will be needed soon. Returns where the last of them ends."""
        end = size = 0
        for segment in segments:
            if segment.location is None or (size and size + segment.location.length > MAX_BYTES_READ_AHEAD):
                break
            size += segment.location.length
            self._begin_read(topic, partition, segment)
            end = segment.end_offset
        return end

    # Readers that come back

    def pop_sequential_read(self, topic: str, partition: int, start: int) -> SequentialRead | None:
        """The run of a reader that continues where one has stopped; None if none stopped there."""
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
        with self._lock:
            known = self._members.get(location)
            if known is not None:
                self._members.move_to_end(location)
            return known, self._ahead.get(location)

    def _begin_read(self, topic: str, partition: int, segment: IndexSegment) -> Future[Events] | None:
        """The read of a segment, begun unless it is under way; None if its events are known, or after closing."""
        location = _archived_location(segment)
        with self._lock:
            if self._closed or location in self._members:
                return None
            begun = self._ahead.get(location)
            if begun is not None:
                return begun
            self._readers = self._readers or ThreadPoolExecutor(CONCURRENT_READS, thread_name_prefix="archive-reader")
            begun = self._readers.submit(self._read_segment, location, topic, partition, segment)
            self._ahead[location] = begun
        begun.add_done_callback(self._pending_read_remover(location))
        return begun

    def _pending_read_remover(self, location: ArchiveLocation) -> Callable[[Future[Events]], None]:
        def when_done(future: Future[Events]) -> None:
            with self._lock:
                if self._ahead.get(location) is future:
                    del self._ahead[location]

        return when_done

    def _await_result(self, topic: str, partition: int, segment: IndexSegment, future: Future[Events] | None) -> Events:
        if future is not None:
            with suppress(CancelledError):
                return future.result()
        return self.read_segment(topic, partition, segment)

    def _read_segment(self, location: ArchiveLocation, topic: str, partition: int, segment: IndexSegment) -> Events:
        self._metrics.cache_misses.add(1, "archive")
        try:
            events = read_segment(self._store, topic, partition, segment)
        except UnreadableSegment:
            self._metrics.archive_unreadable.add()
            raise
        self._add_to_cache(location, events)
        return events

    def _add_to_cache(self, location: ArchiveLocation, events: Events) -> None:
        with self._lock:
            if location not in self._members:
                self._members[location] = events
                self._bytes += location.length
            while self._bytes > self._most_bytes and len(self._members) > 1:
                gone, _ = self._members.popitem(last=False)
                self._bytes -= gone.length


def _archived_location(segment: IndexSegment) -> ArchiveLocation:
    assert segment.location is not None
    return segment.location


def read_segment(store: ArchiveStore, topic: str, partition: int, segment: IndexSegment) -> Sequence[StoredEvent]:
    """The events of a segment as they are in the store, where they must be as they were written."""
    location = segment.location
    assert location is not None
    try:
        events = objects.parse_partition_member(store.read_range(location), topic, partition)
        _check_contents(events, segment)
    except objects.BadArchive as error:
        raise _logged_unreadable_error(topic, partition, segment, f"is damaged: {error}") from error
    except ArchiveObjectGone as error:
        raise _logged_unreadable_error(topic, partition, segment, "is not there") from error
    return events


def _check_contents(events: Sequence[StoredEvent], segment: IndexSegment) -> None:
    if events and not segment.first_offset <= events[0].offset <= events[-1].offset < segment.end_offset:
        raise objects.BadArchive(f"it has offsets {events[0].offset} to {events[-1].offset}")
    if segment.event_count is not None and len(events) != segment.event_count:
        raise objects.BadArchive(f"it has {len(events)} events of {segment.event_count}")


def _logged_unreadable_error(topic: str, partition: int, segment: IndexSegment, why: str) -> UnreadableSegment:
    assert segment.location is not None
    message = (
        f"Offsets {segment.first_offset} to {segment.end_offset - 1} of {topic}/{partition} cannot be read:"
        f" the archive object {segment.location.key} {why}"
    )
    log.error("%s", message)
    return UnreadableSegment(message)


# Partitions -----------------------------------------------------------------------------------------------------------


class ArchiveReader:
    def __init__(self, index: LogIndex, segment_cache: SegmentCache) -> None:
        self._index = index
        self._segment_cache = segment_cache

    def read_slice(self, topic: str, partition: int, start: int, limit: int, max_bytes: int) -> EventSlice | None:
        """Events from an offset on, as many as are asked for or as the segments looked at have; perhaps none, where
        compaction left none. None when nothing was ever archived there. Raises `UnreadableSegment`.
        """
        segment = self._index.segment_at_or_before(topic, partition, start)
        if segment is None or segment.end_offset <= start or segment.location is None:
            return None
        try:
            return self.read_from_segment(segment, topic, partition, start, limit, max_bytes)
        except UnreadableSegment:
            # It may have been rewritten, and the old object removed.
            newer = self._index.segment_at_or_before(topic, partition, start)
            if newer is None or newer.location is None or newer.location == segment.location:
                raise
            return self.read_from_segment(newer, topic, partition, start, limit, max_bytes)

    def read_from_segment(
        self, segment: IndexSegment, topic: str, partition: int, start: int, limit: int, max_bytes: int
    ) -> EventSlice:
        """The same, from an offset in a segment that is archived and at hand."""
        segments = list(_segments_without_gap(segments_for_read(self._index, segment, topic, partition, start, limit)))
        sequential = self._segment_cache.pop_sequential_read(topic, partition, start)
        parts: list[Events] = []
        following, size, missing = start, 0, limit
        found = self._segment_cache.read_in_order(topic, partition, segments, start, limit, max_bytes)
        with closing(found):
            while missing > 0 and size < max_bytes:
                try:
                    each, more = next(found)
                except StopIteration:
                    break
                except UnreadableSegment:
                    if following > start:
                        break  # what is in front of it is good
                    raise
                begin = bisect_left(more, start, key=_event_offset) if each is segment else 0
                taken, bytes_taken = _events_that_fit(more, begin, missing, max_bytes - size, at_least_one=not parts)
                if taken:
                    parts.append(taken)
                size += bytes_taken
                missing -= len(taken)
                if begin + len(taken) < len(more):
                    following = parts[-1][-1].offset + 1
                    break
                following = each.end_offset
        self._begin_reading_ahead(topic, partition, segments, following, sequential)
        return EventSlice(objects.join_events(parts), following)

    def _begin_reading_ahead(
        self,
        topic: str,
        partition: int,
        segments: Sequence[IndexSegment],
        next_offset: int,
        sequential: SequentialRead | None,
    ) -> None:
        """Have read what a reader will ask for next, if it came back for what follows.

        Twice as much each time that it has used up what was read for it: what is read in vain, because a reader
        does not come any more, is about as much as that reader took at most.
        """
        end = next((each.end_offset for each in segments if next_offset < each.end_offset), segments[-1].end_offset)
        if sequential is not None and sequential.end_offset <= end:
            wanted = min(max(2 * sequential.segment_count, 1), MAX_OBJECTS_READ_AHEAD)
            behind = self._index.segments_from(topic, partition, end, wanted)
            # Where nothing follows, it is not looked for again before the reader has left this segment.
            sequential = SequentialRead(
                wanted, max(self._segment_cache.begin_reading_ahead(topic, partition, behind), end + 1)
            )
        self._segment_cache.remember_sequential_read(topic, partition, next_offset, sequential or SequentialRead())

    def first_offset_since(
        self, topic: str, partition: int, start: int, end: int, moment: datetime, microseconds: int
    ) -> int | None:
        """The first event between two offsets that was stored at a moment or later, also given in microseconds.

        None when the archive has no such event.
        """
        offset = first_segment_offset_since(self._index, topic, partition, start, end, microseconds)
        while offset < end:
            segment = self._index.segment_at_or_before(topic, partition, offset)
            if segment is None or segment.end_offset <= offset:
                return None
            events = self._read_current_segment(topic, partition, segment, offset)
            index = max(bisect_left(events, moment, key=_stored_at), bisect_left(events, offset, key=_event_offset))
            if index < len(events):
                return events[index].offset if events[index].offset < end else None
            offset = segment.end_offset
        return None

    def _read_current_segment(self, topic: str, partition: int, segment: IndexSegment, offset: int) -> Events:
        """The events of a segment, or of the one that has replaced it."""
        try:
            return self._segment_cache.read_segment(topic, partition, segment)
        except UnreadableSegment:
            newer = self._index.segment_at_or_before(topic, partition, offset)
            if newer is None or newer.location is None or newer.location == segment.location:
                raise
            return self._segment_cache.read_segment(topic, partition, newer)

    def close(self) -> None:
        self._segment_cache.close()


def _segments_without_gap(segments: Sequence[IndexSegment]) -> Iterator[IndexSegment]:
    """Segments follow each other without a gap; what an index says otherwise must not be stepped over."""
    end = segments[0].first_offset
    for segment in segments:
        if segment.location is None or segment.first_offset != end:
            return
        yield segment
        end = segment.end_offset


def _events_that_fit(
    events: Events, begin: int, limit: int, max_bytes: int, *, at_least_one: bool
) -> tuple[Events, int]:
    """The events from an index on that fit, at least one if there must be some, and their bytes."""
    end = min(len(events), begin + max(limit, 1 if at_least_one else 0))
    if isinstance(events, LazyEvents):
        return _lines_that_fit(events.blocks_between(begin, end), max_bytes, at_least_one=at_least_one)
    total = 0
    for index in range(begin, end):
        size = len(events[index].record.value or b"")
        if total + size > max_bytes and not (at_least_one and index == begin):
            return events[begin:index], total
        total += size
    return events[begin:end], total


def _lines_that_fit(texts: Iterable[EventTextBlock], max_bytes: int, *, at_least_one: bool) -> tuple[LazyEvents, int]:
    """The same, of events that are lines of text: their bytes are known without a look at each."""
    taken: list[EventTextBlock] = []
    total = 0
    for lines in texts:
        # So many of them end before the text gets too long; the breaks between them do not count.
        fitting = bisect_right(range(len(lines.line_ends)), max_bytes - total, key=lambda at: lines.line_ends[at] - at)
        if at_least_one and not taken:
            fitting = max(fitting, 1)
        if fitting:
            taken.append(lines.lines_between(0, fitting))
            total += lines.line_ends[fitting - 1] - (fitting - 1)
        if fitting < len(lines.line_ends):
            break
    return LazyEvents(taken), total


def _event_offset(event: StoredEvent) -> int:
    return event.offset


def _stored_at(event: StoredEvent) -> datetime:
    return event.stored_at

"""Reading a partition of the archive, by offset or by time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from datetime import datetime

from nakadi.engines.archive import member_format
from nakadi.engines.archive.segment_cache import (
    MAX_OBJECTS_READ_AHEAD,
    Events,
    SegmentCache,
    SequentialRead,
    UnreadableSegment,
)
from nakadi.engines.archive.segments import first_segment_offset_since, segments_for_read
from nakadi.model.events import EventSlice, EventTextBlock, LazyEvents, StoredEvent
from nakadi.model.log_index import IndexSegment
from nakadi.ports.log_index import LogIndex


class ArchiveReader:
    def __init__(self, index: LogIndex, segment_cache: SegmentCache) -> None:
        self._index = index
        self._segment_cache = segment_cache

    def read_slice(self, topic: str, partition: int, start: int, limit: int, max_bytes: int) -> EventSlice | None:
        """Events from an offset on: as many as the limits allow or as the read segments have, perhaps none after a
        compaction. Returns None if no segment contains the offset. Raises `UnreadableSegment`.
        """
        segment = self._index.segment_at_or_before(topic, partition, start)
        if segment is None or segment.end_offset <= start or segment.location is None:
            return None
        try:
            return self.read_from_segment(segment, topic, partition, start, limit, max_bytes)
        except UnreadableSegment:
            # The segment may have been rewritten since the index was read, and its old object removed.
            newer = self._index.segment_at_or_before(topic, partition, start)
            if newer is None or newer.location is None or newer.location == segment.location:
                raise
            return self.read_from_segment(newer, topic, partition, start, limit, max_bytes)

    def read_from_segment(
        self, segment: IndexSegment, topic: str, partition: int, start: int, limit: int, max_bytes: int
    ) -> EventSlice:
        """Events from an offset in this segment on, and from the segments that follow it."""
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
                        break  # return the events before the unreadable segment
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
        return EventSlice(member_format.join_events(parts), following)

    def _begin_reading_ahead(
        self,
        topic: str,
        partition: int,
        segments: Sequence[IndexSegment],
        next_offset: int,
        sequential: SequentialRead | None,
    ) -> None:
        """Read ahead for a reader that has returned for the following events.

        The amount doubles each time that the reader has read everything that was read ahead, so if it stops, at most
        about as much is wasted as it has read.
        """
        end = next((each.end_offset for each in segments if next_offset < each.end_offset), segments[-1].end_offset)
        if sequential is not None and sequential.end_offset <= end:
            wanted = min(max(2 * sequential.segment_count, 1), MAX_OBJECTS_READ_AHEAD)
            behind = self._index.segments_from(topic, partition, end, wanted)
            # If no segment follows, the next attempt is made after the reader has left this segment.
            sequential = SequentialRead(
                wanted, max(self._segment_cache.begin_reading_ahead(topic, partition, behind), end + 1)
            )
        self._segment_cache.remember_sequential_read(topic, partition, next_offset, sequential or SequentialRead())

    def first_offset_since(
        self, topic: str, partition: int, start: int, end: int, moment: datetime, microseconds: int
    ) -> int | None:
        """The offset of the first event between two offsets that was stored at a moment or later; the caller also
        passes the moment in microseconds.

        None if the archive has no such event.
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
    """The first segments, up to a gap between two of them. An index with a gap is wrong, so segments after it are not
    used.
    """
    end = segments[0].first_offset
    for segment in segments:
        if segment.location is None or segment.first_offset != end:
            return
        yield segment
        end = segment.end_offset


def _events_that_fit(
    events: Events, begin: int, limit: int, max_bytes: int, *, at_least_one: bool
) -> tuple[Events, int]:
    """The events from an index on that fit into the limits, at least one if required, and their bytes."""
    end = min(len(events), begin + max(limit, 1 if at_least_one else 0))
    if isinstance(events, LazyEvents):
        return _blocks_that_fit(events.blocks_between(begin, end), max_bytes, at_least_one=at_least_one)
    total = 0
    for index in range(begin, end):
        size = len(events[index].record.value or b"")
        if total + size > max_bytes and not (at_least_one and index == begin):
            return events[begin:index], total
        total += size
    return events[begin:end], total


def _blocks_that_fit(blocks: Iterable[EventTextBlock], max_bytes: int, *, at_least_one: bool) -> tuple[LazyEvents, int]:
    """The events of these blocks that fit. The ends of events in a block's text are known, so events are not looked at
    one by one.
    """
    taken: list[EventTextBlock] = []
    total = 0
    for block in blocks:
        # The number of events that end before the text gets too long, not counting the commas between them.
        fitting = bisect_right(range(len(block.ends)), max_bytes - total, key=lambda at: block.ends[at] - at)
        if at_least_one and not taken:
            fitting = max(fitting, 1)
        if fitting:
            taken.append(block.block_between(0, fitting))
            total += block.ends[fitting - 1] - (fitting - 1)
        if fitting < len(block.ends):
            break
    return LazyEvents(taken), total


def _event_offset(event: StoredEvent) -> int:
    return event.offset


def _stored_at(event: StoredEvent) -> datetime:
    return event.stored_at

"""Queries to the log index for segments of a partition, which refer to archive objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nakadi.model.log_index import IndexSegment
from nakadi.ports.log_index import LogIndex

SEGMENTS_PER_INDEX_QUERY = 200

MAX_FOLLOWING_SEGMENTS = 100
"""How many following segments are requested together with a segment that may have too few events."""


def archived_segments_from(index: LogIndex, topic: str, partition: int, start: int = 0) -> Iterator[IndexSegment]:
    segment = index.segment_at_or_before(topic, partition, start)
    following = start
    if segment is not None and segment.end_offset > start:
        yield segment
        following = segment.end_offset
    while found := index.segments_from(topic, partition, following, SEGMENTS_PER_INDEX_QUERY):
        yield from found
        following = found[-1].end_offset


def segments_for_read(
    index: LogIndex, segment: IndexSegment, topic: str, partition: int, start: int, limit: int
) -> Sequence[IndexSegment]:
    """A segment, and, if it has fewer events from `start` on than the reader wants, some of the following segments:
    enough of them if each has as many events as this one.
    """
    missing = limit - count_events_from(segment, start)
    if missing <= 0:
        return [segment]
    wanted = min(-(-missing // max(count_events_from(segment, 0), 1)), MAX_FOLLOWING_SEGMENTS)
    return [segment, *index.segments_from(topic, partition, segment.end_offset, wanted)]


def count_events_from(segment: IndexSegment, start: int) -> int:
    """How many events a segment has from an offset on; an upper bound if compaction has left holes."""
    behind = segment.end_offset - max(start, segment.first_offset)
    return behind if segment.event_count is None else min(behind, segment.event_count)


def first_segment_offset_since(
    index: LogIndex, topic: str, partition: int, start: int, end: int, stored_at: int
) -> int:
    """The first offset of the first segment with an event that was stored at `stored_at` or later; `end` if there is
    none.
    """
    low, high = start, end
    while low < high:
        segment = index.segment_at_or_before(topic, partition, (low + high) // 2)
        if segment is None:
            return low
        if segment.last_stored_at < stored_at:
            low = max(segment.end_offset, low + 1)
        elif segment.first_offset <= low:
            return low
        else:
            high = segment.first_offset
    return low

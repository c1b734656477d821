"""What is in the archive: the segments that the log index tells of, and nothing that is merely there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nakadi.model.log_index import Segment
from nakadi.ports import LogIndex

AT_ONCE = 200

MOST_FOLLOWING = 100
"""Segments that are asked for with one that may not have enough."""


def archived(index: LogIndex, topic: str, partition: int, start: int = 0) -> Iterator[Segment]:
    """The segments that hold anything from an offset on, in their order."""
    segment = index.segment(topic, partition, start)
    following = start
    if segment is not None and segment.end > start:
        yield segment
        following = segment.end
    while found := index.segments(topic, partition, following, AT_ONCE):
        yield from found
        following = found[-1].end


def with_following(
    index: LogIndex, segment: Segment, topic: str, partition: int, start: int, limit: int
) -> Sequence[Segment]:
    """A segment, and if it has fewer events from `start` on than are asked for, some of those behind it: as many as
    have enough, if they are like this one."""
    missing = limit - events_behind(segment, start)
    if missing <= 0:
        return [segment]
    wanted = min(-(-missing // max(events_behind(segment, 0), 1)), MOST_FOLLOWING)
    return [segment, *index.segments(topic, partition, segment.end, wanted)]


def events_behind(segment: Segment, start: int) -> int:
    """How many events of a segment lie behind an offset; at most, where compaction has left holes."""
    behind = segment.end - max(start, segment.first)
    return behind if segment.events is None else min(behind, segment.events)


def first_until(index: LogIndex, topic: str, partition: int, start: int, end: int, stored_at: int) -> int:
    """Where the first segment begins that holds an event stored then or later; `end` when none does."""
    low, high = start, end
    while low < high:
        segment = index.segment(topic, partition, (low + high) // 2)
        if segment is None:
            return low
        if segment.until < stored_at:
            low = max(segment.end, low + 1)
        elif segment.first <= low:
            return low
        else:
            high = segment.first
    return low

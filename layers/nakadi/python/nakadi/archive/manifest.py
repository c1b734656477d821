"""What is in the archive: the segments that the log index tells of, and nothing that is merely there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nakadi.model.log_index import Segment
from nakadi.ports import LogIndex

AT_ONCE = 200

FOLLOWING = 16
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


def with_following(index: LogIndex, segment: Segment, topic: str, partition: int, limit: int) -> Sequence[Segment]:
    """A segment, and if it has fewer events than are asked for, some of those behind it."""
    if segment.count >= limit:
        return [segment]
    return [segment, *index.segments(topic, partition, segment.end, FOLLOWING)]


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

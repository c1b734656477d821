"""Which objects the archive consists of: their keys, and the segments of the log index that refer to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from uuid import uuid4

from nakadi.model.log_index import Segment
from nakadi.ports.log_index import LogIndex

# Keys -----------------------------------------------------------------------------------------------------------------


LOG = "log/"
"""Events as they came, of one partition or of many."""

REWRITTEN = "compacted/"
"""Objects in here hold rewritten events of one partition, and no other events."""

NO_EVENT_TYPE = "_"
"""In place of the name of an event type that is not known."""


def logged(namespace: str, event_type: str | None, topic: str, first: datetime) -> str:
    """A new name for events of a topic, the first of which is from then."""
    return f"{LOG}{namespace}/{event_type or NO_EVENT_TYPE}/{first:%Y-%m-%d}/{topic}-{uuid4().hex}.json.gz"


def rewritten(old: str, topic: str, partition: int, first: int) -> str:
    """A new name for events that so far were in the object `old`."""
    return rewritten_in(namespace_of(old), topic, partition, first)


def rewritten_in(namespace: str, topic: str, partition: int, first: int) -> str:
    return f"{REWRITTEN}{namespace}/{topic}/{partition}/{first:018d}-{uuid4().hex}.json.gz"


def namespace_of(key: str) -> str:
    return key.split("/", 2)[1]


# Segments -------------------------------------------------------------------------------------------------------------


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

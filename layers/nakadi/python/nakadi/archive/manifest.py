"""What is in the archive: the segments that the log index tells of, and nothing that is merely there."""

from __future__ import annotations

from collections.abc import Iterator

from nakadi.model.log_index import Segment
from nakadi.ports import LogIndex

AT_ONCE = 200


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

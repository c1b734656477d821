"""Reading a partition from the archive, by offset and by time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from datetime import datetime

from nakadi.archive.library import Library, Unreadable
from nakadi.archive.manifest import first_until, with_following
from nakadi.model.events import Slice, StoredEvent
from nakadi.model.log_index import Segment
from nakadi.ports import LogIndex

LARGE = 500
"""Events: of more, a stream takes several slices."""


class ArchiveReader:
    def __init__(self, index: LogIndex, library: Library) -> None:
        self._index = index
        self._library = library

    def slice(self, topic: str, partition: int, start: int, limit: int, max_bytes: int) -> Slice | None:
        """Events from an offset on, as many as are asked for or as the segments looked at have; perhaps none, where
        compaction left none. None when nothing was ever archived there. Raises `Unreadable`.
        """
        segment = self._index.segment(topic, partition, start)
        if segment is None or segment.end <= start or segment.archived is None:
            return None
        self._expect_what_follows(segment, topic, partition, start)
        events: list[StoredEvent] = []
        following, size = start, 0
        for each in with_following(self._index, segment, topic, partition, limit):
            # Segments follow each other without a gap; what an index says otherwise must not be stepped over.
            if each.archived is None or (each is not segment and each.first != following):
                break
            try:
                more = self._library.events(topic, partition, each)
            except Unreadable:
                if following > start:
                    break  # what is in front of it is good
                raise
            begin = bisect_left(more, start, key=_offset) if each is segment else 0
            taken, bytes_taken, all_of_it = _fitting(
                more, begin, limit - len(events), max_bytes - size, some=not events
            )
            events += taken
            size += bytes_taken
            if not all_of_it:
                return Slice(tuple(events), events[-1].offset + 1)
            following = each.end
            if len(events) >= limit or size >= max_bytes:
                break
        return Slice(tuple(events), following)

    def first_stored_at(
        self, topic: str, partition: int, start: int, end: int, moment: datetime, at: int
    ) -> int | None:
        """The first event between two offsets that was stored at a moment or later; `at` is the moment in microseconds.

        None when the archive has no such event.
        """
        place = first_until(self._index, topic, partition, start, end, at)
        while place < end:
            segment = self._index.segment(topic, partition, place)
            if segment is None or segment.end <= place:
                return None
            events = self._library.events(topic, partition, segment)
            index = max(bisect_left(events, moment, key=_stored_at), bisect_left(events, place, key=_offset))
            if index < len(events):
                return events[index].offset if events[index].offset < end else None
            place = segment.end
        return None

    def _expect_what_follows(self, segment: Segment, topic: str, partition: int, start: int) -> None:
        """Whoever reads on in a large segment is likely to come to the next one."""
        if start > segment.first and segment.count >= LARGE:
            for following in self._index.segments(topic, partition, segment.end, 1):
                self._library.expect(topic, partition, following)

    def close(self) -> None:
        self._library.close()


def _fitting(
    events: Sequence[StoredEvent], begin: int, limit: int, max_bytes: int, *, some: bool
) -> tuple[Sequence[StoredEvent], int, bool]:
    """The events from a place on that fit, at least one if there must be some; their bytes; and whether it is all."""
    end = min(len(events), begin + max(limit, 1 if some else 0))
    total = 0
    for place in range(begin, end):
        size = len(events[place].record.value or b"")
        if total + size > max_bytes and not (some and place == begin):
            return events[begin:place], total, False
        total += size
    return events[begin:end], total, end == len(events)


def _offset(event: StoredEvent) -> int:
    return event.offset


def _stored_at(event: StoredEvent) -> datetime:
    return event.stored_at

"""Reading a partition from the archive, by offset and by time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import datetime

from nakadi.engines.archive.library import MOST_AHEAD, Library, Run, Unreadable
from nakadi.engines.archive.manifest import first_until, with_following
from nakadi.model.events import Slice, StoredEvent
from nakadi.model.log_index import Segment
from nakadi.ports.log_index import LogIndex


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
        try:
            return self.from_segment(segment, topic, partition, start, limit, max_bytes)
        except Unreadable:
            # It may have been rewritten, and the old object removed.
            newer = self._index.segment(topic, partition, start)
            if newer is None or newer.archived is None or newer.archived == segment.archived:
                raise
            return self.from_segment(newer, topic, partition, start, limit, max_bytes)

    def from_segment(
        self, segment: Segment, topic: str, partition: int, start: int, limit: int, max_bytes: int
    ) -> Slice:
        """The same, from an offset in a segment that is archived and at hand."""
        segments = list(_check_connected(with_following(self._index, segment, topic, partition, start, limit)))
        run = self._library.run(topic, partition, start)
        events: list[StoredEvent] = []
        following, size = start, 0
        found = self._library.sequence(topic, partition, segments, start, limit, max_bytes)
        with closing(found):
            while len(events) < limit and size < max_bytes:
                try:
                    each, more = next(found)
                except StopIteration:
                    break
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
                following = each.end if all_of_it else events[-1].offset + 1
                if not all_of_it:
                    break
        self._look_ahead(topic, partition, segments, following, run)
        return Slice(tuple(events), following)

    def _look_ahead(
        self, topic: str, partition: int, segments: Sequence[Segment], following: int, run: Run | None
    ) -> None:
        """Have read what a reader will ask for next, if it came back for what follows.

        Twice as much each time that it has used up what was read for it: what is read in vain, because a reader
        does not come any more, is about as much as that reader took at most.
        """
        end = next((each.end for each in segments if following < each.end), segments[-1].end)
        if run is not None and run.end <= end:
            wanted = min(max(2 * run.segments, 1), MOST_AHEAD)
            behind = self._index.segments(topic, partition, end, wanted)
            # Where nothing follows, it is not looked for again before the reader has left this segment.
            run = Run(wanted, max(self._library.expect(topic, partition, behind), end + 1))
        self._library.note_run(topic, partition, following, run or Run())

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

    def close(self) -> None:
        self._library.close()


def _check_connected(segments: Sequence[Segment]) -> Iterator[Segment]:
    """Segments follow each other without a gap; what an index says otherwise must not be stepped over."""
    end = segments[0].first
    for segment in segments:
        if segment.archived is None or segment.first != end:
            return
        yield segment
        end = segment.end


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

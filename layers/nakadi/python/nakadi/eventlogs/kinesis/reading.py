"""Reading: what is remembered first, then the archive, then the stream itself."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable

from nakadi.archive.library import Library
from nakadi.archive.manifest import first_until, with_following
from nakadi.eventlogs.kinesis.events import before, cut, slice_of
from nakadi.eventlogs.kinesis.places import hash_key, partition_key, place_of
from nakadi.eventlogs.kinesis.scanning import Scanner, Start
from nakadi.eventlogs.kinesis.tails import Ancestry, Ours, Tails
from nakadi.eventlogs.kinesis.tally import Arrived
from nakadi.eventlogs.kinesis.topics import Topics
from nakadi.eventlogs.kinesis.trails import Rank, Trails
from nakadi.model.events import Bounds, Slice, StoredEvent
from nakadi.model.log_index import Counted, Segment, Topic
from nakadi.model.moments import microseconds
from nakadi.model.outcomes import Unavailable
from nakadi.ports import ArchiveGone, LogIndex, OffsetUnavailable

SEARCHED_AT_ONCE = 1000
MANY_BYTES = 4_000_000


class Reader:
    def __init__(
        self,
        ancestry: Ancestry,
        index: LogIndex,
        topics: Topics,
        library: Library | None,
        announce: Callable[[str, int], None],
        ours: Ours,
        *,
        shared_for: float,
        window_bytes: int,
    ) -> None:
        stream = ancestry.stream
        self._index = index
        self._ancestry = ancestry
        self._topics = topics
        self._library = library
        self._announce = announce
        self._shared_for = shared_for
        self._trails = Trails(window_bytes)
        self._scanner = Scanner(stream, ancestry)
        self.tails = Tails(stream, ancestry, lambda: index.progress(stream.name), self._received, ours)

    # The tip

    def state(self, topic: str, partition: int, since: float | None = None) -> Counted:
        """A partition, counted to its tip as it was at `since`; without it, as it was a little while ago."""
        key = partition_key(topic, partition)
        self.tails.know(hash_key(key), time.monotonic() - self._shared_for if since is None else since)
        return self._counted(key, topic, partition)

    def bounds(self, topic: str, partition: int, since: float) -> Bounds:
        """What there is to be read, with everything that was acknowledged before `since`."""
        found = self._topics.with_partition(topic, partition)
        following = self.state(topic, partition, since).next
        return Bounds(min(found.oldest.get(partition, 0), following), following)

    def _received(self, records: list[Arrived], rank: Rank) -> None:
        for key in self._trails.arrived(records, rank):
            place = place_of(key)
            if place is not None:
                self._announce(*place)

    def _counted(self, key: str, topic: str, partition: int) -> Counted:
        while (state := self._trails.state(key)) is None:
            start = self._index.heads([(topic, partition)])[topic, partition].counted
            if not self._count_from(key, start):
                lost = self._trails.lost(key)
                assert lost is not None
                self._count_from(key, self._scanner.state_behind(key, start, lost))
        return state

    def _count_from(self, key: str, start: Counted) -> bool:
        parts = self._scanner.parts(start)
        return self._trails.count_from(key, start, parts, self._ancestry.placing(start.mark).rank)

    # Events

    def look(self, topic: str, partition: int, start: int, limit: int, max_bytes: int) -> Slice:
        found = self._topics.with_partition(topic, partition)
        state = self._trails.state(partition_key(topic, partition))
        if state is None or start >= state.next:
            state = self.state(topic, partition)
        if start > state.next:
            # Somebody else may have heard of more a moment ago.
            state = self.state(topic, partition, time.monotonic())
        oldest = found.oldest.get(partition, 0)
        if not oldest <= start <= state.next:
            raise OffsetUnavailable(f"{start} is not between {oldest} and {state.next}")
        place = start
        while place < state.next:
            piece = before(state.next, self._piece(found, topic, partition, place, limit, max_bytes))
            if piece.events:
                return piece
            place = piece.next_offset
        return Slice((), place)

    def offset_at(self, topic: str, partition: int, stored_at: int) -> int:
        found = self._topics.with_partition(topic, partition)
        state = self.state(topic, partition, time.monotonic())
        place = found.oldest.get(partition, 0)
        if state.latest < stored_at:
            return state.next
        place = self._shortly_before(
            topic, partition, max(place, self._indexed_before(topic, partition, place, stored_at)), stored_at
        )
        while place < state.next:
            piece = self.look(topic, partition, place, SEARCHED_AT_ONCE, MANY_BYTES)
            for event in piece.events:
                if microseconds(event.stored_at) >= stored_at:
                    return event.offset
            place = piece.next_offset
        return state.next

    def _piece(self, found: Topic, topic: str, partition: int, start: int, limit: int, max_bytes: int) -> Slice:
        key = partition_key(topic, partition)
        compacted = start < found.compacted.get(partition, 0)
        if not compacted:
            remembered = self._trails.frames(key, start, limit, max_bytes)
            if remembered is not None:
                return slice_of(remembered, start, limit, max_bytes)
        segment, known = self._known_before(topic, partition, start)
        if segment is not None and segment.archived and self._library:
            archived = self._from_archive(segment, topic, partition, start, limit, max_bytes)
            if archived is not None:
                return archived
        if compacted:
            raise Unavailable(f"The archive lacks offset {start} of {key}")
        frames = self._scanner.frames(key, known, start, self._trails.first(key), max_bytes)
        return slice_of(frames, start, limit, max_bytes)

    def _known_before(self, topic: str, partition: int, start: int) -> tuple[Segment | None, Start]:
        """The segment that holds an offset, if there is one, and where counting towards the offset begins."""
        segment = self._segment_with(topic, partition, start)
        if segment is not None:
            return segment, Start(segment.before, segment.since)
        head = self._index.heads([(topic, partition)])[topic, partition].counted
        if head.next <= start:
            return None, Start(head)
        # It was indexed just now.
        segment = self._segment_with(topic, partition, start)
        if segment is None:
            raise Unavailable(f"The index lacks offset {start} of {topic}/{partition}")
        return segment, Start(segment.before, segment.since)

    def _segment_with(self, topic: str, partition: int, offset: int) -> Segment | None:
        found = self._index.segment(topic, partition, offset)
        return found if found is not None and offset < found.end else None

    def _from_archive(
        self, segment: Segment, topic: str, partition: int, start: int, limit: int, max_bytes: int
    ) -> Slice | None:
        """What is behind an offset in its segment and those that follow. None when the object is not there any more."""
        assert self._library is not None
        events: list[StoredEvent] = []
        following = start
        size = 0
        for each in with_following(self._index, segment, topic, partition, limit):
            if each.archived is None or each.first > following:
                break
            try:
                found = [event for event in self._library.events(topic, partition, each) if event.offset >= start]
            except ArchiveGone:
                break
            events += found
            following = each.end
            size += sum([len(event.record.value or b"") for event in found])
            if len(events) >= limit or size >= max_bytes:
                break
        return cut(events, following, limit, max_bytes) if following > start else None

    # Times

    def _indexed_before(self, topic: str, partition: int, oldest: int, stored_at: int) -> int:
        """Where the first segment begins that holds an event stored then or later; the end of all when none does."""
        head = self._index.heads([(topic, partition)])[topic, partition].counted
        if head.latest < stored_at:
            return head.next
        return first_until(self._index, topic, partition, oldest, head.next, stored_at)

    def _shortly_before(self, topic: str, partition: int, start: int, stored_at: int) -> int:
        """The same, with a look at what is remembered."""
        times = self._trails.times(partition_key(topic, partition))
        if not times or times[0].first > start:
            return start
        at = bisect_left(times, stored_at, key=lambda frame: frame.stored_at)
        return max(start, times[at].first) if at < len(times) else start

"""Reading: first from memory, then from the archive, then from the stream itself."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TypeVar

from nakadi.engines.archive.reading import ArchiveReader
from nakadi.engines.archive.segment_cache import SegmentCache
from nakadi.engines.archive.segments import first_segment_offset_since
from nakadi.engines.kinesis.continuity import ShardTreeCache, confirm_no_gap_in_chain
from nakadi.engines.kinesis.frames import Frame, cut_before, slice_frames
from nakadi.engines.kinesis.numbering import ArrivedRecord
from nakadi.engines.kinesis.partition_keys import hash_key, original_topic, parse_partition_key, partition_key
from nakadi.engines.kinesis.recent_records import RankOf, RecentRecords
from nakadi.engines.kinesis.scanning import NumberingStart, Scanner
from nakadi.engines.kinesis.tails import LastWrittenRecords, ShardTails
from nakadi.engines.kinesis.topics import TopicCache
from nakadi.model.events import EventSlice, OffsetBounds, TopicPartition, microseconds_since_epoch
from nakadi.model.log_index import SEALED_AT_INDEX_END, IndexingState, IndexSegment, Topic
from nakadi.model.outcomes import Unavailable
from nakadi.ports.archive_store import ArchiveObjectGone
from nakadi.ports.event_log import OffsetUnavailable
from nakadi.ports.log_index import LogIndex

T = TypeVar("T")

EVENTS_PER_SEARCH_READ = 1000
MAX_BYTES_PER_SEARCH_READ = 4_000_000


MAX_KNOWN_ENDS = 10_000
"""For how many partitions of continued topics the ends are remembered."""


class StreamReader:
    def __init__(
        self,
        shard_trees: ShardTreeCache,
        index: LogIndex,
        topics: TopicCache,
        segment_cache: SegmentCache | None,
        announce: Callable[[str, int], None],
        last_written: LastWrittenRecords,
        *,
        shared_for: float,
        window_bytes: int,
    ) -> None:
        stream = shard_trees.stream
        self._index = index
        self._shard_trees = shard_trees
        self._topics = topics
        self._archive = ArchiveReader(index, segment_cache) if segment_cache else None
        self._stream = stream
        # For each original topic, the topics in use that continue it, for which arrivals are also reported. Reading
        # threads only add entries, in single steps; a reporting thread takes a copy.
        self._continuing: dict[str, set[str]] = {}
        # The ends of partitions of continued topics. Two threads may read the same end at once; it no longer changes,
        # so either result may be kept.
        self._ends: dict[TopicPartition, IndexingState] = {}
        self._announce = announce
        self._shared_for = shared_for
        self._recent_records = RecentRecords(window_bytes)
        self._scanner = Scanner(stream, shard_trees)
        self.tails = ShardTails(
            stream, shard_trees, lambda: index.shard_progresses(stream.name), self._add_and_announce, last_written
        )

    # The tip

    def partition_state(self, topic: str, partition: int, as_of: float | None = None) -> IndexingState:
        """The state of a partition after the records that were at its tip at `as_of`; without `as_of`, as it was up to
        `shared_for` seconds ago.
        """
        if self._topics.get(topic).topic.continued_in is not None:
            return self._end_state_of_continued_topic(topic, partition)
        key = partition_key(topic, partition)
        if topic != original_topic(topic):
            # The topic is noted before the tip is read, so that every later arrival is reported.
            self._continuing.setdefault(original_topic(topic), set()).add(topic)
        if as_of is None:
            self.tails.read_until(hash_key(key), time.monotonic() - self._shared_for, trust_pushes=True)
        else:
            self.tails.read_until(hash_key(key), as_of)
        # Another thread may have read on since. Then the state covers more records than requested, which is equally
        # valid.
        return self._number_to_newest(key, topic, partition)

    def adopt_continued_topics_of(self, old: StreamReader) -> None:
        """Also report arrivals for the continued topics of another reader, because their watchers read again only after
        a report."""
        self._continuing = old._continuing  # both are stream readers

    def bounds(self, topic: str, partition: int, as_of: float) -> OffsetBounds:
        """The readable bounds, including all events acknowledged before `as_of`."""
        found = self._topics.get_with_partition(topic, partition)
        following = self.partition_state(topic, partition, as_of).next_offset
        return OffsetBounds(min(found.oldest.get(partition, 0), following), following)

    def _add_and_announce(self, records: list[ArrivedRecord], rank: RankOf) -> None:
        for key in self._recent_records.add_records(records, rank):
            partition = parse_partition_key(key)
            if partition is not None:
                self._announce(*partition)
                for topic in tuple(self._continuing.get(partition[0], ())):
                    self._announce(topic, partition[1])

    def _end_state_of_continued_topic(self, topic: str, partition: int) -> IndexingState:
        """The end of a partition of a topic that another topic continues."""
        known = self._ends.get((topic, partition))
        if known is None:
            if len(self._ends) >= MAX_KNOWN_ENDS:
                self._ends.clear()  # some topics may have been deleted; the ends of the others are read again
            known = self._ends[topic, partition] = self._indexed_state(topic, partition)
        return known

    def _indexed_state(self, topic: str, partition: int) -> IndexingState:
        head = self._index.index_heads([(topic, partition)])[topic, partition]
        if not head.revision and self._topics.get(topic).topic.continues is not None:
            raise Unavailable(f"It is not noted yet where {topic}/{partition} begins")
        return head.state

    def _number_to_newest(self, key: str, topic: str, partition: int) -> IndexingState:
        # Several threads may number the same partition, while other records are indexed or evicted from memory. A
        # result that does not connect with the records in memory is dropped, and numbering starts again from the
        # current head.
        while (state := self._recent_records.numbering_state(key, topic)) is None:
            start = self._indexed_state(topic, partition)
            if start.sealed_at == SEALED_AT_INDEX_END:
                return start
            if not self._start_numbering(key, topic, start):
                behind = self._scan_confirming_no_gap(key, lambda: self._scan_to_last_evicted(key, topic, partition))
                self._start_numbering(key, topic, behind)
        return state

    def _scan_to_last_evicted(self, key: str, topic: str, partition: int) -> IndexingState:
        """The partition's state after the last record that is no longer in memory."""
        lost = self._recent_records.last_evicted_position(key)
        assert lost is not None
        return self._scanner.scan_to_record(key, self._indexed_state(topic, partition), lost)

    def _start_numbering(self, key: str, topic: str, start: IndexingState) -> bool:
        parts = self._scanner.read_unfinished_parts(start)
        return self._recent_records.start_numbering(
            key, topic, start, parts, self._shard_trees.tree_for_ranking(start.last_position).rank
        )

    def _scan_confirming_no_gap(self, key: str, scan: Callable[[], T]) -> T:
        """The result of a scan of the stream that begins at the end of the index. Raises `GapFound` if the result may
        lack events.

        The progress is read first, because records that are indexed meanwhile may be forgotten right afterwards.
        """
        progress = self._index.shard_progresses(self._stream.name)
        found = scan()
        confirm_no_gap_in_chain(self._shard_trees, hash_key(key), progress)
        return found

    # Events

    def read_now(self, topic: str, partition: int, start: int, limit: int, max_bytes: int) -> EventSlice:
        found = self._topics.get_with_partition(topic, partition)
        state = self._recent_records.numbering_state(partition_key(topic, partition), topic)
        if found.continued_in is not None or state is None or start >= state.next_offset:
            state = self.partition_state(topic, partition)
        if start > state.next_offset:
            # Another process may have returned later events a moment ago, so read up to now.
            state = self.partition_state(topic, partition, time.monotonic())
        if start > state.next_offset and state.sealed_at == SEALED_AT_INDEX_END:
            # The event was numbered before the topic ended earlier, so it now belongs to the following timeline.
            raise Unavailable(f"{topic}/{partition} ends at {state.next_offset}, and is continued in another timeline")
        oldest = found.oldest.get(partition, 0)
        if not oldest <= start <= state.next_offset:
            raise OffsetUnavailable(f"{start} is not between {oldest} and {state.next_offset}")
        offset = start
        while offset < state.next_offset:
            piece = cut_before(
                state.next_offset, self._read_slice_from(found, topic, partition, offset, limit, max_bytes)
            )
            if piece.events:
                return piece
            offset = piece.next_offset
        return EventSlice((), offset)

    def first_offset_since(self, topic: str, partition: int, stored_at: int) -> int:
        found = self._topics.get_with_partition(topic, partition)
        state = self.partition_state(topic, partition, time.monotonic())
        offset = found.oldest.get(partition, 0)
        if state.latest_stored_at < stored_at:
            return state.next_offset
        offset = self._search_recent_records_by_time(
            topic, partition, max(offset, self._search_index_by_time(topic, partition, offset, stored_at)), stored_at
        )
        while offset < state.next_offset:
            piece = self.read_now(topic, partition, offset, EVENTS_PER_SEARCH_READ, MAX_BYTES_PER_SEARCH_READ)
            for event in piece.events:
                if microseconds_since_epoch(event.stored_at) >= stored_at:
                    return event.offset
            offset = piece.next_offset
        return state.next_offset

    def _read_slice_from(
        self, known_topic: Topic, topic: str, partition: int, start: int, limit: int, max_bytes: int
    ) -> EventSlice:
        key = partition_key(topic, partition)
        compacted = start < known_topic.compacted.get(partition, 0)
        if not compacted:
            remembered = self._recent_records.frames_from(key, topic, start, limit, max_bytes)
            # A topic that has ended may be indexed further than this process has read.
            if remembered:
                return slice_frames(remembered, start, limit, max_bytes)
        segment, known = self._find_numbering_start(topic, partition, start)
        while segment is not None and segment.location and self._archive:
            archived = self._read_from_archive(segment, topic, partition, start, limit, max_bytes)
            if archived is not None:
                return archived
            newer = self._find_segment_containing(topic, partition, start)
            if newer is None or newer.location == segment.location:
                break
            # The segment was rewritten, and the old object removed.
            segment = newer
        if compacted:
            raise Unavailable(f"The archive lacks offset {start} of {key}")
        if segment is None:
            frames = self._scan_confirming_no_gap(
                key, lambda: self._scan_behind_head(topic, partition, start, max_bytes)
            )
        else:
            frames = self._scanner.read_frames(
                key, known, start, self._recent_records.first_offset(key, topic), max_bytes
            )
        return slice_frames(frames, start, limit, max_bytes)

    def _scan_behind_head(self, topic: str, partition: int, start: int, max_bytes: int) -> Sequence[Frame]:
        key = partition_key(topic, partition)
        _, known = self._find_numbering_start(topic, partition, start)
        return self._scanner.read_frames(key, known, start, self._recent_records.first_offset(key, topic), max_bytes)

    def _find_numbering_start(
        self, topic: str, partition: int, start: int
    ) -> tuple[IndexSegment | None, NumberingStart]:
        """The segment with an offset, if there is one, and where numbering towards the offset begins."""
        segment = self._find_segment_containing(topic, partition, start)
        if segment is not None:
            return segment, NumberingStart(segment.state_before, segment.first_stored_at)
        head = self._index.index_heads([(topic, partition)])[topic, partition].state
        if head.next_offset <= start:
            return None, NumberingStart(head)
        # The events have just been indexed, so look for their segment again.
        segment = self._find_segment_containing(topic, partition, start)
        if segment is None:
            raise Unavailable(f"The index lacks offset {start} of {topic}/{partition}")
        return segment, NumberingStart(segment.state_before, segment.first_stored_at)

    def _find_segment_containing(self, topic: str, partition: int, offset: int) -> IndexSegment | None:
        found = self._index.segment_at_or_before(topic, partition, offset)
        return found if found is not None and offset < found.end_offset else None

    def _read_from_archive(
        self, segment: IndexSegment, topic: str, partition: int, start: int, limit: int, max_bytes: int
    ) -> EventSlice | None:
        """Events from an offset on, in its segment and those that follow. None if the archive no longer has the
        segment's object.
        """
        assert self._archive is not None
        try:
            return self._archive.read_from_segment(segment, topic, partition, start, limit, max_bytes)
        except ArchiveObjectGone:
            return None

    # Times

    def _search_index_by_time(self, topic: str, partition: int, oldest: int, stored_at: int) -> int:
        """The first offset of the first segment with an event that was stored at `stored_at` or later; the end of all
        segments if there is none.
        """
        head = self._index.index_heads([(topic, partition)])[topic, partition].state
        if head.latest_stored_at < stored_at:
            return head.next_offset
        return first_segment_offset_since(self._index, topic, partition, oldest, head.next_offset, stored_at)

    def _search_recent_records_by_time(self, topic: str, partition: int, start: int, stored_at: int) -> int:
        """Search by time, including the records in memory."""
        times = self._recent_records.all_frames_of_partition(partition_key(topic, partition), topic)
        if not times or times[0].first_offset > start:
            return start
        at = bisect_left(times, stored_at, key=lambda frame: frame.stored_at)
        return max(start, times[at].first_offset) if at < len(times) else start

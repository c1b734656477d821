"""Reading: first what is in memory, then the archive, then the stream itself; and watching.

While there are watchers, every shard is polled, or pushed.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from nakadi.engines.archive.objects import first_segment_offset_since
from nakadi.engines.archive.reading import ArchiveReader, SegmentCache
from nakadi.engines.kinesis.continuity import RETRY_TIMEOUT_SECONDS, GapFound, ShardTreeCache, confirm_no_gap_in_chain
from nakadi.engines.kinesis.envelopes import hash_key, original_topic, parse_partition_key, partition_key
from nakadi.engines.kinesis.fan_out import FanOut
from nakadi.engines.kinesis.recent_records import ArrivedRecord, Frame, RankOf, RecentRecords, cut_before, slice_frames
from nakadi.engines.kinesis.scanning import NumberingStart, Scanner
from nakadi.engines.kinesis.stream import GrowingPauses, ShardBusy
from nakadi.engines.kinesis.tails import LastWrittenRecords, ShardPositionLost, ShardTails
from nakadi.engines.kinesis.topics import TopicCache
from nakadi.model.events import EventSlice, OffsetBounds, TopicPartition, microseconds_since_epoch
from nakadi.model.log_index import SEALED_AT_INDEX_END, IndexingState, IndexSegment, RecordPosition, Topic
from nakadi.model.outcomes import Unavailable
from nakadi.ports.archive_store import ArchiveObjectGone
from nakadi.ports.event_log import OffsetUnavailable
from nakadi.ports.log_index import LogIndex

# Reading --------------------------------------------------------------------------------------------------------------


EVENTS_PER_SEARCH_READ = 1000
MAX_BYTES_PER_SEARCH_READ = 4_000_000

T = TypeVar("T")


MAX_KNOWN_ENDS = 10_000
"""Partitions of continued topics whose ends are remembered."""


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
        # By original topic, those that continue it and were asked for: what arrives is reported for them as well. Only
        # added to, in single steps, by threads that read; a thread that reports meanwhile takes a copy.
        self._continuing: dict[str, set[str]] = {}
        # Two threads may read the same end at once: it does not change any more, so either may be kept.
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
        """A partition, counted to its tip as it was at `as_of`; without it, as it was a little while ago."""
        if self._topics.get(topic).topic.continued_in is not None:
            return self._end_state_of_continued_topic(topic, partition)
        key = partition_key(topic, partition)
        if topic != original_topic(topic):
            # Before the tip is looked for: what arrives behind that look is reported.
            self._continuing.setdefault(original_topic(topic), set()).add(topic)
        if as_of is None:
            self.tails.read_until(hash_key(key), time.monotonic() - self._shared_for, trust_pushes=True)
        else:
            self.tails.read_until(hash_key(key), as_of)
        # Another thread may have read on since: then more is counted than was asked for, which is as true.
        return self._number_to_newest(key, topic, partition)

    def adopt_continued_topics_of(self, old: StreamReader) -> None:
        """Report the continued topics that another reader was asked for: their watchers ask again only when they hear
        of something."""
        self._continuing = old._continuing  # of the same kind

    def bounds(self, topic: str, partition: int, as_of: float) -> OffsetBounds:
        """What there is to be read, with everything that was acknowledged before `as_of`."""
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
        """Where a partition of a topic ends that is continued in another."""
        known = self._ends.get((topic, partition))
        if known is None:
            if len(self._ends) >= MAX_KNOWN_ENDS:
                self._ends.clear()  # some are of topics that are deleted; the others are read again
            known = self._ends[topic, partition] = self._indexed_state(topic, partition)
        return known

    def _indexed_state(self, topic: str, partition: int) -> IndexingState:
        head = self._index.index_heads([(topic, partition)])[topic, partition]
        if not head.revision and self._topics.get(topic).topic.continues is not None:
            raise Unavailable(f"It is not noted yet where {topic}/{partition} begins")
        return head.state

    def _number_to_newest(self, key: str, topic: str, partition: int) -> IndexingState:
        # Several threads may count the same partition. What the index counts, and what is forgotten, goes on meanwhile:
        # a count that does not meet what is remembered is not kept, and is begun anew from the head as it is then.
        while (state := self._recent_records.numbering_state(key, topic)) is None:
            start = self._indexed_state(topic, partition)
            if start.sealed_at == SEALED_AT_INDEX_END:
                return start
            if not self._start_numbering(key, topic, start):
                behind = self._scan_confirming_no_gap(key, lambda: self._scan_to_last_evicted(key, topic, partition))
                self._start_numbering(key, topic, behind)
        return state

    def _scan_to_last_evicted(self, key: str, topic: str, partition: int) -> IndexingState:
        """The partition counted up to the last record that is remembered no more."""
        lost = self._recent_records.last_evicted_position(key)
        assert lost is not None
        return self._scanner.scan_to_record(key, self._indexed_state(topic, partition), lost)

    def _start_numbering(self, key: str, topic: str, start: IndexingState) -> bool:
        parts = self._scanner.read_unfinished_parts(start)
        return self._recent_records.start_numbering(
            key, topic, start, parts, self._shard_trees.tree_for_ranking(start.last_position).rank
        )

    def _scan_confirming_no_gap(self, key: str, scan: Callable[[], T]) -> T:
        """What a scan of the stream finds that begins where the index ends. Raises `GapFound` when it may lack events.

        The progress is read first: what the index counts meanwhile may be forgotten right after.
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
            # Another process may have learned of more a moment ago.
            state = self.partition_state(topic, partition, time.monotonic())
        if start > state.next_offset and state.sealed_at == SEALED_AT_INDEX_END:
            # Its number was given out before the topic ended in front of it, and is found in the timeline that follows.
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

    def offset_at(self, topic: str, partition: int, stored_at: int) -> int:
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
            # A topic that has ended may be indexed further than this process has read it.
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
            # It was rewritten, and the old object removed.
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
        """The segment that holds an offset, if there is one, and where counting towards the offset begins."""
        segment = self._find_segment_containing(topic, partition, start)
        if segment is not None:
            return segment, NumberingStart(segment.state_before, segment.first_stored_at)
        head = self._index.index_heads([(topic, partition)])[topic, partition].state
        if head.next_offset <= start:
            return None, NumberingStart(head)
        # It was indexed just now.
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
        """What is behind an offset in its segment and those that follow. None when the object is not there any more."""
        assert self._archive is not None
        try:
            return self._archive.read_from_segment(segment, topic, partition, start, limit, max_bytes)
        except ArchiveObjectGone:
            return None

    # Times

    def _search_index_by_time(self, topic: str, partition: int, oldest: int, stored_at: int) -> int:
        """Where the first segment begins that holds an event stored then or later; the end of all when none does."""
        head = self._index.index_heads([(topic, partition)])[topic, partition].state
        if head.latest_stored_at < stored_at:
            return head.next_offset
        return first_segment_offset_since(self._index, topic, partition, oldest, head.next_offset, stored_at)

    def _search_recent_records_by_time(self, topic: str, partition: int, start: int, stored_at: int) -> int:
        """The same, with a look at what is remembered."""
        times = self._recent_records.all_frames_of_partition(partition_key(topic, partition), topic)
        if not times or times[0].first_offset > start:
            return start
        at = bisect_left(times, stored_at, key=lambda frame: frame.stored_at)
        return max(start, times[at].first_offset) if at < len(times) else start


# A reader that lasts --------------------------------------------------------------------------------------------------


StreamReaderFactory = Callable[[LastWrittenRecords], StreamReader]

log = logging.getLogger(__name__)


class RestartingReader:
    """Asks a `StreamReader`. What this process stored itself is known to every new one.

    `_reader` is replaced as a whole, and read without the lock: a thread that has just read the old one asks that one,
    which answers rightly or has lost its place.
    """

    def __init__(self, new_reader: StreamReaderFactory, shard_trees: ShardTreeCache) -> None:
        self._new_reader = new_reader
        self._shard_trees = shard_trees
        self._lock = threading.Lock()
        self._last_written = LastWrittenRecords()
        self._reader = new_reader(self._last_written)

    def remember_acknowledged(self, position: RecordPosition) -> None:
        """Note a record that this process knows: no later answer may be older."""
        self._last_written.remember_stored(position)

    def read_to_tip(self, shard: str, as_of: float, patience: GrowingPauses) -> bool:
        return self._call_with_restart(lambda reader: reader.tails.read_to_tip(shard, as_of, patience))

    def receive_pushed_records(self, shard: str, fan_out: FanOut, should_stop: Callable[[], bool]) -> bool:
        """Take what is pushed, as long as this is the reader that is asked."""
        return self._call_with_restart(
            lambda reader: reader.tails.receive_pushed_records(
                shard, fan_out, lambda: should_stop() or self._reader is not reader
            )
        )

    def partition_state(self, topic: str, partition: int, as_of: float | None = None) -> IndexingState:
        return self._call_with_restart(lambda reader: reader.partition_state(topic, partition, as_of))

    def bounds(self, topic: str, partition: int, as_of: float) -> OffsetBounds:
        return self._call_with_restart(lambda reader: reader.bounds(topic, partition, as_of))

    def read_now(self, topic: str, partition: int, start: int, limit: int, max_bytes: int) -> EventSlice:
        return self._call_with_restart(lambda reader: reader.read_now(topic, partition, start, limit, max_bytes))

    def offset_at(self, topic: str, partition: int, stored_at: int) -> int:
        return self._call_with_restart(lambda reader: reader.offset_at(topic, partition, stored_at))

    def _call_with_restart(self, call: Callable[[StreamReader], T]) -> T:
        reader = self._reader
        try:
            return call(reader)
        except ShardPositionLost as asleep:
            log.info("Shard %s was not read for a long time: reading resumes where the index ends", asleep)
        try:
            return call(self._replace_reader(reader))
        except ShardPositionLost as asleep:
            raise Unavailable(f"Shard {asleep} cannot be read") from asleep

    def _replace_reader(self, old: StreamReader) -> StreamReader:
        # Of several threads that lost their place one begins a reader, and the others ask that one. A thread that still
        # asks the old one gets what is right, or has lost its place as well and comes here.
        with self._lock:
            if self._reader is old:
                self._shard_trees.refresh()
                reader = self._new_reader(self._last_written)
                # Before any thread can ask it, and so before it reports anything.
                reader.adopt_continued_topics_of(old)
                self._reader = reader
            return self._reader


# Watching -------------------------------------------------------------------------------------------------------------


MAX_GAP_WAIT_INTERVALS = 25
"""A gap is closed by housekeeping, which takes minutes: until then a shard is not asked as often."""


class ShardWatch:
    """One thread for each shard, from now until `stop`.

    A shard that came from a merge is begun by the threads of both that it came from: the lock lets one of them, and the
    name stays in the table when the thread has ended, so that no shard is followed twice. It is read only when both are
    read to their ends, whichever comes first: `ShardTails` sees to that.
    """

    def __init__(
        self, reader: RestartingReader, shard_trees: ShardTreeCache, interval: float, fan_out: FanOut | None = None
    ) -> None:
        self._reader = reader
        self._shard_trees = shard_trees
        self._interval = interval
        self._fan_out = fan_out
        self._lock = threading.Lock()
        self._threads: dict[str, threading.Thread] = {}
        self._ended = threading.Event()
        self._start_thread("", self._start_threads_of_leaves)

    def stop(self) -> None:
        self._ended.set()

    def join_threads(self) -> None:
        # A copy, for threads may still begin others; none does any more once `_ended` was seen under the lock.
        for thread in tuple(self._threads.values()):
            thread.join()

    def _start_threads_of_leaves(self) -> None:
        while not self._ended.is_set():
            try:
                leaves = self._shard_trees.current.leaves()
            except Exception:  # whatever it was, those who wait for news must not wait for ever
                log.warning("Listing the shards failed, tried again in %s s", self._interval, exc_info=True)
                self._ended.wait(self._interval)
                continue
            for shard in leaves:
                self._start_thread(shard, partial(self._follow, shard))
            return

    def _start_thread(self, name: str, work: Callable[[], None]) -> None:
        with self._lock:
            if name not in self._threads and not self._ended.is_set():
                thread = threading.Thread(target=work, name=f"kinesis-{name}", daemon=True)
                self._threads[name] = thread
                thread.start()

    def _follow(self, shard: str) -> None:
        """Read one shard to its end, then begin with those that came from it."""
        while not self._ended.is_set():
            try:
                # What others have asked for just now need not be asked again: streams that begin ask in any case.
                recently = time.monotonic() - self._interval / 2
                ended = self._reader.read_to_tip(shard, recently, GrowingPauses(RETRY_TIMEOUT_SECONDS))
                if not ended and self._fan_out is not None:
                    # What cannot be pushed, and what a subscription that fell silent did not tell, is asked for above.
                    ended = self._reader.receive_pushed_records(shard, self._fan_out, self._ended.is_set)
                if ended and self._start_threads_of_children(shard):
                    return
            except GapFound as gap:
                log.warning("Watching shard %s waits for housekeeping: %s", shard, gap)
                self._ended.wait(MAX_GAP_WAIT_INTERVALS * self._interval)
            except ShardBusy as busy:
                log.warning("Watching waits: %s", busy)
                self._ended.wait(busy.retry_after_seconds)
            except Unavailable:
                log.warning("Shard %s is polled again", shard, exc_info=True)
                if self._is_gone_from_stream(shard):
                    self._start_threads_of_leaves()
                    return
            except Exception:  # as above
                log.exception("Shard %s is polled again", shard)
            self._ended.wait(self._interval)

    def _is_gone_from_stream(self, shard: str) -> bool:
        try:
            return shard not in self._shard_trees.refresh()
        except Unavailable:
            return False

    def _start_threads_of_children(self, shard: str) -> bool:
        children = self._shard_trees.current.children(shard) or self._shard_trees.refresh().children(shard)
        for child in children:
            self._start_thread(child, partial(self._follow, child))
        return bool(children)


class SharedShardWatch:
    """Watches as long as there are watchers.

    A watch whose last watcher leaves is ended, and not waited for: its threads may wait for Kinesis. If another watcher
    comes meanwhile, two threads read a shard for a moment. Each record is taken once all the same, by the reader of its
    shard, which has a lock.
    """

    def __init__(self, begin_watch: Callable[[], ShardWatch]) -> None:
        self._begin_watch = begin_watch
        self._lock = threading.Lock()
        self._wanted = 0
        self._watch: ShardWatch | None = None
        self._closed = False

    def add_watcher(self) -> None:
        with self._lock:
            if self._closed:
                raise Unavailable("The event log is closed.")
            self._wanted += 1
            if self._watch is None:
                self._watch = self._begin_watch()

    def remove_watcher(self) -> None:
        with self._lock:
            self._wanted -= 1
            if not self._wanted and self._watch is not None:
                self._watch.stop()
                self._watch = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        self.add_watcher()
        try:
            yield
        finally:
            self.remove_watcher()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()
            watch.join_threads()

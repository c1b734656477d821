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

from nakadi.engines.archive.objects import first_segment_since
from nakadi.engines.archive.reading import ArchiveReader, SegmentCache
from nakadi.engines.kinesis.continuity import GIVE_UP_AFTER, GapFound, ShardTreeCache, confirm, place_in, unfinished
from nakadi.engines.kinesis.envelopes import hash_key, partition_key, place_of, shared
from nakadi.engines.kinesis.fan_out import FanOut
from nakadi.engines.kinesis.recent_records import ArrivedRecord, Frame, Rank, RecentRecords, before, slice_of
from nakadi.engines.kinesis.scanning import CountingStart, Scanner
from nakadi.engines.kinesis.stream import GrowingPauses
from nakadi.engines.kinesis.tails import LastWritten, ShardPositionLost, ShardTails
from nakadi.engines.kinesis.topics import Topics
from nakadi.model.events import (
    SEALED_AT_INDEX_END,
    EventSlice,
    IndexingState,
    IndexSegment,
    OffsetBounds,
    RecordPosition,
    Topic,
    TopicPartition,
    microseconds_since_epoch,
)
from nakadi.model.outcomes import Unavailable
from nakadi.ports.archive_store import ArchiveGone
from nakadi.ports.event_log import OffsetUnavailable
from nakadi.ports.log_index import LogIndex

# Reading --------------------------------------------------------------------------------------------------------------


SEARCHED_AT_ONCE = 1000
MANY_BYTES = 4_000_000

Found = TypeVar("Found")


class StreamReader:
    def __init__(
        self,
        ancestry: ShardTreeCache,
        index: LogIndex,
        topics: Topics,
        segment_cache: SegmentCache | None,
        announce: Callable[[str, int], None],
        ours: LastWritten,
        *,
        shared_for: float,
        window_bytes: int,
    ) -> None:
        stream = ancestry.stream
        self._index = index
        self._ancestry = ancestry
        self._topics = topics
        self._archive = ArchiveReader(index, segment_cache) if segment_cache else None
        self._stream = stream
        self._continued: dict[str, str] = {}
        self._ends: dict[TopicPartition, IndexingState] = {}
        self._announce = announce
        self._shared_for = shared_for
        self._trails = RecentRecords(window_bytes)
        self._scanner = Scanner(stream, ancestry)
        self.tails = ShardTails(stream, ancestry, lambda: index.progress(stream.name), self._receive, ours)

    # The tip

    def state(self, topic: str, partition: int, since: float | None = None) -> IndexingState:
        """A partition, counted to its tip as it was at `since`; without it, as it was a little while ago."""
        if self._topics.known(topic).topic.continued_in is not None:
            return self._end_of(topic, partition)
        key = partition_key(topic, partition)
        if topic != shared(topic):
            self._continued[shared(topic)] = topic
        if since is None:
            self.tails.know(hash_key(key), time.monotonic() - self._shared_for, pushed=True)
        else:
            self.tails.know(hash_key(key), since)
        return self._counted_state(key, topic, partition)

    def bounds(self, topic: str, partition: int, since: float) -> OffsetBounds:
        """What there is to be read, with everything that was acknowledged before `since`."""
        found = self._topics.with_partition(topic, partition)
        following = self.state(topic, partition, since).next
        return OffsetBounds(min(found.oldest.get(partition, 0), following), following)

    def _receive(self, records: list[ArrivedRecord], rank: Rank) -> None:
        for key in self._trails.arrived(records, rank):
            place = place_of(key)
            if place is not None:
                self._announce(*place)
                if place[0] in self._continued:
                    self._announce(self._continued[place[0]], place[1])

    def _end_of(self, topic: str, partition: int) -> IndexingState:
        """Where a partition of a topic ends that is continued in another."""
        if (topic, partition) not in self._ends:
            self._ends[topic, partition] = self._head(topic, partition)
        return self._ends[topic, partition]

    def _head(self, topic: str, partition: int) -> IndexingState:
        head = self._index.heads([(topic, partition)])[topic, partition]
        if not head.revision and self._topics.known(topic).topic.continues is not None:
            raise Unavailable(f"It is not noted yet where {topic}/{partition} begins")
        return head.counted

    def _counted_state(self, key: str, topic: str, partition: int) -> IndexingState:
        while (state := self._trails.state(key, topic)) is None:
            start = self._head(topic, partition)
            if start.sealed_at == SEALED_AT_INDEX_END:
                return start
            if not self._count_from(key, topic, start):
                behind = self._unbroken(key, lambda: self._behind_what_is_lost(key, topic, partition))
                self._count_from(key, topic, behind)
        return state

    def _behind_what_is_lost(self, key: str, topic: str, partition: int) -> IndexingState:
        """The partition counted up to the last record that is remembered no more."""
        lost = self._trails.lost(key)
        assert lost is not None
        return self._scanner.state_behind(key, self._head(topic, partition), lost)

    def _count_from(self, key: str, topic: str, start: IndexingState) -> bool:
        parts = self._scanner.parts(start)
        return self._trails.count_from(key, topic, start, parts, self._ancestry.placing(start.mark).rank)

    def _unbroken(self, key: str, scan: Callable[[], Found]) -> Found:
        """What a scan of the stream finds that begins where the index ends. Raises `GapFound` when it may lack events.

        The progress is read first: what the index counts meanwhile may be forgotten right after.
        """
        progress = self._index.progress(self._stream.name)
        found = scan()
        lineage = self._ancestry.current
        patience = GrowingPauses(GIVE_UP_AFTER)
        for shard in lineage.chain(hash_key(key)):
            place = place_in(progress, lineage, shard)
            lost = [] if place.sequence else unfinished(progress, lineage, lineage.origins(shard))
            if lost:
                raise GapFound(lost[0])
            confirm(self._ancestry, shard, place, patience)
        return found

    # Events

    def look(self, topic: str, partition: int, start: int, limit: int, max_bytes: int) -> EventSlice:
        found = self._topics.with_partition(topic, partition)
        state = self._trails.state(partition_key(topic, partition), topic)
        if found.continued_in is not None or state is None or start >= state.next:
            state = self.state(topic, partition)
        if start > state.next:
            # Another process may have learned of more a moment ago.
            state = self.state(topic, partition, time.monotonic())
        if start > state.next and state.sealed_at == SEALED_AT_INDEX_END:
            # Its number was given out before the topic ended in front of it, and is found in the timeline that follows.
            raise Unavailable(f"{topic}/{partition} ends at {state.next}, and is continued in another timeline")
        oldest = found.oldest.get(partition, 0)
        if not oldest <= start <= state.next:
            raise OffsetUnavailable(f"{start} is not between {oldest} and {state.next}")
        place = start
        while place < state.next:
            piece = before(state.next, self._slice_from(found, topic, partition, place, limit, max_bytes))
            if piece.events:
                return piece
            place = piece.next_offset
        return EventSlice((), place)

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
                if microseconds_since_epoch(event.stored_at) >= stored_at:
                    return event.offset
            place = piece.next_offset
        return state.next

    def _slice_from(
        self, found: Topic, topic: str, partition: int, start: int, limit: int, max_bytes: int
    ) -> EventSlice:
        key = partition_key(topic, partition)
        compacted = start < found.compacted.get(partition, 0)
        if not compacted:
            remembered = self._trails.frames(key, topic, start, limit, max_bytes)
            # A topic that has ended may be indexed further than this process has read it.
            if remembered:
                return slice_of(remembered, start, limit, max_bytes)
        segment, known = self._known_before(topic, partition, start)
        while segment is not None and segment.archived and self._archive:
            archived = self._from_archive(segment, topic, partition, start, limit, max_bytes)
            if archived is not None:
                return archived
            newer = self._segment_with(topic, partition, start)
            if newer is None or newer.archived == segment.archived:
                break
            # It was rewritten, and the old object removed.
            segment = newer
        if compacted:
            raise Unavailable(f"The archive lacks offset {start} of {key}")
        if segment is None:
            frames = self._unbroken(key, lambda: self._scanned_behind_the_head(topic, partition, start, max_bytes))
        else:
            frames = self._scanner.frames(key, known, start, self._trails.first(key, topic), max_bytes)
        return slice_of(frames, start, limit, max_bytes)

    def _scanned_behind_the_head(self, topic: str, partition: int, start: int, max_bytes: int) -> Sequence[Frame]:
        key = partition_key(topic, partition)
        _, known = self._known_before(topic, partition, start)
        return self._scanner.frames(key, known, start, self._trails.first(key, topic), max_bytes)

    def _known_before(self, topic: str, partition: int, start: int) -> tuple[IndexSegment | None, CountingStart]:
        """The segment that holds an offset, if there is one, and where counting towards the offset begins."""
        segment = self._segment_with(topic, partition, start)
        if segment is not None:
            return segment, CountingStart(segment.before, segment.since)
        head = self._index.heads([(topic, partition)])[topic, partition].counted
        if head.next <= start:
            return None, CountingStart(head)
        # It was indexed just now.
        segment = self._segment_with(topic, partition, start)
        if segment is None:
            raise Unavailable(f"The index lacks offset {start} of {topic}/{partition}")
        return segment, CountingStart(segment.before, segment.since)

    def _segment_with(self, topic: str, partition: int, offset: int) -> IndexSegment | None:
        found = self._index.segment(topic, partition, offset)
        return found if found is not None and offset < found.end else None

    def _from_archive(
        self, segment: IndexSegment, topic: str, partition: int, start: int, limit: int, max_bytes: int
    ) -> EventSlice | None:
        """What is behind an offset in its segment and those that follow. None when the object is not there any more."""
        assert self._archive is not None
        try:
            return self._archive.read_from_segment(segment, topic, partition, start, limit, max_bytes)
        except ArchiveGone:
            return None

    # Times

    def _indexed_before(self, topic: str, partition: int, oldest: int, stored_at: int) -> int:
        """Where the first segment begins that holds an event stored then or later; the end of all when none does."""
        head = self._index.heads([(topic, partition)])[topic, partition].counted
        if head.latest < stored_at:
            return head.next
        return first_segment_since(self._index, topic, partition, oldest, head.next, stored_at)

    def _shortly_before(self, topic: str, partition: int, start: int, stored_at: int) -> int:
        """The same, with a look at what is remembered."""
        times = self._trails.times(partition_key(topic, partition), topic)
        if not times or times[0].first > start:
            return start
        at = bisect_left(times, stored_at, key=lambda frame: frame.stored_at)
        return max(start, times[at].first) if at < len(times) else start


# A reader that lasts --------------------------------------------------------------------------------------------------


Begin = Callable[[LastWritten], StreamReader]
Answer = TypeVar("Answer")

log = logging.getLogger(__name__)


class LastingReader:
    """Asks a `StreamReader`. What this process stored itself is known to every new one."""

    def __init__(self, begin: Begin, ancestry: ShardTreeCache) -> None:
        self._begin = begin
        self._ancestry = ancestry
        self._lock = threading.Lock()
        self._ours = LastWritten()
        self._reader = begin(self._ours)

    def acknowledged(self, mark: RecordPosition) -> None:
        """Note a record that this process knows: no later answer may be older."""
        self._ours.note(mark)

    def advance(self, shard: str, since: float, patience: GrowingPauses) -> bool:
        return self._awake(lambda reader: reader.tails.advance(shard, since, patience))

    def follow(self, shard: str, fan_out: FanOut, ended: Callable[[], bool]) -> bool:
        """Take what is pushed, as long as this is the reader that is asked."""
        return self._awake(
            lambda reader: reader.tails.follow(shard, fan_out, lambda: ended() or self._reader is not reader)
        )

    def state(self, topic: str, partition: int, since: float | None = None) -> IndexingState:
        return self._awake(lambda reader: reader.state(topic, partition, since))

    def bounds(self, topic: str, partition: int, since: float) -> OffsetBounds:
        return self._awake(lambda reader: reader.bounds(topic, partition, since))

    def look(self, topic: str, partition: int, start: int, limit: int, max_bytes: int) -> EventSlice:
        return self._awake(lambda reader: reader.look(topic, partition, start, limit, max_bytes))

    def offset_at(self, topic: str, partition: int, stored_at: int) -> int:
        return self._awake(lambda reader: reader.offset_at(topic, partition, stored_at))

    def _awake(self, ask: Callable[[StreamReader], Answer]) -> Answer:
        reader = self._reader
        try:
            return ask(reader)
        except ShardPositionLost as asleep:
            log.info("Shard %s was not read for long: beginning anew where the index ends", asleep)
        try:
            return ask(self._instead_of(reader))
        except ShardPositionLost as asleep:
            raise Unavailable(f"Shard {asleep} cannot be read") from asleep

    def _instead_of(self, old: StreamReader) -> StreamReader:
        with self._lock:
            if self._reader is old:
                self._ancestry.refreshed()
                self._reader = self._begin(self._ours)
            return self._reader


# Watching -------------------------------------------------------------------------------------------------------------


GAP_INTERVALS = 25
"""A gap is closed by housekeeping, which takes minutes: until then a shard is not asked as often."""


class Watch:
    """One thread for each shard, from now until `end`."""

    def __init__(
        self, reader: LastingReader, ancestry: ShardTreeCache, interval: float, fan_out: FanOut | None = None
    ) -> None:
        self._reader = reader
        self._ancestry = ancestry
        self._interval = interval
        self._fan_out = fan_out
        self._lock = threading.Lock()
        self._threads: dict[str, threading.Thread] = {}
        self._ended = threading.Event()
        self._begin("", self._begin_leaves)

    def end(self) -> None:
        self._ended.set()

    def join(self) -> None:
        for thread in tuple(self._threads.values()):
            thread.join()

    def _begin_leaves(self) -> None:
        while not self._ended.is_set():
            try:
                leaves = self._ancestry.current.leaves()
            except Exception:  # whatever it was, those who wait for news must not wait for ever
                log.warning("Listing the shards failed, tried again in %s s", self._interval, exc_info=True)
                self._ended.wait(self._interval)
                continue
            for shard in leaves:
                self._begin(shard, partial(self._follow, shard))
            return

    def _begin(self, name: str, work: Callable[[], None]) -> None:
        with self._lock:
            if name not in self._threads and not self._ended.is_set():
                thread = threading.Thread(target=work, name=f"kinesis-{name}", daemon=True)
                self._threads[name] = thread
                thread.start()

    def _follow(self, shard: str) -> None:
        """Read one shard to its end, then begin with those that came from it."""
        while not self._ended.is_set():
            try:
                ended = self._reader.advance(shard, time.monotonic(), GrowingPauses(GIVE_UP_AFTER))
                if not ended and self._fan_out is not None:
                    # What cannot be pushed, and what a subscription that fell silent did not tell, is asked for above.
                    ended = self._reader.follow(shard, self._fan_out, self._ended.is_set)
                if ended and self._begin_children(shard):
                    return
            except GapFound as gap:
                log.warning("Watching shard %s waits for housekeeping: %s", shard, gap)
                self._ended.wait(GAP_INTERVALS * self._interval)
            except Unavailable:
                log.warning("Shard %s is asked again", shard, exc_info=True)
                if self._is_forgotten(shard):
                    self._begin_leaves()
                    return
            except Exception:  # as above
                log.exception("Shard %s is asked again", shard)
            self._ended.wait(self._interval)

    def _is_forgotten(self, shard: str) -> bool:
        try:
            return shard not in self._ancestry.refreshed()
        except Unavailable:
            return False

    def _begin_children(self, shard: str) -> bool:
        children = self._ancestry.current.children(shard) or self._ancestry.refreshed().children(shard)
        for child in children:
            self._begin(child, partial(self._follow, child))
        return bool(children)


class Watcher:
    """Watches as long as there are watchers."""

    def __init__(
        self, reader: LastingReader, ancestry: ShardTreeCache, interval: float, fan_out: FanOut | None = None
    ) -> None:
        self._reader = reader
        self._ancestry = ancestry
        self._interval = interval
        self._fan_out = fan_out
        self._lock = threading.Lock()
        self._wanted = 0
        self._watch: Watch | None = None
        self._closed = False

    def wanted(self) -> None:
        with self._lock:
            if self._closed:
                raise Unavailable("The event log is closed.")
            self._wanted += 1
            if self._watch is None:
                self._watch = Watch(self._reader, self._ancestry, self._interval, self._fan_out)

    def not_wanted(self) -> None:
        with self._lock:
            self._wanted -= 1
            if not self._wanted and self._watch is not None:
                self._watch.end()
                self._watch = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        self.wanted()
        try:
            yield
        finally:
            self.not_wanted()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            watch, self._watch = self._watch, None
        if watch is not None:
            watch.end()
            watch.join()

"""The event log in a Kinesis stream.

Where the port leaves a property open, this engine behaves as follows. An append that timed out may have been stored; a
publisher that tries again may store its events twice, each time whole and in order. Bounds and searches by time are
exact: they include all events acknowledged before the call. A read sees this process's own events at once, and other
processes' events at most `shared_for` seconds later. While Kinesis pushes records, a read sees them when they are
pushed, or `push_silence` seconds later if a push fails. For the length of a lease, a deleted topic still accepts
appends of other processes, whose events are deleted with the topic.

A partition's part of an append is one record, or several consecutive ones. Throttled records are sent again, because
they were not stored. Records that failed in another way may still have been stored. They are not sent again, so that
they are not stored twice, and their publisher gets the answer that the outcome is unknown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial

from msgspec import Struct

from nakadi.common.caching import ChangeWatch
from nakadi.common.metrics import Metrics
from nakadi.common.waiting import CallThreads, ThreadCall
from nakadi.engines.archive.segment_cache import SegmentCache
from nakadi.engines.common.callbacks import PartitionListeners
from nakadi.engines.kinesis.compaction import StreamCompactor
from nakadi.engines.kinesis.continuity import ShardTreeCache
from nakadi.engines.kinesis.fan_out import FanOut
from nakadi.engines.kinesis.gaps import GapCloser
from nakadi.engines.kinesis.indexing import Indexer
from nakadi.engines.kinesis.partition_keys import MAX_TOPIC_CHARACTERS
from nakadi.engines.kinesis.reading import StreamReader
from nakadi.engines.kinesis.restarting_reader import RestartingReader
from nakadi.engines.kinesis.shard_watch import ShardWatch, SharedShardWatch
from nakadi.engines.kinesis.stream import Stream
from nakadi.engines.kinesis.stream_writer import (
    APPEND_TIMEOUT_SECONDS,
    MAX_RECORD_BYTES,
    REFUSED_AS_TIMED_OUT,
    StreamWriter,
)
from nakadi.engines.kinesis.tails import LastWrittenRecords
from nakadi.engines.kinesis.topics import KnownTopic, TopicCache
from nakadi.model.events import (
    AppendRefused,
    AppendResult,
    AppendStored,
    EventSlice,
    OffsetBounds,
    Record,
    TopicContinuation,
    microseconds_since_epoch,
)
from nakadi.model.log_index import IndexHead, RecordPosition, ShardGap
from nakadi.model.outcomes import Unavailable
from nakadi.ports.archive_store import ArchiveStore
from nakadi.ports.clock import Clock
from nakadi.ports.event_log import SealedTopic, UnknownTopic
from nakadi.ports.log_index import LogIndex


class KinesisOptions(Struct, frozen=True, kw_only=True):
    """Seconds and bytes. `lease`: how long a publisher relies on its knowledge of a topic. `shared_for`: how old the
    last read of a shard may be when another reader uses it. `poll`: the interval between two reads of a watched shard.
    `window_bytes`: how much of the stream a process keeps in memory. `fan_out`: the prefix of the names of consumers to
    which watched shards are pushed; without it, the process registers no consumers. `push_silence`: how long a push may
    be silent before the shard is read instead.
    """

    lease: float = 2.0
    shared_for: float = 1.0
    poll: float = 0.4
    window_bytes: int = 128_000_000
    record_bytes: int = MAX_RECORD_BYTES
    give_up_after: float = APPEND_TIMEOUT_SECONDS
    fan_out: str = ""
    push_silence: float = 10.0


DEFAULT_OPTIONS = KinesisOptions()


class KinesisLog:
    def __init__(
        self,
        stream: Stream,
        index: LogIndex,
        archive: ArchiveStore | None,
        clock: Clock,
        options: KinesisOptions = DEFAULT_OPTIONS,
        watch: ChangeWatch | None = None,
        fan_out: FanOut | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """`watch` has the numbers of changes of the index, if the process reads these in any case."""
        self._stream = stream
        self._index = index
        self._archive = archive
        self._clock = clock
        self._closed = False
        self._announcements = PartitionListeners()
        self._append_threads = CallThreads("nakadi-append")
        self._topics = TopicCache(index, options.lease, watch or ChangeWatch(index.change_counters, clock))
        self._writer = StreamWriter(stream, options.record_bytes, options.give_up_after)
        self._shard_trees = ShardTreeCache(stream)
        self._segment_cache = SegmentCache(archive, metrics=metrics) if archive else None
        self._options = options
        self._reader = RestartingReader(self._new_stream_reader, self._shard_trees)
        self._fan_out = fan_out
        self._watcher = SharedShardWatch(partial(ShardWatch, self._reader, self._shard_trees, options.poll, fan_out))
        self._indexer = Indexer(stream, self._shard_trees, index, archive)
        self._lag_of_round: timedelta | None = None
        self._gap_closer = GapCloser(index=index, archive=archive, shard_trees=self._shard_trees, indexer=self._indexer)

    def _new_stream_reader(self, last_written: LastWrittenRecords) -> StreamReader:
        return StreamReader(
            self._shard_trees,
            self._index,
            self._topics,
            self._segment_cache,
            self._announcements.announce_events,
            last_written,
            shared_for=self._options.shared_for,
            window_bytes=self._options.window_bytes,
        )

    # Topics

    def create_topic(self, topic: str, partitions: int) -> None:
        self._refuse_if_closed()
        if len(topic) > MAX_TOPIC_CHARACTERS:
            raise ValueError(f"a topic's name has at most {MAX_TOPIC_CHARACTERS} characters")
        self._index.create_topic(topic, partitions)

    def add_partitions(self, topic: str, partitions: int) -> None:
        self._refuse_if_closed()
        # A process that continues a topic reads the topic again afterwards. So one of the two processes sees the
        # other's change.
        for each in self._topic_and_continuations(topic):
            known = self._index.topic(each)
            if known is not None and known.continues is not None:
                for number in range(known.partitions, partitions):
                    self._index.advance_head(each, number, 0, IndexHead(), None)
            self._index.grow_topic(each, partitions)
            self._topics.forget_topic(each)

    def seal_topic(self, topic: str) -> None:
        """Announce the seal, wait until every publisher must know it, and only then write it into the log."""
        self._refuse_if_closed()
        for each in self._topic_and_continuations(topic):
            self._index.seal_topic(each)
            self._topics.forget_topic(each)
            topic = each
        self._topics.wait_until_leases_expire()
        partitions = range(self._topics.read_again(topic).topic.partitions)
        fates = self._writer.seal(topic, partitions, self._now())
        for fate in fates.values():
            if isinstance(fate, AppendRefused):
                raise Unavailable(f"The seal of {topic} is not known to be written")
            self._reader.remember_acknowledged(fate)

    def _topic_and_continuations(self, topic: str) -> Iterator[str]:
        """The topic and its continuations. Each is read after the previous one was handled."""
        following: str | None = topic
        while following is not None:
            found = self._index.topic(following)
            if found is None:
                raise UnknownTopic(topic)
            if found.partitions:
                yield following
                found = self._index.topic(following) or found
            following = found.continued_in

    def delete_topic(self, topic: str) -> None:
        """Delete the topic, and return when no publisher can assume any longer that it exists: its event type may be
        created again at once, and events that are acknowledged after that must be in the new topic.
        """
        self._refuse_if_closed()
        known = self._index.topic(topic)
        self._index.delete_topic(topic)
        self._topics.forget_topic(topic)
        if known is not None and not known.sealed:
            self._topics.wait_until_leases_expire()

    # Events in

    async def append(self, topic: str, batches: Mapping[int, Sequence[Record]]) -> Mapping[int, AppendResult]:
        return await ThreadCall(self._append_threads, partial(self._append, topic, batches))

    def _append(self, topic: str, batches: Mapping[int, Sequence[Record]]) -> Mapping[int, AppendResult]:
        self._refuse_if_closed()
        topic, known = self._find_unsealed_topic(topic, batches)
        fates = dict(
            self._writer.append(topic, {number: batch for number, batch in batches.items() if batch}, self._now())
        )
        for fate in fates.values():
            if isinstance(fate, RecordPosition):
                self._reader.remember_acknowledged(fate)
        if not self._topics.is_valid(known):
            fates = self._recheck_fates_against_seal(topic, fates)
        for number, fate in fates.items():
            if isinstance(fate, RecordPosition):
                self._announcements.announce_events(topic, number)
        return {number: _append_result_of(fates.get(number)) for number in batches}

    def _find_unsealed_topic(self, topic: str, partitions: Mapping[int, object]) -> tuple[str, KnownTopic]:
        asked = topic
        topic, known = self._topics.latest_continuation(topic)
        if any(number >= known.topic.partitions for number in partitions):
            self._topics.read_again(asked)
            self._topics.read_again(topic)
            topic, known = self._topics.latest_continuation(asked)
        missing = [number for number in partitions if not 0 <= number < known.topic.partitions]
        if missing:
            raise UnknownTopic(f"{topic} has no partition {missing}")
        if known.topic.sealed:
            raise SealedTopic(topic)
        return topic, known

    def _recheck_fates_against_seal(
        self, topic: str, fates: Mapping[int, RecordPosition | AppendRefused]
    ) -> dict[int, RecordPosition | AppendRefused]:
        """The results of an append, checked again if a seal may have come before the records: the stream shows which
        came first.
        """
        self._topics.read_again(topic)
        topic, known = self._topics.latest_continuation(topic)
        if not known.topic.sealed:
            return dict(fates)
        confirmed = {number: self._refused_if_behind_seal(topic, number, fate) for number, fate in fates.items()}
        if confirmed and not any(isinstance(fate, RecordPosition) for fate in confirmed.values()):
            raise SealedTopic(topic)
        return confirmed

    def _refused_if_behind_seal(
        self, topic: str, partition: int, fate: RecordPosition | AppendRefused
    ) -> RecordPosition | AppendRefused:
        if isinstance(fate, AppendRefused):
            return fate
        sealed_at = self._reader.partition_state(topic, partition, time.monotonic()).sealed_at
        if sealed_at is not None and self._shard_trees.rank(sealed_at) < self._shard_trees.rank(fate):
            return REFUSED_AS_TIMED_OUT
        return fate

    # Events out

    def read(
        self,
        topic: str,
        partition: int,
        start: int,
        *,
        limit: int = 1000,
        max_bytes: int = 4_000_000,
        wait: float = 0.0,
    ) -> EventSlice:
        def read_now() -> EventSlice:
            self._refuse_if_closed()
            return self._reader.read_now(topic, partition, start, limit, max_bytes)

        found = read_now()
        if found.events or wait <= 0:
            return found
        with self._watcher.watching():
            return self._announcements.wait_for_events(topic, partition, read_now, wait)

    def bounds(self, topic: str, partitions: Sequence[int]) -> Mapping[int, OffsetBounds]:
        self._refuse_if_closed()
        self._topics.get(topic)
        # The same moment is used for all partitions, so that one read serves all partitions in the same shard.
        now = time.monotonic()
        return {number: self._reader.bounds(topic, number, now) for number in partitions}

    def first_offset_since(self, topic: str, partition: int, moment: datetime) -> int:
        self._refuse_if_closed()
        return self._reader.first_offset_since(topic, partition, microseconds_since_epoch(moment))

    def add_change_listener(self, on_change: Callable[[str, int], None]) -> Callable[[], None]:
        self._watcher.add_watcher()
        end = self._announcements.add_change_listener(on_change)
        over = False

        def end_once() -> None:
            nonlocal over
            if not over:
                over = True
                end()
                self._watcher.remove_watcher()

        return end_once

    # Maintenance

    def trim(self, topic: str, partition: int, stored_before: datetime) -> None:
        self._refuse_if_closed()
        oldest = self._reader.first_offset_since(topic, partition, microseconds_since_epoch(stored_before))
        if oldest > self._topics.get(topic).topic.oldest.get(partition, 0):
            gone = self._index.drop_segments_before(topic, partition, oldest)
            self._topics.forget_topic(topic)
            self._new_compactor().remove_compacted_objects(gone)

    def compact(self, topic: str, partition: int, *, stored_before: datetime, tombstones_before: datetime) -> None:
        self._refuse_if_closed()
        self._new_compactor().compact(
            topic, partition, microseconds_since_epoch(stored_before), microseconds_since_epoch(tombstones_before)
        )

    def measure_index_lag(self) -> timedelta:
        """The lag of indexing. If the search for gaps has found it earlier in the same round of housekeeping, that
        value is used, because another search costs reads.
        """
        self._refuse_if_closed()
        lag, self._lag_of_round = self._lag_of_round, None
        return self._indexer.survey_backlog().lag(self._clock.now()) if lag is None else lag

    def remove_orphaned_consumers(self) -> None:
        self._refuse_if_closed()
        if self._fan_out is not None:
            self._fan_out.remove_orphaned_consumers(self._clock.now())

    def gaps(self) -> Sequence[ShardGap]:
        self._refuse_if_closed()
        self._lag_of_round = None
        backlog = self._indexer.survey_backlog()
        if not backlog.gaps:
            self._lag_of_round = backlog.lag(self._clock.now())
        return backlog.gaps

    def ensure_continuations(self, topic: str, gaps: Sequence[ShardGap]) -> Sequence[TopicContinuation]:
        self._refuse_if_closed()
        found = self._gap_closer.ensure_continuations(topic, gaps)
        self._topics.forget_topic(topic)
        return found

    def close_gaps(self, gaps: Sequence[ShardGap], topics: Mapping[str, Mapping[int, int] | None]) -> None:
        self._refuse_if_closed()
        self._gap_closer.close_gaps(gaps, topics)

    def close(self) -> None:
        self._closed = True
        self._announcements.wake_waiting_readers()
        if self._fan_out is not None:
            # The fan-out is closed first, because this ends the subscriptions for which the watcher's threads would
            # otherwise wait.
            self._fan_out.close()
        self._watcher.close()
        self._append_threads.close()
        self._stream.close()
        self._index.close()
        if self._segment_cache is not None:
            self._segment_cache.close()
        if self._archive is not None:
            self._archive.close()

    def _new_compactor(self) -> StreamCompactor:
        return StreamCompactor(
            stream_name=self._stream.name,
            index=self._index,
            archive=self._archive,
            topic_cache=self._topics,
            reader=self._reader,
            indexer=self._indexer,
            shard_trees=self._shard_trees,
        )

    def _now(self) -> int:
        return microseconds_since_epoch(self._clock.now())

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise Unavailable("The event log is closed.")


def _append_result_of(fate: RecordPosition | AppendRefused | None) -> AppendResult:
    return fate if isinstance(fate, AppendRefused) else AppendStored()

"""A log whose older half is in the archive: readers can read from the oldest archived event to the newest event as in
one log.

Publishers append to the hot half, and the archiver reads from the hot half, which removes archived events after some
time. The hot half answers a read if it has the events; otherwise the archive does, which has all events before the
beginning of the hot half. Both halves remove events beyond the retention time of the event type.

One thread archives events and removes what is not needed, in small steps so that no request waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import TypeVar

from nakadi.common.chores import ChoreStopped
from nakadi.common.metrics import Metrics
from nakadi.engines.archive.archive_worker import ArchiveWorker
from nakadi.engines.archive.compaction import ArchiveCompaction
from nakadi.engines.archive.policy import (
    ArchivePolicy,
    EmptyTopicCatalog,
    TopicCatalog,
    event_type_name_or_topic,
)
from nakadi.engines.archive.reading import ArchiveReader
from nakadi.engines.archive.segment_cache import SegmentCache, UnreadableSegment
from nakadi.model.events import AppendResult, EventSlice, OffsetBounds, Record, TopicPartition, microseconds_since_epoch
from nakadi.model.log_index import Topic
from nakadi.model.outcomes import Unavailable, UnreadableEvents
from nakadi.ports.archive_store import ArchiveStore
from nakadi.ports.clock import Clock
from nakadi.ports.deduplication import DeduplicatingLog, EventIds
from nakadi.ports.event_log import EventLog, OffsetUnavailable
from nakadi.ports.log_index import LogIndex

T = TypeVar("T")


MAX_KNOWN_PARTITIONS = 10_000
"""How many partitions the log remembers with the offset at which their hot half begins."""


class TieredLog:
    def __init__(
        self,
        hot: EventLog,
        index: LogIndex,
        store: ArchiveStore,
        clock: Clock,
        directory: TopicCatalog | None = None,
        tiers: ArchivePolicy | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._hot = hot
        self.create_topic, self.add_partitions, self.seal_topic = hot.create_topic, hot.add_partitions, hot.seal_topic
        self.add_change_listener = hot.add_change_listener
        if isinstance(hot, DeduplicatingLog):
            # `append_once` exists only then, because callers see from a log's methods whether it recognizes events by
            # their ids.
            self.append_once = partial(self._append_once, hot)
        self._index = index
        self._store = store
        directory, tiers = directory or EmptyTopicCatalog(), tiers or ArchivePolicy()
        self._directory = directory
        self._archive = ArchiveReader(index, SegmentCache(store, metrics=metrics, catalog=directory))
        self._worker = ArchiveWorker(hot, index, store, clock, directory, tiers, metrics)
        self._compaction = ArchiveCompaction(hot, index, store, clock, directory, tiers, self._worker.archive_partition)
        # For each partition, the last known first offset of the hot half. That offset only grows, so events before it
        # need not be looked for in the hot half.
        self._hot_from: dict[TopicPartition, int] = {}
        self._closed = False

    # Topics

    def delete_topic(self, topic: str) -> None:
        """Delete the topic. A sweep removes its archive objects later, when no reader can need them."""
        self._hot.delete_topic(topic)
        self._index.delete_topic(topic)
        for partition in [partition for partition in list(self._hot_from) if partition[0] == topic]:
            self._hot_from.pop(partition, None)

    # Events in

    async def append(self, topic: str, batches: Mapping[int, Sequence[Record]]) -> Mapping[int, AppendResult]:
        fates = await self._hot.append(topic, batches)
        self._worker.schedule_archiving(topic, batches)
        return fates

    async def _append_once(
        self, hot: DeduplicatingLog, topic: str, batches: Mapping[int, Sequence[Record]], ids: EventIds
    ) -> Mapping[int, AppendResult]:
        fates = await hot.append_once(topic, batches, ids)
        self._worker.schedule_archiving(topic, batches)
        return fates

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
        offset = start
        while True:
            found = None
            if offset < self._hot_from.get((topic, partition), 0):
                found = self._read_archive(topic, partition, offset, limit, max_bytes)
            if found is None:
                found = self._read_hot(topic, partition, offset, limit, max_bytes, wait)
            if found is None or found.events or found.next_offset == offset:
                break
            # Compaction has left nothing in this range, so continue after it.
            offset = found.next_offset
        if found is None:
            raise OffsetUnavailable(f"{start} is neither in the archive nor behind it")
        return found

    def bounds(self, topic: str, partitions: Sequence[int]) -> Mapping[int, OffsetBounds]:
        # The hot half is read before the index, because it removes only events that the index has by then.
        hot = self._hot.bounds(topic, partitions)
        known = self._index.topic(topic)
        if known is None:
            return hot
        return {
            number: OffsetBounds(self._oldest_offset(known, topic, number, each), each.next_offset)
            for number, each in hot.items()
        }

    def first_offset_since(self, topic: str, partition: int, moment: datetime) -> int:
        found = self._hot.first_offset_since(topic, partition, moment)
        hot = self._hot.bounds(topic, [partition])[partition]
        known = self._index.topic(topic)
        if known is None:
            return found
        oldest = self._oldest_offset(known, topic, partition, hot)
        at = microseconds_since_epoch(moment)
        if oldest >= hot.oldest or self._archived_until(topic, partition) < at:
            return found
        cold = self._read_cold(
            topic, partition, lambda: self._archive.first_offset_since(topic, partition, oldest, hot.oldest, moment, at)
        )
        return found if cold is None else cold

    # Maintenance

    def trim(self, topic: str, partition: int, stored_before: datetime) -> None:
        offset = self.first_offset_since(topic, partition, stored_before)
        self._hot.trim(topic, partition, stored_before)
        # The archive comes second: an archiver registers the topic in the index before it reads events, so if the topic
        # is not registered now, an archiver can read only the events that remain. If the hot half were trimmed second,
        # an archiver could archive events that are being removed here.
        known = self._index.topic(topic)
        if known is not None and offset > known.oldest.get(partition, 0):
            self._index.drop_segments_before(topic, partition, offset)

    def compact(self, topic: str, partition: int, *, stored_before: datetime, tombstones_before: datetime) -> None:
        bounds = self.bounds(topic, [partition])[partition]
        end = self.first_offset_since(topic, partition, stored_before)
        self._compaction.run(
            topic, partition, bounds, end, stored_before=stored_before, tombstones_before=tombstones_before
        )

    def archive(self) -> None:
        """Archive waiting events at once, and let the hot half remove archived events that it need not keep."""
        with _unavailable_when_closed():
            self._worker.archive_all()

    def archive_topic(self, topic: str, partitions: Sequence[int]) -> None:
        """Archive the events of these partitions at once, and let the hot half remove archived events that it need not
        keep.
        """
        with _unavailable_when_closed():
            for partition in partitions:
                self._worker.archive_partition(topic, partition)
            self._worker.trim_hot_partitions()

    def sweep(self) -> None:
        with _unavailable_when_closed():
            self._worker.sweep()

    def close(self) -> None:
        self._closed = True
        self._worker.stop()
        self._archive.close()
        self._hot.close()
        self._index.close()
        self._store.close()

    # The two halves

    def _read_hot(
        self, topic: str, partition: int, start: int, limit: int, max_bytes: int, wait: float
    ) -> EventSlice | None:
        """The events from the hot half, or from the archive if the hot half has removed them; None if the archive does
        not have them.
        """
        try:
            return self._hot.read(topic, partition, start, limit=limit, max_bytes=max_bytes, wait=wait)
        except OffsetUnavailable:
            bounds = self._hot.bounds(topic, [partition])[partition]
            if len(self._hot_from) >= MAX_KNOWN_PARTITIONS:
                # Some of these topics may have been deleted by another process. For the other topics, the next read
                # finds the offset again.
                self._hot_from.clear()
            self._hot_from[topic, partition] = bounds.oldest
            if start >= bounds.next_offset:
                raise
            return self._read_archive(topic, partition, start, limit, max_bytes)

    def _read_archive(self, topic: str, partition: int, start: int, limit: int, max_bytes: int) -> EventSlice | None:
        if self._closed:
            raise Unavailable("The event log is closed.")
        known = self._index.topic(topic)
        if known is None:
            self._hot.bounds(topic, [partition])  # raises UnknownTopic if the topic does not exist
            return None
        if start < known.oldest.get(partition, 0):
            return None
        return self._read_cold(
            topic, partition, lambda: self._archive.read_slice(topic, partition, start, limit, max_bytes)
        )

    def _read_cold(self, topic: str, partition: int, read: Callable[[], T]) -> T:
        """The result of `read`. Raises `UnreadableEvents` for a damaged part, which must not look like the end of the
        archive.
        """
        try:
            return read()
        except UnreadableSegment as error:
            raise UnreadableEvents(
                str(error),
                event_type=event_type_name_or_topic(self._directory, topic),
                partition=partition,
                first_offset=error.first_offset,
                last_offset=error.last_offset,
            ) from error

    def _oldest_offset(self, known: Topic, topic: str, partition: int, hot: OffsetBounds) -> int:
        """The oldest offset that either half has. The archive is ignored if it ends before the hot half begins: then it
        was switched off for so long that events are missing in between.
        """
        oldest = known.oldest.get(partition, 0)
        if oldest >= hot.oldest:
            return min(oldest, hot.next_offset)
        archived_to = self._index.index_heads([(topic, partition)])[topic, partition].state.next_offset
        return oldest if archived_to >= hot.oldest else hot.oldest

    def _archived_until(self, topic: str, partition: int) -> int:
        return self._index.index_heads([(topic, partition)])[topic, partition].state.latest_stored_at


@contextmanager
def _unavailable_when_closed() -> Iterator[None]:
    """A context for maintenance that a caller has requested: if the log is closed meanwhile, it raises
    `Unavailable`.
    """
    try:
        yield
    except ChoreStopped as stopped:
        raise Unavailable("The event log is closed.") from stopped

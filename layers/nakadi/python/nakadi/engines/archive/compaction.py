"""Compaction over both halves of a log: of the events of a key, only the newest stays, whether it is in the archive or
in the hot half.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from nakadi.engines.archive.merging import (
    PartitionBusy,
)
from nakadi.engines.archive.policy import ArchivePolicy, TopicCatalog
from nakadi.engines.archive.rewriting import MAX_KNOWN_TOMBSTONES, ArchiveRewriter
from nakadi.engines.archive.segments import archived_segments_from
from nakadi.model.events import (
    OffsetBounds,
    TopicPartition,
    datetime_from_microseconds,
    microseconds_since_epoch,
)
from nakadi.ports.archive_store import ArchiveStore
from nakadi.ports.clock import Clock
from nakadi.ports.event_log import EventLog
from nakadi.ports.log_index import LogIndex

MAX_COMPACTION_INTERVAL = timedelta(days=1)


class ArchiveCompaction:
    def __init__(
        self,
        hot: EventLog,
        index: LogIndex,
        store: ArchiveStore,
        clock: Clock,
        directory: TopicCatalog,
        tiers: ArchivePolicy,
        archive: Callable[[str, int], None],
    ) -> None:
        self._hot = hot
        self._index = index
        self._clock = clock
        self._tiers = tiers
        self._archive = archive
        self._rewriter = ArchiveRewriter(index, store, directory)
        # When the oldest tombstone in the archive was stored, by partition; None if there is no tombstone. For a
        # partition that is not here, this is unknown.
        self._tombstones: dict[TopicPartition, int | None] = {}

    def run(
        self,
        topic: str,
        partition: int,
        bounds: OffsetBounds,
        end: int,
        *,
        stored_before: datetime,
        tombstones_before: datetime,
    ) -> None:
        if end > bounds.oldest:
            # The archive comes first, even if nothing is archived yet: an archiver in progress may have read events
            # without the tombstone after them, and the hot half then removes both. Once this process has archived
            # everything, the index refuses that archiver's segments.
            known = self._index.topic(topic)
            compacted = known.compacted.get(partition, 0) if known else 0
            old = microseconds_since_epoch(tombstones_before)
            due = self._is_due(topic, partition, compacted, end, old)
            if not (due and self._rewrite_archive(topic, partition, bounds.oldest, end, old)):
                tombstones_before = min(
                    tombstones_before,
                    datetime_from_microseconds(self._compacted_until_microseconds(topic, partition, compacted)),
                )
        self._hot.compact(topic, partition, stored_before=stored_before, tombstones_before=tombstones_before)

    def _rewrite_archive(self, topic: str, partition: int, oldest: int, end: int, tombstones_before: int) -> bool:
        self._archive(topic, partition)
        last = self._hot.bounds(topic, [partition])[partition].next_offset - 1
        if len(self._tombstones) >= MAX_KNOWN_TOMBSTONES:
            # Some of these topics may have been deleted. For the others, the next run finds the times again.
            self._tombstones.clear()
        try:
            self._tombstones[topic, partition] = self._rewriter.compact(
                topic, partition, oldest=oldest, end=end, last=last, tombstones_before=tombstones_before
            )
        except PartitionBusy:
            return False
        return True

    def _is_due(self, topic: str, partition: int, compacted_until: int, end: int, tombstones_before: int) -> bool:
        fresh = end - compacted_until
        if self._tiers.new_share_to_compact <= 0 and self._has_old_tombstones(topic, partition, tombstones_before):
            return True
        if fresh <= 0:
            return False
        return fresh >= self._tiers.new_share_to_compact * self._count_events_before(
            topic, partition, compacted_until
        ) or self._oldest_uncompacted_waited_long(topic, partition, compacted_until)

    def _has_old_tombstones(self, topic: str, partition: int, tombstones_before: int) -> bool:
        oldest = self._tombstones.get((topic, partition), 0)
        return oldest is not None and oldest < tombstones_before

    def _count_events_before(self, topic: str, partition: int, offset: int) -> int:
        segments = archived_segments_from(self._index, topic, partition)
        return sum(
            each.offset_count if each.event_count is None else each.event_count
            for each in segments
            if each.first_offset < offset
        )

    def _oldest_uncompacted_waited_long(self, topic: str, partition: int, compacted_until: int) -> bool:
        segment = self._index.segment_at_or_before(topic, partition, compacted_until)
        if segment is None or segment.end_offset <= compacted_until:
            return False
        return datetime_from_microseconds(segment.first_stored_at) < self._clock.now() - MAX_COMPACTION_INTERVAL

    def _compacted_until_microseconds(self, topic: str, partition: int, compacted_until: int) -> int:
        """The time, in microseconds, before which everything in the archive is compacted too."""
        segment = self._index.segment_at_or_before(topic, partition, compacted_until)
        if segment is not None and segment.end_offset > compacted_until:
            return segment.first_stored_at
        return self._index.index_heads([(topic, partition)])[topic, partition].state.latest_stored_at

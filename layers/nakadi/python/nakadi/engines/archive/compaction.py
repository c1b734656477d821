"""Compaction over both halves: the newest event of each key stays, in the archive and in the hot half."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from nakadi.engines.archive import reading
from nakadi.engines.archive.archiver import ArchivePolicy, TopicCatalog
from nakadi.engines.archive.maintenance import (
    MAX_GROUP_BYTES,
    MAX_GROUP_EVENTS,
    PartitionBusy,
    claim_partition,
    store_replacement,
)
from nakadi.engines.archive.objects import MemberPacker, archived_segments_from
from nakadi.model.events import (
    OffsetBounds,
    StoredEvent,
    TopicPartition,
    datetime_from_microseconds,
    microseconds_since_epoch,
)
from nakadi.model.log_index import IndexSegment
from nakadi.ports.archive_store import ArchiveStore
from nakadi.ports.clock import Clock
from nakadi.ports.event_log import EventLog
from nakadi.ports.log_index import LogIndex

# Rule -----------------------------------------------------------------------------------------------------------------


MAX_KNOWN_TOMBSTONES = 10_000
"""Partitions of which the oldest tombstone is remembered."""


class CompactionRule(Struct, frozen=True, kw_only=True):
    """What stays: see `EventLog.compact`. `end_offset` is the first offset that is too new to be looked at."""

    oldest_offset: int
    end_offset: int
    last_offset: int
    newest_offset_by_key: Mapping[str | None, int]
    tombstones_before: int

    def keeps(self, event: StoredEvent) -> bool:
        if event.offset < self.oldest_offset:
            return False
        key = event.record.key
        if event.offset >= self.end_offset or key is None or event.offset == self.last_offset:
            return True
        return self.newest_offset_by_key[key] == event.offset and not self._is_expired_tombstone(event)

    def _is_expired_tombstone(self, event: StoredEvent) -> bool:
        return event.record.value is None and microseconds_since_epoch(event.stored_at) < self.tombstones_before


# Rewriting ------------------------------------------------------------------------------------------------------------


EventFilter = Callable[[StoredEvent], bool]


class ArchiveRewriter:
    def __init__(self, index: LogIndex, store: ArchiveStore, directory: TopicCatalog) -> None:
        self._index = index
        self._store = store
        self._directory = directory

    def compact(
        self, topic: str, partition: int, *, oldest: int, end: int, last: int, tombstones_before: int
    ) -> int | None:
        """Compact what is archived before `end`. Answers when the oldest tombstone that stayed was stored."""
        with claim_partition(self._index, topic, partition) as renew_claim:
            segments = [
                each
                for each in archived_segments_from(self._index, topic, partition, oldest)
                if each.first_offset < end
            ]
            newest = {
                event.record.key: event.offset
                for event in self._read_events(topic, partition, segments)
                if event.offset < end
            }
            rule = CompactionRule(
                oldest_offset=oldest,
                end_offset=end,
                last_offset=last,
                newest_offset_by_key=newest,
                tombstones_before=tombstones_before,
            )
            tombstone_at = self._rewrite_segments(topic, partition, segments, rule, renew_claim)
            self._index.set_compacted_until(topic, partition, end)
        return tombstone_at

    def _rewrite_segments(
        self,
        topic: str,
        partition: int,
        segments: Sequence[IndexSegment],
        rule: CompactionRule,
        renew_claim: Callable[[], None],
    ) -> int | None:
        tombstones: list[int] = []
        written = [
            self._rewrite_group(topic, partition, group, rule.keeps, tombstones)
            for group in _group_small_segments(segments)
        ]
        renew_claim()
        if written != segments:
            self._index.replace_segments(topic, partition, written, segments[-1].end_offset)
        return min(tombstones, default=None)

    def _rewrite_group(
        self, topic: str, partition: int, group: Sequence[IndexSegment], keeps: EventFilter, tombstones: list[int]
    ) -> IndexSegment:
        """These segments as one, in an object of its own; a single one of which everything stays is left as it is."""
        packer = MemberPacker(topic, partition, self._directory.event_type_name_of(topic))
        events_read = kept = 0
        for each in group:
            events = reading.read_segment(self._store, topic, partition, each)
            staying = [event for event in events if keeps(event)]
            tombstones += [
                microseconds_since_epoch(event.stored_at)
                for event in staying
                if event.record.value is None and event.record.key is not None
            ]
            packer.add_events(staying)
            events_read += len(events)
            kept += len(staying)
        if len(group) == 1 and kept == events_read:
            return group[0]
        return store_replacement(group, packer.finish(), kept, self._store, topic, partition)

    def _read_events(self, topic: str, partition: int, segments: Sequence[IndexSegment]) -> Iterator[StoredEvent]:
        for each in segments:
            yield from reading.read_segment(self._store, topic, partition, each)


def _group_small_segments(segments: Iterable[IndexSegment]) -> Iterator[Sequence[IndexSegment]]:
    group: list[IndexSegment] = []
    for segment in segments:
        together = [*group, segment]
        events = sum(each.offset_count if each.event_count is None else each.event_count for each in together)
        size = sum(each.location.length for each in together if each.location)
        if group and (events > MAX_GROUP_EVENTS or size > MAX_GROUP_BYTES):
            yield group
            group = []
        group.append(segment)
    if group:
        yield group


# Both halves ----------------------------------------------------------------------------------------------------------


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
        # When the oldest tombstone was stored that the cold half still has; of what is missing here nothing is known.
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
            # Also when nothing is archived yet: an archiver that has begun may have read what is removed from the hot
            # half, and not the tombstone behind it. Once all is archived here, what it writes does not count.
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
            # Topics may be deleted. For the others it is found out again.
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
        """Everything that was stored before is compacted in the cold half, too; in microseconds."""
        segment = self._index.segment_at_or_before(topic, partition, compacted_until)
        if segment is not None and segment.end_offset > compacted_until:
            return segment.first_stored_at
        return self._index.index_heads([(topic, partition)])[topic, partition].state.latest_stored_at

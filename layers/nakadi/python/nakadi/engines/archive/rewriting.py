"""Rewrites archived segments of a partition so that only some of their events stay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from nakadi.engines.archive import segment_cache
from nakadi.engines.archive.member_format import MemberPacker
from nakadi.engines.archive.merging import MAX_GROUP_BYTES, MAX_GROUP_EVENTS, claim_partition, store_replacement
from nakadi.engines.archive.policy import TopicCatalog
from nakadi.engines.archive.segments import archived_segments_from
from nakadi.model.events import (
    StoredEvent,
    microseconds_since_epoch,
)
from nakadi.model.log_index import IndexSegment
from nakadi.ports.archive_store import ArchiveStore
from nakadi.ports.log_index import LogIndex

MAX_KNOWN_TOMBSTONES = 10_000
"""The maximum number of partitions whose oldest tombstone is cached."""


class CompactionRule(Struct, frozen=True, kw_only=True):
    """Decides which events stay: see `EventLog.compact`. `end_offset` is the first offset that is too new to
    consider.
    """

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


EventFilter = Callable[[StoredEvent], bool]


class ArchiveRewriter:
    def __init__(self, index: LogIndex, store: ArchiveStore, directory: TopicCatalog) -> None:
        self._index = index
        self._store = store
        self._directory = directory

    def compact(
        self, topic: str, partition: int, *, oldest: int, end: int, last: int, tombstones_before: int
    ) -> int | None:
        """Compact the archived events before `end`. Return the time at which the oldest remaining tombstone was stored,
        None if there is none.
        """
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
            for group in group_small_segments(segments)
        ]
        renew_claim()
        if written != segments:
            self._index.replace_segments(topic, partition, written, segments[-1].end_offset)
        return min(tombstones, default=None)

    def _rewrite_group(
        self, topic: str, partition: int, group: Sequence[IndexSegment], keeps: EventFilter, tombstones: list[int]
    ) -> IndexSegment:
        """Rewrite these segments as one, in a new object. If the group is a single segment that loses no event, it
        stays unchanged.
        """
        packer = MemberPacker(topic, partition, self._directory.event_type_name_of(topic))
        events_read = kept = 0
        for each in group:
            events = segment_cache.read_segment(self._store, topic, partition, each)
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
            yield from segment_cache.read_segment(self._store, topic, partition, each)


def group_small_segments(segments: Iterable[IndexSegment]) -> Iterator[Sequence[IndexSegment]]:
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

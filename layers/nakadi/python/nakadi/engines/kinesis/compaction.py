"""Compaction: rewrites the archive of a partition without the events that newer ones replaced.

The stream itself never changes. After a compaction, readers read that part of the partition only from the archive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from nakadi.engines.archive import member_format, object_keys
from nakadi.engines.archive.merging import PartitionBusy, claim_partition
from nakadi.engines.archive.rewriting import CompactionRule, group_small_segments
from nakadi.engines.kinesis.continuity import ShardTreeCache
from nakadi.engines.kinesis.indexing import Indexer
from nakadi.engines.kinesis.partition_keys import hash_key, partition_key
from nakadi.engines.kinesis.restarting_reader import RestartingReader
from nakadi.engines.kinesis.topics import TopicCache
from nakadi.model.events import StoredEvent
from nakadi.model.log_index import (
    ArchiveLocation,
    IndexSegment,
)
from nakadi.model.outcomes import Unavailable
from nakadi.ports.archive_store import ArchiveStore
from nakadi.ports.log_index import LogIndex

EVENTS_PER_READ = 1000


class StreamCompactor(Struct, frozen=True, kw_only=True):
    stream_name: str
    index: LogIndex
    archive: ArchiveStore | None
    topic_cache: TopicCache
    reader: RestartingReader
    indexer: Indexer
    shard_trees: ShardTreeCache

    def compact(self, topic: str, partition: int, stored_before: int, tombstones_before: int) -> None:
        oldest = self.topic_cache.get_with_partition(topic, partition).oldest.get(partition, 0)
        end = self.reader.first_offset_since(topic, partition, stored_before)
        if end <= oldest:
            return
        if self.archive is None:
            raise Unavailable("Compaction needs an archive")
        with suppress(PartitionBusy), claim_partition(self.index, topic, partition) as renew_claim:
            self._index_up_to(topic, partition, end)
            self._rewrite_archive(
                topic, partition, self._compaction_rule(topic, partition, oldest, end, tombstones_before), renew_claim
            )

    def remove_compacted_objects(self, locations: Sequence[ArchiveLocation]) -> None:
        """Remove those of these objects that had only the events of one segment; that segment has been replaced."""
        keys = [location.key for location in locations if location.key.startswith(object_keys.REWRITTEN_FOLDER)]
        if keys and self.archive is not None:
            self.archive.remove(keys)

    def _index_up_to(self, topic: str, partition: int, end: int) -> None:
        """Index the partition up to an offset. Usually the indexer has done so long ago; this is for the case that it
        does not run.
        """
        if self._indexed_until(topic, partition) < end:
            for shard in self.shard_trees.refresh().shards_covering(hash_key(partition_key(topic, partition))):
                self.indexer.catch_up(shard)
            if self._indexed_until(topic, partition) < end:
                raise Unavailable(f"{topic}/{partition} is not indexed up to {end}")

    def _indexed_until(self, topic: str, partition: int) -> int:
        return self.index.index_heads([(topic, partition)])[topic, partition].state.next_offset

    def _compaction_rule(
        self, topic: str, partition: int, oldest: int, end: int, tombstones_before: int
    ) -> CompactionRule:
        found = self._read_events(topic, partition, oldest, end)
        newest = {event.record.key: event.offset for event in found if event.offset < end}
        last = self.reader.partition_state(topic, partition).next_offset - 1
        return CompactionRule(
            oldest_offset=oldest,
            end_offset=end,
            last_offset=last,
            newest_offset_by_key=newest,
            tombstones_before=tombstones_before,
        )

    def _rewrite_archive(
        self, topic: str, partition: int, rule: CompactionRule, renew_claim: Callable[[], None]
    ) -> None:
        segments = list(self._list_segments(topic, partition, rule.oldest_offset, rule.end_offset))
        written = [self._rewrite_group(topic, partition, group, rule) for group in group_small_segments(segments)]
        end = segments[-1].end_offset
        renew_claim()
        if written != segments:
            self.index.replace_segments(topic, partition, written, end)
        elif not self._was_compaction_interrupted(topic, partition, segments):
            return
        self.index.set_compacted_until(topic, partition, end)
        self.topic_cache.forget_topic(topic)
        kept = {segment.location for segment in written}
        self.remove_compacted_objects(
            [each.location for each in segments if each.location and each.location not in kept]
        )

    def _was_compaction_interrupted(self, topic: str, partition: int, segments: Sequence[IndexSegment]) -> bool:
        """Whether an earlier compaction was interrupted after it wrote segments and before it recorded that."""
        compacted = [
            each.end_offset
            for each in segments
            if each.location and each.location.key.startswith(object_keys.REWRITTEN_FOLDER)
        ]
        noted = self.topic_cache.read_again(topic).topic.compacted.get(partition, 0)
        return max(compacted, default=0) > noted

    def _rewrite_group(
        self, topic: str, partition: int, group: Sequence[IndexSegment], rule: CompactionRule
    ) -> IndexSegment:
        """Write these segments as one, in an object of its own. If the group is a single segment that loses no event,
        it stays unchanged.
        """
        events = list(
            self._read_events(topic, partition, max(group[0].first_offset, rule.oldest_offset), group[-1].end_offset)
        )
        kept = [event for event in events if rule.keeps(event)]
        if len(group) == 1 and len(kept) == len(events) and group[0].location is not None:
            return group[0]
        content = member_format.pack_member(topic, partition, kept)
        key = object_keys.new_rewritten_key_in(self.stream_name, topic, partition, group[0].first_offset)
        assert self.archive is not None
        self.archive.put(key, content)
        return replace(
            group[0],
            offset_count=group[-1].end_offset - group[0].first_offset,
            last_stored_at=group[-1].last_stored_at,
            location=ArchiveLocation(key, 0, len(content)),
            event_count=len(kept),
        )

    def _list_segments(self, topic: str, partition: int, start: int, end: int) -> Iterator[IndexSegment]:
        """The segments that have events between two offsets."""
        segment = self.index.segment_at_or_before(topic, partition, start)
        following = start
        if segment is not None and segment.end_offset > start:
            yield segment
            following = segment.end_offset
        while following < end:
            found = self.index.segments_from(topic, partition, following, 100)
            for each in found:
                if each.first_offset >= end:
                    return
                yield each
                following = each.end_offset
            if not found:
                return

    def _read_events(self, topic: str, partition: int, start: int, end: int) -> Iterator[StoredEvent]:
        offset = start
        while offset < end:
            piece = self.reader.read_now(topic, partition, offset, EVENTS_PER_READ, 4_000_000)
            yield from (event for event in piece.events if event.offset < end)
            offset = max(piece.next_offset, offset + 1)

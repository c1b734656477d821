"""Maintenance of topics: compaction, and what becomes of them when a shard forgot events before they were indexed.

Compaction writes the archive of a partition anew without what newer events replaced. The stream itself never changes.
From then on readers take what is compacted from the archive alone.

A gap is where events were forgotten too early. Nothing tells the numbers of the events behind a gap, and readers may
have shown some of them. So no number of the topic is given again: each partition ends where it is indexed, and another
topic continues it, whose numbers begin anew. It counts the same records, under the same keys, so publishers need not
hear of it, and what the stream still has is kept.

Every step can be repeated. In this order a crash, an indexer that is still at work, or a reader cannot harm:

1. A partition is ended in its head, by the condition that all who count on use. From there on its topic counts nothing.
2. The following topic begins where the partition ended; where there is a gap, it has no beginning yet, and cannot be
   counted.
3. The topic refers to the following one, and all event types have their new timelines.
4. Partitions in the shard begin at the first record that is there now, which is indexed at once with what follows. Then
   the shard's progress is behind the gap, and all processes count on.

A topic that was closed before the gap is not continued, for its timeline is not the last one. But it is known where it
ends, so those of its events that are still there keep their numbers, and the lost ones are left out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import replace

from nakadi.engines.archive import objects
from nakadi.engines.archive.compaction import CompactionRule
from nakadi.engines.archive.maintenance import PartitionBusy, claim_partition
from nakadi.engines.kinesis import envelopes
from nakadi.engines.kinesis.continuity import RETRY_TIMEOUT_SECONDS, ShardCursor, ShardTreeCache, confirm_no_gap
from nakadi.engines.kinesis.envelopes import GAP_MARKER_PARTITION_KEY, hash_key, next_topic_name, partition_key
from nakadi.engines.kinesis.indexing import Indexer
from nakadi.engines.kinesis.reading import RestartingReader
from nakadi.engines.kinesis.recent_records import ArrivedRecord, RecordNumberer
from nakadi.engines.kinesis.scanning import Scanner
from nakadi.engines.kinesis.stream import GrowingPauses, NoSuchShard, OutgoingRecord, ShardTree
from nakadi.engines.kinesis.topics import TopicCache
from nakadi.model.events import StoredEvent, TopicContinuation
from nakadi.model.log_index import (
    SEALED_AT_INDEX_END,
    ArchiveLocation,
    IndexHead,
    IndexingState,
    IndexSegment,
    RecordPosition,
    ShardGap,
    ShardProgress,
)
from nakadi.model.outcomes import Unavailable
from nakadi.ports.archive_store import ArchiveStore
from nakadi.ports.event_log import UnknownTopic
from nakadi.ports.log_index import LogIndex

MAX_GAP_CLOSING_ATTEMPTS = 8

CLAIM_DURATION_SECONDS = 600.0
"""Seconds. Longer than a gap takes to be closed."""

END_OF_SHARD_SEQUENCE = 10**128
"""Behind every record that a shard can have."""

log = logging.getLogger(__name__)


class RemainingRecords(Struct, frozen=True):
    """What a shard has from its first record on, and the position in front of that."""

    records: Sequence[ArrivedRecord]
    position_before: RecordPosition
    read_at: int
    shard_ended: bool


class GapSkipper(Struct, frozen=True, kw_only=True):
    index: LogIndex
    archive: ArchiveStore | None
    shard_trees: ShardTreeCache
    indexer: Indexer

    def ensure_continuations(self, topic: str, gaps: Sequence[ShardGap]) -> Sequence[TopicContinuation]:
        """The topics that continue this one, the first one first, and where each before them ended.

        When it has partitions in shards with these gaps, there is one that begins behind all of them.
        """
        found: list[TopicContinuation] = []
        while True:
            known = self.index.topic(topic)
            if known is None:
                raise UnknownTopic(topic)
            if known.continued_in is None:
                touching = [gap for gap in gaps if self._partitions_affected_by(gap, topic, known.partitions)]
                if {str(gap) for gap in touching} <= set(known.begun_after_gaps):
                    return found
                self._continue_topic(topic, touching)
            else:
                heads = self.index.index_heads([(topic, partition) for partition in range(known.partitions)])
                ends = {partition: head.state.next_offset for (_, partition), head in heads.items()}
                topic = known.continued_in
                found.append(TopicContinuation(topic, ends))

    def close_gaps(self, gaps: Sequence[ShardGap], topics: Mapping[str, Mapping[int, int] | None]) -> None:
        """Have all processes count on behind these gaps.

        `topics` are those of all timelines: each with the ends of its partitions, or None for one that is open.
        """
        stream, owner = self.shard_trees.stream.name, uuid4().hex
        if not self.index.claim(f"gaps/{stream}", owner, CLAIM_DURATION_SECONDS):
            raise Unavailable(f"Another process closes the gaps in {stream}")
        try:
            progress = self.index.shard_progresses(stream)
            if all(progress.get(gap.shard, gap.progress) == gap.progress for gap in gaps):
                self._close_claimed_gaps(gaps, topics)
        finally:
            self.index.release_claim(f"gaps/{stream}", owner)

    def _close_claimed_gaps(self, gaps: Sequence[ShardGap], topics: Mapping[str, Mapping[int, int] | None]) -> None:
        for gap in gaps:
            # A note for people. And what cannot be kept now must be known before any partition begins.
            if self.archive is not None:
                self.archive.put(f"gaps/{self.shard_trees.stream.name}/{gap}", str(gap).encode())
        remaining = {gap: self._read_remaining_records(gap) for gap in gaps}
        for topic, ends in topics.items():
            known = self.index.topic(topic)
            if known is not None and known.continued_in is None:
                for partition in range(known.partitions):
                    self._continue_partition(topic, partition, known.continues, ends, remaining)
        for gap, found in remaining.items():
            if found.records:
                self.indexer.index_behind_gap(gap.shard, found.records)
            if found.shard_ended:
                self._write_progress(gap, gap.progress._replace(ended=True, complete_until=found.read_at))

    def _continue_partition(
        self,
        topic: str,
        partition: int,
        continued_topic: str | None,
        ends: Mapping[int, int] | None,
        remaining: Mapping[ShardGap, RemainingRecords],
    ) -> None:
        """Have a partition go on behind the last gap that concerns it."""
        key = hash_key(partition_key(topic, partition))
        touching = [gap for gap in remaining if _hash_key_filter_of_shard(self.shard_trees.current, gap.shard)(key)]
        if touching:
            gap = max(touching, key=lambda each: self.shard_trees.rank(remaining[each].position_before))
            if ends is None:
                self._begin_partition_behind_gap(topic, partition, remaining[gap].position_before, continued_topic, gap)
            else:
                self._skip_lost_events(topic, partition, ends.get(partition, 0), remaining[gap], gap)

    def _write_progress(self, gap: ShardGap, progress: ShardProgress) -> None:
        self.index.advance_shard_progress(self.shard_trees.stream.name, gap.shard, progress)

    # Ending

    def _continue_topic(self, topic: str, gaps: Sequence[ShardGap]) -> None:
        name = next_topic_name(topic)
        done = 0
        while (known := self.index.topic(topic)) is not None and (
            done < known.partitions or known.continued_in is None
        ):
            touched = {
                partition for gap in gaps for partition in self._partitions_affected_by(gap, topic, known.partitions)
            }
            for partition in range(done, known.partitions):
                ended = self._end_partition(topic, partition)
                if partition not in touched:
                    self.index.advance_head(name, partition, 0, IndexHead(replace(ended, next_offset=0)), None)
            done = known.partitions
            self.index.create_next_topic(topic, name, [str(gap) for gap in gaps])

    def _end_partition(self, topic: str, partition: int) -> IndexingState:
        """End a partition where it is indexed; return how it was counted up to there."""
        for _ in range(MAX_GAP_CLOSING_ATTEMPTS):
            head = self.index.index_heads([(topic, partition)])[topic, partition]
            if head.state.sealed_at == SEALED_AT_INDEX_END:
                return replace(head.state, sealed_at=None)
            # One that was sealed counts nothing behind its seal as it is.
            if head.state.sealed_at is not None:
                return head.state
            ended = IndexHead(replace(head.state, sealed_at=SEALED_AT_INDEX_END))
            if self.index.advance_head(topic, partition, head.revision, ended, None):
                return head.state
        raise Unavailable(f"Others index {topic}/{partition} at the same time")

    # Beginning

    def _begin_partition_behind_gap(
        self, topic: str, partition: int, start: RecordPosition, continued_topic: str | None, gap: ShardGap
    ) -> None:
        """Have an open partition begin behind a gap, if it does not yet."""
        head = self.index.index_heads([(topic, partition)])[topic, partition]
        counted = head.state
        is_behind = bool(head.revision) and self.shard_trees.rank(counted.last_position) >= self.shard_trees.rank(start)
        if is_behind or (continued_topic is None and not head.revision):
            # One that was made after the gap was found counts from where its first record lies.
            return
        if continued_topic is None:
            raise Unavailable(f"{topic} has to be continued before it is counted behind a gap")
        if head.revision and counted.last_position is not None:
            # An attempt was cut short, and more is forgotten since, which others may have counted: another gap.
            self._write_progress(gap, gap.progress._replace(complete_until=(gap.progress.complete_until or 0) + 1))
            raise Unavailable(f"{gap.shard} has forgotten more events since {topic}/{partition} has begun")
        begun = counted if head.revision else self._initial_continuation_state(continued_topic, partition)
        begun = replace(begun, last_position=start, unfinished_parts=())
        if not self.index.advance_head(topic, partition, head.revision, IndexHead(begun), None):
            raise Unavailable(f"Others index {topic}/{partition} at the same time")

    def _initial_continuation_state(self, topic: str, partition: int) -> IndexingState:
        """How a partition begins that continues this one."""
        ended = self.index.index_heads([(topic, partition)])[topic, partition].state
        return replace(
            ended, next_offset=0, sealed_at=None if ended.sealed_at == SEALED_AT_INDEX_END else ended.sealed_at
        )

    def _skip_lost_events(
        self, topic: str, partition: int, end: int, remaining: RemainingRecords, gap: ShardGap
    ) -> None:
        """Have a closed partition, which is not indexed to its end, go on with what is still there of it."""
        for _ in range(MAX_GAP_CLOSING_ATTEMPTS):
            head = self.index.index_heads([(topic, partition)])[topic, partition]
            before = head.state
            if before.sealed_at is not None or self.shard_trees.rank(before.last_position) >= self.shard_trees.rank(
                remaining.position_before
            ):
                return
            remaining_events = self._count_remaining_events(partition_key(topic, partition), remaining)
            following_offset = max(end - remaining_events, before.next_offset)
            # Those that are lost came later than the last time at which none was missing.
            latest = max(before.latest_stored_at, 1000 * (gap.progress.complete_until or 0))
            behind = replace(
                before,
                last_position=remaining.position_before,
                next_offset=following_offset,
                latest_stored_at=latest,
                sealed_at=remaining.position_before if following_offset == end else None,
                unfinished_parts=(),
            )
            hole = self._store_empty_segment(topic, partition, before, following_offset, latest)
            if self.index.advance_head(topic, partition, head.revision, IndexHead(behind), hole):
                log.error(
                    "Events %s to %s of %s/%s are lost", before.next_offset, following_offset - 1, topic, partition
                )
                return
        raise Unavailable(f"Others index {topic}/{partition} at the same time")

    def _count_remaining_events(self, key: str, remaining: RemainingRecords) -> int:
        counter = RecordNumberer(IndexingState(last_position=remaining.position_before), {})
        for record in remaining.records:
            if record.partition_key == key:
                counter.number_record(record)
        last = remaining.records[-1] if remaining.records else None
        start = IndexingState(last_position=last.position if last else remaining.position_before)
        for record in Scanner(self.shard_trees.stream, self.shard_trees).read_records(key, start):
            counter.number_record(record)
        if last is not None:
            behind = ShardProgress(last.position.sequence, complete_until=last.arrived_at_ms)
            confirm_no_gap(self.shard_trees, last.position.shard, behind, GrowingPauses(RETRY_TIMEOUT_SECONDS))
        return counter.state.next_offset

    def _store_empty_segment(
        self, topic: str, partition: int, before: IndexingState, end: int, stored_at: int
    ) -> IndexSegment | None:
        """A segment without events, which readers step over as they do over what compaction removed."""
        if end == before.next_offset or self.archive is None:
            return None
        content = objects.pack_member(topic, partition, [])
        key = f"log/{self.shard_trees.stream.name}/{topic}/{partition}/{before.next_offset:018d}-lost.json.gz"
        self.archive.put(key, content)
        return IndexSegment(
            state_before=before,
            offset_count=end - before.next_offset,
            first_stored_at=stored_at,
            last_stored_at=stored_at,
            location=ArchiveLocation(key, 0, len(content)),
            event_count=0,
        )

    # Shards

    def _read_remaining_records(self, gap: ShardGap) -> RemainingRecords:
        shard = gap.shard
        shard_tree = self.shard_trees.refresh()
        read_at = int(time.time() * 1000)
        nothing = RemainingRecords((), RecordPosition(shard, END_OF_SHARD_SEQUENCE), read_at, shard_ended=True)
        if shard not in shard_tree:
            return nothing
        patience = GrowingPauses(RETRY_TIMEOUT_SECONDS)
        while True:
            cursor = ShardCursor(self.shard_trees.stream, shard, None)
            try:
                records = _first_records(cursor, patience)
            except NoSuchShard:
                return nothing
            if records:
                start = RecordPosition(shard, records[0].position.sequence - 1)
                return RemainingRecords(records, start, read_at, shard_ended=False)
            if cursor.ended:
                return nothing
            # A reader of something forgotten needs to see that it lies in front of what comes next.
            # Events may have been stored since then: so the beginning is looked for again.
            self.shard_trees.stream.put_records(
                [OutgoingRecord(GAP_MARKER_PARTITION_KEY, shard_tree.first_hash_key(shard), envelopes.MAGIC_BYTES)]
            )
            if patience.is_over:
                raise Unavailable(f"{shard} does not show a record that was stored")
            patience.pause()

    def _partitions_affected_by(self, gap: ShardGap, topic: str, partitions: int) -> list[int]:
        touches = _hash_key_filter_of_shard(self.shard_trees.current, gap.shard)
        return [number for number in range(partitions) if touches(hash_key(partition_key(topic, number)))]


def _hash_key_filter_of_shard(shard_tree: ShardTree, shard: str) -> Callable[[int], bool]:
    """Whether a hash key was in a shard. One that is not listed any more is known by those that came from it."""
    if shard in shard_tree:
        return lambda key: shard in shard_tree.shards_covering(key)
    children = set(shard_tree.children(shard))
    return lambda key: not children or not children.isdisjoint(shard_tree.shards_covering(key))


def _first_records(cursor: ShardCursor, patience: GrowingPauses) -> list[ArrivedRecord]:
    while not cursor.ended:
        page = cursor.read(patience)
        if page.records or page.at_tip:
            return page.records
        if patience.is_over:
            raise Unavailable(f"{cursor.shard} does not show in time what it has")
    return []


# Compaction -----------------------------------------------------------------------------------------------------------


COMPACTED_FOLDER = "compacted/"
"""Objects in here hold one segment each, and no other events: they can be removed when it is replaced."""

MAX_GROUP_EVENTS = 20_000
MAX_GROUP_BYTES = 16_000_000
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
        end = self.reader.offset_at(topic, partition, stored_before)
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
        """Nothing refers to these any more."""
        keys = [location.key for location in locations if location.key.startswith(COMPACTED_FOLDER)]
        if keys and self.archive is not None:
            self.archive.remove(keys)

    def _index_up_to(self, topic: str, partition: int, end: int) -> None:
        """The indexer is seconds behind, and what is compacted is older; this is for the day when it stands still."""
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
        written = [self._rewrite_group(topic, partition, group, rule) for group in _group_small_segments(segments)]
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
        """Whether compacted segments were written without being noted."""
        compacted = [
            each.end_offset for each in segments if each.location and each.location.key.startswith(COMPACTED_FOLDER)
        ]
        noted = self.topic_cache.read_again(topic).topic.compacted.get(partition, 0)
        return max(compacted, default=0) > noted

    def _rewrite_group(
        self, topic: str, partition: int, group: Sequence[IndexSegment], rule: CompactionRule
    ) -> IndexSegment:
        """These segments as one, in an object of its own; a single one of which everything stays is left as it is."""
        events = list(
            self._read_events(topic, partition, max(group[0].first_offset, rule.oldest_offset), group[-1].end_offset)
        )
        kept = [event for event in events if rule.keeps(event)]
        if len(group) == 1 and len(kept) == len(events) and group[0].location is not None:
            return group[0]
        content = objects.pack_member(topic, partition, kept)
        name = f"{group[0].first_offset:018d}-{uuid4().hex}.json.gz"
        key = f"{COMPACTED_FOLDER}{self.stream_name}/{topic}/{partition}/{name}"
        assert self.archive is not None
        self.archive.put(key, content)
        return replace(
            group[0],
            offset_count=group[-1].end_offset - group[0].first_offset,
            last_stored_at=group[-1].last_stored_at,
            location=ArchiveLocation(key, 0, len(content)),
        )

    def _list_segments(self, topic: str, partition: int, start: int, end: int) -> Iterator[IndexSegment]:
        """The segments that hold anything from one offset to another."""
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


def _group_small_segments(segments: Sequence[IndexSegment]) -> Iterator[Sequence[IndexSegment]]:
    group: list[IndexSegment] = []
    for segment in segments:
        events = sum(each.offset_count for each in [*group, segment])
        size = sum(each.location.length for each in [*group, segment] if each.location)
        if group and (events > MAX_GROUP_EVENTS or 8 * size > MAX_GROUP_BYTES):
            yield group
            group = []
        group.append(segment)
    if group:
        yield group

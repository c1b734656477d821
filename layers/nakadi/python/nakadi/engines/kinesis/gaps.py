"""Recovery after a shard forgot events before they were indexed. A gap is a place in a shard where the stream forgot
events before they were indexed. The numbers of the events after a gap are unknown, and clients may have seen some of
them. So no number of the topic is used again: each partition ends where its index ends, and another topic, whose
numbers start again, continues it. The new topic numbers the same records, under the same keys, so publishers need not
know of it, and the remaining records of the stream are used.

Every step can be repeated. The order of the steps ensures that a crash, an indexer that is still at work, or a reader
does no harm:

1. A partition is ended in its head, by the condition that all writers of the head use. From then on, its topic numbers
   no events of the partition.
2. The following topic begins where the partition ended; if there is a gap, it has no beginning yet, and its events
   cannot be numbered.
3. The topic refers to the following one, and all event types have their new timelines.
4. Partitions in the shard begin at the first remaining record, which is indexed together with the following ones. Then
   the shard's progress is after the gap, and all processes continue.

A topic that was closed before the gap is not continued, because its timeline is not the last one. But the end of the
gap is known, so the remaining events keep their numbers, and the lost ones are left out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import replace

from nakadi.engines.archive import member_format
from nakadi.engines.kinesis import envelopes
from nakadi.engines.kinesis.call_rate import GrowingPauses
from nakadi.engines.kinesis.continuity import RETRY_TIMEOUT_SECONDS, ShardCursor, ShardTreeCache, confirm_no_gap
from nakadi.engines.kinesis.failures import NoSuchShard
from nakadi.engines.kinesis.indexing import Indexer
from nakadi.engines.kinesis.numbering import ArrivedRecord
from nakadi.engines.kinesis.partition_keys import GAP_MARKER_PARTITION_KEY, hash_key, next_topic_name, partition_key
from nakadi.engines.kinesis.recent_records import RecordNumberer
from nakadi.engines.kinesis.scanning import Scanner
from nakadi.engines.kinesis.shards import ShardTree
from nakadi.engines.kinesis.stream import OutgoingRecord
from nakadi.model.events import TopicContinuation
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

log = logging.getLogger(__name__)


MAX_GAP_CLOSING_ATTEMPTS = 8

CLAIM_DURATION_SECONDS = 600.0
"""How long a claim lasts: longer than closing a gap takes."""

END_OF_SHARD_SEQUENCE = 10**128
"""A number greater than the sequence number of any record in a shard."""


class RemainingRecords(Struct, frozen=True):
    """The records that a shard still has, and the position just before them."""

    records: Sequence[ArrivedRecord]
    position_before: RecordPosition
    read_at: int
    shard_ended: bool


class GapCloser(Struct, frozen=True, kw_only=True):
    """Closes gaps: ends partitions, creates the topics that continue them, and records each gap as passed."""

    index: LogIndex
    archive: ArchiveStore | None
    shard_trees: ShardTreeCache
    indexer: Indexer

    def ensure_continuations(self, topic: str, gaps: Sequence[ShardGap]) -> Sequence[TopicContinuation]:
        """The topics that continue this one, in order, and where each of their predecessors ended.

        If the topic has partitions in shards with these gaps, one of the continuations begins after all gaps.
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
        """Close these gaps, so that all processes continue after them.

        `topics` are the topics of all timelines, each with the ends of its partitions, or None if it is open.
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
            # Record the gap in the archive, for operators, before any partition begins again.
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
        """Make a partition continue after the last gap that concerns it."""
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
        """End a partition where its index ends, and return its state there."""
        for _ in range(MAX_GAP_CLOSING_ATTEMPTS):
            head = self.index.index_heads([(topic, partition)])[topic, partition]
            if head.state.sealed_at == SEALED_AT_INDEX_END:
                return replace(head.state, sealed_at=None)
            # A sealed partition has already ended: it numbers no records after its seal.
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
        """Make an open partition begin after a gap, unless it has already begun."""
        head = self.index.index_heads([(topic, partition)])[topic, partition]
        counted = head.state
        is_behind = bool(head.revision) and self.shard_trees.rank(counted.last_position) >= self.shard_trees.rank(start)
        if is_behind or (continued_topic is None and not head.revision):
            # A partition that was created after the gap was found begins at its first record.
            return
        if continued_topic is None:
            raise Unavailable(f"{topic} has to be continued before it is counted behind a gap")
        if head.revision and counted.last_position is not None:
            # An earlier attempt was interrupted, and the stream has since forgotten more records, which other processes
            # may have numbered. This is another gap.
            self._write_progress(gap, gap.progress._replace(complete_until=(gap.progress.complete_until or 0) + 1))
            raise Unavailable(f"{gap.shard} has forgotten more events since {topic}/{partition} has begun")
        begun = counted if head.revision else self._initial_continuation_state(continued_topic, partition)
        begun = replace(begun, last_position=start, unfinished_parts=())
        if not self.index.advance_head(topic, partition, head.revision, IndexHead(begun), None):
            raise Unavailable(f"Others index {topic}/{partition} at the same time")

    def _initial_continuation_state(self, topic: str, partition: int) -> IndexingState:
        """The first state of the partition that continues this one in the next topic."""
        ended = self.index.index_heads([(topic, partition)])[topic, partition].state
        return replace(
            ended, next_offset=0, sealed_at=None if ended.sealed_at == SEALED_AT_INDEX_END else ended.sealed_at
        )

    def _skip_lost_events(
        self, topic: str, partition: int, end: int, remaining: RemainingRecords, gap: ShardGap
    ) -> None:
        """Make the index of a closed topic's partition continue with the events that remain."""
        for _ in range(MAX_GAP_CLOSING_ATTEMPTS):
            head = self.index.index_heads([(topic, partition)])[topic, partition]
            before = head.state
            if before.sealed_at is not None or self.shard_trees.rank(before.last_position) >= self.shard_trees.rank(
                remaining.position_before
            ):
                return
            remaining_events = self._count_remaining_events(partition_key(topic, partition), remaining)
            following_offset = max(end - remaining_events, before.next_offset)
            # The lost events were stored after the last time at which none was missing.
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
        """Store a segment without events, which readers skip like compacted events."""
        if end == before.next_offset or self.archive is None:
            return None
        content = member_format.pack_member(topic, partition, [])
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
            # The shard has no records, so a marker is stored, from which readers see that the forgotten records lie
            # before it. Events may have been stored meanwhile, so the first record is looked up again.
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
    """A filter of the hash keys that a shard covered, derived from its children if the shard is no longer listed."""
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

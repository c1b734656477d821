"""Indexing: numbers events once for all processes, so that no process has to count from the beginning.

A batch of a shard's records becomes one archive object, then one segment for each partition in the batch, and finally
the shard's progress is stored. Every step can be repeated, by several processes at once and in any order, with the same
result:

* A batch that does not follow the indexed records is first completed from the stream; records that are already indexed
  are skipped.
* A head advances only from the state in which it was read, so if two processes index the same events, only one
  advances it.
* The progress is stored last: everything that it covers is in the heads.
* Nothing is indexed after a gap: the process first finds the topics to which the records belong, and then confirms that
  the stream has forgotten nothing. So if a gap is found later, those topics are ended, and records that were read
  before cannot be added.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from msgspec import Struct, field

from nakadi.engines.archive import member_format
from nakadi.engines.kinesis import envelopes
from nakadi.engines.kinesis.call_rate import GrowingPauses
from nakadi.engines.kinesis.continuity import (
    RETRY_TIMEOUT_SECONDS,
    SURELY_KEPT_MILLISECONDS,
    GapCheckingCursor,
    GapFound,
    GapUncertain,
    ShardTreeCache,
    shard_progress,
    shards_lost_before_indexed,
)
from nakadi.engines.kinesis.frames import Frame, decode_frame
from nakadi.engines.kinesis.numbering import ArrivedRecord
from nakadi.engines.kinesis.partition_keys import GAP_MARKER_PARTITION_KEY, original_topic, parse_partition_key
from nakadi.engines.kinesis.recent_records import RecordNumberer
from nakadi.engines.kinesis.scanning import Scanner
from nakadi.engines.kinesis.stream import Stream
from nakadi.model.events import StoredEvent, TopicPartition
from nakadi.model.log_index import (
    SEALED_AT_INDEX_END,
    ArchiveLocation,
    IndexHead,
    IndexSegment,
    RecordPosition,
    ShardGap,
    ShardProgress,
    Topic,
)
from nakadi.model.outcomes import Unavailable
from nakadi.ports.archive_store import ArchiveStore
from nakadi.ports.log_index import LogIndex

log = logging.getLogger(__name__)

MAX_INDEXING_ATTEMPTS = 5

MAX_SEQUENTIAL_CALLS = 8
CONCURRENT_CALLS = 16
"""The number of parallel calls to the index, if there are many."""

Argument = TypeVar("Argument")
Result = TypeVar("Result")


class IndexingResult(Struct):
    """The result of indexing: the number of events, their bytes on arrival, and the records that were set aside."""

    event_count: int = 0
    byte_count: int = 0
    set_aside_keys: list[str] = field(default_factory=list)


class IndexingBacklog(Struct, frozen=True):
    """The records that wait for indexing: when the oldest one arrived, in milliseconds, and the gaps among them."""

    oldest_arrival_ms: int | None
    gaps: tuple[ShardGap, ...]

    def lag(self, now: datetime) -> timedelta:
        """How long ago the oldest unindexed record arrived; zero if none waits."""
        if self.oldest_arrival_ms is None:
            return timedelta(0)
        return max(now - datetime.fromtimestamp(self.oldest_arrival_ms / 1000, UTC), timedelta(0))


class NumberedBatch(Struct, frozen=True):
    """The records of a batch that belong to one partition, numbered from the partition's head on."""

    head: IndexHead
    numberer: RecordNumberer
    frames: list[Frame]

    @property
    def frames_with_events(self) -> list[Frame]:
        return [frame for frame in self.frames if frame.event_count]


class Indexer:
    def __init__(
        self, stream: Stream, shard_trees: ShardTreeCache, index: LogIndex, archive: ArchiveStore | None
    ) -> None:
        self._stream = stream
        self._shard_trees = shard_trees
        self._index = index
        self._archive = archive
        self._scanner = Scanner(stream, shard_trees)

    def index(self, shard: str, records: Sequence[ArrivedRecord]) -> IndexingResult:
        """Index a batch of a shard, and the missing records before it."""
        outcome = IndexingResult()
        progress = self._read_progress(shard)
        new = [record for record in records if record.position.sequence > progress.last_sequence]
        if new:
            self._index_parents(shard, progress)
            cursor = GapCheckingCursor(self._shard_trees, shard, progress)
            for page in self._batch_with_missing_records(cursor, new):
                self._index_page(shard, page, outcome, cursor)
        return outcome

    def last_indexed_sequence(self, shard: str) -> int | None:
        """The number of the last record of the shard up to which all records are indexed."""
        found = self._index.shard_progresses(self._stream.name).get(shard)
        return found.last_sequence or None if found else None

    def survey_backlog(self) -> IndexingBacklog:
        """Survey the waiting records of all shards, and store for shards without waiting records that nothing is
        missing.
        """
        shard_tree = self._shard_trees.refresh()
        progress = dict(self._index.shard_progresses(self._stream.name))
        gaps = [
            ShardGap(shard, progress[shard])
            for shard in shards_lost_before_indexed(progress, shard_tree, list(progress))
        ]
        waiting = [gap.progress.complete_until for gap in gaps]
        for shard in shard_tree:
            indexed = shard_progress(progress, shard_tree, shard)
            if indexed.ended:
                continue
            cursor = GapCheckingCursor(self._shard_trees, shard, indexed)
            try:
                first = _first_unindexed_record(cursor)
            except GapFound:
                gaps.append(ShardGap(shard, indexed))
                waiting.append(indexed.complete_until)
            except GapUncertain:
                waiting.append(indexed.complete_until)
            else:
                if first is None:
                    noted = cursor.progress
                    if (
                        noted.ended
                        and not noted.last_sequence
                        and not _all_ended(progress, shard_tree.all_parents(shard))
                    ):
                        # Parents come first, because child shards can be indexed once their parents have ended.
                        noted = noted._replace(ended=False)
                    self._index.advance_shard_progress(self._stream.name, shard, noted)
                    progress[shard] = noted
                    continue
                waiting.append(first.arrived_at_ms)
                if shard not in progress or indexed.complete_until is None:
                    # Records before the first survey count as complete.
                    complete_at = first.arrived_at_ms if indexed.complete_until is None else indexed.complete_until
                    noted = indexed._replace(complete_until=complete_at)
                    self._index.advance_shard_progress(self._stream.name, shard, noted)
        return IndexingBacklog(min((moment for moment in waiting if moment is not None), default=None), tuple(gaps))

    def index_behind_gap(self, shard: str, records: Sequence[ArrivedRecord]) -> None:
        """Index the first records that a shard still has. Raises `Unavailable` unless all partitions begin there."""
        self._index_page(shard, records, IndexingResult(), None)

    def catch_up(self, shard: str) -> IndexingResult:
        outcome = IndexingResult()
        progress = self._read_progress(shard)
        if progress.ended:
            return outcome
        self._index_parents(shard, progress)
        cursor = GapCheckingCursor(self._shard_trees, shard, progress)
        patience = GrowingPauses(RETRY_TIMEOUT_SECONDS)
        while not cursor.ended:
            page = cursor.read(patience)
            if page.records:
                self._index_page(shard, page.records, outcome, cursor)
            if page.at_tip:
                break
        if cursor.ended:
            self._index.advance_shard_progress(self._stream.name, shard, cursor.progress)
        return outcome

    def _read_progress(self, shard: str) -> ShardProgress:
        return shard_progress(
            self._index.shard_progresses(self._stream.name), self._shard_trees.tree_with(shard), shard
        )

    def _batch_with_missing_records(
        self, cursor: GapCheckingCursor, new_records: Sequence[ArrivedRecord]
    ) -> Iterator[Sequence[ArrivedRecord]]:
        """The records between the indexed position and the first record of a batch, and the batch."""
        patience = GrowingPauses(RETRY_TIMEOUT_SECONDS)
        first, last = new_records[0].position.sequence, new_records[-1].position.sequence
        if time.time() * 1000 - new_records[0].arrived_at_ms > SURELY_KEPT_MILLISECONDS:
            # The batch is read again here, because records before it may have been forgotten since it was read.
            yield from self._read_up_to(cursor, last, patience)
            return
        # A read of one record shows whether any are missing before the batch, which is rare.
        limit = 1
        while True:
            page = cursor.read(patience, limit)
            missing = [record for record in page.records if record.position.sequence < first]
            if missing:
                yield missing
            if len(missing) < len(page.records) or page.continuation is None:
                break
            limit = 10_000 if page.records else 1
            if page.at_tip and not page.records:
                raise Unavailable(f"{cursor.shard} does not show the record {first} yet")
        yield new_records

    def _read_up_to(
        self, cursor: GapCheckingCursor, last_sequence: int, patience: GrowingPauses
    ) -> Iterator[Sequence[ArrivedRecord]]:
        while not cursor.ended and (cursor.sequence or 0) < last_sequence:
            page = cursor.read(patience)
            if page.records:
                yield page.records
            if page.at_tip and (cursor.sequence or 0) < last_sequence:
                raise Unavailable(f"{cursor.shard} does not show the record {last_sequence} yet")

    def _index_parents(self, shard: str, progress: ShardProgress) -> None:
        """Index the parents of a shard to their ends, because its first records follow their last records."""
        if progress.last_sequence:
            return
        shard_tree = self._shard_trees.tree_with(shard)
        if shard not in shard_tree:
            raise Unavailable(f"{shard} is not in the stream any more")
        progresses = self._index.shard_progresses(self._stream.name)
        lost = shards_lost_before_indexed(progresses, shard_tree, shard_tree.all_parents(shard))
        if lost:
            raise GapFound(lost[0])
        for parent in shard_tree.listed_parents(shard):
            if not shard_progress(progresses, shard_tree, parent).ended:
                self.catch_up(parent)

    def _index_page(
        self, shard: str, records: Sequence[ArrivedRecord], outcome: IndexingResult, cursor: GapCheckingCursor | None
    ) -> None:
        """Index consecutive records; `cursor` has read them, and confirms that nothing is missing."""
        waiting: dict[TopicPartition, list[ArrivedRecord]] = {}
        for record in records:
            if record.partition_key == GAP_MARKER_PARTITION_KEY:
                continue
            partition = parse_partition_key(record.partition_key)
            if partition is None or envelopes.parse_envelope(record.data) is None:
                self._store_unreadable_record(record.position, record.data, outcome)
            else:
                waiting.setdefault(partition, []).append(record)
        names = list(dict.fromkeys(topic for topic, _ in waiting))
        topics = dict(zip(names, _call_for_all(self._latest_continuation, names), strict=True))
        waiting = {
            (found[0], partition[1]): batch
            for partition, batch in waiting.items()
            if (found := topics[partition[0]]) is not None and partition[1] < found[1].partitions
        }
        if cursor is not None:
            cursor.confirm_no_gap(GrowingPauses(RETRY_TIMEOUT_SECONDS))
        for _ in range(MAX_INDEXING_ATTEMPTS):
            waiting = self._advance_heads(shard, waiting, outcome) if waiting else waiting
        if waiting:
            raise Unavailable(f"Others index {len(waiting)} partitions of {shard} at the same time")
        last = records[-1]
        self._index.advance_shard_progress(
            self._stream.name, shard, ShardProgress(last.position.sequence, complete_until=last.arrived_at_ms)
        )

    def _latest_continuation(self, name: str) -> tuple[str, Topic] | None:
        """The topic to which records with this topic's name belong: this topic, or its last continuation."""
        known = self._index.topic(name)
        while known is not None and known.continued_in is not None:
            name = known.continued_in
            known = self._index.topic(name)
        return None if known is None else (name, known)

    def _advance_heads(
        self, shard: str, batches: Mapping[TopicPartition, Sequence[ArrivedRecord]], outcome: IndexingResult
    ) -> dict[TopicPartition, list[ArrivedRecord]]:
        """Advance the heads, except those that another process has advanced."""
        heads = self._index.index_heads(list(batches))
        countings = {
            partition: self._number_batch(partition, heads[partition], batch) for partition, batch in batches.items()
        }
        countings = {partition: each for partition, each in countings.items() if each.numberer.state != each.head.state}
        locations = self._store_batch(shard, countings, outcome)

        def extend(partition: TopicPartition) -> bool:
            counting = countings[partition]
            segment = _segment_of_batch(counting, locations.get(partition))
            return self._index.advance_head(
                *partition, counting.head.revision, IndexHead(counting.numberer.state), segment
            )

        left: dict[TopicPartition, list[ArrivedRecord]] = {}
        for (partition, counting), done in zip(countings.items(), _call_for_all(extend, list(countings)), strict=True):
            if done:
                outcome.event_count += sum(frame.event_count for frame in counting.frames)
                outcome.byte_count += sum(len(frame.content) for frame in counting.frames)
            else:
                left[partition] = list(batches[partition])
        return left

    def _number_batch(
        self, partition: TopicPartition, head: IndexHead, records: Sequence[ArrivedRecord]
    ) -> NumberedBatch:
        if head.state.sealed_at == SEALED_AT_INDEX_END or (
            partition[0] != original_topic(partition[0]) and not head.revision
        ):
            raise Unavailable(f"{partition[0]}/{partition[1]} is ended, and is about to be continued in another topic")
        self._shard_trees.tree_with(records[0].position.shard)
        # Another process may have continued in a newer shard that this process does not know.
        rank = self._shard_trees.tree_for_ranking(head.state.last_position).rank
        counter = RecordNumberer(head.state, self._scanner.read_unfinished_parts(head.state))
        done = rank(head.state.last_position)
        found = [counter.number_record(record) for record in records if rank(record.position) > done]
        return NumberedBatch(head, counter, found)

    def _store_batch(
        self, shard: str, numbered_batches: Mapping[TopicPartition, NumberedBatch], outcome: IndexingResult
    ) -> Mapping[TopicPartition, ArchiveLocation]:
        """Store one object with a member for each partition. The object's name depends on its content, so no other
        content is ever overwritten.
        """
        if self._archive is None:
            return {}
        content = bytearray()
        ranges: dict[TopicPartition, tuple[int, int]] = {}
        for partition, counting in numbered_batches.items():
            if counting.frames_with_events:
                member = member_format.pack_member(*partition, self._decode_batch(counting, outcome))
                ranges[partition] = (len(content), len(member))
                content += member
        if not ranges:
            return {}
        last = max(
            each.numberer.state.last_position.sequence
            for each in numbered_batches.values()
            if each.numberer.state.last_position
        )
        digest = hashlib.sha256(content).hexdigest()[:16]
        key = f"log/{self._stream.name}/{shard}/{last:056d}-{digest}.json.gz"
        self._archive.put(key, bytes(content))
        return {partition: ArchiveLocation(key, start, length) for partition, (start, length) in ranges.items()}

    def _decode_batch(self, numbered_batch: NumberedBatch, outcome: IndexingResult) -> Iterator[StoredEvent]:
        """The events of a partition. A damaged frame keeps its offsets, and its bytes are stored separately, for
        operators.
        """
        for frame in numbered_batch.frames_with_events:
            found = decode_frame(frame)
            if not found and numbered_batch.numberer.state.last_position:
                self._store_unreadable_record(numbered_batch.numberer.state.last_position, frame.content, outcome)
            yield from found

    def _store_unreadable_record(self, position: RecordPosition, content: bytes, outcome: IndexingResult) -> None:
        digest = hashlib.sha256(content).hexdigest()[:16]
        key = f"set-aside/{self._stream.name}/{position.shard}/{position.sequence}-{digest}"
        outcome.set_aside_keys.append(key)
        log.error("Unreadable records are set aside as %s", key)
        if self._archive is not None:
            self._archive.put(key, content)


def _call_for_all(call: Callable[[Argument], Result], arguments: Sequence[Argument]) -> Iterable[Result]:
    if len(arguments) <= MAX_SEQUENTIAL_CALLS:
        return [call(question) for question in arguments]
    with ThreadPoolExecutor(CONCURRENT_CALLS) as threads:
        return list(threads.map(call, arguments))


def _all_ended(progress: Mapping[str, ShardProgress], shards: Iterable[str]) -> bool:
    return all(shard in progress and progress[shard].ended for shard in shards)


def _first_unindexed_record(cursor: GapCheckingCursor) -> ArrivedRecord | None:
    patience = GrowingPauses(RETRY_TIMEOUT_SECONDS)
    while not cursor.ended:
        page = cursor.read(patience, 1)
        if page.records:
            return page.records[0]
        if page.at_tip:
            return None
        if patience.is_over:
            raise Unavailable(f"{cursor.shard} does not show in time what is not indexed")
    return None


def _segment_of_batch(numbered_batch: NumberedBatch, location: ArchiveLocation | None) -> IndexSegment | None:
    found = numbered_batch.frames_with_events
    if not found:
        return None
    before = numbered_batch.head.state
    return IndexSegment(
        state_before=before,
        offset_count=numbered_batch.numberer.state.next_offset - before.next_offset,
        first_stored_at=found[0].stored_at,
        last_stored_at=found[-1].stored_at,
        location=location,
    )

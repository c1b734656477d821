"""Indexing: counting once for all processes, so that none has to count from the beginning.

A batch of a shard's records becomes one archive object, one segment for each partition in it, and at last a note of how
far the shard is counted. All of it can be repeated, by several at once and in any order, and the result is the same:

* A batch that does not follow what is counted is completed from the stream first; what is counted is passed over.
* A head moves on only from where it was found, so of two who count the same events one finds the work done.
* The note comes last: what it covers is in the heads.
* Nothing is counted behind a gap: that the stream has forgotten nothing is confirmed after it is known which topics the
  records count for. So if a gap is declared later, those topics are ended, and what was read before cannot be added.
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

from nakadi.engines.archive import objects
from nakadi.engines.kinesis import envelopes
from nakadi.engines.kinesis.continuity import (
    GIVE_UP_AFTER,
    TRUSTED,
    GapFound,
    GapUncertain,
    ShardTreeCache,
    UnbrokenCursor,
    place_in,
    unfinished,
)
from nakadi.engines.kinesis.envelopes import GAP_KEY, place_of, shared
from nakadi.engines.kinesis.recent_records import ArrivedRecord, Frame, RecordCounter, events_of
from nakadi.engines.kinesis.scanning import Scanner
from nakadi.engines.kinesis.stream import GrowingPauses, Stream
from nakadi.model.events import (
    SEALED_AT_INDEX_END,
    ArchiveLocation,
    IndexHead,
    IndexSegment,
    RecordPosition,
    ShardGap,
    ShardProgress,
    StoredEvent,
    Topic,
    TopicPartition,
)
from nakadi.model.outcomes import Unavailable
from nakadi.ports.archive_store import ArchiveStore
from nakadi.ports.log_index import LogIndex

ATTEMPTS = 5

MANY = 8
AT_ONCE = 16
"""So many calls to the index wait for their answers at the same time, where there are many."""

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

log = logging.getLogger(__name__)


class IndexingResult(Struct):
    """What indexing did: events counted, bytes of theirs as they came, and what had to be set aside."""

    events: int = 0
    bytes: int = 0
    set_aside: list[str] = field(default_factory=list)


class IndexingBacklog(Struct, frozen=True):
    """What waits to be indexed: when the oldest of it arrived, in milliseconds, and where some of it is gone."""

    oldest_waiting: int | None
    gaps: tuple[ShardGap, ...]

    def lag(self, now: datetime) -> timedelta:
        """How long ago the oldest record arrived that is not indexed yet; nothing when none waits."""
        if self.oldest_waiting is None:
            return timedelta(0)
        return max(now - datetime.fromtimestamp(self.oldest_waiting / 1000, UTC), timedelta(0))


class CountedBatch(Struct, frozen=True):
    """A partition's part of a batch, counted on from a head."""

    head: IndexHead
    counter: RecordCounter
    frames: list[Frame]

    @property
    def with_events(self) -> list[Frame]:
        return [frame for frame in self.frames if frame.events]


class Indexer:
    def __init__(self, stream: Stream, ancestry: ShardTreeCache, index: LogIndex, archive: ArchiveStore | None) -> None:
        self._stream = stream
        self._ancestry = ancestry
        self._index = index
        self._archive = archive
        self._scanner = Scanner(stream, ancestry)

    def index(self, shard: str, records: Sequence[ArrivedRecord]) -> IndexingResult:
        """Index a batch of a shard, and what is missing in front of it."""
        outcome = IndexingResult()
        place = self._place(shard)
        new = [record for record in records if record.mark.sequence > place.sequence]
        if new:
            self._index_parents(shard, place)
            cursor = UnbrokenCursor(self._ancestry, shard, place)
            for page in self._missing(cursor, new):
                self._index_page(shard, page, outcome, cursor)
        return outcome

    def progress(self, shard: str) -> int | None:
        """The last record of the shard up to which all are indexed."""
        found = self._index.progress(self._stream.name).get(shard)
        return found.sequence or None if found else None

    def survey(self) -> IndexingBacklog:
        """Look at what waits in all shards, and note of those where nothing does that nothing is missing."""
        lineage = self._ancestry.refreshed()
        progress = dict(self._index.progress(self._stream.name))
        gaps = [ShardGap(shard, progress[shard]) for shard in unfinished(progress, lineage, list(progress))]
        waiting = [gap.place.complete_at for gap in gaps]
        for shard in lineage:
            place = place_in(progress, lineage, shard)
            if place.ended:
                continue
            cursor = UnbrokenCursor(self._ancestry, shard, place)
            try:
                first = _first_waiting(cursor)
            except GapFound:
                gaps.append(ShardGap(shard, place))
                waiting.append(place.complete_at)
            except GapUncertain:
                waiting.append(place.complete_at)
            else:
                if first is None:
                    noted = cursor.place
                    if noted.ended and not noted.sequence and not _all_ended(progress, lineage.origins(shard)):
                        # Those that came from this one are indexed as soon as it has ended: so what it came from first.
                        noted = noted._replace(ended=False)
                    self._index.set_shard_progress(self._stream.name, shard, noted)
                    progress[shard] = noted
                    continue
                waiting.append(first.at)
                if shard not in progress or place.complete_at is None:
                    # What came before the first look of all is taken to be complete.
                    complete_at = first.at if place.complete_at is None else place.complete_at
                    noted = place._replace(complete_at=complete_at)
                    self._index.set_shard_progress(self._stream.name, shard, noted)
        return IndexingBacklog(min((moment for moment in waiting if moment is not None), default=None), tuple(gaps))

    def index_behind_gap(self, shard: str, records: Sequence[ArrivedRecord]) -> None:
        """Index the first records that a shard still has. Raises `Unavailable` unless all partitions begin there."""
        self._index_page(shard, records, IndexingResult(), None)

    def catch_up(self, shard: str) -> IndexingResult:
        """Index everything that is there now."""
        outcome = IndexingResult()
        place = self._place(shard)
        if place.ended:
            return outcome
        self._index_parents(shard, place)
        cursor = UnbrokenCursor(self._ancestry, shard, place)
        patience = GrowingPauses(GIVE_UP_AFTER)
        while not cursor.ended:
            page = cursor.read(patience)
            if page.records:
                self._index_page(shard, page.records, outcome, cursor)
            if page.at_tip:
                break
        if cursor.ended:
            self._index.set_shard_progress(self._stream.name, shard, cursor.place)
        return outcome

    def _place(self, shard: str) -> ShardProgress:
        return place_in(self._index.progress(self._stream.name), self._ancestry.knowing(shard), shard)

    def _missing(self, cursor: UnbrokenCursor, new: Sequence[ArrivedRecord]) -> Iterator[Sequence[ArrivedRecord]]:
        """What lies between the place that is counted and the first record of a batch, and the batch."""
        patience = GrowingPauses(GIVE_UP_AFTER)
        first, last = new[0].mark.sequence, new[-1].mark.sequence
        if time.time() * 1000 - new[0].at > TRUSTED:
            # The batch itself may have been read where the stream was forgetting.
            yield from self._up_to(cursor, last, patience)
            return
        # One record tells whether anything is missing, which is next to never.
        limit = 1
        while True:
            page = cursor.read(patience, limit)
            missing = [record for record in page.records if record.mark.sequence < first]
            if missing:
                yield missing
            if len(missing) < len(page.records) or page.following is None:
                break
            limit = 10_000 if page.records else 1
            if page.at_tip and not page.records:
                raise Unavailable(f"{cursor.shard} does not show the record {first} yet")
        yield new

    def _up_to(self, cursor: UnbrokenCursor, last: int, patience: GrowingPauses) -> Iterator[Sequence[ArrivedRecord]]:
        while not cursor.ended and (cursor.sequence or 0) < last:
            page = cursor.read(patience)
            if page.records:
                yield page.records
            if page.at_tip and (cursor.sequence or 0) < last:
                raise Unavailable(f"{cursor.shard} does not show the record {last} yet")

    def _index_parents(self, shard: str, place: ShardProgress) -> None:
        """A shard's first records follow the last ones of those it came from."""
        if place.sequence:
            return
        lineage = self._ancestry.knowing(shard)
        if shard not in lineage:
            raise Unavailable(f"{shard} is not in the stream any more")
        progress = self._index.progress(self._stream.name)
        lost = unfinished(progress, lineage, lineage.origins(shard))
        if lost:
            raise GapFound(lost[0])
        for parent in lineage.parents(shard):
            if not place_in(progress, lineage, parent).ended:
                self.catch_up(parent)

    def _index_page(
        self, shard: str, records: Sequence[ArrivedRecord], outcome: IndexingResult, cursor: UnbrokenCursor | None
    ) -> None:
        """Index records that follow each other; `cursor` has read them, and confirms that nothing is missing."""
        waiting: dict[TopicPartition, list[ArrivedRecord]] = {}
        for record in records:
            if record.key == GAP_KEY:
                continue
            place = place_of(record.key)
            if place is None or envelopes.opened(record.data) is None:
                self._set_aside(record.mark, record.data, outcome)
            else:
                waiting.setdefault(place, []).append(record)
        names = list(dict.fromkeys(topic for topic, _ in waiting))
        topics = dict(zip(names, _answers(self._counting_topic, names), strict=True))
        waiting = {
            (found[0], place[1]): batch
            for place, batch in waiting.items()
            if (found := topics[place[0]]) is not None and place[1] < found[1].partitions
        }
        if cursor is not None:
            cursor.confirm(GrowingPauses(GIVE_UP_AFTER))
        for _ in range(ATTEMPTS):
            waiting = self._advance(shard, waiting, outcome) if waiting else waiting
        if waiting:
            raise Unavailable(f"Others index {len(waiting)} partitions of {shard} at the same time")
        last = records[-1]
        self._index.set_shard_progress(self._stream.name, shard, ShardProgress(last.mark.sequence, complete_at=last.at))

    def _counting_topic(self, name: str) -> tuple[str, Topic] | None:
        """The topic that counts the records of this one: itself, or the last one that continues it."""
        known = self._index.topic(name)
        while known is not None and known.continued_in is not None:
            name = known.continued_in
            known = self._index.topic(name)
        return None if known is None else (name, known)

    def _advance(
        self, shard: str, batches: Mapping[TopicPartition, Sequence[ArrivedRecord]], outcome: IndexingResult
    ) -> dict[TopicPartition, list[ArrivedRecord]]:
        """Move the heads on; those that another process moved are left."""
        heads = self._index.heads(list(batches))
        countings = {place: self._counted(place, heads[place], batch) for place, batch in batches.items()}
        countings = {place: each for place, each in countings.items() if each.counter.state != each.head.counted}
        locations = self._archived(shard, countings, outcome)

        def extend(place: TopicPartition) -> bool:
            counting = countings[place]
            segment = _segment(counting, locations.get(place))
            return self._index.extend(*place, counting.head.revision, IndexHead(counting.counter.state), segment)

        left: dict[TopicPartition, list[ArrivedRecord]] = {}
        for (place, counting), done in zip(countings.items(), _answers(extend, list(countings)), strict=True):
            if done:
                outcome.events += sum(frame.events for frame in counting.frames)
                outcome.bytes += sum(len(frame.content) for frame in counting.frames)
            else:
                left[place] = list(batches[place])
        return left

    def _counted(self, place: TopicPartition, head: IndexHead, records: Sequence[ArrivedRecord]) -> CountedBatch:
        if head.counted.sealed_at == SEALED_AT_INDEX_END or (place[0] != shared(place[0]) and not head.revision):
            raise Unavailable(f"{place[0]}/{place[1]} is ended, and is about to be continued in another topic")
        self._ancestry.knowing(records[0].mark.shard)
        # Another process may have counted on in a shard that is newer than this process knows of.
        rank = self._ancestry.placing(head.counted.mark).rank
        counter = RecordCounter(head.counted, self._scanner.parts(head.counted))
        done = rank(head.counted.mark)
        found = [counter.met(record) for record in records if rank(record.mark) > done]
        return CountedBatch(head, counter, found)

    def _archived(
        self, shard: str, countings: Mapping[TopicPartition, CountedBatch], outcome: IndexingResult
    ) -> Mapping[TopicPartition, ArchiveLocation]:
        """One object with a member for each partition. Its name tells its content: nothing is ever overwritten."""
        if self._archive is None:
            return {}
        content = bytearray()
        ranges: dict[TopicPartition, tuple[int, int]] = {}
        for place, counting in countings.items():
            if counting.with_events:
                member = objects.pack_member(*place, self._events(counting, outcome))
                ranges[place] = (len(content), len(member))
                content += member
        if not ranges:
            return {}
        last = max(each.counter.state.mark.sequence for each in countings.values() if each.counter.state.mark)
        digest = hashlib.sha256(content).hexdigest()[:16]
        key = f"log/{self._stream.name}/{shard}/{last:056d}-{digest}.json.gz"
        self._archive.put(key, bytes(content))
        return {place: ArchiveLocation(key, start, length) for place, (start, length) in ranges.items()}

    def _events(self, counting: CountedBatch, outcome: IndexingResult) -> Iterator[StoredEvent]:
        """The events of a partition. A damaged frame has spent its numbers, and its bytes are kept for people."""
        for frame in counting.with_events:
            found = events_of(frame)
            if not found and counting.counter.state.mark:
                self._set_aside(counting.counter.state.mark, frame.content, outcome)
            yield from found

    def _set_aside(self, mark: RecordPosition, content: bytes, outcome: IndexingResult) -> None:
        key = f"set-aside/{self._stream.name}/{mark.shard}/{mark.sequence}-{hashlib.sha256(content).hexdigest()[:16]}"
        outcome.set_aside.append(key)
        log.error("What cannot be read is set aside as %s", key)
        if self._archive is not None:
            self._archive.put(key, content)


def _answers(ask: Callable[[Asked], Answer], questions: Sequence[Asked]) -> Iterable[Answer]:
    if len(questions) <= MANY:
        return [ask(question) for question in questions]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(ask, questions))


def _all_ended(progress: Mapping[str, ShardProgress], shards: Iterable[str]) -> bool:
    return all(shard in progress and progress[shard].ended for shard in shards)


def _first_waiting(cursor: UnbrokenCursor) -> ArrivedRecord | None:
    patience = GrowingPauses(GIVE_UP_AFTER)
    while not cursor.ended:
        page = cursor.read(patience, 1)
        if page.records:
            return page.records[0]
        if page.at_tip:
            return None
        if patience.over:
            raise Unavailable(f"{cursor.shard} does not show in time what is not indexed")
    return None


def _segment(counting: CountedBatch, location: ArchiveLocation | None) -> IndexSegment | None:
    found = counting.with_events
    if not found:
        return None
    before = counting.head.counted
    return IndexSegment(
        before=before,
        count=counting.counter.state.next - before.next,
        since=found[0].stored_at,
        until=found[-1].stored_at,
        archived=location,
    )

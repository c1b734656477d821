"""Indexing: counting for everybody, so that nobody has to count from the beginning.

A batch of a shard's records becomes one archive object, one segment for each partition in it, and at last a note of how
far the shard is counted. All of it can be repeated, by several at once and in any order, and the result is the same:

* A batch that does not follow what is counted is completed from the stream first; what is counted is passed over.
* A head moves on only from where it was found, so of two who count the same events one finds the work done.
* The note comes last: what it covers is in the heads.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from nakadi.archive import members
from nakadi.eventlogs.kinesis import envelopes
from nakadi.eventlogs.kinesis.events import events_of
from nakadi.eventlogs.kinesis.places import place_of
from nakadi.eventlogs.kinesis.scanning import Scanner
from nakadi.eventlogs.kinesis.stream import Patience, Stream
from nakadi.eventlogs.kinesis.tails import GIVE_UP_AFTER, Ancestry, Cursor
from nakadi.eventlogs.kinesis.tally import Arrived
from nakadi.eventlogs.kinesis.trails import Counter, Frame
from nakadi.model.events import StoredEvent
from nakadi.model.log_index import Head, Location, Mark, Segment, Topic
from nakadi.model.outcomes import Unavailable
from nakadi.ports import ArchiveStore, LogIndex

ATTEMPTS = 5

MANY = 8
AT_ONCE = 16
"""So many calls to the index wait for their answers at the same time, where there are many."""

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

Place = tuple[str, int]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Outcome:
    """What indexing did: events counted, bytes of theirs as they came, and what had to be set aside."""

    events: int = 0
    bytes: int = 0
    set_aside: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Counting:
    """A partition's part of a batch, counted on from a head."""

    head: Head
    counter: Counter
    frames: list[Frame]

    @property
    def with_events(self) -> list[Frame]:
        return [frame for frame in self.frames if frame.events]


class Indexer:
    def __init__(self, stream: Stream, ancestry: Ancestry, index: LogIndex, archive: ArchiveStore | None) -> None:
        self._stream = stream
        self._ancestry = ancestry
        self._index = index
        self._archive = archive
        self._scanner = Scanner(stream, ancestry)

    def index(self, shard: str, records: Sequence[Arrived]) -> Outcome:
        """Index a batch of a shard, and what is missing in front of it."""
        outcome = Outcome()
        counted = self.progress(shard)
        new = [record for record in records if counted is None or record.mark.sequence > counted]
        if new:
            for page in self._missing(shard, counted, new[0]):
                self._index_page(shard, page, outcome)
            self._index_page(shard, new, outcome)
        return outcome

    def progress(self, shard: str) -> int | None:
        """The last record of the shard up to which all are indexed."""
        return self._index.progress(self._stream.name).get(shard)

    def lag(self, now: datetime) -> timedelta:
        """How long ago the oldest record arrived that is not indexed yet; nothing when none waits."""
        progress = self._index.progress(self._stream.name)
        waiting = [self._first_waiting(shard, progress.get(shard)) for shard in self._ancestry.refreshed()]
        arrived = [record.at for record in waiting if record is not None]
        if not arrived:
            return timedelta(0)
        return max(now - datetime.fromtimestamp(min(arrived) / 1000, UTC), timedelta(0))

    def _first_waiting(self, shard: str, counted: int | None) -> Arrived | None:
        cursor = Cursor(self._stream, shard, counted)
        patience = Patience(GIVE_UP_AFTER)
        while not cursor.ended:
            page = cursor.read(patience, 1)
            if page.records:
                return page.records[0]
            if page.at_tip:
                return None
            if patience.over:
                raise Unavailable(f"{shard} does not show in time what is not indexed")
        return None

    def catch_up(self, shard: str) -> Outcome:
        """Index everything that is there now."""
        outcome = Outcome()
        for page in self._pages(shard, self.progress(shard)):
            self._index_page(shard, page, outcome)
        return outcome

    def _missing(self, shard: str, counted: int | None, first: Arrived) -> Iterator[list[Arrived]]:
        """What lies between the place that is counted and the first record of a batch."""
        if counted is None:
            self._index_parents(shard)
        cursor = Cursor(self._stream, shard, counted)
        patience = Patience(GIVE_UP_AFTER)
        # One record tells whether anything is missing, which is next to never.
        limit = 1
        while True:
            page = cursor.read(patience, limit)
            missing = [record for record in page.records if record.mark.sequence < first.mark.sequence]
            if missing:
                yield missing
            if len(missing) < len(page.records) or page.following is None:
                return
            limit = 10_000 if page.records else 1
            if page.at_tip and not page.records:
                raise Unavailable(f"{shard} does not show the record {first.mark.sequence} yet")

    def _pages(self, shard: str, counted: int | None) -> Iterator[list[Arrived]]:
        if counted is None:
            self._index_parents(shard)
        cursor = Cursor(self._stream, shard, counted)
        patience = Patience(GIVE_UP_AFTER)
        while not cursor.ended:
            page = cursor.read(patience)
            if page.records:
                yield page.records
            if page.at_tip:
                return

    def _index_parents(self, shard: str) -> None:
        """A shard's first records follow the last ones of those it came from."""
        for parent in self._ancestry.knowing(shard).parents(shard):
            self.catch_up(parent)

    def _index_page(self, shard: str, records: Sequence[Arrived], outcome: Outcome) -> None:
        waiting: dict[Place, list[Arrived]] = {}
        for record in records:
            place = place_of(record.key)
            if place is None or envelopes.opened(record.data) is None:
                self._set_aside(record.mark, record.data, outcome)
            else:
                waiting.setdefault(place, []).append(record)
        names = list(dict.fromkeys(topic for topic, _ in waiting))
        topics = dict(zip(names, _answers(self._index.topic, names), strict=True))
        waiting = {place: batch for place, batch in waiting.items() if _takes(topics, place)}
        for _ in range(ATTEMPTS):
            waiting = self._advance(shard, waiting, outcome) if waiting else waiting
        if waiting:
            raise Unavailable(f"Others index {len(waiting)} partitions of {shard} at the same time")
        self._index.note_progress(self._stream.name, shard, records[-1].mark.sequence)

    def _advance(
        self, shard: str, batches: Mapping[Place, Sequence[Arrived]], outcome: Outcome
    ) -> dict[Place, list[Arrived]]:
        """Move the heads on; those that somebody else moved meanwhile are left."""
        heads = self._index.heads(list(batches))
        countings = {place: self._counted(heads[place], batch) for place, batch in batches.items()}
        countings = {place: each for place, each in countings.items() if each.counter.state != each.head.counted}
        locations = self._archived(shard, countings, outcome)

        def extend(place: Place) -> bool:
            counting = countings[place]
            segment = _segment(counting, locations.get(place))
            return self._index.extend(*place, counting.head.revision, Head(counting.counter.state), segment)

        left: dict[Place, list[Arrived]] = {}
        for (place, counting), done in zip(countings.items(), _answers(extend, list(countings)), strict=True):
            if done:
                outcome.events += sum(frame.events for frame in counting.frames)
                outcome.bytes += sum(len(frame.content) for frame in counting.frames)
            else:
                left[place] = list(batches[place])
        return left

    def _counted(self, head: Head, records: Sequence[Arrived]) -> Counting:
        self._ancestry.knowing(records[0].mark.shard)
        # Somebody else may have counted on in a shard that is newer than this process knows of.
        rank = self._ancestry.placing(head.counted.mark).rank
        counter = Counter(head.counted, self._scanner.parts(head.counted))
        done = rank(head.counted.mark)
        found = [counter.met(record) for record in records if rank(record.mark) > done]
        return Counting(head, counter, found)

    def _archived(self, shard: str, countings: Mapping[Place, Counting], outcome: Outcome) -> Mapping[Place, Location]:
        """One object with a member for each partition. Its name tells its content: nothing is ever overwritten."""
        if self._archive is None:
            return {}
        content = bytearray()
        ranges: dict[Place, tuple[int, int]] = {}
        for place, counting in countings.items():
            if counting.with_events:
                member = members.member(*place, self._events(counting, outcome))
                ranges[place] = (len(content), len(member))
                content += member
        if not ranges:
            return {}
        last = max(each.counter.state.mark.sequence for each in countings.values() if each.counter.state.mark)
        digest = hashlib.sha256(content).hexdigest()[:16]
        key = f"log/{self._stream.name}/{shard}/{last:056d}-{digest}.json.gz"
        self._archive.put(key, bytes(content))
        return {place: Location(key, start, length) for place, (start, length) in ranges.items()}

    def _events(self, counting: Counting, outcome: Outcome) -> Iterator[StoredEvent]:
        """The events of a partition. A damaged frame has spent its numbers, and its bytes are kept for people."""
        for frame in counting.with_events:
            found = events_of(frame)
            if not found and counting.counter.state.mark:
                self._set_aside(counting.counter.state.mark, frame.content, outcome)
            yield from found

    def _set_aside(self, mark: Mark, content: bytes, outcome: Outcome) -> None:
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


def _takes(topics: Mapping[str, Topic | None], place: Place) -> bool:
    topic = topics[place[0]]
    return topic is not None and place[1] < topic.partitions


def _segment(counting: Counting, location: Location | None) -> Segment | None:
    found = counting.with_events
    if not found:
        return None
    before = counting.head.counted
    return Segment(
        before=before,
        count=counting.counter.state.next - before.next,
        since=found[0].stored_at,
        until=found[-1].stored_at,
        archived=location,
    )

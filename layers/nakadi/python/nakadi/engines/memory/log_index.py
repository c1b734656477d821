"""The log index in memory. Nothing of it survives the process."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from uuid import uuid4

from msgspec import Struct, field
from msgspec.structs import replace

from nakadi.engines.common.log_index_documents import (
    as_open_as,
    following_topic,
    is_signpost,
    last_honest,
    progress_body,
    signpost,
)
from nakadi.model.changes import Changes, bucket_of
from nakadi.model.log_index import Head, Location, Progress, Segment, Topic
from nakadi.model.outcomes import Unavailable
from nakadi.ports.event_log import UnknownTopic
from nakadi.ports.log_index import TOPICS

Place = tuple[str, int]


class _Partition(Struct):
    head: Head = field(default_factory=Head)
    segments: list[Segment] = field(default_factory=list)


class MemoryLogIndex:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._topics: dict[str, Topic] = {}
        self._partitions: dict[Place, _Partition] = {}
        self._progress: dict[tuple[str, str], Progress] = {}
        self._claims: dict[str, tuple[str, float]] = {}
        self._numbers: Counter[int] = Counter()
        self._identity = uuid4().hex[:16]
        self._closed = False

    def identity(self) -> str:
        with self._while_open():
            return self._identity

    def create_topic(self, topic: str, partitions: int) -> None:
        with self._while_open():
            self._topics.setdefault(topic, Topic(partitions=partitions))

    def topic(self, topic: str) -> Topic | None:
        with self._while_open():
            return self._topics.get(topic)

    def topics(self) -> Sequence[str]:
        with self._while_open():
            return sorted(name for name, known in self._topics.items() if not is_signpost(known))

    def grow_topic(self, topic: str, partitions: int) -> None:
        with self._while_open():
            known = self._known_topic(topic)
            self._topics[topic] = replace(known, partitions=max(known.partitions, partitions))

    def seal_topic(self, topic: str) -> None:
        with self._while_open():
            self._topics[topic] = replace(self._known_topic(topic), sealed=True)
            self._numbers[bucket_of(TOPICS, topic)] += 1

    def continue_topic(self, topic: str, following: str, behind: Sequence[str]) -> None:
        with self._while_open():
            known = self._known_topic(topic)
            there = self._topics.setdefault(following, following_topic(topic, known, behind))
            self._topics[topic] = replace(known, continued_in=following)
            self._topics[following] = as_open_as(known, there)
            self._numbers[bucket_of(TOPICS, topic)] += 1

    def delete_topic(self, topic: str) -> None:
        with self._while_open():
            gone = self._topics.pop(topic, None)
            if gone is not None and gone.continued_in in self._topics:
                self._topics[topic] = signpost(gone)
            elif gone is not None:
                self._remove_signposts(gone.continues)
            self._numbers[bucket_of(TOPICS, topic)] += 1
            for place in [place for place in self._partitions if place[0] == topic]:
                del self._partitions[place]

    def changes(self) -> Changes:
        with self._while_open():
            return Changes(dict(self._numbers))

    def heads(self, places: Sequence[Place]) -> Mapping[Place, Head]:
        with self._while_open():
            return {place: self._partition_at(place).head for place in places}

    def extend(self, topic: str, partition: int, expected: int, head: Head, segment: Segment | None) -> bool:
        with self._while_open():
            there = self._partitions.setdefault((topic, partition), _Partition())
            if there.head.revision != expected:
                return False
            there.head = replace(head, revision=expected + 1)
            if segment is not None:
                there.segments.append(segment)
            return True

    def segment(self, topic: str, partition: int, offset: int) -> Segment | None:
        with self._while_open():
            segments = self._partition_at((topic, partition)).segments
            at = bisect_right(segments, offset, key=_first)
            return segments[at - 1] if at else None

    def segments(self, topic: str, partition: int, start: int, limit: int) -> Sequence[Segment]:
        with self._while_open():
            segments = self._partition_at((topic, partition)).segments
            at = bisect_left(segments, start, key=_first)
            return segments[at : at + limit]

    def replace(self, topic: str, partition: int, segments: Sequence[Segment], end: int) -> None:
        with self._while_open():
            there = self._partition_at((topic, partition)).segments
            first = bisect_left(there, segments[0].first, key=_first)
            there[first : bisect_left(there, end, key=_first)] = segments

    def let_go(self, topic: str, partition: int, oldest: int) -> Sequence[Location]:
        with self._while_open():
            known = self._known_topic(topic)
            grown = max(oldest, known.oldest.get(partition, 0))
            self._topics[topic] = replace(known, oldest={**known.oldest, partition: grown})
            there = self._partition_at((topic, partition)).segments
            gone = [segment for segment in there if segment.end <= grown]
            del there[: len(gone)]
            return [segment.archived for segment in gone if segment.archived]

    def note_compacted(self, topic: str, partition: int, before: int) -> None:
        with self._while_open():
            known = self._known_topic(topic)
            grown = max(before, known.compacted.get(partition, 0))
            self._topics[topic] = replace(known, compacted={**known.compacted, partition: grown})

    def referred_to(self) -> Collection[str]:
        with self._while_open():
            there = [
                segment
                for (topic, _), each in self._partitions.items()
                if topic in self._topics
                for segment in each.segments
            ]
        return {segment.archived.key for segment in there if segment.archived}

    def claim(self, name: str, owner: str, seconds: float) -> bool:
        now = time.monotonic()
        with self._while_open():
            holder, until = self._claims.get(name, (owner, now))
            if holder != owner and now < until <= last_honest(now, seconds):
                return False
            self._claims[name] = (owner, now + seconds)
            return True

    def release(self, name: str, owner: str) -> None:
        with self._while_open():
            if self._claims.get(name, ("", 0.0))[0] == owner:
                del self._claims[name]

    def progress(self, stream: str) -> Mapping[str, Progress]:
        with self._while_open():
            return {shard: progress for (of, shard), progress in self._progress.items() if of == stream}

    def note_progress(self, stream: str, shard: str, progress: Progress) -> None:
        with self._while_open():
            known = self._progress.get((stream, shard), progress)
            self._progress[stream, shard] = max(progress, known, key=progress_body)

    def close(self) -> None:
        with self._lock:
            self._closed = True

    @contextmanager
    def _while_open(self) -> Iterator[None]:
        with self._lock:
            if self._closed:
                raise Unavailable("The log index is closed.")
            yield

    def _known_topic(self, topic: str) -> Topic:
        if topic not in self._topics:
            raise UnknownTopic(topic)
        return self._topics[topic]

    def _remove_signposts(self, topic: str | None) -> None:
        while topic in self._topics and is_signpost(self._topics[topic]):
            topic = self._topics.pop(topic).continues

    def _partition_at(self, place: Place) -> _Partition:
        return self._partitions.get(place) or _Partition()


def _first(segment: Segment) -> int:
    return segment.first

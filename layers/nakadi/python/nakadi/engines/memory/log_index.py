"""The log index in memory: dictionaries under a lock."""

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

from nakadi.engines.common.log_index_json import (
    continuing_topic,
    is_deleted_topic_placeholder,
    latest_plausible_expiry,
    placeholder_of_deleted_topic,
    shard_progress_text,
    with_changes_of_continued_topic,
)
from nakadi.model.events import TopicPartition
from nakadi.model.log_index import ArchiveLocation, IndexHead, IndexSegment, ShardProgress, Topic
from nakadi.model.outcomes import Unavailable
from nakadi.ports.event_log import UnknownTopic
from nakadi.ports.log_index import TOPICS_KIND
from nakadi.ports.registry import (
    ChangeCounters,
    change_bucket,
)


class _PartitionIndex(Struct):
    head: IndexHead = field(default_factory=IndexHead)
    segments: list[IndexSegment] = field(default_factory=list)


class MemoryLogIndex:
    """A log index in memory. It returns frozen values or copies, which stay unchanged while other threads change the
    index.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._topics: dict[str, Topic] = {}
        self._partitions: dict[TopicPartition, _PartitionIndex] = {}
        self._progress: dict[tuple[str, str], ShardProgress] = {}
        self._claims: dict[str, tuple[str, float]] = {}
        self._numbers: Counter[int] = Counter()
        self._identity = uuid4().hex[:16]
        self._closed = False

    def identity(self) -> str:
        with self._lock_while_open():
            return self._identity

    def create_topic(self, topic: str, partitions: int) -> None:
        with self._lock_while_open():
            self._topics.setdefault(topic, Topic(partitions=partitions))

    def topic(self, topic: str) -> Topic | None:
        with self._lock_while_open():
            return self._topics.get(topic)

    def topic_names(self) -> Sequence[str]:
        with self._lock_while_open():
            return sorted(name for name, known in self._topics.items() if not is_deleted_topic_placeholder(known))

    def grow_topic(self, topic: str, partitions: int) -> None:
        with self._lock_while_open():
            known = self._require_topic(topic)
            self._topics[topic] = replace(known, partitions=max(known.partitions, partitions))

    def seal_topic(self, topic: str) -> None:
        with self._lock_while_open():
            self._topics[topic] = replace(self._require_topic(topic), sealed=True)
            self._numbers[change_bucket(TOPICS_KIND, topic)] += 1

    def create_next_topic(self, topic: str, next_topic: str, begun_after_gaps: Sequence[str]) -> None:
        with self._lock_while_open():
            known = self._require_topic(topic)
            there = self._topics.setdefault(next_topic, continuing_topic(topic, known, begun_after_gaps))
            self._topics[topic] = replace(known, continued_in=next_topic)
            self._topics[next_topic] = with_changes_of_continued_topic(known, there)
            self._numbers[change_bucket(TOPICS_KIND, topic)] += 1

    def delete_topic(self, topic: str) -> None:
        with self._lock_while_open():
            gone = self._topics.pop(topic, None)
            if gone is not None and gone.continued_in in self._topics:
                self._topics[topic] = placeholder_of_deleted_topic(gone)
            elif gone is not None:
                self._remove_topic_placeholders(gone.continues)
            self._numbers[change_bucket(TOPICS_KIND, topic)] += 1
            for partition in [partition for partition in self._partitions if partition[0] == topic]:
                del self._partitions[partition]

    def change_counters(self) -> ChangeCounters:
        with self._lock_while_open():
            return ChangeCounters(dict(self._numbers))

    def index_heads(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, IndexHead]:
        with self._lock_while_open():
            return {partition: self._index_of_partition(partition).head for partition in partitions}

    def advance_head(
        self, topic: str, partition: int, expected_revision: int, head: IndexHead, segment: IndexSegment | None
    ) -> bool:
        with self._lock_while_open():
            there = self._partitions.setdefault((topic, partition), _PartitionIndex())
            # Two indexers may read the same records. Both start from the same head, so the one that writes second is
            # refused.
            if there.head.revision != expected_revision:
                return False
            there.head = replace(head, revision=expected_revision + 1)
            if segment is not None:
                there.segments.append(segment)
            return True

    def segment_at_or_before(self, topic: str, partition: int, offset: int) -> IndexSegment | None:
        with self._lock_while_open():
            segments = self._index_of_partition((topic, partition)).segments
            at = bisect_right(segments, offset, key=_first_offset)
            return segments[at - 1] if at else None

    def segments_from(self, topic: str, partition: int, start: int, limit: int) -> Sequence[IndexSegment]:
        with self._lock_while_open():
            segments = self._index_of_partition((topic, partition)).segments
            at = bisect_left(segments, start, key=_first_offset)
            return segments[at : at + limit]

    def replace_segments(self, topic: str, partition: int, segments: Sequence[IndexSegment], end: int) -> None:
        with self._lock_while_open():
            there = self._index_of_partition((topic, partition)).segments
            first = bisect_left(there, segments[0].first_offset, key=_first_offset)
            there[first : bisect_left(there, end, key=_first_offset)] = segments

    def drop_segments_before(self, topic: str, partition: int, oldest_offset: int) -> Sequence[ArchiveLocation]:
        with self._lock_while_open():
            known = self._require_topic(topic)
            # If two threads trim, the later one does not move the oldest offset back.
            grown = max(oldest_offset, known.oldest.get(partition, 0))
            self._topics[topic] = replace(known, oldest={**known.oldest, partition: grown})
            there = self._index_of_partition((topic, partition)).segments
            gone = [segment for segment in there if segment.end_offset <= grown]
            del there[: len(gone)]
            return [segment.location for segment in gone if segment.location]

    def set_compacted_until(self, topic: str, partition: int, offset: int) -> None:
        with self._lock_while_open():
            known = self._require_topic(topic)
            grown = max(offset, known.compacted.get(partition, 0))
            self._topics[topic] = replace(known, compacted={**known.compacted, partition: grown})

    def referenced_archive_keys(self) -> Collection[str]:
        with self._lock_while_open():
            there = [
                segment
                for (topic, _), each in self._partitions.items()
                if topic in self._topics
                for segment in each.segments
            ]
        return {segment.location.key for segment in there if segment.location}

    def claim(self, name: str, owner: str, seconds: float) -> bool:
        now = time.monotonic()
        with self._lock_while_open():
            # All threads share one clock, and a claim is checked and changed in one step, so two owners cannot both
            # have it.
            holder, until = self._claims.get(name, (owner, now))
            if holder != owner and now < until <= latest_plausible_expiry(now, seconds):
                return False
            self._claims[name] = (owner, now + seconds)
            return True

    def release_claim(self, name: str, owner: str) -> None:
        with self._lock_while_open():
            # A slow owner may have lost the claim to another owner, which keeps it.
            if self._claims.get(name, ("", 0.0))[0] == owner:
                del self._claims[name]

    def shard_progresses(self, stream: str) -> Mapping[str, ShardProgress]:
        with self._lock_while_open():
            return {shard: progress for (of, shard), progress in self._progress.items() if of == stream}

    def advance_shard_progress(self, stream: str, shard: str, progress: ShardProgress) -> None:
        with self._lock_while_open():
            known = self._progress.get((stream, shard), progress)
            self._progress[stream, shard] = max(progress, known, key=shard_progress_text)

    def close(self) -> None:
        with self._lock:
            self._closed = True

    @contextmanager
    def _lock_while_open(self) -> Iterator[None]:
        with self._lock:
            if self._closed:
                raise Unavailable("The log index is closed.")
            yield

    def _require_topic(self, topic: str) -> Topic:
        if topic not in self._topics:
            raise UnknownTopic(topic)
        return self._topics[topic]

    def _remove_topic_placeholders(self, topic: str | None) -> None:
        while topic in self._topics and is_deleted_topic_placeholder(self._topics[topic]):
            topic = self._topics.pop(topic).continues

    def _index_of_partition(self, partition: TopicPartition) -> _PartitionIndex:
        return self._partitions.get(partition) or _PartitionIndex()


def _first_offset(segment: IndexSegment) -> int:
    return segment.first_offset

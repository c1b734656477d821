"""Registry, log index and coordination in memory: dictionaries under a lock. They do not survive the process."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import islice, takewhile
from uuid import uuid4

from msgspec import Struct, field
from msgspec.structs import replace

from nakadi.engines.common.assignments import (
    PositionsByPartition,
    commit_report,
    commit_result,
    offset_after_change,
    owner_sessions_of_changed_offsets,
    parking_result,
    partition_to_park_in,
    with_next_revision,
)
from nakadi.engines.common.callbacks import SubscriptionListener, SubscriptionListeners
from nakadi.engines.common.documents import (
    changed_buckets,
    check_changes_of_one_write,
    continuing_topic,
    document_after_change,
    document_from_json,
    document_json,
    is_deleted_topic_placeholder,
    latest_plausible_expiry,
    placeholder_of_deleted_topic,
    shard_progress_text,
    with_changes_of_continued_topic,
)
from nakadi.model.event_type import Position
from nakadi.model.events import TopicPartition
from nakadi.model.log_index import ArchiveLocation, IndexHead, IndexSegment, ShardProgress, Topic
from nakadi.model.outcomes import Unavailable
from nakadi.model.subscription import (
    EMPTY_ASSIGNMENT,
    Assignment,
    CommitResult,
    CommittedOffset,
    EventTypePartition,
    ParkedEvent,
    ParkedEventInfo,
    SubscriptionChange,
)
from nakadi.ports.coordination import AssignmentChanged, CommitResultByPartition
from nakadi.ports.event_log import UnknownTopic
from nakadi.ports.log_index import TOPICS_KIND
from nakadi.ports.registry import (
    ABSENT_REVISION,
    ChangeCounters,
    Document,
    DocumentChange,
    RemoveDocument,
    change_bucket,
)

# Registry -------------------------------------------------------------------------------------------------------------


class _DocumentsOfKind(Struct):
    """Revision and text of documents: a caller may change the document it got without changing the stored one."""

    revision_and_json_by_key: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    sorted_keys: list[str] = field(default_factory=list)

    def revision(self, key: str) -> int:
        return self.revision_and_json_by_key[key][0] if key in self.revision_and_json_by_key else ABSENT_REVISION

    def put(self, key: str, revision: int, entry: bytes) -> None:
        if key not in self.revision_and_json_by_key:
            insort(self.sorted_keys, key)
        self.revision_and_json_by_key[key] = (revision, entry)

    def remove(self, key: str) -> None:
        if self.revision_and_json_by_key.pop(key, None):
            del self.sorted_keys[bisect_left(self.sorted_keys, key)]

    def keys_from(self, prefix: str, after: str) -> Iterator[str]:
        start = max(bisect_left(self.sorted_keys, prefix), bisect_right(self.sorted_keys, after))
        return takewhile(lambda key: key.startswith(prefix), islice(self.sorted_keys, start, None))


class MemoryRegistry:
    """Nothing of it survives the process.

    Each call holds the lock from its first look to its last change, which is what a transaction is elsewhere. Entries
    are bytes, which never change: so they are read into documents without it, and no caller holds up another by that.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: defaultdict[str, _DocumentsOfKind] = defaultdict(_DocumentsOfKind)
        self._numbers: Counter[int] = Counter()
        self._closed = False

    def get(self, kind: str, key: str) -> Document | None:
        with self._lock_while_open() as kinds:
            found = kinds[kind].revision_and_json_by_key.get(key)
        return document_from_json(found[1]) if found else None

    def list(self, kind: str, *, prefix: str = "", after: str = "", limit: int | None = None) -> Sequence[Document]:
        with self._lock_while_open() as kinds:
            kept = kinds[kind]
            found = [kept.revision_and_json_by_key[key][1] for key in islice(kept.keys_from(prefix, after), limit)]
        return [document_from_json(entry) for entry in found]

    def write(self, *changes: DocumentChange) -> None:
        check_changes_of_one_write(changes)
        with self._lock_while_open() as kinds:
            # All are judged before the first is made: of two writers that expect the same revision the second finds
            # another one, and leaves nothing behind.
            outcomes = [document_after_change(change, kinds[change.kind].revision(change.key)) for change in changes]
            entries = [document_json(document) if document else b"" for document in outcomes]
            for change, document, entry in zip(changes, outcomes, entries, strict=True):
                if document is not None:
                    kinds[change.kind].put(change.key, document.revision, entry)
                elif isinstance(change, RemoveDocument):
                    kinds[change.kind].remove(change.key)
            self._numbers.update(changed_buckets(changes))

    def change_counters(self) -> ChangeCounters:
        with self._lock_while_open():
            return ChangeCounters(dict(self._numbers))

    def close(self) -> None:
        with self._lock:
            self._closed = True

    @contextmanager
    def _lock_while_open(self) -> Iterator[dict[str, _DocumentsOfKind]]:
        with self._lock:
            if self._closed:
                raise Unavailable("The registry is closed.")
            yield self._kinds


# Log index ------------------------------------------------------------------------------------------------------------


class _PartitionIndex(Struct):
    head: IndexHead = field(default_factory=IndexHead)
    segments: list[IndexSegment] = field(default_factory=list)


class MemoryLogIndex:
    """What it hands out is frozen, or a copy: it stays as it was at one moment, whatever other threads change."""

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
            # Two indexers may read the same records. Both began at the same head, and the second is refused.
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
            # Of two threads that trim, the one that is late takes nothing back.
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
            # One clock for all threads of a process, and a look and a change in one step: two cannot both have it.
            holder, until = self._claims.get(name, (owner, now))
            if holder != owner and now < until <= latest_plausible_expiry(now, seconds):
                return False
            self._claims[name] = (owner, now + seconds)
            return True

    def release_claim(self, name: str, owner: str) -> None:
        with self._lock_while_open():
            # An owner that was slow may have lost it to another by now, which keeps it.
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


# Coordination ---------------------------------------------------------------------------------------------------------


class _SubscriptionState(Struct):
    assignment: Assignment = EMPTY_ASSIGNMENT
    offsets: dict[EventTypePartition, CommittedOffset] = field(default_factory=dict)
    parked_events: dict[tuple[EventTypePartition, Position], ParkedEvent] = field(default_factory=dict)


class MemoryCoordination:
    """Nothing of it survives the process.

    The lock is what a transaction is elsewhere: what was read under it is true until it is released. Listeners are
    called without it, since they may ask for the new state at once. So two changes may be reported in the other order
    than they were made, which is harmless: a report says what to read again, or how far a session has committed, which
    only grows.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, _SubscriptionState] = {}
        self._leases: dict[str, datetime] = {}
        self._listeners = SubscriptionListeners()
        self._closed = False

    def assignment(self, subscription: str) -> Assignment:
        with self._lock_while_open():
            return self._state_of(subscription).assignment

    def replace_assignment(
        self,
        subscription: str,
        old: Assignment,
        new: Assignment,
        now: datetime,
        positions: PositionsByPartition | None = None,
    ) -> Assignment:
        positions = positions or {}
        touched = owner_sessions_of_changed_offsets(old, new, positions)
        with self._lock_while_open():
            kept = self._state_of(subscription)
            # Two sessions that rebalance at the same time have read the same revision: the second one reads again.
            if kept.assignment.revision != old.revision:
                raise AssignmentChanged(subscription)
            kept.assignment = with_next_revision(old, new)
            for partition, owner in touched.items():
                kept.offsets[partition] = offset_after_change(
                    kept.offsets.get(partition), owner, positions.get(partition), now
                )
            self._kept[subscription] = kept
            stored = kept.assignment
        self._listeners.notify_listeners(subscription, SubscriptionChange.ASSIGNMENT)
        return stored

    def committed_offsets(self, subscription: str) -> Mapping[EventTypePartition, CommittedOffset]:
        with self._lock_while_open():
            return dict(self._state_of(subscription).offsets)

    async def commit(
        self, subscription: str, session: str, positions: PositionsByPartition, now: datetime
    ) -> CommitResultByPartition:
        with self._lock_while_open():
            offsets = self._state_of(subscription).offsets
            # The owner and the position are compared in the step that moves the offset: a partition that was handed
            # over meanwhile is not its session's any more, and an offset never goes back.
            verdicts = {
                partition: commit_result(offsets.get(partition), session, at) for partition, at in positions.items()
            }
            for partition, found in verdicts.items():
                if found is CommitResult.COMMITTED:
                    offsets[partition] = replace(offsets[partition], position=positions[partition], changed_at=now)
        if committed := commit_report(session, positions, verdicts):
            self._listeners.notify_listeners(subscription, committed)
        return verdicts

    def park_events(
        self,
        subscription: str,
        session: str,
        events: Sequence[ParkedEvent],
        now: datetime,
        commit_to: Position | None = None,
    ) -> CommitResult:
        partition = partition_to_park_in(events)
        with self._lock_while_open():
            kept = self._state_of(subscription)
            found = parking_result(kept.offsets.get(partition), session, commit_to)
            if found is CommitResult.COMMITTED:
                kept.parked_events.update({(partition, each.parked.position): each for each in events})
                if commit_to is not None:
                    kept.offsets[partition] = replace(kept.offsets[partition], position=commit_to, changed_at=now)
        if found is CommitResult.COMMITTED:
            self._listeners.notify_listeners(subscription, SubscriptionChange.OFFSETS)
        return found

    def list_parked_events(
        self,
        subscription: str,
        *,
        partition: EventTypePartition | None = None,
        after: tuple[EventTypePartition, Position] | None = None,
        limit: int = 1000,
    ) -> Sequence[ParkedEventInfo]:
        with self._lock_while_open():
            lot = self._state_of(subscription).parked_events
            wanted = sorted(
                each for each in lot if (partition is None or each[0] == partition) and (after is None or each > after)
            )
            return [lot[each].parked for each in wanted[:limit]]

    def parked_event_value(self, subscription: str, partition: EventTypePartition, position: Position) -> bytes | None:
        with self._lock_while_open():
            found = self._state_of(subscription).parked_events.get((partition, position))
        return None if found is None else found.value

    def remove_parked_events(
        self, subscription: str, partition: EventTypePartition, positions: Collection[Position]
    ) -> None:
        with self._lock_while_open():
            lot = self._state_of(subscription).parked_events
            for position in positions:
                # Another thread may have removed it: both wanted that.
                lot.pop((partition, position), None)

    def remove_subscription_state(self, subscription: str) -> None:
        with self._lock_while_open():
            # A commit that comes behind this finds no offset, and a session that joins behind it begins a new state,
            # which it removes when it finds its subscription gone.
            self._kept.pop(subscription, None)
        self._listeners.notify_listeners(subscription, SubscriptionChange.ASSIGNMENT)

    def renew_lease(self, holder: str, until: datetime) -> None:
        with self._lock_while_open():
            self._leases[holder] = until

    def release_lease(self, holder: str) -> None:
        with self._lock_while_open():
            self._leases.pop(holder, None)

    def lease_expiries(self) -> Mapping[str, datetime]:
        with self._lock_while_open():
            return dict(self._leases)

    def add_change_listener(self, subscription: str, on_change: SubscriptionListener) -> Callable[[], None]:
        with self._lock_while_open():
            return self._listeners.add_listener(subscription, on_change)

    def close(self) -> None:
        with self._lock:
            self._closed = True

    def _state_of(self, subscription: str) -> _SubscriptionState:
        return self._kept.get(subscription) or _SubscriptionState()

    @contextmanager
    def _lock_while_open(self) -> Iterator[None]:
        with self._lock:
            if self._closed:
                raise Unavailable("The coordination is closed.")
            yield

"""The event log in memory: lists under a lock, with the promises of the port and no others."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import takewhile
from operator import attrgetter

from msgspec import Struct, field

from nakadi.engines.common.callbacks import PartitionListeners
from nakadi.engines.common.duplicates import (
    PlacesByPartition,
    fates_with_duplicates,
    without_duplicates,
)
from nakadi.model.events import (
    AppendResult,
    AppendStored,
    EventPlace,
    EventSlice,
    OffsetBounds,
    Record,
    StoredEvent,
    indices_within_partitions,
)
from nakadi.model.outcomes import Unavailable
from nakadi.ports.clock import Clock
from nakadi.ports.deduplication import EventIds, unpack_eids
from nakadi.ports.event_log import OffsetUnavailable, SealedTopic, UnknownTopic

_GET_OFFSET = attrgetter("offset")
_GET_STORED_AT = attrgetter("stored_at")

EARLIEST_TIME = datetime.min.replace(tzinfo=UTC)


class _PartitionEvents(Struct):
    events: list[StoredEvent] = field(default_factory=list)
    oldest_offset: int = 0
    next_offset: int = 0
    latest_stored_at: datetime = EARLIEST_TIME

    def append(self, records: Sequence[Record], now: datetime) -> None:
        self.latest_stored_at = max(now, self.latest_stored_at)
        for record in records:
            self.events.append(StoredEvent(self.next_offset, record, self.latest_stored_at))
            self.next_offset += 1

    def events_stored_before(self, moment: datetime) -> list[StoredEvent]:
        return self.events[: bisect_left(self.events, moment, key=_GET_STORED_AT)]

    def read_slice(self, start: int, limit: int, max_bytes: int) -> EventSlice:
        if not self.oldest_offset <= start <= self.next_offset:
            raise OffsetUnavailable(f"{start} is not between {self.oldest_offset} and {self.next_offset}")
        index = bisect_left(self.events, start, key=_GET_OFFSET)
        found = self.events[index : index + max(limit, 1)]
        total = 0
        for count, event in enumerate(found):
            total += len(event.record.value or b"")
            # At least one event is returned, however long it is.
            if total > max_bytes and count:
                del found[count:]
                break
        following = found[-1].offset + 1 if found else self.next_offset
        return EventSlice(tuple(found), following, following == self.next_offset)

    def first_offset_since(self, moment: datetime) -> int:
        index = len(self.events_stored_before(moment))
        return self.events[index].offset if index < len(self.events) else self.next_offset

    def trim(self, stored_before: datetime) -> None:
        self.oldest_offset = max(self.oldest_offset, self.first_offset_since(stored_before))
        del self.events[: len(self.events_stored_before(stored_before))]

    def compact(self, stored_before: datetime, tombstones_before: datetime) -> None:
        before = self.events_stored_before(stored_before)
        newest = {event.record.key: event.offset for event in before}

        def is_kept(event: StoredEvent) -> bool:
            key = event.record.key
            if key is None or event.offset == self.next_offset - 1:
                return True
            expired = event.record.value is None and event.stored_at < tombstones_before
            return newest[key] == event.offset and not expired

        self.events[: len(before)] = filter(is_kept, before)


class _RememberedEid(Struct, frozen=True):
    place: EventPlace
    stored_at: datetime
    expires_at: datetime


class _MemoryTopic(Struct):
    partitions: list[_PartitionEvents]
    sealed: bool = False


class MemoryLog:
    """An event log in memory, which ends with the process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._topics: dict[str, _MemoryTopic] = {}
        # The ids of events by scope, in the order of the appends.
        self._eids: dict[str, dict[bytes, _RememberedEid]] = {}
        self._announcements = PartitionListeners()
        self._closed = False

    def create_topic(self, topic: str, partitions: int) -> None:
        with self._lock:
            self._check_open()
            if topic not in self._topics:
                self._topics[topic] = _MemoryTopic([_PartitionEvents() for _ in range(partitions)])

    def add_partitions(self, topic: str, partitions: int) -> None:
        with self._lock:
            present = self._require_topic(topic).partitions
            present.extend(_PartitionEvents() for _ in range(partitions - len(present)))

    def seal_topic(self, topic: str) -> None:
        with self._lock:
            self._require_topic(topic).sealed = True

    def delete_topic(self, topic: str) -> None:
        with self._lock:
            self._check_open()
            self._topics.pop(topic, None)

    async def append(self, topic: str, batches: Mapping[int, Sequence[Record]]) -> Mapping[int, AppendResult]:
        with self._lock:
            found, now = self._require_open_partitions(topic, batches), self._clock.now()
            for number, records in batches.items():
                found.partitions[number].append(records, now)
        # Listeners are called without the lock, because they may read.
        for number in batches:
            self._announcements.announce_events(topic, number)
        return dict.fromkeys(batches, AppendStored())

    async def append_once(
        self, topic: str, batches: Mapping[int, Sequence[Record]], ids: EventIds
    ) -> Mapping[int, AppendResult]:
        with self._lock:
            found, now = self._require_open_partitions(topic, batches), self._clock.now()
            next_offsets = {number: found.partitions[number].next_offset for number in batches}
            duplicates = self._remember_eids(ids, next_offsets, now)
            stored = without_duplicates(batches, duplicates)
            for number, records in stored.items():
                found.partitions[number].append(records, now)
        for number in stored:
            self._announcements.announce_events(topic, number)
        return fates_with_duplicates(batches, duplicates)

    def read(
        self,
        topic: str,
        partition: int,
        start: int,
        *,
        limit: int = 1000,
        max_bytes: int = 4_000_000,
        wait: float = 0.0,
    ) -> EventSlice:
        with self._lock:
            found = self._require_partition(topic, partition).read_slice(start, limit, max_bytes)
        if found.events or wait <= 0:
            return found
        read_again = partial(self.read, topic, partition, start, limit=limit, max_bytes=max_bytes)
        return self._announcements.wait_for_events(topic, partition, read_again, wait)

    def bounds(self, topic: str, partitions: Sequence[int]) -> Mapping[int, OffsetBounds]:
        with self._lock:
            self._require_topic(topic)
            found = {number: self._require_partition(topic, number) for number in partitions}
            return {
                number: OffsetBounds(partition.oldest_offset, partition.next_offset)
                for number, partition in found.items()
            }

    def first_offset_since(self, topic: str, partition: int, moment: datetime) -> int:
        with self._lock:
            return self._require_partition(topic, partition).first_offset_since(moment)

    def trim(self, topic: str, partition: int, stored_before: datetime) -> None:
        with self._lock:
            self._require_partition(topic, partition).trim(stored_before)

    def compact(self, topic: str, partition: int, *, stored_before: datetime, tombstones_before: datetime) -> None:
        with self._lock:
            self._require_partition(topic, partition).compact(stored_before, tombstones_before)

    def add_change_listener(self, on_change: Callable[[str, int], None]) -> Callable[[], None]:
        with self._lock:
            self._check_open()
            return self._announcements.add_change_listener(on_change)

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._announcements.wake_waiting_readers()

    # While holding the lock

    def _require_open_partitions(self, topic: str, partitions: Iterable[int]) -> _MemoryTopic:
        found = self._topics.get(topic)
        if found is None or found.sealed or self._closed:
            raise self._append_refusal_error(topic)
        # All partitions are checked before anything is stored in one of them.
        for number in partitions:
            if not 0 <= number < len(found.partitions):
                raise _unknown_partition_error(topic, number)
        return found

    def _remember_eids(self, ids: EventIds, next_offsets: dict[int, int], now: datetime) -> PlacesByPartition:
        """Remember the new ids, each with the offset that its event will get; return the places of the first events
        with the other ids.
        """
        self._forget_expired_eids(now)
        remembered = self._eids.setdefault(ids.scope, {})
        duplicates: dict[int, dict[int, EventPlace]] = {}
        for eid, partition, index in zip(
            unpack_eids(ids.packed_eids), ids.partitions, indices_within_partitions(ids.partitions), strict=True
        ):
            if partition not in next_offsets:
                continue
            first = remembered.get(eid)
            if first is not None and now - first.stored_at < ids.window:
                duplicates.setdefault(partition, {})[index] = first.place
                continue
            place = EventPlace(ids.timeline, partition, next_offsets[partition])
            remembered.pop(eid, None)  # so that the newest id comes last
            remembered[eid] = _RememberedEid(place, now, now + ids.window)
            next_offsets[partition] += 1
        return duplicates

    def _forget_expired_eids(self, now: datetime) -> None:
        for scope, remembered in tuple(self._eids.items()):
            for eid in tuple(takewhile(lambda eid: remembered[eid].expires_at <= now, remembered)):  # noqa: B023
                del remembered[eid]
            if not remembered:
                del self._eids[scope]

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("The event log is closed.")

    def _require_topic(self, topic: str) -> _MemoryTopic:
        found = self._topics.get(topic)
        if found is None or self._closed:
            self._check_open()
            raise UnknownTopic(topic)
        return found

    def _append_refusal_error(self, topic: str) -> Exception:
        self._check_open()
        return SealedTopic(topic) if topic in self._topics else UnknownTopic(topic)

    def _require_partition(self, topic: str, partition: int) -> _PartitionEvents:
        partitions = self._require_topic(topic).partitions
        if not 0 <= partition < len(partitions):
            raise _unknown_partition_error(topic, partition)
        return partitions[partition]


def _unknown_partition_error(topic: str, partition: int) -> UnknownTopic:
    return UnknownTopic(f"{topic} has no partition {partition}")

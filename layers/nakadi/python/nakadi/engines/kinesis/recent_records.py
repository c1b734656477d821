"""The newest records of all partitions, kept in memory up to a number of bytes."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile

from msgspec import Struct, field

from nakadi.engines.kinesis import envelopes
from nakadi.engines.kinesis.frames import Frame
from nakadi.engines.kinesis.numbering import ArrivedRecord, state_after_record
from nakadi.model.log_index import IndexingState, RecordPosition

RECORD_OVERHEAD_BYTES = 250
"""About how many bytes of memory a record takes besides its own bytes."""

RankOf = Callable[[RecordPosition | None], tuple[int, int]]


class RecordNumberer:
    """Numbers one partition's records, and assembles frames that arrived in parts."""

    def __init__(self, start: IndexingState, parts: Mapping[RecordPosition, bytes]) -> None:
        self.state = start
        self._parts = dict(parts)

    def number_record(self, record: ArrivedRecord) -> Frame:
        envelope = envelopes.parse_envelope(record.data)
        self.state, numbered = state_after_record(self.state, record, envelope)
        if envelope is not None and envelope.kind == envelopes.FRAME_PART:
            self._parts[record.position] = envelope.frame
        frame = Frame(self.state.next_offset, 0, self.state.latest_stored_at, b"")
        if numbered is not None and envelope is not None:
            earlier = numbered.record_positions[:-1]
            is_incomplete = any(mark not in self._parts for mark in earlier)
            content = b"" if is_incomplete else b"".join([self._parts[mark] for mark in earlier]) + envelope.frame
            frame = Frame(numbered.first_offset, numbered.event_count, numbered.stored_at, content, is_incomplete)
        if self._parts:
            expected = {part.position for part in self.state.unfinished_parts}
            self._parts = {mark: part for mark, part in self._parts.items() if mark in expected}
        return frame


class PartitionRecords(Struct):
    """The records of one partition: raw records while `numberer` is None, frames afterwards.

    `last_evicted_position` is the last record that was removed. `topic` is the topic for which the records are
    numbered.
    """

    records: deque[ArrivedRecord] = field(default_factory=deque)
    frames: list[Frame] = field(default_factory=list)
    dropped_frame_count: int = 0
    numberer: RecordNumberer | None = None
    last_evicted_position: RecordPosition | None = None
    topic: str = ""

    def numberer_for(self, topic: str) -> RecordNumberer | None:
        return self.numberer if self.topic == topic else None


class RecentRecords:
    """The recent records of a stream, by partition. One lock protects everything, and nothing waits while holding
    it.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._recent_records: dict[str, PartitionRecords] = {}
        self._order: deque[tuple[PartitionRecords, int]] = deque()
        self._bytes = 0

    def add_records(self, records: Iterable[ArrivedRecord], rank: RankOf) -> set[str]:
        """Add records, each after the earlier ones of its partition. Returns the numbered partitions."""
        changed: set[str] = set()
        with self._lock:
            for record in records:
                partition_records = self._recent_records.setdefault(record.partition_key, PartitionRecords())
                if partition_records.numberer is None:
                    partition_records.records.append(record)
                    self._add_to_size(partition_records, len(record.data))
                elif rank(record.position) > rank(partition_records.numberer.state.last_position):
                    frame = partition_records.numberer.number_record(record)
                    partition_records.frames.append(frame)
                    self._add_to_size(partition_records, len(frame.content))
                changed.add(record.partition_key)
            self._evict_oldest()
        return changed

    def numbering_state(self, key: str, topic: str) -> IndexingState | None:
        with self._lock:
            partition_records = self._recent_records.get(key)
            counter = partition_records.numberer_for(topic) if partition_records else None
            return counter.state if counter else None

    def last_evicted_position(self, key: str) -> RecordPosition | None:
        with self._lock:
            partition_records = self._recent_records.get(key)
            return partition_records.last_evicted_position if partition_records else None

    def start_numbering(
        self, key: str, topic: str, start: IndexingState, parts: Mapping[RecordPosition, bytes], rank: RankOf
    ) -> bool:
        """Number a partition from a known position. Returns False if records after it are no longer in memory."""
        with self._lock:
            partition_records = self._recent_records.setdefault(key, PartitionRecords())
            if partition_records.numberer_for(topic) is not None:
                return True
            if partition_records.numberer is not None:
                # The partition has frames of the earlier topic. From now on, its records are kept for the new topic.
                partition_records = self._recent_records[key] = PartitionRecords(
                    last_evicted_position=partition_records.numberer.state.last_position
                )
            if rank(partition_records.last_evicted_position) > rank(start.last_position):
                return False
            partition_records.numberer, partition_records.topic = RecordNumberer(start, parts), topic
            for record in partition_records.records:
                partition_records.frames.append(self._number_record_once(partition_records.numberer, record, rank))
            partition_records.records.clear()
            return True

    def frames_from(self, key: str, topic: str, start: int, limit: int, max_bytes: int) -> Sequence[Frame] | None:
        """The frames from that with the offset `start` on; None if that frame is not in memory."""
        with self._lock:
            partition_records = self._recent_records.get(key)
            if (
                partition_records is None
                or partition_records.numberer_for(topic) is None
                or start < self._first_offset(partition_records)
            ):
                return None
            at = bisect_right(partition_records.frames, start, lo=partition_records.dropped_frame_count, key=_frame_end)
            frame_limit = _FrameLimit(limit + start, max_bytes)
            return list(takewhile(frame_limit.take_if_fits, partition_records.frames[at : at + limit + 1]))

    def first_offset(self, key: str, topic: str) -> int:
        with self._lock:
            partition_records = self._recent_records.get(key)
            return (
                self._first_offset(partition_records)
                if partition_records and partition_records.numberer_for(topic)
                else 0
            )

    def all_frames_of_partition(self, key: str, topic: str) -> Sequence[Frame]:
        with self._lock:
            partition_records = self._recent_records.get(key)
            return (
                partition_records.frames[partition_records.dropped_frame_count :]
                if partition_records and partition_records.numberer_for(topic)
                else []
            )

    def _first_offset(self, partition_records: PartitionRecords) -> int:
        assert partition_records.numberer is not None
        return (
            partition_records.frames[partition_records.dropped_frame_count].first_offset
            if partition_records.dropped_frame_count < len(partition_records.frames)
            else partition_records.numberer.state.next_offset
        )

    def _number_record_once(self, counter: RecordNumberer, record: ArrivedRecord, rank: RankOf) -> Frame:
        if rank(record.position) > rank(counter.state.last_position):
            return counter.number_record(record)
        return Frame(counter.state.next_offset, 0, counter.state.latest_stored_at, b"")

    def _add_to_size(self, partition_records: PartitionRecords, size: int) -> None:
        self._order.append((partition_records, size + RECORD_OVERHEAD_BYTES))
        self._bytes += size + RECORD_OVERHEAD_BYTES

    def _evict_oldest(self) -> None:
        while self._bytes > self._most_bytes and len(self._order) > 1:
            partition_records, size = self._order.popleft()
            self._bytes -= size
            if partition_records.numberer is None:
                partition_records.last_evicted_position = partition_records.records.popleft().position
            else:
                _drop_first_frame(partition_records)


def _drop_first_frame(partition_records: PartitionRecords) -> None:
    partition_records.dropped_frame_count += 1
    if (
        partition_records.dropped_frame_count > 64
        and partition_records.dropped_frame_count > len(partition_records.frames) // 2
    ):
        del partition_records.frames[: partition_records.dropped_frame_count]
        partition_records.dropped_frame_count = 0


class _FrameLimit(Struct):
    """The remaining room for frames, up to an offset and about this many bytes, but always enough for one frame with
    events.
    """

    end_offset: int
    max_bytes: int
    used_bytes: int = 0
    has_events: bool = False

    def take_if_fits(self, frame: Frame) -> bool:
        if self.has_events and (
            frame.first_offset >= self.end_offset or self.used_bytes + len(frame.content) > self.max_bytes
        ):
            return False
        self.used_bytes += len(frame.content)
        self.has_events = self.has_events or frame.event_count > 0
        return True


def _frame_end(frame: Frame) -> int:
    return frame.end_offset

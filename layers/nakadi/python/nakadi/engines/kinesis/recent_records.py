"""Numbering records by partition, and keeping the newest of all partitions in memory, up to a number of bytes."""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from nakadi.engines.common import frames
from nakadi.engines.kinesis import envelopes
from nakadi.engines.kinesis.envelopes import Envelope
from nakadi.model.events import EventSlice, StoredEvent, datetime_from_microseconds
from nakadi.model.log_index import IndexingState, RecordPosition, UnfinishedAppendPart

# Numbering ------------------------------------------------------------------------------------------------------------


ABANDONED_APPEND_AGE_MS = 60_000
"""Between the arrivals of an append's first part and its last. Its publisher gives up long before."""


class ArrivedRecord(NamedTuple):
    """A record as the stream has it; `arrived_at_ms` is when it arrived there, in milliseconds."""

    position: RecordPosition
    partition_key: str
    arrived_at_ms: int
    data: bytes


class NumberedFrame(NamedTuple):
    """A frame with its offsets. Its bytes are those of these records, one after the other."""

    first_offset: int
    event_count: int
    stored_at: int
    record_positions: tuple[RecordPosition, ...]


def state_after_record(
    state: IndexingState, record: ArrivedRecord, envelope: Envelope | None
) -> tuple[IndexingState, NumberedFrame | None]:
    """The partition with this record, which follows all it has counted, and the frame that it completes, if any."""
    if envelope is None or state.sealed_at is not None:
        return replace(state, last_position=record.position), None
    if envelope.kind == envelopes.SEAL:
        return replace(state, last_position=record.position, sealed_at=record.position, unfinished_parts=()), None
    parts = _without_abandoned_parts(state.unfinished_parts, record.arrived_at_ms)
    if envelope.kind == envelopes.WHOLE_FRAME:
        return _state_and_numbered_frame(state, record, envelope, parts, (record.position,))
    return _state_after_frame_part(state, record, envelope, parts)


def _state_after_frame_part(
    state: IndexingState, record: ArrivedRecord, envelope: Envelope, parts: tuple[UnfinishedAppendPart, ...]
) -> tuple[IndexingState, NumberedFrame | None]:
    mine = [part for part in parts if part.append_id == envelope.append_id]
    others = tuple(part for part in parts if part.append_id != envelope.append_id)
    if envelope.part_number != len(mine):
        return replace(state, last_position=record.position, unfinished_parts=parts), None
    if envelope.part_number == envelope.part_count - 1:
        return _state_and_numbered_frame(
            state, record, envelope, others, (*(part.position for part in mine), record.position)
        )
    part = UnfinishedAppendPart(
        envelope.append_id, envelope.part_number, record.position, mine[0].arrived_at if mine else record.arrived_at_ms
    )
    return replace(state, last_position=record.position, unfinished_parts=(*others, *mine, part)), None


def _state_and_numbered_frame(
    state: IndexingState,
    record: ArrivedRecord,
    envelope: Envelope,
    parts: tuple[UnfinishedAppendPart, ...],
    marks: tuple[RecordPosition, ...],
) -> tuple[IndexingState, NumberedFrame]:
    latest = max(state.latest_stored_at, envelope.stored_at)
    counted = IndexingState(
        last_position=record.position,
        next_offset=state.next_offset + envelope.event_count,
        latest_stored_at=latest,
        unfinished_parts=parts,
    )
    return counted, NumberedFrame(state.next_offset, envelope.event_count, latest, marks)


def _without_abandoned_parts(parts: tuple[UnfinishedAppendPart, ...], now: int) -> tuple[UnfinishedAppendPart, ...]:
    return tuple(part for part in parts if now - part.arrived_at <= ABANDONED_APPEND_AGE_MS) if parts else parts


# Recent records -------------------------------------------------------------------------------------------------------


RECORD_OVERHEAD_BYTES = 250
"""Bytes that a record takes beside its own."""

RankOf = Callable[[RecordPosition | None], tuple[int, int]]


class Frame(NamedTuple):
    """Events with their offsets. A record that completes no frame is one without events.

    One that is `is_incomplete` has records that the stream had no more when it was counted.
    """

    first_offset: int
    event_count: int
    stored_at: int
    content: bytes
    is_incomplete: bool = False

    @property
    def end_offset(self) -> int:
        return self.first_offset + self.event_count


class RecordNumberer:
    """Counts one partition's records and puts the frames together that came in parts."""

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
    """One partition's row: records as they came while `numberer` is None, frames afterwards.

    `last_evicted_position` is the last record that is no longer in it. `topic` is the one that it is counted for.
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
    """The recent records of a stream, by partition. All is done at once, under one lock, and none of it waits."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._recent_records: dict[str, PartitionRecords] = {}
        self._order: deque[tuple[PartitionRecords, int]] = deque()
        self._bytes = 0

    def add_records(self, records: Iterable[ArrivedRecord], rank: RankOf) -> set[str]:
        """Add records, each behind those of its partition that came before. The partitions that are counted."""
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
        """Count a partition from a known position. False when records behind it are no longer here."""
        with self._lock:
            partition_records = self._recent_records.setdefault(key, PartitionRecords())
            if partition_records.numberer_for(topic) is not None:
                return True
            if partition_records.numberer is not None:
                # It has frames of the topic before. What comes from here on is kept as records again.
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
        """Frames from the one with offset `start` on; None when that one is not here."""
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
    """Room for frames up to an offset and about so many bytes, though for one with events in any case."""

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


# Frames as events -----------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)


def decode_frame(frame: Frame, start: int = 0) -> list[StoredEvent]:
    """The events of a frame from an offset on. A damaged frame keeps its numbers, and shows nothing."""
    if not frame.event_count:
        return []
    try:
        records = frames.decode(frame.content)
    except Exception:  # bytes that are not ours can fail anywhere, and must not stop the shard
        log.warning("The frame at offset %s cannot be read", frame.first_offset, exc_info=True)
        return []
    moment = datetime_from_microseconds(frame.stored_at)
    numbered = enumerate(records[: frame.event_count], frame.first_offset)
    return [
        StoredEvent(offset, record, moment) for offset, record in numbered if record is not None and offset >= start
    ]


def slice_frames(found: Iterable[Frame], start: int, limit: int, max_bytes: int) -> EventSlice:
    """As many events of these frames as fit, at least one if there is one."""
    events: list[StoredEvent] = []
    following = start
    for frame in found:
        events += decode_frame(frame, start)
        following = max(following, frame.end_offset)
        if len(events) >= limit:
            break
    return slice_events(events, following, limit, max_bytes)


def cut_before(end_offset: int, event_slice: EventSlice) -> EventSlice:
    """What of a slice is before an offset. The archive may have more already than a reader has heard of."""
    if event_slice.next_offset <= end_offset:
        return event_slice
    return EventSlice(tuple(event for event in event_slice.events if event.offset < end_offset), end_offset)


def slice_events(events: Sequence[StoredEvent], next_offset: int, limit: int, max_bytes: int) -> EventSlice:
    """The first of these events that fit; `next_offset` is behind all of them."""
    fitting = _count_fitting(events[: max(limit, 1)], max_bytes)
    if fitting < len(events):
        next_offset = events[fitting - 1].offset + 1
    return EventSlice(tuple(events[:fitting]), next_offset)


def _count_fitting(events: Sequence[StoredEvent], max_bytes: int) -> int:
    total = 0
    for number, event in enumerate(events):
        total += len(event.record.value or b"")
        if number and total > max_bytes:
            return number
    return len(events)

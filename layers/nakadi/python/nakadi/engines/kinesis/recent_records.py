"""Numbering records by partition, and keeping the newest of all partitions in memory, up to so many bytes."""

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
    """A record as the stream has it; `at` is when it arrived there, in milliseconds."""

    mark: RecordPosition
    key: str
    at: int
    data: bytes


class NumberedFrame(NamedTuple):
    """A frame with its offsets. Its bytes are those of these records, one after the other."""

    first: int
    events: int
    stored_at: int
    marks: tuple[RecordPosition, ...]


def state_after_record(
    state: IndexingState, record: ArrivedRecord, envelope: Envelope | None
) -> tuple[IndexingState, NumberedFrame | None]:
    """The partition with this record, which follows all it has counted, and the frame that it completes, if any."""
    if envelope is None or state.sealed_at is not None:
        return replace(state, mark=record.mark), None
    if envelope.kind == envelopes.SEAL:
        return replace(state, mark=record.mark, sealed_at=record.mark, parts=()), None
    parts = _without_abandoned(state.parts, record.at)
    if envelope.kind == envelopes.WHOLE_FRAME:
        return _state_and_numbered_frame(state, record, envelope, parts, (record.mark,))
    return _state_after_frame_part(state, record, envelope, parts)


def _state_after_frame_part(
    state: IndexingState, record: ArrivedRecord, envelope: Envelope, parts: tuple[UnfinishedAppendPart, ...]
) -> tuple[IndexingState, NumberedFrame | None]:
    mine = [part for part in parts if part.append == envelope.append]
    others = tuple(part for part in parts if part.append != envelope.append)
    if envelope.part != len(mine):
        return replace(state, mark=record.mark, parts=parts), None
    if envelope.part == envelope.parts - 1:
        return _state_and_numbered_frame(state, record, envelope, others, (*(part.mark for part in mine), record.mark))
    part = UnfinishedAppendPart(envelope.append, envelope.part, record.mark, mine[0].arrived if mine else record.at)
    return replace(state, mark=record.mark, parts=(*others, *mine, part)), None


def _state_and_numbered_frame(
    state: IndexingState,
    record: ArrivedRecord,
    envelope: Envelope,
    parts: tuple[UnfinishedAppendPart, ...],
    marks: tuple[RecordPosition, ...],
) -> tuple[IndexingState, NumberedFrame]:
    latest = max(state.latest, envelope.stored_at)
    counted = IndexingState(
        mark=record.mark, next_offset=state.next_offset + envelope.events, latest=latest, parts=parts
    )
    return counted, NumberedFrame(state.next_offset, envelope.events, latest, marks)


def _without_abandoned(parts: tuple[UnfinishedAppendPart, ...], now: int) -> tuple[UnfinishedAppendPart, ...]:
    return tuple(part for part in parts if now - part.arrived <= ABANDONED_APPEND_AGE_MS) if parts else parts


# Recent records -------------------------------------------------------------------------------------------------------


RECORD_OVERHEAD_BYTES = 250
"""Bytes that a record takes beside its own."""

RankOf = Callable[[RecordPosition | None], tuple[int, int]]


class Frame(NamedTuple):
    """Events with their offsets. A record that completes no frame is one without events.

    One that is `is_incomplete` has records that the stream had no more when it was counted.
    """

    first: int
    events: int
    stored_at: int
    content: bytes
    is_incomplete: bool = False

    @property
    def end(self) -> int:
        return self.first + self.events


class RecordNumberer:
    """Counts one partition's records and puts the frames together that came in parts."""

    def __init__(self, start: IndexingState, parts: Mapping[RecordPosition, bytes]) -> None:
        self.state = start
        self._parts = dict(parts)

    def count(self, record: ArrivedRecord) -> Frame:
        envelope = envelopes.parse_envelope(record.data)
        self.state, numbered = state_after_record(self.state, record, envelope)
        if envelope is not None and envelope.kind == envelopes.FRAME_PART:
            self._parts[record.mark] = envelope.frame
        frame = Frame(self.state.next_offset, 0, self.state.latest, b"")
        if numbered is not None and envelope is not None:
            earlier = numbered.marks[:-1]
            is_incomplete = any(mark not in self._parts for mark in earlier)
            content = b"" if is_incomplete else b"".join([self._parts[mark] for mark in earlier]) + envelope.frame
            frame = Frame(numbered.first, numbered.events, numbered.stored_at, content, is_incomplete)
        if self._parts:
            expected = {part.mark for part in self.state.parts}
            self._parts = {mark: part for mark, part in self._parts.items() if mark in expected}
        return frame


class PartitionRecords(Struct):
    """One partition's row: records as they came while `counter` is None, frames afterwards.

    `last_forgotten` is the last record that is no longer in it. `topic` is the one that it is counted for.
    """

    records: deque[ArrivedRecord] = field(default_factory=deque)
    frames: list[Frame] = field(default_factory=list)
    dropped: int = 0
    counter: RecordNumberer | None = None
    last_forgotten: RecordPosition | None = None
    topic: str = ""

    def numberer_for(self, topic: str) -> RecordNumberer | None:
        return self.counter if self.topic == topic else None


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
                partition_records = self._recent_records.setdefault(record.key, PartitionRecords())
                if partition_records.counter is None:
                    partition_records.records.append(record)
                    self._add_to_size(partition_records, len(record.data))
                elif rank(record.mark) > rank(partition_records.counter.state.mark):
                    frame = partition_records.counter.count(record)
                    partition_records.frames.append(frame)
                    self._add_to_size(partition_records, len(frame.content))
                changed.add(record.key)
            self._evict_oldest()
        return changed

    def state(self, key: str, topic: str) -> IndexingState | None:
        with self._lock:
            partition_records = self._recent_records.get(key)
            counter = partition_records.numberer_for(topic) if partition_records else None
            return counter.state if counter else None

    def last_forgotten(self, key: str) -> RecordPosition | None:
        with self._lock:
            partition_records = self._recent_records.get(key)
            return partition_records.last_forgotten if partition_records else None

    def start_numbering(
        self, key: str, topic: str, start: IndexingState, parts: Mapping[RecordPosition, bytes], rank: RankOf
    ) -> bool:
        """Count a partition from a known position. False when records behind it are no longer here."""
        with self._lock:
            partition_records = self._recent_records.setdefault(key, PartitionRecords())
            if partition_records.numberer_for(topic) is not None:
                return True
            if partition_records.counter is not None:
                # It has frames of the topic before. What comes from here on is kept as records again.
                partition_records = self._recent_records[key] = PartitionRecords(
                    last_forgotten=partition_records.counter.state.mark
                )
            if rank(partition_records.last_forgotten) > rank(start.mark):
                return False
            partition_records.counter, partition_records.topic = RecordNumberer(start, parts), topic
            for record in partition_records.records:
                partition_records.frames.append(self._number_record_once(partition_records.counter, record, rank))
            partition_records.records.clear()
            return True

    def frames(self, key: str, topic: str, start: int, limit: int, most_bytes: int) -> Sequence[Frame] | None:
        """Frames from the one with offset `start` on; None when that one is not here."""
        with self._lock:
            partition_records = self._recent_records.get(key)
            if (
                partition_records is None
                or partition_records.numberer_for(topic) is None
                or start < self._first_offset(partition_records)
            ):
                return None
            at = bisect_right(partition_records.frames, start, lo=partition_records.dropped, key=_frame_end)
            frame_limit = _FrameLimit(limit + start, most_bytes)
            return list(takewhile(frame_limit.fits, partition_records.frames[at : at + limit + 1]))

    def first_offset(self, key: str, topic: str) -> int:
        with self._lock:
            partition_records = self._recent_records.get(key)
            return (
                self._first_offset(partition_records)
                if partition_records and partition_records.numberer_for(topic)
                else 0
            )

    def all_frames(self, key: str, topic: str) -> Sequence[Frame]:
        with self._lock:
            partition_records = self._recent_records.get(key)
            return (
                partition_records.frames[partition_records.dropped :]
                if partition_records and partition_records.numberer_for(topic)
                else []
            )

    def _first_offset(self, partition_records: PartitionRecords) -> int:
        assert partition_records.counter is not None
        return (
            partition_records.frames[partition_records.dropped].first
            if partition_records.dropped < len(partition_records.frames)
            else partition_records.counter.state.next_offset
        )

    def _number_record_once(self, counter: RecordNumberer, record: ArrivedRecord, rank: RankOf) -> Frame:
        if rank(record.mark) > rank(counter.state.mark):
            return counter.count(record)
        return Frame(counter.state.next_offset, 0, counter.state.latest, b"")

    def _add_to_size(self, partition_records: PartitionRecords, size: int) -> None:
        self._order.append((partition_records, size + RECORD_OVERHEAD_BYTES))
        self._bytes += size + RECORD_OVERHEAD_BYTES

    def _evict_oldest(self) -> None:
        while self._bytes > self._most_bytes and len(self._order) > 1:
            partition_records, size = self._order.popleft()
            self._bytes -= size
            if partition_records.counter is None:
                partition_records.last_forgotten = partition_records.records.popleft().mark
            else:
                _drop_first_frame(partition_records)


def _drop_first_frame(partition_records: PartitionRecords) -> None:
    partition_records.dropped += 1
    if partition_records.dropped > 64 and partition_records.dropped > len(partition_records.frames) // 2:
        del partition_records.frames[: partition_records.dropped]
        partition_records.dropped = 0


class _FrameLimit(Struct):
    """Room for frames up to an offset and about so many bytes, though for one with events in any case."""

    end: int
    most_bytes: int
    used: int = 0
    has_events: bool = False

    def fits(self, frame: Frame) -> bool:
        if self.has_events and (frame.first >= self.end or self.used + len(frame.content) > self.most_bytes):
            return False
        self.used += len(frame.content)
        self.has_events = self.has_events or frame.events > 0
        return True


def _frame_end(frame: Frame) -> int:
    return frame.end


# Frames as events -----------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)


def decode_frame(frame: Frame, start: int = 0) -> list[StoredEvent]:
    """The events of a frame from an offset on. A damaged frame keeps its numbers, and shows nothing."""
    if not frame.events:
        return []
    try:
        records = frames.decode(frame.content)
    except Exception:  # bytes that are not ours can fail anywhere, and must not stop the shard
        log.warning("The frame at offset %s cannot be read", frame.first, exc_info=True)
        return []
    moment = datetime_from_microseconds(frame.stored_at)
    numbered = enumerate(records[: frame.events], frame.first)
    return [
        StoredEvent(offset, record, moment) for offset, record in numbered if record is not None and offset >= start
    ]


def slice_frames(found: Iterable[Frame], start: int, limit: int, max_bytes: int) -> EventSlice:
    """As many events of these frames as fit, at least one if there is one."""
    events: list[StoredEvent] = []
    following = start
    for frame in found:
        events += decode_frame(frame, start)
        following = max(following, frame.end)
        if len(events) >= limit:
            break
    return slice_events(events, following, limit, max_bytes)


def cut_before(end: int, found: EventSlice) -> EventSlice:
    """What of a slice is before an offset. The archive may have more already than a reader has heard of."""
    if found.next_offset <= end:
        return found
    return EventSlice(tuple(event for event in found.events if event.offset < end), end)


def slice_events(events: Sequence[StoredEvent], following: int, limit: int, max_bytes: int) -> EventSlice:
    """The first of these events that fit; `following` is behind all of them."""
    fitting = _count_fitting(events[: max(limit, 1)], max_bytes)
    if fitting < len(events):
        following = events[fitting - 1].offset + 1
    return EventSlice(tuple(events[:fitting]), following)


def _count_fitting(events: Sequence[StoredEvent], max_bytes: int) -> int:
    total = 0
    for number, event in enumerate(events):
        total += len(event.record.value or b"")
        if number and total > max_bytes:
            return number
    return len(events)

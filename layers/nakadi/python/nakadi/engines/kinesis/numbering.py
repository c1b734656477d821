"""Numbers the events of a partition: the stream has no offsets, so readers count events."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from nakadi.engines.kinesis import envelopes
from nakadi.engines.kinesis.envelopes import Envelope
from nakadi.model.log_index import IndexingState, RecordPosition, UnfinishedAppendPart

ABANDONED_APPEND_AGE_MS = 60_000
"""The longest time between the arrivals of an append's first and last part. A publisher gives up much earlier."""


class ArrivedRecord(NamedTuple):
    """A record of the stream; `arrived_at_ms` is when it arrived there, in milliseconds."""

    position: RecordPosition
    partition_key: str
    arrived_at_ms: int
    data: bytes


class NumberedFrame(NamedTuple):
    """A frame with its offsets. Its bytes are in one record, or in several, one after the other."""

    first_offset: int
    event_count: int
    stored_at: int
    record_positions: tuple[RecordPosition, ...]


def state_after_record(
    state: IndexingState, record: ArrivedRecord, envelope: Envelope | None
) -> tuple[IndexingState, NumberedFrame | None]:
    """The state of the partition after its next record, and the frame that the record completes, if any."""
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

"""Puts records into the stream. One call stores the records of several partitions."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from nakadi.engines.common import frames
from nakadi.engines.kinesis import envelopes
from nakadi.engines.kinesis.call_rate import GrowingPauses
from nakadi.engines.kinesis.failures import StreamCallFailed
from nakadi.engines.kinesis.partition_keys import hash_key, partition_key
from nakadi.engines.kinesis.stream import OutgoingRecord, RecordFailure, Stream
from nakadi.model.events import (
    AppendRefused,
    Record,
)
from nakadi.model.log_index import RecordPosition

log = logging.getLogger(__name__)


MAX_RECORD_BYTES = 1_048_576
MAX_PUT_CALL_BYTES = 5_000_000
MAX_PUT_CALL_RECORDS = 500

APPEND_TIMEOUT_SECONDS = 3.0
"""A publisher that waits for a throttled shard occupies one of a limited number of functions, and can retry better than
the broker, so the broker gives up soon. This time is much shorter than that for which a reader waits for the last part
of an append."""

REFUSED_AS_TIMED_OUT = AppendRefused("timed out")
REFUSED_AS_FAILED = AppendRefused("internal error")


class _SendQueue(Struct):
    """The records still to be sent to one partition, in order."""

    records: list[OutgoingRecord]
    outcome: RecordPosition | AppendRefused | None = None
    sent_count: int = 0

    @property
    def next_record(self) -> OutgoingRecord:
        return self.records[self.sent_count]

    def mark_next_as_stored(self, position: RecordPosition) -> None:
        self.sent_count += 1
        if self.sent_count == len(self.records):
            self.outcome = position


class StreamWriter:
    def __init__(
        self, stream: Stream, record_bytes: int = MAX_RECORD_BYTES, give_up_after: float = APPEND_TIMEOUT_SECONDS
    ) -> None:
        self._stream = stream
        self._record_bytes = record_bytes
        self._give_up_after = give_up_after

    def append(
        self, topic: str, batches: Mapping[int, Sequence[Record]], now: int
    ) -> Mapping[int, RecordPosition | AppendRefused]:
        """Append records; return for each partition the place of its last record, or why it may not be stored."""
        queues = {
            number: _SendQueue(self._pack_records(topic, number, batch, now)) for number, batch in batches.items()
        }
        return self._send(queues)

    def seal(self, topic: str, partitions: Sequence[int], now: int) -> Mapping[int, RecordPosition | AppendRefused]:
        data = envelopes.pack_seal(now)
        return self._send({number: _SendQueue([_new_record(topic, number, data)]) for number in partitions})

    def _pack_records(self, topic: str, partition: int, batch: Sequence[Record], now: int) -> list[OutgoingRecord]:
        frame = frames.encode(batch)
        most = self._record_bytes - len(partition_key(topic, partition).encode())
        if len(frame) + envelopes.MAX_HEADER_BYTES <= most:
            pieces = [envelopes.pack_frame(len(batch), now, frame)]
        else:
            pieces = envelopes.pack_parts(len(batch), now, frame, os.urandom(8), most)
        return [_new_record(topic, partition, piece) for piece in pieces]

    def _send(self, queues: Mapping[int, _SendQueue]) -> Mapping[int, RecordPosition | AppendRefused]:
        patience = GrowingPauses(self._give_up_after)
        while waiting := [queue for queue in queues.values() if queue.outcome is None]:
            held_back = [self._send_next_record_of_each(call) for call in _group_into_calls(waiting)]
            if patience.is_over:
                for queue in waiting:
                    queue.outcome = queue.outcome or REFUSED_AS_TIMED_OUT
            elif any(held_back):
                patience.pause()
        return {number: queue.outcome for number, queue in queues.items() if queue.outcome is not None}

    def _send_next_record_of_each(self, queues: Sequence[_SendQueue]) -> bool:
        """Send the next record of each queue, and return whether any queue has to wait before it is sent again."""
        try:
            fates = self._stream.put_records([queue.next_record for queue in queues])
        except StreamCallFailed as trouble:
            if trouble.is_temporary and trouble.had_no_effect:
                return True
            effect = "nothing was stored" if trouble.had_no_effect else "outcome unknown"
            log.warning("Append of %s records failed, %s: %s", len(queues), effect, trouble)
            for queue in queues:
                queue.outcome = REFUSED_AS_FAILED if trouble.had_no_effect else REFUSED_AS_TIMED_OUT
            return False
        for queue, fate in zip(queues, fates, strict=True):
            _apply_put_result(queue, fate)
        return any(isinstance(fate, RecordFailure) and fate.had_no_effect for fate in fates)


def _apply_put_result(queue: _SendQueue, fate: RecordPosition | RecordFailure) -> None:
    if isinstance(fate, RecordPosition):
        queue.mark_next_as_stored(fate)
    elif not fate.had_no_effect:
        log.warning("It is unknown whether a record is stored: %s", fate.reason)
        queue.outcome = REFUSED_AS_FAILED


def _group_into_calls(queues: Sequence[_SendQueue]) -> Iterator[list[_SendQueue]]:
    """Groups of queues whose next records fit into one call."""
    call: list[_SendQueue] = []
    size = 0
    for queue in queues:
        if call and (len(call) == MAX_PUT_CALL_RECORDS or size + queue.next_record.size_bytes > MAX_PUT_CALL_BYTES):
            yield call
            call, size = [], 0
        call.append(queue)
        size += queue.next_record.size_bytes
    if call:
        yield call


def _new_record(topic: str, partition: int, data: bytes) -> OutgoingRecord:
    key = partition_key(topic, partition)
    return OutgoingRecord(key, hash_key(key), data)

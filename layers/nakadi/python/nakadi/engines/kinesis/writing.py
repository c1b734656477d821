"""Writing: a partition's part of an append is one record, or several that follow each other.

What was throttled is sent again, for it was not stored. What failed in another way may have been stored after all: it
is not sent again, so that it is not stored twice by us, and its publisher gets that the outcome is unknown.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from nakadi.engines.common import frames
from nakadi.engines.kinesis import envelopes
from nakadi.engines.kinesis.envelopes import hash_key, partition_key
from nakadi.engines.kinesis.stream import Failure, Outgoing, Patience, Stream, Trouble
from nakadi.model.events import Record, Refused
from nakadi.model.log_index import Mark

RECORD_BYTES = 1_048_576
CALL_BYTES = 5_000_000
CALL_RECORDS = 500

GIVE_UP_AFTER = 3.0
"""Seconds. A publisher that waits for a throttled shard occupies a function meanwhile, and there are only so many of
them; it can try again better than we can. Well below what a reader waits for the last part of an append."""

TIMED_OUT = Refused("timed out")
FAILED = Refused("internal error")

log = logging.getLogger(__name__)


class _Queue(Struct):
    """What is left to be sent to one partition, in its order."""

    records: list[Outgoing]
    fate: Mark | Refused | None = None
    sent: int = 0

    @property
    def following(self) -> Outgoing:
        return self.records[self.sent]

    def stored(self, mark: Mark) -> None:
        self.sent += 1
        if self.sent == len(self.records):
            self.fate = mark


class Writer:
    def __init__(self, stream: Stream, record_bytes: int = RECORD_BYTES, give_up_after: float = GIVE_UP_AFTER) -> None:
        self._stream = stream
        self._record_bytes = record_bytes
        self._give_up_after = give_up_after

    def append(self, topic: str, batches: Mapping[int, Sequence[Record]], now: int) -> Mapping[int, Mark | Refused]:
        """Each partition's fate: where its last record lies, or why it is not known to be stored."""
        queues = {number: _Queue(self._records(topic, number, batch, now)) for number, batch in batches.items()}
        return self._send(queues)

    def seal(self, topic: str, partitions: Sequence[int], now: int) -> Mapping[int, Mark | Refused]:
        data = envelopes.seal(now)
        return self._send({number: _Queue([_outgoing(topic, number, data)]) for number in partitions})

    def _records(self, topic: str, partition: int, batch: Sequence[Record], now: int) -> list[Outgoing]:
        frame = frames.encode(batch)
        most = self._record_bytes - len(partition_key(topic, partition).encode())
        if len(frame) + envelopes.LONGEST_HEAD <= most:
            pieces = [envelopes.whole(len(batch), now, frame)]
        else:
            pieces = envelopes.parts(len(batch), now, frame, os.urandom(8), most)
        return [_outgoing(topic, partition, piece) for piece in pieces]

    def _send(self, queues: Mapping[int, _Queue]) -> Mapping[int, Mark | Refused]:
        patience = Patience(self._give_up_after)
        while waiting := [queue for queue in queues.values() if queue.fate is None]:
            held_back = [self._put(call) for call in _calls(waiting)]
            if patience.over:
                for queue in waiting:
                    queue.fate = queue.fate or TIMED_OUT
            elif any(held_back):
                patience.pause()
        return {number: queue.fate for number, queue in queues.items() if queue.fate is not None}

    def _put(self, call: Sequence[_Queue]) -> bool:
        """Send the next record of each. Whether any has to wait."""
        try:
            fates = self._stream.put([queue.following for queue in call])
        except Trouble as trouble:
            if trouble.passing and trouble.undone:
                return True
            log.warning("Append of %s records failed, outcome unknown: %s", len(call), trouble)
            for queue in call:
                queue.fate = FAILED if trouble.undone else TIMED_OUT
            return False
        for queue, fate in zip(call, fates, strict=True):
            _learn(queue, fate)
        return any(isinstance(fate, Failure) and fate.undone for fate in fates)


def _learn(queue: _Queue, fate: Mark | Failure) -> None:
    if isinstance(fate, Mark):
        queue.stored(fate)
    elif not fate.undone:
        log.warning("A record is not known to be stored: %s", fate.reason)
        queue.fate = FAILED


def _calls(queues: Sequence[_Queue]) -> Iterator[list[_Queue]]:
    """Queues whose next records fit into one call."""
    call: list[_Queue] = []
    size = 0
    for queue in queues:
        if call and (len(call) == CALL_RECORDS or size + queue.following.size > CALL_BYTES):
            yield call
            call, size = [], 0
        call.append(queue)
        size += queue.following.size
    if call:
        yield call


def _outgoing(topic: str, partition: int, data: bytes) -> Outgoing:
    key = partition_key(topic, partition)
    return Outgoing(key, hash_key(key), data)

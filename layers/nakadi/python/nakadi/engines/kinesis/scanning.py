"""Reads a partition from a known position in the stream, for readers at positions that the process no longer has in
memory.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, field

from nakadi.engines.kinesis.call_rate import GrowingPauses
from nakadi.engines.kinesis.continuity import RETRY_TIMEOUT_SECONDS, ShardCursor, ShardTreeCache
from nakadi.engines.kinesis.envelopes import parse_envelope
from nakadi.engines.kinesis.frames import Frame
from nakadi.engines.kinesis.numbering import ArrivedRecord
from nakadi.engines.kinesis.partition_keys import hash_key
from nakadi.engines.kinesis.recent_records import RecordNumberer
from nakadi.engines.kinesis.stream import Stream
from nakadi.model.events import TopicPartition
from nakadi.model.log_index import IndexingState, RecordPosition
from nakadi.model.outcomes import Unavailable

MAX_REMEMBERED_STATES = 1000

YOUNG_RECORD_MAX_AGE_SECONDS = 12 * 3600.0
REMEMBERED_STATE_MAX_AGE_SECONDS = 3600.0
"""How long the end of a scan is remembered. A stream keeps records much longer, for at least a day."""


class NumberingStart(NamedTuple):
    """The state from which numbering begins, and when the first events after it were stored, if that is known."""

    state: IndexingState
    first_stored_at: int | None = None


NO_REMEMBERED_STATE: tuple[float, IndexingState | None] = (float("-inf"), None)


class ScanCache(Struct):
    """The states at the ends of scans, so that the next scan continues there."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _states: OrderedDict[TopicPartition, tuple[float, IndexingState]] = field(default_factory=OrderedDict)

    def state_at(self, key: str, offset: int) -> IndexingState | None:
        with self._lock:
            noted_at, state = self._states.get((key, offset), NO_REMEMBERED_STATE)
            return state if abs(time.time() - noted_at) < REMEMBERED_STATE_MAX_AGE_SECONDS else None

    def remember_state(self, key: str, state: IndexingState) -> None:
        with self._lock:
            self._states[key, state.next_offset] = (time.time(), state)
            self._states.move_to_end((key, state.next_offset))
            if len(self._states) > MAX_REMEMBERED_STATES:
                self._states.popitem(last=False)


class Scanner:
    def __init__(self, stream: Stream, shard_trees: ShardTreeCache) -> None:
        self._stream = stream
        self._shard_trees = shard_trees
        self._remembered = ScanCache()

    def read_unfinished_parts(self, state: IndexingState) -> Mapping[RecordPosition, bytes]:
        """The records of appends that were not complete at this state: the bytes of their frames' parts.

        Parts of an append that was abandoned long ago may be missing, because it will never be completed.
        """
        found = {part.position: self._read_frame_part(part.position) for part in state.unfinished_parts}
        return {mark: frame for mark, frame in found.items() if frame is not None}

    def read_frames(
        self, key: str, start: NumberingStart, offset: int, end_offset: int, max_bytes: int
    ) -> Sequence[Frame]:
        """Frames from the one with `offset` on, up to `end_offset` or about this number of bytes; at least one with
        events.
        """
        near = self._remembered.state_at(key, offset)
        start = NumberingStart(near) if near else start
        found: list[Frame] = []
        size = 0
        for state, last, frame in self._number_records_from(key, start):
            if frame.end_offset > offset:
                found.append(frame)
                size += len(frame.content)
            if found and (size >= max_bytes or frame.end_offset >= end_offset):
                self._remember_if_young(key, state, last)
                return found
        raise Unavailable(f"The stream ends before offset {end_offset} of {key}")

    def _number_records_from(
        self, key: str, start: NumberingStart
    ) -> Iterator[tuple[IndexingState, ArrivedRecord, Frame]]:
        """Number records from a position. Raises if the stream has forgotten some of them, because events would get
        wrong numbers.
        """
        counter = RecordNumberer(start.state, self.read_unfinished_parts(start.state))
        expected = start.first_stored_at
        for record in self.read_records(key, start.state):
            frame = counter.number_record(record)
            if frame.is_incomplete or (frame.event_count and expected not in {None, frame.stored_at}):
                raise Unavailable(f"The stream has forgotten events behind offset {frame.first_offset} of {key}")
            expected = None if frame.event_count else expected
            yield counter.state, record, frame

    def scan_to_record(self, key: str, start: IndexingState, last: RecordPosition) -> IndexingState:
        """The partition's state after a record that is known to exist."""
        counter = RecordNumberer(start, self.read_unfinished_parts(start))
        goal = self._shard_trees.rank(last)
        for record in self.read_records(key, start):
            if self._shard_trees.rank(record.position) > goal:
                return counter.state
            counter.number_record(record)
            if record.position == last:
                return counter.state
        return counter.state

    def _remember_if_young(self, key: str, state: IndexingState, last: ArrivedRecord) -> None:
        """Remember the end of a scan, but only if the stream cannot forget the following records while it is
        remembered.
        """
        if time.time() - last.arrived_at_ms / 1000 < YOUNG_RECORD_MAX_AGE_SECONDS:
            self._remembered.remember_state(key, state)

    def read_records(self, key: str, start: IndexingState) -> Iterator[ArrivedRecord]:
        """The partition's records after a state, up to the current end."""
        patience = GrowingPauses(RETRY_TIMEOUT_SECONDS)
        began_in = start.last_position.shard if start.last_position else None
        chain = self._shard_trees.refresh().shards_covering(hash_key(key))
        chain = chain[chain.index(began_in) :] if began_in in chain else chain
        for shard in chain:
            behind = (
                start.last_position.sequence if start.last_position and shard == start.last_position.shard else None
            )
            cursor = ShardCursor(self._stream, shard, behind)
            while not cursor.ended:
                page = cursor.read(patience)
                yield from (record for record in page.records if record.partition_key == key)
                if page.at_tip and shard == chain[-1]:
                    break

    def _read_frame_part(self, position: RecordPosition) -> bytes | None:
        """The part of a frame in the record at a position; None if the stream has forgotten the record."""
        if position.shard not in self._shard_trees.tree_for_ranking(position):
            return None
        cursor = ShardCursor(self._stream, position.shard, position.sequence, including=True)
        patience = GrowingPauses(RETRY_TIMEOUT_SECONDS)
        while not cursor.ended:
            page = cursor.read(patience, 1)
            for record in page.records:
                envelope = parse_envelope(record.data)
                return envelope.frame if record.position == position and envelope is not None else None
            if page.at_tip:
                return None
            if patience.is_over:
                raise Unavailable(f"The stream does not show record {position.sequence} of {position.shard}")
        return None

"""A reader that survives failures: if a stream reader loses its place, another one takes over."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from nakadi.engines.kinesis.call_rate import GrowingPauses
from nakadi.engines.kinesis.continuity import ShardTreeCache
from nakadi.engines.kinesis.fan_out import FanOut
from nakadi.engines.kinesis.reading import StreamReader
from nakadi.engines.kinesis.tails import LastWrittenRecords, ShardPositionLost
from nakadi.model.events import EventSlice, OffsetBounds
from nakadi.model.log_index import IndexingState, RecordPosition
from nakadi.model.outcomes import Unavailable

log = logging.getLogger(__name__)


T = TypeVar("T")


StreamReaderFactory = Callable[[LastWrittenRecords], StreamReader]


class RestartingReader:
    """Passes calls on to a `StreamReader`, and replaces it if it has lost its place. Every new reader knows which
    records this process has stored.

    `_reader` is replaced as a whole, and read without the lock: a thread that has just read the old reader uses that
    one, which answers correctly or has lost its place.
    """

    def __init__(self, new_reader: StreamReaderFactory, shard_trees: ShardTreeCache) -> None:
        self._new_reader = new_reader
        self._shard_trees = shard_trees
        self._lock = threading.Lock()
        self._last_written = LastWrittenRecords()
        self._reader = new_reader(self._last_written)

    def remember_acknowledged(self, position: RecordPosition) -> None:
        """Remember a record that was acknowledged to a publisher of this process: no later result may lack it."""
        self._last_written.remember_stored(position)

    def read_to_tip(self, shard: str, as_of: float, patience: GrowingPauses) -> bool:
        return self._call_with_restart(lambda reader: reader.tails.read_to_tip(shard, as_of, patience))

    def receive_pushed_records(self, shard: str, fan_out: FanOut, should_stop: Callable[[], bool]) -> bool:
        """Take pushed records as long as this reader is in use."""
        return self._call_with_restart(
            lambda reader: reader.tails.receive_pushed_records(
                shard, fan_out, lambda: should_stop() or self._reader is not reader
            )
        )

    def partition_state(self, topic: str, partition: int, as_of: float | None = None) -> IndexingState:
        return self._call_with_restart(lambda reader: reader.partition_state(topic, partition, as_of))

    def bounds(self, topic: str, partition: int, as_of: float) -> OffsetBounds:
        return self._call_with_restart(lambda reader: reader.bounds(topic, partition, as_of))

    def read_now(self, topic: str, partition: int, start: int, limit: int, max_bytes: int) -> EventSlice:
        return self._call_with_restart(lambda reader: reader.read_now(topic, partition, start, limit, max_bytes))

    def first_offset_since(self, topic: str, partition: int, stored_at: int) -> int:
        return self._call_with_restart(lambda reader: reader.first_offset_since(topic, partition, stored_at))

    def _call_with_restart(self, call: Callable[[StreamReader], T]) -> T:
        reader = self._reader
        try:
            return call(reader)
        except ShardPositionLost as asleep:
            log.info("Shard %s was not read for a long time: reading resumes where the index ends", asleep)
        try:
            return call(self._replace_reader(reader))
        except ShardPositionLost as asleep:
            raise Unavailable(f"Shard {asleep} cannot be read") from asleep

    def _replace_reader(self, old: StreamReader) -> StreamReader:
        # If several threads lose their place, one of them creates a reader, and the others use it. A thread that still
        # uses the old reader gets correct results, or also loses its place and comes here.
        with self._lock:
            if self._reader is old:
                self._shard_trees.refresh()
                reader = self._new_reader(self._last_written)
                # This comes before any thread can use the reader, and so before it reports arrivals.
                reader.adopt_continued_topics_of(old)
                self._reader = reader
            return self._reader

"""Follows the shards: each process has one reader for each shard, which all its streams share.

A reader continues only when a caller needs more records than are known, or while there are watchers. It begins a shard
when it has read the shard's parents to their ends, so it gets each partition's records in order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager

from nakadi.engines.kinesis.call_rate import MAX_READ_INTERVAL_SECONDS, GrowingPauses
from nakadi.engines.kinesis.continuity import (
    RETRY_TIMEOUT_SECONDS,
    GapCheckingCursor,
    GapFound,
    ShardTreeCache,
    shard_progress,
    shards_lost_before_indexed,
)
from nakadi.engines.kinesis.failures import NoSuchShard, ShardBusy, StreamCallFailed
from nakadi.engines.kinesis.fan_out import FanOut
from nakadi.engines.kinesis.numbering import ArrivedRecord
from nakadi.engines.kinesis.recent_records import RankOf
from nakadi.engines.kinesis.shards import ShardTree
from nakadi.engines.kinesis.stream import RecordPage, Stream
from nakadi.model.log_index import RecordPosition, ShardProgress
from nakadi.model.outcomes import Unavailable

RecordsReceiver = Callable[[list[ArrivedRecord], RankOf], None]


class ShardPositionLost(Exception):
    """Raised when reading of a shard cannot continue from its reader's position: the shard no longer exists, or was not
    read for too long.
    """


MAX_READ_PAUSE_SECONDS = 3600.0
"""The longest pause between two reads. A stream keeps records for a day at least, and the last read may have returned
records that were hours old."""


RETRY_AFTER_REFUSAL_SECONDS = MAX_READ_INTERVAL_SECONDS
"""The time after which Kinesis will probably answer reads of a shard again. It equals the longest pause between two
reads.
"""


class ShardTail:
    def __init__(self, cursor: GapCheckingCursor, parents: list[str], read_at: float) -> None:
        self.cursor = cursor
        self.parents = parents
        # Measured by the time of day: a machine may be suspended, and its steady clock with it.
        self.read_at = read_at
        self._lock = threading.Lock()
        self._known_at = float("-inf")
        # A thread that waited while Kinesis refused a read, or that comes before this time, is refused without a read.
        # Otherwise each of these threads would try to read in turn. Only the holder of the lock uses this value.
        self._busy_until = float("-inf")
        self._last_failure: Unavailable | None = None
        self._pushes = 0

    @property
    def ended(self) -> bool:
        return self.cursor.ended

    def begin_after_parents(self, parents: list[ShardTail]) -> None:
        """Begin once the parents of this shard are read to their ends."""
        with self._lock:
            if self.parents:
                moments = [parent.cursor.complete_at for parent in parents]
                self.cursor.complete_at = min((moment for moment in moments if moment is not None), default=None)
                self.parents = []

    def read_until(
        self, as_of: float, last_sequence: int, receive: Callable[[list[ArrivedRecord]], None], patience: GrowingPauses
    ) -> None:
        """Read on until all records that existed at `as_of` are known, and also the record with the number
        `last_sequence`.

        One thread reads for all waiting threads: a page that is requested after they came has everything they need. If
        Kinesis refuses the page for as long as that thread tries, all waiting threads are refused, and so is any thread
        that comes before `_busy_until`.
        """
        with self._turn_to_read(patience):
            while not self.ended and not (self._known_at >= as_of and (self.cursor.sequence or 0) >= last_sequence):
                self._refuse_if_busy()
                page = self._read_page(patience)
                receive(page.records)
                if page.at_tip:
                    self._known_at = page.asked_at
                elif patience.is_over:
                    raise Unavailable("There is more to be read than a reader can wait for")
                if self._known_at >= as_of and (self.cursor.sequence or 0) < last_sequence and patience.is_over:
                    raise Unavailable("Kinesis does not show yet what it has taken")

    @contextmanager
    def _turn_to_read(self, patience: GrowingPauses) -> Iterator[None]:
        if not self._lock.acquire(timeout=patience.seconds_left):
            raise ShardBusy(self.cursor.shard, RETRY_AFTER_REFUSAL_SECONDS)
        try:
            yield
        finally:
            self._lock.release()

    def _refuse_if_busy(self) -> None:
        seconds = self._busy_until - time.monotonic()
        if seconds > 0:
            raise ShardBusy(self.cursor.shard, seconds) from self._last_failure

    @property
    def receives_pushes(self) -> bool:
        """Whether Kinesis pushes new records: then a caller that does not need the latest records need not read."""
        return self._pushes > 0

    def receive_pushed_pages(
        self, pages: Iterator[RecordPage], receive: Callable[[list[ArrivedRecord]], None]
    ) -> Generator[None]:
        """Take pushed records, page by page. The pages begin after the records that were read before, and leave nothing
        out. Reads may happen at the same time: each record is taken from whichever brings it first."""
        pushed = False
        try:
            for page in pages:
                with self._lock:
                    receive(self.cursor.accept_pushed(page))
                    self.read_at = time.time()
                    self._pushes += not pushed
                    pushed = True
                yield
        finally:
            with self._lock:
                self._pushes -= pushed

    def _read_page(self, patience: GrowingPauses) -> RecordPage:
        began = time.time()
        if abs(began - self.read_at) > MAX_READ_PAUSE_SECONDS:
            raise ShardPositionLost(self.cursor.shard)
        try:
            page = self.cursor.read(patience)
        except NoSuchShard as error:
            raise ShardPositionLost(self.cursor.shard) from error
        except (StreamCallFailed, ShardBusy) as error:
            self._busy_until = time.monotonic() + RETRY_AFTER_REFUSAL_SECONDS
            self._last_failure = error
            raise
        self.read_at = began
        return page


class LastWrittenRecords:
    """The last record of each shard that this process has stored: no result of this process may lack it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[str, int] = {}

    def remember_stored(self, position: RecordPosition) -> None:
        with self._lock:
            self._last[position.shard] = max(self._last.get(position.shard, position.sequence), position.sequence)

    def last_sequence(self, shard: str) -> int:
        return self._last.get(shard, 0)

    def shards_missing_in(self, shard_tree: ShardTree) -> list[str]:
        with self._lock:
            return [shard for shard in self._last if shard not in shard_tree]

    def forget_shard(self, shard: str) -> None:
        with self._lock:
            self._last.pop(shard, None)


class ShardTails:
    def __init__(
        self,
        stream: Stream,
        shard_trees: ShardTreeCache,
        progress: Callable[[], Mapping[str, ShardProgress]],
        receive: RecordsReceiver,
        last_written: LastWrittenRecords,
    ) -> None:
        self._stream = stream
        self._shard_trees = shard_trees
        self._progress = progress
        self._receive = receive
        self._lock = threading.Lock()
        self._tails: dict[str, ShardTail] = {}
        self._last_written = last_written

    def read_until(self, hash_key: int, as_of: float, *, trust_pushes: bool = False) -> None:
        """Ensure that all events that a partition had at `as_of` are known. With `trust_pushes`, the records that
        Kinesis has pushed suffice.
        """
        patience = GrowingPauses(RETRY_TIMEOUT_SECONDS)
        shard_tree = self._tree_with_written_shards()
        while self.read_to_tip(shard_tree.shards_covering(hash_key)[-1], as_of, patience, trust_pushes=trust_pushes):
            ended = shard_tree.shards_covering(hash_key)[-1]
            shard_tree = self._shard_trees.refresh()
            if shard_tree.shards_covering(hash_key)[-1] != ended:
                patience = GrowingPauses(RETRY_TIMEOUT_SECONDS)
            elif patience.is_over:
                raise Unavailable("Kinesis does not list the children of a shard")
            else:
                patience.pause()

    def read_to_tip(self, shard: str, as_of: float, patience: GrowingPauses, *, trust_pushes: bool = False) -> bool:
        """Read a shard up to its tip, and return whether the shard has ended.

        If Kinesis pushes the shard, `trust_pushes` reads only up to the last record that this process wrote.
        """
        tail = self._find_or_begin_tail(shard)
        if tail.parents:
            for parent in tail.parents:
                self.read_to_tip(parent, float("inf"), patience)
            tail.begin_after_parents([self._find_or_begin_tail(parent) for parent in tail.parents])
        enough = float("-inf") if trust_pushes and tail.receives_pushes else as_of
        try:
            tail.read_until(enough, self._last_written.last_sequence(shard), self._receive_records, patience)
        except GapFound:
            # Forget the reader: once the gap is closed, reading of the shard starts again after the gap.
            with self._lock:
                self._tails.pop(shard, None)
            raise
        return tail.ended

    def receive_pushed_records(self, shard: str, fan_out: FanOut, should_stop: Callable[[], bool]) -> bool:
        """Take the pushed records of a shard that was read to its tip, until the pushes end.

        Returns whether the shard has ended.
        """
        tail = self._find_or_begin_tail(shard)
        with (
            closing(fan_out.receive_pages(shard, tail.cursor.sequence)) as pages,
            closing(tail.receive_pushed_pages(pages, self._receive_records)) as taken,
        ):
            for _ in taken:
                if tail.ended or should_stop():
                    break
        return tail.ended

    def _receive_records(self, records: list[ArrivedRecord]) -> None:
        if records:
            self._receive(records, self._shard_trees.tree_with(records[0].position.shard).rank)

    def _tree_with_written_shards(self) -> ShardTree:
        shard_tree = self._shard_trees.current
        unknown = self._last_written.shards_missing_in(shard_tree)
        if unknown:
            shard_tree = self._shard_trees.refresh()
            for shard in unknown:
                if shard not in shard_tree:
                    self._last_written.forget_shard(shard)
        return shard_tree

    def _find_or_begin_tail(self, shard: str) -> ShardTail:
        found = self._tails.get(shard)
        if found is None:
            progress = self._progress()
            with self._lock:
                found = self._begin_tail(shard, progress)
        return found

    def _is_followed(self, shard_tree: ShardTree, shard: str) -> bool:
        """Whether this process reads a shard or one of its ancestors, across any number of splits and merges."""
        return shard in self._tails or any(
            self._is_followed(shard_tree, parent) for parent in shard_tree.listed_parents(shard)
        )

    def _begin_tail(self, shard: str, progress: Mapping[str, ShardProgress]) -> ShardTail:
        """Begin to read a shard where the readers of its parents end; without such readers, where the index ends."""
        if shard not in self._tails:
            now = time.time()
            shard_tree = self._shard_trees.tree_with(shard)
            if shard not in shard_tree:
                raise ShardPositionLost(shard)
            indexed = shard_progress(progress, shard_tree, shard)
            parents = shard_tree.listed_parents(shard)
            followed = [parent for parent in parents if self._is_followed(shard_tree, parent)]
            if not followed and any(known not in shard_tree for known in self._tails):
                # This shard may descend from a shard that this process followed, through shards that have expired. The
                # index has the records of these, but this process has not read them.
                raise ShardPositionLost(shard)
            if followed or not indexed.last_sequence:
                lost = shards_lost_before_indexed(progress, shard_tree, shard_tree.all_parents(shard))
                if lost and not followed:
                    raise GapFound(lost[0])
                for parent in followed if indexed.last_sequence else parents:
                    self._begin_tail(parent, progress)
                cursor = GapCheckingCursor(self._shard_trees, shard, indexed._replace(last_sequence=0, ended=False))
                # The first records of this shard may be older than this moment, by the time since its parents were last
                # read.
                known_at = min(
                    [self._tails[parent].read_at for parent in parents if parent in self._tails], default=now
                )
                self._tails[shard] = ShardTail(cursor, followed if indexed.last_sequence else parents, known_at)
            else:
                self._tails[shard] = ShardTail(
                    GapCheckingCursor(self._shard_trees, shard, indexed._replace(ended=False)), [], now
                )
        return self._tails[shard]

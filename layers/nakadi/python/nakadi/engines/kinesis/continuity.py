"""Continuity: continues reading a shard, but never past records that the stream no longer has.

A stream forgets the records of a shard in order. So the records after a position are complete while

* the record at the position can still be read, or
* nothing was missing there a short time ago: a stream keeps everything for at least a day.

If neither holds, there is a gap: events may have been lost before they were indexed, and the numbers of later events
are unknown. Housekeeping ends the affected topics, and continues them; until then, no process numbers further events of
these topics.

Clocks differ. The two limits are so far apart that if one machine finds a position younger than
`SURELY_KEPT_MILLISECONDS`, no other finds it older than `CERTAIN_GAP_AGE_MILLISECONDS`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial

from nakadi.engines.kinesis.call_rate import GrowingPauses
from nakadi.engines.kinesis.failures import IteratorExpired, NoSuchShard, SequenceUnavailable
from nakadi.engines.kinesis.numbering import ArrivedRecord
from nakadi.engines.kinesis.shards import ShardTree
from nakadi.engines.kinesis.stream import RecordPage, Stream
from nakadi.model.log_index import RecordPosition, ShardProgress
from nakadi.model.outcomes import Unavailable

RETRY_TIMEOUT_SECONDS = 10.0
"""The time after which a reader gets `Unavailable`."""

SURELY_KEPT_MILLISECONDS = 22 * 3_600_000
CERTAIN_GAP_AGE_MILLISECONDS = 23 * 3_600_000
"""The age of a position from which a gap counts as certain. A stream forgets nothing that is younger than a day."""

LONG_AGO_TIMESTAMP_MS = 1


class GapFound(Unavailable):
    """Raised if the stream has forgotten events that may not have been indexed."""

    def __init__(self, shard: str) -> None:
        super().__init__(f"{shard} has forgotten events that were not indexed; their event types get new timelines")
        self.shard = shard


class GapUncertain(Unavailable):
    """Raised if a position is too young to say that there is a gap, and too old to continue as if there were none."""


class ShardTreeCache:
    """The shards and their parents, as fresh as the caller needs."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._lock = threading.Lock()
        self._shard_tree: ShardTree | None = None
        self._forgotten: set[str] = set()

    @property
    def current(self) -> ShardTree:
        return self._shard_tree or self.refresh()

    def tree_with(self, shard: str) -> ShardTree:
        shard_tree = self.current
        return shard_tree if shard in shard_tree else self.refresh()

    def tree_for_ranking(self, position: RecordPosition | None) -> ShardTree:
        """A shard tree that can rank a record among others, even one from a new shard."""
        shard_tree = self.current
        if position is None or position.shard in shard_tree or position.shard in self._forgotten:
            return shard_tree
        shard_tree = self.refresh()
        if position.shard not in shard_tree:
            # A shard is listed before its records can be read, so a shard that is not listed is older than all listed
            # ones.
            self._forgotten.add(position.shard)
        return shard_tree

    def rank(self, position: RecordPosition | None) -> tuple[int, int]:
        return self.tree_for_ranking(position).rank(position)

    def refresh(self) -> ShardTree:
        with self._lock:
            self._shard_tree = ShardTree(GrowingPauses(RETRY_TIMEOUT_SECONDS).retry(self.stream.list_shards))
            return self._shard_tree


class ShardCursor:
    """A position in a shard, from which reading continues."""

    def __init__(self, stream: Stream, shard: str, sequence: int | None, *, including: bool = False) -> None:
        self._stream = stream
        self.shard = shard
        self.sequence = sequence
        self._including = including
        self._iterator: str | None = None
        self.ended = False

    def read(self, patience: GrowingPauses, limit: int = 10_000) -> RecordPage:
        """The next records. A read that Kinesis refuses for now is retried."""
        while True:
            iterator = self._iterator or patience.retry(self._new_iterator)
            try:
                page: RecordPage = patience.retry(partial(self._stream.read_page, self.shard, iterator, limit))
            except IteratorExpired as expired:
                self._iterator = None
                if patience.is_over:
                    raise Unavailable("Kinesis lets no iterator live") from expired
                continue
            return self._advance_past(page)

    def _advance_past(self, page: RecordPage) -> RecordPage:
        self._iterator = page.continuation
        self.ended = page.continuation is None
        if self.sequence is not None:
            first = self.sequence + (0 if self._including else 1)
            page = page._replace(records=[record for record in page.records if record.position.sequence >= first])
        if page.records:
            self._including = False
            self.sequence = page.records[-1].position.sequence
        return page

    def accept_pushed(self, page: RecordPage) -> list[ArrivedRecord]:
        """The records of a pushed page that were not read yet. The next read begins after these."""
        fresh = [each for each in page.records if self.sequence is None or each.position.sequence > self.sequence]
        if fresh:
            self._iterator = None
            self.sequence = fresh[-1].position.sequence
        self.ended = self.ended or page.continuation is None
        return fresh

    def _new_iterator(self) -> str:
        if self.sequence is None:
            return self._stream.request_iterator_from_start(self.shard)
        try:
            mark = RecordPosition(self.shard, self.sequence)
            return (
                self._stream.request_iterator_at(mark)
                if self._including
                else self._stream.request_iterator_behind(mark)
            )
        except SequenceUnavailable:
            # The stream no longer keeps records as old as this position: all remaining records come after it.
            return self._stream.request_iterator_from_start(self.shard)

    def _go_back_to(self, sequence: int | None) -> None:
        self.sequence = sequence
        self._iterator = None
        self.ended = False


class GapCheckingCursor(ShardCursor):
    """A cursor that raises `GapFound` instead of reading past a gap, and then stays where it is."""

    def __init__(self, shard_trees: ShardTreeCache, shard: str, progress: ShardProgress) -> None:
        super().__init__(shard_trees.stream, shard, progress.last_sequence or None)
        self._shard_trees = shard_trees
        self.complete_at = progress.complete_until
        self._read_behind = progress

    @property
    def progress(self) -> ShardProgress:
        return ShardProgress(self.sequence or 0, self.ended, self.complete_at)

    def read(self, patience: GrowingPauses, limit: int = 10_000) -> RecordPage:
        self._read_behind = self.progress
        began = _milliseconds_now()
        page = super().read(patience, limit)
        try:
            self.confirm_no_gap(patience)
        except Unavailable:
            self._go_back_to(self._read_behind.last_sequence or None)
            raise
        if self.ended or (page.at_tip and not page.records):
            # While a closed shard can still be read, nothing is missing in its child shards.
            self.complete_at = began
        elif page.records:
            self.complete_at = max(page.records[-1].arrived_at_ms, self.complete_at or 0)
        return page

    def accept_pushed(self, page: RecordPage) -> list[ArrivedRecord]:
        """Accept pushed records, which follow the records that were read a moment ago, at the tip."""
        fresh = super().accept_pushed(page)
        if self.ended:
            self.complete_at = _milliseconds_now()
        elif fresh:
            self.complete_at = max(fresh[-1].arrived_at_ms, self.complete_at or 0)
        return fresh

    def confirm_no_gap(self, patience: GrowingPauses) -> None:
        """Raise unless, even now, the stream has all records after the position where the last page began."""
        confirm_no_gap(self._shard_trees, self.shard, self._read_behind, patience)


def confirm_no_gap(shard_trees: ShardTreeCache, shard: str, progress: ShardProgress, patience: GrowingPauses) -> None:
    """Raise `GapFound` if records after a position were forgotten, and `Unavailable` if that is not known yet.

    Call it after reading on: records that are complete now were complete when they were read.
    """
    if progress.ended or progress.complete_until is None:
        return
    age = _milliseconds_now() - progress.complete_until
    if age < SURELY_KEPT_MILLISECONDS or _stream_still_has_position(shard_trees, shard, progress, patience):
        return
    if age < CERTAIN_GAP_AGE_MILLISECONDS:
        raise GapUncertain(f"It is not known yet whether {shard} has forgotten events that were not indexed")
    raise GapFound(shard)


def confirm_no_gap_in_chain(shard_trees: ShardTreeCache, hash_key: int, progress: Mapping[str, ShardProgress]) -> None:
    """Like `confirm_no_gap`, for all shards of a hash key, each from the position up to which it was indexed."""
    shard_tree = shard_trees.current
    patience = GrowingPauses(RETRY_TIMEOUT_SECONDS)
    for shard in shard_tree.shards_covering(hash_key):
        indexed = shard_progress(progress, shard_tree, shard)
        lost = (
            []
            if indexed.last_sequence
            else shards_lost_before_indexed(progress, shard_tree, shard_tree.all_parents(shard))
        )
        if lost:
            raise GapFound(lost[0])
        confirm_no_gap(shard_trees, shard, indexed, patience)


def shard_progress(progress: Mapping[str, ShardProgress], shard_tree: ShardTree, shard: str) -> ShardProgress:
    """How far a shard is indexed. Without a stored progress, the shard is as complete as its parents."""
    if shard in progress:
        return progress[shard]
    moments = []
    for parent in shard_tree.all_parents(shard):
        if parent in progress or parent in shard_tree:
            moments.append(shard_progress(progress, shard_tree, parent).complete_until)
        elif progress:
            # The shard began and ended without a stored progress.
            moments.append(LONG_AGO_TIMESTAMP_MS)
    return ShardProgress(0, complete_until=min((moment for moment in moments if moment is not None), default=None))


def shards_lost_before_indexed(
    progress: Mapping[str, ShardProgress], shard_tree: ShardTree, shards: Sequence[str]
) -> list[str]:
    """Those of these shards that the stream no longer has, and that were not indexed to their ends."""
    return [
        shard
        for shard in shards
        if shard not in shard_tree
        and shard in progress
        and not progress[shard].ended
        and progress[shard].complete_until is not None
    ]


def _stream_still_has_position(
    shard_trees: ShardTreeCache, shard: str, progress: ShardProgress, patience: GrowingPauses
) -> bool:
    try:
        if progress.last_sequence:
            first = _first_sequence_and_arrival(
                ShardCursor(shard_trees.stream, shard, progress.last_sequence, including=True), patience
            )
            return first is not None and first[0] == progress.last_sequence
        shard_tree = shard_trees.refresh()
        if shard not in shard_tree:
            return False
        if any(parent in shard_tree for parent in shard_tree.all_parents(shard)):
            # The parents were closed when this shard began, and stay listed as long as the stream keeps any of their
            # records.
            return True
        first = _first_sequence_and_arrival(ShardCursor(shard_trees.stream, shard, None), patience)
        return first is not None and progress.complete_until is not None and first[1] <= progress.complete_until
    except NoSuchShard:
        return False


def _first_sequence_and_arrival(cursor: ShardCursor, patience: GrowingPauses) -> tuple[int, int] | None:
    """The sequence number and the arrival time of the first stored record."""
    while True:
        page = cursor.read(patience, 1)
        if page.records:
            return page.records[0].position.sequence, page.records[0].arrived_at_ms
        if page.at_tip:
            return None
        if patience.is_over:
            raise Unavailable(f"{cursor.shard} does not show in time what it has")


def _milliseconds_now() -> int:
    return int(time.time() * 1000)

"""Compaction over both halves.

The hot half is compacted as ever. The cold half is written anew, which costs as much as it is long, and so only now and
then: when what came since is a good part of it, or has waited for a day. Until then it shows what newer events have
replaced, and the tombstones that are to cover it stay in the hot half.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from nakadi.archive.manifest import archived
from nakadi.archive.merging import Busy
from nakadi.eventlogs.tiered.options import Directory, Tiers
from nakadi.eventlogs.tiered.rewriting import Rewriter
from nakadi.model.events import Bounds
from nakadi.model.log_index import Topic
from nakadi.model.moments import microseconds, moment_of
from nakadi.ports import ArchiveStore, Clock, EventLog, LogIndex

AT_LEAST_EVERY = timedelta(days=1)

Place = tuple[str, int]


class Compaction:
    def __init__(
        self,
        hot: EventLog,
        index: LogIndex,
        store: ArchiveStore,
        clock: Clock,
        directory: Directory,
        tiers: Tiers,
        archive: Callable[[str, int], None],
    ) -> None:
        self._hot = hot
        self._index = index
        self._clock = clock
        self._tiers = tiers
        self._archive = archive
        self._rewriter = Rewriter(index, store, directory)
        # When the oldest tombstone was stored that the cold half still has; of what is missing here nothing is known.
        self._tombstones: dict[Place, int | None] = {}

    def run(
        self, topic: str, partition: int, bounds: Bounds, end: int, *, upto: datetime, tombstones_before: datetime
    ) -> None:
        known = self._index.topic(topic)
        if known is not None and end > bounds.oldest:
            old = microseconds(tombstones_before)
            due = self._is_due(known, topic, partition, end, old)
            if not (due and self._rewritten(topic, partition, bounds.oldest, end, old)):
                tombstones_before = min(tombstones_before, moment_of(self._compacted_until(known, topic, partition)))
        self._hot.compact(topic, partition, upto=upto, tombstones_before=tombstones_before)

    def _rewritten(self, topic: str, partition: int, oldest: int, end: int, tombstones_before: int) -> bool:
        self._archive(topic, partition)
        last = self._hot.bounds(topic, [partition])[partition].next - 1
        try:
            self._tombstones[topic, partition] = self._rewriter.compact(
                topic, partition, oldest=oldest, end=end, last=last, tombstones_before=tombstones_before
            )
        except Busy:
            return False
        return True

    def _is_due(self, known: Topic, topic: str, partition: int, end: int, tombstones_before: int) -> bool:
        compacted = known.compacted.get(partition, 0)
        fresh = end - compacted
        if self._tiers.share <= 0 and self._has_old_tombstones(topic, partition, tombstones_before):
            return True
        if fresh <= 0:
            return False
        return fresh >= self._tiers.share * self._events_before(topic, partition, compacted) or self._waits_long(
            topic, partition, compacted
        )

    def _has_old_tombstones(self, topic: str, partition: int, tombstones_before: int) -> bool:
        oldest = self._tombstones.get((topic, partition), 0)
        return oldest is not None and oldest < tombstones_before

    def _events_before(self, topic: str, partition: int, offset: int) -> int:
        segments = archived(self._index, topic, partition)
        return sum(each.count if each.events is None else each.events for each in segments if each.first < offset)

    def _waits_long(self, topic: str, partition: int, compacted: int) -> bool:
        segment = self._index.segment(topic, partition, compacted)
        if segment is None or segment.end <= compacted:
            return False
        return moment_of(segment.since) < self._clock.now() - AT_LEAST_EVERY

    def _compacted_until(self, known: Topic, topic: str, partition: int) -> int:
        """Everything that was stored before is compacted in the cold half, too; in microseconds."""
        compacted = known.compacted.get(partition, 0)
        segment = self._index.segment(topic, partition, compacted)
        if segment is not None and segment.end > compacted:
            return segment.since
        return self._index.heads([(topic, partition)])[topic, partition].counted.latest

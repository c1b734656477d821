"""A log whose older half is in the archive: one cursor leads from the oldest archived event to the newest.

Events are appended to the hot half and archived from there; the hot half removes what is archived when it has kept
it for some time. A read is answered by the hot half as long as it has what is asked for, else by the archive, which
reaches at least to where the hot half begins. What passes the retention of the event type is removed from both.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TypeVar

from nakadi.common.chores import Stopped
from nakadi.common.metrics import Metrics
from nakadi.engines.archive.archiver import Directory, NoDirectory, Tiers
from nakadi.engines.archive.compaction import Compaction
from nakadi.engines.archive.library import Library, Unreadable
from nakadi.engines.archive.reading import ArchiveReader
from nakadi.engines.archive.worker import Worker
from nakadi.model.events import Bounds, Fate, Record, Slice, microseconds
from nakadi.model.log_index import Topic
from nakadi.model.outcomes import Unavailable
from nakadi.ports.archive_store import ArchiveStore
from nakadi.ports.clock import Clock
from nakadi.ports.event_log import Appended, EventLog, Fates, OffsetUnavailable
from nakadi.ports.log_index import LogIndex

log = logging.getLogger(__name__)

Place = tuple[str, int]
Found = TypeVar("Found")


class TieredLog:
    def __init__(
        self,
        hot: EventLog,
        index: LogIndex,
        store: ArchiveStore,
        clock: Clock,
        directory: Directory | None = None,
        tiers: Tiers | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._hot = hot
        self._index = index
        self._store = store
        self._archive = ArchiveReader(index, Library(store, metrics=metrics))
        directory, tiers = directory or NoDirectory(), tiers or Tiers()
        self._worker = Worker(hot, index, store, clock, directory, tiers, metrics)
        self._compaction = Compaction(hot, index, store, clock, directory, tiers, self._worker.archive)
        # From where on the hot half was seen to have something. It only grows: what is before need not be asked there.
        self._hot_from: dict[Place, int] = {}
        self._closed = False

    # Topics

    def create_topic(self, topic: str, partitions: int) -> None:
        self._hot.create_topic(topic, partitions)

    def add_partitions(self, topic: str, partitions: int) -> None:
        self._hot.add_partitions(topic, partitions)

    def seal_topic(self, topic: str) -> None:
        self._hot.seal_topic(topic)

    def delete_topic(self, topic: str) -> None:
        """Objects are removed later, when no reader can need them."""
        self._hot.delete_topic(topic)
        self._index.delete_topic(topic)
        for place in [place for place in list(self._hot_from) if place[0] == topic]:
            self._hot_from.pop(place, None)

    # Events in

    def append(self, topic: str, batches: Mapping[int, Sequence[Record]]) -> Mapping[int, Fate]:
        fates = self._hot.append(topic, batches)
        self._worker.stored(topic, batches)
        return fates

    def append_soon(self, topic: str, batches: Mapping[int, Sequence[Record]], done: Appended) -> None:
        def note_and_pass_on(outcome: Fates | Exception) -> None:
            if not isinstance(outcome, Exception):
                self._worker.stored(topic, batches)
            done(outcome)

        self._hot.append_soon(topic, batches, note_and_pass_on)

    # Events out

    def read(
        self,
        topic: str,
        partition: int,
        start: int,
        *,
        limit: int = 1000,
        max_bytes: int = 4_000_000,
        wait: float = 0.0,
    ) -> Slice:
        place = start
        while True:
            found = None
            if place < self._hot_from.get((topic, partition), 0):
                found = self._read_archive(topic, partition, place, limit, max_bytes)
            if found is None:
                found = self._read_hot(topic, partition, place, limit, max_bytes, wait)
            if found is None or found.events or found.next_offset == place:
                break
            # Compaction has left nothing there: on with what follows.
            place = found.next_offset
        if found is None:
            raise OffsetUnavailable(f"{start} is neither in the archive nor behind it")
        return found

    def bounds(self, topic: str, partitions: Sequence[int]) -> Mapping[int, Bounds]:
        # The hot half first: it removes nothing that the index, read later, does not have.
        hot = self._hot.bounds(topic, partitions)
        known = self._index.topic(topic)
        if known is None:
            return hot
        return {number: Bounds(self._oldest(known, topic, number, each), each.next) for number, each in hot.items()}

    def offset_at(self, topic: str, partition: int, moment: datetime) -> int:
        found = self._hot.offset_at(topic, partition, moment)
        hot = self._hot.bounds(topic, [partition])[partition]
        known = self._index.topic(topic)
        if known is None:
            return found
        oldest = self._oldest(known, topic, partition, hot)
        at = microseconds(moment)
        if oldest >= hot.oldest or self._archived_until(topic, partition) < at:
            return found
        cold = _understood(lambda: self._archive.first_stored_at(topic, partition, oldest, hot.oldest, moment, at))
        return found if cold is None else cold

    def watch(self, changed: Callable[[str, int], None]) -> Callable[[], None]:
        return self._hot.watch(changed)

    # Looking after it

    def trim(self, topic: str, partition: int, before: datetime) -> None:
        offset = self.offset_at(topic, partition, before)
        self._hot.trim(topic, partition, before)
        # The archive second: an archiver makes the topic known before it reads events, so one that is not known by now
        # can only read what was kept. The other way round, it could archive in between what is trimmed here.
        known = self._index.topic(topic)
        if known is not None and offset > known.oldest.get(partition, 0):
            self._index.let_go(topic, partition, offset)

    def compact(self, topic: str, partition: int, *, upto: datetime, tombstones_before: datetime) -> None:
        bounds = self.bounds(topic, [partition])[partition]
        end = self.offset_at(topic, partition, upto)
        self._compaction.run(topic, partition, bounds, end, upto=upto, tombstones_before=tombstones_before)

    def archive(self) -> None:
        """Archive at once what waits for it, and let the hot half go of what it need not keep."""
        with _unavailable_when_closed():
            self._worker.archive_all()

    def sweep(self) -> None:
        """Remove archive objects without references."""
        with _unavailable_when_closed():
            self._worker.sweep()

    def close(self) -> None:
        self._closed = True
        self._worker.stop()
        self._archive.close()
        self._hot.close()
        self._index.close()
        self._store.close()

    # The two halves

    def _read_hot(
        self, topic: str, partition: int, start: int, limit: int, max_bytes: int, wait: float
    ) -> Slice | None:
        """What the hot half has; what the archive has, if the hot half has removed it; else None."""
        try:
            return self._hot.read(topic, partition, start, limit=limit, max_bytes=max_bytes, wait=wait)
        except OffsetUnavailable:
            bounds = self._hot.bounds(topic, [partition])[partition]
            self._hot_from[topic, partition] = bounds.oldest
            if start >= bounds.next:
                raise
            return self._read_archive(topic, partition, start, limit, max_bytes)

    def _read_archive(self, topic: str, partition: int, start: int, limit: int, max_bytes: int) -> Slice | None:
        if self._closed:
            raise Unavailable("The event log is closed.")
        known = self._index.topic(topic)
        if known is None:
            self._hot.bounds(topic, [partition])  # raises UnknownTopic if that is why
            return None
        if start < known.oldest.get(partition, 0):
            return None
        return _understood(lambda: self._archive.slice(topic, partition, start, limit, max_bytes))

    def _oldest(self, known: Topic, topic: str, partition: int, hot: Bounds) -> int:
        """The oldest offset that either half has. The archive has nothing to offer if it ends before the hot half
        begins: then it was switched off for so long that what it has is of no more use.
        """
        oldest = known.oldest.get(partition, 0)
        if oldest >= hot.oldest:
            return min(oldest, hot.next)
        archived_to = self._index.heads([(topic, partition)])[topic, partition].counted.next
        return oldest if archived_to >= hot.oldest else hot.oldest

    def _archived_until(self, topic: str, partition: int) -> int:
        return self._index.heads([(topic, partition)])[topic, partition].counted.latest


def _understood(look: Callable[[], Found]) -> Found:
    """What is found, or `Unavailable`: damage must not be taken for the end of the events."""
    try:
        return look()
    except Unreadable as error:
        raise Unavailable(str(error)) from error


@contextmanager
def _unavailable_when_closed() -> Iterator[None]:
    """Around chores that are asked for: closing the log meanwhile ends them in the midst."""
    try:
        yield
    except Stopped as stopped:
        raise Unavailable("The event log is closed.") from stopped

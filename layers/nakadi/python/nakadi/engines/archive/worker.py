"""The thread that archives, cools and sweeps, in small steps so that no request waits for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from math import inf

from nakadi.common.chores import Stopped, attempted
from nakadi.common.metrics import Metrics
from nakadi.engines.archive.archiver import Archiver, Directory, Tiers, cool
from nakadi.engines.archive.maintenance import Busy, Merger, Sweep
from nakadi.model.outcomes import Unavailable
from nakadi.ports.archive_store import ArchiveStore
from nakadi.ports.clock import Clock
from nakadi.ports.event_log import EventLog, UnknownTopic
from nakadi.ports.log_index import LogIndex

RESTS = 3.0
"""For each second of work so many of rest: at most a quarter of a processor."""

COOLED_EVERY = 60.0
MERGED_EVERY = 3600.0
SWEPT_EVERY = 3600.0

log = logging.getLogger(__name__)

Place = tuple[str, int]


class Worker:
    def __init__(
        self,
        hot: EventLog,
        index: LogIndex,
        store: ArchiveStore,
        clock: Clock,
        directory: Directory,
        tiers: Tiers,
        metrics: Metrics | None = None,
    ) -> None:
        self._hot = hot
        self._index = index
        self._clock = clock
        self._directory = directory
        self._tiers = tiers
        self._metrics = metrics or Metrics()
        self._archiver = Archiver(hot, index, store, directory, self._metrics)
        self._merger = Merger(index=index, store=store, event_type_of=directory.event_type_of)
        self._sweep = Sweep(index, store, namespaces=(index.identity(),))
        # Partition -> since when it has something to archive. Taking one out is followed by a look at all its events.
        self._waiting: dict[Place, float] = {}
        self._warm: set[Place] = set()
        self._turn = threading.Lock()
        self._closing = threading.Event()
        self._metrics.archive_waiting.follow(lambda: {(): len(self._waiting)})
        self._metrics.archive_lag.follow(lambda: {(): self._longest_wait()})
        self._thread = threading.Thread(target=self._work, name="event-log-archiver", daemon=True)
        if tiers.after != inf:
            self._thread.start()

    def stored(self, topic: str, partitions: Iterable[int]) -> None:
        """Something new is there to be archived."""
        for partition in partitions:
            self._waiting.setdefault((topic, partition), time.monotonic())

    def archive_all(self) -> None:
        """Archive what waits, and let the hot half go of what it need not keep any more, without a rest. Raises
        `Unavailable` if not all of it could be archived."""
        failed = self._archive(list(self._waiting), rest=_no_rest)
        self.cool_all()
        if failed:
            raise Unavailable(f"{failed} topics could not be archived")

    def archive(self, topic: str, partition: int) -> None:
        """Archive all there is of a partition."""
        with self._turn:
            while self._archiver.archive(topic, [partition]):
                pass
            self._warm.add((topic, partition))

    def cool_all(self) -> None:
        before = self._clock.now() - timedelta(seconds=self._tiers.hot)
        for topic, partition in list(self._warm):
            self._attempt("cooling", f"{topic}/{partition}", partial(self._cool, topic, partition, before))

    def _cool(self, topic: str, partition: int, before: datetime) -> None:
        try:
            left = cool(self._hot, self._index, topic, partition, before)
        except UnknownTopic:
            left = False
        if not left:
            self._warm.discard((topic, partition))

    def sweep(self) -> None:
        """Remove objects without references, and notes about deleted topics."""
        known = self._index.topics()
        # Other logs may have their topics in the same index.
        live = {topic for topic, _ in self._directory.topics()}
        for topic in known:
            if topic not in live:
                self._attempt("removal of a topic from the index", topic, partial(self._forget_if_gone, topic))
        self._sweep.run(datetime.now(UTC) - timedelta(seconds=self._tiers.grace))

    def merge(self, rest: Callable[[], None] | None = None) -> None:
        """Make few objects of many small ones, which are read in less time."""
        rest = rest or Rests(self._closing)
        for topic in self._index.topics():
            known = self._index.topic(topic)
            for partition in range(known.partitions if known else 0):
                self._attempt("merging", f"{topic}/{partition}", partial(self._merge, topic, partition, rest))
                rest()

    def _merge(self, topic: str, partition: int, rest: Callable[[], None]) -> None:
        with suppress(Busy):
            for piece in self._merger.plan(topic, partition):
                self._merger.merge(piece)
                rest()

    def stop(self) -> None:
        """End what is under way after its current step."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        chores = (
            _Chore(self._archive_due, max(0.02, min(1.0, self._tiers.after / 4))),
            _Chore(self.cool_all, max(0.02, min(COOLED_EVERY, self._tiers.hot / 4))),
            _Chore(self.merge, MERGED_EVERY),
            _Chore(self.sweep, max(1.0, min(SWEPT_EVERY, self._tiers.grace / 4))),
        )
        if self._closing.wait(chores[0].every):
            return
        self._try_until_stopped(self._look_at_everything)
        while not self._closing.wait(min(each.due_in() for each in chores)):
            for each in chores:
                if each.due_in() <= 0:
                    self._try_until_stopped(each.work)
                    each.done()

    def _attempt(self, operation: str, thing: str, work: Callable[[], None]) -> bool:
        if self._closing.is_set():
            raise Stopped
        succeeded = attempted(operation, thing, work)
        if not succeeded:
            self._metrics.archive_failures.add(1, operation)
        return succeeded

    def _longest_wait(self) -> float:
        """Seconds. Others add to what waits meanwhile, so it is copied first."""
        return max(0.0, time.monotonic() - min(tuple(self._waiting.values()), default=inf))

    def _try_until_stopped(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Stopped:
            pass
        except Unavailable as error:
            log.warning("The archive has to wait: %s", error)
        except Exception:  # the next attempt may succeed, and this is the only place to log it
            log.exception("The work on the archive failed")

    def _look_at_everything(self) -> None:
        """What was stored before this process began is as good as due."""
        due = time.monotonic() - self._tiers.after
        known = [(topic, known.partitions) for topic in self._index.topics() if (known := self._index.topic(topic))]
        for topic, partitions in (*self._directory.topics(), *known):
            for partition in range(partitions):
                self._waiting.setdefault((topic, partition), due)

    def _archive_due(self) -> None:
        due = time.monotonic() - self._tiers.after
        self._archive([place for place, since in list(self._waiting.items()) if since <= due], Rests(self._closing))

    def _archive(self, places: list[Place], rest: Callable[[], None]) -> int:
        """How many topics could not be archived."""
        topics: dict[str, list[int]] = {}
        for topic, partition in places:
            topics.setdefault(topic, []).append(partition)
        return sum(
            not self._attempt("archiving", topic, partial(self._archive_topic, topic, partitions, rest))
            for topic, partitions in topics.items()
        )

    def _archive_topic(self, topic: str, partitions: list[int], rest: Callable[[], None]) -> None:
        for partition in partitions:
            self._waiting.pop((topic, partition), None)
        try:
            with self._turn:
                while self._archiver.archive(topic, partitions, rest):
                    rest()
        except UnknownTopic:
            return
        except BaseException:
            # Not as long due as it was: what fails again and again must not be tried without a pause.
            for partition in partitions:
                self._waiting.setdefault((topic, partition), time.monotonic())
            raise
        self._warm.update((topic, partition) for partition in partitions)
        rest()

    def _forget_if_gone(self, topic: str) -> None:
        if not self._is_there(topic):
            self._index.delete_topic(topic)

    def _is_there(self, topic: str) -> bool:
        try:
            self._hot.bounds(topic, [])
        except UnknownTopic:
            return False
        return True


class Rests:
    """Called in the midst of work, it rests in proportion to the work since the last rest."""

    def __init__(self, closing: threading.Event) -> None:
        self._closing = closing
        self._began = time.monotonic()

    def __call__(self) -> None:
        if self._closing.wait(RESTS * min(1.0, time.monotonic() - self._began)):
            raise Stopped
        self._began = time.monotonic()


class _Chore:
    """Something that is done again and again."""

    def __init__(self, work: Callable[[], None], every: float) -> None:
        self.work = work
        self.every = every
        self._due = time.monotonic() + every

    def due_in(self) -> float:
        return self._due - time.monotonic()

    def done(self) -> None:
        self._due = time.monotonic() + self.every


def _no_rest() -> None:
    pass

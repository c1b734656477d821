"""The thread that archives events, merges segments and removes what is not needed, in small steps so that no request
waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from math import inf

from nakadi.common.chores import ChoreStopped, run_and_log_failure
from nakadi.common.metrics import Metrics
from nakadi.engines.archive.archiver import Archiver
from nakadi.engines.archive.evacuation import Evacuation, EvacuationBusy
from nakadi.engines.archive.merging import PartitionBusy, SegmentMerger
from nakadi.engines.archive.policy import ArchivePolicy, TopicCatalog, describe_partition, describe_topic
from nakadi.engines.archive.sweeping import ArchiveSweep
from nakadi.engines.archive.trimming import trim_hot_log
from nakadi.model.events import TopicPartition
from nakadi.model.outcomes import Unavailable
from nakadi.ports.archive_store import ArchiveStore
from nakadi.ports.clock import Clock
from nakadi.ports.event_log import EventLog, UnknownTopic
from nakadi.ports.log_index import LogIndex

log = logging.getLogger(__name__)


PAUSE_RATIO = 3.0
"""Seconds of pause for each second of work, so that the thread uses at most a quarter of a processor."""

HOT_TRIM_INTERVAL_SECONDS = 60.0
SCAN_INTERVAL_SECONDS = 3600.0
"""How often the worker looks for events that other processes have appended but not archived."""

MERGE_INTERVAL_SECONDS = 3600.0
SWEEP_INTERVAL_SECONDS = 3600.0
FIRST_RUN_DELAY_SECONDS = 300.0
"""How long after its start a process merges and sweeps for the first time, at the latest, so that processes with
shorter lives than an hour do so too.
"""


class ArchiveWorker:
    def __init__(
        self,
        hot: EventLog,
        index: LogIndex,
        store: ArchiveStore,
        clock: Clock,
        directory: TopicCatalog,
        tiers: ArchivePolicy,
        metrics: Metrics | None = None,
    ) -> None:
        self._hot = hot
        self._index = index
        self._clock = clock
        self._directory = directory
        self._tiers = tiers
        self._metrics = metrics or Metrics()
        self._archiver = Archiver(hot, index, store, directory, self._metrics)
        self._merger = SegmentMerger(index=index, store=store, event_type_name_of=directory.event_type_name_of)
        self._store = store
        # Since when each partition has had events to archive.
        self._waiting: dict[TopicPartition, float] = {}
        # Since when each partition has waited in spite of failed attempts, each of which restarts the time in
        # `_waiting`.
        self._waiting_in_vain: dict[TopicPartition, float] = {}
        self._trimmable: set[TopicPartition] = set()
        self._archive_lock = threading.Lock()
        self._closing = threading.Event()
        self._metrics.archive_waiting.add_source(lambda: {(): len(self._waiting)})
        self._metrics.archive_lag.add_source(lambda: {(): self._longest_wait()})
        self._thread = threading.Thread(target=self._run, name="event-log-archiver", daemon=True)
        if tiers.archive_after != inf and not tiers.another_process_archives:
            self._thread.start()

    def schedule_archiving(self, topic: str, partitions: Iterable[int]) -> None:
        """Note that these partitions have new events to archive, unless another process archives them."""
        if self._tiers.another_process_archives:
            return
        for partition in partitions:
            self._waiting.setdefault((topic, partition), self._clock.monotonic())

    def archive_all(self) -> None:
        """Archive waiting events, and let the hot half remove events that it no longer needs, all without pauses.
        Raises `Unavailable` if some events could not be archived."""
        failed = self._archive_partitions(list(self._waiting), pause=_no_pause)
        self.trim_hot_partitions()
        if failed:
            raise Unavailable(f"{failed} topics could not be archived")

    def archive_partition(self, topic: str, partition: int) -> None:
        """Archive all events of a partition."""
        with self._archive_lock:
            while self._archiver.archive_next_object(topic, [partition]):
                pass
            self._trimmable.add((topic, partition))

    def trim_hot_partitions(self) -> None:
        before = self._clock.now() - timedelta(seconds=self._tiers.hot_retention)
        for topic, partition in list(self._trimmable):
            self._run_and_count_failure(
                "cooling", self._describe(topic, partition), partial(self._trim_hot_partition, topic, partition, before)
            )

    def _trim_hot_partition(self, topic: str, partition: int, before: datetime) -> None:
        if not self._directory.may_remove_records_from(topic):
            return
        try:
            left = trim_hot_log(self._hot, self._index, topic, partition, before)
        except UnknownTopic:
            left = False
        if not left:
            self._trimmable.discard((topic, partition))

    def sweep(self) -> None:
        known = self._index.topic_names()
        # The index may also have topics of other logs, which `_unindex_deleted_topic` must not remove.
        live = {topic for topic, _ in self._directory.topics()}
        for topic in known:
            if topic not in live:
                self._run_and_count_failure(
                    "removal of a topic from the index", topic, partial(self._unindex_deleted_topic, topic)
                )
        self._run_and_count_failure("evacuation", "the archive", self._evacuate)
        unreferenced = ArchiveSweep(self._index, self._store, namespaces=(self._archiver.namespace,))
        unreferenced.run(datetime.now(UTC) - timedelta(seconds=self._tiers.unreferenced_grace))

    def _evacuate(self) -> None:
        """Move the living members out of objects that also have dead members, so that no segment refers to these
        objects, and the sweep removes them.
        """
        pause = WorkPacer(self._closing)
        evacuation = Evacuation(self._index, self._store, namespaces=(self._archiver.namespace,))
        with suppress(EvacuationBusy):
            evacuation.vacate_partly_dead_objects(datetime.now(UTC), pause)

    def merge_segments(self, pause: Callable[[], None] | None = None) -> None:
        """Merge many small segments into few larger ones, which take less time to read."""
        pause = pause or WorkPacer(self._closing)
        for topic in self._index.topic_names():
            known = self._index.topic(topic)
            for partition in range(known.partitions if known else 0):
                self._run_and_count_failure(
                    "merging", self._describe(topic, partition), partial(self._merge_partition, topic, partition, pause)
                )
                pause()

    def _merge_partition(self, topic: str, partition: int, pause: Callable[[], None]) -> None:
        with suppress(PartitionBusy):
            for piece in self._merger.plan_merges(topic, partition):
                self._merger.merge_group(piece)
                pause()

    def stop(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        tasks = (
            _PeriodicTask(self._archive_due_partitions, max(0.02, min(1.0, self._tiers.archive_after / 4))),
            _PeriodicTask(
                self.trim_hot_partitions, max(0.02, min(HOT_TRIM_INTERVAL_SECONDS, self._tiers.hot_retention / 4))
            ),
            _PeriodicTask(self._mark_all_partitions_due, SCAN_INTERVAL_SECONDS),
            _PeriodicTask(self.merge_segments, MERGE_INTERVAL_SECONDS),
            _PeriodicTask(self.sweep, max(1.0, min(SWEEP_INTERVAL_SECONDS, self._tiers.unreferenced_grace / 4))),
        )
        if self._closing.wait(tasks[0].every):
            return
        self._try_until_stopped(self._mark_all_partitions_due)
        while not self._closing.wait(min(each.seconds_until_due() for each in tasks)):
            for each in tasks:
                if each.seconds_until_due() <= 0:
                    self._try_until_stopped(each.work)
                    each.schedule_next()

    def _run_and_count_failure(self, operation: str, thing: str, work: Callable[[], None]) -> bool:
        if self._closing.is_set():
            raise ChoreStopped
        succeeded = run_and_log_failure(operation, thing, work)
        if not succeeded:
            self._metrics.archive_failures.add(1, operation)
        return succeeded

    def _describe(self, topic: str, partition: int) -> str:
        return describe_partition(self._directory, topic, partition)

    def _longest_wait(self) -> float:
        """The longest wait in seconds. Other threads add waiting partitions meanwhile, so the mapping is copied
        first.
        """
        since = (*self._waiting.values(), *self._waiting_in_vain.values())
        return max(0.0, self._clock.monotonic() - min(since, default=inf))

    def _try_until_stopped(self, work: Callable[[], None]) -> None:
        try:
            work()
        except ChoreStopped:
            pass
        except Unavailable as error:
            log.warning("Archiving has to wait: %s", error)
        except Exception:  # the next attempt may succeed, and only this place can log the error
            log.exception("The work on the archive failed")

    def _mark_all_partitions_due(self) -> None:
        """Mark all partitions as due, even if this process has not appended to them: other or earlier processes may
        have stored events there."""
        due = self._clock.monotonic() - self._tiers.archive_after
        known = [
            (topic, known.partitions) for topic in self._index.topic_names() if (known := self._index.topic(topic))
        ]
        for topic, partitions in (*self._directory.topics(), *known):
            for partition in range(partitions):
                self._waiting.setdefault((topic, partition), due)

    def _archive_due_partitions(self) -> None:
        due = self._clock.monotonic() - self._tiers.archive_after
        self._archive_partitions(
            [partition for partition, since in list(self._waiting.items()) if since <= due], WorkPacer(self._closing)
        )

    def _archive_partitions(self, due: list[TopicPartition], pause: Callable[[], None]) -> int:
        """Archive these partitions, and return how many topics could not be archived."""
        topics: dict[str, list[int]] = {}
        for topic, partition in due:
            topics.setdefault(topic, []).append(partition)
        return sum(
            not self._run_and_count_failure(
                "archiving",
                describe_topic(self._directory, topic),
                partial(self._archive_topic, topic, partitions, pause),
            )
            for topic, partitions in topics.items()
        )

    def _archive_topic(self, topic: str, partitions: list[int], pause: Callable[[], None]) -> None:
        now = self._clock.monotonic()
        waited = {(topic, partition): self._waiting.pop((topic, partition), now) for partition in partitions}
        try:
            with self._archive_lock:
                while self._archiver.archive_next_object(topic, partitions, pause):
                    pause()
        except UnknownTopic:
            pass
        except BaseException:
            # The partition begins to wait anew, so that a failing archive is not retried without a pause.
            for each, since in waited.items():
                self._waiting.setdefault(each, self._clock.monotonic())
                self._waiting_in_vain.setdefault(each, since)
            raise
        else:
            self._trimmable.update(waited)
            pause()
        for each in waited:
            self._waiting_in_vain.pop(each, None)

    def _unindex_deleted_topic(self, topic: str) -> None:
        if not self._topic_exists(topic):
            self._index.delete_topic(topic)

    def _topic_exists(self, topic: str) -> bool:
        try:
            self._hot.bounds(topic, [])
        except UnknownTopic:
            return False
        return True


class WorkPacer:
    """Pauses work: each call pauses in proportion to the time of work since the last pause. Raises `ChoreStopped` when
    the worker closes.
    """

    def __init__(self, closing: threading.Event) -> None:
        self._closing = closing
        self._began = time.monotonic()

    def __call__(self) -> None:
        if self._closing.wait(PAUSE_RATIO * min(1.0, time.monotonic() - self._began)):
            raise ChoreStopped
        self._began = time.monotonic()


class _PeriodicTask:
    def __init__(self, work: Callable[[], None], every: float) -> None:
        self.work = work
        self.every = every
        self._due = time.monotonic() + min(every, FIRST_RUN_DELAY_SECONDS)

    def seconds_until_due(self) -> float:
        return self._due - time.monotonic()

    def schedule_next(self) -> None:
        self._due = time.monotonic() + self.every


def _no_pause() -> None:
    pass

"""Watching the shards of a stream: while there are watchers, every shard is polled, or Kinesis pushes its records."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from nakadi.engines.kinesis.call_rate import GrowingPauses
from nakadi.engines.kinesis.continuity import RETRY_TIMEOUT_SECONDS, GapFound, ShardTreeCache
from nakadi.engines.kinesis.failures import ShardBusy
from nakadi.engines.kinesis.fan_out import FanOut
from nakadi.engines.kinesis.restarting_reader import RestartingReader
from nakadi.model.outcomes import Unavailable

log = logging.getLogger(__name__)


MAX_GAP_WAIT_INTERVALS = 25
"""Housekeeping closes a gap, which takes minutes; until then, the watch reads a shard with a gap less often, by up to
this factor.
"""


class ShardWatch:
    """Follows each shard in a thread of its own, until `stop`.

    After a merge, the threads of both parents try to begin the new shard: the lock lets only one do so, and the shard
    stays in the table after its thread has ended, so that no shard is followed twice. `ShardTails` reads the new shard
    only when both parents are read to their ends.
    """

    def __init__(
        self, reader: RestartingReader, shard_trees: ShardTreeCache, interval: float, fan_out: FanOut | None = None
    ) -> None:
        self._reader = reader
        self._shard_trees = shard_trees
        self._interval = interval
        self._fan_out = fan_out
        self._lock = threading.Lock()
        self._threads: dict[str, threading.Thread] = {}
        self._ended = threading.Event()
        self._start_thread("", self._start_threads_of_leaves)

    def stop(self) -> None:
        self._ended.set()

    def join_threads(self) -> None:
        # A copy is needed, because threads may still begin other threads, until they see `_ended` under the lock.
        for thread in tuple(self._threads.values()):
            thread.join()

    def _start_threads_of_leaves(self) -> None:
        while not self._ended.is_set():
            try:
                leaves = self._shard_trees.current.leaves()
            except Exception:  # after any error, go on, because other threads wait for reports
                log.warning("Listing the shards failed, trying again in %s s", self._interval, exc_info=True)
                self._ended.wait(self._interval)
                continue
            for shard in leaves:
                self._start_thread(shard, partial(self._follow, shard))
            return

    def _start_thread(self, name: str, work: Callable[[], None]) -> None:
        with self._lock:
            if name not in self._threads and not self._ended.is_set():
                thread = threading.Thread(target=work, name=f"kinesis-{name}", daemon=True)
                self._threads[name] = thread
                thread.start()

    def _follow(self, shard: str) -> None:
        """Read one shard to its end, then begin with its children."""
        while not self._ended.is_set():
            try:
                # A shard that another thread, such as one that begins a stream, has just read need not be read again.
                recently = time.monotonic() - self._interval / 2
                ended = self._reader.read_to_tip(shard, recently, GrowingPauses(RETRY_TIMEOUT_SECONDS))
                if not ended and self._fan_out is not None:
                    # The polls above read records that cannot be pushed, or that a silent subscription failed to
                    # deliver.
                    ended = self._reader.receive_pushed_records(shard, self._fan_out, self._ended.is_set)
                if ended and self._start_threads_of_children(shard):
                    return
            except GapFound as gap:
                log.warning("Watching shard %s waits for housekeeping: %s", shard, gap)
                self._ended.wait(MAX_GAP_WAIT_INTERVALS * self._interval)
            except ShardBusy as busy:
                log.warning("Watching waits: %s", busy)
                self._ended.wait(busy.retry_after_seconds)
            except Unavailable:
                log.warning("Shard %s is polled again", shard, exc_info=True)
                if self._is_gone_from_stream(shard):
                    self._start_threads_of_leaves()
                    return
            except Exception:  # any error, as above
                log.exception("Shard %s is polled again", shard)
            self._ended.wait(self._interval)

    def _is_gone_from_stream(self, shard: str) -> bool:
        try:
            return shard not in self._shard_trees.refresh()
        except Unavailable:
            return False

    def _start_threads_of_children(self, shard: str) -> bool:
        children = self._shard_trees.current.children(shard) or self._shard_trees.refresh().children(shard)
        for child in children:
            self._start_thread(child, partial(self._follow, child))
        return bool(children)


class SharedShardWatch:
    """Watches as long as there are watchers.

    When the last watcher leaves, the watch ends. The watcher does not wait for the end, because the watch's threads may
    wait for Kinesis. If another watcher comes meanwhile, two threads read a shard for a moment. Each record is still
    taken once, by the reader of its shard, which has a lock.
    """

    def __init__(self, begin_watch: Callable[[], ShardWatch]) -> None:
        self._begin_watch = begin_watch
        self._lock = threading.Lock()
        self._wanted = 0
        self._watch: ShardWatch | None = None
        self._closed = False

    def add_watcher(self) -> None:
        with self._lock:
            if self._closed:
                raise Unavailable("The event log is closed.")
            self._wanted += 1
            if self._watch is None:
                self._watch = self._begin_watch()

    def remove_watcher(self) -> None:
        with self._lock:
            self._wanted -= 1
            if not self._wanted and self._watch is not None:
                self._watch.stop()
                self._watch = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        self.add_watcher()
        try:
            yield
        finally:
            self.remove_watcher()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()
            watch.join_threads()

"""Watching: while there are watchers, every shard is polled, or pushed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from nakadi.engines.kinesis.continuity import GIVE_UP_AFTER, Ancestry, GapFound
from nakadi.engines.kinesis.fan_out import FanOut
from nakadi.engines.kinesis.reading import LastingReader
from nakadi.engines.kinesis.stream import Patience
from nakadi.model.outcomes import Unavailable

log = logging.getLogger(__name__)

GAP_INTERVALS = 25
"""A gap is closed by housekeeping, which takes minutes: until then a shard is not asked as often."""


class Watch:
    """One thread for each shard, from now until `end`."""

    def __init__(
        self, reader: LastingReader, ancestry: Ancestry, interval: float, fan_out: FanOut | None = None
    ) -> None:
        self._reader = reader
        self._ancestry = ancestry
        self._interval = interval
        self._fan_out = fan_out
        self._lock = threading.Lock()
        self._threads: dict[str, threading.Thread] = {}
        self._ended = threading.Event()
        self._begin("", self._begin_leaves)

    def end(self) -> None:
        self._ended.set()

    def join(self) -> None:
        for thread in tuple(self._threads.values()):
            thread.join()

    def _begin_leaves(self) -> None:
        while not self._ended.is_set():
            try:
                leaves = self._ancestry.current.leaves()
            except Exception:  # whatever it was, those who wait for news must not wait for ever
                log.warning("Listing the shards failed, tried again in %s s", self._interval, exc_info=True)
                self._ended.wait(self._interval)
                continue
            for shard in leaves:
                self._begin(shard, partial(self._follow, shard))
            return

    def _begin(self, name: str, work: Callable[[], None]) -> None:
        with self._lock:
            if name not in self._threads and not self._ended.is_set():
                thread = threading.Thread(target=work, name=f"kinesis-{name}", daemon=True)
                self._threads[name] = thread
                thread.start()

    def _follow(self, shard: str) -> None:
        """Read one shard to its end, then begin with those that came from it."""
        while not self._ended.is_set():
            try:
                ended = self._reader.advance(shard, time.monotonic(), Patience(GIVE_UP_AFTER))
                if not ended and self._fan_out is not None:
                    # What cannot be pushed, and what a subscription that fell silent did not tell, is asked for above.
                    ended = self._reader.follow(shard, self._fan_out, self._ended.is_set)
                if ended and self._begin_children(shard):
                    return
            except GapFound as gap:
                log.warning("Watching shard %s waits for housekeeping: %s", shard, gap)
                self._ended.wait(GAP_INTERVALS * self._interval)
            except Unavailable:
                log.warning("Shard %s is asked again", shard, exc_info=True)
                if self._is_forgotten(shard):
                    self._begin_leaves()
                    return
            except Exception:  # as above
                log.exception("Shard %s is asked again", shard)
            self._ended.wait(self._interval)

    def _is_forgotten(self, shard: str) -> bool:
        try:
            return shard not in self._ancestry.refreshed()
        except Unavailable:
            return False

    def _begin_children(self, shard: str) -> bool:
        children = self._ancestry.current.children(shard) or self._ancestry.refreshed().children(shard)
        for child in children:
            self._begin(child, partial(self._follow, child))
        return bool(children)


class Watcher:
    """Watches as long as there are watchers."""

    def __init__(
        self, reader: LastingReader, ancestry: Ancestry, interval: float, fan_out: FanOut | None = None
    ) -> None:
        self._reader = reader
        self._ancestry = ancestry
        self._interval = interval
        self._fan_out = fan_out
        self._lock = threading.Lock()
        self._wanted = 0
        self._watch: Watch | None = None
        self._closed = False

    def wanted(self) -> None:
        with self._lock:
            if self._closed:
                raise Unavailable("The event log is closed.")
            self._wanted += 1
            if self._watch is None:
                self._watch = Watch(self._reader, self._ancestry, self._interval, self._fan_out)

    def not_wanted(self) -> None:
        with self._lock:
            self._wanted -= 1
            if not self._wanted and self._watch is not None:
                self._watch.end()
                self._watch = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        self.wanted()
        try:
            yield
        finally:
            self.not_wanted()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            watch, self._watch = self._watch, None
        if watch is not None:
            watch.end()
            watch.join()

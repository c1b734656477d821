"""Listeners: functions that are called when events or changes arrive."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nakadi.model.events import EventSlice
from nakadi.model.outcomes import Unavailable
from nakadi.model.subscription import SubscriptionChangeNotice

PartitionListener = Callable[[str, int], None]

_log = logging.getLogger(__name__)


class PartitionListeners:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        # The dictionary is replaced as a whole and never changed, so that announcing needs no lock.
        self._listeners: dict[int, PartitionListener] = {}
        self._waiting: set[threading.Event] = set()

    def add_change_listener(self, on_change: PartitionListener) -> Callable[[], None]:
        with self._lock:
            number = next(self._numbers)
            self._listeners = {**self._listeners, number: on_change}
        return lambda: self._remove_listener(number)

    def announce_events(self, topic: str, partition: int) -> None:
        for listener in self._listeners.values():
            try:
                listener(topic, partition)
            except Exception:  # noqa: BLE001  # a listener is code of other parts
                # An error of one listener must not affect the other listeners or the publisher.
                _log.exception("a listener failed")

    def wait_for_events(
        self, topic: str, partition: int, read_now: Callable[[], EventSlice], wait: float
    ) -> EventSlice:
        """The result of `read_now`, as soon as it has events or `wait` seconds have passed."""
        found = read_now()
        if found.events or wait <= 0:
            return found
        end = time.monotonic() + wait
        with self._event_set_on_arrival(topic, partition) as arrived:
            while True:
                arrived.clear()
                found = read_now()
                if found.events or not arrived.wait(end - time.monotonic()):
                    return found

    def wake_waiting_readers(self) -> None:
        with self._lock:
            for event in self._waiting:
                event.set()

    @contextmanager
    def _event_set_on_arrival(self, topic: str, partition: int) -> Iterator[threading.Event]:
        arrived = threading.Event()

        def note_change(*place: object) -> None:
            if place == (topic, partition):
                arrived.set()

        end = self.add_change_listener(note_change)
        with self._lock:
            self._waiting.add(arrived)
        try:
            yield arrived
        finally:
            end()
            with self._lock:
                self._waiting.remove(arrived)

    def _remove_listener(self, number: int) -> None:
        with self._lock:
            self._listeners = {each: listener for each, listener in self._listeners.items() if each != number}


SubscriptionListener = Callable[[SubscriptionChangeNotice], None]


class SubscriptionListeners:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Tuples are replaced as a whole, so that calling listeners needs no lock.
        self._of: dict[str, tuple[tuple[object, SubscriptionListener], ...]] = {}

    def add_listener(self, subscription: str, on_change: SubscriptionListener) -> Callable[[], None]:
        # The same function may be registered twice; the token distinguishes the registrations, so that each can be
        # ended by itself.
        watch = object()
        with self._lock:
            self._of[subscription] = (*self._of.get(subscription, ()), (watch, on_change))
        return lambda: self._remove_listener(subscription, watch)

    def notify_listeners(self, subscription: str, changed: SubscriptionChangeNotice) -> None:
        for _, listener in self._of.get(subscription, ()):
            try:
                listener(changed)
            except Exception:  # noqa: BLE001  # a listener is code of other parts
                # An error of one listener must not affect the other listeners or the committer.
                _log.exception("a listener failed")

    def _remove_listener(self, subscription: str, watch: object) -> None:
        with self._lock:
            rest = tuple(each for each in self._of.get(subscription, ()) if each[0] is not watch)
            if rest:
                self._of[subscription] = rest
            else:
                self._of.pop(subscription, None)


def callable_once(end: Callable[[], None]) -> Callable[[], None]:
    ended: list[bool] = []

    def end_once() -> None:
        if not ended:
            ended.append(True)
            end()

    return end_once


class ChangePoller(ABC):
    """A thread that polls a store for changes by other processes, while this process has watchers.

    The thread starts with the first watcher, and pauses while there are none.
    """

    def __init__(self, store: str, *, thread_name: str) -> None:
        self._store = store
        self._thread_name = thread_name
        self._lock = threading.Lock()
        self._watchers = 0
        self._wanted = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def add_watcher(self) -> None:
        """Begin to report changes by other processes."""
        with self._lock:
            if self._closed.is_set():
                raise Unavailable(f"{self._store} is closed.")
            if self._watchers == 0:
                self._skip_past_changes()
            self._watchers += 1
            self._wanted.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._poll, name=self._thread_name, daemon=True)
                self._thread.start()

    def remove_watcher(self) -> None:
        with self._lock:
            self._watchers -= 1
            if self._watchers == 0:
                self._wanted.clear()

    def close(self) -> None:
        with self._lock:
            self._closed.set()
        # Wake a thread that pauses, so that it ends.
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()

    @abstractmethod
    def _skip_past_changes(self) -> None:
        """Skip all changes so far. Called while holding the lock, before the first watcher is added."""

    @abstractmethod
    def _poll(self) -> None:
        """Poll while `_wanted` is set, until `_closed` is."""

"""Telling those who wait or watch that events were stored."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nakadi.model.events import Slice

Listener = Callable[[str, int], None]

_log = logging.getLogger(__name__)


class Announcements:
    """The listeners of one event log."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        # Replaced as a whole and never changed, so that announcing needs no lock.
        self._listeners: dict[int, Listener] = {}
        self._waiting: set[threading.Event] = set()

    def watch(self, changed: Listener) -> Callable[[], None]:
        with self._lock:
            number = next(self._numbers)
            self._listeners = {**self._listeners, number: changed}
        return lambda: self._forget(number)

    def announce(self, topic: str, partition: int) -> None:
        for listener in self._listeners.values():
            try:
                listener(topic, partition)
            except Exception:  # noqa: BLE001  # a listener is somebody else's code
                # One listener's mistake must not keep the news from the others, nor hurt whoever publishes.
                _log.exception("a listener failed")

    def first_found(self, topic: str, partition: int, look: Callable[[], Slice], wait: float) -> Slice:
        """What `look` finds, once it finds something or so many seconds have passed."""
        found = look()
        if found.events or wait <= 0:
            return found
        end = time.monotonic() + wait
        with self._expecting(topic, partition) as arrived:
            while True:
                arrived.clear()
                found = look()
                if found.events or not arrived.wait(end - time.monotonic()):
                    return found

    def wake_all(self) -> None:
        """Have everybody who waits look again now."""
        with self._lock:
            for event in self._waiting:
                event.set()

    @contextmanager
    def _expecting(self, topic: str, partition: int) -> Iterator[threading.Event]:
        arrived = threading.Event()

        def changed(*place: object) -> None:
            if place == (topic, partition):
                arrived.set()

        end = self.watch(changed)
        with self._lock:
            self._waiting.add(arrived)
        try:
            yield arrived
        finally:
            end()
            with self._lock:
                self._waiting.remove(arrived)

    def _forget(self, number: int) -> None:
        with self._lock:
            self._listeners = {each: listener for each, listener in self._listeners.items() if each != number}

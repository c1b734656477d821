"""Telling those who watch a subscription that something of it changed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from nakadi.model.coordination import Changed

Listener = Callable[[Changed], None]

_log = logging.getLogger(__name__)


class Listeners:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Tuples are replaced as a whole, so that telling needs no lock.
        self._of: dict[str, tuple[Listener, ...]] = {}

    def add(self, subscription: str, listener: Listener) -> Callable[[], None]:
        # Somebody may watch twice with one function; each ends its own watch.
        def mine(changed: Changed) -> None:
            listener(changed)

        with self._lock:
            self._of[subscription] = (*self._of.get(subscription, ()), mine)
        return lambda: self._remove(subscription, mine)

    def tell(self, subscription: str, changed: Changed) -> None:
        for listener in self._of.get(subscription, ()):
            try:
                listener(changed)
            except Exception:  # noqa: BLE001  # a listener is somebody else's code
                # One listener's mistake must not keep the news from the others, nor hurt whoever commits.
                _log.exception("a listener failed")

    def _remove(self, subscription: str, listener: Listener) -> None:
        with self._lock:
            rest = tuple(each for each in self._of.get(subscription, ()) if each is not listener)
            if rest:
                self._of[subscription] = rest
            else:
                self._of.pop(subscription, None)


def once(end: Callable[[], None]) -> Callable[[], None]:
    ended: list[bool] = []

    def end_once() -> None:
        if not ended:
            ended.append(True)
            end()

    return end_once

"""Turns at long work: one at a time, while a few others wait.

Python lets one thread compute at a time. Several that compute for seconds would only take longer each, and every other
request has to get a word in between them. So long work is done by one thread after the other, and there is always room
for what is short.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nakadi.model.outcomes import TryLater

MOST_WAITING = 16
PATIENCE_SECONDS = 5.0
# How long it takes at most to see that a client has gone which waits for its turn.
LOOK_SECONDS = 0.1

BUSY = "Too much work is waiting, please repeat request"
GIVEN_UP = "The work was given up, for the client closed its connection or the broker is about to end"


def still_there() -> bool:
    """What is known of a client over a connection that tells nothing: it has not gone."""
    return False


class Turns:
    """`most_waiting` is how many threads may wait at once, so that some are left for what is short."""

    def __init__(self, most_waiting: int = MOST_WAITING, patience: float = PATIENCE_SECONDS) -> None:
        self._most_waiting = most_waiting
        self._patience = patience
        self._waiting = 0
        self._lock = threading.Lock()
        self._turn = threading.Lock()

    @property
    def waiting(self) -> int:
        """How many threads wait for their turn."""
        return self._waiting

    @contextmanager
    def turn(self, gone: Callable[[], bool]) -> Iterator[None]:
        """Wait for a turn, which lasts as long as the block; raise `TryLater` if that takes too long."""
        self._wait(gone)
        try:
            yield
        finally:
            self._turn.release()

    def _wait(self, gone: Callable[[], bool]) -> None:
        if self._turn.acquire(blocking=False):
            return
        with self._lock:
            if self._waiting >= self._most_waiting:
                raise TryLater(BUSY)
            self._waiting += 1
        try:
            remaining = self._patience
            while not self._turn.acquire(timeout=min(LOOK_SECONDS, remaining)):
                remaining -= LOOK_SECONDS
                if gone():
                    raise TryLater(GIVEN_UP)
                if remaining <= 0:
                    raise TryLater(BUSY)
        finally:
            with self._lock:
                self._waiting -= 1

"""Turns at long work.

Python lets one thread compute at a time. If several threads computed for seconds, each would only take longer, and
delay every other request. So threads take turns at long work, and short work never waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from nakadi.model.outcomes import TryLater

Result = TypeVar("Result")

MAX_WAITING_THREADS = 16
TURN_TIMEOUT_SECONDS = 5.0
# The longest time until a thread that waits for its turn notices that its client has left.
GONE_CLIENT_CHECK_INTERVAL_SECONDS = 0.1

TOO_MUCH_LONG_WORK_MESSAGE = "Too much work is waiting, please repeat request"
WORK_ABANDONED_MESSAGE = "The work was given up, because the client closed its connection or the broker is about to end"


class NeedsThread(BaseException):
    """Raised by quick work before it would wait, or before a slow step.

    It is a `BaseException`, because it is not a failure, and callers that handle `Exception` must not handle it.
    """


is_blocking_forbidden: ContextVar[bool] = ContextVar("is_blocking_forbidden", default=False)
"""Whether the current work is quick work, which must not wait."""


def run_without_blocking(work: Callable[[], Result]) -> Result:
    """The result of quick work, which must end within milliseconds, because everything else in the process waits
    meanwhile.

    Raises `NeedsThread` before the work waits.
    """
    token = is_blocking_forbidden.set(True)
    try:
        return work()
    finally:
        is_blocking_forbidden.reset(token)


def check_may_block() -> None:
    """Raise `NeedsThread` if this is quick work. Call this before anything that waits or takes long."""
    if is_blocking_forbidden.get():
        raise NeedsThread


def client_never_gone() -> bool:
    """The answer for a connection that cannot tell whether its client has left: assume that it has not."""
    return False


class LongWorkQueue:
    """Turns at long work, one at a time. `max_waiting` is the number of threads that may wait at once, so that some are
    left for short work.
    """

    def __init__(self, max_waiting: int = MAX_WAITING_THREADS, timeout_seconds: float = TURN_TIMEOUT_SECONDS) -> None:
        self._max_waiting = max_waiting
        self._timeout_seconds = timeout_seconds
        self._waiting = 0
        self._lock = threading.Lock()
        self._turn = threading.Lock()

    @property
    def waiting_count(self) -> int:
        return self._waiting

    @contextmanager
    def wait_for_turn(self, is_client_gone: Callable[[], bool]) -> Iterator[None]:
        """Wait for a turn, which lasts as long as the block; raise `TryLater` if that takes too long."""
        self._wait_for_turn(is_client_gone)
        try:
            yield
        finally:
            self._turn.release()

    def _wait_for_turn(self, is_client_gone: Callable[[], bool]) -> None:
        check_may_block()
        if self._turn.acquire(blocking=False):
            return
        with self._lock:
            if self._waiting >= self._max_waiting:
                raise TryLater(TOO_MUCH_LONG_WORK_MESSAGE)
            self._waiting += 1
        try:
            remaining = self._timeout_seconds
            while not self._turn.acquire(timeout=min(GONE_CLIENT_CHECK_INTERVAL_SECONDS, remaining)):
                remaining -= GONE_CLIENT_CHECK_INTERVAL_SECONDS
                if is_client_gone():
                    raise TryLater(WORK_ABANDONED_MESSAGE)
                if remaining <= 0:
                    raise TryLater(TOO_MUCH_LONG_WORK_MESSAGE)
        finally:
            with self._lock:
                self._waiting -= 1

"""Long work beside requests: it takes at most half of one processor, and lets others go first every half a millisecond.

One thread of Python computes at a time. A thread that only computes would let the event loop wait for five milliseconds
each time, because it gives way only when Python makes it. One that sleeps between short pieces gives way by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable

MAX_SECONDS_AT_ONCE = 0.0005


class Pacer:
    """Belongs to one thread. `pause` waits so many seconds, and `cpu_seconds` is what this thread has computed."""

    def __init__(self, pause: Callable[[float], None], cpu_seconds: Callable[[], float] = time.thread_time) -> None:
        self._pause = pause
        self._cpu_seconds = cpu_seconds
        self._paused_at = cpu_seconds()

    def give_way(self) -> None:
        """Pause for as long as the thread has computed since the last pause, if that was long enough."""
        spent = self._cpu_seconds() - self._paused_at
        if spent >= MAX_SECONDS_AT_ONCE:
            self._pause(spent)
            self._paused_at = self._cpu_seconds()

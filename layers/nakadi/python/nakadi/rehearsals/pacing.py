"""Paces long work beside requests, so that it takes at most half of one processor.

One thread of Python computes at a time. Servers make Python switch threads each half a millisecond (`tune_interpreter`
in `http/server.py`), so an event loop never waits longer than that, unless a single call takes longer. But a thread
that computes all the time would take half of the loop's time. So such a thread sleeps for as long as it has computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

# Shorter turns would cost more, because during each pause other work fills the caches of the processor.
MAX_SECONDS_AT_ONCE = 0.005


class Pacer:
    """Paces the work of one thread. `pause` waits for a number of seconds, and `cpu_seconds` returns the CPU time of
    this thread.
    """

    def __init__(self, pause: Callable[[float], None], cpu_seconds: Callable[[], float] = time.thread_time) -> None:
        self._pause = pause
        self._cpu_seconds = cpu_seconds
        self._paused_at = cpu_seconds()

    def give_way(self) -> None:
        """Pause for as long as the thread has computed since the last pause, if that was longer than
        `MAX_SECONDS_AT_ONCE`.
        """
        spent = self._cpu_seconds() - self._paused_at
        if spent >= MAX_SECONDS_AT_ONCE:
            self._pause(spent)
            self._paused_at = self._cpu_seconds()

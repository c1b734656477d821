"""The clock: the time of day, and seconds for measuring."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import partial
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """The time of day, aware, in UTC."""

    def monotonic(self) -> float:
        """Seconds that never go backwards, for measuring how long something takes."""

    def sleep(self, seconds: float) -> None:
        """Pause this thread for this number of seconds."""


class SystemClock:
    # Each request reads the clock several times, so Python's function is called directly, without a wrapper.
    now = staticmethod(partial(datetime.now, UTC))
    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)

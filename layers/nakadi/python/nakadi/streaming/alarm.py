"""An alarm that a stream sets for its next deadline, again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nakadi.ports import Clock

# Event loops count milliseconds and may wake us up to one too early, for nothing.
SLACK = 0.001

# An alarm that is farther off, or for no time at all, is set anew when it rings.
LONGEST = 3600.0


class Alarm:
    """Calls `ring` at the deadline or before; one that is too early costs less than setting a new one."""

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._set: tuple[float, asyncio.TimerHandle] | None = None

    def set(self, deadline: float) -> None:
        if self._set is not None and self._set[0] <= deadline:
            return
        self.cancel()
        delay = min(deadline - self._clock.monotonic() + SLACK, LONGEST)
        self._set = (deadline, asyncio.get_running_loop().call_later(delay, self._rings))

    def cancel(self) -> None:
        if self._set is not None:
            self._set[1].cancel()
            self._set = None

    def _rings(self) -> None:
        self._set = None
        self._ring()

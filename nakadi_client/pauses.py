"""The pauses before the next attempts."""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class Pauses(msgspec.Struct, frozen=True):
    """Pauses that double from `first` to `longest` seconds. Each is drawn from its upper half, so that clients that
    failed at the same time do not retry at the same time.
    """

    first: float = 0.1
    longest: float = 10.0

    def after(self, failures: int, draw: Callable[[], float], asked_for: float | None = None) -> float:
        """Return the pause after this many failures in a row.

        `draw` returns a number from 0 to 1. The broker's `Retry-After`, if any, is the minimum; up to a tenth is added
        to it.
        """
        longest = min(self.longest, self.first * float(2 ** min(max(failures - 1, 0), 30)))
        pause = longest * (0.5 + 0.5 * draw())
        if asked_for is None:
            return pause
        return max(pause, asked_for * (1 + 0.1 * draw()))

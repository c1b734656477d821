"""The time, which the simulation moves, and clocks that show it with an error."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

START = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


@dataclass(slots=True)
class SimulatedTime:
    """The true time. `behind` is how far the time of day has been set back, on all machines at once; steady clocks
    are not affected.
    """

    seconds: float = 0.0
    behind: float = 0.0

    def move(self, seconds: float) -> None:
        self.seconds += seconds


@dataclass(frozen=True, slots=True)
class SkewedClock:
    """A machine's clocks: its time of day is wrong by `skew` seconds, and its steady clock begins at an arbitrary
    value.
    """

    time: SimulatedTime
    skew: float = 0.0
    booted: float = 1000.0

    def now(self) -> datetime:
        return START + timedelta(seconds=self.time.seconds - self.time.behind + self.skew)

    def monotonic(self) -> float:
        return self.time.seconds + self.booted

    def sleep(self, seconds: float) -> None:
        self.time.move(seconds)

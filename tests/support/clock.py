"""Clocks that move when the test moves them."""

from datetime import UTC, datetime, timedelta

from nakadi.ports.clock import SystemClock


class MovableClock(SystemClock):
    """The system's clock, which a test can move forward."""

    def __init__(self) -> None:
        self._moved = 0.0

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self._moved)

    def monotonic(self) -> float:
        return SystemClock.monotonic() + self._moved

    def move(self, seconds: float) -> None:
        self._moved += seconds


class HandMovedClock:
    def __init__(self, start: datetime = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)) -> None:
        self._start_or_replay = start
        self._passed = 0.0
        self._behind = 0.0

    def now(self) -> datetime:
        return self._start_or_replay + timedelta(seconds=self._passed - self._behind)

    def monotonic(self) -> float:
        return self._passed

    def sleep(self, seconds: float) -> None:
        """Move the clock by these seconds, and return at once."""
        self.move(seconds)

    def move(self, seconds: float) -> None:
        self._passed += seconds

    def stand_still(self, seconds: float) -> None:
        """Stop the steady clock for these seconds, as when a machine is suspended; the time of day continues."""
        self._behind -= seconds

    def set_back(self, seconds: float) -> None:
        """Set back the time of day; the steady clock continues."""
        self._behind += seconds

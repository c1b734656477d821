"""A clock that moves when the test moves it."""

from datetime import UTC, datetime, timedelta


class HandMovedClock:
    def __init__(self, start: datetime = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)) -> None:
        self._start = start
        self._passed = 0.0

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._passed)

    def monotonic(self) -> float:
        return self._passed

    def move(self, seconds: float) -> None:
        self._passed += seconds

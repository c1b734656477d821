"""What is counted and timed while requests are answered, in the shape that monitoring of Nakadi expects."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nakadi.chores import failures

# Enough for a 99.9th percentile to mean something, little enough to sort whenever somebody looks.
SAMPLES = 2048


@dataclass(slots=True)
class _Timer:
    count: int = 0
    total: float = 0.0
    samples: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))

    def update(self, seconds: float) -> None:
        self.count += 1
        self.total += seconds
        self.samples.append(seconds)

    def view(self, uptime: float) -> dict[str, Any]:
        ordered = sorted(self.samples)
        quantiles = {"p50": 0.5, "p75": 0.75, "p95": 0.95, "p98": 0.98, "p99": 0.99, "p999": 0.999}
        return {
            "count": self.count,
            "max": ordered[-1],
            "mean": sum(ordered) / len(ordered),
            "min": ordered[0],
            **{name: ordered[int(share * (len(ordered) - 1))] for name, share in quantiles.items()},
            "mean_rate": self.count / max(uptime, 1.0),
            "duration_units": "seconds",
            "rate_units": "calls/second",
        }


class Metrics:
    """Counters and timers by name. `gauge` values are asked for when somebody looks."""

    def __init__(self, started: float) -> None:
        self._started = started
        self._lock = threading.Lock()
        self._counters: dict[str, int] = {}
        self._timers: dict[str, _Timer] = {}

    def answered(self, operation: str, status: int, seconds: float) -> None:
        with self._lock:
            self._count(f"nakadi.http.{operation}.{status}")
            self._timers.setdefault(f"nakadi.http.{operation}", _Timer()).update(seconds)

    def count(self, name: str, number: int) -> None:
        with self._lock:
            self._count(name, number)

    def _count(self, name: str, number: int = 1) -> None:
        self._counters[name] = self._counters.get(name, 0) + number

    def view(self, now: float) -> Mapping[str, Any]:
        uptime = now - self._started
        chores = {f"nakadi.chores.failed.{_dashed(name)}": count for name, count in failures().items()}
        with self._lock:
            return {
                "version": "4.0.0",
                "gauges": {"nakadi.uptime": {"value": uptime}},
                "counters": {name: {"count": count} for name, count in sorted({**self._counters, **chores}.items())},
                "histograms": {},
                "meters": {},
                "timers": {name: timer.view(uptime) for name, timer in sorted(self._timers.items())},
            }


def _dashed(operation: str) -> str:
    return operation.replace(" ", "-")

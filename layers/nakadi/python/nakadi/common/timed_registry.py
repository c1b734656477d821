"""A registry whose calls are timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from nakadi.common.counting import Histogram
from nakadi.ports.clock import Clock
from nakadi.ports.registry import Registry

Parameters = ParamSpec("Parameters")
Answer = TypeVar("Answer")


class TimedRegistry:
    """Adds the seconds of each call to a histogram with the label `call`, also if the call fails."""

    def __init__(self, registry: Registry, seconds: Histogram, clock: Clock) -> None:
        self._seconds = seconds
        self._clock = clock
        self.get = self._time_calls("get", registry.get)
        self.list = self._time_calls("list", registry.list)
        self.write = self._time_calls("write", registry.write)
        self.change_counters = self._time_calls("change_counters", registry.change_counters)
        self.close = registry.close

    def _time_calls(self, name: str, call: Callable[Parameters, Answer]) -> Callable[Parameters, Answer]:
        def call_and_time(*arguments: Parameters.args, **named: Parameters.kwargs) -> Answer:
            __tracebackhide__ = True  # a report of waiting threads shows the caller instead
            began = self._clock.monotonic()
            try:
                return call(*arguments, **named)
            finally:
                self._seconds.observe(self._clock.monotonic() - began, name)

        return call_and_time

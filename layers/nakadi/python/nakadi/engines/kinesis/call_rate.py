"""Turns and pauses for calls to a shard, which accepts five reads a second."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nakadi.engines.kinesis.failures import ShardBusy, StreamCallFailed

MAX_READ_INTERVAL_SECONDS = 3.0
"""The longest time between two reads of a shard that many processes read."""


class CallRate:
    """Limits how often calls for one name, such as a shard, are made, and slows down while other processes call too."""

    def __init__(self, interval: float, longest: float = MAX_READ_INTERVAL_SECONDS) -> None:
        self._shortest = interval
        self._longest = max(longest, interval)
        self._lock = threading.Lock()
        self._next: dict[str, float] = {}
        self._intervals: dict[str, float] = {}

    def slow_down(self, name: str) -> None:
        """Make the next calls for this name less frequent. Use this after a call that was refused because there are too
        many.
        """
        with self._lock:
            self._intervals[name] = min(2 * self._interval_of(name), self._longest)

    def speed_up(self, name: str) -> None:
        """Make the next calls for this name more frequent. Use this after a call that was answered, because there may
        be room for more.
        """
        with self._lock:
            self._intervals[name] = max(0.95 * self._interval_of(name), self._shortest)

    @contextmanager
    def observe_outcome(self, name: str) -> Iterator[None]:
        """A context around a call. The outcome of the call decides when the next one is due."""
        try:
            yield
        except StreamCallFailed as trouble:
            if trouble.is_temporary and trouble.had_no_effect:
                self.slow_down(name)
            raise
        self.speed_up(name)

    def _interval_of(self, name: str) -> float:
        return self._intervals.get(name, self._shortest)

    def check_has_room(self, name: str, longest_wait: float) -> None:
        """Raise `ShardBusy` if the next turn is further away than `longest_wait`."""
        with self._lock:
            self._find_turn(name, time.monotonic(), longest_wait)

    def _find_turn(self, name: str, now: float, longest_wait: float) -> float:
        turn = max(now, self._next.get(name, now))
        if turn - now > longest_wait:
            raise ShardBusy(name, turn - now)
        return turn

    def wait_for_turn(self, name: str, longest_wait: float = math.inf) -> None:
        """Wait for the next turn, and take it. Raises `ShardBusy` at once if it is further away than `longest_wait`."""
        with self._lock:
            now = time.monotonic()
            turn = self._find_turn(name, now, longest_wait)
            # Randomized, so that callers that were rejected together do not retry together.
            spread = random.uniform(0.5, 1.5) if self._interval_of(name) > self._shortest else 1.0  # noqa: S311  # nothing to guess
            self._next[name] = turn + spread * self._interval_of(name)
        if turn > now:
            time.sleep(turn - now)


class GrowingPauses:
    """Repeats failed calls, with growing pauses, until this many seconds have passed."""

    def __init__(self, seconds: float, shortest: float = 0.05, longest: float = 1.0) -> None:
        self._end = time.monotonic() + seconds
        self._pause = shortest
        self._longest = longest

    @property
    def seconds_left(self) -> float:
        return max(self._end - time.monotonic(), 0.0)

    @property
    def is_over(self) -> bool:
        return time.monotonic() + self._pause >= self._end

    def pause(self) -> None:
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, self._longest)

    def retry(self, call: Callable[[], Any]) -> Any:
        """Call a function that can be repeated safely, until it succeeds or the time ends."""
        while True:
            try:
                return call()
            except StreamCallFailed as trouble:
                if not trouble.is_temporary or self.is_over:
                    raise
            self.pause()

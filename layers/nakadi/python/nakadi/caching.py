"""Remembering what was read, for a stated time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from nakadi.ports import Clock

Key = TypeVar("Key")
Value = TypeVar("Value")

# Names come from requests; a stranger asking for many must not fill the memory.
MOST_ENTRIES = 10_000


class Cache(Generic[Key, Value]):
    """Values that are at most `seconds` old. `forget` makes the next look-up read again."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._lock = threading.Lock()
        self._entries: dict[Key, tuple[float, Value]] = {}
        self._forgotten = 0

    def get(self, key: Key, read: Callable[[], Value]) -> Value:
        entry = self._entries.get(key)
        if entry is not None and self._clock.monotonic() < entry[0]:
            return entry[1]
        begun = self._forgotten
        value = read()
        with self._lock:
            # What was read before somebody changed it must not be remembered after.
            if begun == self._forgotten:
                self._remember(key, value)
        return value

    def _remember(self, key: Key, value: Value) -> None:
        if len(self._entries) >= MOST_ENTRIES:
            self._entries.clear()
        self._entries[key] = (self._clock.monotonic() + self._seconds, value)

    def forget(self, key: Key) -> None:
        with self._lock:
            self._forgotten += 1
            self._entries.pop(key, None)

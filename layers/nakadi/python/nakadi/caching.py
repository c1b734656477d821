"""Remembering what was read, for as long as nobody changed it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

from nakadi.model.changes import Changes, bucket_of
from nakadi.ports.clock import Clock
from nakadi.ports.registry import REMEMBERED

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

# Names come from requests; a stranger asking for many must not fill the memory.
MOST_ENTRIES = 10_000

# However the numbers stand. A process of an older version, or somebody with a console, may have changed a document
# without counting it.
LONGEST_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Look:
    """What the numbers were, and when asking for them began: by the clock of the caches, and by the two clocks of the
    machine, of which one may be put back and the other stop with the machine."""

    changes: Changes
    began: float
    monotonic: float
    wall: float


class ChangeWatch:
    """Asks what changed, once for all caches of a process."""

    def __init__(self, ask: Callable[[], Changes], clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self._lock = threading.Lock()
        self._asking: tuple[float, Future[Look]] | None = None
        self.latest: Look | None = None

    def look(self, seconds: float) -> Look:
        """A look that began less than `seconds` ago. Several threads that need a new one share it."""
        now = self._clock.monotonic()
        latest = self.latest
        if latest is not None and now - latest.began < seconds:
            return latest
        answer: Future[Look] = Future()
        with self._lock:
            asking = self._asking
            if asking is None or now - asking[0] >= seconds:
                self._asking = mine = (now, answer)
            else:
                mine = None
        if mine is None:
            assert asking is not None
            return asking[1].result()
        try:
            look = Look(began=now, monotonic=time.monotonic(), wall=time.time(), changes=self._ask())
        except BaseException as error:
            self._finish(mine, None)
            answer.set_exception(error)
            raise
        self._finish(mine, look)
        answer.set_result(look)
        return look

    def _finish(self, mine: tuple[float, Future[Look]], look: Look | None) -> None:
        with self._lock:
            if self._asking is mine:
                self._asking = None
            # A look that began earlier may arrive later.
            if look is not None and (self.latest is None or self.latest.began <= look.began):
                self.latest = look


@dataclass(frozen=True, slots=True)
class _Entry(Generic[Value]):
    """`number` is what its bucket had before the value was read."""

    value: Value
    bucket: int
    number: int | None
    until: float

    def stands(self, look: Look | None) -> bool:
        return look is None or look.changes.number(self.bucket) == self.number


class Cache(Generic[Key, Value]):
    """What documents of a kind say, as it was at most `seconds` ago. `forget` makes the next look-up read again.

    With a watch, a value is read again when its document may have changed, however long it is remembered. The number
    that stands beside it was asked for before it was read: while the number is the same, so is the document. Without a
    watch, a value is read again when it is older.
    """

    def __init__(self, clock: Clock, seconds: float, watch: ChangeWatch | None = None, kind: str = "") -> None:
        assert watch is None or kind in REMEMBERED
        self._clock = clock
        self._seconds = seconds
        self._watch = watch
        self._kind = kind
        self._lock = threading.Lock()
        self._entries: dict[Key, _Entry[Value]] = {}
        self._forgotten = 0
        # Counted without the lock, which readers do without: two threads at once may count as one.
        self.hits = 0
        self.misses = 0

    def get(self, key: Key, read: Callable[[], Value]) -> Value:
        entry = self._entries.get(key)
        look = self._watch.look(self._seconds) if self._watch is not None else None
        if entry is not None and self._clock.monotonic() < entry.until and entry.stands(look):
            self.hits += 1
            return entry.value
        self.misses += 1
        begun, now = self._forgotten, self._clock.monotonic()
        value = read()
        with self._lock:
            # What was read before somebody changed it must not be remembered after.
            if begun == self._forgotten:
                self._remember(key, value, now, look)
        return value

    def _remember(self, key: Key, value: Value, now: float, look: Look | None) -> None:
        if len(self._entries) >= MOST_ENTRIES:
            self._entries.clear()
        if look is None:
            self._entries[key] = _Entry(value, 0, None, self._clock.monotonic() + self._seconds)
        else:
            bucket = bucket_of(self._kind, str(key))
            self._entries[key] = _Entry(value, bucket, look.changes.number(bucket), now + LONGEST_SECONDS)

    def forget(self, key: Key) -> None:
        with self._lock:
            self._forgotten += 1
            self._entries.pop(key, None)

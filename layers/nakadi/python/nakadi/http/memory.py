"""The memory that requests take for their bodies, as sent, unpacked and parsed: all of them together have a limit.

Nothing waits for memory, so nothing can wait for ever: a request that cannot have what it needs is refused at once.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

from nakadi.model.outcomes import TooLarge, TryLater

# What a request has to have taken so that giving memory back to the system is worth a few milliseconds.
WORTH_RETURNING = 4 * 1024 * 1024


class Memory:
    """How much memory requests may take, and have taken. Threads share it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._taken = 0

    @property
    def taken(self) -> int:
        return self._taken

    def share(self) -> Share:
        """The part of a new request; it has to be closed."""
        return Share(self)

    def take(self, size: int, share: int) -> None:
        """Take more for a request that has a share of so many bytes; raises `TooLarge` or `TryLater`."""
        if share + size > self._limit:
            raise TooLarge(f"The request needs more than the {self._limit} bytes of memory that all requests have")
        with self._lock:
            if self._taken + size > self._limit:
                raise TryLater("There is not enough memory for this request at the moment, please repeat request")
            self._taken += size

    def give_back(self, size: int) -> None:
        with self._lock:
            self._taken -= size


class Share:
    """What one request has taken. Without a `Memory` there is no limit."""

    def __init__(self, memory: Memory | None = None) -> None:
        self._memory = memory
        # An edge closes it while a thread may still be at work for a request that was given up.
        self._lock = threading.Lock()
        self.taken = 0
        self._closed = False

    def take(self, size: int) -> None:
        """Take so many bytes more, until the share is closed; raises `TooLarge` or `TryLater`."""
        if self._memory is None:
            return
        with self._lock:
            if not self._closed:
                self._memory.take(size, self.taken)
                self.taken += size

    def close(self) -> None:
        """Give everything back. Doing it again changes nothing."""
        with self._lock:
            if self._memory is not None and not self._closed:
                self._memory.give_back(self.taken)
            self._closed = True


UNLIMITED = Share()
"""The share of requests that nobody counts."""


def return_to_the_system() -> None:
    """Give back what the allocator of the C library keeps of memory that was freed, in pieces between others."""
    trim = _trimming()
    if trim is not None:
        trim(0)


def _trimming() -> Callable[[int], int] | None:
    """The function for it, which only some libraries have."""
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    return found

"""Limits the memory that all requests together may take, and the free memory that the allocator keeps."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

from nakadi.model.outcomes import TooLarge, TryLater

# The memory that a request must have taken to make returning memory to the system worth a few milliseconds.
MIN_BYTES_TO_TRIM = 4 * 1024 * 1024


class RequestMemory:
    """How much memory all requests together may take, and how much they have taken. Threads share this object."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._taken = 0

    @property
    def taken_bytes(self) -> int:
        return self._taken

    def open_share(self) -> MemoryShare:
        """The share of a new request. The caller must close it."""
        return MemoryShare(self)

    def take(self, size: int, share_size: int) -> None:
        """Take more memory for a request that has a share of this size. Raises `TooLarge` or `TryLater`."""
        if share_size + size > self._limit:
            raise TooLarge(f"The request needs more than the {self._limit} bytes of memory that all requests have")
        with self._lock:
            if self._taken + size > self._limit:
                raise TryLater("There is not enough memory for this request at the moment, please repeat request")
            self._taken += size

    def release(self, size: int) -> None:
        with self._lock:
            self._taken -= size


class MemoryShare:
    """The memory of one request. Without a `RequestMemory`, there is no limit."""

    def __init__(self, memory: RequestMemory | None = None) -> None:
        self._memory = memory
        # An edge may close a share while a thread still works on its request, which was given up.
        self._lock = threading.Lock()
        self.taken = 0
        self._closed = False

    def take(self, size: int) -> None:
        """Take this number of additional bytes until the share is closed. Raises `TooLarge` or `TryLater`."""
        if self._memory is None:
            return
        with self._lock:
            if not self._closed:
                self._memory.take(size, self.taken)
                self.taken += size

    def release_down_to(self, taken: int) -> None:
        """Release everything beyond this size, before work begins again."""
        with self._lock:
            if self._memory is not None and not self._closed:
                self._memory.release(self.taken - taken)
                self.taken = taken

    def close(self) -> None:
        """Release everything. A second call changes nothing."""
        with self._lock:
            if self._memory is not None and not self._closed:
                self._memory.release(self.taken)
            self._closed = True


UNLIMITED_SHARE = MemoryShare()
"""The share of requests whose memory has no limit."""


ALLOCATOR_OPTIONS = {
    # `M_ARENA_MAX`. By default there are eight arenas for each processor. Each arena keeps the most memory that its
    # threads once needed at the same time, although threads need that much at different times.
    -8: 2,
    # `M_MMAP_THRESHOLD` and `M_TRIM_THRESHOLD`, in bytes. By default, both grow to the size of the largest piece that
    # was ever freed, such as an object of the archive; after that, pieces of up to this size are no longer returned to
    # the system.
    -3: 1024 * 1024,
    -1: 4 * 1024 * 1024,
}
"""Parameters of GNU's `mallopt`, and their values."""


def tune_allocator() -> None:
    """Have the C library's allocator keep little free memory; call it before the first thread starts."""
    set_option = _find_c_function("mallopt")
    if set_option is not None:
        for option, value in ALLOCATOR_OPTIONS.items():
            set_option(option, value)


def trim_memory() -> None:
    """Return freed memory to the system that the C library's allocator keeps between used pieces."""
    trim = _find_c_function("malloc_trim")
    if trim is not None:
        trim(0)


def _find_c_function(name: str) -> Callable[..., int] | None:
    """A function of the allocator, which only some C libraries have."""
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return None
    return function

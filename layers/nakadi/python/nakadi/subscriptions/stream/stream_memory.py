"""How many bytes of events the streams of a process may hold for clients that are slow to commit them.

A stream over HTTP needs no such bound, because its client holds what was sent. The streams of sinks hold their events
in this process until these are delivered and committed, and a sink that is down must not fill the memory.
"""

from __future__ import annotations

from msgspec import Struct


class StreamMemory(Struct):
    """The bytes that all streams of sinks hold, and the limits for one stream and for all together."""

    limit_of_stream: int
    limit: int
    held: int = 0


class MemoryShare:
    """The part of a `StreamMemory` that one stream holds. Use it only on the event loop, like the stream."""

    __slots__ = ("_held", "_memory")

    def __init__(self, memory: StreamMemory) -> None:
        self._memory = memory
        self._held = 0

    @property
    def has_room(self) -> bool:
        return self._held < self._memory.limit_of_stream and self._memory.held < self._memory.limit

    def update(self, held: int) -> None:
        """Set the number of bytes that the stream now holds."""
        self._memory.held += held - self._held
        self._held = held

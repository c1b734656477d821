"""The way to the client, and what it is written with."""

from __future__ import annotations

from typing import Protocol

# Small batches that are due together travel together.
WRITE_BYTES = 64 * 1024


class Outlet(Protocol):
    """The way to the client."""

    async def write(self, chunk: bytes) -> None:
        """Send, flushed, and return once the client has room for more; raises when nobody is there."""

    async def gone(self) -> None:
        """Return when the client has gone away."""

    async def draining(self) -> None:
        """Return when the process is about to end."""


class Pen:
    """Lines in their order, several of them in one write."""

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self._lines: list[bytes] = []
        self._bytes = 0

    @property
    def full(self) -> bool:
        return self._bytes >= WRITE_BYTES

    def put(self, line: bytes) -> None:
        if line:
            self._lines.append(line)
            self._bytes += len(line)

    async def flush(self) -> None:
        lines, self._lines, self._bytes = self._lines, [], 0
        if lines:
            await self._outlet.write(lines[0] if len(lines) == 1 else b"".join(lines))

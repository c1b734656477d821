"""A condition variable for tasks of one loop: waiting tasks check again after every change."""

from __future__ import annotations

import asyncio


class Changes:
    """`await changes.wait(until, now)` returns after the next `tell()`, or at the time `until`. All callers run on one
    loop, so nothing can happen between checking the core and waiting: no change is missed.
    """

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def tell(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for each in waiting:
            if not each.done():
                each.set_result(None)

    async def wait(self, until: float | None, now: float) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            await asyncio.wait({waiter}, timeout=None if until is None else max(0.0, until - now))
        finally:
            self._waiting.discard(waiter)

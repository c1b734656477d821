"""Replaying: parked events are sent once more, out of the lot, before reading goes on in the log behind them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from datetime import UTC, datetime
from itertools import groupby
from typing import Protocol

from nakadi.model.coordination import Parked
from nakadi.model.cursor import Position
from nakadi.model.event_type import EventType
from nakadi.model.events import Record, Slice, StoredEvent
from nakadi.model.outcomes import Unavailable
from nakadi.streaming.chunks import Chunk, Run
from nakadi.subscriptions.lot import own_key

log = logging.getLogger(__name__)

# So many are held in memory at a time.
MOST_AT_ONCE = 20

TRY_AGAIN_SECONDS = 1.0

LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)

Fetch = Callable[[Parked], bytes | None]


class Source(Protocol):
    """Where the events of a partition come from."""

    @property
    def lost(self) -> bool: ...

    @property
    def at_border(self) -> bool: ...

    async def move(self, wake: Callable[[], None]) -> None: ...

    def update(self, event_type: EventType) -> None: ...

    def take(self) -> Run | None: ...

    def leave(self) -> None: ...


class Replaying:
    """First the parked events, then what is in the log. What lies between counts as passed over."""

    def __init__(
        self,
        parked: Sequence[Parked],
        behind: Position,
        until: Position,
        fetch: Fetch,
        threads: Executor,
        onward: Source,
    ) -> None:
        self._parked = deque(parked)
        self._last = parked[-1].position if parked else behind
        self._until = until
        self._fetch = fetch
        self._threads = threads
        self._onward = onward
        self._runs: deque[Run] = deque()
        self._passed = self._last >= until

    @property
    def lost(self) -> bool:
        return self._done and self._onward.lost

    @property
    def _done(self) -> bool:
        return not self._parked and not self._runs and self._passed

    @property
    def at_border(self) -> bool:
        return self._onward.at_border if self._done else bool(self._parked) and not self._runs

    async def move(self, wake: Callable[[], None]) -> None:
        if self._done:
            await self._onward.move(wake)
            return
        some = [self._parked[index] for index in range(min(MOST_AT_ONCE, len(self._parked)))]
        loop = asyncio.get_running_loop()
        try:
            values = await loop.run_in_executor(self._threads, lambda: [self._fetch(each) for each in some])
        except Unavailable as error:
            log.warning("Parked events are asked for again in %s s: %s", TRY_AGAIN_SECONDS, error)
            loop.call_later(TRY_AGAIN_SECONDS, wake)
            return
        # What has been taken out of the lot meanwhile is not sent.
        self._runs += runs_of([(each, value) for each, value in zip(some, values, strict=True) if value is not None])
        for _ in some:
            self._parked.popleft()

    def update(self, event_type: EventType) -> None:
        self._onward.update(event_type)

    def take(self) -> Run | None:
        if self._runs:
            return self._runs.popleft()
        if not self._parked and not self._passed:
            self._passed = True
            return passed_over(self._until)
        return self._onward.take() if self._done else None

    def leave(self) -> None:
        self._onward.leave()


def runs_of(events: Sequence[tuple[Parked, bytes]]) -> Iterator[Run]:
    """Parked events as they were in the log, timeline by timeline."""
    for order, group in groupby(events, key=lambda each: each[0].position.timeline):
        stored = tuple(
            StoredEvent(each.position.offset, Record(value, own_key(each), each.owner), each.stored_at)
            for each, value in group
        )
        yield Chunk(order, stored[0].offset, Slice(stored, stored[-1].offset + 1)).behind(stored[0].offset)


def passed_over(position: Position) -> Run:
    """Nothing to be sent, up to here."""
    nothing = StoredEvent(position.offset, Record(None), LONG_AGO)
    return Chunk(position.timeline, position.offset, Slice((nothing,), position.offset + 1)).behind(position.offset)

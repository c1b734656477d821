"""Test doubles for streams: a log that records reads, and an outlet that keeps what is written."""

import asyncio
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from nakadi.common.waiting import run_blocking
from nakadi.engines.memory.event_log import MemoryLog
from nakadi.http.message import ClientGone
from nakadi.model.events import EventSlice, Record
from nakadi.ports.clock import SystemClock
from tests.support.patience import PATIENCE


class ObservedLog:
    """A log in memory. `reads` has the start of every read, and the next reads raise the exceptions in `troubles`, one
    each; None lets a read succeed. A read from `hanging_start` hangs until `answers` is set.
    """

    def __init__(self, log: MemoryLog | None = None) -> None:
        self._log = log or MemoryLog(SystemClock())
        self.reads: list[int] = []
        self.troubles: list[Exception | None] = []
        self.hanging_start: int | None = None
        self.answers = threading.Event()
        self.watchers = 0
        self.most_events = 1000
        self.tells_its_end = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def for_storage(self, _storage_id: str) -> "ObservedLog":
        return self

    def publish(self, topic: str, *values: str, partition: int = 0) -> None:
        run_blocking(self._log.append(topic, {partition: [Record(f'"{value}"'.encode()) for value in values]}))

    def read(self, topic: str, partition: int, start: int, *, limit: int = 1000, max_bytes: int = 10**6) -> EventSlice:
        self.reads.append(start)
        if start == self.hanging_start:
            assert self.answers.wait(PATIENCE)
        if self.troubles and (trouble := self.troubles.pop(0)):
            raise trouble
        found = self._log.read(topic, partition, start, limit=min(limit, self.most_events), max_bytes=max_bytes)
        return found if self.tells_its_end else replace(found, at_end=False)

    def add_change_listener(self, changed: Callable[[str, int], None]) -> Callable[[], None]:
        self.watchers += 1
        stop = self._log.add_change_listener(changed)

        def stop_noting() -> None:
            self.watchers -= 1
            stop()

        return stop_noting


class NullFigures:
    """Accepts figures, and drops them."""

    next_report_at = math.inf

    def record_sent_batch(self, *_):
        pass

    def report(self):
        pass


@dataclass
class RecordingOutlet:
    """Keeps what a stream writes. If `slow`, a write waits until `room` is set."""

    written: list[bytes] = field(default_factory=list)
    slow: bool = False
    room: asyncio.Event = field(default_factory=asyncio.Event)
    leaving: asyncio.Event = field(default_factory=asyncio.Event)
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    came: asyncio.Event = field(default_factory=asyncio.Event)

    async def write(self, chunk: bytes) -> None:
        if self.leaving.is_set():
            raise ClientGone
        if self.slow:
            await self.room.wait()
        self.written.append(chunk)
        self.came.set()

    def when_client_gone(self) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self.leaving.wait())

    def when_shutting_down(self) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self.ending.wait())

    @property
    def text(self) -> str:
        return b"".join(self.written).decode()

    async def until(self, condition: Callable[[str], bool]) -> str:
        """Wait until the written text fulfils a condition, and return it."""
        async with asyncio.timeout(PATIENCE):
            while not condition(self.text):
                self.came.clear()
                await self.came.wait()
        return self.text

    async def lines(self, count: int) -> Sequence[str]:
        """Wait until there are this number of lines, and return them."""
        return (await self.until(lambda text: text.count("\n") >= count)).splitlines()[:count]

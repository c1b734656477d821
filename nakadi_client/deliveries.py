"""The result of `send`: the report of one event, to wait for, to await, or to be called back with."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator
from enum import Enum, auto

import msgspec

from nakadi_client.errors import NakadiError

_LOCK = threading.Lock()
_LOGGER = logging.getLogger("nakadi_client")


class Lane(Enum):
    """A separate kind of key: an event without an order belongs to `NONE`, and nothing waits for it."""

    NONE = auto()


class Delivered(msgspec.Struct, frozen=True, gc=False):
    """The broker acknowledged an event.

    If `maybe_doubled` is true, an earlier attempt ended without a clear answer, and may also have stored the event.
    Both copies have the same `eid`.
    """

    eid: str | None
    attempts: int
    maybe_doubled: bool


Outcome = Delivered | NakadiError
Callback = Callable[["Delivery"], None]


class Delivery:
    """The report of one event. `result()` waits for it, `await delivery` does in asyncio.

    The producer's core counts attempts here; applications read `done`, `outcome`, `eid` and `attempts`.
    """

    __slots__ = (
        "_callbacks",
        "added_at",
        "ambiguous",
        "attempts",
        "body",
        "eid",
        "epoch",
        "failures",
        "key",
        "outcome",
        "reason",
    )

    def __init__(self, body: bytes, *, eid: str | None = None, key: object = None) -> None:
        self.body: bytes = body
        self.eid: str | None = eid
        self.key: object = key
        self.added_at: float = 0.0
        self.epoch: int = 0
        self.attempts: int = 0
        self.ambiguous: bool = False
        # Attempts that failed, and why the last one did. The others were sent again because of their neighbours.
        self.failures: int = 0
        self.reason: NakadiError | None = None
        self.outcome: Outcome | None = None
        self._callbacks: list[Callback] | None = None

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return self.outcome is not None

    def result(self, timeout: float | None = None) -> Delivered:
        """Wait for the outcome. Raises `TimeoutError` after `timeout` seconds, or why the event failed."""
        if self.outcome is None:
            waiting = threading.Event()
            self.add_done_callback(lambda _delivery: waiting.set())
            if not waiting.wait(timeout):
                raise TimeoutError("The event is still on its way.")
        return self._result()

    def add_done_callback(self, callback: Callback) -> None:
        """Call this when the outcome is known, at once if it is. It runs in the producer's thread: it must be short."""
        with _LOCK:
            self._callbacks = [*(self._callbacks or ()), callback]
        # The outcome may have come just before: then the producer saw no callbacks, and this call runs them.
        if self.outcome is not None:
            self._call_back()

    def announce(self) -> None:
        """Run the callbacks. The producer calls this once the outcome is there, without holding its lock."""
        if self._callbacks is not None:
            self._call_back()

    def __await__(self) -> Generator[object, None, Delivered]:
        if self.outcome is None:
            loop = asyncio.get_running_loop()
            arrived: asyncio.Future[None] = loop.create_future()

            def wake() -> None:
                if not arrived.done():
                    arrived.set_result(None)

            def tell(_delivery: Delivery) -> None:
                loop.call_soon_threadsafe(wake)

            self.add_done_callback(tell)
            yield from arrived
        return self._result()

    def __repr__(self) -> str:
        return f"<Delivery {self.eid or ''} {'waiting' if self.outcome is None else self.outcome!r}>"

    def _result(self) -> Delivered:
        outcome = self.outcome
        if isinstance(outcome, Delivered):
            return outcome
        assert outcome is not None
        raise outcome

    def _call_back(self) -> None:
        # Both the producer and who adds a callback may come here at once: each callback is taken by one of them.
        with _LOCK:
            callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            try:
                callback(self)
            except Exception:
                # It must not keep others from their reports.
                _LOGGER.exception("A callback failed for %r", self)

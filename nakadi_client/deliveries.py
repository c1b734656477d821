"""The result of `send`: the report of one event, which applications can wait for, await, or receive in a callback."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from enum import Enum, auto

import msgspec

from nakadi_client.errors import NakadiError

_LOCK = threading.Lock()
_LOGGER = logging.getLogger("nakadi_client")


class Lane(Enum):
    """The key of unordered events, `NONE`, which equals no key of an application. Such events do not wait for each
    other, but a retry of one pauses the whole producer.
    """

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
        # The failed attempts, and why the last one failed. Other attempts were repeated only because of other events in
        # the batch.
        self.failures: int = 0
        self.reason: NakadiError | None = None
        self.outcome: Outcome | None = None
        self._callbacks: list[Callback] | None = None

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return self.outcome is not None

    def result(self, timeout: float | None = None) -> Delivered:
        """Wait for the outcome. Raises `TimeoutError` after `timeout` seconds, or the error that says why the event
        failed.
        """
        if self.outcome is None:
            waiting = threading.Event()
            self.add_done_callback(lambda _delivery: waiting.set())
            if not waiting.wait(timeout):
                raise TimeoutError("The event is still on its way.")
        return self._result()

    def add_done_callback(self, callback: Callback) -> None:
        """Call `callback` when the outcome is known, or at once if it is known already. It runs in the producer's
        thread, so it must be quick.
        """
        with _LOCK:
            self._callbacks = [*(self._callbacks or ()), callback]
        # The outcome may have arrived just before. Then the producer saw no callbacks, and this call runs them.
        if self.outcome is not None:
            self._call_back()

    def announce(self) -> None:
        """Run the callbacks. The producer calls this once the outcome is known, without holding its lock."""
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
                # Raised if the loop has ended meanwhile: nothing waits there any more.
                with suppress(RuntimeError):
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
        # The producer and the thread that adds a callback may run this at the same time; one of them takes each
        # callback.
        with _LOCK:
            callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            try:
                callback(self)
            except Exception:
                # A failing callback must not prevent the reports of other events.
                _LOGGER.exception("A callback failed for %r", self)

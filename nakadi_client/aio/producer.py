"""The producer for asyncio: the same core as for threads, driven by tasks of one loop."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Generic, TypeVar

from nakadi_client.aio.changes import Changes
from nakadi_client.answers import Answer
from nakadi_client.connections import AsyncApi, Compression, Connection, connection_of
from nakadi_client.deliveries import Delivery
from nakadi_client.errors import BufferFull, NoAnswer
from nakadi_client.events import Metadata
from nakadi_client.producer_core import Batch, Limits, ProducerCore
from nakadi_client.publishing import OnFailure, Publishing, closed
from nakadi_client.tokens import Token

Event = TypeVar("Event")


class Producer(Generic[Event]):
    """Publishes events of one event type, in batches, from its own tasks.

        async with Producer("https://events.example.org", "order.placed") as producer:
            await producer.send({"order_number": "A-1"})

    `await send(...)` returns as soon as the buffer has room, with a `Delivery` that can itself be awaited. It
    takes the keywords of `nakadi_client.Producer`. Leaving the `async with` delivers the remaining events, even if a
    task is cancelled.
    """

    def __init__(
        self,
        broker: str | Connection,
        event_type: str,
        *,
        token: Token = None,
        key: Callable[[Any], object] | None = None,
        ordered: bool = True,
        metadata: Metadata | None = Metadata(),  # noqa: B008  # it is frozen
        compression: Compression | None = None,
        tombstones: bool = False,
        only_for: str | None = None,
        on_failure: OnFailure = "continue",
        cloud_events: bool = False,
        limits: Limits = Limits(),  # noqa: B008  # it is frozen
        on_delivery: Callable[[Delivery], None] | None = None,
    ) -> None:
        self._publishing = Publishing(
            event_type, key, ordered, metadata, compression, tombstones, only_for, on_failure, cloud_events
        )
        self._request = self._publishing.requests()
        self._on_delivery = on_delivery
        # Steps that may reject the arguments come before those that open resources.
        self._core = ProducerCore(limits, random.random, stops=on_failure == "stop")
        self._api = AsyncApi(connection_of(broker, token))
        self._changes = Changes()
        self._closing = False
        self._senders: list[asyncio.Task[None]] = []

    async def send(
        self,
        event: Event,
        *,
        key: object = None,
        on_delivery: Callable[[Delivery], None] | None = None,
        timeout: float | None = None,
    ) -> Delivery:
        """Take an event to deliver. Waits while the buffer is full, and raises `BufferFull` after `timeout` seconds.

        `event` and `key` mean the same as for `nakadi_client.Producer.send`.
        """
        self._start()
        delivery = self._publishing.delivery_of(event, key)
        if on_delivery:
            delivery.add_done_callback(on_delivery)
        if not self._core.has_room_for(len(delivery.body)):
            await self._wait_for_room(len(delivery.body), timeout)
        if self._closing or self._core.is_stopped:
            raise closed(self._core)
        if self._core.add(delivery, time.monotonic()):
            self._changes.tell()
        return delivery

    publish = send

    async def send_all(self, events: Iterable[Event]) -> list[Delivery]:
        """Take several events to deliver, in their order."""
        return [await self.send(event) for event in events]

    async def flush(self, timeout: float | None = None) -> bool:
        """Deliver the events taken until now, without lingering. Returns whether all of them were settled within
        `timeout`.
        """
        flushed = self._core.flush()
        self._changes.tell()
        return await self._wait_until(lambda: self._core.is_flushed(flushed), timeout)

    async def close(self, timeout: float | None = None) -> None:
        """Accept no more events, and flush. Events without a result after `timeout` seconds are given up. It may be
        called again.
        """
        self._closing = True
        await self.flush(timeout)
        self._announce(self._core.give_up("The producer was closed."))
        self._changes.tell()
        if self._senders:
            _, pending = await asyncio.wait(self._senders, timeout=timeout)
            for sender in pending:
                sender.cancel()
            if pending:
                await asyncio.wait(pending)
        await self._api.close()

    @property
    def waiting(self) -> int:
        """The number of events that were taken and are not settled."""
        return self._core.kept_events

    async def __aenter__(self) -> Producer[Event]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Producer of {self._publishing.event_type}, {self.waiting} waiting>"

    def _start(self) -> None:
        # The tasks are created here, because a loop certainly runs only here.
        if not self._senders and not self._closing:
            self._senders = [asyncio.create_task(self._send_batches()) for _ in range(self._core.limits.in_flight)]

    async def _wait_for_room(self, size: int, timeout: float | None) -> None:
        if not await self._wait_until(lambda: self._closing or self._core.has_room_for(size), timeout):
            raise BufferFull(f"No room within {timeout} s; {self._core.kept_events} events wait.")

    async def _wait_until(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        until = None if timeout is None else time.monotonic() + timeout
        while not condition():
            now = time.monotonic()
            if until is not None and now >= until:
                return False
            await self._changes.wait(until, now)
        return True

    async def _send_batches(self) -> None:
        while (batch := await self._next_batch()) is not None:
            try:
                answer = await self._api.send(self._request(batch))
            except asyncio.CancelledError:
                # `close` no longer waits for these events. Their callers may be awaiting them, and must learn the
                # outcome.
                self._settle(batch, NoAnswer("The producer was closed."))
                raise
            self._settle(batch, answer)

    def _settle(self, batch: Batch, answer: Answer | NoAnswer) -> None:
        settled = self._core.settle(batch, answer, time.monotonic())
        self._changes.tell()
        self._announce(settled)

    async def _next_batch(self) -> Batch | None:
        """Wait for a batch that is due; None after the last one."""
        while True:
            now = time.monotonic()
            if expired := self._core.expire(now):
                self._changes.tell()
                self._announce(expired)
                continue
            step = self._core.step(now)
            if isinstance(step, Batch):
                return step
            if self._closing and not self._core.kept_events:
                return None
            await self._changes.wait(step.until, now)

    def _announce(self, settled: Iterable[Delivery]) -> None:
        for delivery in settled:
            if self._on_delivery:
                delivery.add_done_callback(self._on_delivery)
            delivery.announce()

"""The producer for programs with threads.

>>> from nakadi_client.testing import LocalNakadi
>>> with LocalNakadi() as nakadi:
...     nakadi.create_event_type("order.placed")
...     with Producer(nakadi.url, "order.placed") as producer:
...         delivery = producer.send({"order_number": "A-1"})
...     delivery.result().attempts
1
"""

from __future__ import annotations

import atexit
import random
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Generic, TypeVar

from nakadi_client import stopping
from nakadi_client.connections import Api, Compression, Connection, connection_of
from nakadi_client.deliveries import Delivery
from nakadi_client.errors import BufferFull
from nakadi_client.events import Metadata
from nakadi_client.producer_core import Batch, Limits, ProducerCore
from nakadi_client.publishing import OnFailure, Publishing, closed
from nakadi_client.tokens import Token

Event = TypeVar("Event")


class Producer(Generic[Event]):
    """Publishes events of one event type, in batches, from its own threads.

        with Producer("https://events.example.org", "order.placed", key=key_at("order_number")) as producer:
            producer.send({"order_number": "A-1"})

    `send` returns at once; it waits only while the buffer is full. Its `Delivery` reports the event's result.
    Closing waits until everything is delivered or given up. `Producer[OrderPlaced](...)` takes events of one type.

    An event without an answer is resent with the same `eid`, so it is stored at least once, and perhaps twice.
    `Publishing`, `Limits` and `Connection` explain the keywords. The producer calls `on_delivery` with each `Delivery`,
    in its own thread. With `stop_on_signals`, SIGTERM lets the producer finish before the process ends.
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
        stop_on_signals: bool = True,
    ) -> None:
        self._publishing = Publishing(
            event_type, key, ordered, metadata, compression, tombstones, only_for, on_failure, cloud_events
        )
        self._request = self._publishing.requests()
        self._on_delivery = on_delivery
        # Steps that may reject the arguments come before those that open resources.
        self._core = ProducerCore(limits, random.random, stops=on_failure == "stop")
        self._api = Api(connection_of(broker, token))
        # This condition guards the core. Senders wait on it for work, `send` waits for room, and `flush` for the end.
        self._changed = threading.Condition()
        self._closing = False
        self._senders = [
            threading.Thread(target=self._send_batches, name=f"nakadi-producer-{number}", daemon=True)
            for number in range(limits.in_flight)
        ]
        for sender in self._senders:
            sender.start()
        # So a program that ends without closing the producer still delivers its events.
        atexit.register(self.close)
        self._withdraw = stopping.register(self.close) if stop_on_signals else lambda: None

    def send(
        self,
        event: Event,
        *,
        key: object = None,
        on_delivery: Callable[[Delivery], None] | None = None,
        timeout: float | None = None,
    ) -> Delivery:
        """Take an event to deliver. Waits while the buffer is full, and raises `BufferFull` after `timeout` seconds.

        `event` is a mapping, a model of msgspec or pydantic, a dataclass, or JSON as bytes. `key` takes precedence over
        the producer's own function. Raises `BadEvent` if the event cannot be written, and `Closed` if the producer is
        closed.
        """
        delivery = self._publishing.delivery_of(event, key)
        if on_delivery:
            delivery.add_done_callback(on_delivery)
        size = len(delivery.body)
        with self._changed:
            if not self._core.has_room_for(size):
                self._wait_for_room(size, timeout)
            if self._closing or self._core.is_stopped:
                raise closed(self._core)
            if self._core.add(delivery, time.monotonic()):
                self._changed.notify_all()
        return delivery

    publish = send

    def send_all(self, events: Iterable[Event]) -> list[Delivery]:
        """Take several events to deliver, in their order."""
        return [self.send(event) for event in events]

    def flush(self, timeout: float | None = None) -> bool:
        """Deliver the events taken until now, without lingering. Returns whether all of them were settled within
        `timeout`.
        """
        with self._changed:
            flushed = self._core.flush()
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._core.is_flushed(flushed), timeout)

    def close(self, timeout: float | None = None) -> None:
        """Accept no more events, and flush. Events without a result after `timeout` seconds are given up. It may be
        called again.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self.flush(timeout)
        with self._changed:
            given_up = self._core.give_up("The producer was closed.")
            self._changed.notify_all()
        self._announce(given_up)
        if threading.current_thread() in self._senders:
            return  # A callback closed the producer, whose thread ends after this batch.
        for sender in self._senders:
            sender.join(timeout)
        self._withdraw()
        atexit.unregister(self.close)
        self._api.close()

    @property
    def waiting(self) -> int:
        """The number of events that were taken and are not settled."""
        return self._core.kept_events

    def __enter__(self) -> Producer[Event]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Producer of {self._publishing.event_type}, {self.waiting} waiting>"

    def _wait_for_room(self, size: int, timeout: float | None) -> None:
        if not self._changed.wait_for(lambda: self._closing or self._core.has_room_for(size), timeout):
            raise BufferFull(f"No room within {timeout} s; {self._core.kept_events} events wait.")

    def _send_batches(self) -> None:
        while (batch := self._next_batch()) is not None:
            answer = self._api.send(self._request(batch))
            with self._changed:
                settled = self._core.settle(batch, answer, time.monotonic())
                self._changed.notify_all()
            self._announce(settled)

    def _next_batch(self) -> Batch | None:
        """Wait for a batch that is due; None after the last one."""
        while True:
            with self._changed:
                now = time.monotonic()
                expired = self._core.expire(now)
                if expired:
                    self._changed.notify_all()
                elif isinstance(step := self._core.step(now), Batch):
                    return step
                elif self._closing and not self._core.kept_events:
                    return None
                else:
                    self._changed.wait(None if step.until is None else max(0.0, step.until - now))
            self._announce(expired)

    def _announce(self, settled: Iterable[Delivery]) -> None:
        for delivery in settled:
            if self._on_delivery:
                delivery.add_done_callback(self._on_delivery)
            delivery.announce()

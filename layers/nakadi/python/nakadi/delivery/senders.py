"""The port to sinks: brings a delivery to a sink of one type, and returns the result."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from msgspec import Struct

from nakadi.delivery.answers import Answer
from nakadi.delivery.lanes import DeliveryBatch
from nakadi.model.sink import Sink, SinkSecrets


class Attempt(Struct, frozen=True, kw_only=True):
    """An attempt to deliver a batch, or a trial, which has no batch.

    `message_id` is the same for the same events, regardless of how often and by which process they are sent.
    """

    sink: Sink
    secrets: SinkSecrets
    message_id: str
    batch: DeliveryBatch | None
    now: datetime
    timeout_seconds: float


class Sender(Protocol):
    """Delivers to all sinks of one type. It is used, and closed, on one event loop.

    * `Answer` reports a batch as delivered only after the sink has accepted all of it.
    * Events of a batch may be delivered in parts, but two events with the same key always stay in order.
    * An attempt ends soon after its `timeout_seconds`, whatever the sink does.
    """

    async def deliver(self, attempt: Attempt) -> Answer:
        """Send a batch or a trial, and return the result. Raises nothing."""

    async def close(self) -> None:
        """Close all connections."""

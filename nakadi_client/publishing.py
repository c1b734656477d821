"""The common parts of both producers: the request for a batch, and the path of an event into the core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from nakadi_client.connections import Compression, Request, compressor, path
from nakadi_client.deliveries import Delivery, Lane
from nakadi_client.errors import Closed
from nakadi_client.events import Metadata, encode
from nakadi_client.producer_core import Batch, ProducerCore

OnFailure = Literal["continue", "stop"]

CLOUD_EVENTS = "application/cloudevents-batch+json"

# Compressing a small body is not worthwhile.
_LEAST_TO_COMPRESS = 1_000


class Publishing(msgspec.Struct, frozen=True):
    """Where events go and how they become requests. Its fields except `event_type` are keywords of `Producer`.

    key          A function that returns the key of an event, such as `key_at("order_number")`. Events with the same key
                 stay in their order. Without a function, all events have the same key.
    ordered      False gives up the order, so that requests may overtake each other.
    metadata     None for event types of the category `undefined`, which have no metadata.
    compression  "gzip", "zstd" or None.
    tombstones   True publishes a deletion of each event's key instead of the event.
    only_for     The id of the one subscription that sees these events.
    on_failure   What follows when an event cannot be delivered: "continue" with the others, or "stop" the producer, so
                 that no event overtakes one that failed. All events that wait are then reported as `NotDelivered`, and
                 `send` raises `Closed`.
    cloud_events Events are CloudEvents 1.0, as the JSON of their structured mode. Their attributes become the metadata.
    """

    event_type: str
    key: Callable[[Any], object] | None = None
    ordered: bool = True
    metadata: Metadata | None = Metadata()
    compression: Compression | None = None
    tombstones: bool = False
    only_for: str | None = None
    on_failure: OnFailure = "continue"
    cloud_events: bool = False

    def delivery_of(self, event: Any, key: object, eid: str | None = None) -> Delivery:
        """Write an event, and choose its key."""
        if not self.ordered:
            key = Lane.NONE
        elif key is None and self.key is not None:
            key = self.key(event)
        body, found = encode(event, None if self.cloud_events else self.metadata)
        return Delivery(body, eid=found or eid, key=key)

    def requests(self) -> Callable[[Batch], Request]:
        """Return the function that creates the request for a batch."""
        compress = compressor(self.compression)
        where = path("event-types", self.event_type, "deleted-events" if self.tombstones else "events")
        plain = {"Content-Type": CLOUD_EVENTS if self.cloud_events else "application/json"}
        if self.only_for:
            plain["X-CONSUMER-TAG"] = f"CONSUMER_SUBSCRIPTION_ID={self.only_for}"
        packed = plain | {"Content-Encoding": self.compression or ""}

        def request(batch: Batch) -> Request:
            body = batch.body
            if compress is None or len(body) < _LEAST_TO_COMPRESS:
                return Request("POST", where, body, plain)
            return Request("POST", where, compress(body), packed)

        return request


def closed(core: ProducerCore) -> Closed:
    """Create the exception for callers that send to a producer that accepts no further events."""
    if core.is_stopped:
        return Closed("The producer has stopped at an event that was not delivered.")
    return Closed("The producer is closed.")

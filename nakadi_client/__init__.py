"""A client for Nakadi brokers: `Producer` publishes, `consume` reads subscriptions, and `read` reads event types.

    with Producer("https://events.example.org", "order.placed") as producer:
        producer.send({"order_number": "A-1"})

    for batch in consume("https://events.example.org", subscription=ID, model=OrderPlaced):
        handle(batch.events)

`producer_core`, `consumer_core` and `reader_core` decide what to do, without input or output: begin reading there.
`producer`, `consumer` and `reader` carry out these decisions. `nakadi_client.testing` has a broker for tests.
"""

from nakadi_client.batches import Batch
from nakadi_client.connections import Connection
from nakadi_client.consumer import Consumer, consume
from nakadi_client.consumer_core import (
    BY_HAND,
    EACH_BATCH,
    CommitPolicy,
    Health,
    Patience,
    Rebalance,
    StreamOptions,
    Trouble,
)
from nakadi_client.consuming import Park
from nakadi_client.deliveries import Delivered, Delivery
from nakadi_client.errors import (
    BadEvent,
    BufferFull,
    Closed,
    EventRefused,
    EventsUnreadable,
    NakadiError,
    NoAnswer,
    NotDelivered,
    Poison,
    Refused,
)
from nakadi_client.events import Metadata
from nakadi_client.partitions import key_at, partition_of
from nakadi_client.producer import Producer
from nakadi_client.producer_core import Limits
from nakadi_client.reader import Reader, read
from nakadi_client.tokens import ClientCredentials, TokenFile, UntilRefused
from nakadi_client.version import __version__

__all__ = [
    "BY_HAND",
    "EACH_BATCH",
    "BadEvent",
    "Batch",
    "BufferFull",
    "ClientCredentials",
    "Closed",
    "CommitPolicy",
    "Connection",
    "Consumer",
    "Delivered",
    "Delivery",
    "EventRefused",
    "EventsUnreadable",
    "Health",
    "Limits",
    "Metadata",
    "NakadiError",
    "NoAnswer",
    "NotDelivered",
    "Park",
    "Patience",
    "Poison",
    "Producer",
    "Reader",
    "Rebalance",
    "Refused",
    "StreamOptions",
    "TokenFile",
    "Trouble",
    "UntilRefused",
    "__version__",
    "consume",
    "key_at",
    "partition_of",
    "read",
]

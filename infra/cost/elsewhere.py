"""The price of the same load with other services, and the features that they lack."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from infra.cost.load import Load
from infra.cost.prices import GB, HOURS, SECONDS, TB, Prices

EVENTBRIDGE_PIECE = 64 * 1024
PUBSUB_LEAST = 1000
COPIES = 3
BROKERS = 3


@dataclass(frozen=True, slots=True)
class Offer:
    name: str
    dollars: float
    lacks: str


def offers_elsewhere(load: Load, prices: Prices, confluent_units: float = 0.0) -> list[Offer]:
    return list(_offers(load, prices, confluent_units))


def _offers(load: Load, prices: Prices, confluent_units: float) -> Iterator[Offer]:
    def cost_of(name: str, quantity: float) -> float:
        return prices[name].dollars * quantity

    events = load.events_per_second * SECONDS
    plain = events * load.event_bytes / GB
    kept = load.events_per_second * load.event_bytes * load.retention_days * 86400 / GB
    pieces = events * max(1, math.ceil(load.event_bytes / EVENTBRIDGE_PIECE))
    yield Offer(
        "EventBridge", cost_of("eventbridge-event", pieces), "no order, no cursors, delivery outside AWS is extra"
    )
    sent = max(load.batch * load.event_bytes, PUBSUB_LEAST) * events / load.batch / TB
    fetched = max(load.delivered_batch * load.event_bytes, PUBSUB_LEAST) * events / load.delivered_batch / TB
    both = sent + load.consumers * fetched
    yield Offer(
        "Pub/Sub", cost_of("pubsub-tb", both), "another cloud; keeping events, and leaving its network, is extra"
    )
    confluent = cost_of("confluent-gb", plain * (1 + load.consumers)) + cost_of("confluent-month", kept)
    confluent += cost_of("confluent-hour", confluent_units * HOURS)
    yield Offer("Confluent Basic", confluent, "Kafka's protocol; events uncompressed; no private network")
    serverless = cost_of("msk-serverless-hour", HOURS) + cost_of(
        "msk-serverless-partition-hour", load.all_partitions * HOURS
    )
    serverless += cost_of("msk-serverless-in", plain) + cost_of("msk-serverless-out", plain * load.consumers)
    serverless += cost_of("msk-serverless-month", kept)
    yield Offer("MSK Serverless", serverless, "Kafka's protocol; a day of retention and 120 partitions; old prices")
    standard = cost_of("msk-broker-hour", BROKERS * HOURS) + cost_of("msk-disk-month", COPIES * kept)
    yield Offer("MSK, 3 m7g.large", standard, "Kafka's protocol; paid for when idle; traffic between zones is extra")

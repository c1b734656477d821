"""The cost of event types and streams that are idle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from infra.cost.bill import HOUSEKEEPING_ROUNDS
from infra.cost.flows import Flows
from infra.cost.prices import GB, HOURS, Prices

DOCUMENTS_BYTES = 5000
"""The documents of an event type: itself, its schema, its topic, and its entry in lists."""

KEEP_ALIVE_BYTES = 120


@dataclass(frozen=True, slots=True)
class IdleCost:
    what: str
    dollars: float


def idle_costs(flows: Flows, prices: Prices) -> list[IdleCost]:
    return [
        IdleCost("an idle event type", sum(_event_type_costs(flows, prices))),
        IdleCost(
            "an idle event type that a task streams",
            sum(_event_type_costs(flows, prices)) + _streamed_type_cost(flows, prices),
        ),
        IdleCost("an idle stream", sum(_stream_costs(flows, prices))),
        IdleCost("an idle stream of a subscription", sum(_stream_costs(flows, prices)) + _polling_cost(flows, prices)),
        IdleCost("an event type, if each had a shard of its own", prices["kinesis-shard-hour"].dollars * HOURS),
        IdleCost("an event type, if each had an on-demand stream", prices["kinesis-stream-hour"].dollars * HOURS),
    ]


def _event_type_costs(flows: Flows, prices: Prices) -> Iterator[float]:
    """The monthly costs of an idle event type: housekeeping checks it, and DynamoDB stores its documents."""
    deployment, measured, assumed = flows.deployment, flows.measured, flows.assumed
    seconds = flows.seconds(measured.housekeeping_type_ms, assumed.dynamodb_ms, deployment.function_memory)
    yield HOUSEKEEPING_ROUNDS * prices["dynamodb-read"].dollars
    yield HOUSEKEEPING_ROUNDS * seconds * deployment.function_memory / 1024 * prices["lambda-gb-second"].dollars
    yield DOCUMENTS_BYTES / GB * prices["dynamodb-month"].dollars


def _streamed_type_cost(flows: Flows, prices: Prices) -> float:
    return flows.measured.streamed_type_reads_per_hour * HOURS * prices["dynamodb-read"].dollars


def _polling_cost(flows: Flows, prices: Prices) -> float:
    """The monthly cost of the reads by which an idle stream looks for changes of its subscription."""
    return flows.measured.subscription_stream_reads_per_hour * HOURS * prices["dynamodb-read"].dollars


def _stream_costs(flows: Flows, prices: Prices) -> Iterator[float]:
    """The monthly costs of an idle stream: its client reconnects before API Gateway ends it, the broker sends
    keep-alives, and the stream occupies part of a task.
    """
    deployment = flows.deployment
    begun = HOURS * 60 / deployment.stream_minutes
    kept_alive = HOURS * 3600 / deployment.flush_seconds * flows.load.partitions
    task = deployment.streaming_vcpu * prices["fargate-vcpu-hour"].dollars
    task += deployment.streaming_gb * prices["fargate-gb-hour"].dollars
    yield begun * prices["api-request"].dollars
    yield kept_alive * KEEP_ALIVE_BYTES / GB * prices["api-out"].dollars
    yield task * HOURS / deployment.streams_per_task
    yield begun * flows.log_bytes / GB * prices["logs-in"].dollars

"""The bill of a month: what is used, at which price."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nakadi.cost.flows import Flows
from nakadi.cost.prices import GB, HOURS, SECONDS, Price, Prices

AUTHORIZED_FOR = 60.0
"""Seconds that an authorizer's word is taken for; see `authorizer_cache_seconds` of the CDK app."""

ROUNDS = HOURS * 12
"""Of housekeeping: one every five minutes."""

METRICS = 40
"""Names of metrics times functions that tell them."""


@dataclass(frozen=True, slots=True)
class Line:
    part: str
    what: str
    quantity: float
    price: Price

    @property
    def dollars(self) -> float:
        return self.quantity * self.price.dollars


Rest = tuple[str, float, str]
"""What, how many, and the name of its price."""


def bill(flows: Flows, prices: Prices) -> list[Line]:
    return [
        Line(part, what, quantity, prices[name])
        for part, lines in PARTS.items()
        for what, quantity, name in lines(flows)
        if quantity
    ]


def total(lines: Sequence[Line]) -> float:
    return sum(line.dollars for line in lines)


def by_part(lines: Sequence[Line]) -> Mapping[str, float]:
    return {part: total([line for line in lines if line.part == part]) for part in PARTS}


def _gateway(flows: Flows) -> Iterator[Rest]:
    yield "publish requests", flows.publishes * SECONDS, "api-request"
    yield "commits", flows.commits * SECONDS, "api-request"
    yield "streams", flows.streamed_requests * SECONDS, "api-request"
    yield "events out", flows.delivered_bytes * SECONDS / GB, "api-out"


def _lambda(flows: Flows) -> Iterator[Rest]:
    measured, assumed, deployment = flows.measured, flows.assumed, flows.deployment
    publish_ms = measured.publish_request_ms + flows.load.batch * measured.publish_event_ms
    index_ms = measured.index_batch_ms
    if flows.index_batches:
        index_ms += flows.plain_bytes / flows.index_batches / measured.index_mb_per_second / 1000
    index_wait = assumed.s3_put_ms + assumed.dynamodb_ms * (3 + flows.partitions_per_index_batch)
    house_ms = measured.house_type_ms * flows.load.event_types
    house_wait = assumed.dynamodb_ms * flows.load.event_types
    work = {
        "publish": (flows.publishes, publish_ms, assumed.kinesis_put_ms, deployment.publish_memory),
        "commits": (flows.commits, measured.commit_ms, 2 * assumed.dynamodb_ms, deployment.function_memory),
        "authorizer": (_authorized(flows), 1.0, 0.0, deployment.function_memory),
        "log indexer": (flows.index_batches, index_ms, index_wait, deployment.publish_memory),
        "housekeeping": (ROUNDS / SECONDS, house_ms, house_wait, deployment.function_memory),
    }
    for name, (times, cpu_ms, wait_ms, memory) in work.items():
        seconds = times * SECONDS * flows.seconds(cpu_ms, wait_ms, memory)
        yield f"{name}, invocations", times * SECONDS, "lambda-request"
        yield f"{name}, time", seconds * memory / 1024, "lambda-gb-second"


def _authorized(flows: Flows) -> float:
    """Every consumer and every event type's publisher has a token of its own."""
    often = flows.publishes + flows.commits + flows.streamed_requests
    return min(often, (flows.load.consumers + flows.load.event_types) / AUTHORIZED_FOR)


def _kinesis(flows: Flows) -> Iterator[Rest]:
    if flows.deployment.stream_mode == "provisioned":
        yield "shards", flows.shards * HOURS, "kinesis-shard-hour"
        yield "put units", flows.put_units * SECONDS, "kinesis-put-unit"
        return
    stored = max(flows.frame_bytes, 1024.0) * flows.frames * SECONDS / GB
    yield "stream", HOURS, "kinesis-stream-hour"
    yield "in", stored, "kinesis-in"
    yield "out, to the indexer and to each task", flows.stored_bytes * SECONDS / GB * (1 + flows.tasks), "kinesis-out"


def _dynamodb(flows: Flows) -> Iterator[Rest]:
    batches, touched = flows.index_batches * SECONDS, flows.partitions_per_index_batch
    # A head and a segment in one transaction, each counted twice; and how far the shard is.
    yield "log index, written", batches * (4 * touched + 1), "dynamodb-write"
    # A head and, at worst, a topic for each partition; progress.
    yield "log index, read", batches * (2 * touched + 1), "dynamodb-read"
    yield (
        "log index, kept",
        batches / SECONDS * touched * 600 * flows.load.retention_days * 86400 / GB,
        "dynamodb-month",
    )
    # The offset, and news of it.
    yield "commits, written", 2 * flows.commits * SECONDS, "dynamodb-write"
    yield "commits, read", 2 * flows.commits * SECONDS, "dynamodb-read"
    watched = flows.tasks * flows.streamed_types * flows.measured.streamed_type_reads_per_hour
    yield "streams, read", (flows.tasks * flows.measured.task_reads_per_hour + watched) * HOURS, "dynamodb-read"
    yield "streams, written", flows.tasks * flows.measured.task_writes_per_hour * HOURS, "dynamodb-write"
    yield "housekeeping, read", ROUNDS * (flows.load.event_types + 2), "dynamodb-read"


def _s3(flows: Flows) -> Iterator[Rest]:
    yield "archive, kept", flows.kept_bytes / GB, "s3-month"
    yield "archive, written", flows.index_batches * SECONDS, "s3-put"


def _fargate(flows: Flows) -> Iterator[Rest]:
    yield "processors", flows.tasks * flows.deployment.streaming_vcpu * HOURS, "fargate-vcpu-hour"
    yield "memory", flows.tasks * flows.deployment.streaming_gb * HOURS, "fargate-gb-hour"


def _network(flows: Flows) -> Iterator[Rest]:
    units = max(flows.delivered_bytes * 3600 / GB, flows.load.connections / 3000)
    yield "load balancer", HOURS, "balancer-hour"
    yield "load balancer, capacity", units * HOURS, "balancer-unit-hour"
    yield "addresses of tasks", flows.tasks * HOURS, "address-hour"
    yield "interface endpoints", flows.deployment.endpoints * HOURS, "endpoint-hour"


def _watching(flows: Flows) -> Iterator[Rest]:
    requests = flows.publishes + flows.commits + flows.streamed_requests
    told = (requests + flows.index_batches) * flows.log_bytes
    yield "log lines", told * SECONDS / GB, "logs-in"
    yield "log lines, kept", told * flows.deployment.log_days * 86400 / GB, "logs-month"
    yield "metrics", METRICS, "metric-month"
    # One request a second is traced, and a part of the others.
    yield "traces", min(requests, 1 + flows.assumed.traced_share * requests) * SECONDS, "trace"


def _glue(flows: Flows) -> Iterator[Rest]:
    yield "jobs", flows.deployment.dpu_hours_per_day * HOURS / 24, "glue-dpu-hour"


PARTS: Mapping[str, Callable[[Flows], Iterator[Rest]]] = {
    "API Gateway": _gateway,
    "Lambda": _lambda,
    "Kinesis": _kinesis,
    "DynamoDB": _dynamodb,
    "S3": _s3,
    "Fargate": _fargate,
    "Load balancer and network": _network,
    "CloudWatch": _watching,
    "Glue": _glue,
}

"""The monthly bill: the usage of each service, and its price."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from infra.cost.flows import Flows
from infra.cost.prices import GB, HOURS, SECONDS, Price, Prices
from infra.cost.standing import IMAGE_GB, QUERY_IMAGE_GB, callers_of_keys, count_standing_resources

AUTHORIZER_CACHE_SECONDS = 60.0
"""How long the gateway caches an authorizer's answer: `authorizer_cache_seconds` of the CDK app."""

HOUSEKEEPING_ROUNDS = HOURS * 12
"""Housekeeping runs every five minutes."""

METRICS_PER_FUNCTION = 4
"""The metrics of each function that gets requests: answers, refusals, faults and durations."""

INDEXER_METRICS = 3
IDLE_METRICS = 1
"""The metrics of an idle stage: the delay of the index. Streaming tasks also report the number of open streams."""

TABLE_METRICS = 3
"""The metrics of tables: their lag and latency, and defects of events."""

METRICS_PER_METHOD = 5
"""With detailed metrics, API Gateway publishes these for each method in use."""

MSK_RETENTION_SECONDS = 86_400
"""How long MSK keeps archived events: `NAKADI_HOT_RETENTION_MS`."""

KEY_CACHE_SECONDS = 300
"""How long a table or a stream caches a key for each role that uses it."""

REPORT_SECONDS = 30
"""The seconds between two reports on a sink to which the broker delivers all the time."""
REPORT_WRITE_UNITS = 12
"""The write units of a report: 20 attempts have 5 to 6 KB, and a transaction counts twice."""

IDLE_LOG_BYTES = 1_500
"""Log lines of a housekeeping round, and of streaming tasks and the network in the meantime."""


@dataclass(frozen=True, slots=True)
class Line:
    part: str
    what: str
    quantity: float
    price: Price

    @property
    def dollars(self) -> float:
        return self.quantity * self.price.dollars


UsageItem = tuple[str, float, str]
"""A description, a quantity, and the name of the price."""


def bill_lines(flows: Flows, prices: Prices) -> list[Line]:
    return [
        Line(part, what, quantity, prices[name])
        for part, lines in PARTS.items()
        for what, quantity, name in lines(flows)
        if quantity
    ]


def total_dollars(lines: Sequence[Line]) -> float:
    return sum(line.dollars for line in lines)


def by_part(lines: Sequence[Line]) -> Mapping[str, float]:
    of_parts = {part: total_dollars([line for line in lines if line.part == part]) for part in PARTS}
    # A deployment has only one of the two logs.
    logs = {"Kinesis", "MSK"} - {line.part for line in lines}
    unused = logs if len(logs) == 1 else {"MSK"}
    return {part: dollars for part, dollars in of_parts.items() if part not in unused}


def _gateway_usage(flows: Flows) -> Iterator[UsageItem]:
    if flows.deployment.direct:
        return
    yield "publish requests", flows.publishes * SECONDS, "api-request"
    yield "commits", flows.commits * SECONDS, "api-request"
    yield "streams", flows.streamed_requests * SECONDS, "api-request"
    yield "events out", flows.delivered_bytes * SECONDS / GB, "api-out"


def _lambda_usage(flows: Flows) -> Iterator[UsageItem]:
    measured, assumed, deployment = flows.measured, flows.assumed, flows.deployment
    invoked = not deployment.direct
    index_ms = measured.index_batch_ms
    if flows.index_batches:
        index_ms += flows.plain_bytes / flows.index_batches / measured.index_mb_per_second / 1000
    index_wait = assumed.s3_put_ms + assumed.dynamodb_ms * (3 + flows.partitions_per_index_batch)
    index_wait += (3 * assumed.kafka_ms + assumed.dynamodb_ms) * flows.topics_per_index_batch
    housekeeping_ms = measured.housekeeping_type_ms * flows.load.event_types
    housekeeping_wait = assumed.dynamodb_ms * flows.load.event_types
    work = {
        "publish": (invoked * flows.publishes, flows.publish_ms, assumed.kinesis_put_ms, deployment.publish_memory),
        "commits": (invoked * flows.commits, measured.commit_ms, 2 * assumed.dynamodb_ms, deployment.function_memory),
        "authorizer": (_authorizer_invocations(flows), 1.0, 0.0, deployment.function_memory),
        "log indexer": (flows.index_batches, index_ms, index_wait, deployment.publish_memory),
        "housekeeping": (HOUSEKEEPING_ROUNDS / SECONDS, housekeeping_ms, housekeeping_wait, deployment.function_memory),
    }
    for name, (times, cpu_ms, wait_ms, memory) in work.items():
        seconds = times * SECONDS * flows.seconds(cpu_ms, wait_ms, memory)
        yield f"{name}, invocations", times * SECONDS, "lambda-request"
        yield f"{name}, time", seconds * memory / 1024, "lambda-gb-second"
    queries = deployment.queries * HOURS / 24
    yield "queries, invocations", queries, "lambda-request"
    yield "queries, time", queries * assumed.query_seconds * deployment.query_memory / 1024, "lambda-gb-second"


def _authorizer_invocations(flows: Flows) -> float:
    """Invocations of the authorizer in a second. Every consumer, and the publisher of every event type, has its own
    token.
    """
    return min(flows.gateway_requests, (flows.load.consumers + flows.load.event_types) / AUTHORIZER_CACHE_SECONDS)


def _kinesis_usage(flows: Flows) -> Iterator[UsageItem]:
    if flows.deployment.on_msk:
        return
    if flows.deployment.stream_mode == "provisioned":
        yield "shards", flows.shards * HOURS, "kinesis-shard-hour"
        yield "put units", flows.put_units * SECONDS, "kinesis-put-unit"
        yield (
            "consumers of tasks",
            flows.deployment.fan_out * flows.tasks * flows.shards * HOURS,
            "kinesis-consumer-hour",
        )
        yield "pushed to tasks", flows.pushed_bytes * SECONDS / GB, "kinesis-pushed"
        return
    stored = max(flows.frame_bytes, 1024.0) * flows.frames * SECONDS / GB
    yield "stream", HOURS, "kinesis-stream-hour"
    yield "in", stored, "kinesis-in"
    yield "out, to those who ask", flows.stored_bytes * SECONDS / GB * flows.polling_readers, "kinesis-out"
    yield "pushed to tasks", flows.pushed_bytes * SECONDS / GB, "kinesis-pushed-on-demand"


def _msk_usage(flows: Flows) -> Iterator[UsageItem]:
    deployment = flows.deployment
    if not deployment.on_msk:
        return
    stored = flows.stored_bytes * SECONDS / GB
    kept = flows.stored_bytes * MSK_RETENTION_SECONDS / GB
    if deployment.msk == "serverless":
        yield "cluster", HOURS, "msk-serverless-hour"
        yield "partitions", flows.load.all_partitions * HOURS, "msk-serverless-partition-hour"
        yield "in", stored, "msk-serverless-in"
        yield "out, to tasks and indexer", stored * flows.polling_readers, "msk-serverless-out"
        yield "kept", kept, "msk-serverless-month"
    elif deployment.msk == "express":
        yield "brokers", deployment.brokers * HOURS, "msk-express-hour"
        yield "in", stored, "msk-express-in"
        yield "kept", kept, "msk-express-month"
    else:
        yield "brokers", deployment.brokers * HOURS, "msk-broker-hour"
        yield "disks", deployment.brokers * deployment.disk_gb, "msk-disk-month"


def _dynamodb_usage(flows: Flows) -> Iterator[UsageItem]:
    batches, partitions = flows.index_batches * SECONDS, flows.partitions_per_index_batch
    # The indexer writes a head and a segment in one transaction, whose writes count twice, and the progress of the
    # shard.
    yield "log index, written", batches * (4 * partitions + 1), "dynamodb-write"
    # The indexer reads a head and, at worst, a topic for each partition, and the progress of the shard.
    yield "log index, read", batches * (2 * partitions + 1), "dynamodb-read"
    reads = flows.topics_per_index_batch * (1 + flows.load.partitions)
    yield "topics looked at", batches * reads, "dynamodb-read"
    kept = batches / SECONDS * partitions * 600 * flows.load.retention_days * 86400 / GB
    yield "log index, kept", kept, "dynamodb-month"
    yield "log index, recovery", kept * (flows.deployment.recovery_days > 0), "dynamodb-recovery-month"
    if flows.load.deduplicated:
        events = flows.load.deduplicated * flows.load.events_per_second * SECONDS
        yield "eids, claimed and confirmed", 2 * events, "dynamodb-write"
    # A commit writes the offset and its change notice.
    yield "commits, written", 2 * flows.commits * SECONDS, "dynamodb-write"
    yield "commits, read", 2 * flows.commits * SECONDS, "dynamodb-read"
    watched = flows.tasks * flows.streamed_types * flows.measured.streamed_type_reads_per_hour
    yield "streams, read", (flows.tasks * flows.measured.task_reads_per_hour + watched) * HOURS, "dynamodb-read"
    yield "streams, written", flows.tasks * flows.measured.task_writes_per_hour * HOURS, "dynamodb-write"
    if flows.deployment.sinks:
        # Each task reads the change numbers and the leases of tasks every second.
        yield "sinks, looked for", flows.tasks * 2 * SECONDS, "dynamodb-read"
        reports = flows.deployment.sinks * SECONDS / REPORT_SECONDS
        yield "sinks, reported", reports * REPORT_WRITE_UNITS, "dynamodb-write"
    yield "housekeeping, read", HOUSEKEEPING_ROUNDS * (flows.load.event_types + 2), "dynamodb-read"


def _s3_usage(flows: Flows) -> Iterator[UsageItem]:
    yield "archive, kept", flows.kept_bytes / GB, "s3-month"
    yield "archive, written", flows.index_batches * SECONDS, "s3-put"
    if flows.deployment.version_days:
        # Everything that is written is removed eventually.
        removed = flows.archived_bytes * flows.deployment.version_days * 86400
        yield "archive, old versions", removed / GB, "s3-month"
    if flows.deployment.archive_replica:
        yield "replica, kept", flows.kept_bytes / GB, "s3-month"
        yield "replica, written", flows.index_batches * SECONDS, "s3-put"
        yield "replica, moved", flows.archived_bytes * SECONDS / GB, "s3-region-out"


def _fargate_usage(flows: Flows) -> Iterator[UsageItem]:
    yield "processors", flows.tasks * flows.deployment.streaming_vcpu * HOURS, "fargate-vcpu-hour"
    yield "memory", flows.tasks * flows.deployment.streaming_gb * HOURS, "fargate-gb-hour"


def _network_usage(flows: Flows) -> Iterator[UsageItem]:
    resources = count_standing_resources(flows.deployment)
    through = flows.delivered_bytes + (flows.plain_bytes if flows.deployment.direct else 0)
    units = max(through * 3600 / GB, flows.load.connections / 3000)
    yield "load balancer", resources.balancers * HOURS, "balancer-hour"
    yield "load balancer, capacity", units * HOURS * (resources.balancers > 0), "balancer-unit-hour"
    if flows.deployment.direct:
        yield "events out", flows.delivered_bytes * SECONDS / GB, "balancer-out"
    per_task = 0 if flows.deployment.private_network else 1
    balancer_addresses = resources.addresses - per_task * resources.tasks
    yield "addresses of tasks", per_task * flows.tasks * HOURS, "address-hour"
    yield "addresses of the load balancer", balancer_addresses * HOURS, "address-hour"
    yield "interface endpoints", resources.endpoints * HOURS, "endpoint-hour"


def _monitoring_usage(flows: Flows) -> Iterator[UsageItem]:
    requests = flows.gateway_requests
    logged = (requests + flows.index_batches) * flows.log_bytes + HOUSEKEEPING_ROUNDS / SECONDS * IDLE_LOG_BYTES
    resources = count_standing_resources(flows.deployment)
    yield "log lines", logged * SECONDS / GB, "logs-in"
    yield "log lines, kept", logged * flows.deployment.log_days * 86400 / GB, "logs-month"
    yield "metrics", _count_metrics(flows), "metric-month"
    yield "alarms", resources.alarm_metrics, "alarm-month"
    yield "dashboard", resources.dashboards, "dashboard-month"
    # X-Ray traces one request a second, and a share of the others.
    traced = min(requests, 1 + flows.assumed.traced_share * requests) * SECONDS + HOUSEKEEPING_ROUNDS
    yield "traces", traced, "trace"


def _count_metrics(flows: Flows) -> int:
    """The number of metrics with values; AWS does not charge for metrics without values."""
    publishing, streaming = flows.publishes > 0, flows.load.connections > 0
    asked = 0 if flows.deployment.direct else publishing + streaming
    used = IDLE_METRICS + (not flows.deployment.asleep)
    used += METRICS_PER_FUNCTION * asked + INDEXER_METRICS * publishing
    used += TABLE_METRICS * publishing * (flows.deployment.table_minutes > 0)
    if flows.deployment.detailed_metrics:
        used += METRICS_PER_METHOD * (publishing + 2 * streaming) * (not flows.deployment.direct)
    return used


def _key_and_image_usage(flows: Flows) -> Iterator[UsageItem]:
    resources = count_standing_resources(flows.deployment)
    yield "keys", resources.encrypted * callers_of_keys(flows.deployment) * SECONDS / KEY_CACHE_SECONDS, "kms-request"
    yield "keys of one's own", resources.own_keys, "key-month"
    yield "image of the streaming service", IMAGE_GB, "ecr-month"
    if flows.deployment.queries:
        yield "image of queries", QUERY_IMAGE_GB, "ecr-month"


WORKERS = 2
SMALL_WORKER_DPU = 0.25
"""The DPUs of a worker of the job that runs continuously."""


def _glue_usage(flows: Flows) -> Iterator[UsageItem]:
    deployment = flows.deployment
    yield "jobs", deployment.dpu_hours_per_day * HOURS / 24, "glue-dpu-hour"
    if deployment.table_stream:
        yield "tables, all the time", WORKERS * SMALL_WORKER_DPU * HOURS, "glue-streaming-dpu-hour"
    elif deployment.table_minutes and flows.load.events_per_second:
        # Under a constant load, a one-minute run follows each wait.
        runs = HOURS * 60 / deployment.table_minutes
        yield "tables, when there is news", runs * WORKERS / 60, "glue-dpu-hour"


PARTS: Mapping[str, Callable[[Flows], Iterator[UsageItem]]] = {
    "API Gateway": _gateway_usage,
    "Lambda": _lambda_usage,
    "Kinesis": _kinesis_usage,
    "MSK": _msk_usage,
    "DynamoDB": _dynamodb_usage,
    "S3": _s3_usage,
    "Fargate": _fargate_usage,
    "Load balancer and network": _network_usage,
    "CloudWatch": _monitoring_usage,
    "Keys and images": _key_and_image_usage,
    "Glue": _glue_usage,
}

"""What a deployment has that is paid for whether it is used or not. A test compares it with the CDK app's templates."""

from __future__ import annotations

from dataclasses import dataclass

from infra.cost.load import Deployment

ALARM_METRICS = 19
"""Metrics that alarms look at, without those of streaming tasks and of single Kinesis streams: an alarm on a sum of
metrics is paid for each of them."""

ALARM_METRICS_OF_KINESIS = 4
"""Of those: what is asked of streams, and not of MSK."""

ALARM_METRICS_OF_STREAMING = 3
ALARM_METRICS_OF_DIRECT = 1
ALARM_METRICS_OF_TABLES = 2
"""Where housekeeping starts the job that makes tables."""

ALARM_METRICS_OF_CANARIES = 12
"""Two of each function that answers requests, and of the one that checks tokens."""

BALANCERS_ADDRESSES = 2
"""Of the balancer that clients reach directly: one in each zone."""

ALARM_METRICS_OF_SCALING = 4
"""Alarms that AWS itself makes: one above and one below each of two targets."""

ALARM_METRICS_OF_A_STREAM = 4
TABLES = 3

ENDPOINTS_OF_A_PRIVATE_NETWORK = 8
"""For Kinesis, logs, and two for images, in each of two zones."""

ENDPOINTS_OF_KINESIS = 2

CALLERS_OF_KEYS = 3
"""Roles that use the keys of tables and streams all the time: of housekeeping, the indexer, and streaming tasks."""

IMAGE_GB = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    tables: int
    streams: int
    shards: int
    tasks: int
    balancers: int
    addresses: int
    endpoints: int
    nats: int
    alarm_metrics: int
    dashboards: int
    own_keys: int
    encrypted: int


def standing(deployment: Deployment) -> Standing:
    awake = not deployment.asleep
    streams = 0 if deployment.on_msk else deployment.kinesis_streams
    endpoints = ENDPOINTS_OF_A_PRIVATE_NETWORK - deployment.on_msk * ENDPOINTS_OF_KINESIS
    direct = deployment.direct and awake
    tasks = deployment.min_tasks if awake else 0
    return Standing(
        tables=TABLES,
        streams=streams,
        shards=deployment.shards if deployment.stream_mode == "provisioned" and streams else 0,
        tasks=tasks,
        balancers=awake + direct,
        addresses=tasks * (not deployment.private_network) + direct * BALANCERS_ADDRESSES,
        endpoints=deployment.endpoints + awake * deployment.private_network * endpoints,
        nats=0,
        alarm_metrics=ALARM_METRICS
        + awake * (ALARM_METRICS_OF_STREAMING + ALARM_METRICS_OF_SCALING)
        + direct * ALARM_METRICS_OF_DIRECT
        + (deployment.table_minutes > 0) * ALARM_METRICS_OF_TABLES
        + deployment.canary * ALARM_METRICS_OF_CANARIES
        + ALARM_METRICS_OF_A_STREAM * streams
        + _alarm_metrics_of_msk(deployment),
        dashboards=int(deployment.dashboard),
        own_keys=deployment.own_keys,
        encrypted=TABLES + streams,
    )


def _alarm_metrics_of_msk(deployment: Deployment) -> int:
    """Partitions without a leader, copies of each broker, and its disk; what is asked of streams is not there."""
    if not deployment.on_msk:
        return 0
    of_brokers = {"serverless": 0, "express": 1 + deployment.brokers, "provisioned": 1 + 2 * deployment.brokers}
    return of_brokers[deployment.msk] - ALARM_METRICS_OF_KINESIS


def callers_of_keys(deployment: Deployment) -> int:
    return CALLERS_OF_KEYS - deployment.asleep

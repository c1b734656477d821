"""The resources that a deployment pays for regardless of use. A test compares them with the CDK app's templates."""

from __future__ import annotations

from dataclasses import dataclass

from infra.cost.load import Deployment

ALARM_METRICS = 19
"""Metrics of alarms, except those on streaming tasks and single streams. An alarm on a sum costs as much as all its
metrics."""

KINESIS_ALARM_METRICS = 4
"""The part of `ALARM_METRICS` that exists with Kinesis only."""

STREAMING_ALARM_METRICS = 3
DIRECT_ALARM_METRICS = 1
TABLE_ALARM_METRICS = 5
"""The metrics of alarms that exist if housekeeping starts the table job."""

CANARY_ALARM_METRICS = 12
"""The metrics of canary alarms: two for each function that answers requests, and for the authorizer."""

QUERY_CANARY_ALARM_METRICS = 2

MORE_ALARM_METRICS, MORE_STREAMING_ALARM_METRICS = 4, 2
"""The metrics of alarms that exist with `more_alarms`; those of the second number exist with streaming tasks only."""

BALANCER_ADDRESSES = 2
"""The addresses of the public balancer: one per zone."""

SCALING_ALARM_METRICS = 4
"""The metrics of scaling alarms: scaling creates an upper and a lower alarm for each of two targets."""

ALARM_METRICS_PER_STREAM = 4
TABLES = 3

PRIVATE_NETWORK_ENDPOINTS = 8
"""The number of endpoints: in each of two zones, one for Kinesis, one for logs, and two for images."""

KINESIS_ENDPOINTS = 2

KEY_ENDPOINTS = 2
"""Endpoints for KMS, which opens the secrets of sinks. `Deployment.endpoints` includes those for the services of
targets."""

KEY_CALLERS = 3
"""The roles that use the keys constantly: housekeeping, the indexer and streaming tasks."""

IMAGE_GB = 0.2
QUERY_IMAGE_GB = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingResources:
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


def count_standing_resources(deployment: Deployment) -> StandingResources:
    awake = not deployment.asleep
    streams = 0 if deployment.on_msk else deployment.kinesis_streams
    endpoints = PRIVATE_NETWORK_ENDPOINTS - deployment.on_msk * KINESIS_ENDPOINTS
    endpoints += (deployment.sinks > 0) * KEY_ENDPOINTS
    direct = deployment.direct and awake
    tasks = deployment.min_tasks if awake else 0
    return StandingResources(
        tables=TABLES,
        streams=streams,
        shards=deployment.shards if deployment.stream_mode == "provisioned" and streams else 0,
        tasks=tasks,
        balancers=awake + direct,
        addresses=tasks * (not deployment.private_network) + direct * BALANCER_ADDRESSES,
        endpoints=deployment.endpoints + awake * deployment.private_network * endpoints,
        nats=0,
        alarm_metrics=ALARM_METRICS
        + awake * (STREAMING_ALARM_METRICS + SCALING_ALARM_METRICS)
        + direct * DIRECT_ALARM_METRICS
        + (deployment.table_minutes > 0) * TABLE_ALARM_METRICS
        + deployment.more_alarms * (MORE_ALARM_METRICS + awake * MORE_STREAMING_ALARM_METRICS)
        + deployment.canary * (CANARY_ALARM_METRICS + (deployment.queries > 0) * QUERY_CANARY_ALARM_METRICS)
        + ALARM_METRICS_PER_STREAM * streams
        + _msk_alarm_metrics(deployment),
        dashboards=int(deployment.dashboard),
        own_keys=deployment.own_keys or int(deployment.sinks > 0),
        encrypted=TABLES + streams,
    )


def _msk_alarm_metrics(deployment: Deployment) -> int:
    """Metrics of offline partitions, and of each broker's replicas and disk, instead of the metrics of Kinesis."""
    if not deployment.on_msk:
        return 0
    per_kind = {"serverless": 0, "express": 1 + deployment.brokers, "provisioned": 1 + 2 * deployment.brokers}
    return per_kind[deployment.msk] - KINESIS_ALARM_METRICS


def callers_of_keys(deployment: Deployment) -> int:
    return KEY_CALLERS - deployment.asleep

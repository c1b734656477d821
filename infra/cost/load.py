"""A load, the deployment that serves it, and the measurements on which the estimate is based."""

from __future__ import annotations

from dataclasses import dataclass, fields


class BadLoad(Exception):
    """Raised for an impossible load; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The published and consumed events. Each consumer reads everything with its own streams."""

    events_per_second: float = 100.0
    event_bytes: float = 1000.0
    batch: float = 10.0
    event_types: int = 10
    partitions: int = 1
    consumers: int = 1
    streams: int = 1
    delivered_batch: float = 100.0
    retention_days: float = 2.0
    deduplicated: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 0:
                raise BadLoad(f"{field.name} cannot be below 0")
        if self.deduplicated > 1:
            raise BadLoad("deduplicated is a share, from 0 to 1")
        if self.batch < 1 or self.delivered_batch < 1 or self.event_types < 1 or self.partitions < 1:
            raise BadLoad("a batch has an event, and an event has its type and partition")

    @property
    def all_partitions(self) -> int:
        return self.event_types * self.partitions

    @property
    def connections(self) -> int:
        return self.consumers * self.streams


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The options of the deployment, with the defaults of the CDK app."""

    storage: str = "kinesis"
    stream_mode: str = "provisioned"
    kinesis_streams: int = 1
    shards: int = 1
    msk: str = "serverless"
    brokers: int = 3
    disk_gb: int = 100
    indexers: int = 1
    index_seconds: float = 10.0
    publish_memory: int = 1024
    function_memory: int = 512
    streaming_vcpu: float = 0.25
    streaming_gb: float = 0.5
    min_tasks: int = 1
    asleep: bool = False
    streams_per_task: int = 2000
    private_network: bool = False
    endpoints: int = 0
    own_keys: int = 0
    recovery_days: int = 35
    version_days: int = 0
    archive_replica: bool = False
    sinks: int = 0
    queries: int = 0
    query_memory: int = 2048
    stream_minutes: float = 14.0
    flush_seconds: float = 30.0
    log_days: float = 30.0
    dpu_hours_per_day: float = 0.1
    table_minutes: int = 0
    table_stream: bool = False
    compressed_streams: bool = True
    fan_out: bool = False
    direct: bool = False
    canary: bool = False
    more_alarms: bool = False
    dashboard: bool = False
    detailed_metrics: bool = False

    @property
    def on_msk(self) -> bool:
        return self.storage == "msk"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Measurements from benchmarks/README.md. Milliseconds refer to one core of the machine used there.

    `packed` is the compression ratio of frames by their number of events.
    """

    publish_request_ms: float = 1.6
    publish_event_ms: float = 0.016
    commit_ms: float = 3.0
    index_batch_ms: float = 8.0
    index_mb_per_second: float = 120.0
    housekeeping_type_ms: float = 5.0
    stream_event_ms: float = 0.010
    task_reads_per_hour: float = 12_600.0
    task_writes_per_hour: float = 1_440.0
    streamed_type_reads_per_hour: float = 1.0
    subscription_stream_reads_per_hour: float = 160.0
    packed: tuple[tuple[float, float], ...] = ((1, 1.05), (10, 0.25), (100, 0.19), (1000, 0.19))
    archived: float = 0.23
    gzipped: float = 0.23
    log_bytes_per_request: float = 420.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumed:
    """Assumptions about AWS that no benchmark here could measure, such as the duration of its calls."""

    access_log_bytes: float = 400.0
    kinesis_put_ms: float = 15.0
    kafka_ms: float = 5.0
    dynamodb_ms: float = 5.0
    s3_put_ms: float = 40.0
    traced_share: float = 0.05
    full_vcpu_memory: int = 1769
    query_seconds: float = 5.0
    shard_utilization: float = 0.7
    task_utilization: float = 0.6

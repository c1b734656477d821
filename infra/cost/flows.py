"""The rates that follow from a load: requests, frames, records, batches of the indexer, streams per second."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

from infra.cost.load import Assumed, Deployment, Load, Measured
from infra.cost.prices import SECONDS

PUT_UNIT = 25 * 1024
SHARD_BYTES = 1 << 20
SHARD_READ_BYTES = 2 * SHARD_BYTES
"""The limit for all readers of a shard together."""
SHARD_RECORDS = 1000
ON_DEMAND_SHARDS = 4
INDEX_RECORDS = 10_000
"""The largest batch of stream records in an invocation of the indexer."""

FRAME_OVERHEAD_BYTES = 60
"""Bytes of a record beside its events: headers and the partition key."""

STREAMED_REQUEST_BYTES = 10 * (1 << 20)
"""API Gateway charges a streamed answer as one request for each 10 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flows:
    load: Load
    deployment: Deployment
    measured: Measured
    assumed: Assumed

    # Publishing

    @property
    def publishes(self) -> float:
        return self.load.events_per_second / self.load.batch

    @property
    def publish_ms(self) -> float:
        return self.measured.publish_request_ms + self.load.batch * self.measured.publish_event_ms

    @property
    def gateway_requests(self) -> float:
        """Requests through the gateway, which are streams or invoke functions."""
        return 0.0 if self.deployment.direct else self.publishes + self.commits + self.streamed_requests

    @property
    def frames_per_publish(self) -> float:
        return expected_distinct_places(self.load.batch, self.load.partitions)

    @property
    def frames(self) -> float:
        """Records of the stream."""
        return self.publishes * self.frames_per_publish

    @property
    def frame_bytes(self) -> float:
        events = self.load.batch / self.frames_per_publish
        return FRAME_OVERHEAD_BYTES + events * self.load.event_bytes * compression_ratio(self.measured.packed, events)

    @property
    def stored_bytes(self) -> float:
        return self.frames * self.frame_bytes

    @property
    def put_units(self) -> float:
        return self.frames * math.ceil(self.frame_bytes / PUT_UNIT)

    @property
    def plain_bytes(self) -> float:
        return self.load.events_per_second * self.load.event_bytes

    @property
    def shards(self) -> int:
        if self.deployment.on_msk:
            return 0
        read = self.stored_bytes * self.polling_readers / (SHARD_READ_BYTES / SHARD_BYTES)
        fullest = max(max(self.stored_bytes, read) / SHARD_BYTES, self.frames / SHARD_RECORDS)
        fullest /= self.assumed.shard_utilization
        minimum = self.deployment.shards if self.deployment.stream_mode == "provisioned" else ON_DEMAND_SHARDS
        return max(minimum, math.ceil(fullest))

    @property
    def polling_readers(self) -> int:
        """The readers that share a shard's read limit: the indexer, and tasks without enhanced fan-out."""
        return 1 if self.deployment.fan_out else 1 + self.tasks

    @property
    def pushed_bytes(self) -> float:
        return self.stored_bytes * self.tasks if self.deployment.fan_out else 0.0

    # Indexing

    @property
    def index_batches(self) -> float:
        """Invocations of the indexer. With Kinesis: one per shard and window, or more for full batches. With MSK: one
        per minute.
        """
        if self.deployment.on_msk:
            return self.deployment.indexers / 60
        per_shard = self.frames / self.shards
        by_time = min(per_shard, 1 / self.deployment.index_seconds) if self.deployment.index_seconds else per_shard
        return self.shards * max(by_time, per_shard / INDEX_RECORDS)

    @property
    def partitions_per_index_batch(self) -> float:
        if not self.frames:
            return 0.0
        parts = self.deployment.indexers if self.deployment.on_msk else self.shards
        return expected_distinct_places(self.frames / self.index_batches, self.load.all_partitions / parts)

    @property
    def topics_per_index_batch(self) -> float:
        """Topics that an invocation of the indexer checks, with MSK only."""
        return self.load.event_types / self.deployment.indexers if self.deployment.on_msk else 0.0

    # Streams

    @property
    def delivered(self) -> float:
        """Events to all consumers."""
        return self.load.events_per_second * self.load.consumers

    @property
    def delivered_bytes(self) -> float:
        packed = self.measured.gzipped if self.deployment.compressed_streams else 1.0
        return self.delivered * self.load.event_bytes * packed

    @property
    def commits(self) -> float:
        """Commits: one per batch. The number of events ends a batch at high rates, and the timeout ends it at low
        rates."""
        by_time = min(self.load.events_per_second, self.load.all_partitions / self.deployment.flush_seconds)
        return self.load.consumers * max(self.load.events_per_second / self.load.delivered_batch, by_time)

    @property
    def streamed_types(self) -> int:
        """The event types that a task reads again regularly to keep its cache fresh."""
        return self.load.event_types if self.load.connections else 0

    @property
    def streamed_requests(self) -> float:
        """Requests for streams: clients reconnect after `stream_minutes`, and long answers count several times."""
        begun = self.load.connections / (60 * self.deployment.stream_minutes)
        return max(begun, self.delivered_bytes / STREAMED_REQUEST_BYTES)

    @property
    def tasks(self) -> int:
        if self.deployment.asleep:
            return 0
        busy = self.delivered * self.measured.stream_event_ms
        if self.deployment.direct:
            busy += self.publishes * self.publish_ms + self.commits * self.measured.commit_ms
        busy /= 1000 * self.assumed.task_utilization
        wanted = max(self.load.connections / self.deployment.streams_per_task, busy / self.deployment.streaming_vcpu)
        return max(self.deployment.min_tasks, math.ceil(wanted))

    def seconds(self, cpu_ms: float, wait_ms: float, memory: int) -> float:
        """The duration of an invocation in seconds, from its CPU time on a full core, its waiting time, and the memory
        of the function, which determines its share of a core.
        """
        slower = max(1.0, self.assumed.full_vcpu_memory / memory)
        return (wait_ms + cpu_ms * slower) / 1000

    @property
    def log_bytes(self) -> float:
        """The bytes of the log lines for a request, from the function and the gateway."""
        return self.measured.log_bytes_per_request + self.assumed.access_log_bytes

    @property
    def kept_bytes(self) -> float:
        return min(self.load.retention_days * 86400, 10 * 12 * SECONDS) * self.archived_bytes

    @property
    def archived_bytes(self) -> float:
        """The bytes that go into the archive in a second."""
        return self.plain_bytes * self.measured.archived


def expected_distinct_places(things: float, places: float) -> float:
    """The expected number of places that get at least one item, if each item chooses a place at random."""
    if things <= 1 or places <= 1:
        return min(things, max(places, 1.0))
    return places * -math.expm1(things * math.log1p(-1 / places))


def compression_ratio(packed: tuple[tuple[float, float], ...], events: float) -> float:
    """The compression ratio of a frame, interpolated logarithmically between two measured sizes."""
    at = bisect_right(packed, events, key=lambda each: each[0])
    if at in (0, len(packed)):
        return packed[min(at, len(packed) - 1)][1]
    (few, more), (many, less) = packed[at - 1], packed[at]
    way = math.log(events / few) / math.log(many / few)
    return more + way * (less - more)

"""The log indexer: archives events for all processes, from a Kinesis stream or from Kafka's topics.

Behind a Kinesis event source mapping, an invocation of the function gets a batch of one shard's records, and returns
the failures. The mapping has a parallelization factor of 1 and reports batch item failures. If a batch cannot be
indexed now, the function reports the first record that it did not index, and Lambda sends the batch again from that
record. The function sets unreadable records aside and reports success for them, so it does not receive them again.

The function reads the invocation's event without the batch processor of Powertools, which handles one record at a time
and takes long to load.

Logs that number events themselves, such as Kafka, have no such mapping: a mapping for MSK reads one topic, and each
timeline has its own topic. A schedule starts the function for these logs, and it reads each topic from the end of the
archive. Two invocations can run at the same time: if both archive the same events, only one of them adds its objects to
the index.
"""

from __future__ import annotations

import logging
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from zlib import crc32

from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

from nakadi.app.engines import log_index_url, open_log_index
from nakadi.app.logs import METRIC_NAMESPACE
from nakadi.app.settings import Settings
from nakadi.app.storages import with_stream_name
from nakadi.common.chores import run_and_log_failure
from nakadi.engines.archive.stores import open_archive_if_set
from nakadi.engines.kinesis.indexing import Indexer, IndexingResult
from nakadi.engines.kinesis.numbering import ArrivedRecord
from nakadi.engines.kinesis.opening import open_indexer
from nakadi.model.log_index import RecordPosition
from nakadi.ports.clock import Clock, SystemClock
from nakadi.ports.event_log import OffsetUnavailable, UnknownTopic

if TYPE_CHECKING:
    from nakadi.common.counting import Counter
    from nakadi.engines.archive.tiered_log import TieredLog
    from nakadi.model.event_type import Timeline

log = logging.getLogger(__name__)


def make_indexing_handler(settings: Settings) -> Callable[[Mapping[str, Any], Any], Any]:
    """The handler for the log that the settings name."""
    if not settings.event_log.startswith("kinesis:"):
        archiver = TopicArchiver(settings)
        return lambda event, _context: archiver.archive_part(int(event["part"]), int(event["parts"]))
    indexers = IndexersByStream(settings)
    return lambda event, _context: index_batch(indexers.indexer_of_event(event), event)


class IndexersByStream:
    """An indexer for each stream that is mapped to this function."""

    def __init__(self, settings: Settings) -> None:
        self._event_log = settings.event_log
        self._index = open_log_index(log_index_url(settings))
        self._archive = open_archive_if_set(settings.archive)
        self._open: dict[str, Indexer] = {}

    def indexer_of_event(self, event: Mapping[str, Any]) -> Indexer:
        """The indexer of the stream that this invocation's event names."""
        stream = event["Records"][0]["eventSourceARN"].rpartition("/")[2]
        if stream not in self._open:
            self._open[stream] = open_indexer(with_stream_name(self._event_log, stream), self._index, self._archive)
        return self._open[stream]


def index_batch(indexer: Indexer, event: Mapping[str, Any]) -> dict[str, Any]:
    """Index a batch. Return, for each shard that failed, the record from which Lambda has to send the batch again."""
    failures: list[str] = []
    for shard, records in _records_by_shard(event).items():
        try:
            _write_indexing_metrics(indexer.index(shard, records))
        except Exception:  # after any error, index the other shards; Lambda retries this one
            first = _first_unindexed_record(indexer, shard, records)
            log.warning("Indexing of %s failed, it resumes from record %s", shard, first, exc_info=True)
            failures.append(str(first))
    return {"batchItemFailures": [{"itemIdentifier": sequence} for sequence in failures]}


def _first_unindexed_record(indexer: Indexer, shard: str, records: Sequence[ArrivedRecord]) -> int:
    try:
        done = indexer.last_indexed_sequence(shard)
    except Exception:  # noqa: BLE001  # it was logged that something is wrong; all of it comes again
        done = None
    left = [record.position.sequence for record in records if done is None or record.position.sequence > done]
    return left[0] if left else records[-1].position.sequence


def _records_by_shard(event: Mapping[str, Any]) -> Mapping[str, list[ArrivedRecord]]:
    found: dict[str, list[ArrivedRecord]] = {}
    for record in event["Records"]:
        arrived = _arrived_record(record)
        found.setdefault(arrived.position.shard, []).append(arrived)
    return found


def _arrived_record(record: Mapping[str, Any]) -> ArrivedRecord:
    shard = record["eventID"].partition(":")[0]
    content = record["kinesis"]
    mark = RecordPosition(shard, int(content["sequenceNumber"]))
    at = round(content["approximateArrivalTimestamp"] * 1000)
    return ArrivedRecord(mark, content["partitionKey"], at, b64decode(content["data"]))


def _write_indexing_metrics(outcome: IndexingResult) -> None:
    metrics = EphemeralMetrics(namespace=METRIC_NAMESPACE, service="log_indexer")
    metrics.add_metric("EventsIndexed", MetricUnit.Count, outcome.event_count)
    metrics.add_metric("BytesIndexed", MetricUnit.Bytes, outcome.byte_count)
    metrics.add_metric("SetAside", MetricUnit.Count, len(outcome.set_aside_keys))
    metrics.flush_metrics()


class ArchivingFailed(Exception):
    """Raised if topics could not be archived. The process's log has the causes, and the next run tries again."""


class TopicArchiver:
    """Archives the events of all storages that have an archive, and removes old events from their logs."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        from nakadi.app.broker import open_broker  # imported late: a Kinesis stream needs no broker

        self._clock = clock or SystemClock()
        self._broker = open_broker(settings, self._clock)
        self._index = open_log_index(log_index_url(settings))

    def close(self) -> None:
        self._broker.close()
        self._index.close()

    def archive_part(self, part: int, parts: int) -> None:
        """Archive the topics of part number `part` out of `parts`. Report to CloudWatch how many events were archived,
        and how long the oldest of them had waited.
        """
        metrics = self._broker.metrics
        events, size = _counter_total(metrics.archive_events), _counter_total(metrics.archive_bytes)
        waiting: list[datetime] = []
        failed = [
            event_type
            for event_type, timeline in self._timelines_to_archive()
            if crc32(timeline.topic.encode()) % parts == part
            and not run_and_log_failure(
                "archiving",
                f"{event_type} (topic {timeline.topic})",
                partial(self._archive_timeline, timeline, waiting),
            )
        ]
        report = EphemeralMetrics(namespace=METRIC_NAMESPACE, service="log_indexer")
        report.add_metric("EventsIndexed", MetricUnit.Count, _counter_total(metrics.archive_events) - events)
        report.add_metric("BytesIndexed", MetricUnit.Bytes, _counter_total(metrics.archive_bytes) - size)
        if not failed:
            # While this metric is missing, its alarm assumes the worst.
            lag = (self._clock.now() - min(waiting)).total_seconds() if waiting else 0.0
            report.add_metric("IndexLag", MetricUnit.Seconds, max(0, round(lag)))
        report.flush_metrics()
        if failed:
            raise ArchivingFailed(f"{len(failed)} topics could not be archived, such as the one of {failed[0]}")

    def _timelines_to_archive(self) -> Iterator[tuple[str, Timeline]]:
        for event_type in self._broker.event_types.all():
            switching = (event_type.switching_to,) if event_type.switching_to else ()
            timelines = (*event_type.timelines, *switching)
            yield from ((event_type.name, each) for each in timelines if not each.deleted)

    def _archive_timeline(self, timeline: Timeline, waiting: list[datetime]) -> None:
        from nakadi.engines.archive.tiered_log import TieredLog

        event_log = self._broker.logs.for_storage(timeline.storage_id)
        if not isinstance(event_log, TieredLog):
            return
        try:
            waiting += self._oldest_unarchived_times(event_log, timeline)
            event_log.archive_topic(timeline.topic, range(timeline.partitions))
        except UnknownTopic:
            return  # the topic was deleted meanwhile

    def _oldest_unarchived_times(self, event_log: TieredLog, timeline: Timeline) -> Iterator[datetime]:
        """When the first unarchived event was stored, for each partition that has one."""
        topic, partitions = timeline.topic, range(timeline.partitions)
        bounds = event_log.bounds(topic, partitions)
        heads = self._index.index_heads([(topic, number) for number in partitions])
        for number in partitions:
            start = max(heads[topic, number].state.next_offset, bounds[number].oldest)
            if start < bounds[number].next_offset:
                try:
                    found = event_log.read(topic, number, start, limit=1)
                except OffsetUnavailable:
                    continue  # retention removed the event meanwhile
                yield from [event.stored_at for event in found.events]


def _counter_total(counter: Counter) -> float:
    return sum(counter.rows().values())

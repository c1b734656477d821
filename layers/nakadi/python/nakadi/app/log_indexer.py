"""The log indexer: behind a Kinesis event source mapping, a batch of one shard's records in, what failed out.

Events of other logs are archived by `topic_archiver`.

The mapping has a parallelization factor of 1 and reports batch item failures. A batch that cannot be indexed now is
reported from its first record on that is not indexed yet, and comes again; what can never be read is set aside, and
does not come again.

The event is read as it is: the library for batches looks at one record at a time, and takes long to load.
"""

from __future__ import annotations

import logging
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any

from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

from nakadi.app.engines import at_stream, open_log_index
from nakadi.app.functions import NAMESPACE, Handle
from nakadi.app.settings import Settings
from nakadi.engines.archive.stores import archive_at
from nakadi.engines.kinesis.indexing import Indexer, IndexingResult
from nakadi.engines.kinesis.opening import open_indexer
from nakadi.engines.kinesis.recent_records import ArrivedRecord
from nakadi.model.events import Mark

log = logging.getLogger(__name__)


def handle_of(settings: Settings) -> Handle:
    """What the function does with an invocation, which depends on the log that it works for."""
    if not settings.event_log.startswith("kinesis:"):
        from nakadi.app.topic_archiver import TopicArchiver

        archiver = TopicArchiver(settings)
        return lambda event, _context: archiver.run(int(event["part"]), int(event["parts"]))
    indexers = Indexers(settings)
    return lambda event, _context: indexed(indexers.of(event), event)


class Indexers:
    """One for each stream that is mapped to this function."""

    def __init__(self, settings: Settings) -> None:
        self._event_log = settings.event_log
        self._index = open_log_index(settings.log_index_url)
        self._archive = archive_at(settings.archive)
        self._open: dict[str, Indexer] = {}

    def of(self, event: Mapping[str, Any]) -> Indexer:
        """The indexer of the stream that an invocation is about."""
        stream = event["Records"][0]["eventSourceARN"].rpartition("/")[2]
        if stream not in self._open:
            self._open[stream] = open_indexer(at_stream(self._event_log, stream), self._index, self._archive)
        return self._open[stream]


def indexed(indexer: Indexer, event: Mapping[str, Any]) -> dict[str, Any]:
    """Index a batch; return the records from which it has to be repeated."""
    failures: list[str] = []
    for shard, records in _by_shard(event).items():
        try:
            _write_metrics(indexer.index(shard, records))
        except Exception:  # whatever it was: the other shards have been, or will be, indexed, and this one comes again
            first = _first_left(indexer, shard, records)
            log.warning("Indexing of %s failed, it is tried again from record %s on", shard, first, exc_info=True)
            failures.append(str(first))
    return {"batchItemFailures": [{"itemIdentifier": sequence} for sequence in failures]}


def _first_left(indexer: Indexer, shard: str, records: Sequence[ArrivedRecord]) -> int:
    try:
        done = indexer.progress(shard)
    except Exception:  # noqa: BLE001  # it was logged that something is wrong; all of it comes again
        done = None
    left = [record.mark.sequence for record in records if done is None or record.mark.sequence > done]
    return left[0] if left else records[-1].mark.sequence


def _by_shard(event: Mapping[str, Any]) -> Mapping[str, list[ArrivedRecord]]:
    found: dict[str, list[ArrivedRecord]] = {}
    for record in event["Records"]:
        arrived = _arrived_record(record)
        found.setdefault(arrived.mark.shard, []).append(arrived)
    return found


def _arrived_record(record: Mapping[str, Any]) -> ArrivedRecord:
    shard = record["eventID"].partition(":")[0]
    content = record["kinesis"]
    mark = Mark(shard, int(content["sequenceNumber"]))
    at = round(content["approximateArrivalTimestamp"] * 1000)
    return ArrivedRecord(mark, content["partitionKey"], at, b64decode(content["data"]))


def _write_metrics(outcome: IndexingResult) -> None:
    metrics = EphemeralMetrics(namespace=NAMESPACE, service="log_indexer")
    metrics.add_metric("EventsIndexed", MetricUnit.Count, outcome.events)
    metrics.add_metric("BytesIndexed", MetricUnit.Bytes, outcome.bytes)
    metrics.add_metric("SetAside", MetricUnit.Count, len(outcome.set_aside))
    metrics.flush_metrics()

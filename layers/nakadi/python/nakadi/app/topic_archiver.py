"""The log indexer for logs that number events themselves, such as Kafka: started by the clock, it archives what is new.

An event source mapping for MSK reads one topic, and there is a topic for each timeline. So the function reads for
itself: of each topic, from where the archive ends. Two that run at the same time do no harm: of two that archive the
same events one finds the work done.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import partial
from zlib import crc32

from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

from nakadi.app.broker import open_broker
from nakadi.app.engines import open_log_index
from nakadi.app.functions import NAMESPACE
from nakadi.app.settings import Settings
from nakadi.common.metrics import Counter
from nakadi.common.work import attempted
from nakadi.engines.archive.tiered_log import TieredLog
from nakadi.model.event_type import Timeline
from nakadi.ports.clock import Clock, SystemClock
from nakadi.ports.event_log import OffsetUnavailable, UnknownTopic


class NotArchived(Exception):
    """Raised when topics could not be archived. The log says why, and the next run tries again."""


class TopicArchiver:
    """Archives the events of all storages that have an archive, and removes from their logs what is old there."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._broker = open_broker(settings, self._clock)
        self._index = open_log_index(settings.log_index_url)

    def close(self) -> None:
        self._broker.close()
        self._index.close()

    def run(self, part: int, parts: int) -> None:
        """Archive the topics of one of so many parts, and report how much it was and how long it had waited."""
        metrics = self._broker.metrics
        events, size = _total(metrics.archive_events), _total(metrics.archive_bytes)
        waiting: list[datetime] = []
        failed = [
            timeline.topic
            for timeline in self._timelines()
            if crc32(timeline.topic.encode()) % parts == part
            and not attempted("archiving", timeline.topic, partial(self._archive, timeline, waiting))
        ]
        report = EphemeralMetrics(namespace=NAMESPACE, service="log_indexer")
        report.add_metric("EventsIndexed", MetricUnit.Count, _total(metrics.archive_events) - events)
        report.add_metric("BytesIndexed", MetricUnit.Bytes, _total(metrics.archive_bytes) - size)
        if not failed:
            # While it is missing, the alarm on it takes the worst for granted.
            lag = (self._clock.now() - min(waiting)).total_seconds() if waiting else 0.0
            report.add_metric("IndexLag", MetricUnit.Seconds, max(0, round(lag)))
        report.flush_metrics()
        if failed:
            raise NotArchived(f"{len(failed)} topics could not be archived, such as {failed[0]}")

    def _timelines(self) -> Iterator[Timeline]:
        for event_type in self._broker.event_types.all():
            switching = (event_type.switching_to,) if event_type.switching_to else ()
            yield from (each for each in (*event_type.timelines, *switching) if not each.deleted)

    def _archive(self, timeline: Timeline, waiting: list[datetime]) -> None:
        event_log = self._broker.logs.of(timeline.storage_id)
        if not isinstance(event_log, TieredLog):
            return
        try:
            waiting += self._waiting_since(event_log, timeline)
            event_log.archive_topic(timeline.topic, range(timeline.partitions))
        except UnknownTopic:
            return  # it was deleted meanwhile

    def _waiting_since(self, event_log: TieredLog, timeline: Timeline) -> Iterator[datetime]:
        """When the first event of each partition was stored that is not archived yet."""
        topic, partitions = timeline.topic, range(timeline.partitions)
        bounds = event_log.bounds(topic, partitions)
        heads = self._index.heads([(topic, number) for number in partitions])
        for number in partitions:
            start = max(heads[topic, number].counted.next, bounds[number].oldest)
            if start < bounds[number].next:
                try:
                    found = event_log.read(topic, number, start, limit=1)
                except OffsetUnavailable:
                    continue  # removed by retention meanwhile
                yield from [event.stored_at for event in found.events]


def _total(counter: Counter) -> float:
    return sum(counter.rows().values())

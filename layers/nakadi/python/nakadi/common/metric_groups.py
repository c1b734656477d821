"""Metrics that are counted together, for every request or batch: one row of numbers, under one lock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sized
from functools import partial
from typing import TypeVar

from nakadi.common.counting import (
    OTHER_LABEL_VALUE,
    BoundedLabelValues,
    Counter,
    Distribution,
    Gauge,
    Histogram,
    Labels,
    MetricRows,
)

Key = TypeVar("Key", bound=tuple[object, ...])
CountsByKey = dict[Key, tuple[list[int], Distribution]]
"""By key, a row of numbers, and the row of a histogram that is updated together with these numbers."""

_UNUSED_DISTRIBUTION = Distribution([])

RECENT_EVENTS_PER_PARTITION = 250
SECONDS_OF_RECENT_EVENTS = 300.0
MIN_EVENTS_FOR_RATIO = 100
"""With fewer events, one partition may have several times as many as others by chance."""


def _add_columns_as_sources(rows: CountsByKey[Key], lock: threading.Lock, *counters: Counter) -> None:
    """Make each of these counters read one column of the rows. A counter adds up the rows that agree in the first parts
    of their keys, one part for each of its labels.
    """

    def totals(column: int, labels: int) -> MetricRows:
        found: dict[Labels, float] = {}
        # The table is copied under the lock. A row may still grow while it is read, if events are counted at that
        # moment.
        with lock:
            copied = rows.copy()
        for key, (numbers, _) in copied.items():
            label = tuple(map(str, key[:labels]))
            found[label] = found.get(label, 0) + numbers[column]
        return found

    for column, counter in enumerate(counters):
        counter.add_source(partial(totals, column, len(counter.definition.labels)))


class AnsweredRequestMetrics:
    """The metrics of every answer, under one lock: the lock of the histogram, whose row has the seconds."""

    def __init__(self, seconds: Histogram, requests: Counter, received: Counter, sent: Counter) -> None:
        self._seconds = seconds
        self._rows: CountsByKey[tuple[str, int]] = {}
        _add_columns_as_sources(self._rows, seconds.lock, requests, received, sent)

    def count_request(self, operation: str, status: int, seconds: float, received: int = 0, sent: int = 0) -> None:
        """Count an answered request; `received` and `sent` are the bytes of the bodies."""
        with self._seconds.lock:
            row = self._rows.get((operation, status))
            if row is None:
                row = self._rows[operation, status] = [0, 0, 0], self._seconds.row_for_update((operation,))
            numbers, distribution = row
            distribution.add_value(seconds, self._seconds.bounds)
            numbers[0] += 1
            numbers[1] += received
            numbers[2] += sent


class SentEventMetrics:
    """The metrics of every batch that a stream sends, under one lock: the lock of the histogram, whose row for the API
    has the delays.
    """

    def __init__(self, delay: Histogram, events: Counter, size: Counter, names: BoundedLabelValues) -> None:
        self._delay = delay
        self._names = names
        self._rows: CountsByKey[tuple[str, str]] = {}
        _add_columns_as_sources(self._rows, delay.lock, events, size)

    def count_batch(self, api: str, event_type: str, events: int, size: int, delay: float) -> None:
        """Count events of an event type that were sent in this many bytes, this many seconds after the newest was
        stored.
        """
        with self._delay.lock:
            row = self._rows.get((api, event_type))
            if row is None:
                labels = (api, self._names.value_or_other(event_type))
                row = self._rows.setdefault(labels, ([0, 0], self._delay.row_for_update((api,))))
            numbers, distribution = row
            distribution.add_value(delay, self._delay.bounds)
            numbers[0] += events
            numbers[1] += size

    def forget(self, names: Collection[str]) -> None:
        """Drop the counts of event types; the total of all bytes remains."""
        with self._delay.lock:
            for api, name in [key for key in self._rows if key[1] in names]:
                (_, size), distribution = self._rows.pop((api, name))
                rest, _ = self._rows.setdefault((api, OTHER_LABEL_VALUE), ([0, 0], distribution))
                rest[1] += size


class StoredEventMetrics:
    """The metrics of every stored batch."""

    def __init__(self, events: Counter, size: Counter, names: BoundedLabelValues) -> None:
        self._names = names
        self._lock = threading.Lock()
        self._rows: CountsByKey[tuple[str]] = {}
        _add_columns_as_sources(self._rows, self._lock, events, size)

    def count_batch(self, event_type: str, events: int, size: int) -> None:
        """Count the events of a stored batch."""
        with self._lock:
            row = self._rows.get((event_type,))
            if row is None:
                row = self._rows.setdefault((self._names.value_or_other(event_type),), ([0, 0], _UNUSED_DISTRIBUTION))
            row[0][0] += events
            row[0][1] += size

    def forget(self, names: Collection[str]) -> None:
        """Drop the counts of these event types."""
        with self._lock:
            for key in [key for key in self._rows if key[0] in names]:
                del self._rows[key]


class PartitionLoads:
    """How unevenly recent events are spread over the partitions of their event types.

    It counts the events of each partition, and halves all counts of an event type when there are many, so older events
    count less and less. An event type with one partition has no busiest partition. Nor does an event type for which
    this process received no events for `SECONDS_OF_RECENT_EVENTS`: its publishers may have moved to another process.
    """

    def __init__(
        self, ratio: Gauge, names: BoundedLabelValues, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.monotonic = monotonic
        self._names = names
        self._lock = threading.Lock()
        self._counts: dict[str, list[int]] = {}
        self._counted_at: dict[str, float] = {}
        ratio.add_source(self._ratios)

    def count_batch(self, event_type: str, by_partition: Mapping[int, Sized], partitions: int) -> None:
        """Count the events of a stored batch by partition; the event type has `partitions` partitions."""
        if partitions == 1:
            return
        with self._lock:
            counts = self._counts.get(event_type)
            if counts is None or len(counts) != partitions:
                if self._names.value_or_other(event_type) == OTHER_LABEL_VALUE:
                    return
                counts = self._counts[event_type] = [0] * partitions
            self._counted_at[event_type] = self.monotonic()
            for partition, events in by_partition.items():
                counts[partition] += len(events)
            if sum(counts) > RECENT_EVENTS_PER_PARTITION * partitions:
                counts[:] = [each >> 1 for each in counts]

    def forget(self, names: Collection[str]) -> None:
        """Drop the counts of these event types."""
        with self._lock:
            for name in names:
                self._counts.pop(name, None)
                self._counted_at.pop(name, None)

    def _ratios(self) -> MetricRows:
        since = self.monotonic() - SECONDS_OF_RECENT_EVENTS
        with self._lock:
            rows = {
                name: (max(counts), sum(counts), len(counts))
                for name, counts in self._counts.items()
                if self._counted_at[name] > since
            }
        return {
            (name,): most * partitions / total
            for name, (most, total, partitions) in rows.items()
            if total >= MIN_EVENTS_FOR_RATIO
        }

"""Metrics that are counted together, for every request or batch: one row of numbers, under one lock."""

from __future__ import annotations

import threading
from collections.abc import Collection
from functools import partial
from typing import TypeVar

from nakadi.common.counting import (
    OTHER_LABEL_VALUE,
    BoundedLabelValues,
    Counter,
    Distribution,
    Histogram,
    Labels,
    MetricRows,
)

Key = TypeVar("Key", bound=tuple[object, ...])
CountsByKey = dict[Key, tuple[list[int], Distribution]]
"""Rows of numbers that are counted together, each with the row of a histogram that is counted with them."""

_UNUSED_DISTRIBUTION = Distribution([])


def _add_columns_as_sources(rows: CountsByKey[Key], lock: threading.Lock, *counters: Counter) -> None:
    """Make each counter read a column. It adds up the rows by as many parts of the key as it has labels."""

    def totals(column: int, labels: int) -> MetricRows:
        found: dict[Labels, float] = {}
        # A copy of the table. A row may grow while it is read, because of events counted at that moment.
        with lock:
            copied = rows.copy()
        for key, (numbers, _) in copied.items():
            label = tuple(map(str, key[:labels]))
            found[label] = found.get(label, 0) + numbers[column]
        return found

    for column, counter in enumerate(counters):
        counter.add_source(partial(totals, column, len(counter.definition.labels)))


class AnsweredRequestMetrics:
    """The metrics of every answer, under one lock: that of the histogram, whose row has the seconds."""

    def __init__(self, seconds: Histogram, requests: Counter, received: Counter, sent: Counter) -> None:
        self._seconds = seconds
        self._rows: CountsByKey[tuple[str, int]] = {}
        _add_columns_as_sources(self._rows, seconds.lock, requests, received, sent)

    def count_request(self, operation: str, status: int, seconds: float, received: int = 0, sent: int = 0) -> None:
        """Count an answered request; `received` and `sent` are the bytes of the bodies."""
        with self._seconds.lock:
            row = self._rows.get((operation, status))
            if row is None:
                row = self._rows[operation, status] = [0, 0, 0], self._seconds.row_to_change((operation,))
            numbers, distribution = row
            distribution.add_value(seconds, self._seconds.bounds)
            numbers[0] += 1
            numbers[1] += received
            numbers[2] += sent


class SentEventMetrics:
    """The metrics of every batch that a stream sends, under one lock: that of the histogram, whose row for the API has
    the delays.
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
                row = self._rows.setdefault(labels, ([0, 0], self._delay.row_to_change((api,))))
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
        """Drop the counts of event types."""
        with self._lock:
            for key in [key for key in self._rows if key[0] in names]:
                del self._rows[key]

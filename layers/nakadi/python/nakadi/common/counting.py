"""How a process counts and measures times: values by labels, added up as events happen or read when metrics are read.

Counting must take well under a microsecond, because it happens in the middle of publishing. So values that are counted
together for every batch or request share one row and one lock. Threads count at the same time, and `+=` alone would
lose concurrent additions. So each kind has a lock, which is held for a few steps, and never while values are read from
a source.

The number of values of a label is bounded: of the names that clients choose, the first ones are counted by name, and
`other` counts all others.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import reduce
from operator import add
from typing import Literal

from msgspec import Struct, field

Labels = tuple[str, ...]
MetricRows = Mapping[Labels, float]
ReadRows = Callable[[], MetricRows]
BucketBounds = tuple[float, ...]

OTHER_LABEL_VALUE = "other"

# With this number of values, a 99.9th percentile is meaningful, and sorting them at every read is fast.
MAX_RECENT_SAMPLES = 2048


class BoundedLabelValues:
    """The values that a label may have: the first names up to a limit, and `other` for all later names."""

    def __init__(self, max_values: int) -> None:
        self.max_values = max_values
        self._lock = threading.Lock()
        self._known: set[str] = set()

    def value_or_other(self, name: str) -> str:
        with self._lock:
            if len(self._known) < self.max_values:
                self._known.add(name)
            return name if name in self._known else OTHER_LABEL_VALUE

    def values(self) -> frozenset[str]:
        with self._lock:
            return frozenset(self._known)

    def forget(self, names: Collection[str]) -> None:
        """Remove these names, to make room for other names."""
        with self._lock:
            self._known.difference_update(names)


class MetricDefinition(Struct, frozen=True, kw_only=True):
    """The name and meaning of a metric, and the group of metrics that it is shown with.

    `json_name` is its name in JSON, if that is not derived from `name`.
    """

    name: str
    meaning: str
    group: str
    labels: Labels = ()
    json_name: str = ""
    known_names: BoundedLabelValues

    def bounded_labels(self, labels: Labels) -> Labels:
        pairs = zip(self.labels, labels, strict=True)
        return tuple(
            [self.known_names.value_or_other(value) if label == "event_type" else value for label, value in pairs]
        )


class Counter:
    """A number for each combination of labels, which only grows."""

    kind: Literal["counter", "gauge"] = "counter"

    def __init__(self, definition: MetricDefinition, combine: Callable[[float, float], float] = add) -> None:
        self.definition = definition
        self.combine = combine
        self._lock = threading.Lock()
        # Prometheus notices that a counter grows only if it has read it before, so a counter without labels begins at
        # 0.
        begins_at_zero = self.kind == "counter" and not definition.labels
        self._values: dict[Labels, float] = {(): 0} if begins_at_zero else {}
        self._followed: list[ReadRows] = []

    def add(self, number: float = 1, *labels: str) -> None:
        with self._lock:
            if labels not in self._values:
                labels = self.definition.bounded_labels(labels)
            self._values[labels] = self._values.get(labels, 0) + number

    def add_source(self, read: ReadRows) -> None:
        """Read values from this function whenever metrics are read; equal labels of several functions are combined."""
        self._followed.append(read)

    def add_named_source(self, read: Callable[[], Mapping[str, float]]) -> None:
        """Read values by the metric's only label whenever metrics are read, with the same limit on names as other
        metrics.
        """
        self.add_bounded_source(lambda: {(name,): value for name, value in read().items()})

    def add_bounded_source(self, read: ReadRows) -> None:
        """Read values by labels, with the same limit on names of event types as other metrics."""

        def read_bounded() -> MetricRows:
            rows: dict[Labels, float] = {}
            for all_labels, value in read().items():
                labels = self.definition.bounded_labels(all_labels)
                rows[labels] = self.combine(rows[labels], value) if labels in rows else value
            return rows

        self.add_source(read_bounded)

    def forget(self, names: Collection[str]) -> None:
        """Drop the values of these event types."""
        if "event_type" in self.definition.labels:
            place = self.definition.labels.index("event_type")
            with self._lock:
                self._values = {labels: value for labels, value in self._values.items() if labels[place] not in names}

    def replace_by_sum_of(self, parts: Iterable[MetricRows]) -> None:
        """Replace all values by the sums over several processes. The sums have no more names than the values of one
        process.
        """
        self._values, self._followed = {}, []
        for part in parts:
            for found, value in part.items():
                labels = self.definition.bounded_labels(found)
                self._values[labels] = self.combine(self._values[labels], value) if labels in self._values else value

    def rows(self) -> MetricRows:
        with self._lock:
            rows = dict(self._values)
        for read in tuple(self._followed):
            for labels, value in read().items():
                rows[labels] = self.combine(rows[labels], value) if labels in rows else value
        return self._largest_subscriptions(rows) if len(rows) > self.definition.known_names.max_values else rows

    def _largest_subscriptions(self, rows: MetricRows) -> MetricRows:
        """The largest values by subscription, and the sum of all others."""
        if self.definition.labels != ("subscription",):
            return rows
        ordered = sorted(rows.items(), key=lambda row: row[1], reverse=True)
        kept, rest = (
            ordered[: self.definition.known_names.max_values],
            ordered[self.definition.known_names.max_values :],
        )
        together = reduce(self.combine, (value for _, value in rest))
        return {**dict(kept), (OTHER_LABEL_VALUE,): together}


class FaultCounter(Counter):
    """A counter of faults, which knows when the last one happened: `last_at`, in Unix time."""

    def __init__(self, definition: MetricDefinition, now: Callable[[], float]) -> None:
        super().__init__(definition)
        self._now = now
        self.last_at: float | None = None

    def add(self, number: float = 1, *labels: str) -> None:
        super().add(number, *labels)
        self.last_at = self._now()


class Gauge(Counter):
    """A momentary value for each combination of labels."""

    kind = "gauge"

    def set(self, value: float, *labels: str) -> None:
        with self._lock:
            self._values[labels] = value


class Distribution(Struct):
    """A distribution of values. `bucket_counts` has the number of values up to each bound, beyond the previous one, and
    at the end the number of values beyond all bounds.
    """

    bucket_counts: list[int]
    value_count: int = 0
    sum_of_values: float = 0.0
    recent_values: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_RECENT_SAMPLES))

    def add_value(self, value: float, bounds: BucketBounds) -> None:
        self.bucket_counts[bisect_left(bounds, value)] += 1
        self.value_count += 1
        self.sum_of_values += value
        self.recent_values.append(value)

    def add_distribution(self, added: Distribution) -> None:
        """Add the values of another distribution with the same bounds."""
        self.bucket_counts = [one + other for one, other in zip(self.bucket_counts, added.bucket_counts, strict=True)]
        self.value_count += added.value_count
        self.sum_of_values += added.sum_of_values
        self.recent_values.extend(added.recent_values)

    def copy(self) -> Distribution:
        return Distribution(list(self.bucket_counts), self.value_count, self.sum_of_values, self.recent_values.copy())


class Histogram:
    """The distribution of values for each combination of labels; `recent_values` has the latest values themselves."""

    kind: Literal["histogram"] = "histogram"

    def __init__(self, definition: MetricDefinition, bounds: BucketBounds) -> None:
        self.definition = definition
        self.bounds = bounds
        self.lock = threading.Lock()
        self._rows: dict[Labels, Distribution] = {}

    def observe(self, value: float, *labels: str) -> None:
        with self.lock:
            self.row_for_update(labels).add_value(value, self.bounds)

    def row_for_update(self, labels: Labels) -> Distribution:
        """The row for these labels, which only the holder of the lock may change."""
        row = self._rows.get(labels)
        if row is None:
            row = self._rows[labels] = Distribution([0] * (len(self.bounds) + 1))
        return row

    def rows(self) -> Mapping[Labels, Distribution]:
        with self.lock:
            return {labels: row.copy() for labels, row in self._rows.items()}

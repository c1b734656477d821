"""Metrics: what a process counts and times, in one object that is handed to everything that counts.

Counting does not depend on the reader: `http.metrics` writes it as JSON and as Prometheus' text, and what runs on AWS
tells CloudWatch of it. Counting costs well under a microsecond, for it happens in the middle of publishing: what is
counted together for every batch or request shares one row and one lock. Whatever can be asked for instead, such as the
length of a queue, is followed, and read only when metrics are read.

No label has more values than there is room for: names that clients choose are bounded, and the rest is `other`.
docs/metrics.md explains each metric.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, reduce
from operator import add
from time import process_time
from typing import Literal

from msgspec import Struct, field

from nakadi.common.work import failures

Labels = tuple[str, ...]
MetricRows = Mapping[Labels, float]
ReadRows = Callable[[], MetricRows]
Bounds = tuple[float, ...]

OTHER_NAMES = "other"

# Enough for a 99.9th percentile to mean something, little enough to sort at every read.
SAMPLES_KEPT = 2048

SECONDS_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
LONG_SECONDS_BOUNDS = (0.01, 0.1, 1.0, 5.0, 30.0, 60.0, 300.0, 1800.0, 3600.0, 21600.0, 86400.0)
NUMBER_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)


class LabelValues:
    """The names that a label may have: the first so many, and `other` for those that come later."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._lock = threading.Lock()
        self._known: set[str] = set()

    def bounded(self, name: str) -> str:
        with self._lock:
            if len(self._known) < self.most:
                self._known.add(name)
            return name if name in self._known else OTHER_NAMES


class MetricDefinition(Struct, frozen=True, kw_only=True):
    """What a metric is called and means. `json` is its name in JSON, if it is not made of the other one."""

    name: str
    meaning: str
    labels: Labels = ()
    json: str = ""
    names: LabelValues

    def bounded(self, labels: Labels) -> Labels:
        pairs = zip(self.labels, labels, strict=True)
        return tuple([self.names.bounded(value) if label == "event_type" else value for label, value in pairs])


class Counter:
    """A number that only grows, for each combination of labels."""

    kind: Literal["counter", "gauge"] = "counter"

    def __init__(self, definition: MetricDefinition, combine: Callable[[float, float], float] = add) -> None:
        self.definition = definition
        self._combine = combine
        self._lock = threading.Lock()
        self._values: dict[Labels, float] = {}
        self._followed: list[ReadRows] = []

    def add(self, number: float = 1, *labels: str) -> None:
        # Threads count at the same time, and `+=` alone would lose what two of them add at once.
        with self._lock:
            if labels not in self._values:
                labels = self.definition.bounded(labels)
            self._values[labels] = self._values.get(labels, 0) + number

    def follow(self, read: ReadRows) -> None:
        """Read values from this function whenever metrics are read; equal labels of several functions are combined."""
        self._followed.append(read)

    def follow_names(self, read: Callable[[], Mapping[str, float]]) -> None:
        """Follow values by the only label, with no more names of it than others have."""

        def bounded() -> MetricRows:
            rows: dict[Labels, float] = {}
            for name, value in read().items():
                labels = self.definition.bounded((name,))
                rows[labels] = self._combine(rows[labels], value) if labels in rows else value
            return rows

        self.follow(bounded)

    def replace_by_sum_of(self, parts: Iterable[MetricRows]) -> None:
        """Have the values of these parts combined, and no others."""
        self._values, self._followed = {}, [partial(dict, part) for part in parts]

    def rows(self) -> MetricRows:
        with self._lock:
            rows = dict(self._values)
        for read in tuple(self._followed):
            for labels, value in read().items():
                rows[labels] = self._combine(rows[labels], value) if labels in rows else value
        return self._largest_subscriptions(rows) if len(rows) > self.definition.names.most else rows

    def _largest_subscriptions(self, rows: MetricRows) -> MetricRows:
        """Of what is followed by subscription, the largest values; those of the rest are put together."""
        if self.definition.labels != ("subscription",):
            return rows
        ordered = sorted(rows.items(), key=lambda row: row[1], reverse=True)
        kept, rest = ordered[: self.definition.names.most], ordered[self.definition.names.most :]
        together = reduce(self._combine, (value for _, value in rest))
        return {**dict(kept), (OTHER_NAMES,): together}


class Gauge(Counter):
    """A value of the moment, for each combination of labels."""

    kind = "gauge"

    def set(self, value: float, *labels: str) -> None:
        with self._lock:
            self._values[labels] = value


class Distribution(Struct):
    """`buckets` says how many values there were up to each bound, and the last how many beyond all of them."""

    buckets: list[int]
    count: int = 0
    total: float = 0.0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES_KEPT))

    def add(self, value: float, bounds: Bounds) -> None:
        self.buckets[bisect_left(bounds, value)] += 1
        self.count += 1
        self.total += value
        self.recent.append(value)


class Histogram:
    """How values are distributed, for each combination of labels; `recent` has the last values themselves."""

    kind: Literal["histogram"] = "histogram"

    def __init__(self, definition: MetricDefinition, bounds: Bounds) -> None:
        self.definition = definition
        self.bounds = bounds
        self.lock = threading.Lock()
        self._rows: dict[Labels, Distribution] = {}

    def observe(self, value: float, *labels: str) -> None:
        with self.lock:
            self.row(labels).add(value, self.bounds)

    def row(self, labels: Labels) -> Distribution:
        """To be changed by those alone who hold the lock."""
        row = self._rows.get(labels)
        if row is None:
            row = self._rows[labels] = Distribution([0] * (len(self.bounds) + 1))
        return row

    def rows(self) -> Mapping[Labels, Distribution]:
        with self.lock:
            return {
                labels: Distribution(list(row.buckets), row.count, row.total, row.recent.copy())
                for labels, row in self._rows.items()
            }


Metric = Counter | Histogram


class _AnswerTotals(Struct):
    """Of an operation with one status."""

    seconds: Distribution
    count: int = 0
    received: int = 0
    sent: int = 0


class _StoredTotals(Struct):
    """Of an event type."""

    events: int = 0
    size: int = 0


class Metrics:
    """Every metric of a process, which began at `started` on the steady clock. `most_names` event types, and so many
    subscriptions, have values of their own."""

    def __init__(self, started: float = 0.0, most_names: int = 200) -> None:
        self.started = started
        # Whose memory and files are reported beside them; processor time is also that of processes that have ended.
        self.processes: Sequence[Callable[[], int | str]] = [lambda: "self"]
        self.cpu_seconds: Callable[[], float] = process_time
        self.all: list[Metric] = []
        self._names = LabelValues(most_names)
        self._answers: dict[tuple[str, int], _AnswerTotals] = {}
        self._stored: dict[str, _StoredTotals] = {}
        self._storing = threading.Lock()

        self._define_requests()
        self._define_publishing()
        self._define_streams()
        self._define_subscriptions()
        self._define_sqlite()
        self._define_archive()
        self._define_caches()
        self._define_housekeeping()
        self._follow_shared_totals()

    def answered(self, operation: str, status: int, seconds: float, received: int = 0, sent: int = 0) -> None:
        """A request was answered; `received` and `sent` are the bytes of the bodies."""
        with self.request_seconds.lock:
            row = self._answers.get((operation, status))
            if row is None:
                row = self._answers[operation, status] = _AnswerTotals(self.request_seconds.row((operation,)))
            row.seconds.add(seconds, self.request_seconds.bounds)
            row.count += 1
            row.received += received
            row.sent += sent

    def stored(self, event_type: str, events: int, size: int) -> None:
        """Events of a batch of so many bytes were stored."""
        with self._storing:
            row = self._stored.get(event_type)
            if row is None:
                row = self._stored.setdefault(self._names.bounded(event_type), _StoredTotals())
            row.events += events
            row.size += size

    def _define_requests(self) -> None:
        self.requests = self._counter(
            "nakadi_http_requests_total",
            "Requests answered, by status; `unrouted` are those refused before their operation was known.",
            ("operation", "status"),
            json="nakadi.http",
        )
        self.request_seconds = self._histogram(
            "nakadi_http_request_duration_seconds",
            "Time from the whole request to its answer; for a stream, to its beginning.",
            ("operation",),
            json="nakadi.http",
        )
        self.request_bytes = self._counter(
            "nakadi_http_request_bytes_total", "Bytes of the bodies of requests, as they were sent.", ("operation",)
        )
        self.response_bytes = self._counter(
            "nakadi_http_response_bytes_total",
            "Bytes of the bodies of answers before they are packed; without streams.",
            ("operation",),
        )
        self.requests_waiting = self._gauge(
            "nakadi_http_requests_waiting", "Requests that wait for a thread, by the kind of work.", ("lane",)
        )
        self.request_memory = self._gauge(
            "nakadi_http_request_memory_bytes",
            "Memory taken for the bodies of requests; the most is NAKADI_MAX_REQUEST_MEMORY_BYTES.",
        )
        self.turns_waiting = self._gauge(
            "nakadi_turns_waiting",
            "Requests with long work that wait for their turn: `publishing` long batches, changing `schemas`.",
            ("work",),
        )

    def _define_publishing(self) -> None:
        self.events_published = self._counter("nakadi_events_published_total", "Events stored.", ("event_type",))
        self.events_deleted = self._counter("nakadi_events_deleted_total", "Tombstones stored.", ("event_type",))
        self.published_bytes = self._counter(
            "nakadi_published_bytes_total",
            "Bytes of the batches that were stored, as a whole or in part.",
            ("event_type",),
        )
        self.events_refused = self._counter(
            "nakadi_events_refused_total",
            "Events not stored, by the step that refused their batch or, for `publishing`, did not store them.",
            ("event_type", "reason"),
        )
        self.batches_refused = self._counter(
            "nakadi_batches_refused_total",
            "Batches refused as a whole before their events were looked at, by reason.",
            ("reason",),
        )

    def _define_streams(self) -> None:
        self.streams_opened = self._counter("nakadi_streams_opened_total", "Streams begun.", ("api",))
        self.open_streams = self._gauge("nakadi_open_streams", "Streams that are open.", ("api",))
        self.streams_ended = self._counter("nakadi_streams_ended_total", "Streams ended, by reason.", ("api", "reason"))
        self.events_sent = self._counter(
            "nakadi_events_sent_total", "Events sent on streams, repeated ones included.", ("api", "event_type")
        )
        self.sent_bytes = self._counter("nakadi_sent_bytes_total", "Bytes of batches sent on streams.", ("api",))
        self.delivery_delay = self._histogram(
            "nakadi_delivery_delay_seconds",
            "Age of the newest event of a batch when it is sent: how far streams are behind publishing.",
            ("api",),
            bounds=LONG_SECONDS_BOUNDS,
        )

    def _define_subscriptions(self) -> None:
        self.cursors_committed = self._counter(
            "nakadi_cursors_committed_total",
            "Cursors in commits: `committed` moved a partition, `outdated` did not, `refused` was an error.",
            ("outcome",),
        )
        self.subscription_lag = self._gauge(
            "nakadi_subscription_lag_seconds",
            "Age of the oldest event that open streams have read and that is not committed; 0 without any.",
            ("subscription",),
            combine=max,
        )
        self.subscription_uncommitted = self._gauge(
            "nakadi_subscription_uncommitted_events",
            "Events that open streams have sent and that are not committed.",
            ("subscription",),
        )
        self.stalled_subscriptions = self._gauge(
            "nakadi_stalled_subscriptions",
            "Subscriptions with waiting events and streams that commit nothing, as last seen by housekeeping.",
        )
        self.partitions_held = self._gauge(
            "nakadi_partitions_held", "Partitions of subscriptions that open streams hold."
        )
        self.partitions_handed_over = self._counter(
            "nakadi_partitions_handed_over_total", "Partitions that streams handed over to others."
        )
        self.partitions_lost = self._counter(
            "nakadi_partitions_lost_total",
            "Partitions of streams that ended because their process's lease ran out, or were removed by others.",
        )
        self.lease_renewals = self._counter(
            "nakadi_lease_renewals_total",
            "Attempts to renew the lease under which this process holds partitions.",
            ("outcome",),
        )
        self.dead_sessions = self._counter(
            "nakadi_dead_sessions_removed_total", "Streams of other processes removed because their lease ran out."
        )
        self.events_parked = self._counter(
            "nakadi_events_parked_total",
            "Events parked: `failed` by consumers, or because an earlier event of their key is, `followed`.",
            ("cause",),
        )
        self.dead_letters = self._counter(
            "nakadi_dead_letters_total",
            "Attempts to publish an event that consumers failed at as a dead letter.",
            ("outcome",),
        )
        self.events_skipped = self._counter(
            "nakadi_events_skipped_total", "Events that consumers failed at and that were skipped, as the policy says."
        )

    def _define_sqlite(self) -> None:
        self.log_commit_seconds = self._histogram(
            "nakadi_sqlite_commit_duration_seconds", "Time of a commit of the event log in SQLite."
        )
        self.log_commit_appends = self._histogram(
            "nakadi_sqlite_commit_appends", "Appends, one for a batch, that shared a commit.", bounds=NUMBER_BOUNDS
        )
        self.log_commit_failures = self._counter(
            "nakadi_sqlite_commit_failures_total", "Commits of the event log in SQLite that failed."
        )
        self.log_appends_waiting = self._gauge("nakadi_sqlite_appends_waiting", "Appends that wait for a commit.")
        self.log_bytes_waiting = self._gauge("nakadi_sqlite_bytes_waiting", "Bytes of the appends that wait.")

    def _define_archive(self) -> None:
        self.archive_segments = self._counter("nakadi_archive_segments_written_total", "Segments archived.")
        self.archive_events = self._counter("nakadi_archive_events_written_total", "Events archived.")
        self.archive_bytes = self._counter(
            "nakadi_archive_bytes_written_total", "Bytes of the segments archived, compressed."
        )
        self.archive_failures = self._counter(
            "nakadi_archive_failures_total",
            "Steps of the work on the archive that failed and are tried again.",
            ("operation",),
        )
        self.archive_unreadable = self._counter(
            "nakadi_archive_unreadable_total", "Reads of archived segments that were damaged or gone."
        )
        self.archive_waiting = self._gauge(
            "nakadi_archive_partitions_waiting", "Partitions with events that are not archived."
        )
        self.archive_lag = self._gauge(
            "nakadi_archive_lag_seconds",
            "Time since the partition that waits longest has something to archive.",
            combine=max,
        )

    def _define_caches(self) -> None:
        self.cache_hits = self._counter("nakadi_cache_hits_total", "Look-ups answered from memory.", ("cache",))
        self.cache_misses = self._counter("nakadi_cache_misses_total", "Look-ups that had to read.", ("cache",))

    def _define_housekeeping(self) -> None:
        self.housekeeping_seconds = self._histogram(
            "nakadi_housekeeping_duration_seconds", "Time of a round of housekeeping.", bounds=LONG_SECONDS_BOUNDS
        )
        self.housekeeping_at = self._gauge(
            "nakadi_housekeeping_last_round_timestamp_seconds", "When the last round of housekeeping ended, Unix time."
        )
        self.chore_failures = self._counter(
            "nakadi_chore_failures_total",
            "Steps of housekeeping, of the archive and of leases that failed and are tried again.",
            ("operation",),
            json="nakadi.chores.failed",
        )
        self.chore_failures.follow(lambda: {(name,): count for name, count in failures().items()})
        self.index_lag = self._gauge(
            "nakadi_index_lag_seconds",
            "Age of the oldest event that the log indexer has not counted, as last measured.",
        )
        self.table_lag = self._gauge(
            "nakadi_table_lag_seconds",
            "Age of the oldest archived event that is in no table, as last seen by housekeeping; 0 without any.",
            ("event_type",),
            combine=max,
        )
        self.table_latency = self._gauge(
            "nakadi_table_latency_seconds",
            "Time from publishing to the table, of the oldest event of the last commit to it.",
            ("event_type",),
            combine=max,
        )
        self.table_rows = self._gauge("nakadi_table_rows", "Rows of the table of an event type.", ("event_type",))
        self.table_misfits = self._gauge(
            "nakadi_table_misfits", "Events in the table that do not fit its columns.", ("event_type",)
        )
        self.table_missing = self._gauge(
            "nakadi_table_missing_events",
            "Events that are missing in the table, for their part of the archive is damaged.",
            ("event_type",),
        )
        self.kpi_figures = self._counter(
            "nakadi_kpi_figures_total",
            "Figures (KPIs) written to event types of the broker's own, or dropped.",
            ("outcome",),
            json="nakadi.kpi",
        )

    def _follow_shared_totals(self) -> None:
        """Of the rows that several metrics share."""

        def answers(value: Callable[[_AnswerTotals], int], *, by_status: bool = False) -> MetricRows:
            found: dict[Labels, float] = {}
            with self.request_seconds.lock:
                rows = self._answers.copy()
            for (operation, status), row in rows.items():
                labels = (operation, str(status)) if by_status else (operation,)
                found[labels] = found.get(labels, 0) + value(row)
            return found

        def stored(value: Callable[[_StoredTotals], int]) -> MetricRows:
            with self._storing:
                return {(name,): value(row) for name, row in self._stored.items()}

        self.requests.follow(lambda: answers(lambda row: row.count, by_status=True))
        self.request_bytes.follow(lambda: answers(lambda row: row.received))
        self.response_bytes.follow(lambda: answers(lambda row: row.sent))
        self.events_published.follow(lambda: stored(lambda row: row.events))
        self.published_bytes.follow(lambda: stored(lambda row: row.size))

    def follow_cache(self, name: str, hits: Callable[[], int], misses: Callable[[], int]) -> None:
        self.cache_hits.follow(lambda: {(name,): hits()})
        self.cache_misses.follow(lambda: {(name,): misses()})

    def _define(self, name: str, meaning: str, labels: Labels, json: str) -> MetricDefinition:
        return MetricDefinition(name=name, meaning=meaning, labels=labels, json=json, names=self._names)

    def _counter(self, name: str, meaning: str, labels: Labels = (), *, json: str = "") -> Counter:
        made = Counter(self._define(name, meaning, labels, json))
        self.all.append(made)
        return made

    def _gauge(
        self, name: str, meaning: str, labels: Labels = (), *, combine: Callable[[float, float], float] = add
    ) -> Gauge:
        made = Gauge(self._define(name, meaning, labels, ""), combine)
        self.all.append(made)
        return made

    def _histogram(
        self, name: str, meaning: str, labels: Labels = (), *, bounds: Bounds = SECONDS_BOUNDS, json: str = ""
    ) -> Histogram:
        made = Histogram(self._define(name, meaning, labels, json), bounds)
        self.all.append(made)
        return made

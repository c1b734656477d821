"""Metrics: the counts and times of a process, in one object, which is passed to every part that counts.

Counting does not depend on who reads the metrics: `http/routes/monitoring.py` writes metrics as JSON and in Prometheus'
format, and processes on AWS send them to CloudWatch. Values that can be read at any time, such as the length of a
queue, come from sources, which are called only when metrics are read. `counting` implements this, and docs/metrics.md
explains each metric.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from operator import add
from time import process_time, time

from nakadi.common.chores import failed_chore_counts
from nakadi.common.client_metrics import ClientMetrics
from nakadi.common.counting import (
    BoundedLabelValues,
    BucketBounds,
    Counter,
    FaultCounter,
    Gauge,
    Histogram,
    Labels,
    MetricDefinition,
    MetricRows,
)
from nakadi.common.metric_groups import AnsweredRequestMetrics, PartitionLoads, SentEventMetrics, StoredEventMetrics

Metric = Counter | Histogram

SECONDS_BUCKET_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
LONG_SECONDS_BUCKET_BOUNDS = (0.01, 0.1, 1.0, 5.0, 30.0, 60.0, 300.0, 1800.0, 3600.0, 21600.0, 86400.0)
COUNT_BUCKET_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)


class Metrics:
    """All metrics of a process, which began at `started` on the steady clock. `max_names` event types, and as many
    subscriptions, have separate values. `now` returns the Unix time.
    """

    def __init__(self, started: float = 0.0, max_names: int = 200, now: Callable[[], float] = time) -> None:
        self.started = started
        self._now = now
        # The process whose memory and files are reported with the metrics; its processor time includes child processes
        # that have ended.
        self.processes: Sequence[Callable[[], int | str]] = [lambda: "self"]
        self.cpu_seconds: Callable[[], float] = process_time
        # Returns those of the given names whose event types no longer exist. Until the broker sets this function, all
        # names stay.
        self.find_deleted: Callable[[Collection[str]], Collection[str]] = lambda _: ()
        self.all: list[Metric] = []
        self.clients = ClientMetrics()
        self._names = BoundedLabelValues(max_names)
        for group, define in (
            ("Requests", self._define_requests),
            ("Publishing", self._define_publishing),
            ("Streams", self._define_streams),
            ("Subscriptions", self._define_consumption),
            ("Subscriptions", self._define_objectives),
            ("Subscriptions", self._define_hand_overs),
            ("Subscriptions", self._define_failed_events),
            ("Subscriptions", self._define_sinks),
            ("Rehearsals", self._define_rehearsals),
            ("The registry", self._define_registry),
            ("The event log in SQLite", self._define_sqlite),
            ("The archive", self._define_archive),
            ("Caches", self._define_caches),
            ("Housekeeping", self._define_housekeeping),
            ("Tables", self._define_tables),
            ("Disks and processes", self._define_machine),
        ):
            self._group = group
            define()
        self.answered = AnsweredRequestMetrics(
            self.request_seconds, self.requests, self.request_bytes, self.response_bytes
        ).count_request
        self._sent = SentEventMetrics(self.delivery_delay, self.events_sent, self.sent_bytes, self._names)
        self.sent = self._sent.count_batch
        self._stored = StoredEventMetrics(self.events_published, self.published_bytes, self._names)
        self.stored = self._stored.count_batch
        self.partition_loads = PartitionLoads(self.busiest_partition, self._names)

    def forget_deleted_event_types(self) -> None:
        """Drop the counts of deleted event types to make room for others. Call this before metrics are read, because it
        reads the registry. If something counts under a deleted name at that moment, the next call drops it.
        """
        deleted = frozenset(self.find_deleted(self._names.values()))
        if deleted:
            for metric in self.all:
                if isinstance(metric, Counter):
                    metric.forget(deleted)
            self._sent.forget(deleted)
            self._stored.forget(deleted)
            self.partition_loads.forget(deleted)
            # The names are forgotten last: otherwise a name that is counted at this moment could get a row that is in
            # no list of names.
            self._names.forget(deleted)

    def _define_requests(self) -> None:
        self.requests = self._add_counter(
            "nakadi_http_requests_total",
            "Answered requests, by status; `unrouted` are those rejected before their operation was known.",
            ("operation", "status"),
            json="nakadi.http",
        )
        self.request_seconds = self._add_histogram(
            "nakadi_http_request_duration_seconds",
            "Time from the complete request to its response; for a stream, to its beginning.",
            ("operation",),
            json="nakadi.http",
        )
        self.request_bytes = self._add_counter(
            "nakadi_http_request_bytes_total", "Bytes in request bodies, as sent.", ("operation",)
        )
        self.response_bytes = self._add_counter(
            "nakadi_http_response_bytes_total",
            "Bytes in response bodies before compression; without streams.",
            ("operation",),
        )
        self.requests_waiting = self._add_gauge(
            "nakadi_http_requests_waiting", "Requests that wait for a thread, by kind of work.", ("lane",)
        )
        self.request_memory = self._add_gauge(
            "nakadi_http_request_memory_bytes",
            "Memory in use for request bodies; NAKADI_MAX_REQUEST_MEMORY_BYTES is the limit.",
        )
        self.turns_waiting = self._add_gauge(
            "nakadi_turns_waiting",
            "Requests that wait for a turn at long work: `publishing` long batches, changing `schemas`.",
            ("work",),
        )

    def _define_publishing(self) -> None:
        self.events_published = self._add_counter("nakadi_events_published_total", "Stored events.", ("event_type",))
        self.events_deleted = self._add_counter("nakadi_events_deleted_total", "Stored tombstones.", ("event_type",))
        self.published_bytes = self._add_counter(
            "nakadi_published_bytes_total",
            "Bytes in batches that the broker stored, as a whole or in part.",
            ("event_type",),
        )
        self.events_refused = self._add_counter(
            "nakadi_events_refused_total",
            "Events not stored, by the step that rejected their batch or, for `publishing`, failed to store them.",
            ("event_type", "reason"),
        )
        self.event_duplicates = self._add_counter(
            "nakadi_event_duplicates_total",
            "Events not stored again, because one with the same eid was stored within the window of deduplication.",
            ("event_type",),
        )
        self.batches_refused = self._add_counter(
            "nakadi_batches_refused_total",
            "Batches that the broker rejected as a whole before it looked at their events, by reason.",
            ("reason",),
        )
        self.busiest_partition = self._add_gauge(
            "nakadi_busiest_partition_ratio",
            "Recent events in the busiest partition, as a multiple of the average of all partitions.",
            ("event_type",),
            combine=max,
        )

    def _define_streams(self) -> None:
        self.streams_opened = self._add_counter("nakadi_streams_opened_total", "Streams that began.", ("api",))
        self.open_streams = self._add_gauge("nakadi_open_streams", "Open streams.", ("api",))
        self.streams_ended = self._add_counter(
            "nakadi_streams_ended_total", "Streams that ended, by reason.", ("api", "reason")
        )
        self.events_sent = self._add_counter(
            "nakadi_events_sent_total", "Events sent on streams, including repeated ones.", ("api", "event_type")
        )
        self.sent_bytes = self._add_counter("nakadi_sent_bytes_total", "Bytes in batches sent on streams.", ("api",))
        self.delivery_delay = self._add_histogram(
            "nakadi_delivery_delay_seconds",
            "Age of the newest event in a batch at the time of sending: how far streams are behind publishing.",
            ("api",),
            bounds=LONG_SECONDS_BUCKET_BOUNDS,
        )

    def _define_consumption(self) -> None:
        self.cursors_committed = self._add_counter(
            "nakadi_cursors_committed_total",
            "Cursors in commits: `committed` moved a partition, `outdated` did not, `refused` was an error.",
            ("outcome",),
        )
        self.subscription_lag = self._add_gauge(
            "nakadi_subscription_lag_seconds",
            "Age of the oldest uncommitted event that open streams have read; 0 without any.",
            ("subscription",),
            combine=max,
        )
        self.subscription_uncommitted = self._add_gauge(
            "nakadi_subscription_uncommitted_events",
            "Uncommitted events that open streams have sent.",
            ("subscription",),
        )
        self.stalled_subscriptions = self._add_gauge(
            "nakadi_stalled_subscriptions",
            "Subscriptions with waiting events whose streams commit nothing, at the last round of housekeeping.",
        )

    def _define_objectives(self) -> None:
        self.late_subscriptions = self._add_gauge(
            "nakadi_late_subscriptions",
            "Subscriptions whose events waited longer than their objective allows, at the last round of housekeeping.",
        )
        self.subscription_events_in_time = self._add_counter(
            "nakadi_subscription_events_in_time_total",
            "Events that a subscription with an objective consumed in time.",
            ("subscription",),
        )
        self.subscription_events_late = self._add_counter(
            "nakadi_subscription_events_late_total",
            "Events that a subscription with an objective consumed too late.",
            ("subscription",),
        )
        self.subscription_objective = self._add_gauge(
            "nakadi_subscription_objective_ratio",
            "The share of events that should be consumed in time, of subscriptions with an objective and open streams.",
            ("subscription",),
            combine=max,
        )

    def _define_hand_overs(self) -> None:
        self.partitions_held = self._add_gauge(
            "nakadi_partitions_held", "Subscription partitions that open streams hold."
        )
        self.partitions_handed_over = self._add_counter(
            "nakadi_partitions_handed_over_total", "Partitions that streams handed over to other streams."
        )
        self.partitions_lost = self._add_counter(
            "nakadi_partitions_lost_total",
            "Partitions of streams that ended because their lease expired or another process removed them.",
        )
        self.lease_renewals = self._add_counter(
            "nakadi_lease_renewals_total",
            "Attempts to renew the lease under which this process holds partitions.",
            ("outcome",),
        )
        self.dead_sessions = self._add_counter(
            "nakadi_dead_sessions_removed_total",
            "Streams of other processes that this process removed because their lease had expired.",
        )

    def _define_failed_events(self) -> None:
        self.events_parked = self._add_counter(
            "nakadi_events_parked_total",
            "Parked events: consumers `failed` to process them, or they `followed` a parked event of their key.",
            ("cause",),
        )
        self.dead_letters = self._add_counter(
            "nakadi_dead_letters_total",
            "Attempts to publish an event that consumers could not process as a dead letter.",
            ("outcome",),
        )
        self.events_skipped = self._add_counter(
            "nakadi_events_skipped_total", "Events that consumers could not process and that the policy skipped."
        )

    def _define_sinks(self) -> None:
        self.sinks_served = self._add_gauge("nakadi_sinks_served", "Sinks to which this process delivers.")
        self.sink_bytes_held = self._add_gauge(
            "nakadi_sink_bytes_held", "Bytes of events that wait to be delivered to sinks, or for their commit."
        )
        self.sink_failing_seconds = self._add_gauge(
            "nakadi_sink_failing_seconds",
            "How long a sink that fails has accepted nothing; missing for a sink that accepted the last batch.",
            ("subscription",),
            combine=max,
        )
        self.sink_attempts = self._add_counter(
            "nakadi_sink_attempts_total",
            "Attempts to deliver a batch to a sink: `delivered`, `failed`, `later` if it was not reached or asked for"
            " time, `gone` if it answered 410.",
            ("outcome",),
        )

    def _define_rehearsals(self) -> None:
        self.rehearsals_running = self._add_gauge(
            "nakadi_rehearsals_running", "Rehearsals of schemas that run in this process."
        )
        self.rehearsals_ended = self._add_counter(
            "nakadi_rehearsals_ended_total",
            "Rehearsals that ended here: `finished`, `failed`, `lost` with the process, or `removed` by a client.",
            ("state",),
        )
        self.rehearsed_events = self._add_counter(
            "nakadi_rehearsed_events_total",
            "Stored events that rehearsals judged: the proposed schema `accepted` or `refused` them.",
            ("verdict",),
        )

    def _define_registry(self) -> None:
        self.registry_seconds = self._add_histogram(
            "nakadi_registry_call_duration_seconds",
            "Time that the registry took for a call, whether it succeeded or failed.",
            ("call",),
        )

    def _define_sqlite(self) -> None:
        self.log_commit_seconds = self._add_histogram(
            "nakadi_sqlite_commit_duration_seconds",
            "Duration of a commit to the event log in SQLite, also if it fails.",
        )
        self.log_commit_appends = self._add_histogram(
            "nakadi_sqlite_commit_appends",
            "Appends that shared a commit, one for each batch.",
            bounds=COUNT_BUCKET_BOUNDS,
        )
        self.log_commit_failures = self._add_fault_counter(
            "nakadi_sqlite_commit_failures_total", "Failed commits to the event log in SQLite."
        )
        self.log_commit_recent_seconds = self._add_gauge(
            "nakadi_sqlite_recent_commit_seconds",
            "Average duration of the latest commits to the event log in SQLite, at most 100 of the last minute.",
            combine=max,
        )
        self.log_commits_recovered_at = self._add_gauge(
            "nakadi_sqlite_commits_recovered_timestamp_seconds",
            "Unix time at which a commit to the event log in SQLite last succeeded after failed ones; 0 if none has.",
            combine=max,
        )
        self.log_appends_waiting = self._add_gauge("nakadi_sqlite_appends_waiting", "Appends that wait for a commit.")
        self.log_bytes_waiting = self._add_gauge("nakadi_sqlite_bytes_waiting", "Bytes in the waiting appends.")

    def _define_archive(self) -> None:
        self.archive_segments = self._add_counter("nakadi_archive_segments_written_total", "Archived segments.")
        self.archive_events = self._add_counter("nakadi_archive_events_written_total", "Archived events.")
        self.archive_bytes = self._add_counter(
            "nakadi_archive_bytes_written_total", "Compressed bytes in archived segments."
        )
        self.archive_failures = self._add_fault_counter(
            "nakadi_archive_failures_total",
            "Failed steps of work on the archive, which the broker retries.",
            ("operation",),
        )
        self.archive_read_failures = self._add_fault_counter(
            "nakadi_archive_read_failures_total", "Reads that failed because the archive could not be reached."
        )
        self.archive_unreadable = self._add_fault_counter(
            "nakadi_archive_unreadable_total", "Reads that found an archived segment damaged or missing."
        )
        self.archive_damaged_offsets = self._add_gauge(
            "nakadi_archive_damaged_offsets",
            "Offsets that reads found damaged or missing in an object of the archive, until they can be read"
            " again, or no reader has tried for 15 minutes.",
            ("event_type", "partition", "offsets", "object"),
            combine=max,
        )
        self.archive_waiting = self._add_gauge(
            "nakadi_archive_partitions_waiting", "Partitions with events that are not archived yet."
        )
        self.archive_lag = self._add_gauge(
            "nakadi_archive_lag_seconds",
            "How long the longest-waiting partition has had something to archive.",
            combine=max,
        )

    def _define_caches(self) -> None:
        self.cache_hits = self._add_counter("nakadi_cache_hits_total", "Look-ups answered from memory.", ("cache",))
        self.cache_misses = self._add_counter("nakadi_cache_misses_total", "Look-ups that required a read.", ("cache",))

    def _define_housekeeping(self) -> None:
        self.housekeeping_seconds = self._add_histogram(
            "nakadi_housekeeping_duration_seconds",
            "Duration of a round of housekeeping.",
            bounds=LONG_SECONDS_BUCKET_BOUNDS,
        )
        self.housekeeping_at = self._add_gauge(
            "nakadi_housekeeping_last_round_timestamp_seconds",
            "Unix time at which the last round of housekeeping ended.",
            combine=max,
        )
        self.chore_failures = self._add_counter(
            "nakadi_chore_failures_total",
            "Failed steps of housekeeping, archiving and lease renewal, which the broker retries.",
            ("operation",),
            json="nakadi.chores.failed",
        )
        self.chore_failures.add_source(lambda: {(name,): count for name, count in failed_chore_counts().items()})
        self.index_lag = self._add_gauge(
            "nakadi_index_lag_seconds",
            "Age of the oldest event that the log indexer has not counted, at the last measurement.",
            combine=max,
        )
        self.kpi_figures = self._add_counter(
            "nakadi_kpi_figures_total",
            "Figures (KPIs) that the broker wrote to its own event types, or dropped.",
            ("outcome",),
            json="nakadi.kpi",
        )

    def _define_tables(self) -> None:
        self.table_lag = self._add_gauge(
            "nakadi_table_lag_seconds",
            "Age of the oldest archived event that is in no table, at the last round of housekeeping; 0 without any.",
            ("event_type",),
            combine=max,
        )
        self.table_latency = self._add_gauge(
            "nakadi_table_latency_seconds",
            "Time that the oldest event in the last commit to the table took to get there from publishing.",
            ("event_type",),
            combine=max,
        )
        self.table_rows = self._add_gauge("nakadi_table_rows", "Rows in the event type's table.", ("event_type",))
        self.table_misfits = self._add_gauge(
            "nakadi_table_misfits", "Events in the table that do not fit its columns.", ("event_type",)
        )
        self.table_missing = self._add_gauge(
            "nakadi_table_missing_events",
            "Events that are missing from the table because their part of the archive is damaged.",
            ("event_type",),
        )
        self.table_defects = self._add_gauge(
            "nakadi_table_defects",
            "Events that the last run of the table's job found faulty, by kind, if it ended within the last hour.",
            ("event_type", "kind"),
        )

        self.table_burn_rate = self._add_gauge(
            "nakadi_table_objective_burn_rate",
            "The share of late events among those that jobs added to the table in the last `minutes`, in relation to"
            " the share that the objective of the table allows.",
            ("event_type", "minutes"),
            combine=max,
        )
        self.table_pressure = self._add_gauge(
            "nakadi_table_objective_pressure",
            "The lag of the table, in relation to the time that its objective allows.",
            ("event_type",),
            combine=max,
        )

    def _define_machine(self) -> None:
        self.disk_free = self._add_gauge(
            "nakadi_disk_free_bytes",
            "Bytes that the broker may still write to the file system of its `data` file or its `archive` folder.",
            ("place",),
            combine=min,
        )
        self.disk_size = self._add_gauge("nakadi_disk_size_bytes", "Size of this file system.", ("place",), combine=min)
        self.process_info = self._add_gauge(
            "nakadi_process_info", "1 for each process of the broker, by its id.", ("process",), combine=max
        )
        self.process_info.add_source(lambda: {(str(os.getpid()),): 1})
        self.processes_expected = self._add_gauge(
            "nakadi_processes_expected", "The number of processes of a broker with several.", combine=max
        )
        self.process_silent_seconds = self._add_gauge(
            "nakadi_process_silent_seconds",
            "How long a worker has not answered; missing for processes that answer.",
            ("process",),
            combine=max,
        )
        self.worker_restarts = self._add_fault_counter(
            "nakadi_worker_restarts_total",
            "Workers that ended by themselves, or did not answer, and that the broker started again.",
        )
        self.last_faults = self._add_gauge(
            "nakadi_last_fault_timestamp_seconds",
            "Unix time of the last fault that `metric` has counted; missing if there was none.",
            ("metric",),
            combine=max,
        )
        self.last_faults.add_source(self._read_last_faults)

    def add_cache_sources(self, name: str, read_hits: Callable[[], int], read_misses: Callable[[], int]) -> None:
        self.cache_hits.add_source(lambda: {(name,): read_hits()})
        self.cache_misses.add_source(lambda: {(name,): read_misses()})

    def _make_definition(self, name: str, meaning: str, labels: Labels, json: str) -> MetricDefinition:
        return MetricDefinition(
            name=name, meaning=meaning, group=self._group, labels=labels, json_name=json, known_names=self._names
        )

    def _add_counter(self, name: str, meaning: str, labels: Labels = (), *, json: str = "") -> Counter:
        made = Counter(self._make_definition(name, meaning, labels, json))
        self.all.append(made)
        return made

    def _add_fault_counter(self, name: str, meaning: str, labels: Labels = ()) -> FaultCounter:
        made = FaultCounter(self._make_definition(name, meaning, labels, ""), self._now)
        self.all.append(made)
        return made

    def _read_last_faults(self) -> MetricRows:
        faults = [each for each in self.all if isinstance(each, FaultCounter)]
        return {(each.definition.name,): each.last_at for each in faults if each.last_at is not None}

    def _add_gauge(
        self, name: str, meaning: str, labels: Labels = (), *, combine: Callable[[float, float], float] = add
    ) -> Gauge:
        made = Gauge(self._make_definition(name, meaning, labels, ""), combine)
        self.all.append(made)
        return made

    def _add_histogram(
        self,
        name: str,
        meaning: str,
        labels: Labels = (),
        *,
        bounds: BucketBounds = SECONDS_BUCKET_BOUNDS,
        json: str = "",
    ) -> Histogram:
        made = Histogram(self._make_definition(name, meaning, labels, json), bounds)
        self.all.append(made)
        return made

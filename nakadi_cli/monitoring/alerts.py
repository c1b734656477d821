"""The alerts: expressions over a broker's metrics that are true while a problem needs attention.

docs/operations.md has a section for each alert, with its name: what the alert means, how to investigate it, and what to
do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["critical", "warning"]


@dataclass(frozen=True, kw_only=True)
class Alert:
    """An expression in PromQL that is true while a problem lasts.

    The alert fires after the expression has been true for `minutes`. The person on call reads `summary` and `action`
    first; both may use labels of the result as `{{ $labels.event_type }}`.
    """

    name: str
    expression: str
    minutes: int
    severity: Severity
    summary: str
    action: str

    @property
    def page(self) -> str:
        """The place in the documentation that explains the alert."""
        return f"docs/operations.md#{self.name.lower()}"


ALERTS = (
    Alert(
        name="NakadiIsDown",
        expression='up{job="nakadi"} == 0',
        minutes=2,
        severity="critical",
        summary="The broker at {{ $labels.instance }} does not answer",
        action="See whether its process runs, and read the end of its log.",
    ),
    Alert(
        name="NakadiAnswersWithErrors",
        expression='sum(rate(nakadi_http_requests_total{status=~"5.."}[5m])) > 0.05',
        minutes=5,
        severity="critical",
        summary="The broker answers requests with 5xx",
        action="Search its log for the ticket in an answer, and see whether another alert names the cause.",
    ),
    Alert(
        name="NakadiConsumerIsStuck",
        expression="max(nakadi_stalled_subscriptions) > 0",
        minutes=10,
        severity="warning",
        summary="{{ $value }} subscriptions have events, and their consumers commit nothing",
        action="nakadi subscriptions list --lag names them. Fix the consumer, or set a policy for the event.",
    ),
    Alert(
        name="NakadiSinkFails",
        expression="max by (subscription) (nakadi_sink_failing_seconds) > 120",
        minutes=0,
        severity="warning",
        summary="The sink of subscription {{ $labels.subscription }} has accepted nothing for two minutes, and fails",
        action="nakadi sinks show has the last failure. Fix the receiver; the events wait.",
    ),
    Alert(
        name="NakadiPartitionIsHot",
        expression=(
            "max by (event_type) (nakadi_busiest_partition_ratio) > 3"
            " and sum by (event_type) (rate(nakadi_events_published_total[10m])) > 1"
        ),
        minutes=15,
        severity="warning",
        summary="One partition of {{ $labels.event_type }} gets more than three times the average of all",
        action="Look for the key that most events have, and choose partition keys that differ more.",
    ),
    Alert(
        name="NakadiDiskFillsUp",
        expression="nakadi_disk_free_bytes / nakadi_disk_size_bytes < 0.1",
        minutes=5,
        severity="warning",
        summary="Less than a tenth of the disk of the {{ $labels.place }} is free",
        action="Make room, or shorten the retention of the event types with the most events.",
    ),
    Alert(
        name="NakadiCannotStoreEvents",
        expression=(
            "sum(increase(nakadi_sqlite_commit_failures_total[5m])) > 0"
            ' or sum(rate(nakadi_events_refused_total{reason="publishing"}[5m])) > 0'
        ),
        minutes=0,
        severity="critical",
        summary="The event log does not store what publishers send",
        action="Read the cause in the log of the broker: usually the disk is full, or Kafka does not answer.",
    ),
    Alert(
        name="NakadiArchiveIsDamaged",
        expression="max by (event_type, partition, offsets, object) (nakadi_archive_damaged_offsets) > 0",
        minutes=0,
        severity="critical",
        summary=(
            "Offsets {{ $labels.offsets }} of partition {{ $labels.partition }} of {{ $labels.event_type }} are damaged"
            " in the archive, and streams stop there"
        ),
        action="Restore the object {{ $labels.object }} from a backup.",
    ),
    Alert(
        name="NakadiArchiveCannotBeRead",
        expression="sum(increase(nakadi_archive_read_failures_total[5m])) > 0",
        minutes=2,
        severity="critical",
        summary="Reads of archived events fail, and consumers of these events wait",
        action="See whether the folder of the archive is mounted, or the bucket answers; the log has the cause.",
    ),
    Alert(
        name="NakadiSchemaRejectsEvents",
        expression=(
            'sum by (event_type) (rate(nakadi_events_refused_total{reason="validating"}[10m]))'
            " / (sum by (event_type) (rate(nakadi_events_refused_total[10m]))"
            " + (sum by (event_type) (rate(nakadi_events_published_total[10m]))"
            " or 0 * sum by (event_type) (rate(nakadi_events_refused_total[10m])))) > 0.1"
        ),
        minutes=5,
        severity="warning",
        summary="More than a tenth of the events of {{ $labels.event_type }} do not fit its schema",
        action="Compare the newest versions of the schema, and revert the change or fix the publisher.",
    ),
    Alert(
        name="NakadiWorkersDie",
        expression="sum(increase(nakadi_worker_restarts_total[15m])) > 0",
        minutes=0,
        severity="warning",
        summary="A worker of the broker ended, and was started again",
        action="Its exit code is in the log; -9 means that the system killed it, usually for lack of memory.",
    ),
    Alert(
        name="NakadiRegistryIsSlow",
        expression=(
            "max(histogram_quantile(0.95, sum by (le, call) (rate(nakadi_registry_call_duration_seconds_bucket[5m])))"
            " > 0.5) or max(histogram_quantile(0.95,"
            " sum by (le) (rate(nakadi_sqlite_commit_duration_seconds_bucket[5m]))) > 0.5)"
        ),
        minutes=5,
        severity="warning",
        summary="The registry, or the data file, takes longer than half a second for many calls of one kind",
        action="See whether another program holds the data file, its disk is busy, or DynamoDB throttles.",
    ),
    Alert(
        name="NakadiIndexerIsBehind",
        expression="max(nakadi_archive_lag_seconds) > 600 or max(nakadi_index_lag_seconds) > 600",
        minutes=5,
        severity="critical",
        summary="Events have waited for the archive for more than ten minutes",
        action="See whether the archive can be reached and has room; the log names the step that fails.",
    ),
    Alert(
        name="NakadiHousekeepingStands",
        expression="time() - max(nakadi_housekeeping_last_round_timestamp_seconds) > 900",
        minutes=0,
        severity="warning",
        summary="The broker has not removed expired events, nor looked for stuck consumers, for a quarter of an hour",
        action="The log names steps that failed; a store that does not answer can delay housekeeping.",
    ),
    Alert(
        name="NakadiTablesAreLate",
        expression="max by (event_type) (nakadi_table_lag_seconds) > 7200",
        minutes=10,
        severity="warning",
        summary="Events of {{ $labels.event_type }} have waited for their table for more than two hours",
        action="See the last run of the job compaction, and start it again.",
    ),
    Alert(
        name="NakadiTableMissesItsObjective",
        expression=(
            "min by (event_type) (nakadi_table_objective_burn_rate) > 6"
            " or max by (event_type) (nakadi_table_objective_pressure) > 1"
        ),
        minutes=10,
        severity="warning",
        summary="Events of {{ $labels.event_type }} reach their table later than its objective allows",
        action="nakadi tables objectives names the slowest partition. See the last run of the job, or start it again.",
    ),
    Alert(
        name="NakadiTablesAreWrong",
        expression='sum by (event_type) (nakadi_table_defects{kind!="late"}) > 0',
        minutes=0,
        severity="warning",
        summary="{{ $value }} new events of {{ $labels.event_type }} in its table are faulty",
        action="GET /event-types/{name}/table-runs lists the faults by rule and path.",
    ),
)

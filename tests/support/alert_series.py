"""For each alert, series of metrics that make it fire, and series that do not.

The values are in the notation of `promtool test rules`: `0+60x40` begins at 0, and grows by 60 in each of 40 minutes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

Series = Mapping[str, str]

EVALUATED_AT_MINUTE = 30


@dataclass(frozen=True)
class AlertSeries:
    """`labels` and `value` belong to the alert that fires."""

    firing: Series
    quiet: Series
    labels: Mapping[str, str] = field(default_factory=dict)
    value: str = ""


_BUCKET = "nakadi_registry_call_duration_seconds_bucket"
_DAMAGED = 'nakadi_archive_damaged_offsets{event_type="order",partition="0",offsets="400-1399",object="log/a.json.gz"}'
_REFUSED = 'nakadi_events_refused_total{event_type="order",reason="validating"}'
_PUBLISHED = 'nakadi_events_published_total{event_type="order"}'
_BURN = "nakadi_table_objective_burn_rate"
_ORDER = {"event_type": "order"}

SERIES: Mapping[str, AlertSeries] = {
    "NakadiIsDown": AlertSeries(
        firing={'up{instance="b:8080",job="nakadi"}': "0x40", 'up{instance="c:8080",job="nakadi"}': "1x40"},
        quiet={'up{instance="b:8080",job="nakadi"}': "1x40", 'up{instance="b:9100",job="node"}': "0x40"},
        labels={"instance": "b:8080", "job": "nakadi"},
    ),
    "NakadiAnswersWithErrors": AlertSeries(
        firing={'nakadi_http_requests_total{operation="publish_events",status="503"}': "0+60x40"},
        quiet={
            'nakadi_http_requests_total{operation="publish_events",status="200"}': "0+60x40",
            'nakadi_http_requests_total{operation="publish_events",status="422"}': "0+60x40",
        },
    ),
    "NakadiConsumerIsStuck": AlertSeries(
        firing={"nakadi_stalled_subscriptions": "2x40"}, quiet={"nakadi_stalled_subscriptions": "0x40"}, value="2"
    ),
    "NakadiSinkFails": AlertSeries(
        firing={
            'nakadi_sink_failing_seconds{subscription="s-1"}': "0+60x40",
            'nakadi_sink_failing_seconds{subscription="s-2"}': "5x40",
        },
        quiet={'nakadi_sink_failing_seconds{subscription="s-1"}': "60x40", "nakadi_sinks_served": "1x40"},
        labels={"subscription": "s-1"},
    ),
    "NakadiPartitionIsHot": AlertSeries(
        firing={'nakadi_busiest_partition_ratio{event_type="order"}': "7x40", _PUBLISHED: "0+600x40"},
        quiet={
            'nakadi_busiest_partition_ratio{event_type="order"}': "7x40",
            _PUBLISHED: "600x40",
            'nakadi_busiest_partition_ratio{event_type="parcel"}': "1.2x40",
            'nakadi_events_published_total{event_type="parcel"}': "0+600x40",
        },
        labels=_ORDER,
    ),
    "NakadiDiskFillsUp": AlertSeries(
        firing={'nakadi_disk_free_bytes{place="data"}': "5x40", 'nakadi_disk_size_bytes{place="data"}': "100x40"},
        quiet={'nakadi_disk_free_bytes{place="data"}': "50x40", 'nakadi_disk_size_bytes{place="data"}': "100x40"},
        labels={"place": "data"},
    ),
    "NakadiCannotStoreEvents": AlertSeries(
        firing={"nakadi_sqlite_commit_failures_total": "0x27 1x20"},
        quiet={"nakadi_sqlite_commit_failures_total": "3x40"},
    ),
    "NakadiArchiveIsDamaged": AlertSeries(
        firing={_DAMAGED: "1000x40"},
        quiet={_DAMAGED: "0x40"},
        labels={"event_type": "order", "partition": "0", "offsets": "400-1399", "object": "log/a.json.gz"},
    ),
    "NakadiArchiveCannotBeRead": AlertSeries(
        firing={"nakadi_archive_read_failures_total": "0x20 1+1x20"},
        quiet={"nakadi_archive_read_failures_total": "3x40"},
    ),
    "NakadiSchemaRejectsEvents": AlertSeries(
        firing={_REFUSED: "0+60x40"}, quiet={_REFUSED: "0+1x40", _PUBLISHED: "0+600x40"}, labels=_ORDER
    ),
    "NakadiWorkersDie": AlertSeries(
        firing={"nakadi_worker_restarts_total": "0x20 1x20"}, quiet={"nakadi_worker_restarts_total": "2x40"}
    ),
    "NakadiRegistryIsSlow": AlertSeries(
        firing={
            f'{_BUCKET}{{call="get",le="0.5"}}': "0x40",
            f'{_BUCKET}{{call="get",le="1.0"}}': "0+10x40",
            f'{_BUCKET}{{call="get",le="+Inf"}}': "0+10x40",
            f'{_BUCKET}{{call="change_counters",le="0.5"}}': "0+1000x40",
            f'{_BUCKET}{{call="change_counters",le="+Inf"}}': "0+1000x40",
        },
        quiet={
            f'{_BUCKET}{{call="get",le="0.5"}}': "0+10x40",
            f'{_BUCKET}{{call="get",le="1.0"}}': "0+10x40",
            f'{_BUCKET}{{call="get",le="+Inf"}}': "0+10x40",
        },
    ),
    "NakadiIndexerIsBehind": AlertSeries(
        firing={"nakadi_archive_lag_seconds": "700x40"},
        quiet={"nakadi_archive_lag_seconds": "30x40", "nakadi_index_lag_seconds": "5x40"},
    ),
    "NakadiHousekeepingStands": AlertSeries(
        firing={"nakadi_housekeeping_last_round_timestamp_seconds": "1x40"},
        quiet={"nakadi_housekeeping_last_round_timestamp_seconds": "0+60x40"},
    ),
    "NakadiTablesAreLate": AlertSeries(
        firing={'nakadi_table_lag_seconds{event_type="order"}': "8000x40"},
        quiet={'nakadi_table_lag_seconds{event_type="order"}': "10x40"},
        labels=_ORDER,
    ),
    "NakadiTableMissesItsObjective": AlertSeries(
        firing={
            f'{_BURN}{{event_type="order",minutes="60"}}': "7x40",
            f'{_BURN}{{event_type="order",minutes="1440"}}': "8x40",
        },
        quiet={
            f'{_BURN}{{event_type="order",minutes="60"}}': "50x40",
            f'{_BURN}{{event_type="order",minutes="1440"}}': "5x40",
            'nakadi_table_objective_pressure{event_type="order"}': "0.9x40",
        },
        labels=_ORDER,
    ),
    "NakadiTablesAreWrong": AlertSeries(
        firing={'nakadi_table_defects{event_type="order",kind="misfit"}': "2x40"},
        quiet={'nakadi_table_defects{event_type="order",kind="late"}': "2x40"},
        labels=_ORDER,
        value="2",
    ),
}


def history_of(series: Series) -> list[tuple[float, dict[tuple[str, frozenset[tuple[str, str]]], float]]]:
    """The scrapes up to the time of evaluation, one a minute."""
    columns = {_key(name): _values(notation) for name, notation in series.items()}
    return [
        (60.0 * minute, {key: values[minute] for key, values in columns.items()})
        for minute in range(EVALUATED_AT_MINUTE + 1)
    ]


def _key(name: str) -> tuple[str, frozenset[tuple[str, str]]]:
    [family] = text_string_to_metric_families(f"{name} 0\n")
    [sample] = family.samples
    return sample.name, frozenset(sample.labels.items())


def _values(notation: str) -> list[float]:
    values: list[float] = []
    for part in notation.split():
        shape, _, times = part.partition("x")
        first, _, step = shape.partition("+")
        values += [float(first) + float(step or 0) * number for number in range(int(times) + 1)]
    return values

"""Metrics as JSON, in the layout that monitoring of Nakadi expects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nakadi.common.counting import Counter, Distribution, Histogram, Labels
from nakadi.common.metrics import Metric, Metrics

if TYPE_CHECKING:
    pass


QUANTILE_BY_NAME = {"p50": 0.5, "p75": 0.75, "p95": 0.95, "p98": 0.98, "p99": 0.99, "p999": 0.999}


def metrics_view(metrics: Metrics, now: float) -> Mapping[str, Any]:
    """All metrics, by names made of a metric's name and its labels, as `nakadi.http.get_health.200`."""
    uptime = now - metrics.started
    gauges: dict[str, Any] = {"nakadi.uptime": {"value": uptime}}
    counters: dict[str, Any] = {}
    timers: dict[str, Any] = {}
    histograms: dict[str, Any] = {}
    for metric in metrics.all:
        match metric:
            case Histogram():
                for labels, row in metric.rows().items():
                    if metric.definition.name.endswith("_seconds"):
                        timers[_json_name(metric, labels)] = {
                            **_distribution_view(row),
                            **_rate_view(row.value_count, uptime),
                        }
                    else:
                        histograms[_json_name(metric, labels)] = _distribution_view(row)
            case Counter(kind="gauge"):
                gauges.update({_json_name(metric, labels): {"value": value} for labels, value in metric.rows().items()})
            case Counter():
                counted = {_json_name(metric, labels): {"count": value} for labels, value in metric.rows().items()}
                counters.update(counted)
    return _groups_view(gauges=gauges, counters=counters, histograms=histograms, timers=timers)


def request_metrics_view(metrics: Metrics, now: float) -> Mapping[str, Any]:
    """The times of each client's requests, as `client.GET./event-types`."""
    uptime = now - metrics.started
    rows = metrics.clients.requests().items()
    timers = {".".join(key): {**_distribution_view(row), **_rate_view(row.value_count, uptime)} for key, row in rows}
    return _groups_view(timers=timers)


def stream_metrics_view(metrics: Metrics, now: float) -> Mapping[str, Any]:
    """The bytes that were sent to each client, as `lola.client.event#type.bytes-flushed`, or `hila` for subscriptions.

    A dot within a name is a `#`.
    """
    uptime = now - metrics.started
    meters = {
        ".".join((*(part.replace(".", "#") for part in key), "bytes-flushed")): {
            "count": size,
            "mean_rate": _mean_rate(size, uptime),
            "units": "events/second",
        }
        for key, size in metrics.clients.sent_bytes().items()
    }
    return _groups_view(meters=meters)


def _groups_view(**groups: Mapping[str, Any]) -> Mapping[str, Any]:
    kinds = ("gauges", "counters", "histograms", "meters", "timers")
    return {"version": "4.0.0", **{kind: dict(sorted(groups.get(kind, {}).items())) for kind in kinds}}


def _json_name(metric: Metric, labels: Labels) -> str:
    definition = metric.definition
    made = definition.name.removesuffix("_total").removesuffix("_seconds").replace("nakadi_", "nakadi.", 1)
    return ".".join([definition.json_name or made, *(label.replace(" ", "-") for label in labels)])


def _distribution_view(row: Distribution) -> Mapping[str, Any]:
    ordered = sorted(row.recent_values)
    return {
        "count": row.value_count,
        "max": ordered[-1],
        "mean": sum(ordered) / len(ordered),
        "min": ordered[0],
        **{name: ordered[int(share * (len(ordered) - 1))] for name, share in QUANTILE_BY_NAME.items()},
    }


def _rate_view(count: int, uptime: float) -> Mapping[str, Any]:
    return {"mean_rate": _mean_rate(count, uptime), "duration_units": "seconds", "rate_units": "calls/second"}


def _mean_rate(count: int, uptime: float) -> float:
    return count / max(uptime, 1.0)

"""The metrics of a process as clients of `/metrics` read them: JSON in the shape that monitoring of Nakadi expects, or
the text formats of Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from nakadi.metrics import Counter, Distribution, Histogram, Labels, Metric, Metrics

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

QUANTILES = {"p50": 0.5, "p75": 0.75, "p95": 0.95, "p98": 0.98, "p99": 0.99, "p999": 0.999}

Text = Callable[[str], tuple[bytes, str]]
"""The metrics in one of the text formats, by its media type; and that with its version."""

OPENMETRICS = "application/openmetrics-text"
PLAIN = "text/plain"


# JSON ----------------------------------------------------------------------------------------------------------------


def as_json(metrics: Metrics, now: float) -> Mapping[str, Any]:
    """Everything there is to tell, by names made of a metric's name and its labels, as `nakadi.http.get_health.200`."""
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
                        timers[_json_name(metric, labels)] = {**_spread(row), **_rate(row, uptime)}
                    else:
                        histograms[_json_name(metric, labels)] = _spread(row)
            case Counter(kind="gauge"):
                gauges.update({_json_name(metric, labels): {"value": value} for labels, value in metric.rows().items()})
            case Counter():
                counted = {_json_name(metric, labels): {"count": value} for labels, value in metric.rows().items()}
                counters.update(counted)
    return {
        "version": "4.0.0",
        "gauges": dict(sorted(gauges.items())),
        "counters": dict(sorted(counters.items())),
        "histograms": dict(sorted(histograms.items())),
        "meters": {},
        "timers": dict(sorted(timers.items())),
    }


def _json_name(metric: Metric, labels: Labels) -> str:
    definition = metric.definition
    made = definition.name.removesuffix("_total").removesuffix("_seconds").replace("nakadi_", "nakadi.", 1)
    return ".".join([definition.json or made, *(label.replace(" ", "-") for label in labels)])


def _spread(row: Distribution) -> Mapping[str, Any]:
    ordered = sorted(row.recent)
    return {
        "count": row.count,
        "max": ordered[-1],
        "mean": sum(ordered) / len(ordered),
        "min": ordered[0],
        **{name: ordered[int(share * (len(ordered) - 1))] for name, share in QUANTILES.items()},
    }


def _rate(row: Distribution, uptime: float) -> Mapping[str, Any]:
    return {
        "mean_rate": row.count / max(uptime, 1.0),
        "duration_units": "seconds",
        "rate_units": "calls/second",
    }


# Prometheus ----------------------------------------------------------------------------------------------------------


def prometheus_text(metrics: Metrics) -> Text | None:
    """What writes the text formats of Prometheus; None where its library is not installed, as in Lambda functions,
    whose metrics CloudWatch collects."""
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector  # noqa: PLC0415  # only where it is
        from prometheus_client.exposition import generate_latest  # noqa: PLC0415  # as above
        from prometheus_client.openmetrics import exposition as openmetrics  # noqa: PLC0415  # as above
        from prometheus_client.registry import Collector  # noqa: PLC0415  # as above
    except ImportError:
        return None

    class Collected(Collector):
        def collect(self) -> Iterable[Family]:
            return map(_family, metrics.all)

    registry = CollectorRegistry()
    registry.register(Collected())
    ProcessCollector(registry=registry)

    def text_of(media: str) -> tuple[bytes, str]:
        # The library's own choice repeats in its answer what the client asks for, and fails at versions like `a.b`.
        if media == OPENMETRICS:
            text = openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call]  # the library has no types here
            return text, f"{OPENMETRICS}; version=1.0.0; charset=utf-8"
        return generate_latest(registry), f"{PLAIN}; version=0.0.4; charset=utf-8"

    return text_of


def _family(metric: Metric) -> Family:
    from prometheus_client.core import (  # noqa: PLC0415  # see `prometheus_text`
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    definition = metric.definition
    if isinstance(metric, Histogram):
        histogram = HistogramMetricFamily(definition.name, definition.meaning, labels=definition.labels)
        bounds = [*map(str, metric.bounds), "+Inf"]
        for labels, row in metric.rows().items():
            buckets = list(zip(bounds, accumulate(row.buckets), strict=True))
            histogram.add_metric(labels, buckets, row.total)
        return histogram
    kind = GaugeMetricFamily if metric.kind == "gauge" else CounterMetricFamily
    family = kind(definition.name, definition.meaning, labels=definition.labels)
    for labels, value in metric.rows().items():
        family.add_metric(labels, value)
    return family

"""A dashboard in the format of Grafana: the alerts, and below them a panel for each metric."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import add
from typing import Any

from nakadi.common.counting import Histogram, MetricDefinition
from nakadi.common.metrics import Metric, Metrics

_COLUMNS = 3
_WIDTH = 24 // _COLUMNS
_HEIGHT = 8
_SOURCE = {"type": "prometheus", "uid": "${source}"}
_UNBOUNDED_LABELS = frozenset({"event_type", "subscription"})
_SHOWN_VALUES = 10
_QUANTILES = (0.5, 0.99)
_AGGREGATIONS = {add: "sum", max: "max", min: "min"}
"""The aggregation in PromQL for each way in which the broker combines the values of its processes."""


def dashboard() -> str:
    """Write a dashboard, which Grafana imports and provisions."""
    return json.dumps(
        {
            "uid": "nakadi",
            "title": "Nakadi",
            "tags": ["nakadi"],
            "schemaVersion": 39,
            "refresh": "1m",
            "time": {"from": "now-3h", "to": "now"},
            "templating": {
                "list": [{"name": "source", "label": "Source", "type": "datasource", "query": "prometheus"}]
            },
            "panels": [{**each, "id": number} for number, each in enumerate(_panels(Metrics().all), 1)],
        },
        indent=2,
    )


def queries(metric: Metric) -> Sequence[tuple[str, str]]:
    """The expressions that show a metric, each with its legend."""
    definition = metric.definition
    by = _by(definition.labels)
    if isinstance(metric, Histogram):
        buckets = f"sum{_by(('le', *definition.labels))} (rate({definition.name}_bucket[$__rate_interval]))"
        return [
            (f"histogram_quantile({quantile}, {buckets})", _legend(definition.labels, f"p{quantile * 100:.0f}"))
            for quantile in _QUANTILES
        ]
    if metric.kind == "counter":
        value = f"sum{by} (rate({definition.name}[$__rate_interval]))"
    elif _is_time(definition):
        value = f"time() - max{by} ({definition.name})"
    else:
        value = f"{_AGGREGATIONS[metric.combine]}{by} ({definition.name})"
    if _UNBOUNDED_LABELS & set(definition.labels):
        value = f"topk({_SHOWN_VALUES}, {value})"
    return [(value, _legend(definition.labels))]


def _panels(metrics: Iterable[Metric]) -> Iterator[dict[str, Any]]:
    yield {
        "type": "alertlist",
        "title": "Alerts",
        "gridPos": {"x": 0, "y": 0, "w": 24, "h": _HEIGHT},
        "options": {"alertName": "Nakadi", "stateFilter": {"firing": True, "pending": True}, "maxItems": 20},
    }
    top = _HEIGHT
    for group, members in groupby(metrics, lambda metric: metric.definition.group):
        yield {"type": "row", "title": group, "collapsed": False, "gridPos": {"x": 0, "y": top, "w": 24, "h": 1}}
        top += 1
        shown = list(members)
        for number, metric in enumerate(shown):
            row, column = divmod(number, _COLUMNS)
            place = {"x": column * _WIDTH, "y": top + row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
            yield {**_panel(metric), "gridPos": place}
        top += -(-len(shown) // _COLUMNS) * _HEIGHT


def _panel(metric: Metric) -> dict[str, Any]:
    definition = metric.definition
    return {
        "type": "timeseries",
        "title": definition.name.removeprefix("nakadi_").removesuffix("_total"),
        "description": definition.meaning,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": _unit(metric), "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "expr": expression, "legendFormat": legend, "datasource": _SOURCE}
            for number, (expression, legend) in enumerate(queries(metric))
        ],
    }


def _unit(metric: Metric) -> str:
    name = metric.definition.name
    if metric.kind == "counter":
        return "Bps" if "_bytes" in name else "cps"
    if name.endswith("_seconds"):
        return "s"
    return "bytes" if name.endswith("_bytes") or "_bytes_" in name else "short"


def _is_time(definition: MetricDefinition) -> bool:
    return definition.name.endswith("_timestamp_seconds")


def _by(labels: Sequence[str]) -> str:
    return f" by ({', '.join(labels)})" if labels else ""


def _legend(labels: Sequence[str], name: str = "") -> str:
    return " ".join([*(f"{{{{{each}}}}}" for each in labels), *([name] if name else [])]) or "all"

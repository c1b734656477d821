"""Metrics of several processes: a snapshot of each, and all of them put together."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct

from nakadi.common.metrics import Distribution, Histogram, Labels, MetricRows, Metrics


class DistributionSnapshot(Struct, frozen=True, array_like=True):
    buckets: list[int]
    count: int
    total: float
    recent: list[float]


class MetricsSnapshot(Struct, frozen=True, array_like=True):
    """What a process has counted, by the names of metrics. `process` is its number, or None if it has ended."""

    process: int | None
    started: float
    cpu_seconds: float
    counters: dict[str, list[tuple[Labels, float]]]
    gauges: dict[str, list[tuple[Labels, float]]]
    histograms: dict[str, list[tuple[Labels, DistributionSnapshot]]]


def snapshot_of(metrics: Metrics) -> MetricsSnapshot:
    """The values of this process."""
    numbers: dict[str, dict[str, list[tuple[Labels, float]]]] = {"counter": {}, "gauge": {}}
    histograms: dict[str, list[tuple[Labels, DistributionSnapshot]]] = {}
    for metric in metrics.all:
        name = metric.definition.name
        if isinstance(metric, Histogram):
            histograms[name] = [
                (labels, DistributionSnapshot(row.buckets, row.count, row.total, list(row.recent)))
                for labels, row in metric.rows().items()
            ]
        else:
            numbers[metric.kind][name] = list(metric.rows().items())
    seconds = metrics.cpu_seconds()
    return MetricsSnapshot(os.getpid(), metrics.started, seconds, numbers["counter"], numbers["gauge"], histograms)


def totals_of_ended_processes(snapshots: Sequence[MetricsSnapshot], started: float) -> MetricsSnapshot:
    """What is left of processes that have ended: what they counted, and no values of the moment."""
    whole = snapshot_of(merged_metrics(snapshots))
    return MetricsSnapshot(None, started, whole.cpu_seconds, whole.counters, {}, whole.histograms)


def merged_metrics(snapshots: Sequence[MetricsSnapshot], most_names: int = 200) -> Metrics:
    """The metrics of all processes, as if one had counted everything."""
    metrics = Metrics(min((each.started for each in snapshots), default=0.0), most_names)
    metrics.processes = [_process_reader(each.process) for each in snapshots if each.process is not None]
    metrics.cpu_seconds = partial(sum, [each.cpu_seconds for each in snapshots])
    for metric in metrics.all:
        name = metric.definition.name
        if isinstance(metric, Histogram):
            for each in snapshots:
                for labels, row in each.histograms.get(name, ()):
                    _add_distribution(metric.row(labels), row)
        else:
            metric.replace_by_sum_of([_rows_of_metric(each, name) for each in snapshots])
    return metrics


def _process_reader(process: int) -> Callable[[], int]:
    return lambda: process


def _rows_of_metric(snapshot: MetricsSnapshot, name: str) -> MetricRows:
    return dict(snapshot.counters.get(name) or snapshot.gauges.get(name) or ())


def _add_distribution(row: Distribution, more: DistributionSnapshot) -> None:
    row.buckets = [one + other for one, other in zip(row.buckets, more.buckets, strict=True)]
    row.count += more.count
    row.total += more.total
    row.recent.extend(more.recent)

"""Sends the metrics of `/metrics` over OTLP, in the form of OpenTelemetry's SDK.

The export counts nothing itself: it reads the values at each interval, as Prometheus does. This module is not loaded
while the export is off.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    HistogramDataPoint,
    MetricExporter,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Histogram as HistogramPoints
from opentelemetry.sdk.metrics.export import Metric as SentMetric
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from nakadi.app.open_telemetry import require_otlp, resource_of_process
from nakadi.common.counting import Histogram
from nakadi.common.metrics import Metric, Metrics
from nakadi.model.outcomes import BadSetting

INTERVAL_VARIABLE, DEFAULT_INTERVAL_MILLISECONDS = "OTEL_METRIC_EXPORT_INTERVAL", "60000"

_UNITS_BY_LAST_WORD = {"seconds": "s", "bytes": "By", "ratio": "1"}

log = logging.getLogger(__name__)


def open_metrics_export(protocol: str, read_metrics: Callable[[], Metrics]) -> MetricsExport:
    """Begin to send metrics regularly, as the variables `OTEL_…` say. Raises `BadSetting`."""
    require_otlp("NAKADI_METRICS", protocol)
    text = os.environ.get(INTERVAL_VARIABLE) or DEFAULT_INTERVAL_MILLISECONDS
    if not text.isdecimal() or int(text) == 0:
        raise BadSetting(f"{INTERVAL_VARIABLE} is a number of milliseconds above 0, and not {text!r}")
    return MetricsExport(read_metrics, OTLPMetricExporter(), int(text) / 1000)


class MetricsExport:
    """Reads and sends metrics at intervals, in a thread of its own, until `close` is called."""

    def __init__(self, read_metrics: Callable[[], Metrics], exporter: MetricExporter, interval_seconds: float) -> None:
        self._read_metrics = read_metrics
        self._exporter = exporter
        self._interval_seconds = interval_seconds
        self._started_at = time.time_ns()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nakadi-metrics-export", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        # Shut the exporter down before joining the thread, so that an export to a receiver that does not answer gives
        # up.
        self._exporter.shutdown()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(self._interval_seconds):
            try:
                self._exporter.export(metrics_data(self._read_metrics(), self._started_at, time.time_ns()))
            except Exception:
                # Nothing is lost: the next export sends the totals, which include these counts.
                log.exception("Sending metrics failed")


def metrics_data(metrics: Metrics, started_at: int, now: int) -> MetricsData:
    """All metrics that have values now. `started_at`, when counting began, and `now` are Unix times in nanoseconds."""
    sent = list(_otlp_metrics(metrics, started_at, now))
    scope = ScopeMetrics(InstrumentationScope("nakadi"), sent, "")
    return MetricsData([ResourceMetrics(resource_of_process(), [scope], "")])


def _otlp_metrics(metrics: Metrics, started_at: int, now: int) -> Iterator[SentMetric]:
    for each in metrics.all:
        definition = each.definition
        last_word = definition.name.removesuffix("_total").rpartition("_")[2]
        points = _otlp_data_points(each, started_at, now)
        if points.data_points:
            yield SentMetric(definition.name, definition.meaning, _UNITS_BY_LAST_WORD.get(last_word, "1"), points)


def _otlp_data_points(metric: Metric, started_at: int, now: int) -> Sum | Gauge | HistogramPoints:
    names = metric.definition.labels
    if isinstance(metric, Histogram):
        return HistogramPoints(
            [
                HistogramDataPoint(
                    attributes=dict(zip(names, labels, strict=True)),
                    start_time_unix_nano=started_at,
                    time_unix_nano=now,
                    count=row.value_count,
                    sum=row.sum_of_values,
                    bucket_counts=row.bucket_counts,
                    explicit_bounds=metric.bounds,
                    # The broker does not keep the smallest and the largest value, which are optional in OTLP and for
                    # the SDK's encoder.
                    min=None,  # type: ignore[arg-type]  # as above
                    max=None,  # type: ignore[arg-type]  # as above
                )
                for labels, row in metric.rows().items()
            ],
            AggregationTemporality.CUMULATIVE,
        )
    numbers = [
        NumberDataPoint(dict(zip(names, labels, strict=True)), started_at, now, value)
        for labels, value in metric.rows().items()
    ]
    return Gauge(numbers) if metric.kind == "gauge" else Sum(numbers, AggregationTemporality.CUMULATIVE, True)

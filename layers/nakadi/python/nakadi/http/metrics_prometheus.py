"""Metrics in the text formats of Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from nakadi.common.counting import Histogram
from nakadi.common.metrics import Metric, Metrics

if TYPE_CHECKING:
    from prometheus_client import ProcessCollector
    from prometheus_client.core import Metric as Family


RenderMetrics = Callable[[str], tuple[bytes, str]]
"""Returns the metrics in the text format of the given media type, and the full media type of that format."""

OPENMETRICS_MEDIA_TYPE = "application/openmetrics-text"
PLAIN_MEDIA_TYPE = "text/plain"


def make_prometheus_renderer(read_metrics: Callable[[], Metrics]) -> RenderMetrics | None:
    """A writer of the text formats of Prometheus; None if its library is not installed, as in Lambda functions, whose
    metrics CloudWatch collects.
    """
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector  # noqa: PLC0415  # only where it is
        from prometheus_client.exposition import generate_latest  # noqa: PLC0415  # as above
        from prometheus_client.openmetrics import exposition as openmetrics  # noqa: PLC0415  # as above
        from prometheus_client.registry import Collector  # noqa: PLC0415  # as above
    except ImportError:
        return None

    class Collected(Collector):
        def collect(self) -> Iterable[Family]:
            metrics = read_metrics()
            yield from map(_metric_family, metrics.all)
            processes = [ProcessCollector(pid=of, registry=None) for of in metrics.processes]
            yield from _process_metric_families(processes, metrics.cpu_seconds())

    registry = CollectorRegistry()
    registry.register(Collected())

    def render_metrics(media: str) -> tuple[bytes, str]:
        # The library's own choice repeats the client's request in its answer, and fails at versions like `a.b`.
        if media == OPENMETRICS_MEDIA_TYPE:
            text = openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call]  # the library has no types here
            return text, f"{OPENMETRICS_MEDIA_TYPE}; version=1.0.0; charset=utf-8"
        return generate_latest(registry), f"{PLAIN_MEDIA_TYPE}; version=0.0.4; charset=utf-8"

    return render_metrics


def _process_metric_families(processes: Sequence[ProcessCollector], cpu_seconds: float) -> Iterable[Family]:
    """The resources of the machine that all processes use together. The limit of open files and the start time are
    those of the first process.

    Processor time is the sum of the processes' own counts, because the sum must not fall when a process ends.
    """
    together: dict[str, Family] = {}
    for process in processes:
        for family in process.collect():
            first = together.setdefault(family.name, family)
            if first is not family and family.name not in ("process_max_fds", "process_start_time_seconds"):
                value = first.samples[0].value + family.samples[0].value
                first.samples[0] = first.samples[0]._replace(value=value)
    used = together.get("process_cpu_seconds")
    if used is not None:
        used.samples[0] = used.samples[0]._replace(value=cpu_seconds)
    return together.values()


def _metric_family(metric: Metric) -> Family:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily  # noqa: PLC0415  # see `make_prometheus_renderer`

    definition = metric.definition
    if isinstance(metric, Histogram):
        histogram = HistogramMetricFamily(definition.name, definition.meaning, labels=definition.labels)
        bounds = [*map(str, metric.bounds), "+Inf"]
        for labels, row in metric.rows().items():
            buckets = list(zip(bounds, accumulate(row.bucket_counts), strict=True))
            histogram.add_metric(labels, buckets, row.sum_of_values)
        return histogram
    kind = GaugeMetricFamily if metric.kind == "gauge" else CounterMetricFamily
    family = kind(definition.name, definition.meaning, labels=definition.labels)
    for labels, value in metric.rows().items():
        family.add_metric(labels, value)
    return family

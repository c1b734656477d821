"""The broker's reports about itself: health, readiness, version, metrics, and the description of the API."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import orjson
from msgspec import Struct
from msgspec.structs import replace

from nakadi import openapi
from nakadi.common.counting import Counter, Distribution, Histogram, Labels
from nakadi.common.metrics import Metric, Metrics
from nakadi.http import docs_page
from nakadi.http.application import Lane, Route
from nakadi.http.message import JSON_MEDIA_TYPE, Request, Response, json_response
from nakadi.http.negotiation import metrics_media_type_for
from nakadi.http.parameters import FlagParameter, Header
from nakadi.model.outcomes import TryLater
from nakadi.ports.clock import Clock

if TYPE_CHECKING:
    from prometheus_client import ProcessCollector
    from prometheus_client.core import Metric as Family


log = logging.getLogger(__name__)

ACCEPT, PRETTY = Header("accept"), FlagParameter("pretty")

NEVER_CACHE_HEADERS = {"cache-control": "must-revalidate,no-cache,no-store"}


def routes(read_metrics: Callable[[], Metrics], clock: Clock, readiness: ReadinessCheck, version: str) -> list[Route]:
    handlers = _MonitoringHandlers(read_metrics, clock, readiness, version)
    health = Route(
        method="GET", template="/health", handler=handlers.answer_health, operation="get_health", lane=Lane.IMMEDIATE
    )
    ready = Route(method="GET", template="/ready", handler=handlers.answer_readiness, operation="get_readiness")
    figures = Route(
        method="GET",
        template="/metrics",
        handler=handlers.answer_metrics,
        operation="get_metrics",
        parameters=(ACCEPT, PRETTY),
        ignores_accept_header=True,
    )
    running = Route(method="GET", template="/version", handler=handlers.answer_version, operation="get_version")
    return [health, *(replace(each, lane=Lane.MONITORING) for each in (ready, figures, running))]


class _MonitoringHandlers(Struct, dict=True, frozen=True):
    read_metrics: Callable[[], Metrics]
    clock: Clock
    readiness: ReadinessCheck
    version: str

    def answer_health(self, _: Request) -> Response:
        """That the process is alive. Whatever it depends on, it is no better for being started again."""
        return Response(200, {"content-type": "text/plain"}, b"OK")

    def answer_readiness(self, _: Request) -> Response:
        self.readiness.check()
        return Response(200, {"content-type": "text/plain"}, b"OK")

    def answer_metrics(self, request: Request) -> Response:
        media = metrics_media_type_for(ACCEPT.read(request) or "")
        if media is not None and self._prometheus_renderer is not None:
            text, media_type = self._prometheus_renderer(media)
            return Response(200, {"content-type": media_type, **NEVER_CACHE_HEADERS}, text)
        layout = orjson.OPT_INDENT_2 if PRETTY.read(request) else 0
        body = orjson.dumps(metrics_view(self.read_metrics(), self.clock.monotonic()), option=layout)
        return Response(200, {"content-type": JSON_MEDIA_TYPE, **NEVER_CACHE_HEADERS}, body)

    @cached_property
    def _prometheus_renderer(self) -> RenderMetrics | None:
        # Loaded when Prometheus asks for the first time.
        return make_prometheus_renderer(self.read_metrics)

    def answer_version(self, _: Request) -> Response:
        """What is running, in the place where the revision used to stand."""
        source = {"author": "", "revision": self.version, "status": "", "url": ""}
        return json_response({"scm_source": source})


# The description of the API, open to all -------------------------------------------------------------------


HTML_MEDIA_TYPE = "text/html"

# Whatever a client writes into its headers, only what can be an address comes back in the page.
HOST_PATTERN = re.compile(r"[a-zA-Z0-9._-]+(:\d{1,5})?|\[[0-9a-fA-F:.]+\](:\d{1,5})?")
DEFAULT_HOST = "localhost:8080"

HOST, FORWARDED_PROTO = Header("host"), Header("x-forwarded-proto")


def documentation_routes() -> list[Route]:
    return [
        Route(method="GET", template="/openapi.json", handler=_answer_openapi, operation="get_openapi"),
        Route(
            method="GET",
            template="/docs",
            handler=_answer_docs_page,
            operation="get_docs",
            parameters=(HOST, FORWARDED_PROTO),
        ),
    ]


def _answer_openapi(_: Request) -> Response:
    return Response(200, {"content-type": JSON_MEDIA_TYPE}, openapi.document_json())


def _answer_docs_page(request: Request) -> Response:
    headers = {
        "content-type": f"{HTML_MEDIA_TYPE}; charset=utf-8",
        "content-security-policy": docs_page.content_security_policy(),
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }
    return Response(200, headers, docs_page.page_html(_broker_address(request)).encode())


def _broker_address(request: Request) -> str:
    """The address at which the browser reached the broker, as far as it is known."""
    host = HOST.read(request) or ""
    scheme = (FORWARDED_PROTO.read(request) or "").partition(",")[0].strip().lower()
    return f"{'https' if scheme == 'https' else 'http'}://{host if HOST_PATTERN.fullmatch(host) else DEFAULT_HOST}"


# Metrics as clients read them: JSON as monitoring of Nakadi expects, or the text of Prometheus ------------------------


QUANTILE_BY_NAME = {"p50": 0.5, "p75": 0.75, "p95": 0.95, "p98": 0.98, "p99": 0.99, "p999": 0.999}

RenderMetrics = Callable[[str], tuple[bytes, str]]
"""The metrics in one of the text formats, by its media type; and that with its version."""

OPENMETRICS_MEDIA_TYPE = "application/openmetrics-text"
PLAIN_MEDIA_TYPE = "text/plain"


# JSON ----------------------------------------------------------------------------------------------------------------


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
                            **_rate_view(row, uptime),
                        }
                    else:
                        histograms[_json_name(metric, labels)] = _distribution_view(row)
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


def _rate_view(row: Distribution, uptime: float) -> Mapping[str, Any]:
    return {"mean_rate": row.value_count / max(uptime, 1.0), "duration_units": "seconds", "rate_units": "calls/second"}


# Prometheus ----------------------------------------------------------------------------------------------------------


def make_prometheus_renderer(read_metrics: Callable[[], Metrics]) -> RenderMetrics | None:
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
            metrics = read_metrics()
            yield from map(_metric_family, metrics.all)
            processes = [ProcessCollector(pid=of, registry=None) for of in metrics.processes]
            yield from _process_metric_families(processes, metrics.cpu_seconds())

    registry = CollectorRegistry()
    registry.register(Collected())

    def render_metrics(media: str) -> tuple[bytes, str]:
        # The library's own choice repeats in its answer what the client asks for, and fails at versions like `a.b`.
        if media == OPENMETRICS_MEDIA_TYPE:
            text = openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call]  # the library has no types here
            return text, f"{OPENMETRICS_MEDIA_TYPE}; version=1.0.0; charset=utf-8"
        return generate_latest(registry), f"{PLAIN_MEDIA_TYPE}; version=0.0.4; charset=utf-8"

    return render_metrics


def _process_metric_families(processes: Sequence[ProcessCollector], cpu_seconds: float) -> Iterable[Family]:
    """What processes take of the machine, together. The limit of open files, and the start, are those of the first.

    Processor time is what they counted themselves, for it must not fall when one of them ends.
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


# Readiness: whether the registry answers, checked by one thread at a time, however many ask ---------------------------


READINESS_MAX_AGE_SECONDS = 1.0
READINESS_TIMEOUT_SECONDS = 2.0


class ReadinessCheck:
    """`probe` asks for something and raises if there is no answer. It may also take for ever.

    What it found is good for a moment. While it runs no other is begun, so that a registry that does not answer holds
    one thread and not one for each time that a load balancer asks.
    """

    def __init__(
        self,
        probe: Callable[[], object],
        clock: Clock,
        *,
        max_age_seconds: float = READINESS_MAX_AGE_SECONDS,
        timeout_seconds: float = READINESS_TIMEOUT_SECONDS,
    ) -> None:
        self._probe = probe
        self._clock = clock
        self._max_age_seconds = max_age_seconds
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._probe_run: _ReadinessProbeRun | None = None

    def check(self) -> None:
        """Return if the registry answers; raise `TryLater` if it does not, or not in time."""
        with self._lock:
            now = self._clock.monotonic()
            probe_run = self._probe_run
            if probe_run is None or now >= probe_run.good_until:
                probe_run = self._probe_run = _ReadinessProbeRun(now)
                threading.Thread(
                    target=self._run_probe, args=(probe_run,), name="nakadi-readiness", daemon=True
                ).start()
        if not probe_run.answered.wait(max(0.0, probe_run.began + self._timeout_seconds - now)):
            raise TryLater("The registry does not answer")
        if probe_run.failed:
            raise TryLater("The registry cannot be reached")

    def _run_probe(self, probe_run: _ReadinessProbeRun) -> None:
        try:
            self._probe()
        except Exception:
            log.warning("The registry cannot be reached", exc_info=True)
            probe_run.failed = True
        probe_run.good_until = self._clock.monotonic() + self._max_age_seconds
        probe_run.answered.set()


class _ReadinessProbeRun:
    """A question that may still be open; until it is answered it stays the only one."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.good_until = float("inf")
        self.failed = False
        self.answered = threading.Event()

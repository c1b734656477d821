"""The operations for monitoring: health, readiness, version, and metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any

import orjson
from msgspec import Struct
from msgspec.structs import replace

from nakadi.common.metrics import Metrics
from nakadi.http.message import JSON_MEDIA_TYPE, Request, Response, json_response
from nakadi.http.metrics_json import metrics_view, request_metrics_view, stream_metrics_view
from nakadi.http.metrics_prometheus import RenderMetrics, make_prometheus_renderer
from nakadi.http.negotiation import metrics_media_type_for
from nakadi.http.parameters import FlagParameter, Header
from nakadi.http.readiness import ReadinessCheck
from nakadi.http.router import Lane, Route
from nakadi.ports.clock import Clock

ACCEPT, PRETTY = Header("accept"), FlagParameter("pretty")

MetricsView = Callable[[Metrics, float], Mapping[str, Any]]

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
    client_figures = [
        Route(
            method="GET",
            template=f"/{name}",
            handler=partial(handlers.answer_json_metrics, view),
            operation=f"get_{name.replace('-', '_')}",
            parameters=(PRETTY,),
            ignores_accept_header=True,
        )
        for name, view in (("request-metrics", request_metrics_view), ("stream-metrics", stream_metrics_view))
    ]
    running = Route(method="GET", template="/version", handler=handlers.answer_version, operation="get_version")
    return [health, *(replace(each, lane=Lane.MONITORING) for each in (ready, figures, *client_figures, running))]


class _MonitoringHandlers(Struct, dict=True, frozen=True):
    read_metrics: Callable[[], Metrics]
    clock: Clock
    readiness: ReadinessCheck
    version: str

    def answer_health(self, _: Request) -> Response:
        """Answer that the process is alive. The services on which it depends are not checked, because a restart would
        not repair them.
        """
        return Response(200, {"content-type": "text/plain"}, b"OK")

    def answer_readiness(self, _: Request) -> Response:
        self.readiness.check()
        return Response(200, {"content-type": "text/plain"}, b"OK")

    def answer_metrics(self, request: Request) -> Response:
        media = metrics_media_type_for(ACCEPT.read(request) or "")
        if media is not None and self._prometheus_renderer is not None:
            text, media_type = self._prometheus_renderer(media)
            return Response(200, {"content-type": media_type, **NEVER_CACHE_HEADERS}, text)
        return self.answer_json_metrics(metrics_view, request)

    def answer_json_metrics(self, view: MetricsView, request: Request) -> Response:
        layout = orjson.OPT_INDENT_2 if PRETTY.read(request) else 0
        body = orjson.dumps(view(self.read_metrics(), self.clock.monotonic()), option=layout)
        return Response(200, {"content-type": JSON_MEDIA_TYPE, **NEVER_CACHE_HEADERS}, body)

    @cached_property
    def _prometheus_renderer(self) -> RenderMetrics | None:
        # The library is loaded when Prometheus first asks for metrics.
        return make_prometheus_renderer(self.read_metrics)

    def answer_version(self, _: Request) -> Response:
        """Answer the running version, in the member in which the original Nakadi has its revision."""
        source = {"author": "", "revision": self.version, "status": "", "url": ""}
        return json_response({"scm_source": source})

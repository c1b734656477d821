"""What monitoring asks: health, readiness, version, and metrics."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

import orjson
from msgspec import Struct
from msgspec.structs import replace

from nakadi.common.metrics import Metrics
from nakadi.http.message import JSON_MEDIA_TYPE, Request, Response, json_response
from nakadi.http.metrics_json import metrics_view
from nakadi.http.metrics_prometheus import RenderMetrics, make_prometheus_renderer
from nakadi.http.negotiation import metrics_media_type_for
from nakadi.http.parameters import FlagParameter, Header
from nakadi.http.readiness import ReadinessCheck
from nakadi.http.router import Lane, Route
from nakadi.ports.clock import Clock

if TYPE_CHECKING:
    pass


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

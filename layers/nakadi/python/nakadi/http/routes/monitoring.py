"""Health, readiness, metrics, version."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import orjson

from nakadi.http.message import JSON, Request, Response, json_response
from nakadi.http.metrics import Text, as_json, prometheus_text
from nakadi.http.negotiation import text_of_metrics
from nakadi.http.routing import Lane, Route
from nakadi.metrics import Metrics
from nakadi.ports import Clock
from nakadi.readiness import Readiness

NOT_KEPT = {"cache-control": "must-revalidate,no-cache,no-store"}


def routes(metrics: Metrics, clock: Clock, readiness: Readiness, version: str) -> list[Route]:
    doors = _Monitoring(metrics, clock, readiness, version)
    health = Route(
        method="GET",
        template="/health",
        handler=doors.health,
        operation="get_health",
        lane=Lane.IMMEDIATE,
    )
    ready = Route(method="GET", template="/ready", handler=doors.ready, operation="get_readiness")
    figures = Route(
        method="GET", template="/metrics", handler=doors.metrics_now, operation="get_metrics", any_accept=True
    )
    running = Route(method="GET", template="/version", handler=doors.version_now, operation="get_version")
    return [health, *(replace(each, lane=Lane.MONITORING) for each in (ready, figures, running))]


@dataclass(frozen=True)
class _Monitoring:
    metrics: Metrics
    clock: Clock
    readiness: Readiness
    version: str

    def health(self, _: Request) -> Response:
        """That the process is alive. Whatever it depends on, it is no better for being started again."""
        return Response(200, {"content-type": "text/plain"}, b"OK")

    def ready(self, _: Request) -> Response:
        self.readiness.check()
        return Response(200, {"content-type": "text/plain"}, b"OK")

    def metrics_now(self, request: Request) -> Response:
        media = text_of_metrics(request.headers.get("accept", ""))
        if media is not None and self._text is not None:
            text, media_type = self._text(media)
            return Response(200, {"content-type": media_type, **NOT_KEPT}, text)
        layout = orjson.OPT_INDENT_2 if request.flag("pretty") else 0
        body = orjson.dumps(as_json(self.metrics, self.clock.monotonic()), option=layout)
        return Response(200, {"content-type": JSON, **NOT_KEPT}, body)

    @cached_property
    def _text(self) -> Text | None:
        # Loaded when Prometheus asks for the first time.
        return prometheus_text(self.metrics)

    def version_now(self, _: Request) -> Response:
        """What is running, in the place where the revision used to stand."""
        source = {"author": "", "revision": self.version, "status": "", "url": ""}
        return json_response({"scm_source": source})

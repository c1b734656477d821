"""Health, metrics, version."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from nakadi.http.message import JSON, Request, Response, json_response
from nakadi.http.metrics import Metrics
from nakadi.http.routing import Route
from nakadi.ports import Clock

NOT_KEPT = {"cache-control": "must-revalidate,no-cache,no-store"}


def routes(metrics: Metrics, clock: Clock, version: str) -> list[Route]:
    doors = _Monitoring(metrics, clock, version)
    return [
        Route(method="GET", template="/health", handler=doors.health, operation="get_health", produces=None),
        Route(method="GET", template="/metrics", handler=doors.metrics_now, operation="get_metrics"),
        Route(method="GET", template="/version", handler=doors.version_now, operation="get_version"),
    ]


@dataclass(frozen=True, slots=True)
class _Monitoring:
    metrics: Metrics
    clock: Clock
    version: str

    def health(self, _: Request) -> Response:
        return Response(200, {"content-type": "text/plain"}, b"OK")

    def metrics_now(self, request: Request) -> Response:
        layout = orjson.OPT_INDENT_2 if request.flag("pretty") else 0
        body = orjson.dumps(self.metrics.view(self.clock.monotonic()), option=layout)
        return Response(200, {"content-type": JSON, **NOT_KEPT}, body)

    def version_now(self, _: Request) -> Response:
        """What is running, in the place where the revision used to stand."""
        source = {"author": "", "revision": self.version, "status": "", "url": ""}
        return json_response({"scm_source": source})

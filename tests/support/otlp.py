"""Receives OTLP over HTTP, as a collector does."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

REQUESTS: dict[str, Any] = {
    "/v1/traces": ExportTraceServiceRequest,
    "/v1/metrics": ExportMetricsServiceRequest,
    "/v1/logs": ExportLogsServiceRequest,
}


class OtlpReceiver:
    """Keeps the requests that it gets, with their paths. `environment` has the variables that point the SDK to it."""

    def __init__(self) -> None:
        self.received: list[tuple[str, Any]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.received.append((self.path, REQUESTS[self.path].FromString(body)))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._serving = threading.Thread(target=self._server.serve_forever)
        self._serving.start()
        self.environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self._server.server_port}",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        }

    @property
    def spans(self) -> list[Any]:
        found = [each.resource_spans for path, each in tuple(self.received) if path == "/v1/traces"]
        return [span for resources in found for one in resources for scope in one.scope_spans for span in scope.spans]

    @property
    def metrics(self) -> list[Any]:
        found = [each.resource_metrics for path, each in tuple(self.received) if path == "/v1/metrics"]
        scopes = [scope for resources in found for one in resources for scope in one.scope_metrics]
        return [each for scope in scopes for each in scope.metrics]

    @property
    def log_records(self) -> list[Any]:
        found = [each.resource_logs for path, each in tuple(self.received) if path == "/v1/logs"]
        scopes = [scope for resources in found for one in resources for scope in one.scope_logs]
        return [each for scope in scopes for each in scope.log_records]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._serving.join()
        self._server.server_close()

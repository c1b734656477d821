"""Figures (KPIs) of answered requests."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from nakadi.http.message import (
    Answer,
    Request,
    StreamingResponse,
    is_request_about_kpis,
)

if TYPE_CHECKING:
    from nakadi.publishing.system_events import KpiCollector


# Requests for these paths are not counted: health checks would make an idle broker write all the time.
UNCOUNTED_PATHS = ("/health", "/ready")


class RequestKpiRecorder:
    """Records a KPI event for every answer: a stream when it has ended, any other answer at once. The returned answer
    is sent instead of the original.
    """

    def __init__(self, figures: KpiCollector) -> None:
        self._figures = figures

    def __call__(self, request: Request, answer: Answer, began: float) -> Answer:
        # A reader of KPI events makes requests, and would never finish if each of these caused another KPI event.
        is_about_them = is_request_about_kpis.get() or request.path_parameters.get("name") in self._figures.event_types
        if is_about_them or request.path.startswith(UNCOUNTED_PATHS):
            return answer
        if not isinstance(answer, StreamingResponse):
            if self._figures.is_collecting(self._figures.request_event_type):
                self._record(request, answer.status, began, len(answer.body))
            return answer

        return replace(answer, on_end=partial(self._record, request, answer.status, began))

    def _record(self, request: Request, status: int, began: float, size: int) -> None:
        path, _, query = request.target.partition("?")
        headers = request.headers
        figure = {
            "method": request.method,
            "path": path,
            "query": f"?{query}" if query else "",
            "user_agent": headers.get("user-agent", "-"),
            "status_code": status,
            "response_time_ms": round((time.perf_counter() - began) * 1000),
            "accept_encoding": headers.get("accept-encoding", "-"),
            "content_encoding": headers.get("content-encoding", "-"),
            "request_length": len(request.body),
            "response_length": size,
        }
        self._figures.record_request(figure, request.subject, request.flow_id)

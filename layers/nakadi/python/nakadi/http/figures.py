"""Figures of requests (KPIs): one for each, taken when its answer is known, or has been streamed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from nakadi.event_types.system_event_types import ACCESS_LOG, KPI_EVENT_TYPES
from nakadi.http.message import Answer, Outlet, Request, StreamingResponse, is_about_kpis

if TYPE_CHECKING:
    import asyncio

    from nakadi.publishing.system_events import KpiCollector

# Health checks would keep an idle broker writing.
UNCOUNTED = ("/health", "/ready")


class RequestFigures:
    """Takes a figure of every answer before it is sent. What it returns is sent in the place of the answer."""

    def __init__(self, figures: KpiCollector) -> None:
        self._figures = figures

    def __call__(self, request: Request, answer: Answer, began: float) -> Answer:
        # A reader of figures makes requests, and would never come to their end if each of these were a figure again.
        is_about_them = is_about_kpis.get() or request.path_parameters.get("name") in KPI_EVENT_TYPES
        if is_about_them or request.path.startswith(UNCOUNTED):
            return answer
        if not isinstance(answer, StreamingResponse):
            if self._figures.is_collecting(ACCESS_LOG):
                self._record(request, answer.status, began, len(answer.body))
            return answer

        async def serve(outlet: Outlet) -> None:
            counting = _CountingOutlet(outlet)
            try:
                await answer.serve(counting)
            finally:
                self._record(request, answer.status, began, counting.size)

        return replace(answer, serve=serve)

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


class _CountingOutlet:
    """An outlet that counts the bytes written to it."""

    def __init__(self, outlet: Outlet) -> None:
        self.size = 0
        self._outlet = outlet

    async def write(self, chunk: bytes) -> None:
        await self._outlet.write(chunk)
        self.size += len(chunk)

    def gone(self) -> asyncio.Future[None]:
        return self._outlet.gone()

    def draining(self) -> asyncio.Future[None]:
        return self._outlet.draining()

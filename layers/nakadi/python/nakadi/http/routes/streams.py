"""Low-level streams: the events of an event type, as they come."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from nakadi.http.application import Lane, Route
from nakadi.http.message import ClientGone, Outlet, Request, Streaming
from nakadi.http.negotiation import preferred
from nakadi.http.problem import logged_problem
from nakadi.publishing.system_events import StreamKpis
from nakadi.streaming.driver import EventStreamFormat, JsonStreamFormat, StreamFormat
from nakadi.streaming.parameters import StreamParameters
from nakadi.streaming.session import SendEvents, SendStreamKeepAlive
from nakadi.streaming.streams import AcceptedStream, EventStreams

WARNING = (
    "299 - nakadi - the Low-level API is deprecated and will be removed from a future release. "
    "Please consider migrating to the Subscriptions API."
)

EVENT_STREAM = "text/event-stream"
JSON_STREAM = "application/x-json-stream"


NewFigures = Callable[[Request], StreamKpis]


def routes(streams: EventStreams, figures_of: NewFigures) -> list[Route]:
    return [
        # Whatever a client says it accepts, it gets a stream: some say text/html, and mean it no more than we do.
        Route(
            method="GET",
            template="/event-types/{name}/events",
            handler=_EventTypeStreamHandlers(streams, figures_of).stream_events,
            operation="stream_events",
            lane=Lane.STREAMS,
        ),
    ]


class _EventTypeStreamHandlers(Struct, frozen=True):
    streams: EventStreams
    figures_of: NewFigures

    def stream_events(self, request: Request) -> Streaming:
        asked = StreamParameters(**{each: request.integer(each) for each in StreamParameters.__struct_fields__})
        server_sent = wants_server_sent_events(request)
        opening = self.streams.open(
            request.path_parameters["name"], asked, _cursors(request, server_sent), request.subject
        )
        form = EventStreamFormat if server_sent else JsonStreamFormat

        async def serve(outlet: Outlet) -> None:
            figures = self.figures_of(request)
            try:
                await self._serve(
                    opening, _CountedLines(form(opening.starts), opening.event_type.name, figures), outlet
                )
            finally:
                figures.report()

        return Streaming(serve, _headers(form.content_type))

    async def _serve(self, opening: AcceptedStream, lines: StreamFormat, outlet: Outlet) -> None:
        try:
            await self.streams.serve(
                opening, lines, outlet, lambda error: logged_problem(error, "A stream of events").body
            )
        except ClientGone:
            return


class _CountedLines:
    """Lines that are counted when they are made."""

    def __init__(self, lines: StreamFormat, event_type: str, figures: StreamKpis) -> None:
        self.content_type = lines.content_type
        self.opening = lines.opening
        self.problem = lines.problem
        self._lines = lines
        self._event_type = event_type
        self._figures = figures

    def batch(self, batch: SendEvents) -> bytes:
        line = self._lines.batch(batch)
        newest = batch.runs[-1].stored_at(-1)
        self._figures.record(self._event_type, sum([run.count for run in batch.runs]), len(line), newest)
        return line

    def keep_alive(self, keep_alive: SendStreamKeepAlive) -> bytes:
        self._figures.report_if_due()
        return self._lines.keep_alive(keep_alive)


def wants_server_sent_events(request: Request) -> bool:
    """Browsers name this type and no other when they open an event source; generated clients name all there are."""
    return preferred(request.headers.get("accept", ""), EVENT_STREAM, JSON_STREAM) == EVENT_STREAM


def _cursors(request: Request, server_sent: bool) -> str | None:
    """Where to begin. A browser that reconnects sends where it was, beside the headers of its first request."""
    resumed = request.headers.get("last-event-id") if server_sent else None
    return resumed or request.headers.get("x-nakadi-cursors")


def _headers(content_type: str) -> dict[str, str]:
    # Proxies that gather an answer before passing it on would hold a stream for ever.
    return {"content-type": content_type, "cache-control": "no-cache", "x-accel-buffering": "no", "warning": WARNING}

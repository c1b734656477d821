"""Streams of an event type's events, as they arrive."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import Struct

from nakadi.http.message import Outlet, Request, StreamingResponse
from nakadi.http.negotiation import preferred_media_type
from nakadi.http.parameters import Header, IntegerParameter
from nakadi.http.problem import make_and_log_problem
from nakadi.http.router import Lane, Route
from nakadi.publishing.system_events import StreamKpis
from nakadi.streaming.formats import EventStreamFormat, JsonStreamFormat
from nakadi.streaming.session import StreamParameters
from nakadi.streaming.streams import EventStreams

DEPRECATION_WARNING = (
    "299 - nakadi - the Low-level API is deprecated and will be removed from a future release. "
    "Please consider migrating to the Subscriptions API."
)

EVENT_STREAM_MEDIA_TYPE = "text/event-stream"
JSON_STREAM_MEDIA_TYPE = "application/x-json-stream"


STREAM_PARAMETERS = tuple(IntegerParameter(name, None) for name in StreamParameters.__struct_fields__)

ACCEPT, CURSORS, LAST_EVENT_ID = Header("accept"), Header("x-nakadi-cursors"), Header("last-event-id")

NewStreamKpis = Callable[[Request], StreamKpis]


def routes(streams: EventStreams, new_stream_kpis: NewStreamKpis) -> list[Route]:
    return [
        # Whatever a client says it accepts, it gets a stream: some say text/html, and mean it no more than we do.
        Route(
            method="GET",
            template="/event-types/{name}/events",
            handler=_EventTypeStreamHandlers(streams, new_stream_kpis).stream_events,
            operation="stream_events",
            parameters=(*STREAM_PARAMETERS, ACCEPT, CURSORS, LAST_EVENT_ID),
            lane=Lane.STREAMS,
        ),
    ]


class _EventTypeStreamHandlers(Struct, frozen=True):
    streams: EventStreams
    new_stream_kpis: NewStreamKpis

    def stream_events(self, request: Request) -> StreamingResponse:
        asked = StreamParameters(**{each.name: each.read(request) for each in STREAM_PARAMETERS})
        server_sent = wants_server_sent_events(ACCEPT.read(request))
        opening = self.streams.open(
            request.path_parameters["name"], asked, _requested_start_cursors(request, server_sent), request.subject
        )
        new_format = EventStreamFormat if server_sent else JsonStreamFormat

        def serve(outlet: Outlet) -> Awaitable[None]:
            lines, figures = new_format(opening.starts), self.new_stream_kpis(request)
            return self.streams.serve(opening, lines, outlet, figures, _problem_body_of_stream)

        return StreamingResponse(serve, _stream_headers(new_format.content_type))


def _problem_body_of_stream(error: Exception) -> bytes:
    return make_and_log_problem(error, "A stream of events").body


def wants_server_sent_events(accept: str | None) -> bool:
    """Browsers name this type and no other when they open an event source; generated clients name all there are."""
    return (
        preferred_media_type(accept or "", EVENT_STREAM_MEDIA_TYPE, JSON_STREAM_MEDIA_TYPE) == EVENT_STREAM_MEDIA_TYPE
    )


def _requested_start_cursors(request: Request, server_sent: bool) -> str | None:
    """Where to begin. A browser that reconnects sends where it was, beside the headers of its first request."""
    resumed = LAST_EVENT_ID.read(request) if server_sent else None
    return resumed or CURSORS.read(request)


def _stream_headers(content_type: str) -> dict[str, str]:
    # Proxies that gather an answer before passing it on would hold a stream for ever.
    return {
        "content-type": content_type,
        "cache-control": "no-cache",
        "x-accel-buffering": "no",
        "warning": DEPRECATION_WARNING,
    }

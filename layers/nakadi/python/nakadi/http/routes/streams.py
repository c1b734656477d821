"""Streams of an event type's events, as they arrive."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import Struct

from nakadi.http.message import Outlet, Request, StreamingResponse
from nakadi.http.negotiation import preferred_media_type
from nakadi.http.parameters import Header, IntegerParameter
from nakadi.http.problem import make_and_log_problem
from nakadi.http.router import Lane, Route
from nakadi.streaming.cloud_events import CloudEventStreamFormat
from nakadi.streaming.driver import StreamFigures
from nakadi.streaming.formats import EventStreamFormat, JsonStreamFormat, StreamFormat
from nakadi.streaming.session import StreamParameters
from nakadi.streaming.streams import EventStreams

DEPRECATION_WARNING = (
    "299 - nakadi - the Low-level API is deprecated and will be removed from a future release. "
    "Please consider migrating to the Subscriptions API."
)

STREAM_MEDIA_TYPES = tuple(each.content_type for each in (JsonStreamFormat, EventStreamFormat, CloudEventStreamFormat))

UNTIL_HEADER = "x-nakadi-until"

STREAM_PARAMETERS = tuple(IntegerParameter(name, None) for name in StreamParameters.__struct_fields__)

ACCEPT, CURSORS, LAST_EVENT_ID = Header("accept"), Header("x-nakadi-cursors"), Header("last-event-id")

NewStreamKpis = Callable[[Request], StreamFigures]


def routes(streams: EventStreams, new_stream_kpis: NewStreamKpis) -> list[Route]:
    return [
        # A client gets a stream even if it accepts only other media types, because some clients send `Accept:
        # text/html` and read JSON.
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
        name, media_type = request.path_parameters["name"], stream_media_type(ACCEPT.read(request))
        is_server_sent = media_type == EventStreamFormat.content_type
        opening = self.streams.open(name, asked, _requested_start_cursors(request, is_server_sent), request.subject)
        lines: StreamFormat
        match media_type:
            case EventStreamFormat.content_type:
                lines = EventStreamFormat(opening.starts)
            case CloudEventStreamFormat.content_type:
                lines = CloudEventStreamFormat(name)
            case _:
                lines = JsonStreamFormat()

        def serve(outlet: Outlet) -> Awaitable[None]:
            return self.streams.serve(opening, lines, outlet, self.new_stream_kpis(request), _problem_body_of_stream)

        return StreamingResponse(serve, _stream_headers(media_type, has_ends=bool(opening.ends)))


def _problem_body_of_stream(error: Exception) -> bytes:
    return make_and_log_problem(error, "A stream of events").body


def stream_media_type(accept: str | None) -> str:
    """The form of a stream that a client prefers; lines of JSON if it names none.

    Browsers name only one type when they open an event source; generated clients name all types.
    """
    return preferred_media_type(accept or "", *STREAM_MEDIA_TYPES) or JsonStreamFormat.content_type


def _requested_start_cursors(request: Request, server_sent: bool) -> str | None:
    """The cursors after which to begin.

    A browser that reconnects sends its last cursors in addition to the headers of its first request.
    """
    resumed = LAST_EVENT_ID.read(request) if server_sent else None
    return resumed or CURSORS.read(request)


def _stream_headers(content_type: str, *, has_ends: bool) -> dict[str, str]:
    # These headers are for proxies that collect an answer before they pass it on, and would hold back a stream forever.
    return {
        # Without this header, a client cannot tell silence at the end of a partition from silence before the end.
        **({UNTIL_HEADER: "true"} if has_ends else {}),
        "content-type": content_type,
        "cache-control": "no-cache",
        "x-accel-buffering": "no",
        "warning": DEPRECATION_WARNING,
    }

"""Streams of a subscription's events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from uuid import uuid4

from msgspec import Struct

from nakadi.event_types.system_event_type_definitions import KPI_EVENT_TYPES
from nakadi.http.bodies import ObjectReader, object_body
from nakadi.http.message import Outlet, Request, Response, StreamingResponse, empty_response, is_request_about_kpis
from nakadi.http.parameters import ChoiceParameter, IntegerParameter
from nakadi.http.router import Lane, Route
from nakadi.http.routes.streams import ACCEPT, stream_media_type
from nakadi.model.outcomes import Violations
from nakadi.model.subscription import EventTypePartition
from nakadi.openapi.checks import openapi_violations
from nakadi.streaming.driver import StreamFigures
from nakadi.subscriptions.stream.actions import DISCONNECT_CHOICES, SubscriptionStreamParameters
from nakadi.subscriptions.stream.avro_format import AVRO_MEDIA_TYPE
from nakadi.subscriptions.stream.driver import (
    CloudEventSubscriptionFormat,
    EventSubscriptionFormat,
    JsonSubscriptionFormat,
    SubscriptionFormat,
)
from nakadi.subscriptions.stream.streams import JoinedStream, SubscriptionStreams

STREAM_ID_HEADER = "X-Nakadi-StreamId"

SUBSCRIPTION_STREAM_PARAMETERS = (
    IntegerParameter("batch_limit", None),
    IntegerParameter("max_uncommitted_events", None),
    IntegerParameter("stream_limit", None, bits=64),
    IntegerParameter("batch_flush_timeout", None),
    IntegerParameter("batch_timespan", None, bits=64),
    IntegerParameter("stream_timeout", None, bits=64),
    IntegerParameter("stream_keep_alive_limit", None),
    IntegerParameter("commit_timeout", None, bits=64),
)
"""Numbers that clients send in a query or as members of a body."""

ON_DISCONNECT = ChoiceParameter("on_disconnect", DISCONNECT_CHOICES)
"""A choice that clients send in a query or as a member of a body."""

NEW_FORMATS: Mapping[str, Callable[[], SubscriptionFormat]] = {
    each.content_type: each for each in (JsonSubscriptionFormat, EventSubscriptionFormat, CloudEventSubscriptionFormat)
}

NewSubscriptionStreamKpis = Callable[[Request, str], StreamFigures]


def routes(streams: SubscriptionStreams, new_stream_kpis: NewSubscriptionStreamKpis) -> list[Route]:
    handlers = _SubscriptionStreamHandlers(streams, new_stream_kpis)
    template = "/subscriptions/{subscription_id}/events"
    return [
        # A client gets a stream even if it accepts only other media types, because some clients send `Accept:
        # text/html` and read JSON.
        Route(
            method="GET",
            template=template,
            handler=handlers.open_stream,
            operation="stream_subscription_events",
            parameters=(*SUBSCRIPTION_STREAM_PARAMETERS, ON_DISCONNECT, ACCEPT),
            lane=Lane.STREAMS,
        ),
        Route(
            method="POST",
            template=template,
            handler=handlers.open_stream_by_body,
            operation="stream_subscription_events_with_parameters",
            parameters=(ACCEPT,),
            lane=Lane.STREAMS,
        ),
    ]


class _SubscriptionStreamHandlers(Struct, frozen=True):
    streams: SubscriptionStreams
    new_stream_kpis: NewSubscriptionStreamKpis

    def open_stream(self, request: Request) -> StreamingResponse | Response:
        parameters = _stream_parameters(lambda each: each.read(request), ON_DISCONNECT.read(request))
        return self._open_stream_response(request, parameters)

    def open_stream_by_body(self, request: Request) -> StreamingResponse | Response:
        body = object_body(request)
        parameters = _stream_parameters(
            lambda each: body.integer(each.name, bits=each.bits), body.text(ON_DISCONNECT.name), _read_partitions(body)
        )
        return self._open_stream_response(request, parameters)

    def _open_stream_response(
        self, request: Request, parameters: SubscriptionStreamParameters
    ) -> StreamingResponse | Response:
        subscription_id = request.path_parameters["subscription_id"]
        accept = ACCEPT.read(request)
        media_type = AVRO_MEDIA_TYPE if _wants_avro(accept) else stream_media_type(accept)
        if request.method == "HEAD":
            self.streams.check_can_open(subscription_id, parameters, request.subject)
            return empty_response(headers=_subscription_headers(media_type, str(uuid4())))
        opening = self.streams.open(subscription_id, parameters, request.subject)
        try:
            lines = (
                self.streams.make_avro_format(opening) if media_type == AVRO_MEDIA_TYPE else NEW_FORMATS[media_type]()
            )
        except Exception:
            self._abandon(opening)
            raise

        if not KPI_EVENT_TYPES.isdisjoint(opening.subscription.event_types):
            is_request_about_kpis.set(True)

        def serve(outlet: Outlet) -> Awaitable[None]:
            return self.streams.serve(opening, lines, outlet, self.new_stream_kpis(request, subscription_id))

        return StreamingResponse(
            serve,
            _subscription_headers(media_type, opening.id),
            release_if_never_served=lambda: self._abandon(opening),
        )

    def _abandon(self, joined: JoinedStream) -> None:
        self.streams.abandon(joined)


def _stream_parameters(
    read: Callable[[IntegerParameter[None]], int | None],
    on_disconnect: str | None,
    partitions: tuple[EventTypePartition, ...] = (),
) -> SubscriptionStreamParameters:
    numbers = {each.name: read(each) for each in SUBSCRIPTION_STREAM_PARAMETERS}
    return SubscriptionStreamParameters(**numbers, on_disconnect=on_disconnect, partitions=partitions)


def _read_partitions(body: ObjectReader) -> tuple[EventTypePartition, ...]:
    listed = [(each.text("event_type"), each.text("partition")) for each in body.objects("partitions") or ()]
    named = [{"event_type": event_type, "partition": partition} for event_type, partition in listed]
    missing = openapi_violations("SubscriptionEventStreamParameters", {"partitions": named})
    if missing:
        raise Violations(missing)
    return tuple(EventTypePartition(event_type or "", partition or "") for event_type, partition in listed)


def _wants_avro(accept: str | None) -> bool:
    """Whether Avro is the only media type that a client names."""
    return (accept or "").partition(";")[0].strip().lower() == AVRO_MEDIA_TYPE and "," not in (accept or "")


def _subscription_headers(media_type: str, stream_id: str) -> dict[str, str]:
    # These headers are for proxies that collect an answer before they pass it on, and would hold back a stream forever.
    return {
        STREAM_ID_HEADER: stream_id,
        "content-type": media_type,
        "cache-control": "no-cache",
        "x-accel-buffering": "no",
    }

"""Streams of subscriptions: the events of a subscription, as they come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from uuid import uuid4

from msgspec import Struct

from nakadi.event_types.system_event_types import KPI_EVENT_TYPES
from nakadi.http.application import Lane, Route
from nakadi.http.bodies import Members, object_body
from nakadi.http.message import Outlet, Request, Response, Streaming, empty_response, is_about_figures
from nakadi.http.routes.streams import wants_server_sent_events
from nakadi.model.outcomes import Violations
from nakadi.model.subscription import EventTypePartition
from nakadi.openapi.checks import body_violations
from nakadi.publishing.system_events import StreamKpis
from nakadi.subscriptions.stream.actions import SendBatch, SessionLine
from nakadi.subscriptions.stream.batches import SubscriptionStreamParameters
from nakadi.subscriptions.stream.driver import EventSubscriptionFormat, JsonSubscriptionFormat, SubscriptionFormat
from nakadi.subscriptions.stream.streams import JoinedStream, SubscriptionStreams

STREAM_ID = "X-Nakadi-StreamId"


NewFigures = Callable[[Request, str], StreamKpis]


def routes(streams: SubscriptionStreams, figures_of: NewFigures) -> list[Route]:
    handlers = _SubscriptionStreamHandlers(streams, figures_of)
    template = "/subscriptions/{subscription_id}/events"
    return [
        # Whatever a client says it accepts, it gets a stream: some say text/html, and mean it no more than we do.
        Route(
            method="GET",
            template=template,
            handler=handlers.stream,
            operation="stream_subscription_events",
            lane=Lane.STREAMS,
        ),
        Route(
            method="POST",
            template=template,
            handler=handlers.stream_with_body,
            operation="stream_subscription_events_with_parameters",
            lane=Lane.STREAMS,
        ),
    ]


class _SubscriptionStreamHandlers(Struct, frozen=True):
    streams: SubscriptionStreams
    figures_of: NewFigures

    def stream(self, request: Request) -> Streaming | Response:
        return self._streaming(request, _asked(request.integer))

    def stream_with_body(self, request: Request) -> Streaming | Response:
        body = object_body(request)
        return self._streaming(request, _asked(body.integer, _partitions(body)))

    def _streaming(self, request: Request, asked: SubscriptionStreamParameters) -> Streaming | Response:
        subscription_id = request.path_parameters["subscription_id"]
        form: Callable[[], SubscriptionFormat] = (
            EventSubscriptionFormat if wants_server_sent_events(request) else JsonSubscriptionFormat
        )
        if request.method == "HEAD":
            self.streams.check(subscription_id, asked, request.subject)
            return empty_response(headers=_headers(form, str(uuid4())))
        opening = self.streams.open(subscription_id, asked, request.subject)

        if not KPI_EVENT_TYPES.isdisjoint(opening.subscription.event_types):
            is_about_figures.set(True)

        async def serve(outlet: Outlet) -> None:
            figures = self.figures_of(request, subscription_id)
            try:
                await self.streams.serve(opening, _CountedFormat(form(), figures), outlet)
            finally:
                figures.report()

        return Streaming(serve, _headers(form, opening.id), given_up=lambda: self._give_up(opening))

    def _give_up(self, opening: JoinedStream) -> None:
        self.streams.give_up(opening)


class _CountedFormat:
    """Lines that are counted when they are made."""

    def __init__(self, lines: SubscriptionFormat, figures: StreamKpis) -> None:
        self.content_type = lines.content_type
        self.opening = lines.opening
        self._lines = lines
        self._figures = figures

    def line(self, line: SessionLine) -> bytes:
        text = self._lines.line(line)
        if isinstance(line, SendBatch):
            newest = line.runs[-1].stored_at(-1)
            self._figures.record(line.place.event_type, sum([run.count for run in line.runs]), len(text), newest)
        else:
            self._figures.report_if_due()
        return text


class _ReadNumber(Protocol):
    """The numbers of a query, or those of a body."""

    def __call__(self, name: str, *, bits: int) -> int | None:
        """A number of so many bits, None if it is missing."""


def _asked(number: _ReadNumber, partitions: tuple[EventTypePartition, ...] = ()) -> SubscriptionStreamParameters:
    return SubscriptionStreamParameters(
        batch_limit=number("batch_limit", bits=32),
        max_uncommitted_events=number("max_uncommitted_events", bits=32),
        stream_limit=number("stream_limit", bits=64),
        batch_flush_timeout=number("batch_flush_timeout", bits=32),
        batch_timespan=number("batch_timespan", bits=64),
        stream_timeout=number("stream_timeout", bits=64),
        stream_keep_alive_limit=number("stream_keep_alive_limit", bits=32),
        commit_timeout=number("commit_timeout", bits=64),
        partitions=partitions,
    )


def _partitions(body: Members) -> tuple[EventTypePartition, ...]:
    listed = [(each.text("event_type"), each.text("partition")) for each in body.objects("partitions") or ()]
    named = [{"event_type": event_type, "partition": partition} for event_type, partition in listed]
    missing = body_violations("SubscriptionEventStreamParameters", {"partitions": named})
    if missing:
        raise Violations(missing)
    return tuple(EventTypePartition(event_type or "", partition or "") for event_type, partition in listed)


def _headers(form: Callable[[], SubscriptionFormat], stream_id: str) -> dict[str, str]:
    # Proxies that gather an answer before passing it on would hold a stream for ever.
    return {
        STREAM_ID: stream_id,
        "content-type": form().content_type,
        "cache-control": "no-cache",
        "x-accel-buffering": "no",
    }

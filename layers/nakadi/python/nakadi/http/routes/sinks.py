"""Sinks: where the broker itself delivers the events of a subscription."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, to_builtins

from nakadi.delivery.sinks import Sinks, StoredSink
from nakadi.http.bodies import ObjectReader, object_body
from nakadi.http.message import Request, Response, empty_response, json_response
from nakadi.http.router import Route
from nakadi.http.views import View, timestamp
from nakadi.model.sink import (
    DEFAULT_BATCH_LIMIT,
    DEFAULT_MAX_IN_FLIGHT,
    DEFAULT_TIMEOUT_SECONDS,
    DeliveryReport,
    EndedAttempt,
    Parallel,
    Sink,
    SinkDraft,
    SinkFormat,
    target_member,
)

HIDDEN_VALUE = "***"


def sink_draft(body: ObjectReader) -> SinkDraft:
    def number(name: str, default: int) -> int:
        found = body.integer(name, bits=32)
        return default if found is None else found

    sink_type = body.text("type")
    return SinkDraft(
        type=sink_type,
        target=body.text(target_member(sink_type)),
        secret=body.text("secret"),
        headers=body.text_mapping("headers") or {},
        format=body.enum_value("format", SinkFormat) or SinkFormat.NAKADI,
        batch_limit=number("batch_limit", DEFAULT_BATCH_LIMIT),
        timeout_seconds=number("timeout_seconds", DEFAULT_TIMEOUT_SECONDS),
        max_in_flight=number("max_in_flight", DEFAULT_MAX_IN_FLIGHT),
        parallel=body.enum_value("parallel", Parallel) or Parallel.PARTITION,
        filter=body.text("filter"),
    )


class SinkHandlers(Struct, frozen=True):
    sinks: Sinks

    def routes(self) -> list[Route]:
        one = "/subscriptions/{subscription_id}/sink"
        return [
            Route(method="GET", template=one, handler=self.get, operation="get_sink"),
            Route(method="PUT", template=one, handler=self.put, operation="put_sink"),
            Route(method="DELETE", template=one, handler=self.remove, operation="remove_sink"),
            Route(method="POST", template=f"{one}/pause", handler=self.pause, operation="pause_sink"),
            Route(method="POST", template=f"{one}/resume", handler=self.resume, operation="resume_sink"),
            Route(
                method="POST",
                template=f"{one}/secret/rotate",
                handler=self.rotate_secret,
                operation="rotate_sink_secret",
            ),
        ]

    def get(self, request: Request) -> Response:
        sink, report = self.sinks.get(_subscription_id(request), request.subject)
        return json_response(sink_view(sink, report))

    def put(self, request: Request) -> Response:
        stored = self.sinks.put(_subscription_id(request), sink_draft(object_body(request)), request.subject)
        return json_response(stored_sink_view(stored), 201 if stored.is_new else 200)

    def remove(self, request: Request) -> Response:
        self.sinks.remove(_subscription_id(request), request.subject)
        return empty_response(204)

    def pause(self, request: Request) -> Response:
        self.sinks.pause(_subscription_id(request), request.subject)
        return empty_response(204)

    def resume(self, request: Request) -> Response:
        self.sinks.resume(_subscription_id(request), request.subject)
        return empty_response(204)

    def rotate_secret(self, request: Request) -> Response:
        stored = self.sinks.rotate_secret(_subscription_id(request), request.subject)
        return json_response(stored_sink_view(stored))


def sink_view(sink: Sink, report: DeliveryReport | None = None) -> View:
    """A sink without its secret parts: its secret, and the values of its headers."""
    view: View = {
        "type": sink.type,
        **sink.target_by_member,
        "headers": dict.fromkeys(sink.header_names, HIDDEN_VALUE),
        "format": sink.format,
        "batch_limit": sink.batch_limit,
        "timeout_seconds": sink.timeout_seconds,
        "max_in_flight": sink.max_in_flight,
        "parallel": sink.parallel,
        "filter": sink.filter,
        "state": "active" if sink.pause is None else "paused",
        "created_at": timestamp(sink.created_at),
        "updated_at": timestamp(sink.configured_at),
    }
    if sink.pause is not None:
        view["pause"] = {"reason": sink.pause.reason, "at": timestamp(sink.pause.at)}
    if report is not None:
        view["deliveries"] = _report_view(report)
    return view


def stored_sink_view(stored: StoredSink) -> View:
    """A sink that was just written, with its secret if the broker generated one, which no later answer shows."""
    shown: Mapping[str, str] = {} if stored.new_secret is None else {"secret": stored.new_secret}
    return {**sink_view(stored.sink), **shown}


def _report_view(report: DeliveryReport) -> View:
    view: View = {
        "reported_at": timestamp(report.updated_at),
        "delivered_batches": report.delivered_batches,
        "delivered_events": report.delivered_events,
        "failed_attempts": report.failed_attempts,
        "events_per_second": report.events_per_second,
        "in_flight": report.in_flight,
        "next_attempt_at": None if report.next_attempt_at is None else timestamp(report.next_attempt_at),
        "last_success_at": None if report.last_success_at is None else timestamp(report.last_success_at),
        "recent_attempts": [_attempt_view(each) for each in report.recent_attempts],
        "problem": report.problem or None,
    }
    if report.last_failure is not None:
        view["last_failure"] = _attempt_view(report.last_failure)
    return view


def _attempt_view(attempt: EndedAttempt) -> View:
    return {**to_builtins(attempt), "at": timestamp(attempt.at)}


def _subscription_id(request: Request) -> str:
    return request.path_parameters["subscription_id"]

"""Trials of sinks. Only a process that delivers can send a trial, so they have their own area."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from nakadi.delivery.answers import Answer
from nakadi.delivery.sinks import Sinks
from nakadi.http.message import Request, Response, json_response
from nakadi.http.router import Route
from nakadi.model.sink import Sink

TrySink = Callable[[Sink], Answer]


class SinkTrialHandlers(Struct, frozen=True):
    """`try_sink` sends a delivery without events to a sink."""

    sinks: Sinks
    try_sink: TrySink

    def routes(self) -> list[Route]:
        template = "/subscriptions/{subscription_id}/sink/test"
        return [Route(method="POST", template=template, handler=self.test, operation="test_sink")]

    def test(self, request: Request) -> Response:
        subscription_id = request.path_parameters["subscription_id"]
        answer = self.try_sink(self.sinks.require_changeable(subscription_id, request.subject))
        return json_response({"status": answer.status, "text": answer.text})

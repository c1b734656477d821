"""Spans around what a broker does: requests that publish and commit, batches on streams, and deliveries to sinks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import chain

from msgspec.structs import replace

from nakadi.common.tracing import Span, Tracer
from nakadi.common.work import NeedsThread
from nakadi.delivery.answers import Answer, Verdict, verdict_of
from nakadi.delivery.senders import Attempt, Sender
from nakadi.http.message import Answer as HttpAnswer
from nakadi.http.message import AnswerTask, Request, Response
from nakadi.http.router import Route
from nakadi.http.trace_context import trace_context
from nakadi.streaming.chunks import EventRun
from nakadi.streaming.driver import StreamFigures

TRACED_OPERATIONS = {
    "publish_events": ("publish", "name", ""),
    "commit_subscription_cursors": ("commit", "", "subscription_id"),
}
"""For each operation of the API: the operation of its span, and the path parameters with destination and group."""


def with_spans(routes: Iterable[Route], tracer: Tracer | None) -> list[Route]:
    """The routes; those in `TRACED_OPERATIONS` begin a span for each request that belongs to a sampled trace."""
    if tracer is None:
        return list(routes)
    return [_with_span(each, tracer) if each.operation in TRACED_OPERATIONS else each for each in routes]


def _with_span(route: Route, tracer: Tracer) -> Route:
    operation, destination, group = TRACED_OPERATIONS[route.operation]

    def answer(request: Request) -> HttpAnswer | AnswerTask:
        parameters, headers = request.path_parameters, request.headers
        parent = trace_context(headers.get("traceparent"), headers.get("tracestate"))
        span = tracer.begin(operation, parameters.get(destination, ""), parent, group=parameters.get(group, ""))
        # Without a span, which is the usual case, the request runs no further code of this module.
        return route.handler(request) if span is None else _answer_in_span(route, request, span)

    return replace(route, handler=answer)


async def _answer_in_span(route: Route, request: Request, span: Span) -> Response:
    # What the handler does for this request, such as storing its events, continues the trace from this span.
    inside = replace(request, headers={**request.headers, **span.context})
    try:
        response: Response = await route.handler(inside)  # type: ignore[misc]  # traced operations are coroutines
    except NeedsThread:
        # A thread then handles the request from the beginning, in a new span; this span is never ended, so it is not
        # sent.
        raise
    except BaseException as error:
        span.end(type(error).__name__, size=len(request.body))
        raise
    span.end("" if response.status < 500 else str(response.status), size=len(request.body), status=response.status)
    return response


class TracedStreamFigures:
    """Passes figures on, and makes a span for each batch that has events of sampled traces. `group` is the
    subscription, or empty.
    """

    def __init__(self, figures: StreamFigures, tracer: Tracer, group: str) -> None:
        self._figures = figures
        self._tracer = tracer
        self._group = group

    @property
    def next_report_at(self) -> float:
        return self._figures.next_report_at

    def record_sent_batch(
        self, event_type: str, events: int, size: int, newest: datetime, runs: Sequence[EventRun]
    ) -> None:
        self._figures.record_sent_batch(event_type, events, size, newest, runs)
        span = self._tracer.begin_linked("deliver", event_type, _event_texts(runs), group=self._group)
        if span is not None:
            span.end(events=events, size=size)

    def report(self) -> None:
        self._figures.report()


class TracedSender:
    """A sender that makes a span for each attempt to deliver events of sampled traces."""

    def __init__(self, sender: Sender, tracer: Tracer) -> None:
        self._sender = sender
        self._tracer = tracer

    async def deliver(self, attempt: Attempt) -> Answer:
        batch = attempt.batch
        if batch is None:
            return await self._sender.deliver(attempt)
        group = attempt.sink.subscription_id
        span = self._tracer.begin_linked("sink", batch.partition.event_type, _event_texts(batch.runs), group=group)
        answer = await self._sender.deliver(attempt)
        if span is not None:
            verdict = verdict_of(answer)
            span.end("" if verdict is Verdict.DELIVERED else verdict.name.lower(), events=batch.count)
        return answer

    async def close(self) -> None:
        await self._sender.close()


def _event_texts(runs: Iterable[EventRun]) -> Iterator[bytes]:
    return chain.from_iterable(run.values for run in runs)

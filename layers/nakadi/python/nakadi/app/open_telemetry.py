"""Spans by the SDK of OpenTelemetry, with attributes by its conventions for messaging.

None of this is loaded while tracing is off.
"""

from __future__ import annotations

import os
import random
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    TraceFlags,
    TraceState,
    set_span_in_context,
)
from opentelemetry.trace import Span as SdkSpan
from opentelemetry.trace.status import Status, StatusCode

from nakadi.common.tracing import Span, TraceContext, is_sampled
from nakadi.model.outcomes import BadSetting

SYSTEM = "nakadi"
MAX_LINKS = 100
CLOSE_TIMEOUT_MILLISECONDS = 3000

_KINDS = {
    "publish": (SpanKind.SERVER, "send"),
    "append": (SpanKind.INTERNAL, "send"),
    "deliver": (SpanKind.PRODUCER, "receive"),
    "sink": (SpanKind.CLIENT, "process"),
    "commit": (SpanKind.SERVER, "settle"),
}
"""The kind of each operation's span, and the type of operation in the conventions. Jobs and their steps have no type of
operation.
"""

_FIGURES = {
    "events": "messaging.batch.message_count",
    "size": "messaging.message.body.size",
    "status": "http.response.status_code",
}

_find_sampled_parents = re.compile(
    rb'"traceparent":"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f][13579bdf])'
).finditer


def open_tracer(exporter: str, percent: int) -> OpenTelemetryTracer:
    """A tracer that sends spans in batches with OTLP over HTTP, as configured by the variables `OTEL_…`.

    Raises `BadSetting`.
    """
    require_otlp("NAKADI_TRACES", exporter)
    if not 0 <= percent <= 100:
        raise BadSetting(f"NAKADI_TRACES_PERCENT is {percent}, but must be from 0 to 100")
    return OpenTelemetryTracer(BatchSpanProcessor(OTLPSpanExporter()), percent / 100)


def require_otlp(setting: str, protocol: str) -> None:
    """Raises `BadSetting`."""
    if protocol != "otlp":
        raise BadSetting(f"{setting} is `otlp` or empty, and not {protocol!r}")


def resource_of_process() -> Resource:
    """The sender of spans and metrics: receivers distinguish processes by their instance ids.
    `OTEL_RESOURCE_ATTRIBUTES` may add attributes.
    """
    return Resource.create({"service.name": SYSTEM, "service.instance.id": f"{socket.gethostname()}:{os.getpid()}"})


class OpenTelemetryTracer:
    """Hands spans to a processor of the SDK.

    For a trace that a client began, the client's sampling flag decides whether it is recorded; for all others, `ratio`
    does. The decision comes before any call to the SDK, which takes longer than most requests.
    """

    def __init__(
        self, processor: SpanProcessor, ratio: float, draw_random_number: Callable[[], float] = random.random
    ) -> None:
        self._provider = TracerProvider(sampler=ALWAYS_ON, resource=resource_of_process(), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("nakadi")
        self._ratio = ratio
        self._draw_random_number = draw_random_number

    def begin(self, operation: str, destination: str, parent: TraceContext, *, group: str = "") -> Span | None:
        if parent:
            return self.begin_part(operation, destination, parent, group=group)
        if self._draw_random_number() >= self._ratio:
            return None
        return self._begin(operation, destination, group=group)

    def begin_part(self, operation: str, destination: str, parent: TraceContext, *, group: str = "") -> Span | None:
        if not parent or not is_sampled(parent["traceparent"]):
            return None
        return self._begin(operation, destination, _span_context(parent), group=group)

    def begin_linked(
        self, operation: str, destination: str, events: Iterable[bytes], *, group: str = ""
    ) -> Span | None:
        links = [Link(each) for each in islice(_sampled_contexts(events), MAX_LINKS)]
        return self._begin(operation, destination, links=links, group=group) if links else None

    def close(self) -> None:
        self._provider.force_flush(CLOSE_TIMEOUT_MILLISECONDS)
        self._provider.shutdown()

    def _begin(
        self,
        operation: str,
        destination: str,
        parent: SpanContext | None = None,
        *,
        links: Iterable[Link] = (),
        group: str,
    ) -> Span:
        kind, operation_type = _KINDS.get(operation, (SpanKind.INTERNAL, ""))
        attributes = {"messaging.system": SYSTEM, "messaging.operation.name": operation}
        if operation_type:
            attributes["messaging.operation.type"] = operation_type
        if destination:
            attributes["nakadi.job" if operation == "job" else "messaging.destination.name"] = destination
        if group:
            attributes["messaging.consumer.group.name"] = group
        context = None if parent is None else set_span_in_context(NonRecordingSpan(parent))
        name = f"{operation} {destination}" if destination else operation
        begun = self._tracer.start_span(name, context, kind, attributes, tuple(links))
        return OpenTelemetrySpan(begun)


class OpenTelemetrySpan:
    def __init__(self, span: SdkSpan) -> None:
        self._span = span

    @property
    def context(self) -> TraceContext:
        known = self._span.get_span_context()
        context = {"traceparent": f"00-{known.trace_id:032x}-{known.span_id:016x}-01"}
        return {**context, "tracestate": known.trace_state.to_header()} if known.trace_state else context

    def end(self, error: str = "", **figures: int) -> None:
        self._span.set_attributes({_FIGURES[name]: value for name, value in figures.items()})
        if error:
            self._span.set_attribute("error.type", error)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


def _span_context(parent: Mapping[str, str]) -> SpanContext:
    _, trace, span, _ = parent["traceparent"].split("-")[:4]
    state = TraceState.from_header([parent["tracestate"]]) if "tracestate" in parent else None
    return SpanContext(int(trace, 16), int(span, 16), is_remote=True, trace_flags=TraceFlags(1), trace_state=state)


def _sampled_contexts(events: Iterable[bytes]) -> Iterator[SpanContext]:
    """The contexts of the sampled spans that events name, each span once."""
    seen: set[bytes] = set()
    for event in events:
        # Few events have a trace context, and searching for this text takes a fraction of the time of matching a
        # pattern.
        if b'"traceparent"' not in event:
            continue
        for found in _find_sampled_parents(event):
            trace, span, _ = found.groups()
            if span not in seen:
                seen.add(span)
                yield SpanContext(int(trace, 16), int(span, 16), is_remote=True, trace_flags=TraceFlags(1))

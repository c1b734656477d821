"""Spans of deliveries to sinks."""

import asyncio
from types import SimpleNamespace

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from nakadi.app.open_telemetry import OpenTelemetryTracer
from nakadi.app.tracing import TracedSender
from nakadi.delivery.answers import Answer

SAMPLED = b'{"metadata":{"span_ctx":{"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}}}'


class AnsweringSender:
    """A sender that returns the same answer each time."""

    def __init__(self, answer):
        self.answer = answer
        self.attempts = []
        self.is_closed = False

    async def deliver(self, attempt):
        self.attempts.append(attempt)
        return self.answer

    async def close(self):
        self.is_closed = True


def an_attempt(*events):
    run = SimpleNamespace(values=events)
    batch = SimpleNamespace(runs=[run], count=len(events), partition=SimpleNamespace(event_type="order.placed"))
    return SimpleNamespace(batch=batch, sink=SimpleNamespace(subscription_id="s-1"))


def deliver(attempt, answer):
    """Make an attempt, and return its answer and the recorded spans."""
    exporter = InMemorySpanExporter()
    sender = TracedSender(AnsweringSender(answer), OpenTelemetryTracer(SimpleSpanProcessor(exporter), ratio=1))
    return asyncio.run(sender.deliver(attempt)), exporter.get_finished_spans()


@pytest.mark.parametrize(("status", "error"), [(200, None), (500, "failed"), (503, "later"), (410, "gone")])
def test_an_attempt_has_a_span(status, error):
    """A delivery whose events belong to a sampled trace has a span with a link to the trace and the result of the
    attempt.
    """
    answer, [span] = deliver(an_attempt(SAMPLED, b"{}"), Answer(status))

    assert answer == Answer(status)
    assert span.name == "sink order.placed"
    assert [f"{each.context.span_id:016x}" for each in span.links] == ["00f067aa0ba902b7"]
    assert span.attributes["messaging.consumer.group.name"] == "s-1"
    assert span.attributes["messaging.batch.message_count"] == 2
    assert span.attributes.get("error.type") == error


@pytest.mark.parametrize("attempt", [an_attempt(b"{}"), SimpleNamespace(batch=None)], ids=["not sampled", "a trial"])
def test_other_attempts_have_none(attempt):
    """Events without a trace, and trial deliveries, have no span."""
    assert deliver(attempt, Answer(200)) == (Answer(200), ())


def test_the_sender_is_closed():
    """Closing the tracing sender closes the sender that it wraps."""
    receiver = AnsweringSender(Answer(200))
    tracer = OpenTelemetryTracer(SimpleSpanProcessor(InMemorySpanExporter()), ratio=1)
    asyncio.run(TracedSender(receiver, tracer).close())

    assert receiver.is_closed

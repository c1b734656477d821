"""Spans: the broker's record of its work for a trace, in memory and over OTLP."""

import httpx
import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from nakadi.app.open_telemetry import OpenTelemetryTracer, open_tracer
from nakadi.model.outcomes import BadSetting
from tests.support.api import a_business_definition, create_event_type
from tests.support.consumer import Consumer
from tests.support.open_stream import OpenStream
from tests.support.otlp import OtlpReceiver
from tests.support.pages import ROOT
from tests.support.patience import PATIENCE, until
from tests.support.publishing import metadata
from tests.support.served import ServedBroker
from tests.support.subscriptions import create_subscription

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PAGE = (ROOT / "docs" / "tracing.md").read_text()
SAMPLED, NOT_SAMPLED = (f"00-{TRACE}-{PARENT}-{flags}" for flags in ("01", "00"))


@pytest.fixture(scope="module")
def exporter():
    return InMemorySpanExporter()


@pytest.fixture(scope="module")
def broker(exporter):
    """A broker that records only traces that clients began."""
    with ServedBroker(tracer=OpenTelemetryTracer(SimpleSpanProcessor(exporter), ratio=0)) as broker:
        yield broker


@pytest.fixture
def api(broker, exporter):
    exporter.clear()
    with httpx.Client(base_url=broker.url, timeout=PATIENCE) as client:
        yield client


@pytest.fixture
def find_span(exporter):
    """A function that waits until an operation has ended, and returns its only span."""

    def find(operation):
        def find_spans():
            return [each for each in exporter.get_finished_spans() if operation_of(each) == operation]

        until(find_spans)
        [span] = find_spans()
        return span

    return find


def operation_of(span):
    return span.attributes["messaging.operation.name"]


def publish(api, name, traceparent, *events):
    headers = {"traceparent": traceparent} if traceparent else {}
    body = [{"metadata": metadata()} | each for each in events or ({},)]
    return api.post(f"/event-types/{name}/events", json=body, headers=headers)


def test_a_publication_belongs_to_the_trace_of_its_request(api, find_span):
    """The span of a publication is a child of the client's span, and the append's span a child of it. Both spans
    have the conventional attributes.
    """
    name = create_event_type(api, a_business_definition())["name"]
    assert publish(api, name, SAMPLED, {}, {}).status_code == 200

    published, appended = find_span("publish"), find_span("append")
    assert f"traceparent: {SAMPLED}" in PAGE
    assert (published.name, published.kind) == (f"publish {name}", SpanKind.SERVER)
    assert (f"{published.context.trace_id:032x}", f"{published.parent.span_id:016x}") == (TRACE, PARENT)
    assert appended.parent.span_id == published.context.span_id
    assert appended.attributes["messaging.batch.message_count"] == 2
    assert published.attributes["messaging.system"] == "nakadi"
    assert published.attributes["messaging.operation.type"] == "send"
    assert published.attributes["messaging.destination.name"] == name
    assert published.resource.attributes["service.name"] == "nakadi"


def test_a_consumer_finds_the_publication(api, find_span):
    """The event names the span of its publication, the delivery's span links to that span, and the commit's span
    belongs to the commit's own request.
    """
    name = create_event_type(api, a_business_definition())["name"]
    subscription = create_subscription(api, name, read_from="begin")
    assert publish(api, name, SAMPLED).status_code == 200
    with Consumer(api, subscription) as stream:
        batch = stream.batch()
        commit = {"items": [batch["cursor"]]}
        headers = {"X-Nakadi-StreamId": stream.id, "traceparent": SAMPLED}
        assert api.post(f"/subscriptions/{subscription['id']}/cursors", json=commit, headers=headers).status_code == 204

    published, delivered, committed = (find_span(each) for each in ("publish", "deliver", "commit"))
    span = f"{published.context.span_id:016x}"
    assert batch["events"][0]["metadata"]["span_ctx"] == {"traceparent": f"00-{TRACE}-{span}-01"}
    assert [each.context.span_id for each in delivered.links] == [published.context.span_id]
    assert delivered.attributes["messaging.consumer.group.name"] == subscription["id"]
    assert delivered.attributes["messaging.batch.message_count"] == 1
    assert committed.attributes["messaging.operation.type"] == "settle"
    assert f"{committed.context.trace_id:032x}" == TRACE


@pytest.mark.parametrize("traceparent", [NOT_SAMPLED, "", "nonsense"])
def test_what_is_not_sampled_is_not_recorded(api, broker, exporter, traceparent):
    """A trace that its client does not record is passed on unchanged, without a span of the broker."""
    name = create_event_type(api, a_business_definition())["name"]
    assert publish(api, name, traceparent).status_code == 200
    begin = {"X-Nakadi-Cursors": '[{"partition": "0", "offset": "BEGIN"}]'}
    with OpenStream(broker.url, f"/event-types/{name}/events?stream_limit=1", begin) as stream:
        text = stream.rest().decode()

    assert (NOT_SAMPLED in text) == (traceparent == NOT_SAMPLED)
    assert exporter.get_finished_spans() == ()


def test_an_error_is_named(api, find_span):
    """A publication that is refused ends its span with the kind of the error."""
    assert publish(api, "nowhere", SAMPLED).status_code == 404

    span = find_span("publish")
    assert span.attributes["error.type"] == "NotFound"
    assert span.status.status_code is StatusCode.ERROR


def test_some_traces_begin_here():
    """If the client sends no trace, the configured ratio decides whether one begins; such a trace has no parent."""
    exporter = InMemorySpanExporter()
    drawn = iter([0.5, 0.005])
    tracer = OpenTelemetryTracer(SimpleSpanProcessor(exporter), 0.01, lambda: next(drawn))

    assert tracer.begin("publish", "order", {}) is None
    begun = tracer.begin("publish", "order", {})
    begun.end()
    [span] = exporter.get_finished_spans()
    assert span.parent is None
    assert tracer.begin_part("append", "topic", {}) is None


def test_links_are_bounded_and_each_made_once():
    """In a batch with many traces, the first hundred are linked."""
    exporter = InMemorySpanExporter()
    tracer = OpenTelemetryTracer(SimpleSpanProcessor(exporter), 0)
    events = [b'{"span_ctx":{"traceparent":"00-%032x-%016x-01"}}' % (number + 1, number + 1) for number in range(150)]
    tracer.begin_linked("deliver", "order", [*events, *events]).end()

    [span] = exporter.get_finished_spans()
    assert [each.context.span_id for each in span.links] == list(range(1, 101))


def test_spans_arrive_over_otlp(monkeypatch):
    """If the setting asks for it, the broker sends spans to a receiver of OTLP over HTTP, at the latest when
    it ends.
    """
    with OtlpReceiver() as receiver:
        for name, value in receiver.environment.items():
            monkeypatch.setenv(name, value)
        with (
            ServedBroker(traces="otlp", traces_percent=100) as broker,
            httpx.Client(base_url=broker.url, timeout=PATIENCE) as client,
        ):
            name = create_event_type(client, a_business_definition())["name"]
            assert publish(client, name, "").status_code == 200

    assert {path for path, _ in receiver.received} == {"/v1/traces"}
    assert f"publish {name}" in [each.name for each in receiver.spans]


@pytest.mark.parametrize(("exporter", "percent"), [("jaeger", 1), ("otlp", 101), ("otlp", -1)])
def test_settings_that_mean_nothing_are_refused(exporter, percent):
    """An unknown exporter and an impossible ratio are refused at the start."""
    with pytest.raises(BadSetting, match="NAKADI_TRACES"):
        open_tracer(exporter, percent)

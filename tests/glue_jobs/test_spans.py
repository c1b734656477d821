"""Spans of runs and their steps."""

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from nakadi.app import open_telemetry
from nakadi.app.open_telemetry import OpenTelemetryTracer
from nakadi.model.outcomes import BadSetting
from nakadi_jobs import compaction, follow
from nakadi_jobs.spans import Spans, open_spans
from tests.support.jobs import order


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def spans(exporter):
    return Spans(OpenTelemetryTracer(SimpleSpanProcessor(exporter), ratio=1))


def test_steps_are_parts_of_their_run(spans, exporter):
    """A run is a trace; a step names what it does and what it works on, and the next run has its own trace."""
    for _ in range(2):
        with spans.of_run("compaction"), spans.of_step("update", "order.placed"):
            pass
    step, run, *next_run = exporter.get_finished_spans()
    assert (step.name, run.name) == ("update order.placed", "job compaction")
    assert (step.parent.span_id, run.parent) == (run.context.span_id, None)
    assert step.attributes["messaging.destination.name"] == "order.placed"
    assert run.attributes["nakadi.job"] == "compaction"
    assert "messaging.operation.type" not in run.attributes
    assert run.context.trace_id not in {each.context.trace_id for each in next_run}
    with spans.of_step("update", "order.placed"):
        pass
    assert len(exporter.get_finished_spans()) == 4, "there is no run to be a part of"


def test_what_fails_says_so(spans, exporter):
    """A step that fails, and the run that ends with it, have the kind of the error."""
    with pytest.raises(KeyError), spans.of_run("retention"), spans.of_step("expire", "order_placed"):
        raise KeyError
    for each in exporter.get_finished_spans():
        assert (each.attributes["error.type"], each.status.status_code) == ("KeyError", StatusCode.ERROR)


def test_without_the_option_there_are_none():
    """Without the option for spans, the steps run without them; a wrong exporter is refused."""
    spans = open_spans("")
    with spans.of_run("compaction"), spans.of_step("update", "order.placed"):
        pass
    spans.close()
    with pytest.raises(BadSetting, match="`otlp` or empty, and not 'zipkin'"):
        open_spans("zipkin")


def test_jobs_send_them(jobs, data, monkeypatch):
    """A run of compaction is one trace, and so is each round of a following job that has new events."""
    orders = data.event_type("order.placed")
    names = []
    for number, main in enumerate((compaction.main, follow.main)):
        exporter = InMemorySpanExporter()
        tracer = OpenTelemetryTracer(SimpleSpanProcessor(exporter), ratio=1)
        monkeypatch.setattr(open_telemetry, "open_tracer", lambda _, percent, kept=tracer: percent == 100 and kept)
        data.archive_events(orders, [order(number)])
        ends = ["--until-idle"] if main is follow.main else []
        assert jobs.run(main, "--no-tidying", "--traces", "otlp", *ends).code == 0
        names.append([each.name for each in exporter.get_finished_spans()])
    assert names == [["update order.placed", "report", "job compaction"], ["update order.placed", "job follow"]]

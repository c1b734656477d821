"""Metrics and the log over OTLP."""

import logging
import math
import time

import httpx
import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

from nakadi.model.outcomes import BadSetting
from tests.support.api import create_event_type, problem
from tests.support.metrics import sample_value, scrape
from tests.support.otlp import OtlpReceiver
from tests.support.pages import ROOT
from tests.support.patience import PATIENCE, until
from tests.support.served import ServedBroker
from tests.support.subscriptions import publish

PAGE = (ROOT / "docs" / "tracing.md").read_text()
TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2lnbmF0dXJl"  # not a real token


@pytest.fixture
def receiver(monkeypatch):
    with OtlpReceiver() as receiver:
        for name, set_value in receiver.environment.items():
            monkeypatch.setenv(name, set_value)
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "50")
        yield receiver


def newest_points(receiver, name):
    """The points of a metric that were sent last."""
    [*_, found] = [each for each in receiver.metrics if each.name == name]
    return getattr(found, found.WhichOneof("data"))


def labels_of(point):
    return {each.key: each.value.string_value for each in point.attributes}


def test_the_metrics_that_prometheus_reads_are_sent(receiver):
    """Each metric has the same name, kind, labels and values as for Prometheus, and continues to grow from one export
    to the next.
    """
    with (
        ServedBroker(metrics="otlp") as broker,
        httpx.Client(base_url=broker.url, timeout=PATIENCE) as api,
    ):
        name = create_event_type(api)["name"]
        publish(api, name, 3)
        samples = scrape(api)

        def sent(count):
            if "nakadi_events_published_total" not in {each.name for each in receiver.metrics}:
                return False
            points = newest_points(receiver, "nakadi_events_published_total").data_points
            return {labels_of(each)["event_type"]: each.as_double or each.as_int for each in points} == {name: count}

        until(lambda: sent(3))
        published = newest_points(receiver, "nakadi_events_published_total")
        assert published.is_monotonic
        assert published.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
        [stored] = [
            each
            for each in newest_points(receiver, "nakadi_http_request_duration_seconds").data_points
            if labels_of(each) == {"operation": "publish_events"}
        ]
        assert (stored.count, sum(stored.bucket_counts)) == (1, 1)
        assert len(stored.bucket_counts) == len(stored.explicit_bounds) + 1
        assert not stored.HasField("min")
        assert math.isclose(
            stored.sum,
            sample_value(samples, "nakadi_http_request_duration_seconds_sum", operation="publish_events"),
        )

        def names_with_values():
            return {each.definition.name for each in broker.services.metrics.all if each.rows()}

        until(lambda: names_with_values() <= {each.name for each in receiver.metrics})
        publish(api, name, 2)
        until(lambda: sent(5))
    [resource] = {str(each.resource_metrics[0].resource) for _, each in receiver.received}
    assert "service.instance.id" in resource


def test_the_log_is_sent_without_secrets(receiver):
    """Lines have their level, the logger and the flow id; tokens are removed, from exceptions too."""
    log = logging.getLogger("nakadi.test_otlp")
    with ServedBroker(logs="otlp"):
        log.warning("A token: %s", TOKEN)
        try:
            int(f"Authorization: Bearer {TOKEN}")
        except ValueError:
            log.exception("It failed")
        logging.getLogger("opentelemetry.exporter").warning("it cannot be sent")
        logging.getLogger("urllib3.connectionpool").warning("it cannot be sent")
    log.warning("after the end")

    found = {each.body.string_value: each for each in receiver.log_records}
    assert {"A token: ***", "It failed"} <= found.keys()
    assert {"it cannot be sent", "after the end"}.isdisjoint(found)
    warned, failed = found["A token: ***"], found["It failed"]
    assert (warned.severity_text, failed.severity_text) == ("WARNING", "ERROR")
    assert abs(warned.time_unix_nano / 1e9 - time.time()) < 3600
    told = {each.key: each.value.string_value for each in failed.attributes}
    assert (told["logger.name"], told["exception.type"]) == ("nakadi.test_otlp", "ValueError")
    assert "Authorization: Bearer ***" in told["exception.stacktrace"]
    assert TOKEN not in str(receiver.log_records)


def test_a_receiver_that_is_away_disturbs_nothing(monkeypatch):
    """If the receiver cannot be reached, the broker still answers requests, and shuts down without delay."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    with (
        ServedBroker(metrics="otlp", logs="otlp") as broker,
        httpx.Client(base_url=broker.url, timeout=PATIENCE) as api,
    ):
        name = create_event_type(api)["name"]
        publish(api, name, 1)
        assert "does not exist" in problem(api.get("/event-types/none"), 404)


@pytest.mark.parametrize("setting", ["metrics", "logs"])
def test_other_protocols_are_refused(setting):
    """An unknown value for where metrics or the log are sent is refused; the message names the setting."""
    with pytest.raises(BadSetting, match=f"NAKADI_{setting.upper()} is `otlp` or empty, and not 'statsd'"):
        ServedBroker(**{setting: "statsd"})


@pytest.mark.parametrize("interval", ["0", "-1", "often"])
def test_the_interval_is_a_number(interval, monkeypatch):
    """An interval of exports that is not a positive number of milliseconds is refused."""
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", interval)
    with pytest.raises(BadSetting, match="OTEL_METRIC_EXPORT_INTERVAL is a number of milliseconds"):
        ServedBroker(metrics="otlp")


def test_the_page_names_the_settings():
    """The page names the broker's settings, and the SDK's variable that the broker itself reads."""
    names = ("NAKADI_METRICS=otlp", "NAKADI_LOGS=otlp", "OTEL_METRIC_EXPORT_INTERVAL")
    assert all(f"`{name}`" in PAGE for name in names)

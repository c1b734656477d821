"""KPI events: queued without waiting, written in the background, and never more than a process can hold."""

import json
import threading
from contextlib import closing

import pytest

from nakadi.auth.features import Features
from nakadi.event_types.system_event_type_definitions import (
    ACCESS_LOG,
    BATCH_PUBLISHED,
    DATA_STREAMED,
    EVENT_TYPE_LOG,
    KPI_DEFINITIONS,
    KPI_EVENT_TYPES,
)
from nakadi.model.authorization import UNAUTHENTICATED, Feature, Subject
from nakadi.model.outcomes import Unavailable
from nakadi.publishing import system_events as module
from nakadi.publishing.batch import BatchOutcome, BatchStatus
from nakadi.publishing.system_events import (
    KPI_QUEUE_MAX_AGE_SECONDS,
    MAX_EVENTS_PER_BATCH,
    STREAM_KPI_REPORT_INTERVAL_SECONDS,
    KpiCollector,
    SentEventTotals,
    StreamKpis,
    name_hasher,
)
from tests.support.clock import HandMovedClock
from tests.support.registry import settings_document

ANN = Subject(name="ann", realm="/people")
REQUEST = {"method": "GET", "path": "/event-types", "query": "", "user_agent": "-", "status_code": 200}


class KpiProcess:
    """The KPI events of a process whose threads do not run between requests, and the events that were written."""

    def __init__(self, write_interval_seconds=None):
        self.clock = HandMovedClock()
        self.features = Features(settings_document("features"))
        self.written: list[tuple[str, list[dict]]] = []
        self.counted = {"written": 0, "dropped": 0}
        self.fails: Exception | None = None
        self.bytes = 0
        self.log_answers = threading.Event()
        self.log_answers.set()
        self.changed = threading.Condition()
        self.figures = KpiCollector(
            features=self.features,
            publish=self.publish,
            clock=self.clock,
            hash_name=name_hasher("salt"),
            count=self.count,
            write_interval_seconds=write_interval_seconds,
        )

    def switch_on(self, *features):
        for each in features:
            self.features.switch(each, on=True)

    def publish(self, event_type, body):
        if self.fails is not None:
            raise self.fails
        self.log_answers.wait(60)
        with self.changed:
            self.bytes = len(body) - len("[]")
            self.written.append((event_type, json.loads(body)))
            self.changed.notify_all()
        return BatchOutcome(BatchStatus.STORED)

    def count(self, what, number):
        with self.changed:
            self.counted[what] += number
            self.changed.notify_all()

    def batch(self, name="order.placed", subject=ANN, **changes):
        told = {"events": 3, "seconds": 0.0124, "size": 120, **changes}
        self.figures.record_batch(name, subject, "flow", **told)

    def flush(self):
        """Write the queued events, however young they are."""
        self.clock.move(KPI_QUEUE_MAX_AGE_SECONDS)
        self.figures.flush_if_due()

    def events(self, event_type):
        return [each for name, events in self.written if name == event_type for each in events]

    def wait_for(self, condition):
        with self.changed:
            assert self.changed.wait_for(condition, 60)


@pytest.fixture
def process():
    process = KpiProcess()
    with closing(process.figures):
        yield process


def without_metadata(event):
    return {name: value for name, value in event.items() if name != "metadata"}


def test_a_stored_batch_is_recorded(process):
    """A batch is recorded with its event type, publisher, duration, and number of events and bytes. (P153)"""
    process.switch_on(Feature.KPI_COLLECTION)

    process.batch()
    process.flush()

    [event] = process.events(BATCH_PUBLISHED)
    assert without_metadata(event) == {
        "event_type": "order.placed",
        "app": "ann",
        "app_hashed": name_hasher("salt")("ann"),
        "token_realm": "/people",
        "number_of_events": 3,
        "ms_spent": 12,
        "batch_size": 120,
    }
    assert event["metadata"]["flow_id"] == "flow"
    assert set(without_metadata(event)) == set(KPI_DEFINITIONS[BATCH_PUBLISHED].fields)
    assert process.counted == {"written": 1, "dropped": 0}


def test_names_are_hashed_as_the_reference_hashes_them():
    """A name is hashed with the salt before it. (R251)"""
    assert name_hasher("salt")("unauthenticated") == "6ba66e95cc581ac889f94984b85f312ea7e95ade8efa705c6b8944ecd58b60a5"


@pytest.mark.parametrize(("subscription", "api"), [(None, "lola"), ("a-subscription", "hila")])
def test_a_stream_is_recorded(process, subscription, api):
    """A stream is recorded with the events of an event type that it has sent, and with its subscription. (L70, S309)"""
    process.switch_on(Feature.KPI_COLLECTION)

    process.figures.record_sent_events(
        subscription, "order.placed", ANN, "flow", SentEventTotals(event_count=7, byte_count=900, batch_count=2)
    )
    process.flush()

    [event] = process.events(DATA_STREAMED)
    assert (event["api"], event["subscription"], event["app"]) == (api, subscription, "ann")
    assert [event[name] for name in ("number_of_events", "bytes_streamed", "batches_streamed")] == [7, 900, 2]
    assert set(without_metadata(event)) == set(KPI_DEFINITIONS[DATA_STREAMED].fields)


def test_a_stream_is_reported_periodically_and_at_its_end(process):
    """The events sent are reported every half minute for each event type, and counted from zero again. (L70, S309)"""
    process.switch_on(Feature.KPI_COLLECTION)
    stream = StreamKpis(process.figures, process.clock, ANN, "flow")
    stream.record_sent_batch("a", 1, 10, process.clock.now())
    stream.record_sent_batch("b", 2, 20, process.clock.now())
    stream.record_sent_batch("a", 3, 30, process.clock.now())
    process.clock.move(STREAM_KPI_REPORT_INTERVAL_SECONDS - 1)
    assert stream.next_report_at == process.clock.monotonic() + 1
    process.clock.move(1)
    stream.report()
    assert stream.next_report_at == process.clock.monotonic() + STREAM_KPI_REPORT_INTERVAL_SECONDS
    stream.record_sent_batch("a", 5, 50, process.clock.now())
    stream.report()
    stream.report()
    process.flush()

    told = [
        (each["event_type"], each["number_of_events"], each["bytes_streamed"]) for each in process.events(DATA_STREAMED)
    ]
    assert told == [("a", 4, 40), ("b", 2, 20), ("a", 5, 50)]


def test_requests_are_recorded_while_the_access_log_is_on(process):
    """The access log has its own feature, separate from the other KPI events. (R228, R250)"""
    process.switch_on(Feature.KPI_COLLECTION)
    process.figures.record_request(REQUEST, ANN, "flow")
    process.flush()
    assert process.events(ACCESS_LOG) == []

    process.switch_on(Feature.ACCESS_LOG_ENABLED)
    process.clock.move(KPI_QUEUE_MAX_AGE_SECONDS + 1)
    process.figures.record_request(REQUEST, UNAUTHENTICATED, "flow")
    process.flush()

    [event] = process.events(ACCESS_LOG)
    assert (event["method"], event["app"], event["app_hashed"]) == ("GET", "-", name_hasher("salt")("-"))


def test_nothing_is_written_while_the_feature_is_off(process):
    """Events that were queued before the feature was found to be off are discarded, and not counted as dropped. (R250,
    P153)"""
    process.batch()
    process.flush()
    process.batch()
    process.switch_on(Feature.KPI_COLLECTION)
    process.flush()

    assert process.written == []
    assert process.counted == {"written": 0, "dropped": 0}


@pytest.mark.parametrize("name", sorted(KPI_EVENT_TYPES))
def test_figures_make_no_figures(process, name):
    """Publishing KPI events, and streaming them, is not recorded. (P153, L70)"""
    process.switch_on(Feature.KPI_COLLECTION)

    process.batch(name)
    process.figures.record_sent_events(None, name, ANN, "flow", SentEventTotals(1, 1, 1))
    process.flush()

    assert process.written == []


def test_long_texts_are_cut(process):
    """A string that a client chooses is kept up to a limited length."""
    process.switch_on(Feature.KPI_COLLECTION, Feature.ACCESS_LOG_ENABLED)

    process.figures.record_request(REQUEST | {"query": "?" + "x" * 100_000}, Subject(name="y" * 5_000), "flow")
    process.flush()

    [event] = process.events(ACCESS_LOG)
    assert (len(event["query"]), len(event["app"])) == (1_000, 1_000)


def test_what_cannot_be_encoded_is_dropped(process):
    """A KPI event with half a surrogate pair is dropped, and the request that it is about does not fail."""
    process.switch_on(Feature.KPI_COLLECTION, Feature.ACCESS_LOG_ENABLED)

    process.figures.record_request(REQUEST | {"user_agent": "\ud800"}, ANN, "flow")
    process.flush()

    assert process.written == []


@pytest.mark.parametrize("bound", ["number", "bytes"])
def test_the_queue_is_bounded(process, monkeypatch, caplog, bound):
    """Events beyond the queue's limits, by number or bytes, are dropped and counted until the queue is written."""
    process.switch_on(Feature.KPI_COLLECTION)
    process.batch()
    process.flush()
    if bound == "number":
        monkeypatch.setattr(module, "MAX_QUEUED_EVENTS", 5)
    else:
        monkeypatch.setattr(module, "MAX_QUEUED_BYTES", 5 * process.bytes)
    for _ in range(2):
        for _ in range(8):
            process.batch()
        process.flush()

    assert process.counted == {"written": 11, "dropped": 6}
    assert "3 events were dropped" in caplog.text


@pytest.mark.parametrize("error", [Unavailable("no log"), RuntimeError("a bug")])
def test_what_cannot_be_written_is_dropped(process, error, caplog):
    """A failed write is logged and counted, and the next KPI events are still written."""
    process.switch_on(Feature.KPI_COLLECTION)
    process.fails = error
    process.batch()
    process.flush()
    process.fails = None
    process.batch()
    process.flush()

    assert process.counted == {"written": 1, "dropped": 1}
    assert f"Writing 1 KPI events to {BATCH_PUBLISHED} failed" in caplog.text


def test_they_are_written_in_batches(process):
    """Many KPI events are written in batches, one event type at a time."""
    process.switch_on(Feature.KPI_COLLECTION)
    for _ in range(2 * MAX_EVENTS_PER_BATCH + 1):
        process.batch()
    process.figures.record_sent_events(None, "a", ANN, "flow", SentEventTotals(1, 1, 1))
    process.flush()

    assert [(name, len(events)) for name, events in process.written] == [
        *[(BATCH_PUBLISHED, MAX_EVENTS_PER_BATCH)] * 2,
        (BATCH_PUBLISHED, 1),
        (DATA_STREAMED, 1),
    ]


def test_a_function_writes_when_much_or_old_is_waiting(process):
    """A process that does not run between requests writes at the end of a request, and mostly has nothing to write
    then."""
    process.switch_on(Feature.KPI_COLLECTION)
    process.batch()
    process.figures.flush_if_due()
    assert process.written == []

    for _ in range(MAX_EVENTS_PER_BATCH - 1):
        process.batch()
    process.figures.flush_if_due()
    assert len(process.events(BATCH_PUBLISHED)) == MAX_EVENTS_PER_BATCH

    process.batch()
    process.clock.move(KPI_QUEUE_MAX_AGE_SECONDS)
    process.figures.flush_if_due()
    assert len(process.events(BATCH_PUBLISHED)) == MAX_EVENTS_PER_BATCH + 1


def test_a_function_waits_no_longer_than_a_moment(process, monkeypatch):
    """A log that does not answer delays an invocation only for a limited time."""
    monkeypatch.setattr(module, "KPI_FLUSH_TIMEOUT_SECONDS", 0.01)
    process.switch_on(Feature.KPI_COLLECTION)
    process.log_answers.clear()

    process.batch()
    process.flush()
    assert process.written == []

    process.log_answers.set()
    process.wait_for(lambda: process.written)


def test_a_server_writes_by_itself():
    """If threads keep running, they write the queued events by themselves."""
    process = KpiProcess(write_interval_seconds=0.01)
    process.switch_on(Feature.KPI_COLLECTION)
    with closing(process.figures):
        process.batch()
        process.wait_for(lambda: process.counted["written"] == 1)
        process.batch()
        process.wait_for(lambda: process.counted["written"] == 2)


def test_a_server_looks_at_once_whether_a_feature_is_on_again():
    """While a feature is off, the broker builds one event per second to find out whether the feature is on again,
    rather than all events of every other second.
    """
    process = KpiProcess(write_interval_seconds=3600)
    with closing(process.figures):
        process.batch()
        process.flush()
        assert not process.figures.is_collecting(BATCH_PUBLISHED)
        process.clock.move(module.FEATURE_RECHECK_INTERVAL_SECONDS)
        assert process.figures.is_collecting(BATCH_PUBLISHED)
        process.batch()
        assert not process.figures.is_collecting(BATCH_PUBLISHED)

        process.switch_on(Feature.KPI_COLLECTION)
        process.clock.move(module.FEATURE_RECHECK_INTERVAL_SECONDS)
        process.batch(size=7)
        process.wait_for(lambda: process.counted["written"])
        assert process.figures.is_collecting(BATCH_PUBLISHED)
        process.batch()
        assert process.figures.is_collecting(BATCH_PUBLISHED)
    assert len(process.events(BATCH_PUBLISHED)) == process.counted["written"]
    assert 7 in [each["batch_size"] for each in process.events(BATCH_PUBLISHED)]


def test_a_server_writes_a_whole_batch_at_once():
    """A full batch is written before the interval between writes is over."""
    process = KpiProcess(write_interval_seconds=3600)
    process.switch_on(Feature.KPI_COLLECTION)
    with closing(process.figures):
        for _ in range(module.MAX_EVENTS_PER_BATCH):
            process.batch()
        process.wait_for(lambda: process.counted["written"] == module.MAX_EVENTS_PER_BATCH)


def test_what_waits_at_the_end_is_written():
    """A process that ends properly writes its queued events, and accepts no more."""
    process = KpiProcess(write_interval_seconds=3600)
    process.switch_on(Feature.KPI_COLLECTION)
    process.batch()

    process.figures.close()
    process.batch()

    assert len(process.events(BATCH_PUBLISHED)) == 1
    process.figures.close()


def test_recording_a_figure_needs_no_store(process):
    """Publishers are not affected by failures of the registry and of the log."""

    def out_of_order(*_):
        raise Unavailable("no registry")

    process.features.is_on = out_of_order
    process.batch()
    process.flush()

    assert process.counted == {"written": 0, "dropped": 1}


def test_the_fields_are_those_of_the_reference():
    """The members of KPI events have the names and the order that readers of the reference know. (R250)"""
    assert {name: " ".join(figures.fields) for name, figures in KPI_DEFINITIONS.items()} == {
        ACCESS_LOG: "method path query user_agent app app_hashed status_code response_time_ms accept_encoding "
        "content_encoding request_length response_length",
        BATCH_PUBLISHED: "event_type app app_hashed token_realm number_of_events ms_spent batch_size",
        DATA_STREAMED: "api subscription event_type app app_hashed token_realm number_of_events bytes_streamed "
        "batches_streamed",
        EVENT_TYPE_LOG: "event_type status category authz compatibility_mode",
        "nakadi.subscription.log": "subscription_id status",
    }

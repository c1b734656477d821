"""Events are sent as CloudEvents."""

import json
from datetime import UTC, datetime

import pytest

from nakadi.model.event_type import Position
from nakadi.model.events import Record
from nakadi.publishing.cloud_events import CloudEventReader
from nakadi.streaming.chunks import EventRun
from nakadi.streaming.cloud_events import CloudEventPlace, CloudEventStreamFormat, cloud_events_json
from nakadi.streaming.session import SendEvents, SendStreamKeepAlive
from tests.support.chunks import a_chunk

EID = "105a76d8-db49-4144-ace7-e683e8f4ba46"
PLACE = CloudEventPlace("order.placed", "2")


def run_of(*texts: str) -> EventRun:
    return a_chunk(*[Record(text.encode()) for text in texts]).run_from_offset(0)


def cloud_event_of(event: object, place: CloudEventPlace = PLACE) -> dict[str, object]:
    [cloud_event] = json.loads(cloud_events_json(place, [run_of(json.dumps(event))]))
    return cloud_event


def test_any_event_is_the_data_of_a_cloud_event():
    """The attributes come from the event's metadata. (E21)"""
    trace = {"traceparent": "t", "tracestate": "s", "other": "o"}
    metadata = {"eid": EID, "occurred_at": "2026-01-01T00:00:00Z", "span_ctx": trace, "partition_compaction_key": "k"}
    event = {"metadata": metadata, "n": 1}

    cloud_event = cloud_event_of(event)
    assert cloud_event == {
        "specversion": "1.0",
        "id": EID,
        "source": "/event-types/order.placed",
        "type": "order.placed",
        "datacontenttype": "application/json",
        "time": "2026-01-01T00:00:00Z",
        "partitionkey": "k",
        "traceparent": "t",
        "tracestate": "s",
        "eventtype": "order.placed",
        "partition": "2",
        "offset": cloud_event["offset"],
        "data": event,
    }


@pytest.mark.parametrize("event", [{"n": 1}, {"metadata": 5}, {"metadata": {"eid": 5, "occurred_at": "x"}}, 5, [1], {}])
def test_an_event_without_metadata_has_its_place_and_time_of_arrival(event):
    """A CloudEvent from an event without metadata has its id from the event's position, and the time when the event
    was stored. (E21)
    """
    cloud_event = cloud_event_of(event)

    assert cloud_event["id"] == f"2:{cloud_event['offset']}"
    assert datetime.fromisoformat(cloud_event["time"]).tzinfo == UTC
    assert cloud_event["data"] == event


def test_a_cloud_event_comes_back_as_it_was():
    """A CloudEvent comes back with its attributes as strings, its data without metadata, and its position added.
    (E22)
    """
    sent = {
        "specversion": "1.0",
        "id": "A-1",
        "source": "urn:shop",
        "type": "paid",
        "subject": "4711",
        "time": "2026-01-01T00:00:00.5+01:00",
        "datacontenttype": "application/vnd.shop+json",
        "dataschema": "https://example.org/paid",
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "tracestate": "a=1",
        "tenant": "b",
        "data": {"n": 1, "b": {"metadata": 2}},
    }
    [event] = json.loads(CloudEventReader(now=datetime.now(UTC)).read_batch(json.dumps([sent]).encode()).body)

    read = cloud_event_of(event)
    assert {name: read[name] for name in sent} == sent
    assert read.keys() - sent.keys() == {"eventtype", "partition", "offset"}


def test_no_event_forges_an_attribute():
    """A member of `cloudevent` that a publisher writes in JSON counts only if it is a valid attribute. (E21)"""
    forged = {
        "specversion": "2",
        "data": "x",
        "offset": "x",
        "time": "x",
        "cursortoken": "x",
        "A": "x",
        "b": 5,
        "id": "",
        "type": "a\r\nb: c",
    }

    cloud_event = cloud_event_of({"metadata": {"eid": EID, "cloudevent": forged}, "n": 1})
    assert (cloud_event["specversion"], cloud_event["id"], cloud_event["data"]["n"]) == ("1.0", EID, 1)
    assert not {"A", "b", "cursortoken"} & cloud_event.keys()
    assert cloud_event["type"] == "order.placed"


def test_lines_of_a_stream_are_batches():
    """Each batch is a list; a keep-alive is an empty list; a Problem is an object. (E20, E23)"""
    lines = CloudEventStreamFormat("order.placed")
    run = run_of('{"a":"\u2028"}', '{"n":2}')

    batch = lines.encode_batch(SendEvents("2", run.end, (run,)))
    assert [each["data"] for each in json.loads(batch)] == [{"a": "\u2028"}, {"n": 2}]
    assert len(batch.decode().splitlines()) == 1
    assert lines.stream_opening() == b""
    assert lines.encode_keep_alive(SendStreamKeepAlive("2", Position(1, 3))) == b"[]\n"
    assert lines.encode_problem(b'{"status":403}') == b'{"status":403}\n'

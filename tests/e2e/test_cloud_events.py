"""The SDK of CloudEvents publishes and reads CloudEvents."""

import json
from uuid import uuid4

import pytest
from cloudevents.core.bindings.http import to_binary_event, to_structured_event
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from tests.support.api import a_business_definition, create_event_type, problem
from tests.support.publishing import metadata
from tests.support.subscriptions import create_subscription

BATCH = "application/cloudevents-batch+json"
TRACE = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "a=1"}
BEGIN = {"X-Nakadi-Cursors": json.dumps([{"partition": "0", "offset": "BEGIN"}])}


def a_cloud_event(number: int = 0, **attributes: str) -> CloudEvent:
    """A CloudEvent with attributes of each kind, and with text that is not ASCII."""
    named = {"id": f"A-{number}", "source": "urn:shop:é", "type": "org.example.paid", "subject": 'Größe 100% "q"'}
    return CloudEvent(named | {"tenant": "b", **TRACE} | attributes, {"n": number, "text": "ä"})


def batch_of(*events: CloudEvent) -> bytes:
    return b"[%b]" % b",".join(map(JSONFormat().write, events))


def read_cloud_events(line: bytes | str) -> list[CloudEvent]:
    return [JSONFormat().read(CloudEvent, json.dumps(each)) for each in json.loads(line)]


def describe(event: CloudEvent) -> tuple[dict[str, object], object]:
    """The attributes of a CloudEvent, without its event type, its position and its token, and its data."""
    places = ("eventtype", "partition", "offset", "cursortoken")
    named = {name: value for name, value in event.get_attributes().items() if name not in places}
    return {"datacontenttype": "application/json"} | named, event.get_data()


@pytest.fixture
def event_type(api):
    """The name of an event type of the category business."""
    return create_event_type(api, a_business_definition())["name"]


def publish(api, event_type, body, content_type=BATCH, **headers):
    return api.post(f"/event-types/{event_type}/events", content=body, headers={"content-type": content_type} | headers)


def read_low_level(api, event_type, count):
    path = f"/event-types/{event_type}/events?batch_limit={count}&stream_limit={count}"
    return api.get(path, headers=BEGIN | {"accept": BATCH})


@pytest.mark.parametrize("to_message", [to_binary_event, to_structured_event])
def test_each_content_mode_publishes_what_comes_back(api, event_type, to_message):
    """An event that the SDK sends in any mode reads back unchanged, on a stream. (E1, E2, E7, E20, E22)"""
    event = a_cloud_event()
    message = to_message(event)

    answer = api.post(f"/event-types/{event_type}/events", content=message.body, headers=message.headers)
    assert (answer.status_code, answer.content) == (200, b"")

    stream = read_low_level(api, event_type, 1)
    assert stream.headers["content-type"] == BATCH
    [read] = read_cloud_events(stream.content)
    assert describe(read) == describe(event)


def test_cloud_events_come_back_from_a_subscription_and_are_committed(api, event_type):
    """A consumer commits the attributes of the last event in a batch, which are the cursor. (E1, E21, E22)"""
    events = [a_cloud_event(number) for number in range(3)]
    subscription = create_subscription(api, event_type, read_from="begin")["id"]
    assert publish(api, event_type, batch_of(*events)).status_code == 200

    path = f"/subscriptions/{subscription}/events?batch_limit=3&batch_flush_timeout=1"
    with api.stream("GET", path, headers={"accept": BATCH}) as stream:
        assert stream.headers["content-type"] == BATCH
        lines = stream.iter_lines()
        read = next(batch for batch in map(read_cloud_events, lines) if batch)
        assert list(map(describe, read)) == list(map(describe, events[: len(read)]))
        names = {"event_type": "eventtype", "partition": "partition", "offset": "offset", "cursor_token": "cursortoken"}
        cursor = {name: read[-1].get_extension(attribute) for name, attribute in names.items()}
        answer = api.post(
            f"/subscriptions/{subscription}/cursors",
            json={"items": [cursor]},
            headers={"X-Nakadi-StreamId": stream.headers["X-Nakadi-StreamId"]},
        )
        assert answer.status_code == 204, answer.text
    [committed] = api.get(f"/subscriptions/{subscription}/cursors").json()["items"]
    assert committed["offset"] == cursor["offset"]


def test_every_reader_gets_attributes_and_trace_context(api, event_type):
    """Readers of events in Nakadi's form find the attributes and the trace context in the metadata. (E2, E3, E7)"""
    publish(api, event_type, batch_of(a_cloud_event()))

    [line] = api.get(f"/event-types/{event_type}/events?stream_limit=1", headers=BEGIN).text.splitlines()
    [event] = json.loads(line)["events"]
    assert event["metadata"]["span_ctx"] == TRACE
    assert event["metadata"]["cloudevent"]["id"] == "A-0"
    assert event["metadata"]["event_type"] == event_type


def test_events_without_a_trace_get_that_of_their_request(api, event_type):
    """An event without a trace context gets that of its request, in a batch in Nakadi's form and as a CloudEvent; an
    event's own trace takes precedence. (E7, E10)
    """
    own = {"span_ctx": {"traceparent": "own"}}
    events = [{"metadata": metadata(eid=str(uuid4())) | more} for more in ({}, own, {"flow_id": "f"})]
    path = f"/event-types/{event_type}/events"
    api.post(path, json=events, headers=TRACE).raise_for_status()
    publish(api, event_type, batch_of(CloudEvent({"source": "/a", "type": "b"}, {})), **TRACE)

    lines = api.get(f"{path}?batch_limit=4&stream_limit=4", headers=BEGIN).text.splitlines()
    stored = [event["metadata"]["span_ctx"] for line in lines for event in json.loads(line)["events"]]
    assert stored == [TRACE, own["span_ctx"], TRACE, TRACE]


def test_an_event_in_nakadis_form_is_a_cloud_event(api, event_type):
    """The SDK reads an event in Nakadi's form as a CloudEvent, with the content of its metadata. (E20, E21)"""
    eid = str(uuid4())
    metadata = {"eid": eid, "occurred_at": "2026-01-01T00:00:00Z", "span_ctx": TRACE}
    api.post(f"/event-types/{event_type}/events", json=[{"metadata": metadata, "n": 1}]).raise_for_status()

    [read] = read_cloud_events(read_low_level(api, event_type, 1).content)
    assert (read.get_id(), read.get_type()) == (eid, event_type)
    assert read.get_extension("traceparent") == TRACE["traceparent"]
    assert read.get_data()["metadata"]["flow_id"]


def test_data_change_events_and_events_without_a_category(api):
    """The data of a CloudEvent become the members of a data change event, or of an event without a category. (E6)"""
    change = {"data_type": "order", "data_op": "C", "data": {"n": 1}}
    data = create_event_type(
        api, a_business_definition(category="data", cleanup_policy="compact", partition_strategy="random")
    )["name"]
    undefined = create_event_type(api)["name"]
    attributes = {"id": str(uuid4()), "source": "/a", "type": "b", "partitionkey": "k"}

    assert publish(api, data, batch_of(CloudEvent(attributes, change))).status_code == 200
    assert publish(api, undefined, batch_of(CloudEvent(attributes, {"n": 1}))).status_code == 200
    [first], [second] = (read_cloud_events(read_low_level(api, name, 1).content) for name in (data, undefined))
    assert (first.get_data(), second.get_data()) == (change, {"n": 1})
    assert {first.get_extension("partitionkey"), second.get_extension("partitionkey")} == {"k"}


def test_refused_events_are_named_by_their_ids(api):
    """If events are refused, the items of the answer have the `id` of a CloudEvent beside the `eid`. (E8)"""
    name = create_event_type(api, a_business_definition(schema={"required": ["missing"]}))["name"]

    answer = publish(api, name, batch_of(a_cloud_event(1), a_cloud_event(2)))
    assert answer.status_code == 422
    assert [each["id"] for each in answer.json()] == ["A-1", "A-2"]
    assert [each["publishing_status"] for each in answer.json()] == ["failed", "aborted"]


@pytest.mark.parametrize(
    ("body", "content_type", "headers", "status"),
    [
        ('[{"specversion": "1.0", "source": "/a", "type": "b"}]', BATCH, {}, 422),
        ('[{"specversion": "0.3", "id": "1", "source": "/a", "type": "b"}]', BATCH, {}, 422),
        ('{"specversion": "1.0", "id": "1", "source": "/a"}', "application/cloudevents+json", {}, 422),
        ('[{"specversion": "1.0", "id": "1", "source": "/a", "type": "b", "data": 1}]', BATCH, {}, 422),
        ("[{}", BATCH, {}, 400),
        ("{}", BATCH, {}, 400),
        ("[]", "application/cloudevents+json", {}, 400),
        ("x", "application/cloudevents+avro", {}, 415),
        ("{}", "application/json", {"ce-id": "1"}, 422),
        ("{}", "application/json", {"ce-id": "%", "ce-source": "/a", "ce-type": "b", "ce-specversion": "1.0"}, 422),
        ("{}", "text/plain", {"ce-id": "1", "ce-source": "/a", "ce-type": "b", "ce-specversion": "1.0"}, 415),
        ("x", "application/json", {"ce-id": "1", "ce-source": "/a", "ce-type": "b", "ce-specversion": "1.0"}, 400),
        (
            "{}",
            "application/json",
            {"ce-id": "1" * 8193, "ce-source": "/a", "ce-type": "b", "ce-specversion": "1.0"},
            413,
        ),
    ],
)
def test_bad_cloud_events_are_problems(api, event_type, body, content_type, headers, status):
    """A request with an invalid CloudEvent stores nothing. (E9)"""
    assert problem(publish(api, event_type, body, content_type, **headers), status)
    [partition] = api.get(f"/event-types/{event_type}/partitions").json()
    assert partition["newest_available_offset"].endswith("-1")


def test_cloud_events_delete_nothing(api):
    """A request that deletes events is refused if it has CloudEvents. (E9)"""
    name = create_event_type(api, a_business_definition(cleanup_policy="compact"))["name"]
    answer = api.post(
        f"/event-types/{name}/deleted-events", content=batch_of(a_cloud_event()), headers={"content-type": BATCH}
    )
    assert "events are deleted as JSON" in problem(answer, 415)


def test_a_keep_alive_is_an_empty_batch(api, event_type):
    """A keep-alive of a stream of CloudEvents is an empty batch. (E23)"""
    path = f"/event-types/{event_type}/events?batch_flush_timeout=1&stream_timeout=1&stream_keep_alive_limit=1"
    assert api.get(path, headers=BEGIN | {"accept": BATCH}).content == b"[]\n"

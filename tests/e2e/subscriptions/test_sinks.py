"""Subscriptions whose events the broker delivers itself."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest
from standardwebhooks import Webhook

from nakadi.delivery import courier, lanes
from nakadi.engines.common.key_file import AesSecretBox
from nakadi.local import Broker
from nakadi.model.outcomes import Unavailable
from nakadi.streaming import feeds
from tests.support import avro, everything, kafka
from tests.support.api import a_business_definition, an_authorization, create_event_type, problem
from tests.support.consumer import Consumer
from tests.support.http import check_against_description
from tests.support.metrics import sample_value, scrape
from tests.support.parking import COUNT, PARKING, POLICY, a_keyed_definition, parked_ids, publish_events
from tests.support.patience import PATIENCE, until
from tests.support.receiver import ON_LOOPBACK, ON_LOOPBACK_VARIABLES, Receiver, a_sink, delivering_quickly
from tests.support.subscriptions import (
    a_cursor,
    a_request,
    a_subscription_authorization,
    change_request,
    committed_offsets,
    create_subscription,
    offset_text,
    publish,
    reset,
)
from tests.support.tokens import Issuer
from tests.support.workers import start_broker

ENGINES = [*(["memory"] if everything.WANTED else []), "sqlite", *(["kafka"] if kafka.ALL else [])]


@pytest.fixture(scope="module", autouse=True)
def speed_up_deliveries() -> Iterator[None]:
    with delivering_quickly():
        yield


@pytest.fixture(scope="module", params=ENGINES)
def api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path_factory.mktemp('sinks')}/nakadi.db"
    log = kafka.url() if request.param == "kafka" else url
    with (
        Broker(registry=url, event_log=log, **ON_LOOPBACK) as broker,
        check_against_description(httpx.Client(base_url=broker.url, timeout=PATIENCE)) as api,
    ):
        yield api


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


def sink_path(subscription: dict[str, Any], *rest: str) -> str:
    return "/".join(("/subscriptions", subscription["id"], "sink", *rest))


def register(api: httpx.Client, subscription: dict[str, Any], receiver: Receiver, **fields: Any) -> dict[str, Any]:
    answer = api.put(sink_path(subscription), json=a_sink(receiver, **fields))
    assert answer.status_code == 201, answer.text
    return answer.json()


def delivery_report(api: httpx.Client, subscription: dict[str, Any]) -> dict[str, Any]:
    return api.get(sink_path(subscription)).json().get("deliveries") or {}


def numbers(events: list[Any]) -> list[int]:
    return [each["n"] for each in events]


def test_events_are_delivered_in_order_signed_and_committed(api, receiver):
    """A delivery is a batch as a stream would send it, signed so that the published library for webhooks verifies it.
    (X1, X3, X10)
    """
    subscription = create_subscription(api, read_from="begin")
    [name] = subscription["event_types"]
    publish(api, name, 250)
    sink = register(api, subscription, receiver, headers={"x-team": "shop"})
    assert numbers(receiver.wait_for(250)) == list(range(250))
    until(lambda: committed_offsets(api, subscription)[name, "0"] == offset_text(249))
    for each in receiver.received:
        verified = Webhook(sink["secret"]).verify(each.body, dict(each.headers))
        assert len(verified["events"]) <= 100
        assert verified["cursor"]["event_type"] == name
        assert (each.headers["x-team"], each.headers["content-type"]) == ("shop", "application/json")


READ_SCHEMA = {"properties": {"n": {"type": "integer"}, "name": {"type": "string"}}}
PEOPLE = [{"n": 0, "name": "Ann"}, {"n": 1, "name": "Bob"}, {"n": 2, "name": "Ann"}]


def test_a_projection_holds_for_sinks(api, receiver):
    """A filter sees whole events, and the sink only the declared members; a change of the declaration takes effect.
    (D12)
    """
    name = create_event_type(api, schema=READ_SCHEMA)["name"]
    subscription = create_subscription(api, name, read_from="begin", reads=["n"], projection=True)
    register(api, subscription, receiver, filter="name == 'Ann'")
    assert api.post(f"/event-types/{name}/events", json=PEOPLE).status_code == 200
    assert receiver.wait_for(2) == [{"n": 0}, {"n": 2}]
    until(lambda: committed_offsets(api, subscription).get((name, "0")) == offset_text(2))

    answer = api.put(f"/subscriptions/{subscription['id']}", json=change_request(subscription, projection=False))
    assert answer.status_code == 204, answer.text
    published = len(PEOPLE)

    def publish_and_see_whole() -> bool:
        nonlocal published
        assert api.post(f"/event-types/{name}/events", json=[PEOPLE[0]]).status_code == 200
        published += 1
        return receiver.wait_for(published - 1)[-1] == PEOPLE[0]

    until(publish_and_see_whole)


@pytest.mark.parametrize("sink_format", ["cloudevents", "nakadi"])
def test_a_projection_holds_for_each_format_of_a_sink(api, receiver, sink_format):
    """In each format, a sink gets only the declared members of events. (D12)"""
    name = create_event_type(api, schema=READ_SCHEMA)["name"]
    subscription = create_subscription(api, name, read_from="begin", reads=["n"], projection=True)
    register(api, subscription, receiver, format=sink_format)
    assert api.post(f"/event-types/{name}/events", json=PEOPLE).status_code == 200
    until(lambda: any(b'"n":2' in each.body for each in receiver.received))
    assert all(b"Ann" not in each.body and b"Bob" not in each.body for each in receiver.received)


@pytest.mark.parametrize("sink_format", ["nakadi", "cloudevents"])
def test_events_in_avro_are_delivered_as_json(api, receiver, sink_format):
    """A filter and the sink see the fields of the record. (X6, X34, P152)"""
    name = create_event_type(api, a_business_definition() | {"schema": avro.schema_draft()})["name"]
    subscription = create_subscription(api, name, read_from="begin")
    register(api, subscription, receiver, format=sink_format, filter="id == 'b' and metadata.version == '1.0.0'")
    envelopes = [avro.an_envelope(name, avro.encode(avro.ORDER, {"id": each, "lines": [1]})) for each in "abc"]
    published = api.post(
        f"/event-types/{name}/events",
        content=avro.a_batch(*envelopes),
        headers={"content-type": "application/avro-binary"},
    )
    assert published.status_code == 200, published.text

    [delivered] = receiver.wait_for(1)

    event = delivered if sink_format == "nakadi" else delivered["data"]
    assert (event["id"], event["lines"]) == ("b", [1])
    until(lambda: committed_offsets(api, subscription).get((name, "0")) == offset_text(2))


def test_a_copy_needs_a_json_schema(api):
    """Events are copied as JSON, so the target event type must have, or have had, a JSON schema. (X37, P75, P76)"""
    subscription = create_subscription(api)
    target = create_event_type(api, a_business_definition() | {"schema": avro.schema_draft()})["name"]
    refused = api.put(sink_path(subscription), json={"type": "event-type", "name": target})
    assert "must be an event type with a JSON schema" in problem(refused, 422)

    target = create_event_type(api, a_business_definition())["name"]
    assert api.post(f"/event-types/{target}/schemas", json=avro.schema_draft()).status_code == 200
    assert api.put(sink_path(subscription), json={"type": "event-type", "name": target}).status_code == 201


def test_a_sink_may_come_with_its_subscription(api, receiver):
    """A subscription may be created together with its sink, and a repeated request finds both. (X1, X2)"""
    name = create_event_type(api)["name"]
    request = a_request(name, sink=a_sink(receiver))
    made, found = api.post("/subscriptions", json=request), api.post("/subscriptions", json=request)
    assert (made.status_code, found.status_code) == (201, 200)
    assert made.json()["sink"]["secret"].startswith("whsec_")
    assert "secret" not in found.json()["sink"]
    until(lambda: delivery_report(api, made.json()))
    publish(api, name, 1)
    assert numbers(receiver.wait_for(1)) == [0]


def test_a_wrong_sink_makes_no_subscription(api):
    """If the sink in a request for a subscription is invalid, no subscription is created. (X2)"""
    name = create_event_type(api)["name"]
    answer = api.post("/subscriptions", json=a_request(name, sink={"type": "http", "url": "ftp://a.example"}))
    assert "sink.url" in problem(answer, 422)
    assert api.get("/subscriptions", params={"event_type": name}).json()["items"] == []


def test_another_event_type_gets_a_copy(api):
    """A sink may be another event type, to which the broker publishes the events in order, with their ids. (X37,
    X34)
    """
    name = create_event_type(api, a_business_definition())["name"]
    copy = create_event_type(api, a_business_definition())["name"]
    subscription = create_subscription(api, name, read_from="begin")
    answer = api.put(sink_path(subscription), json={"type": "event-type", "name": copy, "filter": "n >= 3"})
    assert (answer.status_code, answer.json().get("secret")) == (201, None), answer.text
    assert (answer.json()["type"], answer.json()["name"]) == ("event-type", copy)
    ids = [str(uuid4()) for _ in range(8)]
    events = [{"n": n, "metadata": {"eid": eid, "occurred_at": "2026-01-01T00:00:00Z"}} for n, eid in enumerate(ids)]
    assert api.post(f"/event-types/{name}/events", json=events).status_code == 200
    copied = create_subscription(api, copy, read_from="begin")

    def read() -> list[Any]:
        found = api.get(
            f"/subscriptions/{copied['id']}/events",
            # The stream ends when nothing is committed.
            params={"stream_timeout": 60, "batch_flush_timeout": 1, "batch_limit": 100, "commit_timeout": 1},
        )
        return [each for line in found.text.splitlines() for each in json.loads(line).get("events", ())]

    until(lambda: committed_offsets(api, subscription).get((name, "0")) == offset_text(7))
    found = read()
    assert numbers(found) == [3, 4, 5, 6, 7]
    assert [each["metadata"]["eid"] for each in found] == ids[3:]
    assert {each["metadata"]["event_type"] for each in found} == {copy}
    assert api.post(sink_path(subscription, "test")).json()["text"] == ""
    problem(api.post(sink_path(subscription, "secret", "rotate")), 422)


def test_copies_may_not_go_around_in_a_circle(api):
    """A circle over several event types is refused, too; copies of a sink that is being replaced do not count. (X63)"""
    names = [create_event_type(api)["name"] for _ in range(3)]
    subscriptions = [create_subscription(api, name) for name in names]

    def copy(source: int, target: int) -> httpx.Response:
        return api.put(sink_path(subscriptions[source]), json={"type": "event-type", "name": names[target]})

    assert copy(0, 1).status_code == 201
    assert copy(1, 2).status_code == 201
    assert api.post(sink_path(subscriptions[1], "pause")).status_code == 204
    assert f"must not be copied back to {names[2]}" in problem(copy(2, 0), 422)
    sink = {"type": "event-type", "name": names[0]}
    request = a_request(names[2], sink=sink, consumer_group="another")
    problem(api.post("/subscriptions", json=request), 422)
    assert copy(0, 2).status_code == 200
    assert "must not be copied back" in problem(copy(2, 1), 422)
    assert api.delete(sink_path(subscriptions[1])).status_code == 204
    assert copy(2, 1).status_code == 201


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": "nowhere"}, "must be an event type"),
        ({"name": ""}, "must not be an event type of the subscription"),
        ({}, 'Field "name" must not be null'),
        ({"name": "nowhere", "secret": "generated"}, "must not be there"),
        ({"name": "nowhere", "headers": {"a": "b"}}, "must not be there"),
        ({"name": "nowhere", "format": "cloudevents"}, "must be nakadi"),
    ],
)
def test_what_a_copy_may_not_be(api, fields, said):
    """A sink that copies events needs another existing event type, and has no secret, headers or other format. (X37)"""
    subscription = create_subscription(api)
    body = {"type": "event-type", **fields}
    if body.get("name") == "":
        body["name"] = subscription["event_types"][0]
    assert said in problem(api.put(sink_path(subscription), json=body), 422)


def test_deliveries_fail_on_demand():
    """To test a receiver, the broker can be made to lose an answer: the same batch comes again, under its id. (X12)"""
    with (
        Receiver() as receiver,
        Broker(**ON_LOOPBACK) as broker,
        httpx.Client(base_url=broker.url, timeout=PATIENCE) as api,
    ):
        subscription = create_subscription(api, read_from="begin")
        [name] = subscription["event_types"]
        broker.faults.fail_deliveries(500, event_type="another", times=100)
        broker.faults.fail_deliveries(503, event_type=name, partition="0", times=2)
        broker.faults.lose_answers(event_type=name)
        broker.faults.delay_deliveries(0.01)
        publish(api, name, 2)
        register(api, subscription, receiver)
        assert numbers(receiver.wait_for(4)) == [0, 1, 0, 1]
        assert len({each.headers["webhook-id"] for each in receiver.received}) == 1
        until(lambda: committed_offsets(api, subscription)[name, "0"] == offset_text(1))

        def statuses() -> list[int | None]:
            return [each["status"] for each in delivery_report(api, subscription)["recent_attempts"]]

        # The broker reports the result at most some seconds later.
        until(lambda: statuses() == [204, None, 503, 503])


def test_a_filter_leaves_events_out_and_commits_them(api, receiver):
    """Batches contain only events that meet the condition; the others count as consumed. (X34)"""
    subscription = create_subscription(api, read_from="begin")
    [name] = subscription["event_types"]
    publish(api, name, 50)
    sink = register(api, subscription, receiver, filter="n >= 10 and n < 20 or n == 30", batch_limit=5)
    assert sink["filter"] == "n >= 10 and n < 20 or n == 30"
    assert numbers(receiver.wait_for(11)) == [*range(10, 20), 30]
    # This includes the events after the last delivered one.
    until(lambda: committed_offsets(api, subscription)[name, "0"] == offset_text(49))
    assert [len(each.events) for each in receiver.received] == [5, 5, 1]


def test_a_filter_is_a_condition(api, receiver):
    """A filter that is not a condition is refused, with the position of the error. (X34)"""
    subscription = create_subscription(api)
    answer = api.put(sink_path(subscription), json=a_sink(receiver, filter="n = 1"))
    assert 'Field "filter" The condition is invalid at character 3' in problem(answer, 422)


def test_cloudevents(api, receiver):
    """A delivery in the format `cloudevents` is a list of CloudEvents, each with the event as its data. (X6, E24)"""
    subscription = create_subscription(api, read_from="begin")
    [name] = subscription["event_types"]
    publish(api, name, 2)
    register(api, subscription, receiver, format="cloudevents")
    until(lambda: receiver.received)
    [first] = receiver.received
    assert first.headers["content-type"] == "application/cloudevents-batch+json"
    zero, one = json.loads(first.body)
    assert (zero["specversion"], zero["type"], zero["data"]) == ("1.0", name, {"n": 0})
    assert (one["data"], one["offset"]) == ({"n": 1}, offset_text(1))
    assert zero["id"] != one["id"]


def test_what_is_secret_is_shown_once(api, receiver):
    """Neither the secret nor the values of headers are in any later answer. (X5)"""
    subscription = create_subscription(api)
    made = register(api, subscription, receiver, headers={"authorization": "Bearer 4711"})
    shown = api.get(sink_path(subscription))
    assert made["secret"].startswith("whsec_")
    assert "secret" not in shown.json()
    assert shown.json()["headers"] == {"authorization": "***"}
    replaced = api.put(sink_path(subscription), json=a_sink(receiver))
    assert replaced.status_code == 200
    assert "secret" not in replaced.json()
    own = api.put(sink_path(subscription), json=a_sink(receiver, secret="whsec_" + "A" * 40))
    for answer in (shown, replaced, own):
        assert "4711" not in answer.text
        assert made["secret"] not in answer.text
        assert "AAAA" not in answer.text


def test_secrets_are_sealed_where_they_are_stored(tmp_path, receiver):
    """The data file contains no secret in clear text, and only its owner can read the key beside it. (X5)"""
    url = f"sqlite:///{tmp_path}/nakadi.db"
    secret = "whsec_" + "QUJD" * 12
    with (
        Broker(registry=url, event_log=url, **ON_LOOPBACK) as broker,
        httpx.Client(base_url=broker.url, timeout=PATIENCE) as api,
    ):
        api.post("/settings/features", json={"feature": "audit_log_collection", "enabled": True}).raise_for_status()
        subscription = create_subscription(api, read_from="begin")
        register(api, subscription, receiver, secret=secret, headers={"authorization": "Bearer 4711"})
        publish(api, subscription["event_types"][0], 1)
        receiver.wait_for(1)
    stored = b"".join(each.read_bytes() for each in tmp_path.iterdir() if each.is_file())
    assert secret.encode() not in stored
    assert b"Bearer 4711" not in stored
    assert oct((tmp_path / "nakadi.db.key").stat().st_mode)[-3:] == "600"


def test_rotation_signs_with_both_secrets(api, receiver):
    """After a rotation, deliveries are signed with the new and with the previous secret. (X4)"""
    subscription = create_subscription(api, read_from="begin")
    old = register(api, subscription, receiver)["secret"]
    new = api.post(sink_path(subscription, "secret", "rotate")).json()["secret"]

    def is_signed_twice():
        # Until the process that delivers has looked at the sink again, it signs with the previous secret.
        count = len(receiver.accepted)
        publish(api, subscription["event_types"][0], 1)
        receiver.wait_for(count + 1)
        return " " in receiver.received[-1].headers["webhook-signature"]

    until(is_signed_twice)
    last = receiver.received[-1]
    assert new != old
    assert Webhook(new).verify(last.body, dict(last.headers)) == Webhook(old).verify(last.body, dict(last.headers))


def test_a_test_delivery_has_no_events(api, receiver):
    """A test delivery is signed, and the result shows the receiver's answer. (X7)"""
    subscription = create_subscription(api)
    secret = register(api, subscription, receiver)["secret"]
    assert api.post(sink_path(subscription, "test")).json() == {"status": 204, "text": ""}
    [only] = receiver.received
    assert Webhook(secret).verify(only.body, dict(only.headers))["events"] == []
    receiver.decide = lambda _: 500
    assert api.post(sink_path(subscription, "test")).json() == {"status": 500, "text": "cannot read it"}


def test_failed_deliveries_are_repeated_and_reported(api, receiver):
    """Failed deliveries are repeated with the same id until the sink accepts them; its answer can be read. (X12, X13,
    X19)
    """
    receiver.decide = lambda _: 500
    subscription = create_subscription(api, read_from="begin")
    [name] = subscription["event_types"]
    publish(api, name, 1)
    register(api, subscription, receiver)
    until(lambda: delivery_report(api, subscription).get("last_failure"))
    failure = delivery_report(api, subscription)["last_failure"]
    assert (failure["status"], failure["text"], failure["delivered"]) == (500, "cannot read it", False)
    assert (failure["event_type"], failure["partition"], failure["events"]) == (name, "0", 1)
    assert failure["first_offset"] == failure["last_offset"] == offset_text(0)
    assert (name, "0") not in committed_offsets(api, subscription) or committed_offsets(api, subscription)[
        name, "0"
    ] != offset_text(0)
    receiver.decide = lambda _: 200
    receiver.wait_for(1)
    assert len({each.headers["webhook-id"] for each in receiver.received}) == 1
    until(lambda: delivery_report(api, subscription).get("delivered_events") == 1)
    newest, *before = delivery_report(api, subscription)["recent_attempts"]
    assert (newest["delivered"], newest["status"], newest["text"], newest["events"]) == (True, 200, "", 1)
    assert {each["status"] for each in before} == {500}
    counted = scrape(api)
    assert sample_value(counted, "nakadi_sink_attempts_total", outcome="failed") >= 1
    assert sample_value(counted, "nakadi_sink_attempts_total", outcome="delivered") >= 1
    assert sample_value(counted, "nakadi_sinks_served") >= 1


def test_an_event_that_the_sink_cannot_process_is_parked_with_its_key(api, receiver):
    """If a sink cannot process an event, the event and later ones of its key are parked. All others are delivered in
    order; a redrive sends the parked ones. (X16)
    """
    receiver.decide = lambda events: 422 if any(each["event"] == "b1" for each in events) else 200
    subscription = create_subscription(
        api, create_event_type(api, a_keyed_definition())["name"], read_from="begin", annotations=PARKING
    )
    [name] = subscription["event_types"]
    publish_events(api, name, "a1", "b1", "a2", "b2", "c1")
    register(api, subscription, receiver)
    assert [each["event"] for each in receiver.wait_for(3)] == ["a1", "a2", "c1"]
    parked = f"/subscriptions/{subscription['id']}/parked-events"
    until(lambda: len(api.get(parked).json()["items"]) == 2)
    receiver.decide = lambda _: 200
    assert api.post(f"{parked}/redrive").status_code == 204
    assert [each["event"] for each in receiver.wait_for(5)][3:] == ["b1", "b2"]


def test_an_event_may_be_skipped(api, receiver):
    """The subscription's policy decides that an event is skipped. (X16)"""
    receiver.decide = lambda events: 500 if any(each["n"] == 1 for each in events) else 200
    subscription = create_subscription(api, read_from="begin", annotations={COUNT: "2", POLICY: "SKIP_EVENT"})
    publish(api, subscription["event_types"][0], 4)
    register(api, subscription, receiver)
    assert numbers(receiver.wait_for(3)) == [0, 2, 3]


def test_410_pauses_a_sink(api, receiver):
    """After an answer of 410, the sink is paused, its state says so, and deliveries continue when it is resumed.
    (X18)
    """
    receiver.decide = lambda _: 410
    subscription = create_subscription(api, read_from="begin")
    publish(api, subscription["event_types"][0], 1)
    register(api, subscription, receiver)
    until(lambda: api.get(sink_path(subscription)).json()["state"] == "paused")
    assert api.get(sink_path(subscription)).json()["pause"]["reason"] == "the sink answered 410"
    until(lambda: delivery_report(api, subscription).get("last_failure", {}))
    receiver.decide = lambda _: 200
    assert api.post(sink_path(subscription, "resume")).status_code == 204
    receiver.wait_for(1)
    assert api.get(sink_path(subscription)).json()["state"] == "active"


def test_a_paused_sink_gets_nothing(api, receiver):
    """A paused sink gets no events until it is resumed. (X8)"""
    subscription = create_subscription(api, read_from="begin")
    [name] = subscription["event_types"]
    register(api, subscription, receiver)
    publish(api, name, 1)
    receiver.wait_for(1)
    assert api.post(sink_path(subscription, "pause")).status_code == 204
    stats = f"/subscriptions/{subscription['id']}/stats"
    until(lambda: not api.get(stats).json()["items"][0]["partitions"][0]["stream_id"])
    publish(api, name, 1)
    assert api.get(sink_path(subscription)).json()["pause"]["reason"] == "it was paused"
    assert len(receiver.received) == 1
    assert api.post(sink_path(subscription, "resume")).status_code == 204
    receiver.wait_for(2)


def test_what_was_counted_outlasts_a_pause(api, receiver):
    """Counts survive a pause and a new secret; a sink that is removed and registered again begins at zero. (X19)"""
    subscription = create_subscription(api, read_from="begin")
    [name] = subscription["event_types"]

    def read_counts() -> dict[str, Any]:
        return dict(api.get(sink_path(subscription)).json().get("deliveries", {}))

    register(api, subscription, receiver)
    publish(api, name, 1)
    until(lambda: read_counts().get("delivered_batches") == 1)
    assert api.post(sink_path(subscription, "pause")).status_code == 204
    assert api.post(sink_path(subscription, "resume")).status_code == 204
    assert api.post(sink_path(subscription, "secret", "rotate")).status_code == 200
    publish(api, name, 1)
    until(lambda: read_counts().get("delivered_batches") == 2)
    assert [each["events"] for each in read_counts()["recent_attempts"]] == [1, 1]
    assert api.delete(sink_path(subscription)).status_code == 204
    register(api, subscription, receiver)
    until(lambda: read_counts().get("delivered_batches") == 0)


def test_resuming_tries_at_once(api, receiver, monkeypatch):
    """Resuming also works for a sink that is not paused, and whose next attempt is far away. (X8)"""
    monkeypatch.setattr(lanes, "MIN_PAUSE_SECONDS", lanes.MAX_PAUSE_SECONDS)
    receiver.decide = lambda _: 500
    subscription = create_subscription(api, read_from="begin")
    publish(api, subscription["event_types"][0], 1)
    register(api, subscription, receiver)
    until(lambda: len(receiver.received) >= 1)
    before = api.get(sink_path(subscription)).json()["updated_at"]
    receiver.decide = lambda _: 200
    assert api.post(sink_path(subscription, "resume")).status_code == 204
    receiver.wait_for(1)
    assert api.get(sink_path(subscription)).json()["updated_at"] > before


def test_a_target_that_changes_during_a_delivery(api, receiver):
    """Deliveries in progress go to the old target and are committed; all other events go to the new one, in order.
    (X65)
    """
    subscription = create_subscription(api, read_from="begin")
    [name] = subscription["event_types"]
    begun, may_answer = threading.Event(), threading.Event()
    published = iter(range(1000))

    def publish_next():
        assert api.post(f"/event-types/{name}/events", json=[{"n": next(published)}]).status_code == 200

    def answer_later(_):
        begun.set()
        may_answer.wait(PATIENCE)
        return 204

    receiver.decide = answer_later
    publish_next()
    register(api, subscription, receiver, batch_limit=1)
    assert begun.wait(PATIENCE)
    with Receiver() as other:
        assert api.put(sink_path(subscription), json=a_sink(other, batch_limit=1)).status_code == 200
        publish_next()
        may_answer.set()
        until(lambda: publish_next() or other.accepted)
        count = next(published)
        until(lambda: committed_offsets(api, subscription)[name, "0"] == offset_text(count - 1))
    assert numbers(receiver.accepted + other.accepted) == list(range(count))


def test_secrets_that_cannot_be_opened_are_waited_for(api, receiver, monkeypatch):
    """If secrets cannot be opened, for example because KMS refuses, the sink reports it, nothing is sent unsigned, and
    nothing is lost. (X47, X19)
    """
    subscription = create_subscription(api, read_from="begin")
    opened = AesSecretBox.open
    refusals = []

    def refuse(*_):
        refusals.append(1)
        raise Unavailable("The key is refused: AccessDeniedException")

    register(api, subscription, receiver)
    until(lambda: delivery_report(api, subscription))
    monkeypatch.setattr(AesSecretBox, "open", refuse)
    assert api.post(sink_path(subscription, "resume")).status_code == 204
    until(lambda: "AccessDeniedException" in (delivery_report(api, subscription).get("problem") or ""))
    publish(api, subscription["event_types"][0], 2)
    before = len(refusals)
    until(lambda: len(refusals) > before)
    assert receiver.received == []
    monkeypatch.setattr(AesSecretBox, "open", opened)
    assert numbers(receiver.wait_for(2)) == [0, 1]
    until(lambda: not delivery_report(api, subscription).get("problem"))


def test_a_removed_sink_gets_nothing(api, receiver):
    """A removed sink gets nothing; its subscription stays, and can be streamed. (X9)"""
    subscription = create_subscription(api, read_from="begin")
    register(api, subscription, receiver)
    until(lambda: delivery_report(api, subscription))
    assert api.delete(sink_path(subscription)).status_code == 204
    assert api.delete(sink_path(subscription)).status_code == 204
    problem(api.get(sink_path(subscription)), 404)
    problem(api.post(sink_path(subscription, "pause")), 404)
    stats = f"/subscriptions/{subscription['id']}/stats"
    until(lambda: not api.get(stats).json()["items"][0]["partitions"][0]["stream_id"])
    publish(api, subscription["event_types"][0], 1)
    assert not receiver.received


def test_a_deleted_subscription_takes_its_sink_along(api, receiver):
    """When a subscription is deleted, its sink is deleted too, and gets nothing more. (X9)"""
    subscription = create_subscription(api, read_from="begin")
    register(api, subscription, receiver)
    until(lambda: delivery_report(api, subscription))
    assert api.delete(f"/subscriptions/{subscription['id']}").status_code == 204
    problem(api.get(sink_path(subscription)), 404)
    publish(api, subscription["event_types"][0], 1)
    assert not receiver.received


def test_cursors_can_be_reset(api, receiver):
    """If cursors are reset, deliveries continue from the new cursors. (X1)"""
    subscription = create_subscription(api, read_from="begin")
    [name] = subscription["event_types"]
    register(api, subscription, receiver)
    publish(api, name, 3)
    receiver.wait_for(3)
    assert reset(api, subscription, a_cursor(name, offset=0)).status_code == 204
    assert numbers(receiver.wait_for(5)) == [0, 1, 2, 1, 2]


def test_partitions_are_delivered_beside_each_other(api, receiver):
    """A partition that is stuck holds up no other. (X11, X17)"""
    four = dict.fromkeys(("messages_per_minute", "message_size", "read_parallelism", "write_parallelism"), 4)
    definition = a_business_definition(default_statistic=four, partition_strategy="user_defined")
    name = create_event_type(api, definition)["name"]
    subscription = create_subscription(api, name, read_from="begin")
    receiver.decide = lambda events: 500 if any(each["p"] == 0 for each in events) else 200
    for number in range(4):
        known = {"occurred_at": "2026-01-01T00:00:00Z", "partition": str(number)}
        events = [{"p": number, "metadata": {"eid": str(uuid4()), **known}} for _ in range(3)]
        answer = api.post(f"/event-types/{name}/events", json=events)
        assert answer.status_code == 200, answer.text
    register(api, subscription, receiver, max_in_flight=2, batch_limit=1)
    assert {each["p"] for each in receiver.wait_for(9)} == {1, 2, 3}


def test_a_slow_sink_shares_its_partitions_with_a_stream(api, receiver):
    """A stream that shares partitions with a slow sink need not wait until everything that the sink has read is
    delivered. (X1)
    """
    two = dict.fromkeys(("messages_per_minute", "message_size", "read_parallelism", "write_parallelism"), 2)
    definition = a_business_definition(default_statistic=two, partition_strategy="user_defined")
    name = create_event_type(api, definition)["name"]
    subscription = create_subscription(api, name, read_from="begin")
    over = threading.Event()

    def answer_slowly(_: list[Any]) -> int:
        over.wait(0.5)
        return 204

    receiver.decide = answer_slowly
    for number in range(2):
        known = {"occurred_at": "2026-01-01T00:00:00Z", "partition": str(number)}
        # There are enough events to keep the sink busy for a minute.
        events = [{"metadata": {"eid": str(uuid4()), **known}} for _ in range(60)]
        assert api.post(f"/event-types/{name}/events", json=events).status_code == 200
    register(api, subscription, receiver, batch_limit=1)
    until(lambda: delivery_report(api, subscription).get("in_flight") == 1)
    with Consumer(api, subscription, batch_limit=1, batch_flush_timeout=1, commit_timeout=60) as stream:
        batch = stream.batch()
        assert batch is not None
        assert len(batch["events"]) == 1
    assert len(receiver.accepted) < 60
    over.set()


def a_keyed_subscription(api: httpx.Client, **fields: Any) -> tuple[dict[str, Any], str]:
    """A subscription to one partition, whose events have keys."""
    name = create_event_type(api, a_keyed_definition())["name"]
    return create_subscription(api, name, read_from="begin", **fields), name


def names(events: list[Any]) -> list[str]:
    return [each["event"] for each in events]


def test_by_key_one_partition_has_several_deliveries_at_once(api, receiver):
    """Deliveries of different keys wait for each other here, so they have to be under way together; deliveries of one
    key are not. (X60)"""
    subscription, name = a_keyed_subscription(api)
    meeting = threading.Barrier(3)

    def wait_for_the_others(_: list[Any]) -> int:
        meeting.wait(PATIENCE)
        return 204

    receiver.decide = wait_for_the_others
    publish_events(api, name, "a1", "a2", "b1", "c1", "b2", "c2")
    register(api, subscription, receiver, parallel="key", max_in_flight=3, batch_limit=1)
    delivered = names(receiver.wait_for(6))
    assert [each for each in delivered if each[0] == "a"] == ["a1", "a2"]
    assert api.get(sink_path(subscription)).json()["parallel"] == "key"
    until(lambda: committed_offsets(api, subscription)[name, "0"] == offset_text(5))


def test_by_key_a_failing_key_holds_up_no_other_and_nothing_is_delivered_again(api, receiver):
    """After a pause, another stream begins at the missing event, and repeats no delivered event; a reset repeats them.
    (X61, X62, X8)"""
    subscription, name = a_keyed_subscription(api)
    receiver.decide = lambda events: 500 if any(each["key"] == "a" for each in events) else 204
    publish_events(api, name, "b1", "a1", "b2", "c1", "a2", "b3")
    register(api, subscription, receiver, parallel="key", batch_limit=1)
    assert sorted(names(receiver.wait_for(4))) == ["b1", "b2", "b3", "c1"]
    until(lambda: committed_offsets(api, subscription)[name, "0"] == offset_text(0))
    until(lambda: delivery_report(api, subscription).get("delivered_events") == 4)
    assert api.post(sink_path(subscription, "pause")).status_code == 204
    until(
        lambda: (
            not api.get(f"/subscriptions/{subscription['id']}/stats").json()["items"][0]["partitions"][0]["stream_id"]
        )
    )
    receiver.decide = lambda _: 204
    assert api.post(sink_path(subscription, "resume")).status_code == 204
    assert names(receiver.wait_for(6))[4:] == ["a1", "a2"]
    until(lambda: committed_offsets(api, subscription)[name, "0"] == offset_text(5))
    assert reset(api, subscription, a_cursor(name, offset=2)).status_code == 204
    assert sorted(names(receiver.wait_for(9))[6:]) == ["a2", "b3", "c1"]


def test_a_sink_that_is_down_does_not_fill_the_memory(tmp_path, monkeypatch):
    """Only some of the waiting events are in memory, limited in bytes; eventually, the sink gets everything. (X64)"""
    monkeypatch.setattr(courier, "MAX_BYTES_AT_HAND_OF_SINK", 100_000)
    monkeypatch.setattr(feeds, "MAX_CHUNK_BYTES", 50_000)
    events, event_bytes = 60, 10_000
    is_down = threading.Event()
    is_down.set()
    url = f"sqlite:///{tmp_path}/nakadi.db"
    with (
        Receiver(lambda _: 503 if is_down.is_set() else 204) as receiver,
        Broker(registry=url, event_log=url, **ON_LOOPBACK) as broker,
        httpx.Client(base_url=broker.url, timeout=PATIENCE) as api,
    ):
        subscription, name = a_keyed_subscription(api)
        body = [{"key": str(number % 7), "n": number, "text": "x" * event_bytes} for number in range(events)]
        assert api.post(f"/event-types/{name}/events", json=body).status_code == 200
        register(api, subscription, receiver, parallel="key", max_in_flight=3, batch_limit=2)

        def read_held_bytes():
            return sample_value(scrape(api), "nakadi_sink_bytes_held")

        until(lambda: read_held_bytes() >= 100_000)
        until(lambda: len(receiver.received) >= 6)
        assert read_held_bytes() <= 100_000 + 2 * 50_000
        is_down.clear()
        assert sorted(numbers(receiver.wait_for(events))) == list(range(events))
        until(lambda: read_held_bytes() == 0)


def test_by_key_an_event_is_parked_with_its_key_and_sent_again(api, receiver):
    """While an event is parked with its key, other events of its partition are delivered, and are not repeated when the
    parked ones are sent. (X16, X62)
    """
    subscription, name = a_keyed_subscription(api, annotations=PARKING)
    receiver.decide = lambda events: 422 if any(each["event"] == "a1" for each in events) else 204
    publish_events(api, name, "a1", "b1", "a2", "c1", "b2")
    register(api, subscription, receiver, parallel="key", max_in_flight=2, batch_limit=1)
    until(lambda: len(parked_ids(api, subscription)) == 2)
    assert sorted(names(receiver.wait_for(3))) == ["b1", "b2", "c1"]
    until(lambda: committed_offsets(api, subscription)[name, "0"] == offset_text(4))
    receiver.decide = lambda _: 204
    answer = api.post(f"/subscriptions/{subscription['id']}/parked-events/redrive")
    assert answer.status_code == 204, answer.text
    assert names(receiver.wait_for(5))[3:] == ["a1", "a2"]


def test_who_may_register_a_sink(tmp_path, receiver):
    """Only an administrator of the subscription who may read its event types may register a sink; others may not
    even pause it. (X2a)
    """
    issuer = Issuer(tmp_path)
    with Broker(**issuer.settings, **ON_LOOPBACK) as broker:
        ann, bob, eve = (
            httpx.Client(base_url=broker.url, timeout=PATIENCE, headers=issuer.bearer(name))
            for name in ("ann", "bob", "eve")
        )
        name = create_event_type(ann, authorization=an_authorization("ann", "ann bob", "ann"))["name"]
        lists = a_subscription_authorization("ann bob", "ann bob eve")
        subscription = create_subscription(ann, name, read_from="begin", authorization=lists)
        problem(eve.put(sink_path(subscription), json=a_sink(receiver)), 403)
        assert bob.put(sink_path(subscription), json=a_sink(receiver)).status_code == 201
        assert eve.get(sink_path(subscription)).status_code == 200
        for operation in ("test", "pause", "resume", "secret/rotate"):
            problem(eve.post(sink_path(subscription, operation)), 403)
        problem(eve.delete(sink_path(subscription)), 403)
        publish(ann, name, 1)
        receiver.wait_for(1)
        for each in (ann, bob, eve):
            each.close()


def test_delivery_continues_after_a_restart(tmp_path, receiver):
    """A broker that ends lets deliveries in progress finish: nothing is delivered twice. (X30)"""
    url = f"sqlite:///{tmp_path}/nakadi.db"
    settings = {"registry": url, "event_log": url, **ON_LOOPBACK}
    with Broker(**settings) as broker, httpx.Client(base_url=broker.url, timeout=PATIENCE) as api:
        subscription = create_subscription(api, read_from="begin")
        [name] = subscription["event_types"]
        secret = register(api, subscription, receiver)["secret"]
        publish(api, name, 3)
        receiver.wait_for(3)
    with Broker(**settings) as broker, httpx.Client(base_url=broker.url, timeout=PATIENCE) as api:
        publish(api, name, 2)
        assert numbers(receiver.wait_for(5)) == [0, 1, 2, 0, 1]
    last = receiver.received[-1]
    assert Webhook(secret).verify(last.body, dict(last.headers))


def test_sinks_are_spread_over_workers_and_taken_over(tmp_path, receiver):
    """Each sink has one process; if that is killed, another one continues, and nothing is lost. (X31, X32)"""
    with start_broker(tmp_path, ON_LOOPBACK_VARIABLES) as program:
        with httpx.Client(base_url=program.url, timeout=PATIENCE) as api:
            made = [create_subscription(api, read_from="begin") for _ in range(6)]
            for each in made:
                register(api, each, receiver)
            for each in made:
                publish(api, each["event_types"][0], 1)
            receiver.wait_for(6)
        os.kill(program.workers[0], signal.SIGKILL)
        with httpx.Client(transport=httpx.HTTPTransport(retries=5), base_url=program.url, timeout=PATIENCE) as api:
            for each in made:
                publish(api, each["event_types"][0], 1)

            def delivered_places() -> set[tuple[str, int]]:
                return {
                    (json.loads(each.body)["cursor"]["event_type"], int(json.loads(each.body)["cursor"]["offset"][-3:]))
                    for each in tuple(receiver.received)
                }

            until(lambda: {(each["event_types"][0], 1) for each in made} <= delivered_places())

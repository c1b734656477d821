"""Sinks of the AWS deployment on this machine, with the permissions of its roles."""

import io
import json
import time
import zipfile

import httpx
import pytest
from standardwebhooks import Webhook

from infra.laptop.templates import ACCOUNT, REGION
from tests.support.api import create_event_type
from tests.support.aws_targets import receive_all
from tests.support.laptop import OPEN
from tests.support.parking import a_keyed_definition, publish_events
from tests.support.patience import PATIENCE, until
from tests.support.receiver import ON_LOOPBACK_VARIABLES, Receiver
from tests.support.subscriptions import committed_offsets, create_subscription, offset_text, publish


@pytest.fixture(scope="module")
def api(laptop):
    front = laptop.front(authorizes=False, settings={**OPEN, **ON_LOOPBACK_VARIABLES})
    with httpx.Client(base_url=front.url, timeout=PATIENCE) as client:
        yield client
    front.close()


def register(api, sink):
    subscription = create_subscription(api, read_from="begin")
    path = f"/subscriptions/{subscription['id']}/sink"
    answer = api.put(path, json=sink)
    assert answer.status_code == 201, answer.text
    return subscription["event_types"][0], path, answer.json()


def count_delivered(api, path):
    return api.get(path).json().get("deliveries", {}).get("delivered_events", 0)


@pytest.mark.long("tests/infra/test_streaming.py::test_tasks_deliver_to_what_the_context_names_and_to_nothing_else")
def test_the_deployment_delivers_over_http(api):
    """A function seals the secret, a task opens it, and both have the permissions for it. (X7, X47, X48)"""
    with Receiver() as receiver:
        name, path, stored = register(api, {"type": "http", "url": receiver.url})
        assert api.post(f"{path}/test").json()["status"] == 204
        publish(api, name, 2)
        assert receiver.wait_for(2) == [{"n": 0}, {"n": 1}]
        last = receiver.received[-1]
        assert Webhook(stored["secret"]).verify(last.body, dict(last.headers))["events"]
        rotated = api.post(f"{path}/secret/rotate")
        assert rotated.status_code == 200, rotated.text


@pytest.mark.long("tests/infra/test_streaming.py::test_tasks_deliver_to_what_the_context_names_and_to_nothing_else")
def test_the_deployment_keeps_what_is_delivered_ahead_of_a_key_that_fails(api):
    """Deliveries ahead of the cursor are in DynamoDB, beside it, so that another stream delivers only the missing
    events. (X60, X61, X62)
    """
    name = create_event_type(api, a_keyed_definition())["name"]
    subscription = create_subscription(api, name, read_from="begin")
    path = f"/subscriptions/{subscription['id']}/sink"
    publish_events(api, name, "b1", "a1", "b2", "c1", "a2", "b3")
    with Receiver(lambda events: 500 if any(each["key"] == "a" for each in events) else 204) as receiver:
        sink = {"type": "http", "url": receiver.url, "parallel": "key", "max_in_flight": 3, "batch_limit": 1}
        assert api.put(path, json=sink).status_code == 201
        assert sorted(each["event"] for each in receiver.wait_for(4)) == ["b1", "b2", "b3", "c1"]
        until(lambda: committed_offsets(api, subscription)[name, "0"] == offset_text(0))
        until(lambda: count_delivered(api, path) == 4)
        receiver.decide = lambda _: 204
        # After this request, another stream delivers.
        assert api.post(f"{path}/resume").status_code == 204
        assert [each["event"] for each in receiver.wait_for(6)[4:]] == ["a1", "a2"]
        until(lambda: committed_offsets(api, subscription)[name, "0"] == offset_text(5))
        assert len(receiver.accepted) == 6


@pytest.mark.long("tests/infra/test_streaming.py::test_tasks_deliver_to_what_the_context_names_and_to_nothing_else")
def test_the_deployment_finds_a_sink_and_delivers_by_key_soon(api, record_property):
    """The first delivery follows soon after the registration, and a backlog of 300 events is delivered in order by key.
    (X1, X60)
    """
    name = create_event_type(api, a_keyed_definition())["name"]
    subscription = create_subscription(api, name, read_from="begin")
    expected = [f"{'abcdefghij'[number % 10]}{number}" for number in range(300)]
    publish_events(api, name, *expected)
    with Receiver() as receiver:
        sink = {"type": "http", "url": receiver.url, "parallel": "key", "max_in_flight": 5, "batch_limit": 10}
        assert api.put(f"/subscriptions/{subscription['id']}/sink", json=sink).status_code == 201
        began = time.monotonic()
        receiver.wait_for(1)
        record_property("seconds_until_first_delivery", round(time.monotonic() - began, 2))
        print(f"first delivery after {time.monotonic() - began:.2f} s")
        got = [each["event"] for each in receiver.wait_for(300)]
    assert sorted(got) == sorted(expected)
    for key in "abcdefghij":
        assert [each for each in got if each[0] == key] == [each for each in expected if each[0] == key]


@pytest.mark.long("tests/infra/test_streaming.py::test_tasks_deliver_to_what_the_context_names_and_to_nothing_else")
def test_the_deployment_delivers_to_functions_queues_topics_and_buses(api, laptop):
    """The deployment delivers to services of AWS, for which the role of its tasks has the permissions. (X39, X42,
    X46, X48)
    """
    sqs, sns, events = (laptop.cloud.client(each) for each in ("sqs", "sns", "events"))
    url = sqs.create_queue(QueueName="orders.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    sinks = {
        "sqs": {"queue": f"arn:aws:sqs:{REGION}:{ACCOUNT}:orders.fifo"},
        "sns": {"topic": sns.create_topic(Name="orders")["TopicArn"]},
        "eventbridge": {"bus": events.create_event_bus(Name="orders")["EventBusArn"]},
        "lambda": {"function": a_function(laptop)},
    }
    registered = {kind: register(api, {"type": kind, **target}) for kind, target in sinks.items()}
    for name, _, _ in registered.values():
        publish(api, name, 2)
    found = []
    until(lambda: found.extend(receive_all(sqs, url)) or len(found) == 2)
    assert [json.loads(each["Body"]) for each in found] == [{"n": 0}, {"n": 1}]
    until(lambda: all(count_delivered(api, path) == 2 for _, path, _ in registered.values()))


def a_function(laptop):
    code = io.BytesIO()
    with zipfile.ZipFile(code, "w") as archive:
        archive.writestr("ship.py", "def ship(batch, context): pass")
    role = laptop.cloud.client("iam").create_role(RoleName="ship", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    return laptop.cloud.client("lambda").create_function(
        FunctionName="ship",
        Runtime="python3.13",
        Role=role,
        Handler="ship.ship",
        Code={"ZipFile": code.getvalue()},
    )["FunctionArn"]

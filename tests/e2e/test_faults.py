"""Faults on demand, as clients see them."""

import json

import httpx
import pytest

from nakadi.local import Broker
from tests.support import kafka
from tests.support.api import create_event_type, problem
from tests.support.http import check_against_description
from tests.support.patience import PATIENCE

BY_KEY = {
    "schema": {"properties": {"a": {"type": "string"}}},
    "partition_strategy": "hash",
    "partition_key_fields": ["a"],
    "default_statistic": {
        "messages_per_minute": 1,
        "message_size": 1,
        "read_parallelism": 2,
        "write_parallelism": 2,
    },
}


@pytest.fixture(params=["memory", "kafka"])
def broker(request):
    with Broker(event_log=kafka.url() if request.param == "kafka" else "memory:") as broker:
        yield broker


@pytest.fixture
def api(broker):
    with check_against_description(httpx.Client(base_url=broker.url, timeout=PATIENCE)) as client:
        yield client


@pytest.fixture
def name(api):
    """The name of an event type whose events `a` and `b` go to two partitions."""
    return create_event_type(api, **BY_KEY)["name"]


def publish(api, name):
    return api.post(f"/event-types/{name}/events", json=[{"a": "a"}, {"a": "b"}])


def read_stored_events(api, name):
    partitions = api.get(f"/event-types/{name}/partitions").json()
    return sum(int(each["newest_available_offset"].split("-", 2)[2]) + 1 for each in partitions)


def test_a_refused_partition_fails_alone(broker, api, name):
    """If one partition cannot be written, only its events fail, and a retry stores them. (P111, P115)"""
    broker.faults.refuse(event_type=name, partition="0", times=1)

    answer = publish(api, name)

    assert answer.status_code == 207
    statuses = {each["partition"]: (each["publishing_status"], each["detail"]) for each in answer.json()}
    assert statuses == {"0": ("failed", "internal error"), "1": ("submitted", "")}
    assert read_stored_events(api, name) == 1
    assert publish(api, name).status_code == 200


def test_when_all_fail_it_is_still_207(broker, api, name):
    """A write in which nothing was stored gets the same status as one in which some events were. (P112)"""
    broker.faults.refuse(event_type=name, times=2)

    answer = publish(api, name)

    assert answer.status_code == 207
    assert {each["publishing_status"] for each in answer.json()} == {"failed"}


def test_a_timeout_may_have_stored_the_events(broker, api, name):
    """Events may be stored in spite of a timeout; a client that repeats them stores them twice. (P111, P115)"""
    broker.faults.time_out(event_type=name, times=2)

    answer = publish(api, name)

    assert {each["detail"] for each in answer.json()} == {"timed out"}
    assert read_stored_events(api, name) == 2
    publish(api, name)
    assert read_stored_events(api, name) == 4


def test_a_log_that_is_stopped_is_reported_as_such(broker, api, name):
    """While the log does not answer, requests get 503 or fail item by item, and nothing is lost. (C29)"""
    publish(api, name)
    broker.faults.stop()

    assert publish(api, name).status_code in (207, 503)
    assert "retry-after" in api.get(f"/event-types/{name}/partitions").headers
    problem(api.get(f"/event-types/{name}/partitions"), 503)
    broker.faults.resume()

    assert read_stored_events(api, name) == 2


def test_a_delivery_can_be_repeated(broker, api, name):
    """With a fault, a test makes the broker deliver events again, which every client has to handle."""
    publish(api, name)
    publish(api, name)
    broker.faults.repeat(1, event_type=name)
    cursors = json.dumps([{"partition": "0", "offset": "001-0001-000000000000000000"}])

    answer = api.get(
        f"/event-types/{name}/events",
        params={"batch_limit": 1, "stream_limit": 1, "batch_flush_timeout": 1},
        headers={"X-Nakadi-Cursors": cursors},
    )

    assert '"events":[{' in answer.text


def test_other_event_types_are_not_concerned(broker, api, name):
    """A fault that is ordered for one event type does not affect the others."""
    other = create_event_type(api, **BY_KEY)["name"]
    broker.faults.refuse(event_type=name, times=10)

    assert publish(api, other).status_code == 200

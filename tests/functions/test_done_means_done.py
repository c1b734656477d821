"""Once one function has acknowledged a change, all warm functions follow it, whatever they have cached."""

import json

import pytest

from nakadi.ports.clock import SystemClock
from tests.support.clock import HandMovedClock
from tests.support.functions import load_recorded_event


@pytest.fixture
def clock(environment, monkeypatch):
    """The clock of all functions, which cache for a second, as in a deployment."""
    environment.setenv("NAKADI_CACHE_SECONDS", "1")
    clock = HandMovedClock()
    for name in ("now", "monotonic", "sleep"):
        monkeypatch.setattr(SystemClock, name, staticmethod(getattr(clock, name)))
    return clock


@pytest.fixture
def ask(functions, clock):  # noqa: ARG001  # the functions go by it
    def ask(function, method, path, body=None):
        event = load_recorded_event("apigateway/switch_feature")
        event |= {"httpMethod": method, "path": path, "body": json.dumps(body)}
        event["requestContext"]["authorizer"]["scopes"] = SCOPES
        return functions.invoke(function, event)

    return ask


NAME = "shop.parcel"
SCOPES = "uid nakadi.config.write nakadi.event_type.write nakadi.event_stream.read nakadi.event_stream.write"
BY_KEY = {
    "name": NAME,
    "owning_application": "shop",
    "category": "undefined",
    "partition_strategy": "hash",
    "partition_key_fields": ["key"],
    "schema": {"type": "json_schema", "schema": '{"properties": {"key": {"type": "string"}}}'},
}
KEYS = [{"key": str(number)} for number in range(64)]


def used_partitions(ask):
    listed = json.loads(ask("cursors", "GET", f"/event-types/{NAME}/partitions")["body"])
    return {each["partition"] for each in listed if not each["newest_available_offset"].endswith("-1")}


def test_after_a_new_partition_count_no_event_goes_by_the_old_one(ask):
    """Once a new partition count is acknowledged, a function that knew only one partition publishes the next batch to
    all partitions. (R295)
    """
    assert ask("event_types", "POST", "/event-types", BY_KEY)["statusCode"] == 201
    assert ask("publish", "POST", f"/event-types/{NAME}/events", KEYS)["statusCode"] == 200
    assert used_partitions(ask) == {"0"}

    assert (
        ask("event_types", "PUT", f"/event-types/{NAME}/partition-count", {"partition_count": 8})["statusCode"] == 204
    )
    assert ask("publish", "POST", f"/event-types/{NAME}/events", KEYS)["statusCode"] == 200

    assert len(used_partitions(ask)) == 8


def test_a_feature_is_in_force_for_the_next_request_on_and_off(ask):
    """A function that has cached a feature follows its switch as soon as it is acknowledged, both ways. (R295)"""
    statuses = []
    for enabled in (False, True, False):
        switch = {"feature": "disable_event_type_creation", "enabled": enabled}
        assert ask("admin", "POST", "/settings/features", switch)["statusCode"] == 204
        made = ask("event_types", "POST", "/event-types", {**BY_KEY, "name": f"{NAME}.{len(statuses)}"})
        statuses.append(made["statusCode"])

    assert statuses == [201, 501, 201]


def test_a_function_that_stood_still_goes_by_what_is_acknowledged(ask, clock):
    """A function that was frozen, together with its monotonic clock, does not use its old caches. (R295)"""
    create = ("event_types", "POST", "/event-types")
    assert ask(*create, BY_KEY)["statusCode"] == 201
    switch = {"feature": "disable_event_type_creation", "enabled": True}
    assert ask("admin", "POST", "/settings/features", switch)["statusCode"] == 204
    clock.sleep(-1.05)  # the first function was frozen while the other one waited
    clock.stand_still(1.05)

    assert ask(*create, {**BY_KEY, "name": "another"})["statusCode"] == 501

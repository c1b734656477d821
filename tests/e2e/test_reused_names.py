"""Reused names: one process deletes and recreates resources, and another one remembers the old ones."""

from __future__ import annotations

from contextlib import ExitStack

import httpx
import pytest

from nakadi.local import Broker
from tests.e2e.conftest import engine_settings
from tests.support.api import create_event_type, problem
from tests.support.consumer import Consumer
from tests.support.http import check_against_description
from tests.support.patience import PATIENCE
from tests.support.subscriptions import a_cursor, committed_offsets, create_subscription, publish, reset

STRICT = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
LENIENT = {"type": "object"}


@pytest.fixture
def two_clients(tmp_path):
    """Clients of two brokers that share a file; each caches for a minute."""
    with ExitStack() as stack:
        brokers = [stack.enter_context(Broker(**engine_settings("sqlite", tmp_path), cache_seconds=60)) for _ in "12"]
        yield [
            stack.enter_context(check_against_description(httpx.Client(base_url=each.url, timeout=PATIENCE)))
            for each in brokers
        ]


def create_again(api, name, **changes):
    assert api.delete(f"/event-types/{name}").status_code == 200
    return create_event_type(api, name=name, **changes)


def publish_one(api, name, event):
    return api.post(f"/event-types/{name}/events", json=[event]).status_code


@pytest.mark.parametrize(("before", "after", "status"), [(STRICT, LENIENT, 200), (LENIENT, STRICT, 422)])
def test_events_are_judged_by_the_schema_that_there_is(two_clients, before, after, status):
    """Publishing through another process right after an event type was deleted and recreated uses its new schema."""
    one, two = two_clients
    name = create_event_type(one, schema=before)["name"]
    assert publish_one(two, name, {"n": 1}) == 200
    create_again(one, name, schema=after)
    assert publish_one(two, name, {"other": "x"}) == status


def test_events_come_to_the_event_type_that_there_is(two_clients):
    """Events that another process acknowledges right after an event type was deleted and recreated are in the new
    one."""
    one, two = two_clients
    name = create_event_type(one)["name"]
    publish(two, name)
    create_again(one, name)
    publish(two, name, 3)
    ends = one.get(f"/event-types/{name}/partitions").json()
    assert sum(int(each["newest_available_offset"].rpartition("-")[2]) + 1 for each in ends) == 3


def test_streams_read_the_event_type_that_there_is(two_clients):
    """A stream of a subscription that is opened through another process right after its event type was deleted and
    recreated gets the events of the new one. (S299)
    """
    one, two = two_clients
    name = create_event_type(one)["name"]
    subscription = create_subscription(one, name, read_from="begin")
    with Consumer(two, subscription):
        assert one.delete(f"/subscriptions/{subscription['id']}").status_code == 204
    create_again(one, name)
    publish(one, name, 2)
    second = create_subscription(one, name, read_from="begin")
    with Consumer(two, second, batch_flush_timeout=1, stream_timeout=20) as stream:
        stream.consumed(2)


def test_offsets_are_set_in_the_event_type_that_there_is(two_clients):
    """A reset of cursors through another process, right after an event type was deleted and recreated, checks the
    offsets against the new one. (S133)
    """
    one, two = two_clients
    name = create_event_type(one)["name"]
    first = create_subscription(one, name, read_from="begin")
    publish(two, name, 5)
    assert reset(two, first, a_cursor(name, offset=4)).status_code == 204
    assert one.delete(f"/subscriptions/{first['id']}").status_code == 204
    create_again(one, name)
    publish(one, name, 2)
    second = create_subscription(one, name, read_from="begin")
    problem(reset(two, second, a_cursor(name, offset=4)), 422)
    assert reset(two, second, a_cursor(name, offset=1)).status_code == 204
    assert committed_offsets(one, second)[name, "0"].endswith("-000000000000000001")


def test_a_deleted_subscription_is_not_streamed(two_clients):
    """A subscription that another process has deleted can no longer be streamed, and none of its state comes back."""
    one, two = two_clients
    name = create_event_type(one)["name"]
    subscription = create_subscription(one, name)
    assert committed_offsets(two, subscription) == {}
    assert one.delete(f"/subscriptions/{subscription['id']}").status_code == 204
    problem(two.get(f"/subscriptions/{subscription['id']}/events"), 404)

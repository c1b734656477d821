"""The requests in the description, sent to a broker unchanged: a reader who copies one gets its answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest

from nakadi import openapi
from nakadi.app.broker import open_broker
from nakadi.app.routes import make_application
from nakadi.app.settings import Settings
from nakadi.openapi.examples import example_of_parameter, examples_of_media_type
from tests.support.http import make_client
from tests.support.openapi import assert_answer_matches, operation_at

# The operations in an order in which each example finds the resources that it needs.
IN_ORDER = (
    "create_event_type",
    "get_event_type",
    "list_event_types",
    "check_compatibility",
    "add_schema",
    "list_schemas",
    "list_avro_schemas",
    "get_avro_schema",
    "list_readers",
    "list_table_runs",
    "start_rehearsal",
    "list_rehearsals",
    "get_schema",
    "publish_events",
    "list_partitions",
    "get_partition",
    "cursor_distances",
    "cursors_lag",
    "shift_cursors",
    "set_partition_count",
    "create_timeline",
    "list_timelines",
    "create_storage",
    "list_storages",
    "get_storage",
    "set_default_storage",
    "list_partition_strategies",
    "list_enrichment_strategies",
    "list_validation_strategies",
    "set_admins",
    "get_admins",
    "block",
    "get_blacklist",
    "unblock",
    "set_feature",
    "list_features",
    "get_health",
    "get_readiness",
    "get_metrics",
    "get_request_metrics",
    "get_stream_metrics",
    "get_version",
    "get_openapi",
    "get_docs",
    "delete_event_type",
)

# Their paths contain an id that the broker generates.
WITH_A_SUBSCRIPTION = (
    "create_subscription",
    "list_subscriptions",
    "get_subscription",
    "update_subscription",
    "reset_subscription_cursors",
    "get_subscription_cursors",
    "get_subscription_stats",
    "leave_subscription_stream",
    "list_parked_events",
    "redrive_parked_events",
    "put_objective",
    "get_objective",
    "remove_objective",
    "put_sink",
    "get_sink",
    "pause_sink",
    "resume_sink",
    "rotate_sink_secret",
    "remove_sink",
    "delete_subscription",
)
NEED_A_STREAM = {
    "test_sink",
    "get_parked_event",
    "skip_parked_event",
    "redrive_parked_event",
    "commit_subscription_cursors",
    "extend_subscription_stream",
    "stream_subscription_events",
    "stream_subscription_events_with_parameters",
}


@pytest.fixture
def broker() -> Iterator[httpx.Client]:
    wired = open_broker(Settings())
    with make_client(make_application(wired)) as client:
        client.event_hooks = {"response": [hold_against_the_description]}
        yield client
    wired.close()


def hold_against_the_description(response: httpx.Response) -> None:
    request = response.request
    operation = operation_at(request.method, request.url.raw_path.decode())
    assert_answer_matches(operation, response.status_code, response.headers, response.read(), method=request.method)


def send_example(
    broker: httpx.Client, name: str, body: Any = None, replacing: Mapping[str, str] | None = None
) -> httpx.Response:
    operation = openapi.operations()[name]
    path = operation.path
    for each in operation.parameters:
        if each["in"] == "path":
            path = path.replace(f"{{{each['name']}}}", example_of_parameter(each))
    for example, meant in (replacing or {}).items():
        path = path.replace(example, meant)
    described = operation.description.get("requestBody")
    if described is None:
        return broker.request(operation.method, path)
    (example, *_) = examples_of_media_type(described["content"]["application/json"])
    return broker.request(operation.method, path, json=example[1] if body is None else body)


def test_examples_work_one_after_the_other(broker: httpx.Client) -> None:
    """Every request in the description works as written, and is answered as described."""
    for name in IN_ORDER:
        response = send_example(broker, name)
        assert response.is_success, f"{name}: {response.status_code} {response.text}"


def test_subscription_examples_work_one_after_the_other(broker: httpx.Client) -> None:
    """Every request about a subscription in the description works with the id that the broker has generated."""
    send_example(broker, "create_event_type")
    example = openapi.document()["components"]["parameters"]["SubscriptionId"]["example"]
    subscription_id = example
    for name in WITH_A_SUBSCRIPTION:
        response = send_example(broker, name, replacing={example: subscription_id})
        assert response.is_success, f"{name}: {response.status_code} {response.text}"
        if name == "create_subscription":
            subscription_id = response.json()["id"]


def test_every_operation_is_tried() -> None:
    """Only operations that do not fit into the sequence of examples are left to other tests."""
    others = {"update_event_type", "delete_events", "stream_events", "delete_storage"}
    others |= {"get_rehearsal", "remove_rehearsal"}  # the broker generates their ids
    others |= {"run_query"}  # a query needs a broker with an address
    assert set(openapi.operations()) - set(IN_ORDER) - set(WITH_A_SUBSCRIPTION) == others | NEED_A_STREAM


def test_change_works(broker: httpx.Client) -> None:
    """The smallest event type in the description can be created, and changed as described."""
    create, update = openapi.operations()["create_event_type"], openapi.operations()["update_event_type"]
    least = create.description["requestBody"]["content"]["application/json"]["examples"]["least"]["value"]
    change = update.description["requestBody"]["content"]["application/json"]["example"]
    assert broker.post("/event-types", json=least).status_code == 201
    assert broker.put(f"/event-types/{least['name']}", json=change).status_code == 200


def test_deletion_by_key_works(broker: httpx.Client) -> None:
    """With a compacted event type, the example of deleting events works."""
    create = openapi.operations()["create_event_type"].description["requestBody"]["content"]["application/json"]
    compacted = {**create["examples"]["business"]["value"], "cleanup_policy": "compact"}
    assert broker.post("/event-types", json=compacted).status_code == 201
    assert send_example(broker, "delete_events").status_code == 200


def test_both_kinds_of_events_can_be_published(broker: httpx.Client) -> None:
    """The example of data change events matches an event type of that category."""
    create, publish = (
        openapi.operations()[name].description["requestBody"]["content"]["application/json"]["examples"]
        for name in ("create_event_type", "publish_events")
    )
    changes = {"category": "data", "partition_strategy": "random", "partition_key_fields": [], "schema": OPEN_SCHEMA}
    assert broker.post("/event-types", json={**create["business"]["value"], **changes}).status_code == 201
    assert send_example(broker, "publish_events", publish["data"]["value"]).status_code == 200


OPEN_SCHEMA = {
    "type": "json_schema",
    "schema": '{"type": "object", "properties": {"order": {"type": "string"}, "state": {"type": "string"}}}',
}

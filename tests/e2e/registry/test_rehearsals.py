"""Rehearsals: the stored events of an event type, checked against a schema that it does not have yet."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.support.api import (
    a_business_definition,
    a_definition,
    an_authorization,
    create_event_type,
    problem,
    violations,
)
from tests.support.patience import until

OPEN_SCHEMA = {"properties": {"order": {}}}
STRICT_SCHEMA = {
    "properties": {"order": {"type": "string"}, "items": {"items": {"properties": {"sku": {"type": "string"}}}}},
    "required": ["order"],
}


def rehearse(api: httpx.Client, name: str, schema: Any, **request: Any) -> dict[str, Any]:
    """Rehearse a schema to the end."""
    span = {} if {"last", "events"} & request.keys() else {"events": 1000}
    answer = api.post(f"/event-types/{name}/schemas/rehearsals", json={"schema": schema_draft(schema)} | span | request)
    assert answer.status_code in (200, 202), answer.text
    found: dict[str, Any] = answer.json()
    if found["state"] == "running":
        until(lambda: api.get(answer.headers["location"]).json()["state"] != "running")
        found = api.get(answer.headers["location"]).json()
    assert found["state"] == "finished", found
    return found


def schema_draft(schema: Any) -> dict[str, str]:
    return {"type": "json_schema", "schema": schema if isinstance(schema, str) else json.dumps(schema)}


def event_metadata(**more: str) -> dict[str, str]:
    return {"eid": str(uuid4()), "occurred_at": "2026-11-21T12:00:00Z"} | more


def publish(api: httpx.Client, name: str, *events: dict[str, Any]) -> None:
    answer = api.post(f"/event-types/{name}/events", json=list(events))
    assert answer.status_code == 200, answer.text


@pytest.fixture
def name(api):
    return create_event_type(api, a_business_definition(schema=OPEN_SCHEMA, compatibility_mode="none"))["name"]


def test_a_rehearsal_finds_what_would_be_refused(api, name):
    """Each rule has its number of events, the time of the first and of the last of these events; the event type's
    schema stays unchanged. (H1, H5, H6, H7)
    """
    publish(api, name, {"metadata": event_metadata(), "order": "1", "items": [{"sku": "shoe"}]})
    publish(
        api, name, {"metadata": event_metadata(), "order": 2}, {"metadata": event_metadata(), "items": [{}, {"sku": 1}]}
    )

    found = rehearse(api, name, STRICT_SCHEMA, last="1h")

    assert (found["events_expected"], found["events_seen"], found["events_failed"]) == (3, 3, 2)
    assert {(each["rule"], each["path"], each["events"]) for each in found["rules"]} == {
        ("type", "#/order", 1),
        ("required", "#/order", 1),
        ("type", "#/items/*/sku", 1),
    }
    assert all(each["first_at"] == each["last_at"] >= found["first_failed_at"] for each in found["rules"])
    [publisher] = found["published_by"]
    assert (publisher["application"], publisher["events"]) != (None, 1)
    assert publisher["events"] == 2
    assert api.get(f"/event-types/{name}").json()["schema"]["version"] == "1.0.0"
    refused = api.post(f"/event-types/{name}/schemas", json=schema_draft(STRICT_SCHEMA))
    assert refused.status_code == 200, refused.text


def test_samples_are_events_with_their_places(api, name):
    """A sample has the event as a stream would send it, its cursor, and the rules that it breaks. (H8)"""
    publish(api, name, *({"metadata": event_metadata(), "order": number} for number in range(7)))

    found = rehearse(api, name, STRICT_SCHEMA)

    assert (found["events_failed"], len(found["samples"])) == (7, 5)
    sample = found["samples"][0]
    assert sample["rules"] == [{"rule": "type", "path": "#/order"}]
    assert sample["event"]["metadata"]["event_type"] == name
    cursor = [{"partition": sample["cursor"]["partition"], "offset": sample["cursor"]["offset"]}]
    following = api.get(
        f"/event-types/{name}/events",
        params={"stream_limit": 6, "batch_limit": 6, "stream_timeout": 30},
        headers={"X-Nakadi-Cursors": json.dumps(cursor)},
    )
    sent = [each for line in following.text.splitlines() for each in json.loads(line).get("events", ())]
    assert sent[0]["order"] == sample["event"]["order"] + 1


def test_every_event_is_judged_once_over_timelines(api, name):
    """Events of older timelines count like events of the newest one. (H4)"""
    publish(api, name, {"metadata": event_metadata(), "order": 1})
    assert api.post(f"/event-types/{name}/timelines", json={"storage_id": "default"}).status_code == 201
    publish(api, name, {"metadata": event_metadata(), "order": 2}, {"metadata": event_metadata(), "order": "3"})

    found = rehearse(api, name, STRICT_SCHEMA, last="1d")

    assert (found["events_expected"], found["events_seen"], found["events_failed"]) == (3, 3, 2)
    assert {each["event"]["order"] for each in found["samples"]} == {1, 2}
    assert rehearse(api, name, STRICT_SCHEMA, events=2)["events_seen"] == 2


def test_the_newest_events_are_chosen_evenly(api):
    """If a rehearsal checks the newest events, each partition has the same share of them, unless it has fewer events.
    (H2)
    """
    statistic = dict.fromkeys(("messages_per_minute", "message_size", "read_parallelism", "write_parallelism"), 2)
    definition = a_business_definition(
        default_statistic=statistic, partition_strategy="user_defined", compatibility_mode="none"
    )
    name = create_event_type(api, definition)["name"]
    publish(api, name, {"metadata": event_metadata(partition="0"), "order": 0})
    publish(api, name, *({"metadata": event_metadata(partition="1"), "order": number} for number in range(1, 10)))

    found = rehearse(api, name, {"properties": {"order": False}}, events=4)

    assert sorted(each["event"]["order"] for each in found["samples"]) == [0, 7, 8, 9]


def test_the_category_may_be_another_one(api):
    """The events are judged as if their event type had another category or mode. (H3)"""
    name = create_event_type(api, a_definition(schema={}, compatibility_mode="none"))["name"]
    publish(api, name, {"order": "1"}, {"order": "2", "metadata": event_metadata()})

    found = rehearse(api, name, {}, category="business")
    assert [(each["rule"], each["path"], each["events"]) for each in found["rules"]] == [("required", "#/metadata", 1)]
    assert [each["event"] for each in found["samples"]] == [{"order": "1"}]
    closed = rehearse(api, name, {"type": "object", "properties": {"order": {}}}, compatibility_mode="compatible")
    assert {(each["rule"], each["path"]) for each in closed["rules"]} == {("additionalProperties", "#/metadata")}


def test_an_event_type_with_metadata_may_become_undefined(api, name):
    """What the broker has added to the metadata is not judged. (H5)"""
    publish(api, name, {"metadata": event_metadata(), "order": "1"})
    only_two = {"additionalProperties": False, "properties": {"eid": {}, "occurred_at": {}}}
    schema = {"properties": {"metadata": only_two}}

    assert rehearse(api, name, schema, category="undefined")["events_failed"] == 0
    del only_two["properties"]["eid"]
    assert rehearse(api, name, schema, category="undefined")["events_failed"] == 1


@pytest.mark.parametrize("span", [{}, {"last": "1d", "events": 1}, {"last": "1 week"}, {"events": 0}, {"last": "0d"}])
def test_a_span_is_said_in_one_of_two_ways(api, name, span):
    """A time span is given as a duration or as a number of events; both, or an invalid one, get 422. (H2)"""
    path = f"/event-types/{name}/schemas/rehearsals"
    assert problem(api.post(path, json={"schema": schema_draft({})} | span), 422)


def test_a_schema_is_refused_as_for_a_change(api, name):
    """A text that could not become a schema of the event type cannot be rehearsed, and leaves nothing behind. (H3)"""
    path = f"/event-types/{name}/schemas/rehearsals"
    for schema in ('{"type": 1}', "{", json.dumps({"description": "x" * 300_000}), {"pattern": "("}):
        refused = problem(api.post(path, json={"schema": schema_draft(schema), "last": "1d"}), 422)
        assert refused == problem(api.post(f"/event-types/{name}/schemas", json=schema_draft(schema)), 422)
    assert violations(api.post(path, json={"last": "1d"})) == {'Field "schema" must not be null'}
    assert violations(api.post(path, json={"schema": {}, "last": "1d"})) == {
        'Field "schema.type" must not be null',
        'Field "schema.schema" must not be null',
    }
    strategies = {
        "schema": schema_draft({}),
        "last": "1d",
        "category": "undefined",
        "enrichment_strategies": ["metadata_enrichment"],
    }
    assert "enrichment" in problem(api.post(path, json=strategies), 422)
    assert "JSON" in problem(
        api.post(path, json={"schema": {"type": "avro_schema", "schema": "{}"}, "last": "1d"}), 422
    )
    assert api.get(path).json() == {"items": []}


def test_every_process_shows_and_removes_a_rehearsal(api, name):
    """A rehearsal is found by its id and in the list, until it is removed. (H10, H11, H13)"""
    found = rehearse(api, name, {})
    path = f"/event-types/{name}/schemas/rehearsals"
    second = rehearse(api, name, {})

    assert api.get(f"{path}/{found['id']}").json() == found
    summaries = api.get(path).json()["items"]
    assert [each["id"] for each in summaries] == [second["id"], found["id"]]
    assert summaries[1].items() <= found.items()
    assert api.delete(f"{path}/{found['id']}").status_code == 204
    assert found["id"] in problem(api.get(f"{path}/{found['id']}"), 404)
    assert problem(api.delete(f"{path}/{found['id']}"), 404)
    for unknown in ("x", "%C3%A9", "a" * 1500):
        assert problem(api.get(f"{path}/{unknown}"), 404)
    assert problem(api.get("/event-types/unknown.type/schemas/rehearsals"), 404)


def test_at_most_twenty_rehearsals_are_kept(api, name):
    """An event type has at most twenty rehearsals; the oldest one is removed to make room. (H12)"""
    first = rehearse(api, name, {})
    for _ in range(20):
        newest = rehearse(api, name, {})
    kept = [each["id"] for each in api.get(f"/event-types/{name}/schemas/rehearsals").json()["items"]]
    assert len(kept) == 20
    assert newest["id"] in kept
    assert first["id"] not in kept


@pytest.mark.parametrize("lists", [{"admins": "ann"}, {"readers": "ann"}, {"admins": "cat", "readers": "cat"}])
def test_a_rehearsal_needs_two_permissions(ann_client, bob_client, lists):
    """A client that may not both change the schema and read the events gets 403 for each operation. (H9)"""
    section = an_authorization(**{"admins": "ann bob", "readers": "ann bob", "writers": "ann"} | lists)
    definition = a_definition(authorization=section)
    assert ann_client.post("/event-types", json=definition).status_code == 201
    path = f"/event-types/{definition['name']}/schemas/rehearsals"
    body = {"schema": schema_draft({}), "last": "1d"}

    for answer in (
        bob_client.post(path, json=body),
        bob_client.get(path),
        bob_client.get(f"{path}/x"),
        bob_client.delete(f"{path}/x"),
    ):
        assert "Access on" in problem(answer, 403)


@pytest.fixture
def owners_matter(admin):
    feature = {"feature": "event_owner_selector_authz", "enabled": True}
    assert admin.post("/settings/features", json=feature).status_code == 204
    yield
    admin.post("/settings/features", json=feature | {"enabled": False})


@pytest.mark.usefixtures("owners_matter")
def test_events_of_others_are_left_out(ann_client, bob_client):
    """Events that the client may not read are not counted, and are not shown to it in another client's rehearsal. (H4,
    H8)
    """
    selector = {"type": "path", "name": "user", "value": "owner"}
    section = an_authorization(admins="ann bob", readers="ann bob", writers="ann bob")
    schema = {"properties": {"owner": {"type": "string"}}}
    definition = a_definition(authorization=section, event_owner_selector=selector, schema=schema)
    assert ann_client.post("/event-types", json=definition).status_code == 201
    publish(ann_client, definition["name"], {"owner": "ann"})
    publish(bob_client, definition["name"], {"owner": "bob"})

    found = rehearse(ann_client, definition["name"], schema | {"required": ["order"]}, compatibility_mode="none")
    assert (found["events_seen"], [each["event"] for each in found["samples"]]) == (1, [{"owner": "ann"}])
    shown = bob_client.get(f"/event-types/{definition['name']}/schemas/rehearsals/{found['id']}").json()
    assert (shown["events_failed"], shown["samples"]) == (1, [])

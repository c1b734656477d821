"""Forecasts: the effect of a change of an event type."""

import json

import jsonpatch
import pytest

from tests.support.api import (
    a_business_definition,
    a_definition,
    an_authorization,
    create_event_type,
    problem,
    violations,
)

FIRST = {"properties": {"a": {"type": "string"}, "b": {"type": "number"}}}


def schema_draft(content):
    return {"type": "json_schema", "schema": content if isinstance(content, str) else json.dumps(content)}


@pytest.fixture
def definition(api):
    definition = a_definition(schema=FIRST, audience="component-internal")
    create_event_type(api, definition)
    return definition


@pytest.fixture
def path(definition):
    return f"/event-types/{definition['name']}"


def forecast_of_schema(api, path, content):
    answer = api.post(f"{path}/schemas", params={"dry_run": "true"}, json=schema_draft(content))
    assert answer.status_code == 200, answer.text
    return answer.json()


def forecast_of_change(api, path, definition):
    answer = api.put(path, params={"dry_run": "true"}, json=definition)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_an_accepted_schema_is_told_its_version(api, path):
    """A forecast contains the version, the level and each change; it stores nothing. (R296)"""
    before = api.get(path).json()
    content = {"title": "t", "properties": FIRST["properties"] | {"c": {"type": "integer"}}}

    forecast = forecast_of_schema(api, path, content)

    assert {name: value for name, value in forecast.items() if name != "changes"} == {
        "accepted": True,
        "refusals": [],
        "compatibility_mode": "forward",
        "current_version": "1.0.0",
        "version": "1.1.0",
        "level": "minor",
    }
    assert [(each["rule"], each["level"], each.get("old"), each.get("new")) for each in forecast["changes"]] == [
        ("TITLE_CHANGED", "patch", None, "t"),
        ("PROPERTIES_ADDED", "minor", None, {"c": {"type": "integer"}}),
    ]
    assert api.get(path).json() == before
    assert api.post(f"{path}/schemas", json=schema_draft(content)).status_code == 200
    assert api.get(path).json()["schema"]["version"] == "1.1.0"


def test_the_same_schema_has_no_level(api, path):
    """A forecast of a schema without a change keeps the version, and has no level. (R296)"""
    forecast = forecast_of_schema(api, path, json.dumps(FIRST))
    assert (forecast["version"], forecast["level"], forecast["changes"]) == ("1.0.0", "none", [])


def test_a_refused_schema_gets_a_proposal_that_is_accepted(api, path):
    """A forecast has the values and the reason of each refused change, and its proposal is accepted. (R296, R297)"""
    submitted = {"properties": {"a": {"type": "integer"}, "c": {"type": "string"}}}

    forecast = forecast_of_schema(api, path, submitted)

    assert not forecast["accepted"]
    assert "version" not in forecast
    assert forecast["level"] == "major"
    [detail] = forecast["refusals"]
    assert detail == problem(api.post(f"{path}/schemas", json=schema_draft(submitted)), 422)
    assert [(each["rule"], each["path"], each.get("old"), each.get("new")) for each in forecast["changes"]] == [
        ("TYPE_CHANGED", "#/properties/a", {"type": "string"}, {"type": "integer"}),
        ("PROPERTY_REMOVED", "#/properties/b", {"type": "number"}, None),
    ]
    assert all("mode `forward` does not allow it" in each["explanation"] for each in forecast["changes"])

    patched = jsonpatch.apply_patch(submitted, forecast["proposal"])
    assert patched == {"properties": FIRST["properties"] | {"a_2": {"type": "integer"}, "c": {"type": "string"}}}
    assert forecast_of_schema(api, path, patched)["accepted"]
    assert api.post(f"{path}/schemas", json=schema_draft(patched)).status_code == 200


def test_a_schema_that_is_none_is_refused_without_changes(api, path):
    """The broker does not compare a schema that is not valid. (R296)"""
    forecast = forecast_of_schema(api, path, {"type": "array"})
    assert forecast["refusals"] == ['"type" of root element in schema can only be "object"']
    assert forecast["changes"] == []
    assert "proposal" not in forecast


def test_all_rules_against_a_change_are_told(api, path, definition):
    """The forecast has the refusals of all rules; the first refusal is the one that the change itself gets. (R296,
    R113)
    """
    changed = definition | {
        "name": "another.name",
        "cleanup_policy": "compact",
        "audience": None,
        "enrichment_strategies": ["metadata_enrichment"],
        "schema": schema_draft({"properties": {}}),
    }

    forecast = forecast_of_change(api, path, changed)

    assert len(forecast["refusals"]) > 4
    assert forecast["refusals"][0] == problem(api.put(path, json=changed), 422) == "path does not match resource name"
    assert "event audience must not be set back to null" in forecast["refusals"]
    assert any(each.startswith("Invalid schema: #/properties/a") for each in forecast["refusals"])
    assert any("changing enrichment_strategies is not allowed" in each for each in forecast["refusals"])
    assert [each["rule"] for each in forecast["changes"]] == ["PROPERTY_REMOVED", "PROPERTY_REMOVED"]
    assert forecast["proposal"]


def test_a_change_that_is_accepted_changes_nothing(api, path, definition):
    """A forecast of a change leaves the event type unchanged. (R296)"""
    before = api.get(path).json()

    forecast = forecast_of_change(api, path, definition | {"owning_application": "till"})

    assert forecast["accepted"]
    assert forecast["version"] == "1.0.0"
    assert api.get(path).json() == before


def test_the_mode_of_the_change_counts(api):
    """If the current schema is not allowed in a stricter mode, there is no proposal. (R296, R297)"""
    old = {"properties": {"a": {"type": "string", "x-unknown": 1}}}
    definition = a_business_definition(schema=old, compatibility_mode="forward")
    create_event_type(api, definition)
    path = f"/event-types/{definition['name']}"

    forecast = forecast_of_change(
        api, path, definition | {"compatibility_mode": "compatible", "schema": schema_draft({"properties": {}})}
    )

    assert not forecast["accepted"]
    assert "proposal" not in forecast


def test_what_precedes_the_rules_stays_a_problem(api, path, definition):
    """Parsing, the fields, and whether the event type exists are checked as without `dry_run`. (R296)"""
    dry = {"dry_run": "true"}
    problem(api.put(path, params=dry, content="{", headers={"content-type": "application/json"}), 400)
    assert violations(api.put(path, params=dry, json={"name": definition["name"]}))
    problem(api.put("/event-types/no.such", params=dry, json=definition | {"name": "no.such"}), 404)
    problem(api.post("/event-types/no.such/schemas", params=dry, json=schema_draft(FIRST)), 404)
    problem(api.post(f"{path}/schemas", params={"dry_run": "perhaps"}, json=schema_draft(FIRST)), 400)


def test_a_read_only_registry_still_forecasts(api, path, definition, switch_on):
    """A forecast writes nothing, so it is possible while writing is disabled. (R296)"""
    switch_on("disable_db_write_operations")
    assert forecast_of_schema(api, path, FIRST | {"title": "t"})["accepted"]
    assert forecast_of_change(api, path, definition)["accepted"]


def test_a_lookup_goes_before_a_forecast(api, path):
    """With `fetch`, a dry run is a lookup. (R296)"""
    found = api.post(f"{path}/schemas", params={"dry_run": "true", "fetch": "true"}, json=schema_draft(FIRST))
    assert found.json()["version"] == "1.0.0"


def test_a_forecast_needs_the_rights_of_the_change(ann_client, bob_client):
    """A subject that may not change an event type gets no forecast of it. (R296)"""
    definition = a_definition(schema=FIRST, authorization=an_authorization(admins="bob", readers="ann", writers="ann"))
    create_event_type(bob_client, definition)
    path, dry = f"/event-types/{definition['name']}", {"dry_run": "true"}

    assert "Access on ADMIN" in problem(ann_client.put(path, params=dry, json=definition), 403)
    assert "Access on ADMIN" in problem(ann_client.post(f"{path}/schemas", params=dry, json=schema_draft(FIRST)), 403)
    assert bob_client.put(path, params=dry, json=definition).json()["accepted"]

"""The limits on the work that schemas cause, tested with a whole broker."""

import json

import pytest
from msgspec.structs import replace

from nakadi.app.broker import open_broker
from nakadi.app.routes import make_application
from nakadi.app.settings import Settings
from nakadi.common.work import LongWorkQueue
from nakadi.event_types.schema_versions import MAX_SCHEMA_CHARACTERS_WITHOUT_TURN
from nakadi.model.outcomes import TryLater
from nakadi.schemas.limits import MAX_SCHEMA_CHARACTERS
from tests.support.api import a_definition, problem
from tests.support.http import make_client


class RefusingTurns(LongWorkQueue):
    """A queue for long work that never grants a turn."""

    def wait_for_turn(self, gone):  # noqa: ARG002  # as a real one takes it
        raise TryLater("Not now")


@pytest.fixture
def broker():
    broker = open_broker(Settings(max_batch_steps=200_000))
    yield broker
    broker.close()


@pytest.fixture
def api(broker):
    with make_client(make_application(broker)) as client:
        yield client


def doubling_schema(levels):
    """A schema of less than two kilobytes that expands into millions of schemas."""
    definitions = {f"d{n}": {"allOf": [{"$ref": f"#/definitions/d{n - 1}"}] * 2} for n in range(1, levels)}
    return {"definitions": {"d0": {}, **definitions}, "properties": {"a": {"$ref": f"#/definitions/d{levels - 1}"}}}


def long_schema(title):
    return {"title": title, "description": "x" * MAX_SCHEMA_CHARACTERS_WITHOUT_TURN}


def make_draft(schema):
    return {"type": "json_schema", "schema": json.dumps(schema)}


@pytest.mark.parametrize("category", ["undefined", "business", "data"])
@pytest.mark.parametrize("mode", ["compatible", "forward", "none"])
def test_schemas_that_expand_too_far_are_not_stored(api, category, mode):
    """A new event type, a changed one and a new version are answered with 422 if the schema expands too far. (R153)"""
    kind = {"category": category, "compatibility_mode": mode}
    if category != "undefined":
        kind["enrichment_strategies"] = ["metadata_enrichment"]
    far = a_definition(schema=doubling_schema(22), **kind)
    good = a_definition(name=far["name"], **kind)

    assert problem(api.post("/event-types", json=far), 422).startswith("schema expands too far: ")
    assert api.post("/event-types", json=good).status_code == 201
    path = f"/event-types/{far['name']}"
    assert problem(api.put(path, json=far), 422).startswith("schema expands too far: ")
    assert problem(api.post(f"{path}/schemas", json=far["schema"]), 422).startswith("schema expands too far: ")
    assert json.loads(api.get(path).json()["schema"]["schema"]) == {}


def test_a_schema_stored_before_the_limit_has_batches_beyond_it_refused(broker, api):
    """If the stored schema of an event type expands too far, batches that need too many steps are refused. (P56)"""
    name = a_definition(schema={})["name"]
    assert api.post("/event-types", json=a_definition(name=name)).status_code == 201
    old = broker.event_types.get(name)
    broker.event_types.replace(old, replace(old, schema=replace(old.schema, text=json.dumps(doubling_schema(22)))))

    (item,) = api.post(f"/event-types/{name}/events", json=[{"a": 1}]).json()
    assert item["publishing_status"] == "failed"
    assert item["detail"].startswith("Validating the events of this batch takes more than 200000 steps")
    assert api.post(f"/event-types/{name}/events", json=[{"b": 1}]).status_code == 200


def test_long_schemas_are_checked_in_turns(broker, api, monkeypatch):
    """A schema that may take long to check is answered with 503 while no turn is available; a short schema is
    checked."""
    definition = a_definition()
    path = f"/event-types/{definition['name']}"
    assert api.post("/event-types", json=definition).status_code == 201
    monkeypatch.setattr(broker.registration.long_work_queue, "wait_for_turn", RefusingTurns().wait_for_turn)
    with make_client(make_application(broker, "event_types")) as busy:
        long = a_definition(schema=long_schema("long"))
        assert problem(busy.post("/event-types", json=long), 503) == "Not now"
        assert problem(busy.put(path, json=long | {"name": definition["name"]}), 503) == "Not now"
        assert problem(busy.post(f"{path}/schemas", json=long["schema"]), 503) == "Not now"
        assert busy.put(path, json=definition | {"schema": make_draft({"title": "short"})}).status_code == 200


def test_a_schema_beyond_the_limits_is_not_searched_for(api):
    """A text that exceeds the limit on schemas is refused before it is parsed. (R147)"""
    definition = a_definition()
    assert api.post("/event-types", json=definition).status_code == 201
    wanted = {"type": "json_schema", "schema": json.dumps({"a": "x" * MAX_SCHEMA_CHARACTERS})}
    answer = api.post(f"/event-types/{definition['name']}/schemas?fetch=true", json=wanted)
    assert problem(answer, 422).startswith("schema is too large: at most 262144 characters are possible")

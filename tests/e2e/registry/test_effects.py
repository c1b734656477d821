"""Publishing and streaming follow the registry."""

import json

import pytest

from nakadi.app.broker import open_broker
from nakadi.app.routes import make_application
from nakadi.app.settings import Settings
from nakadi.model.outcomes import Unavailable
from tests.support.api import a_business_definition, a_definition, an_authorization, create_event_type, problem
from tests.support.avro import schema_draft
from tests.support.http import make_client

EID = "105a76d8-db49-4144-ace7-e683e8f4ba46"


def business_event(**metadata):
    return {"metadata": {"eid": EID, "occurred_at": "2026-11-21T12:00:00Z"} | metadata}


@pytest.fixture
def business_events_url(api):
    """The URL of the events of a business event type."""
    return f"/event-types/{create_event_type(api, a_business_definition())['name']}/events"


def refused_item(answer):
    assert answer.status_code == 422, answer.text
    return answer.json()[0]


@pytest.mark.parametrize("occurred_at", ["yesterday", "2026-02-30T12:00:00Z", "2026-11-21T12:00:00"])
def test_when_an_event_occurred_is_a_time(api, business_events_url, occurred_at):
    """The time of occurrence is checked after the schema has passed. (R176, P66)"""
    refused = refused_item(api.post(business_events_url, json=[business_event(occurred_at=occurred_at)]))
    both = refused_item(api.post(business_events_url, json=[business_event(occurred_at=occurred_at, received_at="x")]))

    assert refused["detail"].startswith("#/metadata/occurred_at:must be a valid date-time")
    assert both["detail"] == "#/metadata: extraneous key [received_at] is not permitted"


@pytest.mark.parametrize("metadata", [{"received_at": "x"}, {"version": "1.0.0"}, {"published_by": "x"}, {"x": 1}])
def test_metadata_is_closed(api, business_events_url, metadata):
    """In the metadata of an event, clients cannot send the members that the broker adds, or unknown ones.
    (R175, P63)
    """
    [name] = metadata

    assert refused_item(api.post(business_events_url, json=[business_event(**metadata)]))["detail"] == (
        f"#/metadata: extraneous key [{name}] is not permitted"
    )


def test_undefined_events_are_validated(api):
    """Events of category `undefined` have to match only their schema. (R170, R272, P57)"""
    events = f"/event-types/{create_event_type(api, schema={'required': ['a']})['name']}/events"

    assert api.post(events, json=[{"a": 1, "metadata": 7}]).status_code == 200
    assert refused_item(api.post(events, json=[{"b": 1}]))["detail"] == "#: required key [a] not found"


@pytest.mark.parametrize(
    ("mode", "schema", "fits"),
    [
        ("compatible", {}, False),
        ("forward", {}, True),
        ("none", {}, True),
        ("compatible", {"properties": {"b": {}}}, False),
        ("none", {"properties": {"b": {}}}, True),
    ],
)
def test_only_mode_compatible_is_strict(api, mode, schema, fits):
    """Mode `compatible` accepts only declared members; the other modes accept others too. (R177, R178, R271)"""
    events = f"/event-types/{create_event_type(api, schema=schema, compatibility_mode=mode)['name']}/events"

    assert (api.post(events, json=[{"a": 1}]).status_code == 200) == fits


def test_json_events_of_an_avro_type_are_validated_by_the_last_json_schema(api):
    """Events may still be published as JSON after the schema has become Avro, and then belong to the older version.
    (R180, P76)
    """
    name = create_event_type(api, a_business_definition(schema={"properties": {"a": {"type": "string"}}}))["name"]
    assert api.post(f"/event-types/{name}/schemas", json=schema_draft()).status_code == 200

    assert api.post(f"/event-types/{name}/events", json=[business_event() | {"a": "1"}]).status_code == 200
    assert refused_item(api.post(f"/event-types/{name}/events", json=[business_event() | {"a": 1}]))[
        "detail"
    ].startswith("#/a: expected")


def test_json_events_of_a_type_without_a_json_schema_are_refused(api):
    """Events in JSON are refused if the event type never had a JSON schema that could validate them. (R180, P75)"""
    name = create_event_type(api, a_business_definition() | {"schema": schema_draft()})["name"]

    refused = refused_item(api.post(f"/event-types/{name}/events", json=[business_event() | {"a": "1"}]))

    assert refused["detail"] == f"No json_schema found for event type: {name}"


def test_constraints_are_reported_before_the_schema_is_compared(api):
    """A change that breaks a constraint and the schema is reported for its constraint. (R113, R183)"""
    definition = a_definition(schema={"properties": {"a": {}}}, partition_strategy="hash", partition_key_fields=["a"])
    create_event_type(api, definition)
    changes = {"partition_strategy": "random", "schema": {"type": "json_schema", "schema": '{"properties": {}}'}}

    refused = api.put(f"/event-types/{definition['name']}", json=definition | changes)

    assert problem(refused, 422).startswith("changing partition_strategy")


def test_a_section_is_judged_as_a_whole(api):
    """An incomplete authorization section is reported before its duplicates. (R63)"""
    section = {"admins": [{"data_type": "user", "value": "ann"}] * 2, "readers": [], "writers": []}

    assert "must contain at least one attribute" in problem(
        api.post("/event-types", json=a_definition(authorization=section)), 422
    )


def test_losing_access_ends_a_stream(broker_with_tokens, ann_client, bob_client):
    """A consumer that is removed from the list of readers is disconnected, and refused when it reconnects.
    (R64, L60)
    """
    definition = a_definition(authorization=an_authorization("ann", readers="bob", writers="ann"))
    create_event_type(ann_client, definition)
    events = f"/event-types/{definition['name']}/events"
    parameters = {"batch_flush_timeout": 1, "stream_timeout": 60}

    with bob_client.stream("GET", events, params=parameters) as answer:
        assert answer.status_code == 200
        ann_client.put(
            f"/event-types/{definition['name']}", json=definition | {"authorization": an_authorization("ann")}
        )
        last = list(answer.iter_lines())[-1]

    assert json.loads(last)["status"] == 403
    problem(bob_client.get(events), 403)
    assert broker_with_tokens


def test_an_owner_selector_waits_for_its_feature(admin, ann_client):
    """The owner of a single event matters only while the feature for event owners is on. (R76, P129)"""
    selector = {"type": "static", "name": "team", "value": "nobody"}
    section = an_authorization("ann", writers="ann")
    name = create_event_type(ann_client, a_business_definition(authorization=section, event_owner_selector=selector))[
        "name"
    ]
    events = f"/event-types/{name}/events"
    assert ann_client.post(events, json=[business_event()]).status_code == 200

    feature = {"feature": "event_owner_selector_authz", "enabled": True}
    admin.post("/settings/features", json=feature)
    try:
        answer = ann_client.post(events, json=[business_event()])
    finally:
        admin.post("/settings/features", json=feature | {"enabled": False})

    assert refused_item(answer)["detail"] == f"Access on WRITE event:{EID} denied"


def test_a_registry_that_fails_leaves_things_as_they_were(monkeypatch):
    """When an update or a deletion cannot be stored, the answer is 503 and nothing has changed. (R130, R134)"""
    broker = open_broker(Settings())
    api = make_client(make_application(broker))
    definition = a_definition()
    before = create_event_type(api, definition)

    def out_of_reach(*_changes):
        raise Unavailable("The registry does not answer.")

    with monkeypatch.context() as patch:
        patch.setattr(broker.registry, "write", out_of_reach)
        update = api.put(f"/event-types/{definition['name']}", json=definition | {"owning_application": "x"})
        deletion = api.delete(f"/event-types/{definition['name']}")

    for answer in (update, deletion):
        assert "please repeat request" in problem(answer, 503)
    assert api.get(f"/event-types/{definition['name']}").json() == before
    broker.close()


def test_no_warnings_still_have_their_header():
    """If both texts of the warning are configured as empty, the header is sent with an empty text. (R95)"""
    broker = open_broker(Settings(data_access_warning="", compaction_warning=""))

    answer = make_client(make_application(broker)).post("/event-types", json=a_definition())

    assert answer.headers["warning"] == '299 nakadi ""'
    broker.close()


def test_a_busy_event_type_answers_try_later(monkeypatch):
    """If other changes always come before a client's change, the broker tells the client to retry later.
    (R129, R214)
    """
    broker = open_broker(Settings())
    api = make_client(make_application(broker))
    definition = a_definition()
    create_event_type(api, definition)
    get = broker.event_types.get

    def get_and_change(name):
        seen = get(name)
        broker.event_types.replace(seen, seen)
        return seen

    monkeypatch.setattr(broker.event_types, "get", get_and_change)
    update = api.put(f"/event-types/{definition['name']}", json=definition)
    repartitioning = api.put(f"/event-types/{definition['name']}/partition-count", json={"partition_count": 2})

    expected = "Event type is currently in maintenance, please repeat request"
    assert problem(update, 503) == problem(repartitioning, 503) == expected
    broker.close()

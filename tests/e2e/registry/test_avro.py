"""Event types with Avro schemas, and the Avro schemas of batches."""

import json

import pytest

from tests.support.api import a_business_definition, create_event_type, problem
from tests.support.avro import ORDER, a_field, a_record, schema_draft

WITH_NOTE = a_record(*ORDER["fields"], a_field("note"))
WITH_DEFAULT = a_record(*ORDER["fields"], a_field("note", default=""))


def create_avro_type(api, schema=ORDER, **changes):
    return create_event_type(api, a_business_definition(**changes) | {"schema": schema_draft(schema)})


def submit_schema(api, event_type, schema, **parameters):
    draft = schema if "type" in schema and "schema" in schema else schema_draft(schema)
    return api.post(f"/event-types/{event_type['name']}/schemas", json=draft, params=parameters)


def current_schema(api, event_type):
    return api.get(f"/event-types/{event_type['name']}").json()["schema"]


def test_an_avro_schema_is_stored_as_it_was_sent(api):
    """The event type and the list of its schemas show the type and the text as sent, as version 1.0.0. (R159)"""
    created = create_avro_type(api)["schema"]

    assert (created["type"], created["schema"], created["version"]) == ("avro_schema", json.dumps(ORDER), "1.0.0")


def test_what_is_no_avro_schema_is_refused(api):
    """A text that is not an Avro schema is refused, for a reason in the words of the reference. (R159)"""
    definition = a_business_definition() | {"schema": schema_draft('{"type": "record", "name": "x"}')}

    detail = problem(api.post("/event-types", json=definition), 422)

    assert detail == 'failed to parse avro schema Record has no fields: {"type":"record","name":"x"}'


def test_a_schema_that_expands_without_end_is_refused(api):
    """Each record contains the previous one ten times, so expanding it for tables and reads would not end. (R159)"""
    inner = "int"
    fields = []
    for level in range(12):
        record = a_record(*(a_field(f"f{number}", inner) for number in range(10)), name=f"R{level}")
        fields.append(a_field(f"r{level}", record))
        inner = f"R{level}"
    definition = a_business_definition() | {"schema": schema_draft(a_record(*fields))}

    api.post("/event-types", json=definition).raise_for_status()
    name = definition["name"]

    assert api.get(f"/event-types/{name}/readers").status_code == 200


def test_paths_are_not_looked_for_in_an_avro_schema(api):
    """The keys of events in Avro are outside the payload, so the fields of keys need not be in the schema. (R85)"""
    create_avro_type(
        api,
        partition_strategy="hash",
        partition_key_fields=["anything"],
        ordering_key_fields=["other"],
        event_owner_selector={"type": "path", "name": "team", "value": "some.where"},
    )


@pytest.mark.parametrize("mode", ["none", "forward", "compatible"])
def test_avro_follows_json_in_every_mode(api, mode):
    """An Avro schema that follows a JSON schema is a major change, however different the schemas are. (R184)"""
    event_type = create_event_type(
        api, a_business_definition(schema={"properties": {"a": {}}}, compatibility_mode="none")
    )
    api.put(f"/event-types/{event_type['name']}", json=event_type | {"compatibility_mode": mode})

    assert submit_schema(api, event_type, ORDER).status_code == 200
    assert (current_schema(api, event_type)["type"], current_schema(api, event_type)["version"]) == (
        "avro_schema",
        "2.0.0",
    )


def test_json_does_not_follow_avro(api):
    """Neither a new schema nor a new definition can change an event type from Avro back to JSON. (R185)"""
    event_type = create_avro_type(api)
    draft = {"type": "json_schema", "schema": "{}"}

    for refused in (
        submit_schema(api, event_type, draft),
        api.put(f"/event-types/{event_type['name']}", json=event_type | {"schema": draft}),
    ):
        assert problem(refused, 422) == "Cannot change from avro_schema to json_schema!"


@pytest.mark.parametrize(("mode", "status"), [("none", 200), ("forward", 200), ("compatible", 422)])
def test_the_mode_judges_an_avro_schema(api, mode, status):
    """A field without a default may be added, unless readers with the new schema must read old events. (R186, R187,
    R192)
    """
    event_type = create_avro_type(api, compatibility_mode=mode)

    answer = submit_schema(api, event_type, WITH_NOTE)

    assert answer.status_code == status
    assert current_schema(api, event_type)["version"] == ("2.0.0" if status == 200 else "1.0.0")
    if status == 422:
        assert problem(answer, 422) == (
            "Failed to evolve avro schema due to"
            " [{ type:READER_FIELD_MISSING_DEFAULT_VALUE, location:/fields/2, message:note }]"
        )
        assert answer.json()["reasons"][0]["rule"] == "READER_FIELD_MISSING_DEFAULT_VALUE"


def test_the_mode_of_the_same_request_counts(api):
    """The new definition's mode decides about its schema, not the current mode. (R186)"""
    event_type = create_avro_type(api, compatibility_mode="none")
    changes = {"compatibility_mode": "forward", "schema": schema_draft(a_record())}

    refused = api.put(f"/event-types/{event_type['name']}", json=event_type | changes)

    assert problem(refused, 422).startswith("Failed to evolve avro schema due to [{ type:READER_FIELD_MISSING_DEFAULT")


def test_an_equal_avro_schema_changes_nothing(api):
    """A change of documentation alone creates no new version. (R187)"""
    event_type = create_avro_type(api)

    assert submit_schema(api, event_type, {**ORDER, "doc": "An order."}).status_code == 200
    assert current_schema(api, event_type) == event_type["schema"]


def test_a_dry_run_judges_an_avro_schema(api):
    """A dry run lists every objection to the schema, permitted or not, and makes no proposal. (R296, R311)"""
    event_type = create_avro_type(api, compatibility_mode="compatible")

    refused = submit_schema(api, event_type, WITH_NOTE, dry_run="true").json()
    accepted = submit_schema(api, event_type, WITH_DEFAULT, dry_run="true").json()

    assert (refused["accepted"], refused["level"]) == (False, "major")
    assert [(each["rule"], each["path"], each["permitted"]) for each in refused["changes"]] == [
        ("READER_FIELD_MISSING_DEFAULT_VALUE", "/fields/2", False)
    ]
    assert "proposal" not in refused
    assert (accepted["accepted"], accepted["version"], accepted["changes"]) == (True, "2.0.0", [])
    assert current_schema(api, event_type)["version"] == "1.0.0"


def test_a_dry_run_shows_what_the_mode_lets_pass(api):
    """In the mode `forward`, readers with the new schema may fail to read old events, and the answer says so. (R296,
    R311)
    """
    event_type = create_avro_type(api, compatibility_mode="forward")

    forecast = api.put(
        f"/event-types/{event_type['name']}",
        json=event_type | {"schema": schema_draft(WITH_NOTE)},
        params={"dry_run": "true"},
    ).json()

    assert (forecast["accepted"], forecast["version"]) == (True, "2.0.0")
    assert [(each["path"], each["permitted"]) for each in forecast["changes"]] == [("/fields/2", True)]


def test_a_version_can_be_compared_with_an_avro_schema(api):
    """The check reads the text as a schema of the same type as the version that the request names. (R148, R311)"""
    event_type = create_event_type(
        api, a_business_definition(schema={"properties": {}}, compatibility_mode="compatible")
    )
    submit_schema(api, event_type, ORDER)
    path = f"/event-types/{event_type['name']}/schemas"

    avro = api.post(f"{path}/latest/compatibility-check", json={"schema": json.dumps(WITH_NOTE)}).json()
    as_json = api.post(f"{path}/1.0.0/compatibility-check", json={"schema": '{"properties": {}}'}).json()

    assert (avro["compatible"], avro["validated_against_version"]) == (False, "2.0.0")
    assert avro["error"].startswith("Failed to evolve avro schema due to")
    assert (as_json["compatible"], as_json["validated_against_version"]) == (True, "1.0.0")
    assert problem(api.post(f"{path}/latest/compatibility-check", json={"schema": "{"}), 422)


def test_an_avro_schema_can_be_looked_up_by_its_canonical_form(api):
    """Documentation and layout make no difference, but the names of fields do; a JSON schema is a different schema.
    (R145)
    """
    event_type = create_event_type(api, a_business_definition(schema={"properties": {"a": {}}}))
    submit_schema(api, event_type, ORDER)

    assert submit_schema(api, event_type, {**ORDER, "doc": "An order."}, fetch="true").json()["version"] == "2.0.0"
    as_json = {"type": "json_schema", "schema": '{"properties": {"a": {}}}'}
    assert submit_schema(api, event_type, as_json, fetch="true").json()["version"] == "1.0.0"
    assert problem(submit_schema(api, event_type, a_record(), fetch="true"), 404).startswith("schema is not found for")
    assert problem(submit_schema(api, event_type, {"type": "avro_schema", "schema": "{"}, fetch="true"), 422)


def test_declared_reads_are_those_of_the_avro_schema(api):
    """Readers declare fields of the record, and a schema that removes one is refused. (R310, D1, D5)"""
    event_type = create_avro_type(api, compatibility_mode="compatible")
    name = event_type["name"]
    draft = {"owning_application": "app", "event_types": [name]}

    problem(api.post("/subscriptions", json=draft | {"reads": ["nothing"]}), 422)
    subscription = api.post("/subscriptions", json=draft | {"reads": ["id"]}).json()
    readers = api.get(f"/event-types/{name}/readers").json()
    refused = submit_schema(api, event_type, a_record(ORDER["fields"][1], a_field("id", "bytes", default="")))

    assert [each["reads"] for each in readers["readers"]] == [["id"]]
    assert readers["unread"] == ["lines"]
    assert subscription["reads"] == ["id"]
    assert refused.status_code == 200  # in JSON, bytes are also strings


@pytest.mark.parametrize(
    ("name", "batch"), [("batch.publishing", "PublishingBatch"), ("batch.consumption", "ConsumptionBatch")]
)
def test_the_avro_schemas_of_batches_are_listed(api, name, batch):
    """The list of the Avro schemas of batches has both versions, the older one first, each containing the record of
    envelopes. (R248, R276)
    """
    items = api.get(f"/avro-schemas/{name}/versions").json()["items"]

    assert [(each["version"], each["avro_schema"]["name"]) for each in items] == [("0", f"{batch}V0"), ("1", batch)]
    events = items[1]["avro_schema"]["fields"][-1]
    assert (events["name"], events["type"]["items"]["name"]) == ("events", "Envelope")


def test_an_avro_schema_of_batches_has_its_own_address(api):
    """The address shows one version; other versions and names get 404. (R249)"""
    listed = api.get("/avro-schemas/batch.publishing/versions").json()["items"]

    assert api.get("/avro-schemas/batch.publishing/versions/1").json() == listed[1]
    missing = problem(api.get("/avro-schemas/batch.publishing/versions/7"), 404)
    assert missing == "Avro schema not found for: batch.publishing, version 7"
    problem(api.get("/avro-schemas/envelope/versions"), 404)
    problem(api.get("/avro-schemas/envelope/versions/1"), 404)

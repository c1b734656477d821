"""The schema versions of an event type."""

import json

import pytest

from tests.support.api import a_definition, create_event_type, problem, violations

FIRST = {"properties": {"a": {"type": "string"}}}
SECOND = {"properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}


def schema_draft(content, **changes):
    text = content if isinstance(content, str) else json.dumps(content)
    return {"type": "json_schema", "schema": text} | changes


@pytest.fixture
def schemas_path(api):
    """The path of the schemas of an event type whose first version is FIRST."""
    return f"/event-types/{create_event_type(api, schema=FIRST)['name']}/schemas"


def listed_versions(answer):
    assert answer.status_code == 200
    return [each["version"] for each in answer.json()["items"]]


def add_patch_versions(api, schemas_path, number):
    """Add this number of versions that differ only in their layout."""
    for blanks in range(1, number + 1):
        assert api.post(schemas_path, json=schema_draft(json.dumps(FIRST) + " " * blanks)).status_code == 200


def test_versions_are_listed_from_the_newest(api, schemas_path):
    """Every version has type, schema, version and time, newest first. (R136)"""
    api.post(schemas_path, json=schema_draft(SECOND))

    answer = api.get(schemas_path).json()

    assert [each["version"] for each in answer["items"]] == ["1.1.0", "1.0.0"]
    assert set(answer["items"][0]) == {"type", "schema", "version", "created_at"}
    assert answer["_links"] == {}


def test_pages_are_linked(api, schemas_path):
    """Links have the paths of the previous and the next page, if these exist. (R138)"""
    add_patch_versions(api, schemas_path, 4)

    first = api.get(schemas_path, params={"limit": 2}).json()
    middle = api.get(schemas_path, params={"limit": 2, "offset": 2}).json()
    last = api.get(schemas_path, params={"limit": 2, "offset": 4}).json()

    assert first["_links"] == {"next": {"href": f"{schemas_path}?offset=2&limit=2"}}
    assert middle["_links"] == {
        "prev": {"href": f"{schemas_path}?offset=0&limit=2"},
        "next": {"href": f"{schemas_path}?offset=4&limit=2"},
    }
    assert last["_links"] == {"prev": {"href": f"{schemas_path}?offset=2&limit=2"}}
    assert [len(page["items"]) for page in (first, middle, last)] == [2, 2, 1]


def test_a_link_leads_where_it_says(api, schemas_path):
    """Following `next` from the first page meets every version once. (R138)"""
    add_patch_versions(api, schemas_path, 4)
    met, href = [], f"{schemas_path}?limit=2"
    while href:
        page = api.get(href).json()
        met += [each["version"] for each in page["items"]]
        href = page["_links"].get("next", {}).get("href")

    assert met == ["1.0.4", "1.0.3", "1.0.2", "1.0.1", "1.0.0"]


def test_twenty_versions_are_a_page(api, schemas_path):
    """Without a limit a page has twenty versions. (R137)"""
    add_patch_versions(api, schemas_path, 20)

    assert len(listed_versions(api.get(schemas_path))) == 20


def test_beyond_the_end_there_is_nothing(api, schemas_path):
    """An offset beyond the end is an empty page without links. (R139)"""
    assert api.get(schemas_path, params={"offset": 100}).json() == {"items": [], "_links": {}}


@pytest.mark.parametrize(
    ("parameters", "detail"),
    [
        ({"limit": 0}, "'limit' parameter sholud have value between 1 and 1000"),
        ({"limit": 1001}, "'limit' parameter sholud have value between 1 and 1000"),
        ({"offset": -1}, "'offset' parameter can't be lower than 0"),
        ({"limit": "abc"}, "'abc'"),
    ],
)
def test_pages_have_bounds(api, schemas_path, parameters, detail):
    """A limit or offset that is out of bounds, or not a number, is a bad request. (R15, R137)"""
    assert detail in problem(api.get(schemas_path, params=parameters), 400)


def test_existence_is_checked_before_the_page(api):
    """A request for the schemas of an unknown event type gets 404, for any page. (R137, R140)"""
    assert problem(api.get("/event-types/no.such/schemas?limit=0"), 404) == 'EventType "no.such" does not exist.'


def test_one_version_and_the_latest(api, schemas_path):
    """A version is found by its number, the current one by `latest`. (R28, R141)"""
    api.post(schemas_path, json=schema_draft(SECOND))

    assert json.loads(api.get(f"{schemas_path}/1.0.0").json()["schema"]) == FIRST
    assert api.get(f"{schemas_path}/1.1.0").json() == api.get(f"{schemas_path}/latest").json()


@pytest.mark.parametrize("version", ["9.9.9", "abc", "1", "1.0.0.0"])
def test_an_unknown_version_is_reported(api, schemas_path, version):
    """A version that does not exist gets 404, whatever its spelling. (R141)"""
    name = schemas_path.split("/")[2]

    assert (
        problem(api.get(f"{schemas_path}/{version}"), 404)
        == f'EventType "{name}" has no schema with version "{version}"'
    )


def test_a_version_is_only_read(api, schemas_path):
    """Other methods than GET and HEAD are not allowed on a version. (R32)"""
    problem(api.put(f"{schemas_path}/1.0.0", json={}), 405)


def test_adding_a_schema_makes_it_current(api, schemas_path):
    """A permitted schema is stored as the next version, and is current at once. (R142, R143, R264)"""
    before = api.get(f"{schemas_path}/latest").json()

    answer = api.post(schemas_path, json=schema_draft(SECOND))

    assert (answer.status_code, answer.content) == (200, b"")
    event_type = api.get(schemas_path.removesuffix("/schemas")).json()
    assert event_type["schema"]["version"] == "1.1.0"
    assert event_type["updated_at"] > before["created_at"]


def test_the_same_schema_again_changes_nothing(api, schemas_path):
    """The same text adds no version, and does not change the time of the last change. (R143)"""
    before = api.get(schemas_path.removesuffix("/schemas")).json()

    assert api.post(schemas_path, json=schema_draft(before["schema"]["schema"])).status_code == 200
    assert api.get(schemas_path.removesuffix("/schemas")).json() == before


def test_a_schema_that_may_not_follow_is_refused(api, schemas_path):
    """A change that the mode forbids gets 422, and stores nothing. (R142, R192)"""
    refused = problem(api.post(schemas_path, json=schema_draft({"properties": {"a": {"type": "integer"}}})), 422)

    assert refused == "Invalid schema: #/properties/a: schema types must be the same"
    assert listed_versions(api.get(schemas_path)) == ["1.0.0"]


@pytest.mark.parametrize(
    ("body", "fields"),
    [({}, ["schema", "type"]), ({"type": "json_schema"}, ["schema"]), ({"schema": "{}", "type": None}, ["type"])],
)
def test_missing_members_are_listed_as_a_bad_request(api, schemas_path, body, fields):
    """Here, missing members are 400 with a sorted list of violations. (R22, R144)"""
    answer = api.post(schemas_path, json=body)

    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json() == {
        "type": "https://zalando.github.io/problem/constraint-violation",
        "title": "Constraint Violation",
        "status": 400,
        "violations": [{"field": field, "message": "must not be null"} for field in fields],
    }


def test_checks_of_a_new_schema_come_in_their_order(api, schemas_path):
    """The checks come in this order: parsing, members, existence of the event type, soundness of the schema, and
    evolution. (R144)
    """
    unknown = "/event-types/no.such/schemas"

    problem(api.post(unknown, content="{", headers={"content-type": "application/json"}), 400)
    assert api.post(unknown, json={}).status_code == 400
    problem(api.post(unknown, json=schema_draft("x")), 404)
    assert problem(api.post(schemas_path, json=schema_draft("x")), 422).startswith("schema must be a valid json")


def test_a_read_only_registry_takes_no_schema(api, schemas_path, switch_on):
    """While writing is disabled, a new schema gets 503, which the reference forgot. (R147)"""
    switch_on("disable_db_write_operations")

    assert problem(api.post(schemas_path, json=schema_draft(SECOND)), 503) == "Database is currently in read-only mode"


def test_a_schema_can_be_looked_up_by_its_content(api, schemas_path):
    """`fetch` returns the newest version with the same meaning, and stores nothing. (R145)"""
    api.post(schemas_path, json=schema_draft(SECOND))
    reordered = '{ "properties": {"b": {"type": "integer"}, "a": {"type": "string"}} }'

    found = api.post(schemas_path, params={"fetch": "true"}, json=schema_draft(reordered))

    assert found.status_code == 200
    assert found.json()["version"] == "1.1.0"
    assert listed_versions(api.get(schemas_path)) == ["1.1.0", "1.0.0"]


def test_a_schema_that_was_never_there_is_not_found(api, schemas_path):
    """A look-up of content that no version has gets 404. (R145)"""
    answer = api.post(schemas_path, params={"fetch": "true"}, json=schema_draft({"properties": {}}))

    assert problem(answer, 404) == f"schema is not found for {schemas_path.split('/')[2]}"


def test_a_content_that_is_no_schema_is_reported(api, schemas_path):
    """Looking up a text that is not JSON gets 422, where the reference failed with an error. (R146)"""
    problem(api.post(schemas_path, params={"fetch": "true"}, json=schema_draft("{")), 422)


def test_a_flag_is_true_or_false(api, schemas_path):
    """A `fetch` that is neither true nor false is a bad request. (R15)"""
    problem(api.post(schemas_path, params={"fetch": "maybe"}, json=schema_draft(SECOND)), 400)


def test_a_schema_can_be_tried_before_it_is_added(api, schemas_path):
    """The compatibility check says whether a schema may follow a version, and stores nothing. (R148, R276)"""
    answer = api.post(f"{schemas_path}/latest/compatibility-check", json={"schema": json.dumps(SECOND)})

    assert answer.status_code == 200
    assert answer.json() | {"changes": len(answer.json()["changes"])} == {
        "compatible": True,
        "compatibility_mode": "forward",
        "validated_against_version": "1.0.0",
        "level": "minor",
        "changes": 1,
    }
    assert listed_versions(api.get(schemas_path)) == ["1.0.0"]


def test_an_incompatible_schema_is_an_answer_and_no_failure(api, schemas_path):
    """The check of a schema that may not follow the current one gives the message that adding the schema would give,
    and a proposal. (R148, R297)
    """
    answer = api.post(f"{schemas_path}/1.0.0/compatibility-check", json={"schema": '{"properties": {}}'})

    verdict = answer.json()
    [change] = verdict.pop("changes")
    assert verdict == {
        "compatible": False,
        "compatibility_mode": "forward",
        "validated_against_version": "1.0.0",
        "error": "Invalid schema: #/properties/a: schema properties cannot be removed",
        "level": "major",
        "proposal": [{"op": "add", "path": "/properties/a", "value": {"type": "string"}}],
    }
    assert (change["rule"], change["old"], change["permitted"]) == ("PROPERTY_REMOVED", {"type": "string"}, False)


def test_a_check_is_against_the_version_it_names(api, schemas_path):
    """A check against an older version may accept a schema that may not follow the current version. (R148)"""
    api.post(schemas_path, json=schema_draft(SECOND))
    body = {"schema": json.dumps(FIRST | {"title": "x"})}

    assert api.post(f"{schemas_path}/1.0.0/compatibility-check", json=body).json()["compatible"]
    assert not api.post(f"{schemas_path}/1.1.0/compatibility-check", json=body).json()["compatible"]


def test_a_check_needs_a_schema(api, schemas_path):
    """A missing schema is reported field by field; an invalid one gets 422. (R148, R149)"""
    check = f"{schemas_path}/latest/compatibility-check"

    assert violations(api.post(check, json={})) == {'Field "schema" must not be null'}
    problem(api.post(check, json={"schema": "["}), 422)


def test_a_check_needs_something_to_check_against(api, schemas_path):
    """A check against an unknown event type or version gets 404. (R149)"""
    body = {"schema": "{}"}

    problem(api.post("/event-types/no.such/schemas/latest/compatibility-check", json=body), 404)
    problem(api.post(f"{schemas_path}/7.0.0/compatibility-check", json=body), 404)


@pytest.mark.parametrize(
    ("mode", "schema_text", "detail"),
    [
        ("forward", "[]", "schema must be a valid json: "),
        ("forward", "{} x", "schema must be a valid json: "),
        ("forward", '{"a": 1, "a": 2}', 'schema must be a valid json: Duplicate key "a"'),
        ("forward", '{"type": "string"}', '"type" of root element in schema can only be "object"'),
        ("forward", '{"type": ["object"]}', 'schema must be a valid json: JSONObject["type"] not a string.'),
        ("forward", '{"$schema": "http://x"}', "no meta-schema is known with URL [http://x]"),
        ("forward", '{"$schema": 1}', "no meta-schema is known with URL [1]"),
        ("forward", '{"properties": {"a": {"type": "foo"}}}', "schema must be a valid json-schema: "),
        ("forward", '{"$ref": "http://127.0.0.1/x"}', "external url reference is not supported: http://127.0.0.1/x"),
        ("forward", '{"properties": {"a": {"pattern": "(?!x)"}}}', "invalid regex pattern in the schema: "),
        ("compatible", '{"x-extensible-enum": []}', "Invalid schema: Invalid schema found in [#"),
        ("compatible", '{"properties": {"a": {"not": {}}}}', "extraneous key [not] is not permitted"),
    ],
)
def test_a_schema_has_to_be_sound(api, mode, schema_text, detail):
    """An unsound schema gets 422 with the reason, wherever it is sent. (R9, R10, R150, R151, R152, R153, R154,
    R155, R158, R160, R163)
    """
    assert detail in problem(
        api.post("/event-types", json=a_definition(schema=schema_text, compatibility_mode=mode)), 422
    )


def test_the_metadata_of_business_events_is_reserved(api):
    """A business event's schema cannot define `metadata`. (R156)"""
    definition = a_definition(
        category="business",
        enrichment_strategies=["metadata_enrichment"],
        schema={"properties": {"metadata": {}}},
    )

    assert problem(api.post("/event-types", json=definition), 422) == '"metadata" property is reserved'


def test_unknown_keywords_are_the_owners_business(api):
    """Outside mode `compatible`, a schema may have unknown keywords. (R161, R270)"""
    extended = {"x-extensible-enum": ["a"], "properties": {"a": {"example": 1}}}

    assert json.loads(create_event_type(api, schema=extended)["schema"]["schema"]) == extended

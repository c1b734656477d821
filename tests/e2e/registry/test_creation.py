"""POST /event-types."""

import json
import uuid
from datetime import datetime

import pytest

from tests.support.api import (
    a_business_definition,
    a_definition,
    an_authorization,
    create_event_type,
    problem,
    violations,
)
from tests.support.builders import a_name


def test_creating_answers_with_nothing_but_a_warning(api):
    """Creating an event type gets 201, without body or location, and with the data access warning. (R92, R94, R268)"""
    answer = api.post("/event-types", json=a_definition())

    assert answer.status_code == 201
    assert answer.content == b""
    assert "location" not in answer.headers
    assert answer.headers["warning"] == '299 nakadi "Data access warning"'


def test_the_mandatory_fields_are_enough(api):
    """Omitted fields get their defaults, and come back with every field in its place. (R67, R80, R102)"""
    definition = a_definition()
    api.post("/event-types", json=definition)

    stored = api.get(f"/event-types/{definition['name']}").json()

    created_at = stored["created_at"]
    assert stored == {
        "name": definition["name"],
        "owning_application": "shop",
        "category": "undefined",
        "enrichment_strategies": [],
        "partition_strategy": "random",
        "partition_key_fields": [],
        "cleanup_policy": "delete",
        "ordering_key_fields": [],
        "ordering_instance_ids": [],
        "schema": {"type": "json_schema", "schema": "{}", "version": "1.0.0", "created_at": created_at},
        "default_statistic": None,
        "options": {"retention_time": 172_800_000},
        "authorization": None,
        "annotations": {},
        "labels": {},
        "compatibility_mode": "forward",
        "updated_at": created_at,
        "created_at": created_at,
    }


def test_times_have_milliseconds_and_utc(api):
    """Times are RFC 3339 in UTC with three digits of a second. (R14)"""
    stored = create_event_type(api)

    assert len(stored["created_at"]) == len("2016-08-04T16:41:12.000Z")
    assert stored["created_at"].endswith("Z")
    assert datetime.fromisoformat(stored["created_at"]).tzinfo is not None


def test_every_field_comes_back_as_it_was_sent(api):
    """A definition with every field set reads back unchanged. (R1, R67, R77)"""
    schema = {"type": "object", "properties": {"sku": {"type": "string"}, "at": {"type": "integer"}}}
    definition = a_business_definition(
        schema=schema,
        partition_strategy="hash",
        partition_key_fields=["sku"],
        ordering_key_fields=["at"],
        ordering_instance_ids=["sku"],
        cleanup_policy="compact_and_delete",
        compatibility_mode="compatible",
        default_statistic={
            "messages_per_minute": 10,
            "message_size": 100,
            "read_parallelism": 2,
            "write_parallelism": 3,
        },
        options={"retention_time": 86_400_000},
        authorization=an_authorization(),
        audience="company-internal",
        event_owner_selector={"type": "path", "name": "retailer", "value": "sku"},
        annotations={"nakadi.io/note": "on purpose", "empty": None},
        labels={"team": "checkout"},
    )

    stored = create_event_type(api, definition)

    assert {name: stored[name] for name in definition if name != "schema"} == {
        name: value for name, value in definition.items() if name != "schema"
    }
    assert json.loads(stored["schema"]["schema"]) == schema


def test_unset_audience_and_owner_selector_are_left_out(api):
    """Audience and owner selector appear only when they are set. (R67)"""
    stored = create_event_type(api)

    assert "audience" not in stored
    assert "event_owner_selector" not in stored


@pytest.mark.parametrize(
    ("policy", "warning"),
    [
        ("delete", "Data access warning"),
        ("compact", "Data access warning. Compaction warning"),
        ("compact_and_delete", "Data access warning"),
    ],
)
def test_only_pure_compaction_is_warned_of(api, policy, warning):
    """The second sentence of the warning appears only for cleanup policy `compact`. (R94)"""
    answer = api.post("/event-types", json=a_business_definition(cleanup_policy=policy))

    assert answer.headers["warning"] == f'299 nakadi "{warning}"'


def test_the_body_is_returned_when_a_feature_says_so(api, switch_on):
    """If the feature for returning bodies is on, the answer is the stored event type. (R93)"""
    switch_on("return_body_on_create_update_event_type")
    definition = a_definition()

    answer = api.post("/event-types", json=definition)

    assert answer.status_code == 201
    assert answer.json() == api.get(f"/event-types/{definition['name']}").json()
    assert "warning" in answer.headers


def test_unknown_and_read_only_fields_are_passed_over(api):
    """Fields without a meaning here are accepted; older documents have many of them. (R2)"""
    definition = a_definition(
        created_at="0001-01-01T00:00:00Z",
        updated_at=7,
        default_statistics={"x": 1},
        validation_strategies=["schema-validation"],
        read_scopes=[],
        write_scopes=[],
        data_key_fields=["a"],
        flavour="vanilla",
    )
    definition["schema"]["version"] = "9.9.9"
    definition["schema"]["created_at"] = "0001-01-01T00:00:00Z"

    assert create_event_type(api, definition)["schema"]["version"] == "1.0.0"


@pytest.mark.parametrize(
    ("changes", "field", "shown"),
    [
        ({"category": "UNDEFINED"}, "category", "undefined"),
        ({"category": "Undefined"}, "category", "undefined"),
        ({"cleanup_policy": "DELETE"}, "cleanup_policy", "delete"),
        ({"compatibility_mode": "Compatible"}, "compatibility_mode", "compatible"),
        (
            {"category": "business", "enrichment_strategies": ["METADATA_ENRICHMENT"]},
            "enrichment_strategies",
            ["metadata_enrichment"],
        ),
    ],
)
def test_words_are_read_in_any_letter_case(api, changes, field, shown):
    """Enumerated values are understood in any letter case, and shown in lower case. (R3)"""
    assert create_event_type(api, **changes)[field] == shown


@pytest.mark.parametrize("written", ["json_schema", "JSON_SCHEMA", "json-schema"])
def test_the_schema_type_has_old_spellings(api, written):
    """Old spellings of the schema type are understood, and the new one is shown. (R3, R267)"""
    definition = a_definition()
    definition["schema"]["type"] = written

    assert create_event_type(api, definition)["schema"]["type"] == "json_schema"


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({"category": "odd"}, "Illegal enum value: 'odd'. Possible values: [undefined, data, business]"),
        ({"cleanup_policy": "x"}, "Illegal enum value: 'x'. Possible values: [delete, compact, compact_and_delete]"),
        ({"compatibility_mode": "x"}, "Illegal enum value: 'x'. Possible values: [forward, compatible, none]"),
        ({"enrichment_strategies": ["x"]}, "Illegal enum value: 'x'. Possible values: [metadata_enrichment]"),
        ({"schema": {}, "audience": "Company-Internal"}, "Illegal enum value: 'Company-Internal'. Possible values: ["),
    ],
)
def test_an_unknown_word_is_a_bad_request(api, changes, detail):
    """An unknown enumerated value gets 400 with the known ones; an audience must be spelled exactly. (R4)"""
    assert problem(api.post("/event-types", json=a_definition(**changes)), 400).startswith(detail)


def test_an_unknown_schema_type_is_a_bad_request(api):
    """A schema type that does not exist gets 400. (R267)"""
    definition = a_definition()
    definition["schema"]["type"] = "xml_schema"

    assert problem(api.post("/event-types", json=definition), 400).startswith("Illegal enum value: 'xml_schema'")


@pytest.mark.parametrize(
    "body",
    [b"{", b"nonsense", b'{"name": "a"', b"[]", b'"text"', b"3", b'{"schema": "text"}', b'{"name": {}}', b"\xff"],
)
def test_what_cannot_be_read_is_a_bad_request(api, body):
    """Broken JSON and values of the wrong kind get 400, before any rule is checked. (R6, R96)"""
    answer = api.post("/event-types", content=body, headers={"content-type": "application/json"})

    assert problem(answer, 400).startswith("JSON parse error: ")


def test_a_missing_body_is_a_bad_request(api):
    """A missing body gets 400, and the answer says so. (R7)"""
    answer = api.post("/event-types", headers={"content-type": "application/json"})

    assert problem(answer, 400).startswith("Required request body is missing")


def test_bodies_are_read_forgivingly(api):
    """Among equal keys, the last one counts; text after the document is ignored, and scalars become strings. (R8)"""
    name = a_name()
    schema = '{"type": "json_schema", "schema": "{}"}'
    text = (
        f'{{"name": "other", "name": "{name}", "owning_application": 5, "category": "undefined", "schema": {schema}}} x'
    )

    answer = api.post("/event-types", content=text, headers={"content-type": "application/json"})

    assert answer.status_code == 201
    assert api.get(f"/event-types/{name}").json()["owning_application"] == "5"


def test_a_scalar_is_no_list(api):
    """A single value in place of a list gets 400. (R8)"""
    problem(api.post("/event-types", json=a_definition(partition_key_fields="sku")), 400)


@pytest.mark.parametrize("field", ["name", "owning_application", "category", "schema"])
def test_a_mandatory_field_must_be_there(api, field):
    """A missing and a null mandatory field are reported by name. (R18, R21, R68, R70)"""
    definition = a_definition()
    missing = {name: value for name, value in definition.items() if name != field}

    for body in (missing, definition | {field: None}):
        assert violations(api.post("/event-types", json=body)) == {f'Field "{field}" must not be null'}


@pytest.mark.parametrize("field", ["enrichment_strategies", "cleanup_policy", "compatibility_mode"])
def test_a_null_is_no_default(api, field):
    """Null for a field with a default is reported as missing. (R5, R70)"""
    answer = api.post("/event-types", json=a_definition(**{field: None}))

    assert violations(answer) == {f'Field "{field}" must not be null'}


@pytest.mark.parametrize(
    ("read", "write", "partitions"), [(None, None, 1), (1, 1, 1), (2, 5, 5), (3, 2, 3), (8, 1, 8), (9, 100, 8)]
)
def test_parallelism_decides_the_number_of_partitions(api, read, write, partitions):
    """The number of partitions is the greater of the two parallelisms in the statistics, at most 8, or one without
    statistics. (R103, R105)
    """
    statistic = {
        "messages_per_minute": 10**6,
        "message_size": 10**6,
        "read_parallelism": read,
        "write_parallelism": write,
    }
    event_type = create_event_type(api, default_statistic=statistic if read else None)

    listed = api.get(f"/event-types/{event_type['name']}/partitions").json()

    assert [each["partition"] for each in listed] == [str(number) for number in range(partitions)]


def test_a_null_section_is_no_section(api):
    """Null for authorization, audience, selector and statistics means that there is none. (R67)"""
    stored = create_event_type(
        api, authorization=None, audience=None, event_owner_selector=None, default_statistic=None
    )

    assert stored["authorization"] is None


def test_the_schema_is_kept_to_the_letter(api):
    """The schema comes back byte for byte, in any layout. (R109)"""
    text = '{ "type":"object",\n  "properties": {"\\u00e9": {}} }'

    assert create_event_type(api, schema=text)["schema"]["schema"] == text


def test_names_with_dots_are_one_segment(api):
    """A name may end like a file name, or contain a UUID. (R28, R69)"""
    for name in (a_name("foo") + ".ps", f"x.{uuid.uuid4()}", a_name("x") + ".json"):
        assert create_event_type(api, name=name)["name"] == name

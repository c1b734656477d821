"""The explanation of an invalid event that a client gets."""

import pytest

from nakadi.model.event_type import Category, CleanupPolicy, CompatibilityMode
from nakadi.schemas.document import EID_PATTERN, effective_schema
from nakadi.schemas.explanation import NO_EXPLANATION_MESSAGE
from nakadi.schemas.validation import compile_validator

SEVEN = {"$schema": "http://json-schema.org/draft-07/schema#"}
METADATA = {"eid": "d765de34-09c0-4bbb-8b1e-7160a33a0791", "occurred_at": "2026-11-21T12:00:00Z"}


def explain(schema, event) -> str:
    validator = compile_validator(schema)
    assert not validator.accepts(event)
    return validator.explain(event)


def explain_business(event, schema=None) -> str:
    effective = effective_schema(
        schema or {},
        event_type="order",
        category=Category.BUSINESS,
        mode=CompatibilityMode.FORWARD,
        cleanup_policy=CleanupPolicy.DELETE,
    )
    return explain(effective, event)


def test_one_violation():
    """A violation is reported in one line with its location and the fault. (P71, R182)"""
    assert explain_business({}) == "#: required key [metadata] not found"


def test_several_violations():
    """The number of several violations comes first; then they are listed line by line, including inner ones. (P71,
    R182)"""
    schema = {
        "properties": {"a": {"type": "string"}, "b": {"properties": {"c": {"type": "null"}, "d": {"maximum": 1}}}},
        "required": ["e"],
    }

    assert explain(schema, {"a": 1, "b": {"c": 2, "d": 3}}).split("\n") == [
        "#: 4 schema violations found",
        "#: required key [e] not found",
        "#/a: expected type: String, found: Integer",
        "#/b: 2 schema violations found",
        "#/b/c: expected: null, found: Integer",
        "#/b/d: 3 is not less or equal to 1",
    ]


@pytest.mark.parametrize("name", ["received_at", "version", "published_by", "schema_version"])
def test_keys_that_only_the_broker_writes(name):
    """Metadata that only the broker writes are extraneous when a producer sends them. (P63, R175)"""
    explained = explain_business({"metadata": METADATA | {name: "x"}})

    assert explained == f"#/metadata: extraneous key [{name}] is not permitted"


def test_name_of_another_event_type():
    """The event type in the metadata must be the one to which the event is published. (P64, R182)"""
    explained = explain_business({"metadata": METADATA | {"event_type": "X"}})

    assert explained == "#/metadata/event_type: X is not a valid enum value"


def test_eid():
    """An invalid eid is reported with the required pattern. (P65, R182)"""
    explained = explain_business({"metadata": METADATA | {"eid": "x"}})

    assert explained == f"#/metadata/eid: string [x] does not match pattern {EID_PATTERN}"


@pytest.mark.parametrize(
    ("metadata", "line"),
    [
        ({}, "#/metadata: required key [eid] not found"),
        (5, "#/metadata: expected type: JSONObject, found: Integer"),
        ({**METADATA, "eid": None}, "#/metadata/eid: expected type: String, found: Null"),
    ],
)
def test_events_without_metadata_worth_the_name(metadata, line):
    """Events whose metadata cannot even be parsed are reported like all others. (P71, P73)"""
    assert line in explain_business({"metadata": metadata}).split("\n")


@pytest.mark.parametrize(
    ("type_name", "value", "text"),
    [
        ("string", 1, "expected type: String, found: Integer"),
        ("string", 2**31, "expected type: String, found: Long"),
        ("string", -(2**31), "expected type: String, found: Integer"),
        ("string", 1.5, "expected type: String, found: Double"),
        ("string", True, "expected type: String, found: Boolean"),
        ("string", None, "expected type: String, found: Null"),
        ("string", {}, "expected type: String, found: JSONObject"),
        ("string", [], "expected type: String, found: JSONArray"),
        ("integer", 1.0, "expected type: Integer, found: Double"),
        ("integer", "1", "expected type: Number, found: String"),
        ("integer", True, "expected type: Number, found: Boolean"),
        ("number", "1", "expected type: Number, found: String"),
        ("boolean", 1, "expected type: Boolean, found: Integer"),
        ("object", [], "expected type: JSONObject, found: JSONArray"),
        ("array", {}, "expected type: JSONArray, found: JSONObject"),
        ("null", 1, "expected: null, found: Integer"),
    ],
)
def test_types_have_java_names(type_name, value, text):
    """Explanations name types as Java does. (P72, R182)"""
    assert explain({"properties": {"a": {"type": type_name}}}, {"a": value}) == f"#/a: {text}"


@pytest.mark.parametrize(
    ("schema", "value", "text"),
    [
        ({"required": ["k"]}, {}, "required key [k] not found"),
        ({"additionalProperties": False}, {"k": 1}, "extraneous key [k] is not permitted"),
        (
            {"patternProperties": {"^x": {}}, "additionalProperties": False},
            {"k": 1},
            "extraneous key [k] is not permitted",
        ),
        ({"minProperties": 1}, {}, "minimum size: [1], found: [0]"),
        ({"maxProperties": 0}, {"a": 1}, "maximum size: [0], found: [1]"),
        ({"dependencies": {"a": ["b"]}}, {"a": 1}, "property [b] is required"),
        ({"dependencies": {"a": {"required": ["b"]}}}, {"a": 1}, "required key [b] not found"),
        ({"enum": ["a", 1]}, "b", "b is not a valid enum value"),
        ({"enum": ["a"]}, {"b": [1, None]}, '{"b":[1,null]} is not a valid enum value'),
        ({"enum": ["a"], "type": "string"}, 5, "5 is not a valid enum value"),
        ({"enum": ["a"], "type": "integer"}, "a", "expected type: Number, found: String"),
        ({"enum": ["a", "b"], "maxLength": 0}, "c", "c is not a valid enum value"),
        ({"enum": [1]}, 1e10, "1.0E10 is not a valid enum value"),
        ({"type": "integer", "multipleOf": 2}, 1.5, "expected type: Integer, found: Double"),
        ({"type": "string", "minLength": 1, "not": {}}, 5, "expected type: String, found: Integer"),
        ({"type": "string", "not": {}}, "a", "subject must not be valid against schema {}"),
        ({"minLength": 1}, "", "expected minLength: 1, actual: 0"),
        ({"maxLength": 1}, "ab", "expected maxLength: 1, actual: 2"),
        ({"pattern": "^a$"}, "v", "string [v] does not match pattern ^a$"),
        ({"format": "iso-4217"}, "X", "[X] is not a valid alphabetic ISO 4217 currency code"),
        ({"format": "email"}, "X", "[X] is not a valid email address"),
        ({"format": "date-time"}, "X", "must be a valid date-time Text 'X' could not be parsed at index 0"),
        ({"minimum": 1}, 0, "0 is not greater or equal to 1"),
        ({"maximum": 1}, 1.5, "1.5 is not less or equal to 1"),
        ({"minimum": 1, "exclusiveMinimum": True}, 1, "1 is not greater than 1"),
        ({"minimum": 1, "exclusiveMinimum": True}, 0, "0 is not greater than 1"),
        ({"maximum": 1, "exclusiveMaximum": True}, 2.5, "2.5 is not less than 1"),
        ({"maximum": 1e10}, 1e20, "1.0E20 is not less or equal to 1.0E10"),
        (
            SEVEN | {"additionalProperties": {"allOf": []}, "maxProperties": 0},
            {"a": 1},
            "maximum size: [0], found: [1]",
        ),
        ({"maximum": 1, "exclusiveMaximum": True}, 1, "1 is not less than 1"),
        (SEVEN | {"exclusiveMinimum": 1}, 1, "1 is not greater than 1"),
        (SEVEN | {"exclusiveMaximum": 1}, 2, "2 is not less than 1"),
        ({"multipleOf": 0.1}, 0.25, "0.25 is not a multiple of 0.1"),
        ({"minItems": 1}, [], "expected minimum item count: 1, found: 0"),
        ({"maxItems": 1}, [1, 2], "expected maximum item count: 1, found: 2"),
        ({"uniqueItems": True}, [1, 1.0], "array items are not unique"),
        ({"items": [{}], "additionalItems": False}, [1, 2], "expected: [1] array items, found: [2]"),
        ({"not": {"type": "string"}}, "a", 'subject must not be valid against schema {"type":"string"}'),
        (SEVEN | {"const": 1}, 2, "2 is not the expected value 1"),
        (SEVEN | {"contains": {"type": "null"}}, [1], "expected at least one array item to match 'contains' schema"),
    ],
)
def test_each_keyword_has_its_message(schema, value, text):
    """Each keyword has its message. (P70, P72, R182)"""
    assert explain(schema, value) == f"#: {text}"


@pytest.mark.parametrize(
    ("schema", "value", "pointer"),
    [
        ({"properties": {"a/b~c": {"type": "null"}}}, {"a/b~c": 1}, "#/a~1b~0c"),
        ({"items": {"type": "null"}}, [None, 1], "#/1"),
        ({"items": [{}, {"type": "null"}]}, [None, 1], "#/1"),
        ({"items": [{}], "additionalItems": {"type": "null"}}, [1, 1], "#/1"),
        ({"patternProperties": {"^x": {"type": "null"}}}, {"a": 1, "xa": 1}, "#/xa"),
        ({"additionalProperties": {"type": "null"}, "properties": {"a": {}}}, {"a": 1, "b": 1}, "#/b"),
        ({"properties": {"a": {"$ref": "#/definitions/n"}}, "definitions": {"n": {"type": "null"}}}, {"a": 1}, "#/a"),
        (SEVEN | {"propertyNames": {"type": "null"}}, {"a": 1}, "#/a"),
    ],
)
def test_a_location_is_a_json_pointer(schema, value, pointer):
    """A location is a JSON Pointer after a number sign. (P71, P72)"""
    assert explain(schema, value).startswith(f"{pointer}: expected: null, found: ")


@pytest.mark.parametrize(
    ("schema", "lines"),
    [
        (
            {"anyOf": [{"type": "string"}, {"type": "null"}]},
            [
                "#: #: no subschema matched out of the total 2 subschemas",
                "#: expected type: String, found: Integer",
                "#: expected: null, found: Integer",
            ],
        ),
        (
            {"type": ["string", "null"]},
            [
                "#: #: no subschema matched out of the total 2 subschemas",
                "#: expected type: String, found: Integer",
                "#: expected: null, found: Integer",
            ],
        ),
        (
            {"type": ["number", "null"], "maximum": 4, "multipleOf": 2},
            [
                "#: #: no subschema matched out of the total 2 subschemas",
                "#: 2 schema violations found",
                "#: 5 is not less or equal to 4",
                "#: 5 is not a multiple of 2",
                "#: expected: null, found: Integer",
            ],
        ),
        (
            {"type": "number", "maximum": 4, "anyOf": [{"minimum": 1}]},
            ["#: #: only 1 subschema matches out of 2", "#: 5 is not less or equal to 4"],
        ),
        (
            {"maximum": 4, "oneOf": [{"minimum": 6}, {"type": "null"}]},
            [
                "#: #: only 0 subschema matches out of 2",
                "#: 5 is not less or equal to 4",
                "#: #: 0 subschemas matched instead of one",
                "#: 5 is not greater or equal to 6",
                "#: expected: null, found: Integer",
            ],
        ),
        (
            {"title": "beside", "not": {"type": "null"}, "anyOf": [{"minimum": 6}]},
            ["#: #: no subschema matched out of the total 1 subschemas", "#: 5 is not greater or equal to 6"],
        ),
        (
            {"allOf": [{"type": "string"}, {"type": "integer"}]},
            ["#: #: only 1 subschema matches out of 2", "#: expected type: String, found: Integer"],
        ),
        (
            {"oneOf": [{"type": "string"}, {"type": "null"}]},
            [
                "#: #: 0 subschemas matched instead of one",
                "#: expected type: String, found: Integer",
                "#: expected: null, found: Integer",
            ],
        ),
        ({"oneOf": [{}, {"type": "integer"}]}, ["#: #: 2 subschemas matched instead of one"]),
        (
            SEVEN | {"if": {"type": "integer"}, "then": {"minimum": 6}},
            ['#: input is invalid against the "then" schema', "#: 5 is not greater or equal to 6"],
        ),
        (
            SEVEN | {"if": {"type": "string"}, "else": {"minimum": 6}},
            [
                '#: input is invalid against both the "if" and "else" schema',
                "#: expected type: String, found: Integer",
                "#: 5 is not greater or equal to 6",
            ],
        ),
        (SEVEN | {"properties": {"a": False}, "not": {}}, ["#: subject must not be valid against schema {}"]),
    ],
)
def test_schemas_within_schemas(schema, lines):
    """If several schemas apply, the violations of each follow. (P71)"""
    assert explain(schema, 5).split("\n") == lines


def test_a_combinator_at_a_place():
    """A combinator's violation has a second pointer after its location; its causes have their own locations. (P71)"""
    assert explain({"properties": {"v": {"anyOf": [{"type": "null"}]}}}, {"v": {}}).split("\n") == [
        "#/v: #: no subschema matched out of the total 1 subschemas",
        "#/v: expected: null, found: JSONObject",
    ]


def test_the_schema_false():
    """If the schema of a value is `false`, the message says that it accepts nothing. (P72)"""
    assert explain(SEVEN | {"properties": {"a": False}}, {"a": 1}) == "#/a: false schema always fails"


def test_many_violations():
    """No more than a hundred violations are reported. (P71)"""
    lines = explain({"items": {"type": "null"}}, list(range(5_000))).split("\n")

    assert len(lines) == 101
    assert lines[0] == "#: more than 100 schema violations found"
    assert lines[100] == "#/99: expected: null, found: Integer"


def test_a_hundred_violations():
    """A hundred violations are all listed. (P71)"""
    lines = explain({"items": {"type": "null"}}, list(range(100))).split("\n")

    assert len(lines) == 101
    assert lines[0] == "#: 100 schema violations found"


def test_many_violations_in_one_of_many_trials():
    """However many faults a value has by one alternative, another alternative may accept it, and the faults of other
    values are reported. (P71)
    """
    schema = {"properties": {"a": {"anyOf": [{"items": {"type": "null"}}, {}]}, "b": {"type": "null"}}}

    assert explain(schema, {"a": list(range(5_000)), "b": 1}) == "#/b: expected: null, found: Integer"


def test_long_values():
    """A long value is not repeated in full. (P71)"""
    explained = explain({"pattern": "^b$"}, "a" * 900_000)

    assert len(explained) < 1_200
    assert "…] does not match pattern ^b$" in explained


def test_what_cannot_be_explained():
    """A fault that is too deep for validation has a reason of its own. (P71)"""
    event: dict = {"b": 1}
    for _ in range(500):
        event = {"a": event}

    assert explain({"properties": {"a": {"$ref": "#"}}, "additionalProperties": False}, event) == NO_EXPLANATION_MESSAGE


def test_explanations_leave_the_event_alone():
    """Explaining an event does not change it. (P71)"""
    event = {"a": [1, {"b": 2}]}
    explain({"properties": {"a": {"items": {"type": "string"}}}}, event)

    assert event == {"a": [1, {"b": 2}]}

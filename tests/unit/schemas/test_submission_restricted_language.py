"""The schema language of the mode `compatible`."""

import pytest

from nakadi.model.outcomes import Invalid
from nakadi.schemas.submission import check_restricted_language, find_schema_faults

EVERY_KEYWORD = {
    "id": "x",
    "$schema": "http://json-schema.org/draft-04/schema#",
    "title": "T",
    "description": "D",
    "default": None,
    "properties": {
        "number": {"multipleOf": 0.5, "maximum": 9, "exclusiveMaximum": True, "minimum": 1, "exclusiveMinimum": False},
        "text": {"type": "string", "maxLength": 5, "minLength": 0, "pattern": "a", "format": "email"},
        "list": {"items": {"type": ["string", "null"]}, "maxItems": 4, "minItems": 0, "uniqueItems": True},
        "tuple": {"items": [{}, {"enum": [1, 1.0, True]}]},
        "map": {"maxProperties": 3, "minProperties": 1, "additionalProperties": {"type": "integer"}},
        "choice": {"anyOf": [{"$ref": "#/definitions/d"}, {"allOf": [{}]}, {"oneOf": [{}]}]},
    },
    "required": ["text"],
    "additionalProperties": False,
    "patternProperties": {"^x-": {}},
    "definitions": {"d": {}},
    "dependencies": {"text": {"required": ["list"]}},
}


def test_these_keywords_are_the_language():
    """Every keyword of the language is accepted, including `additionalProperties`. (R162, R164, R270)"""
    check_restricted_language(EVERY_KEYWORD)


@pytest.mark.parametrize(
    "keyword",
    [
        "not",
        "additionalItems",
        "const",
        "contains",
        "propertyNames",
        "if",
        "then",
        "else",
        "examples",
        "example",
        "readOnly",
        "nullable",
        "$id",
        "$comment",
        "x-extensible-enum",
    ],
)
@pytest.mark.parametrize(
    ("around", "place"),
    [
        (lambda schema: schema, "#"),
        (lambda schema: {"properties": {"a/b~c": schema}}, "#/properties/a~1b~0c"),
        (lambda schema: {"properties": {"a": schema}}, "#/properties/a"),
        (lambda schema: {"definitions": {"a": schema}}, "#/definitions/a"),
        (lambda schema: {"items": schema}, "#/items"),
        (lambda schema: {"items": [{}, schema]}, "#/items/1"),
        (lambda schema: {"anyOf": [schema]}, "#/anyOf/0"),
        (lambda schema: {"additionalProperties": schema}, "#/additionalProperties"),
        (lambda schema: {"patternProperties": {"p": schema}}, "#/patternProperties/p"),
        (lambda schema: {"dependencies": {"a": schema}}, "#/dependencies/a"),
    ],
)
def test_other_keywords_are_not_permitted_anywhere(keyword, around, place):
    """Any other keyword is refused at any depth, with a line that names its location. (R158, R163)"""
    with pytest.raises(Invalid) as refused:
        check_restricted_language(around({keyword: {}}))
    assert f"Invalid schema found in [{place}]: extraneous key [{keyword}] is not permitted" in refused.value.detail


A_LIST, AN_OBJECT = "expected type: JSONArray, found: JSONObject", "expected type: JSONObject, found: JSONArray"
NOT = "extraneous key [not] is not permitted"


@pytest.mark.parametrize(
    ("schema", "faults"),
    [
        ({"items": {"not": {}}}, [("#/items", NOT), ("#/items", A_LIST)]),
        ({"items": [{"not": {}}, {}]}, [("#/items", AN_OBJECT), ("#/items/0", NOT)]),
        ({"items": []}, [("#/items", AN_OBJECT), ("#/items", "expected minimum item count: 1, found: 0")]),
        (
            {"items": True},
            [
                ("#/items", "expected type: JSONObject, found: Boolean"),
                ("#/items", "expected type: JSONArray, found: Boolean"),
            ],
        ),
        (
            {"items": {"items": {"not": {}}}},
            [("#/items/items", NOT), ("#/items/items", A_LIST), ("#/items", A_LIST)],
        ),
        (
            {"additionalProperties": {"not": {}}},
            [
                ("#/additionalProperties", "expected type: Boolean, found: JSONObject"),
                ("#/additionalProperties", NOT),
            ],
        ),
        ({"dependencies": {"a": {"not": {}}}}, [("#/dependencies/a", NOT), ("#/dependencies/a", A_LIST)]),
        (
            {"dependencies": {"a": [1]}},
            [("#/dependencies/a", AN_OBJECT), ("#/dependencies/a/0", "expected type: String, found: Integer")],
        ),
        (
            {"type": "foo"},
            [("#/type", "foo is not a valid enum value"), ("#/type", "expected type: JSONArray, found: String")],
        ),
        (
            {"type": ["string", "foo"]},
            [
                ("#/type", '["string","foo"] is not a valid enum value'),
                ("#/type/1", "foo is not a valid enum value"),
            ],
        ),
    ],
)
def test_what_may_be_one_thing_or_another(schema, faults):
    """Where either a schema or a list is permitted, the objections to both are reported. (R158, R162, R167)"""
    assert faults_of(schema) == faults


def faults_of(schema) -> list[tuple[str, str]]:
    return [(place.pointer, reason) for place, reason in find_schema_faults(schema)]


def test_several_faults_are_reported_together():
    """All faults are reported, joined by commas. (R158)"""
    with pytest.raises(Invalid) as refused:
        check_restricted_language({"properties": {"a": {"not": {}}, "b": {"minLength": -1}}})
    assert refused.value.detail == (
        "Invalid schema: Invalid schema found in [#/properties/a]: extraneous key [not] is not permitted, "
        "Invalid schema found in [#/properties/b/minLength]: -1 is not greater or equal to 0"
    )


def test_names_are_not_keywords():
    """A property may have the name of a forbidden keyword. (R165)"""
    check_restricted_language({"properties": {"not": {"type": "string"}, "const": {}}, "definitions": {"if": {}}})


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ({"exclusiveMinimum": True}, ("#", "property [minimum] is required")),
        ({"exclusiveMaximum": True}, ("#", "property [maximum] is required")),
        ({"minimum": 1, "exclusiveMinimum": 1}, ("#/exclusiveMinimum", "expected type: Boolean, found: Integer")),
        ({"enum": []}, ("#/enum", "expected minimum item count: 1, found: 0")),
        ({"enum": [{"a": 1, "b": 2}, {"b": 2, "a": 1}]}, ("#/enum", "array items are not unique")),
        ({"required": ["a", "a"]}, ("#/required", "array items are not unique")),
        ({"required": [1]}, ("#/required/0", "expected type: String, found: Integer")),
        ({"allOf": []}, ("#/allOf", "expected minimum item count: 1, found: 0")),
        ({"properties": {"a": True}}, ("#/properties/a", "expected type: JSONObject, found: Boolean")),
        ({"anyOf": [False]}, ("#/anyOf/0", "expected type: JSONObject, found: Boolean")),
        ({"definitions": []}, ("#/definitions", "expected type: JSONObject, found: JSONArray")),
        ({"multipleOf": 0}, ("#/multipleOf", "0 is not greater than 0")),
        ({"multipleOf": "1"}, ("#/multipleOf", "expected type: Number, found: String")),
        ({"maxLength": 1.5}, ("#/maxLength", "expected type: Integer, found: Double")),
        ({"maxLength": "1"}, ("#/maxLength", "expected type: Number, found: String")),
        ({"minLength": -1}, ("#/minLength", "-1 is not greater or equal to 0")),
        ({"multipleOf": -1.0}, ("#/multipleOf", "-1.0 is not greater than 0")),
        ({"$ref": "#/definitions/a b"}, ("#/$ref", "[#/definitions/a b] is not a valid URI")),
        ({"$ref": 1}, ("#/$ref", "expected type: String, found: Integer")),
        ({"allOf": {}}, ("#/allOf", "expected type: JSONArray, found: JSONObject")),
        ({"title": 1}, ("#/title", "expected type: String, found: Integer")),
        (5, ("#", "expected type: JSONObject, found: Integer")),
    ],
)
def test_values_are_those_of_draft_4(schema, fault):
    """Values have the types of draft 4, lists have members and no duplicates, and subschemas are objects. (R162,
    R166)"""
    assert faults_of(schema) == [fault]


def test_a_name_list_is_fine_where_it_is_not_closed():
    """The language itself permits dependencies on names, and empty lists of names. (R162)"""
    check_restricted_language({"patternProperties": {"a": {"dependencies": {"b": ["c"], "d": []}}}, "required": []})

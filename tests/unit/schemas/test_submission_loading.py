"""Whether a schema can be used."""

import pytest

from nakadi.model.outcomes import Invalid
from nakadi.schemas.document import SchemaDocument
from nakadi.schemas.submission import (
    MAX_NESTED_SCHEMAS_PER_VALUE,
    check_divisors_not_zero,
    check_loadable,
    check_patterns,
    check_references_are_local,
)
from tests.support.patience import measure_cpu

SIX = {"$schema": "http://json-schema.org/draft-06/schema#"}
SEVEN = {"$schema": "http://json-schema.org/draft-07/schema#"}


def refusal(schema, check=check_loadable) -> str:
    with pytest.raises(Invalid) as refused:
        check(SchemaDocument.from_root(schema))
    return refused.value.detail.removeprefix("schema must be a valid json-schema: ")


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"properties": {"a": {"type": "foo"}}}, "<unknown location>: unknown type: [foo]"),
        ({"properties": {"a": {"type": ["string", "foo"]}}}, "<unknown location>: unknown type: [foo]"),
        (
            {"properties": {"a": {"type": 5}}},
            "#/properties/a/type: expected type is one of JsonArray or String, found: Integer",
        ),
        ({"properties": {"a": {"type": ["null", 5]}}}, "#/properties/a/type/1: expected type: String, found: Integer"),
        ({"required": "a"}, "#/required: expected type: JsonArray, found: String"),
        ({"required": ["a", None]}, "#/required/1: expected type: String, found: null"),
        ({"properties": []}, "#/properties: expected type: JsonObject, found: JsonArray"),
        ({"properties": {"a": "b"}}, "#/properties/a: expected type is one of Boolean or JsonObject, found: String"),
        ({"properties": {"a": {"minLength": 1.0}}}, "#/properties/a/minLength: expected type: Integer, found: Double"),
        (
            {"properties": {"a": {"minLength": True}}},
            "#/properties/a/minLength: expected type: Integer, found: Boolean",
        ),
        ({"properties": {"a": {"maximum": "9"}}}, "#/properties/a/maximum: expected type: Number, found: String"),
        ({"properties": {"a": {"pattern": 1}}}, "#/properties/a/pattern: expected type: String, found: Integer"),
        ({"properties": {"a": {"enum": "b"}}}, "#/properties/a/enum: expected type: JsonArray, found: String"),
        (
            {"properties": {"a": {"uniqueItems": 1}}},
            "#/properties/a/uniqueItems: expected type: Boolean, found: Integer",
        ),
        ({"properties": {"a": {"$ref": {}}}}, "#/properties/a/%24ref: expected type: String, found: JsonObject"),
        (
            {"additionalProperties": []},
            "#/additionalProperties: expected type is one of Boolean or JsonObject, found: JsonArray",
        ),
        ({"not": [{}]}, "#/not: expected type is one of Boolean or JsonObject, found: JsonArray"),
        ({"items": [[]]}, "#/items/0: expected type is one of Boolean or JsonObject, found: JsonArray"),
        ({"allOf": {}}, "#/allOf: expected type: JsonArray, found: JsonObject"),
        ({"allOf": [1]}, "#/allOf/0: expected type is one of Boolean or JsonObject, found: Integer"),
        (
            {"dependencies": {"a": "b"}},
            "#/dependencies/a: expected type is one of JsonArray or JsonObject, found: String",
        ),
        ({"dependencies": {"a": [1]}}, "#/dependencies/a/0: expected type: String, found: Integer"),
        ({"definitions": 1}, "#/definitions: expected type: JsonObject, found: Integer"),
        ({"title": 1}, "#/title: expected type: String, found: Integer"),
        ({"id": 1}, "#/id: expected type: String, found: Integer"),
        ({"anyOf": [{}], "oneOf": [{}]}, "#: expected at most 1 of 'allOf', 'anyOf', 'oneOf', 2 found"),
        ({"items": True}, "#/items: expected type is one of JsonArray or JsonObject, found: Boolean"),
        ({**SIX, "items": 5}, "#/items: expected type is one of Boolean or JsonArray or JsonObject, found: Integer"),
        (
            {"dependencies": {"a": True}},
            "#/dependencies/a: expected type is one of JsonArray or JsonObject, found: Boolean",
        ),
        (
            {"properties": {"a/b c": 5}},
            "#/properties/a%2Fb+c: expected type is one of Boolean or JsonObject, found: Integer",
        ),
        ({"minItems": 2**31}, "#/minItems: expected type: Integer, found: Long"),
        ({**SEVEN, "readOnly": "x"}, "#/readOnly: expected type: Boolean, found: String"),
        ({"items": {"not": {"required": {}}}}, "#/items/not/required: expected type: JsonArray, found: JsonObject"),
    ],
)
def test_keywords_have_values_of_their_kind(schema, reason):
    """A keyword with the wrong type of value, anywhere in use, is refused and named. (R153)"""
    assert refusal(schema) == reason


@pytest.mark.parametrize(
    ("draft", "bound", "refused"),
    [
        ({}, True, False),
        ({}, 5, True),
        (SIX, 5, False),
        (SIX, True, True),
        (SEVEN, 5.5, False),
        (SEVEN, False, True),
    ],
)
def test_exclusive_bounds_are_what_the_draft_says(draft, bound, refused):
    """`exclusiveMinimum` is a boolean in draft 4, and a number since draft 6. (R153)"""
    schema = {**draft, "properties": {"a": {"minimum": 1, "exclusiveMinimum": bound}}}
    if refused:
        assert "#/properties/a/exclusiveMinimum: expected type: " in refusal(schema)
    else:
        check_loadable(SchemaDocument.from_root(schema))


@pytest.mark.parametrize("keyword", ["contains", "propertyNames", "if", "then", "else"])
def test_keywords_of_later_drafts_are_nothing_to_earlier_ones(keyword):
    """A keyword that a draft does not define may have any value in that draft. (R153)"""
    check_loadable(SchemaDocument.from_root({keyword: 5}))
    assert (
        refusal({**SEVEN, keyword: 5}) == f"#/{keyword}: expected type is one of Boolean or JsonObject, found: Integer"
    )


def test_booleans_are_schemas():
    """`true` and `false` are schemas. (R195)"""
    check_loadable(
        SchemaDocument.from_root({"properties": {"a": True}, "items": [False], "not": False, "anyOf": [True]})
    )
    check_loadable(SchemaDocument.from_root({**SIX, "items": False, "dependencies": {"a": True}}))


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("#/missing", "#: key [missing] not found"),
        ("#/definitions/missing", "#/definitions: key [missing] not found"),
        ("#/definitions/d/missing/x", "#/definitions/d: key [missing] not found"),
        ("#/definitions/a~1b/x", "#/definitions/a%2Fb: key [x] not found"),
        ("#/definitions/list/2", "#/definitions/list: array index [2] is out of bounds"),
        (f"#/definitions/list/{'9' * 5_000}", f"#/definitions/list: array index [{'9' * 5_000}] is out of bounds"),
        ("#/definitions/list/x", "#/definitions/list: [x] is not an array index"),
        (
            "#/definitions/d/type/x",
            "#/definitions/d/type: expected type is one of JsonArray or JsonObject, found: String",
        ),
        ("#/definitions/d/type", "#/definitions/d/type: expected type is one of Boolean or JsonObject, found: String"),
        ("#/definitions/list", "#/definitions/list: expected type is one of Boolean or JsonObject, found: JsonArray"),
        ("#/default", "#/default: expected type is one of Boolean or JsonObject, found: null"),
        ("#here", "#/properties/a/%24ref: there is no schema at [#here]"),
    ],
)
def test_references_lead_to_schemas(reference, reason):
    """A reference to nothing, or to something that is not a schema, is reported with the location at which it ends.
    (R153)"""
    definitions = {"d": {"type": "string"}, "list": [{}, {}], "a/b": {}}
    schema = {"properties": {"a": {"$ref": reference}}, "definitions": definitions, "default": None}
    assert refusal(schema) == reason


@pytest.mark.parametrize(
    "reference", ["#", "#/definitions/d", "#/definitions/list/1", "#/definitions/a~1b~0c%20d", "#/definitions/no"]
)
def test_references_may_lead_anywhere_in_the_document(reference):
    """Any schema in the document can be referred to, with special characters escaped. (R153, R154)"""
    definitions = {"d": {}, "list": [{}, {}], "a/b~c d": {}, "no": False}
    check_loadable(SchemaDocument.from_root({"properties": {"a": {"$ref": reference}}, "definitions": definitions}))


def test_what_is_referred_to_is_in_use():
    """A definition is checked as soon as something refers to it. (R153)"""
    definitions = {"d": {"items": {"type": "foo"}}}
    check_loadable(SchemaDocument.from_root({"definitions": definitions}))
    assert (
        refusal({"properties": {"a": {"$ref": "#/definitions/d"}}, "definitions": definitions})
        == "<unknown location>: unknown type: [foo]"
    )


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"not": {"$ref": "#"}},
        {"dependencies": {"a": {"$ref": "#"}}},
        {
            "properties": {"p": {"$ref": "#/definitions/a"}},
            "definitions": {"a": {"$ref": "#/definitions/b"}, "b": {"$ref": "#/definitions/a"}},
        },
        {**SEVEN, "if": {"anyOf": [{"$ref": "#"}]}},
    ],
)
def test_validation_comes_to_an_end(schema):
    """A schema that applies itself to the same value could never be evaluated, and is refused. (R153, deviation)"""
    assert refusal(schema) == "a schema refers back to itself for the same value"


def test_recursive_schemas_are_fine():
    """A schema may contain itself if each level applies to a smaller value. (R153)"""
    check_loadable(
        SchemaDocument.from_root(
            {"properties": {"children": {"type": "array", "items": {"$ref": "#"}}, "next": {"$ref": "#"}}}
        )
    )


def test_chains_of_references_have_a_limit():
    """References may form a chain only up to a limited length. (R153, deviation)"""

    def chain(length):
        definitions = {f"d{n}": {"$ref": f"#/definitions/d{n + 1}"} for n in range(length)}
        return {"$ref": "#/definitions/d0", "definitions": {**definitions, f"d{length}": {}}}

    check_loadable(SchemaDocument.from_root(chain(MAX_NESTED_SCHEMAS_PER_VALUE - 2)))
    assert refusal(chain(MAX_NESTED_SCHEMAS_PER_VALUE - 1)).startswith(
        f"more than {MAX_NESTED_SCHEMAS_PER_VALUE} schemas"
    )
    assert refusal(chain(5_000)).startswith(f"more than {MAX_NESTED_SCHEMAS_PER_VALUE} schemas")


@pytest.mark.parametrize(
    "reference", ["http://example.com/schema.json#", "other.json", "/etc/passwd", "file:///etc/passwd", ""]
)
def test_references_stay_in_the_document(reference):
    """The broker never looks up anything outside the document. (R154)"""
    schema = {"items": {"$ref": reference}}
    check_loadable(SchemaDocument.from_root(schema))
    assert (
        refusal(schema, check_references_are_local)
        == f"external url reference is not supported: {reference.rstrip('#')}"
    )


def test_nothing_is_a_multiple_of_zero():
    """A divisor of zero is refused, because no number could be checked against it. (R161, deviation)"""
    schema = {"properties": {"a": {"multipleOf": 0}}}
    assert refusal(schema, check_divisors_not_zero) == "#/properties/a/multipleOf: nothing is a multiple of 0"


@pytest.mark.parametrize("pattern", ["(?!a)", "(?<=a)b", r"(a)\1", r"a\Z", "a{1001}", "(", "[z-a]"])
@pytest.mark.parametrize("schema", [lambda p: {"items": {"pattern": p}}, lambda p: {"patternProperties": {p: {}}}])
def test_patterns_are_of_re2(schema, pattern):
    """Patterns and patterned property names that could take exponential time, or that are invalid, are refused.
    (R155)"""
    assert refusal(schema(pattern), check_patterns).startswith("invalid regex pattern in the schema: ")


def test_good_patterns_are_taken():
    """Ordinary patterns, and property names that merely look like patterns, are accepted. (R155)"""
    check_patterns(
        SchemaDocument.from_root({"properties": {"(": {"pattern": "^[a-z]{1,1000}$"}, "pattern": {"pattern": r"\d+"}}})
    )


def test_size_is_no_trouble():
    """Thousands of schemas that all refer to each other are checked in time proportional to their number. (R153)"""
    names = [f"d{n}" for n in range(2_000)]
    definitions = {
        name: {"properties": {each: {"$ref": f"#/definitions/{each}"} for each in names[:5]}} for name in names
    }
    schema = {"properties": {name: {"$ref": f"#/definitions/{name}"} for name in names}, "definitions": definitions}
    assert measure_cpu(lambda: check_loadable(SchemaDocument.from_root(schema))) < 5000

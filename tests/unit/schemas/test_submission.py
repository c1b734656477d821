"""Submitting a schema."""

import json

import pytest

from nakadi.model.event_type import Category, CompatibilityMode
from nakadi.model.outcomes import Invalid
from nakadi.schemas.document import schema_forbidding_additions
from nakadi.schemas.submission import check_schema_language, parse_submitted_schema

FORWARD, COMPATIBLE, NONE = CompatibilityMode.FORWARD, CompatibilityMode.COMPATIBLE, CompatibilityMode.NONE


def refusal(schema, category=Category.UNDEFINED, mode=FORWARD) -> str:
    with pytest.raises(Invalid) as refused:
        accept(schema, category, mode)
    return refused.value.detail


def accept(schema, category=Category.UNDEFINED, mode=FORWARD):
    tree = parse_submitted_schema(schema if isinstance(schema, str) else json.dumps(schema), category=category)
    check_schema_language(tree, mode)
    return tree


def test_a_submitted_schema_is_returned_parsed():
    """A valid schema is returned as the parsed value of its text. (R150)"""
    assert accept('{"properties": {"a": {"type": "string"}}}') == {"properties": {"a": {"type": "string"}}}


@pytest.mark.parametrize(
    "text", ["", "no", '{"a": 1,}', '{"a": 1, "a": 2}', "{} {}", "{}x", "[]", "5", '"text"', "null"]
)
def test_a_schema_is_a_strict_json_object(text):
    """Invalid JSON, text after the object, and roots that are not objects are refused. (R9, R150)"""
    assert refusal(text).startswith("schema must be a valid json: ")


@pytest.mark.parametrize("mode", list(CompatibilityMode))
def test_the_root_is_an_object_or_says_nothing(mode):
    """The root's type is `object` or absent, in every mode. (R151)"""
    assert accept({"type": "object"}, mode=mode)
    assert accept({}, mode=mode) == {}
    assert refusal({"type": "string"}, mode=mode) == '"type" of root element in schema can only be "object"'


@pytest.mark.parametrize("root_type", [["object", "null"], ["object"], 5, None])
def test_a_list_of_types_at_the_root_is_refused(root_type):
    """The root's type is one string. (R151)"""
    assert refusal({"type": root_type}) == 'schema must be a valid json: JSONObject["type"] not a string.'


@pytest.mark.parametrize("draft", ["04", "06", "07"])
@pytest.mark.parametrize("ending", ["", "#"])
def test_three_drafts_are_known(draft, ending):
    """Drafts 4, 6 and 7 are known. (R152)"""
    assert accept({"$schema": f"http://json-schema.org/draft-{draft}/schema{ending}"})


@pytest.mark.parametrize(
    "url",
    [
        "http://json-schema.org/draft-03/schema#",
        "http://json-schema.org/schema#",
        "https://json-schema.org/draft/2020-12/schema",
        "",
        5,
        None,
    ],
)
def test_other_drafts_are_not(url):
    """A draft that is unknown, or that is not a string, is refused. (R152, R160)"""
    expected = f"could not determine schema version: no meta-schema is known with URL [{url}]"
    assert refusal({"$schema": url}) == expected


def test_a_root_type_is_looked_at_before_the_draft():
    """The checks come in a fixed order: JSON, root, draft, loading, references, patterns. (R150, R151, R152)"""
    draft_3 = {"$schema": "http://json-schema.org/draft-03/schema#"}
    assert refusal({"type": "array", **draft_3}).startswith('"type" of root')
    assert refusal({"required": 1, **draft_3}).startswith("could not determine schema version")
    assert refusal(
        {"properties": {"p": {"pattern": "("}, "r": {"$ref": "http://x.y"}, "t": {"type": "foo"}}}
    ).startswith("schema must be a valid json-schema: <unknown location>: unknown type")
    assert refusal({"properties": {"p": {"pattern": "("}, "r": {"$ref": "http://x.y"}}}).startswith("external url")
    assert refusal({"properties": {"p": {"pattern": "("}, "metadata": {}}}, Category.BUSINESS).startswith(
        "invalid regex"
    )


@pytest.mark.parametrize(
    ("schema", "refused"),
    [
        ({"properties": {"metadata": {}}}, True),
        ({"allOf": [{"properties": {"metadata": {}}}]}, True),
        ({"$ref": "#/definitions/d", "definitions": {"d": {"properties": {"metadata": {}}}}}, True),
        ({"properties": {"other": {"properties": {"metadata": {}}}}}, False),
        ({"patternProperties": {"^m": {}}}, False),
    ],
)
def test_metadata_is_reserved_in_business_events(schema, refused):
    """The name `metadata` is reserved in business events; in other events it may be used. (R156)"""
    if refused:
        assert refusal(schema, Category.BUSINESS) == '"metadata" property is reserved'
    else:
        assert accept(schema, Category.BUSINESS)
    assert accept(schema, Category.UNDEFINED)
    assert accept(schema, Category.DATA)


@pytest.mark.parametrize("mode", [FORWARD, NONE])
def test_unknown_keywords_are_welcome(mode):
    """Extension keywords, and values that only a meta-schema would refuse, are accepted in every mode except
    `compatible`. (R161)
    """
    assert accept(
        {"x-owner": "shop", "not": {"type": "null"}, "required": [], "properties": {"a": {"enum": []}}}, mode=mode
    )


def test_unknown_keywords_are_not_welcome_in_mode_compatible():
    """In the mode `compatible`, keywords that are not in its own language are refused. (R158, R161, R163)"""
    assert refusal({"properties": {"a": {"x-extensible-enum": ["b"]}}}, mode=COMPATIBLE) == (
        "Invalid schema: Invalid schema found in [#/properties/a]: extraneous key [x-extensible-enum] is not permitted"
    )


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"dependencies": {"a": ["b"]}}, 'JSONObject["a"]'),
        ({"properties": {"a": True}}, 'JSONObject["a"]'),
        ({"definitions": {"d": False}}, 'JSONObject["d"]'),
        ({"anyOf": [{}, True]}, "JSONArray[1]"),
    ],
)
def test_mode_compatible_needs_objects_for_schemas(schema, place):
    """In the mode `compatible`, a list of names or a boolean cannot replace a schema; in other modes, both can.
    (R168)"""
    with pytest.raises(Invalid) as refused:
        schema_forbidding_additions(schema)
    assert refused.value.detail == f"schema must be a valid json: {place} is not a JSONObject."
    assert accept(schema)


def test_mode_compatible_needs_lists_for_combinations():
    """In the mode `compatible`, a combinator has a list, even if the schema around it is not in use. (R168)"""
    with pytest.raises(Invalid, match=r'^schema must be a valid json: JSONObject\["anyOf"\] is not a JSONArray\.$'):
        schema_forbidding_additions({"definitions": {"d": {"anyOf": {}}}})


def test_the_restricted_language_reports_what_it_does_not_permit():
    """Values that are not schemas, in schemas that are not in use, are checked only by the language of the mode.
    (R158)"""
    schema = {"definitions": {"d": {"items": 5, "properties": [{}, 5]}}}
    assert schema_forbidding_additions(schema)["definitions"]["d"]["items"] == 5
    assert "[#/definitions/d/items]: expected type: JSONObject, found: Integer" in refusal(schema, mode=COMPATIBLE)


def test_nothing_is_a_multiple_of_zero():
    """A divisor of zero is refused in every mode; in the mode `compatible`, in the words of its language. (R161,
    R166)"""
    schema = {"properties": {"a": {"multipleOf": 0}}}
    assert refusal(schema).endswith("#/properties/a/multipleOf: nothing is a multiple of 0")
    assert refusal(schema, mode=COMPATIBLE).endswith("[#/properties/a/multipleOf]: 0 is not greater than 0")

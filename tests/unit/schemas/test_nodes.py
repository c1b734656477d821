"""The kinds of schema nodes."""

import pytest

from nakadi.schemas import nodes
from nakadi.schemas.document import Draft
from nakadi.schemas.nodes import Annotations, classify_schema


def kind_of(node):
    return node.kind if isinstance(node, nodes.PlainKindNode) else type(node)


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        (True, "always"),
        (False, "never"),
        ({"enum": [1], "type": "string", "anyOf": [{}], "$ref": "#"}, nodes.EnumNode),
        ({"anyOf": [{}], "$ref": "#"}, nodes.CombinationNode),
        ({"$ref": "#", "type": "string"}, nodes.ReferenceNode),
        ({"type": ["string", "null"]}, nodes.CombinationNode),
        ({"type": "object", "minItems": 1}, nodes.ObjectNode),
        ({"type": "array"}, nodes.ArrayNode),
        ({"type": "string"}, nodes.StringNode),
        ({"type": "integer"}, nodes.NumberNode),
        ({"type": "number"}, nodes.NumberNode),
        ({"type": "boolean"}, "boolean"),
        ({"type": "null"}, "null"),
        ({}, "nothing"),
        ({"title": "t", "default": 1, "definitions": {}, "x-foo": 1}, "nothing"),
        *(({keyword: 1}, nodes.NumberNode) for keyword in ("minimum", "maximum", "multipleOf", "exclusiveMinimum")),
        *(({keyword: 1}, nodes.StringNode) for keyword in ("minLength", "maxLength", "pattern", "format")),
        *(
            ({keyword: 1, "properties": {}}, nodes.ArrayNode)
            for keyword in ("items", "additionalItems", "minItems", "maxItems")
        ),
        ({"uniqueItems": True, "pattern": "a"}, nodes.ArrayNode),
        ({"additionalProperties": True, "minimum": 1}, nodes.ObjectNode),
        *(
            ({keyword: {}, "not": {}}, nodes.ObjectNode)
            for keyword in ("properties", "dependencies", "patternProperties")
        ),
        *(({keyword: 1}, nodes.ObjectNode) for keyword in ("minProperties", "maxProperties")),
        ({"required": [], "format": "email"}, nodes.ObjectNode),
        ({"minimum": 1, "pattern": "a"}, nodes.NumberNode),
        ({"pattern": "a", "not": {}}, nodes.StringNode),
        ({"not": {}}, "not"),
    ],
)
def test_every_schema_is_of_one_kind(schema, kind):
    """The first match in a fixed list of keywords determines the kind of a schema. (R195)"""
    assert kind_of(classify_schema(schema, Draft.FOUR)) == kind


@pytest.mark.parametrize(
    ("schema", "since", "kind"),
    [
        ({"const": 1, "type": "string"}, Draft.SIX, "const"),
        ({"contains": {}}, Draft.SIX, nodes.ArrayNode),
        ({"propertyNames": {}}, Draft.SIX, nodes.ObjectNode),
        ({"if": {}, "not": {}}, Draft.SEVEN, "conditional"),
        ({"then": {}}, Draft.SEVEN, "conditional"),
        ({"else": {}}, Draft.SEVEN, "conditional"),
    ],
)
def test_some_signs_are_of_later_drafts(schema, since, kind):
    """A keyword determines the kind only in drafts that define it. (R195)"""
    for draft in Draft:
        assert (kind_of(classify_schema(schema, draft)) == kind) is (draft >= since)


def test_keywords_beside_a_combinator_are_a_schema_of_their_own():
    """A combinator with other keywords becomes an `allOf` of these keywords and the combinator. (R195)"""
    schema = {"title": "t", "properties": {"a": {}}, "anyOf": [{"required": ["a"]}], "definitions": {}}

    assert classify_schema(schema, Draft.FOUR) == nodes.CombinationNode(
        Annotations(title="t"),
        "allOf",
        ({"properties": {"a": {}}, "definitions": {}}, {"anyOf": [{"required": ["a"]}]}),
    )
    bare = {"title": "t", "oneOf": [{}, True], "definitions": {}, "default": 1}
    assert classify_schema(bare, Draft.FOUR) == nodes.CombinationNode(Annotations(title="t"), "oneOf", ({}, True))


def test_several_types_are_a_choice():
    """Each of several types becomes a schema with all the other keywords. (R195)"""
    assert classify_schema(
        {"description": "d", "type": ["string", "null"], "maxLength": 5}, Draft.FOUR
    ) == nodes.CombinationNode(
        Annotations(description="d"), "anyOf", ({"type": "string", "maxLength": 5}, {"type": "null", "maxLength": 5})
    )


def test_the_identifier_is_spelt_as_the_draft_says():
    """Draft 4 uses `id`, later drafts use `$id`. (R196)"""
    schema = {"id": "old", "$id": "new"}
    assert classify_schema(schema, Draft.FOUR).annotations.id == "old"
    assert classify_schema(schema, Draft.SIX).annotations.id == "new"

"""The differences between two schemas."""

from contextlib import suppress

import pytest

from nakadi.schemas.changes import find_schema_changes
from nakadi.schemas.values import StepsExhausted
from tests.support.patience import measure_cpu


def diffs(old, new) -> list[str]:
    return [f"{change.kind} {change.path.text}" for change in find_schema_changes(old, new)]


def nest_schema(schema):
    """An object schema with this schema as its only property."""
    return {"properties": {"p": schema}}


P = "#/properties/p"


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ({"type": "string", "maxLength": 1}, {"type": "string"}, [f"ATTRIBUTE_VALUE_CHANGED {P}/maxLength"]),
        (
            {"type": "string", "maxLength": 1, "minLength": 1, "pattern": "a"},
            {"type": "string", "maxLength": 2, "minLength": 2, "pattern": "b"},
            [f"ATTRIBUTE_VALUE_CHANGED {P}/maxLength"],
        ),
        (
            {"type": "string", "minLength": 1, "pattern": "a"},
            {"type": "string", "minLength": 2, "pattern": "b"},
            [f"ATTRIBUTE_VALUE_CHANGED {P}/minLength"],
        ),
        (
            {"type": "string", "pattern": "a"},
            {"type": "string", "pattern": "b"},
            [f"ATTRIBUTE_VALUE_CHANGED {P}/pattern"],
        ),
        ({"type": "string", "pattern": "a"}, {"type": "string"}, []),
        ({"type": "string", "format": "email"}, {"type": "string", "format": "uri"}, []),
    ],
)
def test_strings_have_one_difference_at_most(old, new, changes):
    """Only the first difference of strings is reported; a format, or a pattern on one side only, is ignored. (R197)"""
    assert diffs(nest_schema(old), nest_schema(new)) == changes


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        (
            {"type": "number", "maximum": 1, "minimum": 1},
            {"type": "number", "maximum": 2, "minimum": 2},
            [f"ATTRIBUTE_VALUE_CHANGED {P}/maximum"],
        ),
        (
            {"type": "number", "minimum": 1, "multipleOf": 1},
            {"type": "number", "multipleOf": 2},
            [f"ATTRIBUTE_VALUE_CHANGED {P}/minimum"],
        ),
        ({"type": "number", "multipleOf": 1}, {"type": "number"}, [f"ATTRIBUTE_VALUE_CHANGED {P}/multipleOf"]),
        (
            {"type": "number", "minimum": 1},
            {"type": "number", "minimum": 1.0},
            [f"ATTRIBUTE_VALUE_CHANGED {P}/minimum"],
        ),
        ({"type": "number", "minimum": 1, "exclusiveMinimum": True}, {"type": "integer", "minimum": 1}, []),
    ],
)
def test_numbers_have_one_difference_at_most(old, new, changes):
    """The first difference among maximum, minimum and multipleOf is reported; 1 differs from 1.0, and an integer is a
    number. (R198)"""
    assert diffs(nest_schema(old), nest_schema(new)) == changes


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        (["a", "b"], ["b", "a"], False),
        (["a", "a"], ["a"], False),
        ([{"x": 1, "y": [2]}], [{"y": [2], "x": 1}], False),
        (["a"], ["a", "b"], True),
        ([1], [1.0], True),
        ([1], [True], True),
        ([None], ["null"], True),
    ],
)
def test_enums_are_sets_of_values(old, new, changed):
    """Enums are compared as sets of values, including their types. (R199)"""
    assert diffs(nest_schema({"enum": old}), nest_schema({"enum": new})) == (
        [f"ENUM_ARRAY_CHANGED {P}/enum"] if changed else []
    )


def test_combinations_are_compared_by_position():
    """Of two combinations, the numbers of members are compared first, then the criterion, then each member by position.
    (R200)
    """
    one, two = {"type": "string"}, {"type": "null"}

    assert diffs({"anyOf": [one]}, {"oneOf": [one, two]}) == ["SUB_SCHEMA_CHANGED #/"]
    assert diffs({"anyOf": [one]}, {"oneOf": [two]}) == ["COMPOSITION_METHOD_CHANGED #/"]
    assert diffs({"anyOf": [one, two]}, {"anyOf": [two, one]}) == [
        "TYPE_CHANGED #/anyOf/0",
        "TYPE_CHANGED #/anyOf/1",
    ]
    assert diffs({"oneOf": [one]}, {"oneOf": [{"type": "string", "minLength": 1}]}) == [
        "ATTRIBUTE_VALUE_CHANGED #/oneOf/0/minLength"
    ]


def test_objects_are_compared_in_order():
    """Properties, dependencies, additional properties, required properties and limits are compared in this order.
    (R201)"""
    old = {
        "properties": {"gone": {}, "kept": {"type": "string"}},
        "dependencies": {"a": ["x"], "b": ["x", "y"], "c": ["z"], "s": {}},
        "required": ["kept"],
        "maxProperties": 5,
    }
    new = {
        "properties": {"kept": {"type": "null"}, "n1": {}, "n2": {}},
        "dependencies": {"b": ["y", "x"], "c": ["other"], "s": {"type": "null"}, "added": ["q"]},
        "additionalProperties": False,
        "required": ["n1"],
        "minProperties": 1,
    }

    assert diffs(old, new) == [
        "PROPERTY_REMOVED #/properties/gone",
        "TYPE_CHANGED #/properties/kept",
        "PROPERTIES_ADDED #/properties",
        "DEPENDENCY_ARRAY_CHANGED #/dependencies/a",
        "DEPENDENCY_ARRAY_CHANGED #/dependencies/c",
        "TYPE_NARROWED #/dependencies/s",
        "ADDITIONAL_PROPERTIES_CHANGED #/additionalProperties",
        "REQUIRED_ARRAY_CHANGED #/required",
        "ATTRIBUTE_VALUE_CHANGED #/maxProperties",
        "ATTRIBUTE_VALUE_CHANGED #/minProperties",
    ]


def test_a_swap_of_properties_is_a_removal():
    """If one property replaces another, only the removal is reported. (R201)"""
    assert diffs(nest_schema({}), {"properties": {"q": {}}}) == ["PROPERTY_REMOVED #/properties/p"]


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ({"required": ["a"]}, {"required": ["b", "a"]}, ["REQUIRED_ARRAY_EXTENDED #/required"]),
        ({"required": ["a", "b"]}, {"required": ["b", "a"]}, []),
        ({"required": ["a"]}, {"required": ["b"]}, ["REQUIRED_ARRAY_CHANGED #/required"]),
        ({"required": ["a"], "properties": {}}, {"properties": {}}, ["REQUIRED_ARRAY_CHANGED #/required"]),
        ({"dependencies": {"a": {}}}, {"dependencies": {"a": ["b"]}}, ["DEPENDENCY_SCHEMA_CHANGED #/dependencies"]),
        ({"dependencies": {"a": {}}}, {"dependencies": {"a": True}}, ["TYPE_CHANGED #/dependencies/a"]),
        ({"patternProperties": {"a": {}}}, {"patternProperties": {"b": {"type": "null"}}}, []),
        ({"properties": {}, "definitions": {"d": {}}}, {"properties": {}, "definitions": {"d": {"type": "null"}}}, []),
        ({"type": "object"}, {"properties": {}}, []),
    ],
)
def test_members_of_objects(old, new, changes):
    """Required names and dependencies are compared as sets; patterns and unused definitions are ignored. (R201)"""
    assert diffs(old, new) == changes


ADDITIONAL = "#/additionalProperties"


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        (None, True, []),
        (True, None, []),
        (False, False, []),
        (None, False, [f"ADDITIONAL_PROPERTIES_CHANGED {ADDITIONAL}"]),
        (False, True, [f"ADDITIONAL_PROPERTIES_CHANGED {ADDITIONAL}"]),
        (False, {}, [f"ADDITIONAL_PROPERTIES_CHANGED {ADDITIONAL}"]),
        ({}, False, [f"ADDITIONAL_PROPERTIES_CHANGED {ADDITIONAL}"]),
        (None, {}, [f"ADDITIONAL_PROPERTIES_NARROWED {ADDITIONAL}"]),
        (True, {"type": "null"}, [f"ADDITIONAL_PROPERTIES_NARROWED {ADDITIONAL}"]),
        ({}, None, [f"SCHEMA_REMOVED {ADDITIONAL}"]),
        ({"type": "null"}, True, [f"SCHEMA_REMOVED {ADDITIONAL}"]),
        ({}, {"type": "null"}, [f"TYPE_NARROWED {ADDITIONAL}"]),
        ({"type": "null"}, {"type": "string"}, [f"TYPE_CHANGED {ADDITIONAL}"]),
    ],
)
def test_additional_properties(old, new, changes):
    """Additional properties are permitted, forbidden or described; without the keyword, they are permitted. (R201)"""
    schemas = [{"type": "object", **({} if each is None else {"additionalProperties": each})} for each in (old, new)]
    assert diffs(*schemas) == changes


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ({}, {"items": {}}, ["SCHEMA_REMOVED #/items"]),
        ({"items": {}}, {}, ["SCHEMA_REMOVED #/items"]),
        ({"items": {}}, {"items": {"type": "null"}}, ["TYPE_NARROWED #/items"]),
        ({"items": [{}]}, {"items": [{"type": "null"}]}, ["TYPE_NARROWED #/items/0"]),
        ({"items": [{}]}, {"items": [{}, {}]}, ["NUMBER_OF_ITEMS_CHANGED #/"]),
        ({"items": [{}]}, {}, ["NUMBER_OF_ITEMS_CHANGED #/"]),
        ({"items": {}}, {"items": [{}]}, ["SCHEMA_REMOVED #/items", "NUMBER_OF_ITEMS_CHANGED #/"]),
        ({}, {"additionalItems": False}, ["ADDITIONAL_ITEMS_CHANGED #/additionalItems"]),
        ({"items": [{}]}, {"items": [{}], "additionalItems": False}, ["ADDITIONAL_ITEMS_CHANGED #/additionalItems"]),
        ({"items": {}}, {"items": {}, "additionalItems": False}, []),
        ({}, {"additionalItems": {}}, ["SCHEMA_REMOVED #/additionalItems"]),
        ({"additionalItems": {}}, {"additionalItems": {"type": "null"}}, ["TYPE_NARROWED #/additionalItems"]),
        (
            {"maxItems": 1, "minItems": 1},
            {"maxItems": 2, "uniqueItems": True},
            [f"ATTRIBUTE_VALUE_CHANGED #/{each}" for each in ("maxItems", "minItems", "uniqueItems")],
        ),
        ({}, {"uniqueItems": False}, []),
    ],
)
def test_arrays(old, new, changes):
    """Arrays are compared by items, further items and limits, in this order. (R202)"""
    assert diffs({"type": "array", **old}, {"type": "array", **new}) == changes


def test_references_are_followed():
    """The target of a reference is compared, not its name. (R203)"""

    def referring_schema(name, target):
        return {"properties": {"p": {"$ref": f"#/definitions/{name}"}}, "definitions": {name: target}}

    assert diffs(referring_schema("a", {"type": "string"}), referring_schema("b", {"type": "string"})) == []
    assert diffs(referring_schema("a", {}), referring_schema("a", {"type": "null"})) == [f"TYPE_NARROWED {P}/$ref"]
    assert diffs(referring_schema("a", {"type": "string"}), nest_schema({"type": "string"})) == [f"TYPE_CHANGED {P}"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"type": "boolean"}, {"type": "boolean", "default": True}),
        ({"type": "null"}, {"type": "null", "x-foo": 1}),
        ({"not": {"type": "null"}}, {"not": {"type": "string"}}),
        ({"const": 1}, {"const": 2}),
        ({"if": {}}, {"if": {"type": "null"}, "then": {}}),
        (True, True),
        (False, False),
        ({}, {"default": 1}),
    ],
)
def test_some_kinds_are_not_looked_into(old, new):
    """Simple types are compared only by their own keywords. (R204)"""
    draft = {"$schema": "http://json-schema.org/draft-07/schema#"}
    assert diffs(draft | nest_schema(old), draft | nest_schema(new)) == []


def test_words_about_a_schema_are_compared_everywhere():
    """The identifier, title and description are compared for all types; a missing one counts as a value. (R196)"""
    old, new = {"type": "null", "title": "t"}, {"type": "null", "id": "i", "description": "d"}
    assert diffs(nest_schema(old), nest_schema(new)) == [
        f"ID_CHANGED {P}",
        f"TITLE_CHANGED {P}",
        f"DESCRIPTION_CHANGED {P}",
    ]
    combined = {"title": "t", "type": ["string", "null"]}
    assert diffs(nest_schema(combined), nest_schema({**combined, "title": "u"})) == [f"TITLE_CHANGED {P}"]


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ({}, {"type": "object"}, []),
        ({}, {"properties": {"a": {}}}, [f"PROPERTIES_ADDED {P}/properties"]),
        (
            {},
            {"type": "object", "additionalProperties": False},
            [f"ADDITIONAL_PROPERTIES_CHANGED {P}/additionalProperties"],
        ),
        ({}, {"type": "string"}, [f"TYPE_NARROWED {P}"]),
        ({}, {"enum": [1]}, [f"TYPE_NARROWED {P}"]),
        ({}, False, [f"TYPE_NARROWED {P}"]),
        ({}, True, [f"TYPE_CHANGED {P}"]),
        (True, {"type": "string"}, [f"TYPE_NARROWED {P}"]),
        (True, False, [f"TYPE_NARROWED {P}"]),
        (True, {}, [f"TYPE_CHANGED {P}"]),
        (True, {"properties": {"a": {}}}, [f"PROPERTIES_ADDED {P}/properties"]),
        (False, True, [f"TYPE_CHANGED {P}"]),
        ({"type": "string"}, {}, [f"TYPE_CHANGED {P}"]),
        ({"type": "string", "title": "a"}, {"type": "null", "title": "b"}, [f"TYPE_CHANGED {P}"]),
    ],
)
def test_kinds_that_differ_end_the_comparison(old, new, changes):
    """An open schema may be narrowed, even to an object without a type; otherwise, types must be the same. (R196)"""
    assert diffs(nest_schema(old), nest_schema(new)) == changes


def test_names_stand_in_paths_as_they_are():
    """Paths are built from unescaped names; the root is `#/`. (R205)"""
    assert diffs({"properties": {"a/b~c": {"type": "null"}}}, {"properties": {"a/b~c": {"type": "string"}}}) == [
        "TYPE_CHANGED #/properties/a/b~c"
    ]
    assert diffs({"type": "null"}, {"type": "string"}) == ["TYPE_CHANGED #/"]


def test_recursive_schemas_are_compared_once():
    """A pair of schemas that is already being compared is not compared again, except once through a reference.
    (R196)
    """
    old = {"properties": {"next": {"$ref": "#"}, "value": {"type": "string"}}}
    new = {"properties": {"next": {"$ref": "#"}, "value": {"type": "null"}}}

    assert diffs(old, old) == []
    assert diffs(old, new) == [
        "TYPE_CHANGED #/properties/next/$ref/properties/value",
        "TYPE_CHANGED #/properties/value",
    ]


@pytest.mark.parametrize("beside", [{"not": {}}, {"default": 5}, {"$ref": "#"}, {"contains": {}}, {"if": {}}])
def test_what_is_nothing_beside_a_combinator(beside):
    """Keywords beside a combinator that have no effect on values, in the schema's draft, are ignored. (R195, R200)"""
    assert diffs(nest_schema({"anyOf": [{}]}), nest_schema({"anyOf": [{}], **beside})) == []


@pytest.mark.parametrize(
    ("draft", "beside"),
    [("04", {"minItems": 1}), ("06", {"contains": {}}), ("07", {"if": {}}), ("04", {"type": "null"})],
)
def test_what_is_a_schema_of_its_own_beside_a_combinator(draft, beside):
    """Keywords beside a combinator that the draft defines split the schema into two. (R195, R200)"""
    about = {"$schema": f"http://json-schema.org/draft-{draft}/schema#"}
    old, new = about | nest_schema({"anyOf": [{}]}), about | nest_schema({"anyOf": [{}], **beside})
    assert diffs(old, new) == [f"SUB_SCHEMA_CHANGED {P}"]


def test_an_unrolled_recursion_is_still_compared():
    """If the recursion of the new schema is unrolled differently, each turn is compared with the old one. (R196,
    deviation)"""
    old = {"properties": {"next": {"$ref": "#"}, "value": {}}}
    new = {
        "properties": {"next": {"$ref": "#/definitions/d"}, "value": {}},
        "definitions": {"d": {"properties": {"next": {"$ref": "#"}}}},
    }

    assert diffs(old, new) == ["PROPERTY_REMOVED #/properties/next/$ref/properties/value"]


def test_depth_is_no_trouble():
    """A chain of thousands of definitions is followed to its end. (R196)"""

    def chain(last):
        definitions = {f"d{n}": {"properties": {"p": {"$ref": f"#/definitions/d{n + 1}"}}} for n in range(5_000)}
        return {"properties": {"p": {"$ref": "#/definitions/d0"}}, "definitions": {**definitions, "d5000": last}}

    assert [change.kind for change in find_schema_changes(chain({}), chain({"type": "null"}))] == ["TYPE_NARROWED"]


def doubling_schema(levels):
    """A schema in which each definition contains the next one twice."""
    definitions = {
        f"d{n}": {"properties": {side: {"$ref": f"#/definitions/d{n + 1}"} for side in "lr"}} for n in range(levels)
    }
    return {"$ref": "#/definitions/d0", "definitions": {**definitions, f"d{levels}": {}}}


def test_a_change_is_reported_wherever_it_is_used():
    """A change in a shared part is reported once for each path that leads to it, also through other shared parts.
    (R196)"""

    def schema_with_shared_part(leaf):
        return {
            "properties": {name: {"$ref": "#/definitions/d"} for name in "ab"} | {"same": {"items": {"type": "null"}}},
            "definitions": {"d": {"properties": {"x": {"$ref": "#/definitions/e"}, "y": {}}}, "e": leaf},
        }

    assert diffs(schema_with_shared_part({}), schema_with_shared_part({"title": "t"})) == [
        f"TITLE_CHANGED #/properties/{name}/$ref/properties/x/$ref" for name in "ab"
    ]


def cycle(length):
    definitions = {
        f"d{n}": {"properties": {"p": {"$ref": f"#/definitions/d{(n + 1) % length}"}}} for n in range(length)
    }
    return {"$ref": "#/definitions/d0", "definitions": definitions}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (doubling_schema(60), doubling_schema(60)),
        (cycle(999), cycle(1000)),
        (
            {"properties": {"p": {"$ref": "#"}}, "type": ["object"] * 50},
            {"properties": {"p": {"$ref": "#"}}, "type": ["object"] * 50},
        ),
    ],
    ids=["doubling", "cycles", "types"],
)
def test_a_comparison_comes_to_an_end(old, new):
    """A comparison that would take too long is given up early. (R196)"""

    def compare():
        with suppress(StepsExhausted):
            find_schema_changes(old, new)

    assert measure_cpu(compare) < 10_000

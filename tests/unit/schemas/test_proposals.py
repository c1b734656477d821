"""Proposals: schemas that would be accepted in place of those that are refused."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nakadi.model.event_type import Category, CompatibilityMode
from nakadi.model.outcomes import Invalid
from nakadi.schemas.evolution import judge_evolution
from nakadi.schemas.json_patch import patch_between
from nakadi.schemas.proposals import propose_schema
from nakadi.schemas.submission import check_schema_language, parse_submitted_schema
from tests.support.everything import choose_by_suite

FORWARD, COMPATIBLE = CompatibilityMode.FORWARD, CompatibilityMode.COMPATIBLE
S, INT = {"type": "string"}, {"type": "integer"}


def refused_in(old, mode=FORWARD, new_mode=None):
    return lambda schema: judge_evolution(old, schema, mode, new_mode or mode).refused


def make_soundness_check(mode):
    def check(schema):
        check_schema_language(parse_submitted_schema(json.dumps(schema), category=Category.UNDEFINED), mode)

    return check


def proposal(old, submitted, mode=FORWARD, new_mode=None):
    return propose_schema(old, submitted, refused_in(old, mode, new_mode), make_soundness_check(new_mode or mode))


def patch(old, submitted, mode=FORWARD):
    return patch_between(submitted, proposal(old, submitted, mode))


def test_a_removed_property_comes_back():
    """The proposal contains the property again, and keeps the additions. (R297)"""
    old, new = {"properties": {"a": S, "b": INT}}, {"properties": {"a": S, "c": INT, "d": INT}}
    assert patch(old, new) == [{"op": "add", "path": "/properties/b", "value": INT}]


def test_a_property_of_another_type_is_declared_beside_the_old_one():
    """The proposal keeps the property with its old type, and gives the one with the new type an unused name. (R297)"""
    old, new = {"properties": {"a": S, "a_2": S}}, {"properties": {"a": INT, "a_2": S}}
    assert proposal(old, new) == {"properties": {"a": S, "a_2": S, "a_3": INT}}


def test_what_was_required_stays_so():
    """Required names come back; added ones stay if the mode permits that. (R297)"""
    old, new = {"required": ["a", "b"], "type": "object"}, {"required": ["b", "c"], "type": "object"}
    assert proposal(old, new)["required"] == ["a", "b", "c"]
    assert proposal(old | {"properties": {}}, new | {"properties": {}}, COMPATIBLE)["required"] == ["a", "b"]


def test_a_definition_that_is_needed_again_comes_back():
    """A part of the old schema comes back with the definitions to which it refers. (R297)"""
    old = {
        "properties": {"a": {"$ref": "#/definitions/a"}, "b": S},
        "definitions": {"a": {"type": "object", "properties": {"c": {"$ref": "#/definitions/c"}}}, "c": S},
    }
    assert proposal(old, {"properties": {"b": S}}) == {
        "properties": {"b": S, "a": {"$ref": "#/definitions/a"}},
        "definitions": old["definitions"],
    }


def test_only_the_keyword_that_is_refused_is_taken_back():
    """If one keyword is refused, such as an identifier, a limit or a choice, only its old value comes back. (R297)"""
    old = {"id": "x", "properties": {"a": S | {"maxLength": 3}, "b": {"anyOf": [S, INT]}}}
    new = {"id": "y", "title": "t", "properties": {"a": S | {"maxLength": 4, "title": "t"}, "b": {"anyOf": [S]}}}
    assert proposal(old, new) == old | {
        "title": "t",
        "properties": {"a": S | {"maxLength": 3, "title": "t"}, "b": {"anyOf": [S, INT]}},
    }


def test_a_root_of_another_kind_is_replaced():
    """If no smaller change helps, the proposal is the old schema. (R297)"""
    old = {"properties": {"a": S}}
    assert proposal(old, {"anyOf": [{"required": ["a"]}]}) == old


def test_there_may_be_no_proposal():
    """In a stricter mode, even the old schema may not be accepted. (R297)"""
    old = {"properties": {"a": S | {"x-unknown": 1}}}
    assert proposal(old, {"properties": {"a": INT}}, FORWARD, COMPATIBLE) is None


def test_the_submitted_schema_is_left_alone():
    """A proposal is a separate value, and contains no part of the old schema. (R297)"""
    old, new = {"properties": {"a": S, "b": {"enum": [1]}}}, {"properties": {"a": INT}}
    before = json.dumps([old, new])
    proposal(old, new)["properties"]["b"]["enum"].append(2)
    assert json.dumps([old, new]) == before


NAMES = st.sampled_from(["a", "b", "c", "$ref", "anyOf", "properties"])
REFERENCES = st.sampled_from([{"$ref": "#/definitions/a"}, {"$ref": "#/definitions/b"}, {"$ref": "#"}])
LEAVES = (
    st.sampled_from([{}, S, INT, {"type": "null"}, {"type": ["string", "null"], "maxLength": 2}, {"enum": [1, "x"]}])
    | st.builds(lambda number: {"type": "string", "maxLength": number}, st.integers(1, 3))
    | st.builds(lambda number: {"type": "number", "maximum": number}, st.integers(1, 3))
    | st.builds(lambda values: {"enum": values}, st.lists(st.integers(0, 3), min_size=1, max_size=2, unique=True))
    | REFERENCES
)


def objects(inner):
    return st.fixed_dictionaries(
        {"type": st.just("object")},
        optional={
            "properties": st.dictionaries(NAMES, inner, max_size=3),
            "required": st.lists(NAMES, min_size=1, max_size=2, unique=True),
            "additionalProperties": st.booleans() | inner,
            "title": st.sampled_from(["t", "u"]),
            "id": st.sampled_from(["#i", "#j"]),
            "dependencies": st.dictionaries(NAMES, st.just(["a"]) | inner, max_size=2),
        },
    )


def lists(inner):
    return st.fixed_dictionaries(
        {"type": st.just("array")},
        optional={"items": inner | st.lists(inner, max_size=2), "minItems": st.integers(0, 2)},
    )


def choices(inner):
    members = st.lists(inner, min_size=1, max_size=2)
    return st.builds(lambda word, found: {word: found}, st.sampled_from(["anyOf", "allOf", "oneOf"]), members)


PARTS = st.recursive(LEAVES, lambda inner: objects(inner) | lists(inner) | choices(inner), max_leaves=8)
SCHEMAS = st.builds(lambda root, a, b: root | {"definitions": {"a": a, "b": b}}, objects(PARTS), PARTS, PARTS)


def is_sound(schema, mode):
    try:
        make_soundness_check(mode)(schema)
    except Invalid:
        return False
    return True


@pytest.mark.parametrize("mode", [FORWARD, COMPATIBLE])
@settings(max_examples=choose_by_suite(50, 10_000), derandomize=True, deadline=None, database=None)
@given(old=SCHEMAS, new=SCHEMAS)
def test_a_proposal_is_accepted(mode, old, new):
    """For any two valid schemas that differ, there is a proposal, and it is accepted. (R297)"""
    if not is_sound(old, mode) or not is_sound(new, mode):
        return
    proposed = proposal(old, new, mode)

    assert judge_evolution(old, proposed, mode, mode).refused == ()
    assert is_sound(proposed, mode)

"""Malicious schemas."""

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nakadi.model.event_type import Category, CleanupPolicy, CompatibilityMode
from nakadi.model.outcomes import Invalid
from nakadi.schemas.document import effective_schema, schema_forbidding_additions
from nakadi.schemas.evolution import next_schema
from nakadi.schemas.nodes import undefined_paths
from nakadi.schemas.strict_json import MAX_JSON_DEPTH
from nakadi.schemas.submission import check_schema_language, parse_submitted_schema
from tests.support.builders import A_MOMENT, a_schema, an_event_type
from tests.support.traced_memory import trace_memory

NAMES = st.sampled_from(["a", "b", "$ref", "type", "metadata", ""])
SCALARS = st.sampled_from([None, True, False, 0, 1, 1.5, -1, "object", "string", "(", "#", "#/definitions/a", "x:/y"])
KEYWORDS = [
    "$ref",
    "type",
    "enum",
    "const",
    "properties",
    "patternProperties",
    "additionalProperties",
    "required",
    "dependencies",
    "items",
    "additionalItems",
    "minItems",
    "uniqueItems",
    "minimum",
    "exclusiveMinimum",
    "multipleOf",
    "minLength",
    "pattern",
    "format",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "then",
    "contains",
    "propertyNames",
    "definitions",
    "title",
    "id",
    "$id",
]
DRAFTS = st.sampled_from([f"http://json-schema.org/draft-{number}/schema#" for number in ("04", "06", "07")])


def schema_like(values):
    return st.dictionaries(st.sampled_from(KEYWORDS), values, max_size=5)


ANYTHING = st.recursive(
    SCALARS,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(NAMES, values, max_size=3) | schema_like(values),
    max_leaves=12,
)


@st.composite
def schemas(draw, depth=3):
    """Mostly valid schemas: keywords usually have suitable values, and now and then others."""
    if depth == 0 or draw(st.integers(0, 9)) == 0:
        return draw(st.sampled_from([True, False, {}, {"$ref": "#"}, {"$ref": "#/definitions/a"}, {"type": "string"}]))
    within = schemas(depth=depth - 1)
    named, listed = st.dictionaries(NAMES, within, max_size=3), st.lists(within, max_size=3)
    types = st.sampled_from(["object", "array", "string", "integer", "number", "boolean", "null"])
    sound = {
        "type": types | st.lists(types, max_size=3),
        "enum": st.lists(SCALARS, max_size=3),
        "properties": named,
        "patternProperties": named,
        "definitions": named,
        "dependencies": st.dictionaries(NAMES, within | st.lists(NAMES, max_size=2), max_size=2),
        "required": st.lists(NAMES, max_size=2),
        "additionalProperties": within,
        "items": within | listed,
        "additionalItems": within,
        "allOf": listed,
        "anyOf": listed,
        "oneOf": listed,
        "not": within,
        "minimum": st.sampled_from([0, 1.5]),
        "minLength": st.integers(0, 2),
        "pattern": st.sampled_from(["a", "^b$"]),
        "title": NAMES,
    }
    keywords = draw(st.lists(st.sampled_from(sorted(sound)), max_size=4, unique=True))
    return {keyword: draw(sound[keyword]) for keyword in keywords}


@st.composite
def roots(draw):
    """A schema with definitions, in any draft."""
    root = draw(schemas())
    body = root if isinstance(root, dict) else {}
    definitions = {"definitions": {"a": draw(schemas(depth=2))}} if draw(st.booleans()) else {}
    draft = {"$schema": draw(DRAFTS)} if draw(st.booleans()) else {}
    return {key: value for key, value in body.items() if key != "type"} | definitions | draft


MODES, CATEGORIES = st.sampled_from(CompatibilityMode), st.sampled_from(Category)


def submit(text, category, mode):
    schema = parse_submitted_schema(text, category=category)
    if mode is CompatibilityMode.COMPATIBLE:
        schema_forbidding_additions(schema)
    check_schema_language(schema, mode)
    return schema


@settings(max_examples=100)
@given(ANYTHING | schema_like(ANYTHING), MODES, CATEGORIES)
def test_anything_is_taken_or_refused(value, mode, category):
    """Any submitted schema is accepted or refused, and never causes an internal error. (R150, R153, R158)"""
    with suppress(Invalid):
        submit(json.dumps(value), category, mode)


@settings(max_examples=100)
@given(roots(), roots(), MODES, CATEGORIES)
def test_what_is_taken_can_be_worked_with(old, new, mode, category):
    """An accepted schema has a valid effective schema, which can be searched and compared. (R157, R196)"""
    texts = [json.dumps(each) for each in (old, new)]
    try:
        sound = [submit(text, category, mode) for text in texts]
    except Invalid:
        return
    for schema in sound:
        effective = effective_schema(
            schema, event_type="e", category=category, mode=mode, cleanup_policy=CleanupPolicy.COMPACT
        )
        submit(json.dumps(effective), Category.UNDEFINED, CompatibilityMode.FORWARD)
        with suppress(Invalid):
            undefined_paths(effective, ["a", "a.b.a", "metadata.eid", "data.a"])
    with suppress(Invalid):
        next_schema(an_event_type(schema=a_schema(texts[0]), compatibility_mode=mode), texts[1], mode, A_MOMENT)


@pytest.mark.parametrize("around", ['{"items":%s}', '{"not":%s}', '{"allOf":[%s]}', '{"properties":{"a":%s}}', "[%s]"])
@pytest.mark.parametrize("depth", [60, MAX_JSON_DEPTH // 2 - 1, MAX_JSON_DEPTH - 1, 2 * MAX_JSON_DEPTH])
@pytest.mark.parametrize("mode", CompatibilityMode)
def test_depth_is_taken_or_refused(around, depth, mode):
    """Nesting of any depth and kind is either processed or refused. (R150, R177)"""
    text = "{}"
    for _ in range(depth):
        text = around % text
    with suppress(Invalid):
        schema = submit(text, Category.DATA, mode)
        effective_schema(schema, event_type="e", category=Category.DATA, mode=mode, cleanup_policy=CleanupPolicy.DELETE)


LONG = "n" * 100_000


@pytest.mark.parametrize("mode", [CompatibilityMode.FORWARD, CompatibilityMode.COMPATIBLE])
@pytest.mark.parametrize("fault", [{}, {"not": {}}, {"minLength": -1}, {"x-y": 1}, {"type": "foo"}])
def test_long_names_are_not_spelt_out_for_each_schema(fault, mode):
    """Hundreds of schemas below a very long property name do not each keep a copy of that name. (R153, R158, R192)"""
    schema = {"properties": {LONG: {"properties": {f"p{number}": fault for number in range(700)}}}}
    text = json.dumps(schema)

    def submit_and_replace():
        with suppress(Invalid):
            submit(text, Category.UNDEFINED, mode)
        stored = an_event_type(schema=a_schema(text), compatibility_mode=mode)
        with suppress(Invalid):
            next_schema(stored, '{"properties":{}}', mode, A_MOMENT)

    assert trace_memory(submit_and_replace).peak < 20_000_000

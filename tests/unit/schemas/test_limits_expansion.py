"""How far schemas expand."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nakadi.model.event_type import Category
from nakadi.model.outcomes import Invalid
from nakadi.schemas import limits
from nakadi.schemas.document import Draft, SchemaDocument
from nakadi.schemas.limits import MAX_SCHEMAS_PER_VALUE, check_expansion
from nakadi.schemas.submission import check_loadable, parse_submitted_schema
from tests.support.everything import choose_by_suite
from tests.support.schemas import VALUES, schemas

SEVEN = "http://json-schema.org/draft-07/schema#"


def levels(number: int, level: Any, **more: Any) -> dict[str, Any]:
    """Definitions that each contain the previous one."""
    definitions = {f"d{each}": level({"$ref": f"#/definitions/d{each - 1}"}) for each in range(1, number)}
    return {
        "$schema": SEVEN,
        "definitions": {"d0": {"type": "string"}, **definitions},
        "properties": {"x": {"$ref": f"#/definitions/d{number - 1}"}},
        **more,
    }


def double_schema(below):
    return [below, {"allOf": [below]}]


DOUBLING = {
    "allOf": lambda below: {"allOf": double_schema(below)},
    "anyOf": lambda below: {"anyOf": double_schema(below)},
    "oneOf": lambda below: {"oneOf": double_schema(below)},
    "not": lambda below: {"not": below, "allOf": [below]},
    "if": lambda below: {"if": below, "then": below, "else": below},
    "dependencies": lambda below: {"dependencies": {"a": below, "b": below}},
    "patternProperties": lambda below: {"patternProperties": {"a": below, "aa": below}},
    "properties and patterns": lambda below: {"properties": {"a": below}, "patternProperties": {"a": below}},
    "members": lambda below: {"anyOf": [{"properties": {"a": below}}, {"additionalProperties": below}]},
    "items": lambda below: {"oneOf": [{"items": below}, {"items": [below]}]},
    "items and contains": lambda below: {"items": below, "contains": below},
    "additionalItems": lambda below: {"anyOf": [{"items": [{}], "additionalItems": below}, {"items": below}]},
    "uniqueItems": lambda below: {"allOf": [{"uniqueItems": True, "items": below}, {"items": below}]},
    "names": lambda below: {
        "allOf": [{"propertyNames": below}, {"propertyNames": below}, {"properties": {"a": below}}]
    },
}


def submit(schema, category=Category.UNDEFINED):
    return parse_submitted_schema(json.dumps(schema), category=category)


@pytest.mark.parametrize("category", Category)
@pytest.mark.parametrize("kind", [each for each in DOUBLING if each != "names"])
def test_a_schema_that_doubles_with_each_of_its_levels_is_refused(kind, category):
    """Twenty-two levels, each of which applies the one below it twice, are refused, whatever they consist of. (R153)"""
    with pytest.raises(Invalid, match=r"^schema expands too far: at most 10000 schemas can be about one value, found"):
        submit(levels(22, DOUBLING[kind]), category)


@pytest.mark.parametrize("kind", DOUBLING)
def test_a_few_doubled_levels_are_taken(kind):
    """Five levels, each of which applies the one below it twice, are accepted. (R153)"""
    submit(levels(5, DOUBLING[kind]))


def test_a_schema_that_expands_without_references_is_refused_for_its_size():
    """A schema that doubles with each level exceeds the limits of size after fourteen levels if it is written out
    without references.
    """
    schema: dict[str, Any] = {}
    for _ in range(14):
        schema = {"allOf": [schema, schema]}
    with pytest.raises(Invalid, match="schema is too large"):
        submit(schema)


ITSELF = {"$ref": "#/definitions/d"}


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"items": ITSELF}, {"items": ITSELF}]},
        {"items": ITSELF, "contains": ITSELF},
        {"allOf": [{"properties": {"a": ITSELF}}, {"additionalProperties": ITSELF}]},
        {"properties": {"a": ITSELF}, "dependencies": {"a": {"properties": {"a": ITSELF}}}},
        {"properties": {"a": ITSELF}, "not": {"anyOf": [{}, {"patternProperties": {"a": ITSELF}}]}},
        {"properties": {"a": {"allOf": [{"items": ITSELF}, {"items": [ITSELF]}]}}},
    ],
)
def test_a_schema_that_contains_itself_twice_at_once_is_refused(schema):
    """A schema whose work doubles with each level of an event is refused, even if it is small. (R153)"""
    with pytest.raises(Invalid, match="it contains itself more than once for one and the same value"):
        submit({"$schema": SEVEN, "definitions": {"d": schema}, "properties": {"x": ITSELF}})


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"left": ITSELF, "right": ITSELF}, "additionalProperties": ITSELF},
        {
            "oneOf": [
                {"properties": {"op": {"enum": [op]}, "arguments": {"items": ITSELF}}} for op in ("and", "or", "not")
            ]
        },
        {"patternProperties": {"^a": ITSELF, "^b": ITSELF}, "additionalProperties": ITSELF},
        {"items": [ITSELF, ITSELF], "additionalItems": ITSELF},
        {"if": {"required": ["a"]}, "then": {"properties": {"a": ITSELF}}, "else": {"properties": {"a": ITSELF}}},
        {"anyOf": [{"type": "string"}, {"type": "array", "items": ITSELF}]},
    ],
)
def test_a_schema_may_contain_itself_where_one_way_is_taken(schema):
    """Recursive schemas of trees and expressions are accepted, because an event usually follows only one of several
    alternatives. (R153)
    """
    submit({"$schema": SEVEN, "definitions": {"d": schema}, "properties": {"x": ITSELF}})


def a_large_schema() -> dict[str, Any]:
    """A schema as generated from the data model of a whole company."""
    text = {"type": "string", "minLength": 1, "maxLength": 100}
    shared: dict[str, Any] = {
        "Money": {"type": "object", "properties": {"amount": {"type": "number"}, "currency": {"format": "iso-4217"}}},
        "Address": {"type": "object", "properties": {f"line{number}": text for number in range(12)}},
        "Base": {
            "properties": {"id": text, "created": {"format": "date-time"}, "price": {"$ref": "#/definitions/Money"}}
        },
    }
    for number in range(120):
        own = {f"field{each}": {"type": ["string", "null"]} for each in range(4)}
        before = {"$ref": f"#/definitions/Type{number - 1}"} if number else {}
        own |= {"before": before, "all": {"type": "array", "items": before}, "home": {"$ref": "#/definitions/Address"}}
        shared[f"Type{number}"] = {"allOf": [{"$ref": "#/definitions/Base"}, {"type": "object", "properties": own}]}
    kinds = [{"$ref": f"#/definitions/Type{number}"} for number in range(120)]
    fields = {f"property{number}": kinds[number % 120] for number in range(600)}
    return {"definitions": shared, "properties": fields | {"any": {"oneOf": kinds}}}


def test_large_honest_schemas_are_taken():
    """Hundreds of properties, types that share others, and a choice between a hundred of them are accepted. (R153)"""
    submit(a_large_schema())


@pytest.mark.parametrize("path", sorted(Path("events/event_types").glob("*.json")), ids=lambda path: path.stem)
def test_the_samples_are_taken(path):
    """Every sample event type stays far below the limit."""
    schema = json.loads(json.loads(path.read_text())["schema"]["schema"])
    document = SchemaDocument.from_root(schema)
    check_loadable(document)
    assert limits._SchemaExpansion(document).max_schemas_per_value() < MAX_SCHEMAS_PER_VALUE / 1000


def test_counting_has_an_end_itself(monkeypatch):
    """A schema whose expansion would take too long to count is refused, too."""
    names = [{"properties": {f"{part}.{number}": {} for number in range(30)}} for part in range(30)]
    definitions = {f"d{level}": {"allOf": [*names, {"$ref": f"#/definitions/d{level - 1}"}]} for level in range(1, 5)}
    schema = {"definitions": {"d0": {}, **definitions}, "allOf": [{"$ref": "#/definitions/d4"}]}
    submit(schema)

    monkeypatch.setattr(limits, "MAX_EXPANSION_STEPS", 10_000)
    with pytest.raises(Invalid, match="its parts combine in too many ways"):
        submit(schema)


# The count, compared with the number of real checks.


class _SchemaUseCounter:
    """Checks a value, and all values inside it, against a schema without any shortcut, and counts the checks."""

    def __init__(self, document: SchemaDocument) -> None:
        self._document = document
        self.seen: Counter[str] = Counter()

    def hold(self, schema: Any, value: Any, place: str = "") -> None:
        if not isinstance(schema, dict):
            return
        self.seen[place] += 1
        if "$ref" in schema:
            self.hold(self._document.find_target(schema["$ref"]), value, place)
            return
        draft = self._document.draft
        alone = ("not", *(("if", "then", "else") if draft >= Draft.SEVEN else ()))
        same = [schema[each] for each in alone if each in schema]
        for each in ("allOf", "anyOf", "oneOf"):
            same.extend(schema.get(each, ()))
        for each in (*same, *schema.get("dependencies", {}).values()):
            self.hold(each, value, place)
        if isinstance(value, dict):
            for name, member in value.items():
                self._member(schema, name, member, f"{place}/{name}")
                if draft >= Draft.SIX:
                    self.hold(schema.get("propertyNames"), name, f"{place}/name of {name}")
        if isinstance(value, list):
            for index, item in enumerate(value):
                self._item(schema, index, item, f"{place}/{index}")

    def _member(self, schema: Any, name: str, member: Any, place: str) -> None:
        known = [schema["properties"][name]] if name in schema.get("properties", {}) else []
        known += [each for pattern, each in schema.get("patternProperties", {}).items() if re.search(pattern, name)]
        for each in known or [schema.get("additionalProperties")]:
            self.hold(each, member, place)

    def _item(self, schema: Any, index: int, item: Any, place: str) -> None:
        items = schema.get("items")
        if isinstance(items, list):
            self.hold(items[index] if index < len(items) else schema.get("additionalItems"), item, place)
        else:
            self.hold(items, item, place)
        if self._document.draft >= Draft.SIX:
            self.hold(schema.get("contains"), item, place)


@settings(max_examples=choose_by_suite(40, 100), deadline=None, derandomize=True, database=None)
@given(st.sampled_from([4, 6, 7]).flatmap(schemas), VALUES)
def test_no_value_is_held_against_more_schemas_than_were_counted(schema, value):
    """For any schema and event, there are never more checks than counted, unless the schema contains itself."""
    document = SchemaDocument.from_root(schema)
    try:
        check_loadable(document)
        widest = limits._SchemaExpansion(document).max_schemas_per_value()
    except Invalid:
        assume(False)
    assume('"#"' not in json.dumps(schema))
    counting = _SchemaUseCounter(document)
    try:
        counting.hold(schema, value)
    except RecursionError:
        assume(False)
    assume(not _contains_itself(schema))
    assert max(counting.seen.values()) <= widest


def _contains_itself(schema: Any) -> bool:
    """Whether one of the two definitions leads back to itself, perhaps through the other."""
    definitions = schema["definitions"]
    leads = {
        name: {each for each in definitions if f"#/definitions/{each}" in json.dumps(definitions[name])}
        for name in definitions
    }
    return any(name in leads[name] or any(name in leads[each] for each in leads[name]) for name in definitions)


def test_the_count_is_exact_for_a_plain_schema():
    """A schema with three parts that apply to one value counts as four."""
    document = SchemaDocument.from_root({"properties": {"a": {"allOf": [{}, {"not": {}}]}}})
    check_expansion(document)
    assert limits._SchemaExpansion(document).max_schemas_per_value() == 4

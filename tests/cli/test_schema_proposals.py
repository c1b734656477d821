"""`nakadi schema infer`, `from-model` and `example`."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nakadi.model.event_type import Category
from nakadi.schemas.submission import check_restricted_language, parse_submitted_schema
from nakadi.schemas.validation import compile_validator
from nakadi_cli.failures import BadInput
from nakadi_cli.generating.examples import make_examples
from nakadi_cli.generating.inference import infer_from_events
from nakadi_cli.generating.python import Models, write_python
from nakadi_cli.generating.reading import read_declarations
from nakadi_cli.generating.violations import break_rules, without_rule
from tests.support.api import a_definition, create_event_type
from tests.support.pages import ROOT
from tests.support.random_events import RandomSchemas
from tests.support.type_samples import RICH, an_event_type

ORDER_PLACED = str(ROOT / "events/event_types/order.placed.json")


def infer_schema_of(*events, **options):
    return infer_from_events([json.dumps(each).encode() for each in events], **options).schema


# Inference

NAMES = st.sampled_from(
    ["a", "b", "id", "1", "2026-11-21", "é", "", 'q"\\', "metadata", "data", "data_op", "data_type"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
    | st.sampled_from(["2026-11-21T12:00:00Z", "a@example.org", "105a76d8-db49-4144-ace7-e683e8f4ba46", "red"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=20,
)  # fmt: skip


@settings(max_examples=50)
@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=5), min_size=1, max_size=30))
def test_every_event_is_valid_under_the_inferred_schema(events):
    """For any events, a broker registers the schema, in any mode, and accepts all of them."""
    schema = infer_schema_of(*events, category=Category.UNDEFINED)

    parse_submitted_schema(json.dumps(schema), category=Category.UNDEFINED)
    check_restricted_language(schema)
    validator = compile_validator(schema)
    assert all(map(validator.accepts, events))


@pytest.mark.parametrize(
    ("values", "schema"),
    [
        ([1, 2], {"type": "integer"}),
        ([1, 2.5], {"type": "number"}),
        ([1, None], {"type": ["integer", "null"]}),
        (["x", 1], {"type": ["integer", "string"]}),
        (["2026-11-21T12:00:00Z"], {"type": "string", "format": "date-time"}),
        (["105a76d8-db49-4144-ace7-e683e8f4ba46"], {"type": "string", "format": "uuid"}),
        (["someone@example.org", "x@example.org"], {"type": "string", "format": "email"}),
        (["red", "green"] * 5, {"type": "string", "enum": ["green", "red"]}),
        (["red", "green", None] * 5, {"type": ["null", "string"], "enum": ["green", "red", None]}),
        ([f"text {number}" for number in range(20)], {"type": "string"}),
        ([[1], [2.5, None]], {"type": "array", "items": {"type": ["null", "number"]}}),
        ([[]], {"type": "array", "items": {}}),
        ([{"1": "a", "2": "b"}], {"type": "object", "additionalProperties": {"type": "string"}}),
        ([{}, {"x": True}], {"type": "object", "properties": {"x": {"type": "boolean"}}}),
    ],
)
def test_schemas_are_inferred_from_events(values, schema):
    assert infer_schema_of(*({"value": each} for each in values))["properties"]["value"] == schema


def test_many_names_are_data():
    """If few events share the member names of an object, the object becomes a map."""
    events = [{"prices": {f"sku-{number}": number, f"sku-{number + 1}": 0}} for number in range(30)]

    assert infer_schema_of(*events)["properties"]["prices"] == {
        "type": "object",
        "additionalProperties": {"type": "integer"},
    }
    assert "enum" not in str(infer_schema_of(*[{"a": "x"}] * 20, has_enums=False))


def test_large_samples_take_bounded_memory():
    """However many names and levels there are, the proposal has the size of a schema, and the events are valid."""
    deep: dict = {}
    for _ in range(60):
        deep = {"x": deep, "y": [deep]} if len(str(deep)) < 10_000 else {"x": deep}
    events = [{f"m{batch}-{number}": {"a": {"b": number}} for number in range(3_000)} for batch in range(5)] + [deep]
    schema = infer_schema_of(*events)

    parse_submitted_schema(json.dumps(schema), category=Category.UNDEFINED)
    assert all(map(compile_validator(schema).accepts, events))


def test_places_that_are_merged_may_be_known_in_part():
    """A member of a map's value has no type in the proposal if it occurs too late to be counted."""
    crowd = {str(each): {f"m{number}": 1 for number in range(900)} for each in range(30)}
    events = [{"map": {"1": {"x": "text"}, "2": {}}}, {"crowd": crowd}, {"map": {"2": {"x": 5}}}]

    assert all(map(compile_validator(infer_schema_of(*events)).accepts, events))


def test_categories_are_recognized(run, tmp_path):
    """The proposed schema leaves out metadata and the envelope of a data event, so it can be registered."""
    metadata = {"eid": "105a76d8-db49-4144-ace7-e683e8f4ba46", "occurred_at": "2026-11-21T12:00:00Z"}
    data = {"metadata": metadata, "data_type": "x", "data_op": "C", "data": {"a": 1}}
    file = tmp_path / "events.ndjson"

    file.write_text(f"{json.dumps(data)}\n")
    done = run("schema", "infer", str(file))
    assert done.json == {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    assert "1 event of the category data" in done.err

    file.write_text(json.dumps([{"metadata": metadata, "a": "x"}]))
    assert run("schema", "infer", str(file)).json["required"] == ["a"]
    assert "metadata" in run("schema", "infer", str(file), "--category", "undefined").json["required"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "There are no events."),
        ('{"a": 1}\n[1]', "an event must be an object"),
        ('{"a": 1, "a": 2}', "Event 1: no broker would accept it"),
        ("{", "this is not JSON"),
        ('{"a":' + "[" * 100_000, "nested too deeply"),
    ],
)
def test_bad_events_are_refused(run, text, message):
    done = run("schema", "infer", "-", stdin=text)

    assert done.code == 2
    assert message in done.err


def test_events_of_an_event_type(run, api):
    """--event-type reads the newest events of each partition."""
    name = create_event_type(api, schema={"type": "object"}, category="undefined")["name"]
    assert run("schema", "infer", "--event-type", name).code == 2
    for number in range(3):
        assert run("publish", name, "-", stdin=json.dumps({"old" if number < 2 else "new": number})).code == 0

    assert set(run("schema", "infer", "--event-type", name).json["properties"]) == {"old", "new"}
    newest = run("schema", "infer", "--event-type", name, "--last", "1")
    assert set(newest.json["properties"]) == {"new"}
    assert "Read 1 event of the category undefined." in newest.err
    assert run("schema", "infer", "--event-type", name, "file").code == 2


# Models


@pytest.mark.parametrize("models", Models)
def test_schemas_of_models(run, tmp_path, monkeypatch, models):
    """Generating types from a schema, and a schema from these types, yields a schema that accepts the same events."""
    declarations = read_declarations([an_event_type(RICH, category=Category.BUSINESS)])
    (tmp_path / f"shop_{models}.py").write_text(write_python(declarations, models))
    monkeypatch.chdir(tmp_path)

    done = run("schema", "from-model", f"shop_{models}:OrderPlaced")
    assert done.code == 0, done.err
    assert "does not allow" not in done.err
    assert "metadata" not in done.json["properties"]
    assert {"count", "lines", "state"} <= set(done.json["required"])
    if models is not Models.DATACLASS:
        assert all(map(compile_validator(done.json).accepts, make_examples(RICH, 10)))


MODELS = '''
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal, Optional
from uuid import UUID
import msgspec, pydantic

class Tree(msgspec.Struct):
    children: list["Tree"] = []

class Wide(pydantic.BaseModel):
    """A wide one."""
    price: Decimal
    id: UUID
    kind: Literal["a"]
    count: Annotated[int, pydantic.Field(gt=0, lt=10)]
    pair: tuple[int, str]
    any: Any = None
    tree: Optional["Wide"] = None
    kinds: dict[str, list[float]] = {}

class Data(msgspec.Struct):
    metadata: dict[str, str]
    data_type: str
    data_op: Literal["C", "U"]
    data: Tree

class Bad(msgspec.Struct):
    what: complex

number = 1
'''


def test_schemas_of_recursive_and_constrained_models(run, tmp_path, monkeypatch):
    """Recursive models, tuples, bounds and literals become schemas that the broker understands."""
    (tmp_path / "shop_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)

    wide = run("schema", "from-model", "shop_models:Wide").json
    event = {"price": "1.50", "id": "105a76d8-db49-4144-ace7-e683e8f4ba46", "kind": "a", "count": 3, "pair": [1, "x"]}
    assert compile_validator(wide).accepts(event)
    for wrong in ({"kind": "b"}, {"count": 0}, {"count": 10}, {"pair": ["x", 1]}, {"tree": 1}, {"kinds": {"x": ["y"]}}):
        assert not compile_validator(wide).accepts(event | wrong), wrong
    tree = run("schema", "from-model", "shop_models:Tree").json
    assert not compile_validator(tree).accepts({"children": [{"children": [1]}]})
    data = run("schema", "from-model", "shop_models:Data")
    assert set(data.json["properties"]) == {"children"}


@pytest.mark.parametrize(
    "model", ["shop_bad", "shop_bad:Missing", "no.such.module:X", "shop_bad:number", "shop_bad:Bad"]
)
def test_bad_models_are_refused(run, tmp_path, monkeypatch, model):
    (tmp_path / "shop_bad.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    done = run("schema", "from-model", model)

    assert done.code == 2
    assert done.err.startswith("Error: ")


# Examples


@settings(max_examples=50)
@given(st.integers(0, 1_000_000))
def test_examples_are_valid_and_violations_break_one_rule(seed):
    """The broker accepts each example. It refuses each violation, and would accept it without its one rule."""
    schema = RandomSchemas(Random(seed)).root().schema
    try:
        examples = make_examples(schema, 3)
    except BadInput:
        return
    validator = compile_validator(schema)
    assert all(map(validator.accepts, examples))
    for each in break_rules(schema, examples).found:
        assert not validator.accepts(each.event)
        assert compile_validator(without_rule(schema, each.rule)).accepts(each.event)
        assert each.explanation == validator.explain(each.event)


def test_most_schemas_have_examples_and_most_rules_can_be_broken():
    """Only rare cases have no example or violation: schemas that contradict themselves, and rules that others imply."""
    made, found, unbroken = [], 0, 0
    for seed in range(60):
        schema = RandomSchemas(Random(seed)).root().schema
        try:
            examples = make_examples(schema, 3)
        except BadInput:
            continue
        made.append(seed)
        violations = break_rules(schema, examples)
        found += len(violations.found)
        unbroken += len(violations.unbroken)
    assert len(made) >= 57
    assert found > 2 * unbroken


KEYWORDS = {
    "type": {"type": "integer"},
    "enum": {"enum": ["x", 1]},
    "minLength": {"type": "string", "minLength": 3},
    "maxLength": {"type": "string", "maxLength": 3},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]+$"},
    "format": {"type": "string", "format": "ipv4"},
    "minimum": {"type": "integer", "minimum": 5},
    "maximum": {"type": "number", "maximum": -0.5},
    "exclusiveMinimum": {"type": "number", "minimum": 5, "exclusiveMinimum": True},
    "exclusiveMaximum": {"type": "number", "maximum": 5, "exclusiveMaximum": True},
    "multipleOf": {"type": "number", "multipleOf": 0.05},
    "minItems": {"type": "array", "minItems": 2},
    "maxItems": {"type": "array", "maxItems": 2},
    "uniqueItems": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "uniqueItems": True},
    "additionalItems": {"type": "array", "items": [{}, {}], "additionalItems": False},
    "minProperties": {"type": "object", "minProperties": 2},
    "maxProperties": {"type": "object", "maxProperties": 2},
    "required": {"type": "object", "properties": {"x": {}}, "required": ["x"]},
    "additionalProperties": {"type": "object", "properties": {"x": {}}, "additionalProperties": False},
    "dependencies": {"type": "object", "properties": {"x": {}, "y": {}}, "dependencies": {"x": ["y"]}},
    "anyOf": {"anyOf": [{"type": "integer"}, {"type": "boolean"}]},
    "oneOf": {"oneOf": [{"type": "integer"}, {"type": "boolean"}]},
    "not": {"not": {"enum": ["never"]}},
}
LATER_KEYWORDS = {
    "const": {"const": "x"},
    "contains": {"type": "array", "contains": {"type": "string"}},
    "propertyNames": {"type": "object", "properties": {"ab": {}}, "propertyNames": {"pattern": "^[a-z]+$"}},
    "if": {"type": "object", "properties": {"k": {"enum": ["a"]}, "x": {}, "y": {}},
           "if": {"required": ["x"]}, "then": {"required": ["y"]}},
}  # fmt: skip


@pytest.mark.parametrize("keyword", [*KEYWORDS, *LATER_KEYWORDS])
def test_every_keyword_is_broken(keyword):
    """For each keyword, at least one violation breaks only that rule."""
    schema = {"type": "object", "properties": {"value": {**KEYWORDS, **LATER_KEYWORDS}[keyword]}, "required": ["value"]}
    if keyword in LATER_KEYWORDS:
        schema["$schema"] = "http://json-schema.org/draft-07/schema#"

    found = break_rules(schema, make_examples(schema, 8)).found
    assert keyword in {each.rule.keyword for each in found if each.rule.steps[:2] == ("properties", "value")}


@pytest.mark.parametrize(
    "pattern",
    ["^\\p{Lu}+$", "^[[:alpha:]]+$", "(?i)^a[^b]b{2,}?c?$", "^\\d{4}-\\w+\\s\\S$", "x|y", "^(?P<n>ab)*\\z", "^.+$"],
)
def test_texts_match_patterns(pattern):
    """Proposed texts match patterns, including patterns that RE2 supports and Python does not."""
    assert make_examples(
        {"type": "object", "properties": {"x": {"type": "string", "pattern": pattern}}, "required": ["x"]}, 2
    )


def test_examples_can_be_published(run, api):
    """The broker accepts the examples of each category unchanged, even a second time, and refuses the violations."""
    for category in ("undefined", "business", "data"):
        strategies = [] if category == "undefined" else ["metadata_enrichment"]
        definition = a_definition(schema=RICH, category=category, enrichment_strategies=strategies)
        api.post("/event-types", json=definition).raise_for_status()
        name = definition["name"]
        events = run("schema", "example", name, "-n", "5")
        assert run("schema", "example", f"{name}@1.0.0", "-n", "5").out == events.out
        assert len(events.lines) == 5
        published = run("publish", name, "-", stdin=events.out)
        assert published.code == 0, published.err

        broken = run("schema", "example", name, "--invalid").lines
        assert len(broken) > 30
        for each in broken[::7]:
            refused = run("publish", name, "-", stdin=json.dumps(each["event"]))
            assert refused.code == 3, each
        assert each["at"].startswith("#/")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"properties": {"x": {"$ref": "#"}}, "required": ["x"]}, "it contains itself without end"),
        ({"properties": {"x": {"enum": ["a"], "minLength": 2}}, "required": ["x"]}, "expected minLength: 2"),
        ({"properties": {"x": {"type": "string", "minLength": 10**9}}, "required": ["x"]}, "No example was found"),
        ({"properties": {"x": {"type": "array", "minItems": 10**9}}, "required": ["x"]}, "No example was found"),
        ({"minProperties": 10**9}, "No example was found"),
        ({"properties": {"x": {"multipleOf": 1e-300, "minimum": 1e300}}, "required": ["x"]}, ""),
        ({"properties": {"x": {"pattern": "(((a{1,9}){1,9}){1,9}){1,9}"}}, "required": ["x"]}, ""),
    ],
)
def test_hostile_schemas_end(run, tmp_path, schema, message):
    """A hostile schema costs bounded work, and is refused with a sentence."""
    (tmp_path / "hostile.json").write_text(json.dumps({"type": "object", **schema}))
    done = run("schema", "example", str(tmp_path / "hostile.json"))

    assert done.code in ((2,) if message else (0, 2))
    assert message in done.err


def test_a_large_schema_ends():
    """A large schema gets examples within seconds, and violations of its first rules."""
    schema = {"type": "object", "properties": {f"m{number}": {"type": "string"} for number in range(1_500)}}
    violations = break_rules(schema, make_examples(schema, 1))

    assert len(violations.found) >= 10
    assert not violations.is_complete

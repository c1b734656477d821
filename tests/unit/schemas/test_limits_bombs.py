"""Schemas and events that are designed to take much time or memory are refused at a low cost."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from nakadi.model.outcomes import Invalid
from nakadi.schemas import limits
from nakadi.schemas.document import SchemaDocument
from nakadi.schemas.explanation import LONG_EXPLANATION_MAX_STEPS, explain_violations
from nakadi.schemas.formats import SchemaPatterns
from nakadi.schemas.limits import check_schema_length, check_schema_size
from nakadi.schemas.validation import compile_validator
from nakadi.schemas.values import MAX_EVENT_STEPS, StepsExhausted
from tests.support.environment import plain_environment
from tests.support.patience import measure_cpu

SEVEN = "http://json-schema.org/draft-07/schema#"

# Marks a case that takes about a second. It tests the same limit as the other cases of its test, and differs from them
# only in its large part.
long_case = partial(
    pytest.param,
    marks=pytest.mark.long(
        "tests/unit/schemas/test_limits_bombs.py::test_schemas_at_the_limits",
        "tests/unit/schemas/test_limits_bombs.py::test_events_that_take_too_long",
        "tests/unit/schemas/test_limits_bombs.py::test_explanations_that_take_too_long",
    ),
)


def split_off(long_ones: tuple[str, ...], bombs: Iterable[str]) -> list[Any]:
    """The names of the bombs; those that take long are marked as long cases."""
    return [long_case(name) if name in long_ones else name for name in bombs]


# Bombs in schemas. Each process of a test run imports this module, and the process that runs a test makes the test's
# bomb.


def _property_names(number: int) -> list[str]:
    return [f"p{each}" for each in range(number)]


def _deep_schema(keyword: str) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(limits.MAX_SCHEMA_DEPTH - 1):
        schema = {keyword: schema}
    return schema


def _referred_at_each_level() -> dict[str, Any]:
    """The innermost schema is part of all others, and each of the schemas is referred to."""
    levels, way = 40, "#/definitions/a"
    schema: dict[str, Any] = {"properties": {name: {"items": {}} for name in _property_names(4_000)}}
    references = {}
    for level in range(levels):
        schema = {"properties": {"a": schema}}
        references[f"r{level}"] = {"$ref": way + "/properties/a" * level}
    return {"definitions": {"a": schema}, "properties": references}


SCHEMA_BOMBS: dict[str, Callable[[], dict[str, Any]]] = {
    "many references to one": lambda: {
        "properties": {name: {"$ref": "#/definitions/a"} for name in _property_names(2_400)},
        "definitions": {"a": {"enum": [{"a": each} for each in range(2_400)]}},
    },
    "each level referred to": _referred_at_each_level,
    "many properties": lambda: {"properties": {name: {"type": "string"} for name in _property_names(4_950)}},
    "many required": lambda: {"required": _property_names(9_900), "additionalProperties": False},
    "many arrays": lambda: {"properties": {name: {"items": {}} for name in _property_names(4_950)}},
    "many alternatives": lambda: {"anyOf": [{"not": {"not": {}}} for _ in range(3_300)]},
    "many places": lambda: {"items": [{"type": "string"} for _ in range(4_950)]},
    "many definitions": lambda: {
        "properties": {name: {"$ref": f"#/definitions/{name}"} for name in _property_names(2_450)},
        "definitions": {name: {"type": "object"} for name in _property_names(2_450)},
    },
    "much sharing": lambda: {
        "$ref": "#/definitions/d0",
        "definitions": {f"d{each}": {"allOf": [{"$ref": f"#/definitions/d{each + 1}"}] * 10} for each in range(45)}
        | {"d45": {}},
    },
    "much allowed": lambda: {"properties": {name: {"enum": _property_names(4_900)} for name in _property_names(2)}},
    "long names": lambda: {"properties": {"x" * 12_000 + name: {"type": "string"} for name in _property_names(20)}},
    "large patterns": lambda: {
        "properties": {name: {"pattern": f"{name}?" + "x{0,1000}" * 5} for name in _property_names(4)}
    },
    "many patterns": lambda: {"patternProperties": {f"^{name}[a-z]{{1,200}}$": {} for name in _property_names(200)}},
    "deep not": lambda: _deep_schema("not"),
    "deep items": lambda: _deep_schema("items"),
}


PROGRAM = """
import json, resource, sys
from nakadi.schemas.validation import compile_validator
from tests.support.patience import measure_cpu

schema = json.loads(sys.stdin.read())
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
compile_validator({"pattern": "a", "format": "uri"})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
taken = measure_cpu(lambda: compile_validator(schema))
megabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
print(json.dumps([taken, megabytes]))
"""


@pytest.mark.parametrize("name", [long_case("many properties"), "many arrays", long_case("large patterns")])
def test_the_worst_schemas_within_the_limits(name):
    """Compiling the most demanding schemas takes a few seconds at most, and less than a hundred megabytes. (R157)"""
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(SCHEMA_BOMBS[name]()),
        env=plain_environment(PYTHONPATH=os.pathsep.join(sys.path)),
        capture_output=True,
        text=True,
        check=True,
    )
    taken, megabytes = json.loads(finished.stdout)

    assert taken < 1000
    assert megabytes < 100


@pytest.mark.parametrize(
    "name",
    split_off(
        (
            "many references to one",
            "many properties",
            "many arrays",
            "many alternatives",
            "many definitions",
            "much sharing",
        ),
        SCHEMA_BOMBS,
    ),
)
def test_schemas_at_the_limits(name):
    """Schemas of the maximum size are compiled or refused quickly, and check events quickly. (R157)"""
    schema = SCHEMA_BOMBS[name]()
    check_schema_length(json.dumps(schema))
    check_schema_size(schema)

    def judge():
        with suppress(Invalid, StepsExhausted):
            compile_validator(schema).accepts({})

    assert measure_cpu(judge) < 5000


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {name: {"type": "string"} for name in _property_names(20_000)}},
        {"enum": list(range(20_000))},
        {"items": [[[[[[_deep_schema("items")]]]]]]},
        {"pattern": "a" * 20_000},
        {"allOf": [{"pattern": f"{each}a{{1000}}"} for each in range(120)]},
        {"allOf": [{"pattern": rf"\pL{{{each}}}"} for each in range(20, 40)]},
        {"pattern": r"(?i)" + r"\pL{1000}" * 100},
        {"pattern": "(((a{1,30}){1,30}){1,30}){1,30}"},
    ],
)
def test_schemas_beyond_the_limits(schema):
    """Schemas beyond the limits are refused quickly. (R157)"""

    def refuse():
        with pytest.raises(Invalid):
            compile_validator(schema)

    assert measure_cpu(refuse) < 5000


# Bombs in events


def _chain(combinator: str) -> dict[str, Any]:
    links = {f"d{each}": {combinator: [{"$ref": f"#/definitions/d{each + 1}"}] * 10} for each in range(40)}
    return {"$ref": "#/definitions/d0", "definitions": {**links, "d40": {"type": "string"}}}


def _nest_value(levels: int, value: Any) -> Any:
    for _ in range(levels):
        value = {"a": value}
    return value


def _pair_value(levels: int, value: Any) -> Any:
    for _ in range(levels):
        value = [value, 1]
    return value


TWICE = {"properties": {"a": {"$ref": "#"}}}
EVENT_BOMBS: dict[str, Callable[[], tuple[dict[str, Any], Any]]] = {
    "one value, many schemas": lambda: (_chain("allOf"), "a"),
    "one value, many alternatives": lambda: (_chain("anyOf"), 5),
    "twice as much at each level": lambda: ({"allOf": [TWICE, TWICE]}, _nest_value(500, {})),
    "many values, many schemas": lambda: (
        {"items": {"allOf": [{"minimum": -each} for each in range(3_000)]}},
        [1] * 400_000,
    ),
    "objects without members": lambda: (
        {"items": {"properties": {name: {} for name in _property_names(4_000)}}},
        [{}] * 300_000,
    ),
    "the same list again and again": lambda: (
        {"uniqueItems": True, "items": {"$ref": "#"}},
        _pair_value(500, list(range(50_000))),
    ),
    "many multiples": lambda: ({"items": {"allOf": [{"multipleOf": 0.1}] * 2_000}}, [1.5] * 200_000),
    "many formats": lambda: ({"allOf": [{"format": "uri"}] * 3_000}, "a" * 900_000),
    "slow patterns": lambda: ({"allOf": [{"pattern": f"(a?){{{each}}}b"} for each in range(300, 390)]}, "a" * 900_000),
    "many names": lambda: (
        {"patternProperties": {f"{each}a$": {} for each in range(190)}},
        dict.fromkeys(_property_names(90_000), 1),
    ),
    "much allowed": lambda: ({"items": {"enum": [{"a": each} for each in range(3_000)]}}, [{"a": 5_000}] * 100_000),
}


@pytest.mark.parametrize(
    "name",
    split_off(
        ("many values, many schemas", "objects without members", "many multiples", "one value, many alternatives"),
        EVENT_BOMBS,
    ),
)
def test_events_that_take_too_long(name):
    """The work for one event is limited, and every event gets an answer within that limit. (P56, P71)"""
    schema, event = EVENT_BOMBS[name]()
    validator = compile_validator(schema)

    def judge():
        with suppress(StepsExhausted):
            assert not validator.accepts(event, [MAX_EVENT_STEPS // 20])
        assert validator.explain(event).startswith("#")

    assert measure_cpu(judge) < 5000


OBJECT = {"properties": {name: {} for name in _property_names(3_000)}, "additionalProperties": False}
EXPLANATION_BOMBS: dict[str, Callable[[], tuple[dict[str, Any], Any]]] = {
    "large values to quote": lambda: ({"allOf": [{"enum": [1]}] * 3_000}, [[0] * 300_000]),
    "large constants": lambda: (
        {"$schema": SEVEN, "allOf": [{"const": [each]} for each in range(2_000)]},
        [[0] * 300_000],
    ),
    "a large schema to quote": lambda: (
        {"items": {"anyOf": [{"not": {"enum": _property_names(4_900), "maxLength": 1}}]}},
        ["p1"] * 30_000,
    ),
    "allowed values": lambda: ({"items": {"enum": [{"a": [{"b": each} for each in range(3_000)]}]}}, [1] * 100_000),
    "many members": lambda: (
        {"allOf": [{"additionalProperties": {}}] * 3_000, "required": ["z"]},
        dict.fromkeys(_property_names(300_000)),
    ),
    "known members": lambda: ({"allOf": [OBJECT] * 3, "required": ["z"]}, dict.fromkeys(_property_names(3_000))),
    "items beyond those that are spoken of": lambda: (
        {"allOf": [{"items": [{}]}] * 3_000, "type": "string"},
        [1] * 300_000,
    ),
    "names": lambda: (
        {"$schema": SEVEN, "allOf": [{"propertyNames": {}}] * 3_000, "type": "string"},
        dict.fromkeys(_property_names(300_000)),
    ),
    "long names": lambda: (
        {"additionalProperties": {"type": "string"}},
        {f"{'x' * 100_000}{each}": 1 for each in range(100)},
    ),
    "many types": lambda: ({"items": {"type": ["string"] * 9_000}}, [1] * 30_000),
    "long references": lambda: (
        {"definitions": {"a" * 100_000: {"type": "string"}}, "items": {"$ref": f"#/definitions/{'a' * 100_000}"}},
        [1] * 30_000,
    ),
}


@pytest.mark.parametrize("name", split_off(("large values to quote",), EXPLANATION_BOMBS))
def test_explanations_that_take_too_long(name):
    """The faults of an event are reported with limited work and in a text of limited length. (P71)"""
    schema, event = EXPLANATION_BOMBS[name]()
    document = SchemaDocument.from_root(schema)
    told: list[str] = []

    assert (
        measure_cpu(
            lambda: told.append(explain_violations(document, SchemaPatterns(), event, LONG_EXPLANATION_MAX_STEPS)[0])
        )
        < 5000
    )
    assert len(told[0]) < 300_000


def test_large_events():
    """The largest events of an ordinary event type stay far below every limit. (P56)"""
    line = {"type": "object", "properties": {"sku": {"type": "string", "pattern": "^[a-z]+$"}}, "required": ["sku"]}
    validator = compile_validator({"properties": {"lines": {"type": "array", "items": line, "uniqueItems": True}}})
    names = ["".join(chr(97 + int(digit)) for digit in str(each)) for each in range(40_000)]

    assert validator.accepts({"lines": [{"sku": each} for each in names]})


def test_values_that_collide():
    """Values with the same hash, which an attacker may choose, do not slow down a comparison of all values with each
    other. (P56)
    """
    validator = compile_validator({"uniqueItems": True})
    multiples = [[float(2**61 - 1) * each] for each in range(50_000)]

    def judge():
        assert validator.accepts(multiples)

    assert measure_cpu(judge) < 5000

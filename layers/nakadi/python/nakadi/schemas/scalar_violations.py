"""Why a value is not valid, as far as that can be told without looking into it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nakadi.schemas.equality import all_differ, exact, is_multiple, key
from nakadi.schemas.formats import FORMATS
from nakadi.schemas.patterns import Patterns
from nakadi.schemas.steps import MOST_STEPS, Steps, spend
from nakadi.schemas.violation import cut, mismatch, quoted

Schema = Mapping[str, Any]
Reasons = Callable[[Schema, Any, Patterns, Steps], Iterator[str]]

_IS_A: Mapping[str, Callable[[Any], bool]] = {
    "array": lambda value: isinstance(value, list),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "string": lambda value: isinstance(value, str),
}

_CHARACTERS_PER_STEP = 4


def fits(value: Any, types: str | list[str]) -> bool:
    return any(_IS_A[each](value) for each in (types if isinstance(types, list) else [types]))


def _type(schema: Schema, value: Any, _: Patterns, __: Steps) -> Iterator[str]:
    """Of a list of types none fits: that is told as for `anyOf`, by the explanation."""
    expected = schema.get("type")
    if isinstance(expected, str) and "enum" not in schema and not fits(value, expected):
        yield mismatch(expected, value)


def _enum(schema: Schema, value: Any, _: Patterns, steps: Steps) -> Iterator[str]:
    """A value that is not even one of the allowed ones needs not be told that it is of the wrong type, too."""
    if "enum" not in schema:
        return
    spend(steps, len(schema["enum"]))
    if key(value, steps) not in {key(each, [MOST_STEPS]) for each in schema["enum"]}:
        yield f"{quoted(value)} is not a valid enum value"
    elif "type" in schema and not fits(value, schema["type"]):
        expected = schema["type"]
        yield mismatch(expected if isinstance(expected, str) else expected[0], value)


def _string(schema: Schema, value: Any, patterns: Patterns, steps: Steps) -> Iterator[str]:
    if not isinstance(value, str):
        return
    if len(value) < schema.get("minLength", 0):
        yield f"expected minLength: {schema['minLength']}, actual: {len(value)}"
    if "maxLength" in schema and len(value) > schema["maxLength"]:
        yield f"expected maxLength: {schema['maxLength']}, actual: {len(value)}"
    if "pattern" in schema and not patterns.of(schema["pattern"]).found_in(value, steps):
        yield f"string [{cut(value)}] does not match pattern {cut(schema['pattern'])}"
    if schema.get("format") in FORMATS:
        spend(steps, len(value) // _CHARACTERS_PER_STEP)
        problem = FORMATS[schema["format"]](value)
        yield from [] if problem is None else [cut(problem)]


def _number(schema: Schema, value: Any, _: Patterns, __: Steps) -> Iterator[str]:
    if not fits(value, "number"):
        return
    for keyword, broken, inclusive, exclusive in _BOUNDS:
        bound = schema.get(keyword)
        if bound is not None and broken(value, bound):
            yield f"{value} is not {inclusive} {bound}"
        # The oldest draft has a flag here, the others a bound of its own.
        limit = schema.get(f"exclusive{keyword.capitalize()}")
        if limit is True and value == bound:
            yield f"{value} is not {exclusive} {bound}"
        elif limit is not None and not isinstance(limit, bool) and (value == limit or broken(value, limit)):
            yield f"{value} is not {exclusive} {limit}"
    if "multipleOf" in schema and not is_multiple(value, exact(schema["multipleOf"])):
        yield f"{value} is not a multiple of {schema['multipleOf']}"


_BOUNDS: tuple[tuple[str, Callable[[float, float], bool], str, str], ...] = (
    ("minimum", lambda value, bound: value < bound, "greater or equal to", "greater than"),
    ("maximum", lambda value, bound: value > bound, "less or equal to", "less than"),
)


def _object_size(schema: Schema, value: Any, _: Patterns, __: Steps) -> Iterator[str]:
    if isinstance(value, dict):
        if len(value) < schema.get("minProperties", 0):
            yield f"minimum size: [{schema['minProperties']}], found: [{len(value)}]"
        if "maxProperties" in schema and len(value) > schema["maxProperties"]:
            yield f"maximum size: [{schema['maxProperties']}], found: [{len(value)}]"


def _array_size(schema: Schema, value: Any, _: Patterns, steps: Steps) -> Iterator[str]:
    if isinstance(value, list):
        if len(value) < schema.get("minItems", 0):
            yield f"expected minimum item count: {schema['minItems']}, found: {len(value)}"
        if "maxItems" in schema and len(value) > schema["maxItems"]:
            yield f"expected maximum item count: {schema['maxItems']}, found: {len(value)}"
        if schema.get("uniqueItems") and not all_differ(value, steps):
            yield "array items are not unique"


def _required(schema: Schema, value: Any, _: Patterns, __: Steps) -> Iterator[str]:
    if isinstance(value, dict):
        for name in dict.fromkeys(schema.get("required", ())):
            if name not in value:
                yield f"required key [{cut(name)}] not found"


def _const(schema: Schema, value: Any, _: Patterns, steps: Steps) -> Iterator[str]:
    if "const" in schema and key(value, steps) != key(schema["const"], [MOST_STEPS]):
        yield f"{quoted(value)} is not the expected value {quoted(schema['const'])}"


DRAFT_4: tuple[Reasons, ...] = (_type, _enum, _string, _number, _object_size, _array_size, _required)
DRAFT_6: tuple[Reasons, ...] = (*DRAFT_4, _const)

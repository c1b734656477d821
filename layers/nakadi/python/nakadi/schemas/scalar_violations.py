"""Why a value is not valid, as far as that can be told without looking into it: one reason for each keyword."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import gt, lt
from typing import Any

from nakadi.schemas.equality import all_differ, exact, is_multiple, key
from nakadi.schemas.formats import FORMATS
from nakadi.schemas.json_text import text_of
from nakadi.schemas.patterns import Patterns
from nakadi.schemas.steps import Steps, spend
from nakadi.schemas.violation import cut, quoted

Schema = Mapping[str, Any]
_Sized = str | list[Any] | dict[str, Any]
Reason = Callable[[Schema, Any, Patterns, Steps], str | None]

_IS_A: Mapping[str, Callable[[Any], bool]] = {
    "array": lambda value: isinstance(value, list),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "string": lambda value: isinstance(value, str),
}

_STEPS_PER_CHARACTER = 2
_STEPS_PER_ALLOWED_VALUE = 20
_STEPS_PER_MULTIPLE = 100


def fits(value: Any, type_name: str) -> bool:
    return _IS_A[type_name](value)


def _enum(schema: Schema, value: Any, _: Patterns, steps: Steps) -> str | None:
    spend(steps, len(schema["enum"]) * _STEPS_PER_ALLOWED_VALUE)
    allowed = {key(each, steps) for each in schema["enum"]}
    return None if key(value, steps) in allowed else f"{quoted(value, steps)} is not a valid enum value"


def _const(schema: Schema, value: Any, _: Patterns, steps: Steps) -> str | None:
    if key(value, steps) == key(schema["const"], steps):
        return None
    return f"{quoted(value, steps)} is not the expected value {quoted(schema['const'], steps)}"


def _pattern(schema: Schema, value: Any, patterns: Patterns, steps: Steps) -> str | None:
    if not isinstance(value, str) or patterns.of(schema["pattern"]).found_in(value, steps):
        return None
    return f"string [{cut(value)}] does not match pattern {cut(schema['pattern'])}"


def _format(schema: Schema, value: Any, _: Patterns, steps: Steps) -> str | None:
    if not isinstance(value, str) or schema["format"] not in FORMATS:
        return None
    spend(steps, len(value) * _STEPS_PER_CHARACTER)
    problem = FORMATS[schema["format"]](value)
    return None if problem is None else cut(problem)


def _minimum(schema: Schema, value: Any, _: Patterns, __: Steps) -> str | None:
    bound = schema["minimum"]
    if not fits(value, "number"):
        return None
    if schema.get("exclusiveMinimum") is True:
        return f"{text_of(value)} is not greater than {text_of(bound)}" if value <= bound else None
    return f"{text_of(value)} is not greater or equal to {text_of(bound)}" if value < bound else None


def _maximum(schema: Schema, value: Any, _: Patterns, __: Steps) -> str | None:
    bound = schema["maximum"]
    if not fits(value, "number"):
        return None
    if schema.get("exclusiveMaximum") is True:
        return f"{text_of(value)} is not less than {text_of(bound)}" if value >= bound else None
    return f"{text_of(value)} is not less or equal to {text_of(bound)}" if value > bound else None


def _exclusive_minimum(schema: Schema, value: Any, _: Patterns, __: Steps) -> str | None:
    bound = schema["exclusiveMinimum"]
    broken = not isinstance(bound, bool) and fits(value, "number") and value <= bound
    return f"{text_of(value)} is not greater than {text_of(bound)}" if broken else None


def _exclusive_maximum(schema: Schema, value: Any, _: Patterns, __: Steps) -> str | None:
    bound = schema["exclusiveMaximum"]
    broken = not isinstance(bound, bool) and fits(value, "number") and value >= bound
    return f"{text_of(value)} is not less than {text_of(bound)}" if broken else None


def _multiple_of(schema: Schema, value: Any, _: Patterns, steps: Steps) -> str | None:
    spend(steps, _STEPS_PER_MULTIPLE)
    if not fits(value, "number") or is_multiple(value, exact(schema["multipleOf"])):
        return None
    return f"{text_of(value)} is not a multiple of {text_of(schema['multipleOf'])}"


def _size(keyword: str, kind: type[_Sized], is_broken: Callable[[int, int], bool], words: str) -> Reason:
    def reason(schema: Schema, value: Any, _: Patterns, __: Steps) -> str | None:
        bound = schema[keyword]
        broken = isinstance(value, kind) and is_broken(len(value), bound)
        return words.format(bound, len(value)) if broken else None

    return reason


def _unique(schema: Schema, value: Any, _: Patterns, steps: Steps) -> str | None:
    broken = schema["uniqueItems"] and isinstance(value, list) and not all_differ(value, steps)
    return "array items are not unique" if broken else None


# The whole of what a schema says, in the eyes of clients: where the value is none of these, nothing else is told.
VALUES: Mapping[str, Reason] = {"enum": _enum, "const": _const}

# In the order in which they are told.
REASONS: Mapping[str, Reason] = {
    "minLength": _size("minLength", str, lt, "expected minLength: {}, actual: {}"),
    "maxLength": _size("maxLength", str, gt, "expected maxLength: {}, actual: {}"),
    "pattern": _pattern,
    "format": _format,
    "minimum": _minimum,
    "exclusiveMinimum": _exclusive_minimum,
    "maximum": _maximum,
    "exclusiveMaximum": _exclusive_maximum,
    "multipleOf": _multiple_of,
    "minItems": _size("minItems", list, lt, "expected minimum item count: {}, found: {}"),
    "maxItems": _size("maxItems", list, gt, "expected maximum item count: {}, found: {}"),
    "uniqueItems": _unique,
    "minProperties": _size("minProperties", dict, lt, "minimum size: [{}], found: [{}]"),
    "maxProperties": _size("maxProperties", dict, gt, "maximum size: [{}], found: [{}]"),
}

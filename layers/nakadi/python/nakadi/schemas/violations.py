"""What is wrong with an event, in the words that clients of the API know.

Scalar values get one reason for each keyword that they break.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from operator import gt, lt
from typing import Any

from nakadi.schemas.bounds import Steps, spend
from nakadi.schemas.document import escaped
from nakadi.schemas.formats import FORMATS
from nakadi.schemas.patterns import Patterns
from nakadi.schemas.values import all_differ, exact, is_multiple, key, text_of

MOST_LINES = 100

_MOST_QUOTED = 1_000
_STEPS_PER_QUOTED_CHARACTER = 5
_STEPS_PER_SORTED_NAME = 5

_EXPECTED = {
    "array": "expected type: JSONArray",
    "boolean": "expected type: Boolean",
    "integer": "expected type: Number",
    "null": "expected: null",
    "number": "expected type: Number",
    "object": "expected type: JSONObject",
    "string": "expected type: String",
}

_FOUND = {bool: "Boolean", float: "Double", str: "String", list: "JSONArray", dict: "JSONObject", type(None): "Null"}


@dataclass(frozen=True, slots=True)
class Violation:
    """What is wrong at a place of the event, and what else is wrong in there that caused it."""

    pointer: str
    text: str
    causes: tuple[Violation, ...] = ()
    count: int = field(init=False)
    """How many there are in here, this one if it has no causes."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", sum(each.count for each in self.causes) or 1)

    def lines(self) -> Iterator[str]:
        yield f"{cut(self.pointer)}: {self.text}"
        for each in self.causes:
            yield from each.lines()


def together(pointer: str, violations: tuple[Violation, ...]) -> Violation | None:
    """Several are told as one that counts them."""
    if len(violations) < 2:
        return violations[0] if violations else None
    count = sum(each.count for each in violations)
    number = str(count) if count <= MOST_LINES else f"more than {MOST_LINES}"
    return Violation(pointer, f"{number} schema violations found", violations)


def mismatch(type_name: str, value: Any) -> str:
    expected = "expected type: Integer" if type_name == "integer" and isinstance(value, float) else _EXPECTED[type_name]
    return f"{expected}, found: {_name_of_type(value)}"


def _name_of_type(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return "Integer" if -(2**31) <= value < 2**31 else "Long"
    return _FOUND[type(value)]


def member(pointer: str, name: str) -> str:
    """The place of a member of the object at `pointer`."""
    return f"{pointer}/{cut(escaped(name[: _MOST_QUOTED + 1]))}"


def quoted(value: Any, steps: Steps) -> str:
    """Texts as they are, objects and arrays as JSON, and numbers as Java writes them."""
    room = [_MOST_QUOTED]
    beginning = _beginning(value, room, steps)
    spend(steps, (_MOST_QUOTED - room[0]) * _STEPS_PER_QUOTED_CHARACTER)
    return cut(text_of(beginning))


def _beginning(value: Any, room: list[int], steps: Steps) -> Any:
    """A value that is written like this one as far as there is room, and is little more than that."""
    if isinstance(value, str):
        room[0] -= min(len(value), _MOST_QUOTED + 1)
        return value[: _MOST_QUOTED + 1]
    room[0] -= 1
    if isinstance(value, list):
        return [_beginning(each, room, steps) for each in takewhile(lambda _: room[0] >= 0, value)]
    if isinstance(value, dict):
        spend(steps, len(value) * _STEPS_PER_SORTED_NAME)
        names = takewhile(lambda _: room[0] >= 0, sorted(value))
        return {_beginning(name, room, steps): _beginning(value[name], room, steps) for name in names}
    return value


def cut(text: str) -> str:
    return text if len(text) <= _MOST_QUOTED else f"{text[:_MOST_QUOTED]}…"


# Values that are not looked into --------------------------------------------------------------------------------------

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

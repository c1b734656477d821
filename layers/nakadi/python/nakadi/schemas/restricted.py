"""The restricted language of mode `compatible`: these keywords, with values as draft 4 has them, and no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nakadi.model.outcomes import Invalid
from nakadi.schemas.json_types import canonical, fits, type_name
from nakadi.schemas.loading import TYPES
from nakadi.schemas.place import ROOT, Place
from nakadi.schemas.telling import worth_telling

# What is wrong with a value, as the way to it from where it stands and the reason.
Fault = tuple[str, str]
Rule = Callable[[Any], Iterator[Fault]]

JAVA_NAMES = {"JsonObject": "JSONObject", "JsonArray": "JSONArray"}


def check_restricted(schema: Mapping[str, Any]) -> None:
    faults = (f"Invalid schema found in [{place}]: {reason}" for place, reason in faults_in(schema))
    told = list(worth_telling(faults, str))
    if told:
        raise Invalid(f"Invalid schema: {', '.join(told)}")


def faults_in(schema: Any) -> Iterator[Fault]:
    """Every fault, with the place where it is."""
    waiting: list[tuple[Place, Any]] = [(ROOT, schema)]
    while waiting:
        place, value = waiting.pop()
        found = list(_not_a("JsonObject", value))
        if not found:
            found = [*_extraneous(value), *_missing_bounds(value), *_faulty_values(value)]
            waiting.extend(reversed([(place / way, each) for way, each in _schemas_within(value)]))
        yield from ((f"{place.pointer}{way}", reason) for way, reason in found)


def _extraneous(schema: Mapping[str, Any]) -> Iterator[Fault]:
    for keyword in schema:
        if keyword not in RULES:
            yield "", f"extraneous key [{keyword}] is not permitted"


def _missing_bounds(schema: Mapping[str, Any]) -> Iterator[Fault]:
    for keyword, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if keyword in schema and bound not in schema:
            yield "", f"property [{bound}] is required"


def _faulty_values(schema: Mapping[str, Any]) -> Iterator[Fault]:
    for keyword, value in schema.items():
        if keyword in RULES:
            yield from ((f"/{keyword}{way}", reason) for way, reason in RULES[keyword](value))


def _schemas_within(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for keyword, value in schema.items():
        match value:
            case dict() if keyword in _NAMED_SCHEMAS:
                named = ((f"{keyword}/{name}", each) for name, each in value.items())
                yield from (entry for entry in named if keyword != "dependencies" or not isinstance(entry[1], list))
            case dict() if keyword in _SCHEMA_OR_OTHER:
                yield keyword, value
            case list() if keyword in _LISTED_SCHEMAS:
                yield from ((f"{keyword}/{index}", each) for index, each in enumerate(value))


def _not_a(wanted: str, value: Any) -> Iterator[Fault]:
    if not fits(value, wanted):
        found = type_name(value)
        yield "", f"expected type: {JAVA_NAMES.get(wanted, wanted)}, found: {JAVA_NAMES.get(found, found)}"


def _anything(_: Any) -> Iterator[Fault]:
    yield from ()


def _string(value: Any) -> Iterator[Fault]:
    yield from _not_a("String", value)


def _boolean(value: Any) -> Iterator[Fault]:
    yield from _not_a("Boolean", value)


def _number(value: Any) -> Iterator[Fault]:
    yield from _not_a("Number", value)


def _object(value: Any) -> Iterator[Fault]:
    yield from _not_a("JsonObject", value)


def _positive(value: Any) -> Iterator[Fault]:
    if fits(value, "Number") and value <= 0:
        yield "", f"{value} is not greater than 0"
    yield from _number(value)


def _count(value: Any) -> Iterator[Fault]:
    if fits(value, "Integer") and value < 0:
        yield "", f"{value} is not greater or equal to 0"
    yield from _not_a("Integer", value)


def _some(value: Any) -> Iterator[Fault]:
    if value == []:
        yield "", "expected minimum item count: 1, found: 0"
    yield from _not_a("JsonArray", value)


def _distinct(value: Any) -> Iterator[Fault]:
    yield from _some(value)
    if isinstance(value, list) and len({canonical(each) for each in value}) < len(value):
        yield "", "array items are not unique"


def _distinct_strings(value: Any) -> Iterator[Fault]:
    yield from _distinct(value)
    for index, each in enumerate(value if isinstance(value, list) else ()):
        yield from ((f"/{index}", reason) for _, reason in _string(each))


def _simple_type(value: Any) -> Iterator[Fault]:
    if not isinstance(value, str) or value not in TYPES:
        yield "", f"{value} is not a valid enum value"


def _type(value: Any) -> Iterator[Fault]:
    if not isinstance(value, list):
        yield from _simple_type(value)
        return
    yield from _distinct(value)
    for index, each in enumerate(value):
        yield from ((f"/{index}", reason) for _, reason in _simple_type(each))


def _schema_or_boolean(value: Any) -> Iterator[Fault]:
    if not isinstance(value, bool):
        yield from _object(value)


def _schema_or_some(value: Any) -> Iterator[Fault]:
    yield from _some(value) if isinstance(value, list) else _object(value)


def _schemas_or_names(value: Any) -> Iterator[Fault]:
    yield from _object(value)
    for name, each in value.items() if isinstance(value, dict) else ():
        if isinstance(each, list):
            yield from ((f"/{name}{way}", reason) for way, reason in _distinct_strings(each))


_NAMED_SCHEMAS = frozenset({"definitions", "properties", "patternProperties", "dependencies"})
_LISTED_SCHEMAS = frozenset({"items", "allOf", "anyOf", "oneOf"})
_SCHEMA_OR_OTHER = frozenset({"items", "additionalProperties"})

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("id", "$schema", "$ref", "title", "description", "pattern", "format"), _string),
    "default": _anything,
    "multipleOf": _positive,
    **dict.fromkeys(("maximum", "minimum"), _number),
    **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum", "uniqueItems"), _boolean),
    **dict.fromkeys(("maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"), _count),
    "items": _schema_or_some,
    "required": _distinct_strings,
    "additionalProperties": _schema_or_boolean,
    **dict.fromkeys(("definitions", "properties", "patternProperties"), _object),
    "dependencies": _schemas_or_names,
    "enum": _distinct,
    "type": _type,
    **dict.fromkeys(("allOf", "anyOf", "oneOf"), _some),
}

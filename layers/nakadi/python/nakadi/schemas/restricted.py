"""The restricted language of mode `compatible`: these keywords, with values as draft 4 has them, and no others.

Where a value may be one thing or another and is neither, what speaks against both is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nakadi.model.outcomes import Invalid
from nakadi.schemas.formats import FORMATS
from nakadi.schemas.json_text import text_of
from nakadi.schemas.json_types import canonical, fits, type_name
from nakadi.schemas.loading import TYPES
from nakadi.schemas.place import ROOT, Place
from nakadi.schemas.steps import MOST_STEPS
from nakadi.schemas.telling import worth_telling
from nakadi.schemas.violation import quoted

Fault = tuple[Place, str]
Rule = Callable[[Place, Any], Iterator[Fault]]

JAVA_NAMES = {"JsonObject": "JSONObject", "JsonArray": "JSONArray"}


def check_restricted(schema: Mapping[str, Any]) -> None:
    faults = (f"Invalid schema found in [{place.pointer}]: {reason}" for place, reason in faults_in(schema))
    told = list(worth_telling(faults, str))
    if told:
        raise Invalid(f"Invalid schema: {', '.join(told)}")


def faults_in(schema: Any) -> Iterator[Fault]:
    """Every fault, with the place where it is. A schema that is nested deeply was refused before."""
    return _schema(ROOT, schema)


def _schema(place: Place, value: Any) -> Iterator[Fault]:
    if not isinstance(value, dict):
        yield from _object(place, value)
        return
    for keyword, bound in (("exclusiveMaximum", "maximum"), ("exclusiveMinimum", "minimum")):
        if keyword in value and bound not in value:
            yield place, f"property [{bound}] is required"
    for keyword in value:
        if keyword not in RULES:
            yield place, f"extraneous key [{keyword}] is not permitted"
    for keyword, each in value.items():
        if keyword in RULES:
            yield from RULES[keyword](place / keyword, each)


def _either(first: Rule, second: Rule) -> Rule:
    def rule(place: Place, value: Any) -> Iterator[Fault]:
        against_first = list(first(place, value))
        against_second = list(second(place, value)) if against_first else []
        if against_second:
            yield from against_first
            yield from against_second

    return rule


def _not_a(wanted: str, place: Place, value: Any) -> Iterator[Fault]:
    if not fits(value, wanted):
        found = type_name(value)
        yield place, f"expected type: {JAVA_NAMES.get(wanted, wanted)}, found: {JAVA_NAMES.get(found, found)}"


def _anything(_: Place, __: Any) -> Iterator[Fault]:
    yield from ()


def _string(place: Place, value: Any) -> Iterator[Fault]:
    yield from _not_a("String", place, value)


def _uri(place: Place, value: Any) -> Iterator[Fault]:
    problem = FORMATS["uri"](value) if isinstance(value, str) else None
    yield from _string(place, value) if problem is None else iter([(place, problem)])


def _boolean(place: Place, value: Any) -> Iterator[Fault]:
    yield from _not_a("Boolean", place, value)


def _number(place: Place, value: Any) -> Iterator[Fault]:
    yield from _not_a("Number", place, value)


def _object(place: Place, value: Any) -> Iterator[Fault]:
    yield from _not_a("JsonObject", place, value)


def _list(place: Place, value: Any) -> Iterator[Fault]:
    yield from _not_a("JsonArray", place, value)


def _positive(place: Place, value: Any) -> Iterator[Fault]:
    if fits(value, "Number") and value <= 0:
        yield place, f"{text_of(value)} is not greater than 0"
    yield from _number(place, value)


def _count(place: Place, value: Any) -> Iterator[Fault]:
    if isinstance(value, float):
        yield place, "expected type: Integer, found: Double"
    elif fits(value, "Number") and value < 0:
        yield place, f"{value} is not greater or equal to 0"
    yield from _number(place, value)


def _some(place: Place, value: Any) -> Iterator[Fault]:
    if value == []:
        yield place, "expected minimum item count: 1, found: 0"
    yield from _list(place, value)


def _all_different(place: Place, value: Any) -> Iterator[Fault]:
    if isinstance(value, list) and len({canonical(each) for each in value}) < len(value):
        yield place, "array items are not unique"


def _each(rule: Rule, place: Place, value: Any) -> Iterator[Fault]:
    for index, each in enumerate(value if isinstance(value, list) else ()):
        yield from rule(place / str(index), each)


def _values(place: Place, value: Any) -> Iterator[Fault]:
    yield from _some(place, value)
    yield from _all_different(place, value)


def _names(place: Place, value: Any) -> Iterator[Fault]:
    yield from _list(place, value)
    yield from _all_different(place, value)
    yield from _each(_string, place, value)


def _schemas(place: Place, value: Any) -> Iterator[Fault]:
    yield from _some(place, value)
    yield from _each(_schema, place, value)


def _type(place: Place, value: Any) -> Iterator[Fault]:
    if not isinstance(value, str) or value not in TYPES:
        yield place, f"{quoted(value, [MOST_STEPS])} is not a valid enum value"


def _types(place: Place, value: Any) -> Iterator[Fault]:
    yield from _values(place, value)
    yield from _each(_type, place, value)


def _named(rule: Rule) -> Rule:
    def named(place: Place, value: Any) -> Iterator[Fault]:
        yield from _object(place, value)
        for name, each in value.items() if isinstance(value, dict) else ():
            yield from rule(place / name, each)

    return named


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("id", "title", "description", "pattern", "format"), _string),
    **dict.fromkeys(("$schema", "$ref"), _uri),
    "default": _anything,
    "multipleOf": _positive,
    **dict.fromkeys(("maximum", "minimum"), _number),
    **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum", "uniqueItems"), _boolean),
    **dict.fromkeys(("maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"), _count),
    "items": _either(_schema, _schemas),
    "required": _names,
    "additionalProperties": _either(_boolean, _schema),
    **dict.fromkeys(("definitions", "properties", "patternProperties"), _named(_schema)),
    "dependencies": _named(_either(_schema, _names)),
    "enum": _values,
    "type": _either(_type, _types),
    **dict.fromkeys(("allOf", "anyOf", "oneOf"), _schemas),
}

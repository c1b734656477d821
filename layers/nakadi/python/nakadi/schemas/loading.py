"""Whether a schema can be used at all: words of the right kind, references that lead somewhere, patterns of RE2.

Only what is in use is judged, that is what can be reached from the root; an unused definition may be anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from nakadi.model.outcomes import Invalid
from nakadi.schemas.document import (
    COMBINATORS,
    IN_PLACE,
    ROOT,
    Document,
    Draft,
    Found,
    SchemaPath,
    is_local,
    member,
    reachable,
    referred,
    steps_of,
    subschemas,
)
from nakadi.schemas.patterns import BadPattern, Patterns
from nakadi.schemas.values import fits, type_name

TYPES = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})

# How many schemas may judge one and the same value, one inside the other; validation follows them all.
MAX_IN_PLACE = 100

# No list of a schema is so long that it takes more digits to count its members.
_DIGITS_OF_INDEX = 9

_SCHEMA = ("JsonObject", "Boolean")
_NUMBER = ("Number",)

_VALUES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("$ref", "title", "description", "pattern", "format"), ("String",)),
    **dict.fromkeys(("minimum", "maximum", "multipleOf"), _NUMBER),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), ("Integer",)),
    **dict.fromkeys(("properties", "patternProperties", "dependencies", "definitions"), ("JsonObject",)),
    **dict.fromkeys(("required", "enum", *COMBINATORS), ("JsonArray",)),
    **dict.fromkeys(("additionalItems", "additionalProperties", "not"), _SCHEMA),
    "uniqueItems": ("Boolean",),
    "type": ("String", "JsonArray"),
}

# Where a list of something else may stand in the place of a schema, the oldest draft has no truth values.
_SCHEMA_OR_LIST: Mapping[Draft, tuple[str, ...]] = {
    Draft.FOUR: ("JsonObject", "JsonArray"),
    Draft.SIX: (*_SCHEMA, "JsonArray"),
    Draft.SEVEN: (*_SCHEMA, "JsonArray"),
}

_VALUES_OF: Mapping[Draft, Mapping[str, tuple[str, ...]]] = {
    Draft.FOUR: dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), ("Boolean",)),
    Draft.SIX: {
        **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _NUMBER),
        **dict.fromkeys(("contains", "propertyNames"), _SCHEMA),
    },
    Draft.SEVEN: {
        **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _NUMBER),
        **dict.fromkeys(("contains", "propertyNames", "if", "then", "else"), _SCHEMA),
        **dict.fromkeys(("readOnly", "writeOnly"), ("Boolean",)),
    },
}


def check_loadable(document: Document) -> None:
    for found in reachable(document):
        reason = next(_reasons_against(found, document), None)
        if reason is not None:
            raise _not_loadable(reason)
    _check_that_judging_ends(document)


def check_references(document: Document) -> None:
    for _, schema in reachable(document):
        reference = schema.get("$ref", "#")
        if not is_local(reference):
            raise Invalid(f"external url reference is not supported: {reference.partition('#')[0]}")


def check_divisors(document: Document) -> None:
    for path, schema in reachable(document):
        if schema.get("multipleOf", 1) == 0:
            raise _not_loadable(f"{(path / 'multipleOf').fragment}: nothing is a multiple of 0")


def check_patterns(document: Document) -> None:
    patterns = Patterns()
    for _, schema in reachable(document):
        for pattern in (*schema.get("patternProperties", ()), *([schema["pattern"]] if "pattern" in schema else [])):
            try:
                patterns.of(pattern)
            except BadPattern as error:
                raise Invalid(f"invalid regex pattern in the schema: {error}") from error


def _reasons_against(found: Found, document: Document) -> Iterator[str]:
    yield from _wrong_values(found, document.draft)
    yield from _wrong_members(found, document.draft)
    yield from _unknown_types(found)
    yield from _crowded_combinators(found)
    yield from _dangling_reference(found, document)


def _wrong_values(found: Found, draft: Draft) -> Iterator[str]:
    path, schema = found
    expected = {**_VALUES, **_VALUES_OF[draft], "items": _SCHEMA_OR_LIST[draft], draft.id_keyword: ("String",)}
    for keyword, value in schema.items():
        if keyword in expected:
            yield from _mismatch(path / keyword, value, expected[keyword])


def _wrong_members(found: Found, draft: Draft) -> Iterator[str]:
    path, schema = found
    for keyword, way, value in subschemas(schema, draft):
        at = (path / keyword).down(way)
        if keyword == "dependencies":
            yield from _mismatch(at, value, _SCHEMA_OR_LIST[draft])
            yield from _not_strings(at, value)
        elif way:
            yield from _mismatch(at, value, _SCHEMA)
    for keyword in ("required", "type"):
        yield from _not_strings(path / keyword, schema.get(keyword))


def _not_strings(path: SchemaPath, value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for index, each in enumerate(value):
            yield from _mismatch(path / str(index), each, ("String",))


def _mismatch(path: SchemaPath, value: Any, expected: tuple[str, ...]) -> Iterator[str]:
    if not any(fits(value, each) for each in expected):
        wanted = f": {expected[0]}" if len(expected) == 1 else f" is one of {' or '.join(sorted(expected))}"
        yield f"{path.fragment}: expected type{wanted}, found: {'null' if value is None else type_name(value)}"


def _unknown_types(found: Found) -> Iterator[str]:
    _, schema = found
    listed = schema.get("type", [])
    for each in listed if isinstance(listed, list) else [listed]:
        if each not in TYPES:
            yield f"<unknown location>: unknown type: [{each}]"


def _crowded_combinators(found: Found) -> Iterator[str]:
    path, schema = found
    count = sum(each in schema for each in COMBINATORS)
    if count > 1:
        yield f"{path.fragment}: expected at most 1 of 'allOf', 'anyOf', 'oneOf', {count} found"


def _dangling_reference(found: Found, document: Document) -> Iterator[str]:
    """What is wrong with a reference, at the path where it ends."""
    path, schema = found
    reference = schema.get("$ref", "#")
    if not is_local(reference) or document.target(reference) is not None:
        return
    steps = steps_of(reference)
    if steps is None:
        yield f"{(path / '$ref').fragment}: there is no schema at [{reference}]"
        return
    at: SchemaPath = ROOT
    value: Any = document.root
    for step in steps:
        reason = next(_missing(at, value, step), None)
        if reason is not None:
            yield reason
            return
        at, value = at / step, member(value, step)
    yield from _mismatch(at, value, _SCHEMA)


def _missing(path: SchemaPath, value: Any, step: str) -> Iterator[str]:
    yield from _mismatch(path, value, ("JsonObject", "JsonArray"))
    if isinstance(value, Mapping) and step not in value:
        yield f"{path.fragment}: key [{step}] not found"
    elif isinstance(value, list) and not step.isdecimal():
        yield f"{path.fragment}: [{step}] is not an array index"
    elif isinstance(value, list) and (len(step) > _DIGITS_OF_INDEX or int(step) >= len(value)):
        yield f"{path.fragment}: array index [{step}] is out of bounds"


def _check_that_judging_ends(document: Document) -> None:
    """No value may be judged by a schema that hands it on, by whatever way, to itself; nor by too long a chain."""
    judges = {id(schema): _judges_of_the_same(schema, document) for _, schema in reachable(document)}
    heights: dict[int, int] = {}
    try:
        for number in TopologicalSorter(judges).static_order():
            heights[number] = 1 + max((heights[each] for each in judges[number]), default=0)
    except CycleError as error:
        raise _not_loadable("a schema refers back to itself for the same value") from error
    if max(heights.values()) > MAX_IN_PLACE:
        raise _not_loadable(f"more than {MAX_IN_PLACE} schemas within each other are about the same value")


def _judges_of_the_same(schema: Mapping[str, Any], document: Document) -> list[int]:
    within = (value for keyword, _, value in subschemas(schema, document.draft) if keyword in IN_PLACE)
    targets = (target for _, target in referred(schema, document))
    return [id(each) for each in (*within, *targets) if isinstance(each, Mapping)]


def _not_loadable(reason: str) -> Invalid:
    return Invalid(f"schema must be a valid json-schema: {reason}")

"""Whether a schema that a client submits may be stored.

In mode `compatible` the language is restricted: a few keywords, with values as draft 4 has them, and no others. Where a
value may be one thing or another and is neither, the message says what speaks against both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from nakadi.model.event_type import Category, CompatibilityMode
from nakadi.model.outcomes import Invalid
from nakadi.schemas.document import (
    COMBINATORS,
    IN_PLACE,
    ROOT,
    Document,
    Draft,
    Found,
    SchemaPath,
    draft_of,
    is_local,
    member,
    reachable,
    referred,
    steps_of,
    subschemas,
)
from nakadi.schemas.formats import FORMATS, BadPattern, Patterns
from nakadi.schemas.keywords import quoted
from nakadi.schemas.limits import check_expansion, check_tree
from nakadi.schemas.nodes import defines
from nakadi.schemas.strict_json import StrictJsonError, parse
from nakadi.schemas.values import MOST_STEPS, canonical, fits, text_of, type_name, worth_telling


def checked(text: str, *, category: Category) -> dict[str, Any]:
    """The schema that the text says; raises `Invalid` with the first reason against it."""
    schema = _parsed(text)
    _check_root_type(schema)
    document = _document(schema)
    check_tree(schema)
    check_loadable(document)
    check_references(document)
    check_expansion(document)
    check_patterns(document)
    if category is Category.BUSINESS and defines(schema, "metadata"):
        raise Invalid('"metadata" property is reserved')
    return schema


def check_language(schema: dict[str, Any], mode: CompatibilityMode) -> None:
    """Raises `Invalid` for what a sound schema may not say: the language that its mode permits comes last."""
    if mode is CompatibilityMode.COMPATIBLE:
        check_restricted(schema)
    check_divisors(Document.of(schema))


def _parsed(text: str) -> dict[str, Any]:
    try:
        schema = parse(text)
    except StrictJsonError as error:
        raise _not_json(str(error)) from error
    if not isinstance(schema, dict):
        raise _not_json("a schema must begin with '{'")
    return schema


def _check_root_type(schema: dict[str, Any]) -> None:
    root_type = schema.get("type", "object")
    if not isinstance(root_type, str):
        raise _not_json('JSONObject["type"] not a string.')
    if root_type != "object":
        raise Invalid('"type" of root element in schema can only be "object"')


def _document(schema: dict[str, Any]) -> Document:
    draft = draft_of(schema)
    if draft is None:
        url = schema["$schema"]
        raise Invalid(f"could not determine schema version: no meta-schema is known with URL [{url}]")
    return Document(schema, draft)


def _not_json(reason: str) -> Invalid:
    return Invalid(f"schema must be a valid json: {reason}")


# The restricted language of mode `compatible` -------------------------------------------------------------------------

Fault = tuple[SchemaPath, str]
Rule = Callable[[SchemaPath, Any], Iterator[Fault]]

JAVA_NAMES = {"JsonObject": "JSONObject", "JsonArray": "JSONArray"}


def check_restricted(schema: Mapping[str, Any]) -> None:
    faults = (f"Invalid schema found in [{path.pointer}]: {reason}" for path, reason in faults_in(schema))
    told = list(worth_telling(faults, str))
    if told:
        raise Invalid(f"Invalid schema: {', '.join(told)}")


def faults_in(schema: Any) -> Iterator[Fault]:
    """Every fault, with its path. A schema that is nested deeply was refused before."""
    return _schema(ROOT, schema)


def _schema(path: SchemaPath, value: Any) -> Iterator[Fault]:
    if not isinstance(value, dict):
        yield from _object(path, value)
        return
    for keyword, bound in (("exclusiveMaximum", "maximum"), ("exclusiveMinimum", "minimum")):
        if keyword in value and bound not in value:
            yield path, f"property [{bound}] is required"
    for keyword in value:
        if keyword not in RULES:
            yield path, f"extraneous key [{keyword}] is not permitted"
    for keyword, each in value.items():
        if keyword in RULES:
            yield from RULES[keyword](path / keyword, each)


def _either(first: Rule, second: Rule) -> Rule:
    def rule(path: SchemaPath, value: Any) -> Iterator[Fault]:
        against_first = list(first(path, value))
        against_second = list(second(path, value)) if against_first else []
        if against_second:
            yield from against_first
            yield from against_second

    return rule


def _not_a(wanted: str, path: SchemaPath, value: Any) -> Iterator[Fault]:
    if not fits(value, wanted):
        found = type_name(value)
        yield path, f"expected type: {JAVA_NAMES.get(wanted, wanted)}, found: {JAVA_NAMES.get(found, found)}"


def _anything(_: SchemaPath, __: Any) -> Iterator[Fault]:
    yield from ()


def _string(path: SchemaPath, value: Any) -> Iterator[Fault]:
    yield from _not_a("String", path, value)


def _uri(path: SchemaPath, value: Any) -> Iterator[Fault]:
    problem = FORMATS["uri"](value) if isinstance(value, str) else None
    yield from _string(path, value) if problem is None else iter([(path, problem)])


def _boolean(path: SchemaPath, value: Any) -> Iterator[Fault]:
    yield from _not_a("Boolean", path, value)


def _number(path: SchemaPath, value: Any) -> Iterator[Fault]:
    yield from _not_a("Number", path, value)


def _object(path: SchemaPath, value: Any) -> Iterator[Fault]:
    yield from _not_a("JsonObject", path, value)


def _list(path: SchemaPath, value: Any) -> Iterator[Fault]:
    yield from _not_a("JsonArray", path, value)


def _positive(path: SchemaPath, value: Any) -> Iterator[Fault]:
    if fits(value, "Number") and value <= 0:
        yield path, f"{text_of(value)} is not greater than 0"
    yield from _number(path, value)


def _count(path: SchemaPath, value: Any) -> Iterator[Fault]:
    if isinstance(value, float):
        yield path, "expected type: Integer, found: Double"
    elif fits(value, "Number") and value < 0:
        yield path, f"{value} is not greater or equal to 0"
    yield from _number(path, value)


def _some(path: SchemaPath, value: Any) -> Iterator[Fault]:
    if value == []:
        yield path, "expected minimum item count: 1, found: 0"
    yield from _list(path, value)


def _all_different(path: SchemaPath, value: Any) -> Iterator[Fault]:
    if isinstance(value, list) and len({canonical(each) for each in value}) < len(value):
        yield path, "array items are not unique"


def _each(rule: Rule, path: SchemaPath, value: Any) -> Iterator[Fault]:
    for index, each in enumerate(value if isinstance(value, list) else ()):
        yield from rule(path / str(index), each)


def _values(path: SchemaPath, value: Any) -> Iterator[Fault]:
    yield from _some(path, value)
    yield from _all_different(path, value)


def _names(path: SchemaPath, value: Any) -> Iterator[Fault]:
    yield from _list(path, value)
    yield from _all_different(path, value)
    yield from _each(_string, path, value)


def _schemas(path: SchemaPath, value: Any) -> Iterator[Fault]:
    yield from _some(path, value)
    yield from _each(_schema, path, value)


def _type(path: SchemaPath, value: Any) -> Iterator[Fault]:
    if not isinstance(value, str) or value not in TYPES:
        yield path, f"{quoted(value, [MOST_STEPS])} is not a valid enum value"


def _types(path: SchemaPath, value: Any) -> Iterator[Fault]:
    yield from _values(path, value)
    yield from _each(_type, path, value)


def _named(rule: Rule) -> Rule:
    def named(path: SchemaPath, value: Any) -> Iterator[Fault]:
        yield from _object(path, value)
        for name, each in value.items() if isinstance(value, dict) else ():
            yield from rule(path / name, each)

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


# Loading --------------------------------------------------------------------------------------------------------------


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

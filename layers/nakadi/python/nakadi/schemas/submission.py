"""Whether a schema that a client submits may be stored.

In mode `compatible` the language is restricted: a few keywords, with values as draft 4 has them, and no others. Where a
value may be one thing or another and is neither, the message says what speaks against both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nakadi.model.event_type import Category, CompatibilityMode
from nakadi.model.outcomes import Invalid
from nakadi.schemas.bounds import MOST_STEPS, worth_telling
from nakadi.schemas.document import ROOT, Document, SchemaPath, draft_of
from nakadi.schemas.formats import FORMATS
from nakadi.schemas.limits import check_expansion, check_tree
from nakadi.schemas.loading import TYPES, check_divisors, check_loadable, check_patterns, check_references
from nakadi.schemas.paths import defines
from nakadi.schemas.strict_json import StrictJsonError, parse
from nakadi.schemas.values import canonical, fits, text_of, type_name
from nakadi.schemas.violations import quoted


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

"""Whether a schema that a client submits may be stored.

In mode `compatible` the language is restricted: a few keywords, with values as draft 4 has them, and no others. If a
value may have several forms and has none of them, the message names its fault for each form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from nakadi.model.event_type import Category, CompatibilityMode
from nakadi.model.outcomes import Invalid
from nakadi.schemas.document import (
    COMBINATOR_KEYWORDS,
    KEYWORDS_ABOUT_SAME_VALUE,
    ROOT_PATH,
    Draft,
    SchemaAtPath,
    SchemaDocument,
    SchemaPath,
    draft_or_none,
    is_local_reference,
    reachable_schemas,
    reference_steps,
    referenced_schemas,
    subschemas,
    value_at_step,
)
from nakadi.schemas.formats import FORMAT_CHECKS, BadPattern, SchemaPatterns
from nakadi.schemas.keywords import quoted_value
from nakadi.schemas.limits import check_expansion, check_schema_size
from nakadi.schemas.nodes import defines_path
from nakadi.schemas.strict_json import StrictJsonError, parse_strict
from nakadi.schemas.values import (
    MAX_EVENT_STEPS,
    canonical_text,
    first_items_fitting_message,
    has_java_type_name,
    java_text,
    java_type_name,
)


def parse_submitted_schema(text: str, *, category: Category) -> dict[str, Any]:
    schema = _parse_object(text)
    _check_root_type(schema)
    document = _load_document(schema)
    check_schema_size(schema)
    check_loadable(document)
    check_references_are_local(document)
    check_expansion(document)
    check_patterns(document)
    if category is Category.BUSINESS and defines_path(schema, "metadata"):
        raise Invalid('"metadata" property is reserved')
    return schema


def check_schema_language(schema: dict[str, Any], mode: CompatibilityMode) -> None:
    """Raises `Invalid` for keywords that a sound schema may not have; the restrictions of the mode are checked last."""
    if mode is CompatibilityMode.COMPATIBLE:
        check_restricted_language(schema)
    check_divisors_not_zero(SchemaDocument.from_root(schema))


def _parse_object(text: str) -> dict[str, Any]:
    try:
        schema = parse_strict(text)
    except StrictJsonError as error:
        raise _invalid_json_error(str(error)) from error
    if not isinstance(schema, dict):
        raise _invalid_json_error("a schema must begin with '{'")
    return schema


def _check_root_type(schema: dict[str, Any]) -> None:
    root_type = schema.get("type", "object")
    if not isinstance(root_type, str):
        raise _invalid_json_error('JSONObject["type"] not a string.')
    if root_type != "object":
        raise Invalid('"type" of root element in schema can only be "object"')


def _load_document(schema: dict[str, Any]) -> SchemaDocument:
    draft = draft_or_none(schema)
    if draft is None:
        url = schema["$schema"]
        raise Invalid(f"could not determine schema version: no meta-schema is known with URL [{url}]")
    return SchemaDocument(schema, draft)


def _invalid_json_error(reason: str) -> Invalid:
    return Invalid(f"schema must be a valid json: {reason}")


SchemaFault = tuple[SchemaPath, str]
KeywordRule = Callable[[SchemaPath, Any], Iterator[SchemaFault]]

JAVA_TYPE_SPELLINGS = {"JsonObject": "JSONObject", "JsonArray": "JSONArray"}


def check_restricted_language(schema: Mapping[str, Any]) -> None:
    faults = (f"Invalid schema found in [{path.pointer}]: {reason}" for path, reason in find_schema_faults(schema))
    faults_shown = list(first_items_fitting_message(faults, str))
    if faults_shown:
        raise Invalid(f"Invalid schema: {', '.join(faults_shown)}")


def find_schema_faults(schema: Any) -> Iterator[SchemaFault]:
    """Every fault, with its path. A schema that is nested too deeply was refused before this call."""
    return _schema_rule(ROOT_PATH, schema)


def _schema_rule(path: SchemaPath, value: Any) -> Iterator[SchemaFault]:
    if not isinstance(value, dict):
        yield from _object_rule(path, value)
        return
    for keyword, bound in (("exclusiveMaximum", "maximum"), ("exclusiveMinimum", "minimum")):
        if keyword in value and bound not in value:
            yield path, f"property [{bound}] is required"
    for keyword in value:
        if keyword not in KEYWORD_RULES:
            yield path, f"extraneous key [{keyword}] is not permitted"
    for keyword, each in value.items():
        if keyword in KEYWORD_RULES:
            yield from KEYWORD_RULES[keyword](path / keyword, each)


def _either_rule(first: KeywordRule, second: KeywordRule) -> KeywordRule:
    def rule(path: SchemaPath, value: Any) -> Iterator[SchemaFault]:
        against_first = list(first(path, value))
        against_second = list(second(path, value)) if against_first else []
        if against_second:
            yield from against_first
            yield from against_second

    return rule


def _wrong_type_fault(wanted: str, path: SchemaPath, value: Any) -> Iterator[SchemaFault]:
    if not has_java_type_name(value, wanted):
        found = java_type_name(value)
        yield (
            path,
            f"expected type: {JAVA_TYPE_SPELLINGS.get(wanted, wanted)}, found: {JAVA_TYPE_SPELLINGS.get(found, found)}",
        )


def _no_rule(_: SchemaPath, __: Any) -> Iterator[SchemaFault]:
    yield from ()


def _string_rule(path: SchemaPath, value: Any) -> Iterator[SchemaFault]:
    yield from _wrong_type_fault("String", path, value)


def _uri_rule(path: SchemaPath, value: Any) -> Iterator[SchemaFault]:
    problem = FORMAT_CHECKS["uri"](value) if isinstance(value, str) else None
    yield from _string_rule(path, value) if problem is None else iter([(path, problem)])


def _boolean_rule(path: SchemaPath, value: Any) -> Iterator[SchemaFault]:
    yield from _wrong_type_fault("Boolean", path, value)


def _number_rule(path: SchemaPath, value: Any) -> Iterator[SchemaFault]:
    yield from _wrong_type_fault("Number", path, value)


def _object_rule(path: SchemaPath, value: Any) -> Iterator[SchemaFault]:
    yield from _wrong_type_fault("JsonObject", path, value)


def _list_rule(path: SchemaPath, value: Any) -> Iterator[SchemaFault]:
    yield from _wrong_type_fault("JsonArray", path, value)


def _positive_number_rule(path: SchemaPath, value: Any) -> Iterator[SchemaFault]:
    if has_java_type_name(value, "Number") and value <= 0:
        yield path, f"{java_text(value)} is not greater than 0"
    yield from _number_rule(path, value)


def _non_negative_integer_rule(path: SchemaPath, value: Any) -> Iterator[SchemaFault]:
    if isinstance(value, float):
        yield path, "expected type: Integer, found: Double"
    elif has_java_type_name(value, "Number") and value < 0:
        yield path, f"{value} is not greater or equal to 0"
    yield from _number_rule(path, value)


def _non_empty_list_rule(path: SchemaPath, value: Any) -> Iterator[SchemaFault]:
    if value == []:
        yield path, "expected minimum item count: 1, found: 0"
    yield from _list_rule(path, value)


def _unique_items_rule(path: SchemaPath, value: Any) -> Iterator[SchemaFault]:
    if isinstance(value, list) and len({canonical_text(each) for each in value}) < len(value):
        yield path, "array items are not unique"


def _rule_for_each(rule: KeywordRule, path: SchemaPath, value: Any) -> Iterator[SchemaFault]:
    for index, each in enumerate(value if isinstance(value, list) else ()):
        yield from rule(path / str(index), each)


def _values_rule(path: SchemaPath, value: Any) -> Iterator[SchemaFault]:
    yield from _non_empty_list_rule(path, value)
    yield from _unique_items_rule(path, value)


def _names_rule(path: SchemaPath, value: Any) -> Iterator[SchemaFault]:
    yield from _list_rule(path, value)
    yield from _unique_items_rule(path, value)
    yield from _rule_for_each(_string_rule, path, value)


def _schemas_rule(path: SchemaPath, value: Any) -> Iterator[SchemaFault]:
    yield from _non_empty_list_rule(path, value)
    yield from _rule_for_each(_schema_rule, path, value)


def _type_rule(path: SchemaPath, value: Any) -> Iterator[SchemaFault]:
    if not isinstance(value, str) or value not in JSON_SCHEMA_TYPE_NAMES:
        yield path, f"{quoted_value(value, [MAX_EVENT_STEPS])} is not a valid enum value"


def _types_rule(path: SchemaPath, value: Any) -> Iterator[SchemaFault]:
    yield from _values_rule(path, value)
    yield from _rule_for_each(_type_rule, path, value)


def _members_rule(rule: KeywordRule) -> KeywordRule:
    def named(path: SchemaPath, value: Any) -> Iterator[SchemaFault]:
        yield from _object_rule(path, value)
        for name, each in value.items() if isinstance(value, dict) else ():
            yield from rule(path / name, each)

    return named


KEYWORD_RULES: Mapping[str, KeywordRule] = {
    **dict.fromkeys(("id", "title", "description", "pattern", "format"), _string_rule),
    **dict.fromkeys(("$schema", "$ref"), _uri_rule),
    "default": _no_rule,
    "multipleOf": _positive_number_rule,
    **dict.fromkeys(("maximum", "minimum"), _number_rule),
    **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum", "uniqueItems"), _boolean_rule),
    **dict.fromkeys(
        ("maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"), _non_negative_integer_rule
    ),
    "items": _either_rule(_schema_rule, _schemas_rule),
    "required": _names_rule,
    "additionalProperties": _either_rule(_boolean_rule, _schema_rule),
    **dict.fromkeys(("definitions", "properties", "patternProperties"), _members_rule(_schema_rule)),
    "dependencies": _members_rule(_either_rule(_schema_rule, _names_rule)),
    "enum": _values_rule,
    "type": _either_rule(_type_rule, _types_rule),
    **dict.fromkeys(("allOf", "anyOf", "oneOf"), _schemas_rule),
}


JSON_SCHEMA_TYPE_NAMES = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})

# How many nested schemas may apply to the same value; each is a call.
MAX_NESTED_SCHEMAS_PER_VALUE = 100

# No list in a schema is so long that an index needs more digits.
_DIGITS_OF_INDEX = 9

_JAVA_TYPES_OF_SCHEMA = ("JsonObject", "Boolean")
_JAVA_TYPES_OF_NUMBER = ("Number",)

_JAVA_TYPES_BY_KEYWORD: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("$ref", "title", "description", "pattern", "format"), ("String",)),
    **dict.fromkeys(("minimum", "maximum", "multipleOf"), _JAVA_TYPES_OF_NUMBER),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), ("Integer",)),
    **dict.fromkeys(("properties", "patternProperties", "dependencies", "definitions"), ("JsonObject",)),
    **dict.fromkeys(("required", "enum", *COMBINATOR_KEYWORDS), ("JsonArray",)),
    **dict.fromkeys(("additionalItems", "additionalProperties", "not"), _JAVA_TYPES_OF_SCHEMA),
    "uniqueItems": ("Boolean",),
    "type": ("String", "JsonArray"),
}

# Where a schema or a list is permitted, the oldest draft permits no truth value.
_JAVA_TYPES_OF_SCHEMA_OR_LIST: Mapping[Draft, tuple[str, ...]] = {
    Draft.FOUR: ("JsonObject", "JsonArray"),
    Draft.SIX: (*_JAVA_TYPES_OF_SCHEMA, "JsonArray"),
    Draft.SEVEN: (*_JAVA_TYPES_OF_SCHEMA, "JsonArray"),
}

_JAVA_TYPES_BY_DRAFT: Mapping[Draft, Mapping[str, tuple[str, ...]]] = {
    Draft.FOUR: dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), ("Boolean",)),
    Draft.SIX: {
        **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _JAVA_TYPES_OF_NUMBER),
        **dict.fromkeys(("contains", "propertyNames"), _JAVA_TYPES_OF_SCHEMA),
    },
    Draft.SEVEN: {
        **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _JAVA_TYPES_OF_NUMBER),
        **dict.fromkeys(("contains", "propertyNames", "if", "then", "else"), _JAVA_TYPES_OF_SCHEMA),
        **dict.fromkeys(("readOnly", "writeOnly"), ("Boolean",)),
    },
}


def check_loadable(document: SchemaDocument) -> None:
    for found in reachable_schemas(document):
        reason = next(_reasons_not_to_load(found, document), None)
        if reason is not None:
            raise _not_loadable_error(reason)
    _check_validation_ends(document)


def check_references_are_local(document: SchemaDocument) -> None:
    for _, schema in reachable_schemas(document):
        reference = schema.get("$ref", "#")
        if not is_local_reference(reference):
            raise Invalid(f"external url reference is not supported: {reference.partition('#')[0]}")


def check_divisors_not_zero(document: SchemaDocument) -> None:
    for path, schema in reachable_schemas(document):
        if schema.get("multipleOf", 1) == 0:
            raise _not_loadable_error(f"{(path / 'multipleOf').url_fragment}: nothing is a multiple of 0")


def check_patterns(document: SchemaDocument) -> None:
    patterns = SchemaPatterns()
    for _, schema in reachable_schemas(document):
        for pattern in (*schema.get("patternProperties", ()), *([schema["pattern"]] if "pattern" in schema else [])):
            try:
                patterns.compile_once(pattern)
            except BadPattern as error:
                raise Invalid(f"invalid regex pattern in the schema: {error}") from error


def _reasons_not_to_load(schema_at_path: SchemaAtPath, document: SchemaDocument) -> Iterator[str]:
    yield from _find_wrong_values(schema_at_path, document.draft)
    yield from _find_wrong_members(schema_at_path, document.draft)
    yield from _find_unknown_types(schema_at_path)
    yield from _find_several_combinators(schema_at_path)
    yield from _find_dangling_reference(schema_at_path, document)


def _find_wrong_values(schema_at_path: SchemaAtPath, draft: Draft) -> Iterator[str]:
    path, schema = schema_at_path
    expected = {
        **_JAVA_TYPES_BY_KEYWORD,
        **_JAVA_TYPES_BY_DRAFT[draft],
        "items": _JAVA_TYPES_OF_SCHEMA_OR_LIST[draft],
        draft.id_keyword: ("String",),
    }
    for keyword, value in schema.items():
        if keyword in expected:
            yield from _find_wrong_type(path / keyword, value, expected[keyword])


def _find_wrong_members(schema_at_path: SchemaAtPath, draft: Draft) -> Iterator[str]:
    path, schema = schema_at_path
    for keyword, way, value in subschemas(schema, draft):
        at = (path / keyword).with_appended_steps(way)
        if keyword == "dependencies":
            yield from _find_wrong_type(at, value, _JAVA_TYPES_OF_SCHEMA_OR_LIST[draft])
            yield from _find_non_strings(at, value)
        elif way:
            yield from _find_wrong_type(at, value, _JAVA_TYPES_OF_SCHEMA)
    for keyword in ("required", "type"):
        yield from _find_non_strings(path / keyword, schema.get(keyword))


def _find_non_strings(path: SchemaPath, value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for index, each in enumerate(value):
            yield from _find_wrong_type(path / str(index), each, ("String",))


def _find_wrong_type(path: SchemaPath, value: Any, expected: tuple[str, ...]) -> Iterator[str]:
    if not any(has_java_type_name(value, each) for each in expected):
        wanted = f": {expected[0]}" if len(expected) == 1 else f" is one of {' or '.join(sorted(expected))}"
        yield f"{path.url_fragment}: expected type{wanted}, found: {'null' if value is None else java_type_name(value)}"


def _find_unknown_types(schema_at_path: SchemaAtPath) -> Iterator[str]:
    _, schema = schema_at_path
    listed = schema.get("type", [])
    for each in listed if isinstance(listed, list) else [listed]:
        if each not in JSON_SCHEMA_TYPE_NAMES:
            yield f"<unknown location>: unknown type: [{each}]"


def _find_several_combinators(schema_at_path: SchemaAtPath) -> Iterator[str]:
    path, schema = schema_at_path
    count = sum(each in schema for each in COMBINATOR_KEYWORDS)
    if count > 1:
        yield f"{path.url_fragment}: expected at most 1 of 'allOf', 'anyOf', 'oneOf', {count} found"


def _find_dangling_reference(schema_at_path: SchemaAtPath, document: SchemaDocument) -> Iterator[str]:
    path, schema = schema_at_path
    reference = schema.get("$ref", "#")
    if not is_local_reference(reference) or document.find_target(reference) is not None:
        return
    steps = reference_steps(reference)
    if steps is None:
        yield f"{(path / '$ref').url_fragment}: there is no schema at [{reference}]"
        return
    at: SchemaPath = ROOT_PATH
    value: Any = document.root
    for step in steps:
        reason = next(_find_missing_member(at, value, step), None)
        if reason is not None:
            yield reason
            return
        at, value = at / step, value_at_step(value, step)
    yield from _find_wrong_type(at, value, _JAVA_TYPES_OF_SCHEMA)


def _find_missing_member(path: SchemaPath, value: Any, step: str) -> Iterator[str]:
    yield from _find_wrong_type(path, value, ("JsonObject", "JsonArray"))
    if isinstance(value, Mapping) and step not in value:
        yield f"{path.url_fragment}: key [{step}] not found"
    elif isinstance(value, list) and not step.isdecimal():
        yield f"{path.url_fragment}: [{step}] is not an array index"
    elif isinstance(value, list) and (len(step) > _DIGITS_OF_INDEX or int(step) >= len(value)):
        yield f"{path.url_fragment}: array index [{step}] is out of bounds"


def _check_validation_ends(document: SchemaDocument) -> None:
    """Raise `Invalid` if a schema applies itself, directly or through others, to the same value, or if too many nested
    schemas apply to one value.
    """
    applied = {id(schema): _ids_of_same_value_schemas(schema, document) for _, schema in reachable_schemas(document)}
    heights: dict[int, int] = {}
    try:
        for number in TopologicalSorter(applied).static_order():
            heights[number] = 1 + max((heights[each] for each in applied[number]), default=0)
    except CycleError as error:
        raise _not_loadable_error("a schema refers back to itself for the same value") from error
    if max(heights.values()) > MAX_NESTED_SCHEMAS_PER_VALUE:
        raise _not_loadable_error(
            f"more than {MAX_NESTED_SCHEMAS_PER_VALUE} schemas within each other are about the same value"
        )


def _ids_of_same_value_schemas(schema: Mapping[str, Any], document: SchemaDocument) -> list[int]:
    within = (value for keyword, _, value in subschemas(schema, document.draft) if keyword in KEYWORDS_ABOUT_SAME_VALUE)
    targets = (target for _, target in referenced_schemas(schema, document))
    return [id(each) for each in (*within, *targets) if isinstance(each, Mapping)]


def _not_loadable_error(reason: str) -> Invalid:
    return Invalid(f"schema must be a valid json-schema: {reason}")

"""Schemas by their kinds. Every schema is of exactly one kind, which determines the keywords to compare; all other
keywords are ignored. A node has its own keywords; its inner schemas stay as written and are classified later, so that a
schema may contain itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from nakadi.model.outcomes import Invalid
from nakadi.schemas.document import COMBINATOR_KEYWORDS, Draft, RawSchema, SchemaDocument, count_schema_values
from nakadi.schemas.formats import Pattern, compile_pattern
from nakadi.schemas.values import StepsExhausted, canonical_text, spend_steps


class Annotations(Struct, frozen=True):
    """Keywords that describe the schema rather than values."""

    id: str | None = None
    title: str | None = None
    description: str | None = None


NO_ANNOTATIONS = Annotations()


class SchemaNode(Struct, frozen=True):
    annotations: Annotations


class PlainKindNode(SchemaNode, frozen=True):
    """A schema without content to compare; `kind` is one of `MEANING_BY_PLAIN_KIND`."""

    kind: str


MEANING_BY_PLAIN_KIND = {
    "always": "`true`",
    "never": "`false`",
    "nothing": "Says nothing of values.",
    "boolean": '`"type": "boolean"`',
    "null": '`"type": "null"`',
    "const": "Exactly one value.",
    "not": "What another schema refuses.",
    "conditional": "`if`, `then` and `else`.",
}


class EnumNode(SchemaNode, frozen=True):
    canonical_texts: frozenset[str]


class ReferenceNode(SchemaNode, frozen=True):
    reference: str


class CombinationNode(SchemaNode, frozen=True):
    combinator: str
    member_schemas: tuple[RawSchema, ...]


class StringNode(SchemaNode, frozen=True):
    max_length: int | None
    min_length: int | None
    pattern: str | None


class NumberNode(SchemaNode, frozen=True):
    maximum: float | None
    minimum: float | None
    multiple_of: float | None


class ObjectNode(SchemaNode, frozen=True):
    property_schemas: Mapping[str, RawSchema]
    schemas_by_name_pattern: Mapping[str, RawSchema]
    name_dependencies: Mapping[str, tuple[str, ...]]
    dependency_schemas: Mapping[str, RawSchema]
    additional_property_schema: RawSchema
    required: tuple[str, ...]
    max_properties: int | None
    min_properties: int | None


class ArrayNode(SchemaNode, frozen=True):
    item_schema: RawSchema | None
    item_schemas_by_position: tuple[RawSchema, ...]
    additional_item_schema: RawSchema
    max_items: int | None
    min_items: int | None
    unique_items: bool


_ANNOTATION_KEYWORDS = frozenset({"id", "$id", "title", "description"})

_OBJECT_NODE_KEYWORDS = frozenset(
    {
        "properties",
        "required",
        "minProperties",
        "maxProperties",
        "dependencies",
        "patternProperties",
        "additionalProperties",
    }
)
_ARRAY_NODE_KEYWORDS = frozenset({"items", "additionalItems", "minItems", "maxItems", "uniqueItems"})
_NUMBER_NODE_KEYWORDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_STRING_NODE_KEYWORDS = frozenset({"minLength", "maxLength", "pattern", "format"})
_CONDITIONAL_KEYWORDS = frozenset({"if", "then", "else"})
_NOT_KEYWORD = frozenset({"not"})


def classify_schema(schema: RawSchema, draft: Draft) -> SchemaNode:
    """The node for a schema: the first kind that fits."""
    if isinstance(schema, bool):
        return PlainKindNode(NO_ANNOTATIONS, "always" if schema else "never")
    annotations = Annotations(schema.get(draft.id_keyword), schema.get("title"), schema.get("description"))
    if "enum" in schema:
        return EnumNode(annotations, frozenset(map(canonical_text, schema["enum"])))
    if "const" in schema and draft >= Draft.SIX:
        return PlainKindNode(annotations, "const")
    if any(combinator in schema for combinator in COMBINATOR_KEYWORDS):
        return _parse_combination_schema(schema, annotations, draft)
    if "$ref" in schema:
        return ReferenceNode(NO_ANNOTATIONS, schema["$ref"])  # keywords next to a reference are ignored
    return _node_of_type(schema, annotations, draft)


def _parse_combination_schema(schema: Mapping[str, Any], annotations: Annotations, draft: Draft) -> CombinationNode:
    """The node for a combinator. The keywords next to it form one more schema that must hold."""
    combinator = next(each for each in COMBINATOR_KEYWORDS if each in schema)
    beside = {keyword: value for keyword, value in _without_annotations(schema).items() if keyword != combinator}
    if "type" not in beside and _type_implied_by_keywords(beside, draft) in ("not", "nothing"):
        return CombinationNode(annotations, combinator, tuple(schema[combinator]))
    return CombinationNode(annotations, "allOf", (beside, {combinator: schema[combinator]}))


def _without_annotations(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {keyword: value for keyword, value in schema.items() if keyword not in _ANNOTATION_KEYWORDS}


def _node_of_type(schema: Mapping[str, Any], annotations: Annotations, draft: Draft) -> SchemaNode:
    """The node for a type. Several types are a choice between schemas that differ only in their type."""
    type_or_types = schema["type"] if "type" in schema else _type_implied_by_keywords(schema, draft)
    if isinstance(type_or_types, list):
        shared = _without_annotations(schema)
        return CombinationNode(annotations, "anyOf", tuple(shared | {"type": each} for each in type_or_types))
    return _NODE_PARSER_BY_TYPE[type_or_types](schema, annotations)


def _type_implied_by_keywords(schema: Mapping[str, Any], draft: Draft) -> str:
    telling = (
        ("array", _ARRAY_NODE_KEYWORDS | {"contains"} if draft >= Draft.SIX else _ARRAY_NODE_KEYWORDS),
        ("object", _OBJECT_NODE_KEYWORDS | {"propertyNames"} if draft >= Draft.SIX else _OBJECT_NODE_KEYWORDS),
        ("number", _NUMBER_NODE_KEYWORDS),
        ("string", _STRING_NODE_KEYWORDS),
        ("conditional", _CONDITIONAL_KEYWORDS if draft >= Draft.SEVEN else frozenset()),
        ("not", _NOT_KEYWORD),
    )
    return next((kind for kind, keywords in telling if not keywords.isdisjoint(schema)), "nothing")


def _parse_string_schema(schema: Mapping[str, Any], annotations: Annotations) -> StringNode:
    return StringNode(annotations, schema.get("maxLength"), schema.get("minLength"), schema.get("pattern"))


def _parse_number_schema(schema: Mapping[str, Any], annotations: Annotations) -> NumberNode:
    return NumberNode(annotations, schema.get("maximum"), schema.get("minimum"), schema.get("multipleOf"))


def _parse_object_schema(schema: Mapping[str, Any], annotations: Annotations) -> ObjectNode:
    dependencies = schema.get("dependencies", {}).items()
    return ObjectNode(
        annotations,
        property_schemas=schema.get("properties", {}),
        schemas_by_name_pattern=schema.get("patternProperties", {}),
        name_dependencies={name: tuple(value) for name, value in dependencies if isinstance(value, list)},
        dependency_schemas={name: value for name, value in dependencies if not isinstance(value, list)},
        additional_property_schema=schema.get("additionalProperties", True),
        required=tuple(schema.get("required", ())),
        max_properties=schema.get("maxProperties"),
        min_properties=schema.get("minProperties"),
    )


def is_unrestricted(node: SchemaNode) -> bool:
    return isinstance(node, PlainKindNode) and node.kind in ("always", "nothing")


def is_same_node_kind(first: SchemaNode, second: SchemaNode) -> bool:
    if isinstance(first, PlainKindNode) and isinstance(second, PlainKindNode):
        return first.kind == second.kind
    return type(first) is type(second)


def empty_object_node(annotations: Annotations) -> ObjectNode:
    return _parse_object_schema({}, annotations)


def _parse_array_schema(schema: Mapping[str, Any], annotations: Annotations) -> ArrayNode:
    items = schema.get("items")
    return ArrayNode(
        annotations,
        item_schema=None if isinstance(items, list) else items,
        item_schemas_by_position=tuple(items) if isinstance(items, list) else (),
        additional_item_schema=schema.get("additionalItems", True),
        max_items=schema.get("maxItems"),
        min_items=schema.get("minItems"),
        unique_items=schema.get("uniqueItems", False),
    )


def _make_plain_kind_parser(kind: str) -> Callable[[Mapping[str, Any], Annotations], SchemaNode]:
    return lambda _, annotations: PlainKindNode(annotations, kind)


_NODE_PARSER_BY_TYPE: Mapping[str, Callable[[Mapping[str, Any], Annotations], SchemaNode]] = {
    "object": _parse_object_schema,
    "array": _parse_array_schema,
    "string": _parse_string_schema,
    "integer": _parse_number_schema,
    "number": _parse_number_schema,
    **{kind: _make_plain_kind_parser(kind) for kind in MEANING_BY_PLAIN_KIND},
}


# The longest path that is searched for, because a path through a recursive schema may have any length.
MAX_PATH_SEGMENTS = 64

# Definitions that refer to each other several times unfold into more schemas than can be searched.
MAX_SEARCH_STEPS = 300_000
MAX_SEARCH_DEPTH = 150


def defines_path(effective_schema: Mapping[str, Any], dotted_path: str) -> bool:
    """Whether the schema defines the property at the path; arrays are not entered."""
    return not undefined_paths(effective_schema, [dotted_path])


def undefined_paths(effective: Mapping[str, Any], paths: Iterable[str]) -> tuple[str, ...]:
    search = _PathSearch(SchemaDocument.from_root(effective))
    try:
        return tuple(path for path in paths if not search.defines_path(path))
    except StepsExhausted as error:
        raise Invalid("schema is too entangled to find properties in it") from error


class _PathSearch:
    def __init__(self, document: SchemaDocument) -> None:
        self._document = document
        self._steps = [MAX_SEARCH_STEPS]
        self._patterns: dict[str, Pattern] = {}

    def defines_path(self, path: str) -> bool:
        segments = tuple(path.split("."))
        return len(segments) <= MAX_PATH_SEGMENTS and self._defines(self._document.root, segments, 0)

    def _defines(self, schema: RawSchema | None, path: tuple[str, ...], depth: int) -> bool:
        if depth > MAX_SEARCH_DEPTH:
            raise StepsExhausted
        match self._resolved_node(schema):
            case ObjectNode() as node:
                return self._is_defined_by_object(node, path, depth + 1)
            case CombinationNode() as node:
                return self._is_defined_by_members(node, path, depth + 1)
            case _:
                return False

    def _resolved_node(self, schema: RawSchema | None) -> SchemaNode | None:
        """The schema, or the schema that its references finally lead to."""
        while schema is not None:
            spend_steps(self._steps, count_schema_values(schema))
            node = classify_schema(schema, self._document.draft)
            if not isinstance(node, ReferenceNode):
                return node
            schema = self._document.find_target(node.reference)
        return None

    def _is_defined_by_members(self, node: CombinationNode, path: tuple[str, ...], depth: int) -> bool:
        found = sum(self._defines(member, path, depth) for member in node.member_schemas)
        match node.combinator:
            case "allOf":
                return found == len(node.member_schemas)
            case "oneOf":
                return found == 1
            case _:
                return found > 0

    def _is_defined_by_object(self, node: ObjectNode, path: tuple[str, ...], depth: int) -> bool:
        rest = path[1:]
        if any(not rest or self._defines(each, rest, depth) for each in self._schemas_of_name(path[0], node)):
            return True
        dependencies = node.dependency_schemas
        return ".".join(path) in dependencies or any(self._defines(e, path, depth) for e in dependencies.values())

    def _schemas_of_name(self, name: str, node: ObjectNode) -> Iterator[RawSchema]:
        if name in node.property_schemas:
            yield node.property_schemas[name]
        for pattern, schema in node.schemas_by_name_pattern.items():
            if self._pattern_of_whole_name(pattern).is_found_in(name, self._steps):
                yield schema

    def _pattern_of_whole_name(self, pattern: str) -> Pattern:
        """The pattern for a whole name; cached, because the same schema may occur many times."""
        if pattern not in self._patterns:
            self._patterns[pattern] = compile_pattern(rf"\A(?:{pattern})\z")
        return self._patterns[pattern]

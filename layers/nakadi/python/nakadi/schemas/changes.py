"""The differences between two schemas.

Each comparison of two nodes is a generator: it yields the changes that it sees, and the pairs of inner schemas to
compare at that point. A single loop follows the pairs instead of recursion, so that no schema is too deep, and the
changes come in the order of the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from itertools import islice
from operator import eq
from typing import Any

from msgspec import Struct

from nakadi.schemas import nodes
from nakadi.schemas.document import ROOT_PATH, RawSchema, SchemaDocument, SchemaPath, count_schema_values
from nakadi.schemas.nodes import SchemaNode, classify_schema
from nakadi.schemas.values import spend_steps

# Definitions that refer to each other several times unfold into more schemas than can be compared.
MAX_DIFF_STEPS = 100_000


class ChangeKind(StrEnum):
    DESCRIPTION_CHANGED = "DESCRIPTION_CHANGED"
    TITLE_CHANGED = "TITLE_CHANGED"
    PROPERTIES_ADDED = "PROPERTIES_ADDED"
    TYPE_NARROWED = "TYPE_NARROWED"
    REQUIRED_ARRAY_EXTENDED = "REQUIRED_ARRAY_EXTENDED"
    ADDITIONAL_PROPERTIES_NARROWED = "ADDITIONAL_PROPERTIES_NARROWED"
    ID_CHANGED = "ID_CHANGED"
    SCHEMA_REMOVED = "SCHEMA_REMOVED"
    TYPE_CHANGED = "TYPE_CHANGED"
    NUMBER_OF_ITEMS_CHANGED = "NUMBER_OF_ITEMS_CHANGED"
    PROPERTY_REMOVED = "PROPERTY_REMOVED"
    DEPENDENCY_ARRAY_CHANGED = "DEPENDENCY_ARRAY_CHANGED"
    DEPENDENCY_SCHEMA_CHANGED = "DEPENDENCY_SCHEMA_CHANGED"
    COMPOSITION_METHOD_CHANGED = "COMPOSITION_METHOD_CHANGED"
    ATTRIBUTE_VALUE_CHANGED = "ATTRIBUTE_VALUE_CHANGED"
    ENUM_ARRAY_CHANGED = "ENUM_ARRAY_CHANGED"
    SUB_SCHEMA_CHANGED = "SUB_SCHEMA_CHANGED"
    REQUIRED_ARRAY_CHANGED = "REQUIRED_ARRAY_CHANGED"
    ADDITIONAL_PROPERTIES_CHANGED = "ADDITIONAL_PROPERTIES_CHANGED"
    ADDITIONAL_ITEMS_CHANGED = "ADDITIONAL_ITEMS_CHANGED"


class SchemaChange(Struct, frozen=True):
    kind: ChangeKind
    path: SchemaPath


class SchemaPair(Struct, frozen=True):
    """Two schemas to compare; None if one of the documents has none."""

    old: RawSchema | None
    new: RawSchema | None
    path: SchemaPath
    # The references by which the pair was reached, if this is the target of a reference.
    references: FollowedReferences | None = None


ChangesAndPairs = Iterator[SchemaChange | SchemaPair]
FollowedReferences = tuple[str, str]


def find_schema_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[SchemaChange, ...]:
    """All observed changes, in the order of the schema; raises `StepsExhausted` if that takes too long."""
    return tuple(_SchemaComparison(SchemaDocument.from_root(old), SchemaDocument.from_root(new)).changes())


class _SchemaComparison:
    def __init__(self, old: SchemaDocument, new: SchemaDocument) -> None:
        self._old = old
        self._new = new
        self._steps = [MAX_DIFF_STEPS]

    def changes(self) -> Iterator[SchemaChange]:
        """Follow the comparisons, innermost first.

        A pair whose comparison is in progress is not compared again. Nor is a pair without changes, so parts that a
        schema uses many times are compared once. A pair that a reference reaches differs from the same pair at its own
        place, so its changes are reported twice.
        """
        root = SchemaPair(self._old.root, self._new.root, ROOT_PATH)
        stack = [_OpenComparison(root, ("", ""), self._compare(root))]
        under_way = {stack[0].visit}
        same: dict[PairIdentity, SchemaPair] = {}
        while stack:
            top = stack[-1]
            match next(top.found, None):
                case None:
                    stack.pop()
                    under_way.discard(top.visit)
                    if top.unchanged:
                        same[_pair_identity(top.pair)] = top.pair
                    elif stack:
                        stack[-1].unchanged = False
                case SchemaChange() as change:
                    top.unchanged = False
                    yield change
                case pair if _pair_visit(pair, top.references) in under_way:
                    # Whether the pair has a change is known only when an outer comparison ends.
                    top.unchanged = False
                case pair if _pair_identity(pair) not in same:
                    stack.append(_OpenComparison(pair, top.references, self._compare(pair)))
                    under_way.add(stack[-1].visit)

    def _compare(self, pair: SchemaPair) -> ChangesAndPairs:
        spend_steps(self._steps, count_schema_values(pair.old) + count_schema_values(pair.new))
        if pair.old is None or pair.new is None:
            if pair.old is not pair.new:
                yield SchemaChange(ChangeKind.SCHEMA_REMOVED, pair.path)
            return
        old, new = classify_schema(pair.old, self._old.draft), classify_schema(pair.new, self._new.draft)
        if nodes.is_unrestricted(old) and isinstance(new, nodes.ObjectNode):
            old = nodes.empty_object_node(old.annotations)
        if not nodes.is_same_node_kind(old, new):
            narrowed = nodes.is_unrestricted(old) and not nodes.is_unrestricted(new)
            yield SchemaChange(ChangeKind.TYPE_NARROWED if narrowed else ChangeKind.TYPE_CHANGED, pair.path)
            return
        yield from _annotation_changes(old, new, pair.path)
        yield from self._content_changes(old, new, pair.path)

    def _content_changes(self, old: SchemaNode, new: SchemaNode, path: SchemaPath) -> ChangesAndPairs:
        match old, new:
            case nodes.ReferenceNode(), nodes.ReferenceNode():
                targets = self._old.find_target(old.reference), self._new.find_target(new.reference)
                yield SchemaPair(*targets, path / "$ref", (old.reference, new.reference))
            case nodes.ObjectNode(), nodes.ObjectNode():
                yield from _object_changes(old, new, path)
            case nodes.ArrayNode(), nodes.ArrayNode():
                yield from _array_changes(old, new, path)
            case nodes.CombinationNode(), nodes.CombinationNode():
                yield from _combination_changes(old, new, path)
            case nodes.StringNode(), nodes.StringNode():
                yield from _string_changes(old, new, path)
            case nodes.NumberNode(), nodes.NumberNode():
                yield from _number_changes(old, new, path)
            case nodes.EnumNode(), nodes.EnumNode() if old.canonical_texts != new.canonical_texts:
                yield SchemaChange(ChangeKind.ENUM_ARRAY_CHANGED, path / "enum")


PairIdentity = tuple[int, int]
PairVisit = tuple[PairIdentity, FollowedReferences]


def _pair_identity(pair: SchemaPair) -> PairIdentity:
    """The identity of a pair. Both schemas live as long as the identity is used, so no other objects can have their
    ids.
    """
    return id(pair.old), id(pair.new)


def _pair_visit(pair: SchemaPair, references: FollowedReferences) -> PairVisit:
    """A pair, and the references by which it was reached: its own or, without any, those of the enclosing pair."""
    return _pair_identity(pair), pair.references or references


class _OpenComparison:
    """A comparison in progress, with the findings so far."""

    def __init__(self, pair: SchemaPair, references: FollowedReferences, found: ChangesAndPairs) -> None:
        self.pair = pair
        self.references = pair.references or references
        self.visit = _pair_visit(pair, references)
        self.found = found
        self.unchanged = True


def _annotation_changes(old: SchemaNode, new: SchemaNode, path: SchemaPath) -> ChangesAndPairs:
    for kind, name in (
        (ChangeKind.ID_CHANGED, "id"),
        (ChangeKind.TITLE_CHANGED, "title"),
        (ChangeKind.DESCRIPTION_CHANGED, "description"),
    ):
        if getattr(old.annotations, name) != getattr(new.annotations, name):
            yield SchemaChange(kind, path)


def _string_changes(old: nodes.StringNode, new: nodes.StringNode, path: SchemaPath) -> ChangesAndPairs:
    if old.max_length != new.max_length:
        yield SchemaChange(ChangeKind.ATTRIBUTE_VALUE_CHANGED, path / "maxLength")
    elif old.min_length != new.min_length:
        yield SchemaChange(ChangeKind.ATTRIBUTE_VALUE_CHANGED, path / "minLength")
    elif None not in (old.pattern, new.pattern) and old.pattern != new.pattern:
        yield SchemaChange(ChangeKind.ATTRIBUTE_VALUE_CHANGED, path / "pattern")


def _number_changes(old: nodes.NumberNode, new: nodes.NumberNode, path: SchemaPath) -> ChangesAndPairs:
    fields = {"maximum": "maximum", "minimum": "minimum", "multipleOf": "multiple_of"}
    yield from islice(_attribute_changes(old, new, path, _same_number, **fields), 1)


def _same_number(old: float | None, new: float | None) -> bool:
    """Whether two numbers are the same; 1 and 1.0 count as different."""
    return old == new and type(old) is type(new)


def _attribute_changes(
    old: SchemaNode, new: SchemaNode, path: SchemaPath, is_same: Callable[[Any, Any], bool] = eq, **fields: str
) -> Iterator[SchemaChange]:
    for keyword, field in fields.items():
        if not is_same(getattr(old, field), getattr(new, field)):
            yield SchemaChange(ChangeKind.ATTRIBUTE_VALUE_CHANGED, path / keyword)


def _combination_changes(old: nodes.CombinationNode, new: nodes.CombinationNode, path: SchemaPath) -> ChangesAndPairs:
    if len(old.member_schemas) != len(new.member_schemas):
        yield SchemaChange(ChangeKind.SUB_SCHEMA_CHANGED, path)
    elif old.combinator != new.combinator:
        yield SchemaChange(ChangeKind.COMPOSITION_METHOD_CHANGED, path)
    else:
        yield from _pairs_in_order(old.member_schemas, new.member_schemas, path / old.combinator)


def _pairs_in_order(old: tuple[RawSchema, ...], new: tuple[RawSchema, ...], path: SchemaPath) -> ChangesAndPairs:
    for index, (left, right) in enumerate(zip(old, new, strict=True)):
        yield SchemaPair(left, right, path / str(index))


def _object_changes(old: nodes.ObjectNode, new: nodes.ObjectNode, path: SchemaPath) -> ChangesAndPairs:
    yield from _property_changes(old, new, path / "properties")
    yield from _name_dependency_changes(old, new, path / "dependencies")
    yield from _schema_dependency_changes(old, new, path / "dependencies")
    yield from _additional_property_changes(old, new, path / "additionalProperties")
    yield from _required_changes(old, new, path / "required")
    yield from _attribute_changes(old, new, path, maxProperties="max_properties", minProperties="min_properties")


def _property_changes(old: nodes.ObjectNode, new: nodes.ObjectNode, path: SchemaPath) -> ChangesAndPairs:
    for name, schema in old.property_schemas.items():
        if name in new.property_schemas:
            yield SchemaPair(schema, new.property_schemas[name], path / name)
        else:
            yield SchemaChange(ChangeKind.PROPERTY_REMOVED, path / name)
    if len(new.property_schemas) > len(old.property_schemas):
        yield SchemaChange(ChangeKind.PROPERTIES_ADDED, path)


def _name_dependency_changes(old: nodes.ObjectNode, new: nodes.ObjectNode, path: SchemaPath) -> ChangesAndPairs:
    for name, needed in old.name_dependencies.items():
        if name not in new.name_dependencies or set(needed) != set(new.name_dependencies[name]):
            yield SchemaChange(ChangeKind.DEPENDENCY_ARRAY_CHANGED, path / name)


def _schema_dependency_changes(old: nodes.ObjectNode, new: nodes.ObjectNode, path: SchemaPath) -> ChangesAndPairs:
    if old.dependency_schemas.keys() != new.dependency_schemas.keys():
        yield SchemaChange(ChangeKind.DEPENDENCY_SCHEMA_CHANGED, path)
        return
    for name, schema in old.dependency_schemas.items():
        yield SchemaPair(schema, new.dependency_schemas[name], path / name)


def _additional_property_changes(old: nodes.ObjectNode, new: nodes.ObjectNode, path: SchemaPath) -> ChangesAndPairs:
    before, after = old.additional_property_schema, new.additional_property_schema
    if (before is False) is not (after is False):
        yield SchemaChange(ChangeKind.ADDITIONAL_PROPERTIES_CHANGED, path)
    elif before is True and isinstance(after, Mapping):
        yield SchemaChange(ChangeKind.ADDITIONAL_PROPERTIES_NARROWED, path)
    else:
        yield SchemaPair(_schema_or_none(before), _schema_or_none(after), path)


def _schema_or_none(additional: RawSchema) -> RawSchema | None:
    return None if isinstance(additional, bool) else additional


def _required_changes(old: nodes.ObjectNode, new: nodes.ObjectNode, path: SchemaPath) -> ChangesAndPairs:
    if not set(old.required) <= set(new.required):
        yield SchemaChange(ChangeKind.REQUIRED_ARRAY_CHANGED, path)
    elif len(new.required) > len(old.required):
        yield SchemaChange(ChangeKind.REQUIRED_ARRAY_EXTENDED, path)


def _array_changes(old: nodes.ArrayNode, new: nodes.ArrayNode, path: SchemaPath) -> ChangesAndPairs:
    yield SchemaPair(old.item_schema, new.item_schema, path / "items")
    if len(old.item_schemas_by_position) != len(new.item_schemas_by_position):
        yield SchemaChange(ChangeKind.NUMBER_OF_ITEMS_CHANGED, path)
    else:
        yield from _pairs_in_order(old.item_schemas_by_position, new.item_schemas_by_position, path / "items")
    yield from _additional_item_changes(old, new, path / "additionalItems")
    yield from _attribute_changes(
        old, new, path, maxItems="max_items", minItems="min_items", uniqueItems="unique_items"
    )


def _additional_item_changes(old: nodes.ArrayNode, new: nodes.ArrayNode, path: SchemaPath) -> ChangesAndPairs:
    if _permits_additional_items(old) is not _permits_additional_items(new):
        yield SchemaChange(ChangeKind.ADDITIONAL_ITEMS_CHANGED, path)
    else:
        yield SchemaPair(_schema_or_none(old.additional_item_schema), _schema_or_none(new.additional_item_schema), path)


def _permits_additional_items(array: nodes.ArrayNode) -> bool:
    """Whether additional items are permitted. With a single schema for all items, no item is additional."""
    return array.item_schema is not None or array.additional_item_schema is not False

"""What differs between two schemas, how one may follow the other, which version it then gets, and why it is refused.

Each comparison of two nodes is a generator: it says one after the other which changes it sees and which two schemas
within have to be compared at that point. A single loop follows, so that no schema is too deep, and changes come in the
order of the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from itertools import islice
from operator import eq
from typing import Any

from msgspec import Struct

from nakadi.model.event_type import ChangeLevel, CompatibilityMode, EventType, Schema
from nakadi.model.outcomes import IncompatibilityReason, IncompatibleSchema, Invalid
from nakadi.schemas import nodes
from nakadi.schemas.document import ROOT_PATH, RawSchema, SchemaDocument, SchemaPath, count_schema_values
from nakadi.schemas.nodes import SchemaNode, classify_schema
from nakadi.schemas.strict_json import parse_strict
from nakadi.schemas.values import StepsExhausted, first_items_fitting_message, spend_steps

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
    """Two schemas that are to be compared; None where one of the documents has none."""

    old: RawSchema | None
    new: RawSchema | None
    path: SchemaPath
    # By which references they were reached, if this is where a reference leads.
    references: FollowedReferences | None = None


ChangesAndPairs = Iterator[SchemaChange | SchemaPair]
FollowedReferences = tuple[str, str]


def find_schema_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[SchemaChange, ...]:
    """All changes that are observed, in the order of the schema; raises `StepsExhausted` if that takes too long."""
    return tuple(_SchemaComparison(SchemaDocument.from_root(old), SchemaDocument.from_root(new)).changes())


class _SchemaComparison:
    def __init__(self, old: SchemaDocument, new: SchemaDocument) -> None:
        self._old = old
        self._new = new
        self._steps = [MAX_DIFF_STEPS]

    def changes(self) -> Iterator[SchemaChange]:
        """Follow the comparisons, innermost first.

        A pair that is being compared further out is not begun again, nor one that was found to be without a change:
        what many parts of a schema share is looked through once. Reached by a reference, a pair under way is another
        one than where it stands, so that what changed in it is reported twice.
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
                    # Whether there is a change is known only further out.
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
    """Both schemas live as long as it is used, so that nothing else can have their numbers."""
    return id(pair.old), id(pair.new)


def _pair_visit(pair: SchemaPair, references: FollowedReferences) -> PairVisit:
    """A pair, and the references by which it was reached: its own, or those of the pair around it."""
    return _pair_identity(pair), pair.references or references


class _OpenComparison:
    """A pair under way: what was found in it so far."""

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
    """1 and 1.0 are written by different hands and count as different."""
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
    """Beside a single schema for all items there are no additional ones to forbid."""
    return array.item_schema is not None or array.additional_item_schema is not False


_PATCH_LEVEL_CHANGES = frozenset({ChangeKind.DESCRIPTION_CHANGED, ChangeKind.TITLE_CHANGED})
_NARROWING_CHANGES = frozenset(
    {ChangeKind.TYPE_NARROWED, ChangeKind.REQUIRED_ARRAY_EXTENDED, ChangeKind.ADDITIONAL_PROPERTIES_NARROWED}
)

# What may come with a change of mode from `forward` to `compatible`, whatever its level.
_CHANGES_ALLOWED_WHEN_TIGHTENING = frozenset(
    {
        ChangeKind.DESCRIPTION_CHANGED,
        ChangeKind.TITLE_CHANGED,
        ChangeKind.PROPERTIES_ADDED,
        ChangeKind.REQUIRED_ARRAY_EXTENDED,
        ChangeKind.ADDITIONAL_PROPERTIES_CHANGED,
        ChangeKind.ADDITIONAL_ITEMS_CHANGED,
    }
)

_TIGHTENING = (CompatibilityMode.FORWARD, CompatibilityMode.COMPATIBLE)

_REFUSAL_MESSAGES: Mapping[ChangeKind, str] = {
    ChangeKind.ID_CHANGED: "null",
    ChangeKind.TYPE_NARROWED: "schema types cannot be narrowed",
    ChangeKind.REQUIRED_ARRAY_EXTENDED: "required array changed",
    ChangeKind.ADDITIONAL_PROPERTIES_NARROWED: "change not allowed",
    ChangeKind.SCHEMA_REMOVED: "change not allowed",
    ChangeKind.TYPE_CHANGED: "schema types must be the same",
    ChangeKind.NUMBER_OF_ITEMS_CHANGED: "the number of schema items cannot be changed",
    ChangeKind.PROPERTY_REMOVED: "schema properties cannot be removed",
    ChangeKind.DEPENDENCY_ARRAY_CHANGED: "schema dependencies array cannot be changed",
    ChangeKind.DEPENDENCY_SCHEMA_CHANGED: "schema dependencies cannot be changed",
    ChangeKind.COMPOSITION_METHOD_CHANGED: "schema composition method changed",
    ChangeKind.ATTRIBUTE_VALUE_CHANGED: "change to attribute value not allowed",
    ChangeKind.ENUM_ARRAY_CHANGED: "enum array changed",
    ChangeKind.SUB_SCHEMA_CHANGED: "sub schema changed",
    ChangeKind.REQUIRED_ARRAY_CHANGED: "required array changed",
    ChangeKind.ADDITIONAL_PROPERTIES_CHANGED: "change not allowed",
    ChangeKind.ADDITIONAL_ITEMS_CHANGED: "change not allowed",
}


def next_schema(current: EventType, text: str, mode: CompatibilityMode, now: datetime) -> Schema:
    """The event type's schema after `text` was submitted with `mode`: the same one, or one with a new version.

    `text` has passed `submission.checked`. Raises `IncompatibleSchema` if the mode so far does not allow the changes.
    """
    if text == current.schema.text:
        return current.schema
    try:
        changes = find_schema_changes(parse_strict(current.schema.text), parse_strict(text))
    except StepsExhausted as error:
        raise Invalid("Invalid schema: it is too entangled to be compared with the one before it") from error
    before = current.compatibility_mode
    refused = [each for each in changes if _forbids(before, mode, each.kind)]
    if refused:
        tightens = (before, mode) == _TIGHTENING
        raise _incompatible_schema_error(
            refused, f"a change of mode from `{before}` to `{mode}`" if tightens else f"mode `{before}`"
        )
    # A text that differs in nothing that is observed is still another text.
    highest = max((level_of_change(each.kind, before) for each in changes), default=ChangeLevel.PATCH)
    version = current.schema.version.bumped_by(highest)
    return Schema(type=current.schema.type, text=text, version=version, created_at=now)


def level_of_change(kind: ChangeKind, mode: CompatibilityMode) -> ChangeLevel:
    """How far a change reaches in a mode; `none` counts like `forward`."""
    if kind in _PATCH_LEVEL_CHANGES:
        return ChangeLevel.PATCH
    if kind is ChangeKind.PROPERTIES_ADDED:
        return ChangeLevel.MINOR
    if kind in _NARROWING_CHANGES and mode is not CompatibilityMode.COMPATIBLE:
        return ChangeLevel.MINOR
    return ChangeLevel.MAJOR


def _forbids(before: CompatibilityMode, after: CompatibilityMode, kind: ChangeKind) -> bool:
    """Whether a change is refused by the mode so far, whose rules apply, or by a change of the mode."""
    if before is CompatibilityMode.NONE:
        return False
    if (before, after) == _TIGHTENING:
        return kind not in _CHANGES_ALLOWED_WHEN_TIGHTENING
    return level_of_change(kind, before) is ChangeLevel.MAJOR


def _incompatible_schema_error(refused: Iterable[SchemaChange], forbidden_by: str) -> IncompatibleSchema:
    shown = tuple(first_items_fitting_message(refused, lambda change: change.path.text))
    listed = ", ".join(f"{each.path.text}: {_REFUSAL_MESSAGES[each.kind]}" for each in shown)
    return IncompatibleSchema(f"Invalid schema: {listed}", tuple(reason_against(each, forbidden_by) for each in shown))


# Reasons --------------------------------------------------------------------------------------------------------------


_ReasonTexts = tuple[str, str, str]
"""What was changed, who would suffer from it, and what could be done instead."""

_REASON_TEXTS: Mapping[ChangeKind, _ReasonTexts] = {
    ChangeKind.TYPE_NARROWED: (
        "{The} was open to any value and now has a type",
        "Events that were valid so far may no longer be",
        "Leave it open, or change the mode to `forward` first, where this is allowed",
    ),
    ChangeKind.REQUIRED_ARRAY_EXTENDED: (
        "More properties became required at {path}",
        "Events that were valid so far may lack them",
        "Add them as optional properties, or change the mode to `forward` first, where this is allowed",
    ),
    ChangeKind.ADDITIONAL_PROPERTIES_NARROWED: (
        "Undeclared properties now have to follow a schema at {path}",
        "Events that were valid so far may carry others",
        "Leave undeclared properties open, or change the mode to `forward` first, where this is allowed",
    ),
    ChangeKind.ID_CHANGED: (
        "The schema's own identifier at {path} changed",
        "Whoever refers to the schema by it would no longer find it",
        "Keep the identifier as it was",
    ),
    ChangeKind.SCHEMA_REMOVED: (
        "{The} was added to or taken away from where a schema was absent or present before",
        "Old and new events would follow different rules there",
        "Keep it as it was; a new optional property may carry what is new",
    ),
    ChangeKind.TYPE_CHANGED: (
        "The type of {the} changed",
        "Consumers read values of the type it had",
        "Keep the type, and add an optional property of the new type beside it",
    ),
    ChangeKind.NUMBER_OF_ITEMS_CHANGED: (
        "The number of schemas for the single items of {the} changed",
        "Consumers read each item by its position",
        "Keep the list as it was; a new optional property may carry what is new",
    ),
    ChangeKind.PROPERTY_REMOVED: (
        "The property `{name}` was removed",
        "Consumers may rely on it",
        "Keep it, at least as an optional property; new optional properties may be added beside it",
    ),
    ChangeKind.DEPENDENCY_ARRAY_CHANGED: (
        "The properties that have to come with `{name}` changed",
        "Consumers may rely on finding them together",
        "Keep the dependency as it was",
    ),
    ChangeKind.DEPENDENCY_SCHEMA_CHANGED: (
        "A schema that depends on a property was added or removed at {path}",
        "Consumers may rely on what holds when the property is there",
        "Keep the same dependencies; a new optional property may be added",
    ),
    ChangeKind.COMPOSITION_METHOD_CHANGED: (
        "The way in which the schemas of {the} are combined changed",
        "Values that consumers did not expect would become valid",
        "Keep `allOf`, `anyOf` or `oneOf` as it was",
    ),
    ChangeKind.ATTRIBUTE_VALUE_CHANGED: (
        "The limit `{name}` at {path} was added, removed or changed",
        "Old and new events would follow different limits",
        "Keep the limit as it was; a new optional property may have its own",
    ),
    ChangeKind.ENUM_ARRAY_CHANGED: (
        "The list of permitted values at {path} changed",
        "Consumers may know only the values listed so far, and old events may hold any of them",
        "Keep the same values, in whatever order; for an open list use a plain string",
    ),
    ChangeKind.SUB_SCHEMA_CHANGED: (
        "The number of schemas that are combined in {the} changed",
        "Consumers know the variants listed so far",
        "Keep the same variants; a new optional property may carry what is new",
    ),
    ChangeKind.REQUIRED_ARRAY_CHANGED: (
        "A property at {path} is no longer required",
        "Consumers may rely on finding it in every event",
        "Keep it required; properties that are new may be optional",
    ),
    ChangeKind.ADDITIONAL_PROPERTIES_CHANGED: (
        "Undeclared properties were permitted and are now forbidden, or the other way round, at {path}",
        "Events of one version would not be understood by the other",
        "Keep it as it was, and declare new properties as optional ones",
    ),
    ChangeKind.ADDITIONAL_ITEMS_CHANGED: (
        "Further items were permitted and are now forbidden, or the other way round, at {path}",
        "Events of one version would not be understood by the other",
        "Keep it as it was",
    ),
}

_DEFAULT_REASON_TEXTS = ("{The} changed", "Consumers may rely on it as it was", "Keep it as it was")


def reason_against(change: SchemaChange, forbidden_by: str) -> IncompatibilityReason:
    """Why a change is refused; `forbidden_by` names what forbids it, such as a mode."""
    changed, harm, advice = _REASON_TEXTS.get(change.kind, _DEFAULT_REASON_TEXTS)
    name = change.path.step
    the = f"schema at {change.path.text}" if name else "root of the schema"
    places = {"the": f"the {the}", "The": f"The {the}", "name": name, "path": change.path.text}
    text = f"{changed.format_map(places)}. {harm}, so {forbidden_by} does not allow it. {advice}."
    return IncompatibilityReason(change.kind.value, change.path.text, text)

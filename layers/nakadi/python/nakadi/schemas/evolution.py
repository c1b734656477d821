"""How a schema may follow the one before it, which version it then gets, and why a change is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from msgspec import Struct

from nakadi.model.event_type import ChangeLevel, CompatibilityMode, EventType, Schema
from nakadi.model.outcomes import IncompatibilityReason, IncompatibleSchema, Invalid
from nakadi.schemas.diff import ChangeKind, SchemaChange, find_schema_changes
from nakadi.schemas.strict_json import parse_strict
from nakadi.schemas.values import StepsExhausted, first_fitting_message

_PATCH_CHANGES = frozenset({ChangeKind.DESCRIPTION_CHANGED, ChangeKind.TITLE_CHANGED})
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
    changes = _find_changes(current.schema.text, text)
    step = _ModeChange(current.compatibility_mode, mode)
    refused = [each for each in changes if step.forbids(each.kind)]
    if refused:
        raise _incompatible_schema_error(refused, step)
    version = current.schema.version.bumped_by(step.change_level(changes))
    return Schema(type=current.schema.type, text=text, version=version, created_at=now)


def _find_changes(old: str, new: str) -> tuple[SchemaChange, ...]:
    try:
        return find_schema_changes(parse_strict(old), parse_strict(new))
    except StepsExhausted as error:
        raise Invalid("Invalid schema: it is too entangled to be compared with the one before it") from error


def level_of_change(kind: ChangeKind, mode: CompatibilityMode) -> ChangeLevel:
    """How far a change reaches in a mode; `none` counts like `forward`."""
    if kind in _PATCH_CHANGES:
        return ChangeLevel.PATCH
    if kind is ChangeKind.PROPERTIES_ADDED:
        return ChangeLevel.MINOR
    if kind in _NARROWING_CHANGES and mode is not CompatibilityMode.COMPATIBLE:
        return ChangeLevel.MINOR
    return ChangeLevel.MAJOR


class _ModeChange(Struct, frozen=True):
    """The mode before a change, whose rules apply, and the mode after it; mostly they are the same."""

    before: CompatibilityMode
    after: CompatibilityMode

    @property
    def tightens(self) -> bool:
        return (self.before, self.after) == (CompatibilityMode.FORWARD, CompatibilityMode.COMPATIBLE)

    def forbids(self, kind: ChangeKind) -> bool:
        if self.before is CompatibilityMode.NONE:
            return False
        if self.tightens:
            return kind not in _CHANGES_ALLOWED_WHEN_TIGHTENING
        return level_of_change(kind, self.before) is ChangeLevel.MAJOR

    def change_level(self, changes: Iterable[SchemaChange]) -> ChangeLevel:
        """The highest of all; a text that differs in nothing that is observed is still another text."""
        return max((level_of_change(each.kind, self.before) for each in changes), default=ChangeLevel.PATCH)

    def __str__(self) -> str:
        if self.tightens:
            return f"a change of mode from `{self.before}` to `{self.after}`"
        return f"mode `{self.before}`"


def _incompatible_schema_error(refused: Iterable[SchemaChange], step: _ModeChange) -> IncompatibleSchema:
    shown = tuple(first_fitting_message(refused, lambda change: change.path.text))
    listed = ", ".join(f"{each.path.text}: {_REFUSAL_MESSAGES[each.kind]}" for each in shown)
    return IncompatibleSchema(f"Invalid schema: {listed}", tuple(reason_against(each, str(step)) for each in shown))


# Reasons --------------------------------------------------------------------------------------------------------------


class _ReasonTexts(Struct, frozen=True):
    """What was changed, who would suffer from it, and what could be done instead."""

    change: str
    harm: str
    advice: str


_REASON_TEXTS: Mapping[ChangeKind, _ReasonTexts] = {
    ChangeKind.TYPE_NARROWED: _ReasonTexts(
        "{The} was open to any value and now has a type",
        "Events that were valid so far may no longer be",
        "Leave it open, or change the mode to `forward` first, where this is allowed",
    ),
    ChangeKind.REQUIRED_ARRAY_EXTENDED: _ReasonTexts(
        "More properties became required at {path}",
        "Events that were valid so far may lack them",
        "Add them as optional properties, or change the mode to `forward` first, where this is allowed",
    ),
    ChangeKind.ADDITIONAL_PROPERTIES_NARROWED: _ReasonTexts(
        "Undeclared properties now have to follow a schema at {path}",
        "Events that were valid so far may carry others",
        "Leave undeclared properties open, or change the mode to `forward` first, where this is allowed",
    ),
    ChangeKind.ID_CHANGED: _ReasonTexts(
        "The schema's own identifier at {path} changed",
        "Whoever refers to the schema by it would no longer find it",
        "Keep the identifier as it was",
    ),
    ChangeKind.SCHEMA_REMOVED: _ReasonTexts(
        "{The} was added to or taken away from where a schema was absent or present before",
        "Old and new events would follow different rules there",
        "Keep it as it was; a new optional property may carry what is new",
    ),
    ChangeKind.TYPE_CHANGED: _ReasonTexts(
        "The type of {the} changed",
        "Consumers read values of the type it had",
        "Keep the type, and add an optional property of the new type beside it",
    ),
    ChangeKind.NUMBER_OF_ITEMS_CHANGED: _ReasonTexts(
        "The number of schemas for the single items of {the} changed",
        "Consumers read each item by its position",
        "Keep the list as it was; a new optional property may carry what is new",
    ),
    ChangeKind.PROPERTY_REMOVED: _ReasonTexts(
        "The property `{name}` was removed",
        "Consumers may rely on it",
        "Keep it, at least as an optional property; new optional properties may be added beside it",
    ),
    ChangeKind.DEPENDENCY_ARRAY_CHANGED: _ReasonTexts(
        "The properties that have to come with `{name}` changed",
        "Consumers may rely on finding them together",
        "Keep the dependency as it was",
    ),
    ChangeKind.DEPENDENCY_SCHEMA_CHANGED: _ReasonTexts(
        "A schema that depends on a property was added or removed at {path}",
        "Consumers may rely on what holds when the property is there",
        "Keep the same dependencies; a new optional property may be added",
    ),
    ChangeKind.COMPOSITION_METHOD_CHANGED: _ReasonTexts(
        "The way in which the schemas of {the} are combined changed",
        "Values that consumers did not expect would become valid",
        "Keep `allOf`, `anyOf` or `oneOf` as it was",
    ),
    ChangeKind.ATTRIBUTE_VALUE_CHANGED: _ReasonTexts(
        "The limit `{name}` at {path} was added, removed or changed",
        "Old and new events would follow different limits",
        "Keep the limit as it was; a new optional property may have its own",
    ),
    ChangeKind.ENUM_ARRAY_CHANGED: _ReasonTexts(
        "The list of permitted values at {path} changed",
        "Consumers may know only the values listed so far, and old events may hold any of them",
        "Keep the same values, in whatever order; for an open list use a plain string",
    ),
    ChangeKind.SUB_SCHEMA_CHANGED: _ReasonTexts(
        "The number of schemas that are combined in {the} changed",
        "Consumers know the variants listed so far",
        "Keep the same variants; a new optional property may carry what is new",
    ),
    ChangeKind.REQUIRED_ARRAY_CHANGED: _ReasonTexts(
        "A property at {path} is no longer required",
        "Consumers may rely on finding it in every event",
        "Keep it required; properties that are new may be optional",
    ),
    ChangeKind.ADDITIONAL_PROPERTIES_CHANGED: _ReasonTexts(
        "Undeclared properties were permitted and are now forbidden, or the other way round, at {path}",
        "Events of one version would not be understood by the other",
        "Keep it as it was, and declare new properties as optional ones",
    ),
    ChangeKind.ADDITIONAL_ITEMS_CHANGED: _ReasonTexts(
        "Further items were permitted and are now forbidden, or the other way round, at {path}",
        "Events of one version would not be understood by the other",
        "Keep it as it was",
    ),
}

_DEFAULT_REASON_TEXTS = _ReasonTexts("{The} changed", "Consumers may rely on it as it was", "Keep it as it was")


def reason_against(change: SchemaChange, forbidden_by: str) -> IncompatibilityReason:
    """Why a change is refused; `forbidden_by` names what forbids it, such as a mode."""
    words = _REASON_TEXTS.get(change.kind, _DEFAULT_REASON_TEXTS)
    name = change.path.step
    the = f"schema at {change.path.text}" if name else "root of the schema"
    places = {"the": f"the {the}", "The": f"The {the}", "name": name, "path": change.path.text}
    changed = words.change.format_map(places)
    return IncompatibilityReason(
        change.kind.value,
        change.path.text,
        f"{changed}. {words.harm}, so {forbidden_by} does not allow it. {words.advice}.",
    )

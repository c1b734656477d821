"""Whether one schema may follow another, which version it then gets, and the objections to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from nakadi.model.event_type import ChangeLevel, CompatibilityMode, EventType, Schema, SchemaType
from nakadi.model.outcomes import IncompatibleSchema, Invalid
from nakadi.schemas.avro.evolution import next_avro_schema
from nakadi.schemas.change_reasons import reason_against
from nakadi.schemas.changes import ChangeKind, SchemaChange, find_schema_changes
from nakadi.schemas.strict_json import parse_strict
from nakadi.schemas.values import StepsExhausted, first_items_fitting_message

_PATCH_LEVEL_CHANGES = frozenset({ChangeKind.DESCRIPTION_CHANGED, ChangeKind.TITLE_CHANGED})
_NARROWING_CHANGES = frozenset(
    {ChangeKind.TYPE_NARROWED, ChangeKind.REQUIRED_ARRAY_EXTENDED, ChangeKind.ADDITIONAL_PROPERTIES_NARROWED}
)

# Changes that may accompany a change of mode from `forward` to `compatible`, at any level.
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


IsForced = Callable[[SchemaChange], bool]
"""Whether a change is permitted in every mode."""


def never_forced(_: SchemaChange) -> bool:
    return False


class JudgedChange(Struct, frozen=True):
    """A change, its level, and whether the compatibility mode permits it."""

    change: SchemaChange
    level: ChangeLevel
    permitted: bool


class SchemaEvolution(Struct, frozen=True):
    """The changes from one schema to the next. `forbidden_by` names the mode that decides, in the words of the
    reasons.
    """

    changes: tuple[JudgedChange, ...]
    forbidden_by: str

    @property
    def refused(self) -> tuple[SchemaChange, ...]:
        return tuple(each.change for each in self.changes if not each.permitted)

    @property
    def level(self) -> ChangeLevel:
        """The highest level of all changes. If the text differs but no compared difference is found, the level is that
        of a patch.
        """
        return max((each.level for each in self.changes), default=ChangeLevel.PATCH)


def judge_evolution(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    before: CompatibilityMode,
    after: CompatibilityMode,
    is_forced: IsForced = never_forced,
) -> SchemaEvolution:
    """Compare two schemas, and judge the changes by the mode `before`, or by the change of the mode to `after`."""
    try:
        changes = find_schema_changes(old, new)
    except StepsExhausted as error:
        raise Invalid("Invalid schema: it is too entangled to be compared with the one before it") from error
    tightens = (before, after) == _TIGHTENING
    return SchemaEvolution(
        tuple(
            JudgedChange(
                each, level_of_change(each.kind, before), not _forbids(before, after, each.kind) or is_forced(each)
            )
            for each in changes
        ),
        f"a change of mode from `{before}` to `{after}`" if tightens else f"mode `{before}`",
    )


def next_schema(
    current: EventType,
    text: str,
    mode: CompatibilityMode,
    now: datetime,
    is_forced: IsForced = never_forced,
    *,
    schema_type: SchemaType = SchemaType.JSON,
) -> Schema:
    """The event type's schema after `text` was submitted with `mode`: the same one, or one with a new version.

    `text` has passed `submission.parse_submitted_schema`, or is a valid Avro schema. Raises `IncompatibleSchema` if the
    changes are not allowed: by the present mode or, for an Avro schema, by `mode`.
    """
    if SchemaType.AVRO in (current.schema.type, schema_type):
        return next_avro_schema(current.schema, text, schema_type, mode, now)
    if text == current.schema.text:
        return current.schema
    old, new = parse_strict(current.schema.text), parse_strict(text)
    evolution = judge_evolution(old, new, current.compatibility_mode, mode, is_forced)
    if evolution.refused:
        raise incompatible_schema_error(evolution)
    version = current.schema.version.bumped_by(evolution.level)
    return Schema(type=current.schema.type, text=text, version=version, created_at=now)


def level_of_change(kind: ChangeKind, mode: CompatibilityMode) -> ChangeLevel:
    """The level of a change in a mode; `none` counts like `forward`."""
    if kind in _PATCH_LEVEL_CHANGES:
        return ChangeLevel.PATCH
    if kind is ChangeKind.PROPERTIES_ADDED:
        return ChangeLevel.MINOR
    if kind in _NARROWING_CHANGES and mode is not CompatibilityMode.COMPATIBLE:
        return ChangeLevel.MINOR
    return ChangeLevel.MAJOR


def _forbids(before: CompatibilityMode, after: CompatibilityMode, kind: ChangeKind) -> bool:
    """Whether the mode `before`, or the change to the mode `after`, forbids a change of this kind."""
    if before is CompatibilityMode.NONE:
        return False
    if (before, after) == _TIGHTENING:
        return kind not in _CHANGES_ALLOWED_WHEN_TIGHTENING
    return level_of_change(kind, before) is ChangeLevel.MAJOR


def incompatible_schema_error(evolution: SchemaEvolution) -> IncompatibleSchema:
    shown = tuple(first_items_fitting_message(evolution.refused, lambda change: change.path.text))
    listed = ", ".join(f"{each.path.text}: {_REFUSAL_MESSAGES[each.kind]}" for each in shown)
    reasons = tuple(reason_against(each, evolution.forbidden_by) for each in shown)
    return IncompatibleSchema(f"Invalid schema: {listed}", reasons)

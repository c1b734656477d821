"""How a schema may follow the one before it, and which version it then gets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from nakadi.model.event_type import CompatibilityMode, EventType
from nakadi.model.outcomes import Incompatible, Invalid
from nakadi.model.schema import ChangeLevel, Schema
from nakadi.schemas.diff import ChangeKind, SchemaChange, differences
from nakadi.schemas.reasons import reason_against
from nakadi.schemas.steps import Exhausted
from nakadi.schemas.strict_json import parse
from nakadi.schemas.telling import worth_telling

_PATCH = frozenset({ChangeKind.DESCRIPTION_CHANGED, ChangeKind.TITLE_CHANGED})
_NARROWING = frozenset(
    {ChangeKind.TYPE_NARROWED, ChangeKind.REQUIRED_ARRAY_EXTENDED, ChangeKind.ADDITIONAL_PROPERTIES_NARROWED}
)

# What may come with a change of mode from `forward` to `compatible`, whatever its level.
_WHEN_TIGHTENING = frozenset(
    {
        ChangeKind.DESCRIPTION_CHANGED,
        ChangeKind.TITLE_CHANGED,
        ChangeKind.PROPERTIES_ADDED,
        ChangeKind.REQUIRED_ARRAY_EXTENDED,
        ChangeKind.ADDITIONAL_PROPERTIES_CHANGED,
        ChangeKind.ADDITIONAL_ITEMS_CHANGED,
    }
)

_TEXTS: Mapping[ChangeKind, str] = {
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


def evolved(current: EventType, text: str, mode: CompatibilityMode, now: datetime) -> Schema:
    """The event type's schema after `text` was submitted with `mode`: the same one, or one with a new version.

    `text` has passed `submission.checked`. Raises `Incompatible` if the mode so far does not allow the changes.
    """
    if text == current.schema.text:
        return current.schema
    changes = _differences(current.schema.text, text)
    step = _Step(current.compatibility_mode, mode)
    refused = [each for each in changes if step.forbids(each.kind)]
    if refused:
        raise _incompatible(refused, step)
    version = current.schema.version.bumped(step.level(changes))
    return Schema(type=current.schema.type, text=text, version=version, created_at=now)


def _differences(old: str, new: str) -> tuple[SchemaChange, ...]:
    try:
        return differences(parse(old), parse(new))
    except Exhausted as error:
        raise Invalid("Invalid schema: it is too entangled to be compared with the one before it") from error


def level_of(kind: ChangeKind, mode: CompatibilityMode) -> ChangeLevel:
    """How far a change reaches in a mode; `none` counts like `forward`."""
    if kind in _PATCH:
        return ChangeLevel.PATCH
    if kind is ChangeKind.PROPERTIES_ADDED:
        return ChangeLevel.MINOR
    if kind in _NARROWING and mode is not CompatibilityMode.COMPATIBLE:
        return ChangeLevel.MINOR
    return ChangeLevel.MAJOR


@dataclass(frozen=True, slots=True)
class _Step:
    """A change from one mode, which judges, to another; mostly they are the same."""

    before: CompatibilityMode
    after: CompatibilityMode

    @property
    def tightens(self) -> bool:
        return (self.before, self.after) == (CompatibilityMode.FORWARD, CompatibilityMode.COMPATIBLE)

    def forbids(self, kind: ChangeKind) -> bool:
        if self.before is CompatibilityMode.NONE:
            return False
        if self.tightens:
            return kind not in _WHEN_TIGHTENING
        return level_of(kind, self.before) is ChangeLevel.MAJOR

    def level(self, changes: Iterable[SchemaChange]) -> ChangeLevel:
        """The highest of all; a text that differs in nothing that is observed is still another text."""
        return max((level_of(each.kind, self.before) for each in changes), default=ChangeLevel.PATCH)

    def __str__(self) -> str:
        if self.tightens:
            return f"a change of mode from `{self.before}` to `{self.after}`"
        return f"mode `{self.before}`"


def _incompatible(refused: Iterable[SchemaChange], step: _Step) -> Incompatible:
    told = tuple(worth_telling(refused, lambda change: change.path))
    listed = ", ".join(f"{each.path}: {_TEXTS[each.kind]}" for each in told)
    return Incompatible(f"Invalid schema: {listed}", tuple(reason_against(each, str(step)) for each in told))

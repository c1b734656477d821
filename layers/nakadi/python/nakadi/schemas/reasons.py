"""Why a schema change is refused, in the words of people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nakadi.model.outcomes import Reason
from nakadi.schemas.diff import ChangeKind, SchemaChange


@dataclass(frozen=True, slots=True)
class _Words:
    """What was changed, who would suffer from it, and what could be done instead."""

    change: str
    harm: str
    advice: str


_WORDS: Mapping[ChangeKind, _Words] = {
    ChangeKind.TYPE_NARROWED: _Words(
        "{The} was open to any value and now has a type",
        "Events that were valid so far may no longer be",
        "Leave it open, or change the mode to `forward` first, where this is allowed",
    ),
    ChangeKind.REQUIRED_ARRAY_EXTENDED: _Words(
        "More properties became required at {path}",
        "Events that were valid so far may lack them",
        "Add them as optional properties, or change the mode to `forward` first, where this is allowed",
    ),
    ChangeKind.ADDITIONAL_PROPERTIES_NARROWED: _Words(
        "Undeclared properties now have to follow a schema at {path}",
        "Events that were valid so far may carry others",
        "Leave undeclared properties open, or change the mode to `forward` first, where this is allowed",
    ),
    ChangeKind.ID_CHANGED: _Words(
        "The schema's own identifier at {path} changed",
        "Whoever refers to the schema by it would no longer find it",
        "Keep the identifier as it was",
    ),
    ChangeKind.SCHEMA_REMOVED: _Words(
        "{The} was added to or taken away from where a schema was absent or present before",
        "Old and new events would follow different rules there",
        "Keep it as it was; a new optional property may carry what is new",
    ),
    ChangeKind.TYPE_CHANGED: _Words(
        "The type of {the} changed",
        "Consumers read values of the type it had",
        "Keep the type, and add an optional property of the new type beside it",
    ),
    ChangeKind.NUMBER_OF_ITEMS_CHANGED: _Words(
        "The number of schemas for the single items of {the} changed",
        "Consumers read each item by its position",
        "Keep the list as it was; a new optional property may carry what is new",
    ),
    ChangeKind.PROPERTY_REMOVED: _Words(
        "The property `{name}` was removed",
        "Consumers may rely on it",
        "Keep it, at least as an optional property; new optional properties may be added beside it",
    ),
    ChangeKind.DEPENDENCY_ARRAY_CHANGED: _Words(
        "The properties that have to come with `{name}` changed",
        "Consumers may rely on finding them together",
        "Keep the dependency as it was",
    ),
    ChangeKind.DEPENDENCY_SCHEMA_CHANGED: _Words(
        "A schema that depends on a property was added or removed at {path}",
        "Consumers may rely on what holds when the property is there",
        "Keep the same dependencies; a new optional property may be added",
    ),
    ChangeKind.COMPOSITION_METHOD_CHANGED: _Words(
        "The way in which the schemas of {the} are combined changed",
        "Values that consumers did not expect would become valid",
        "Keep `allOf`, `anyOf` or `oneOf` as it was",
    ),
    ChangeKind.ATTRIBUTE_VALUE_CHANGED: _Words(
        "The limit `{name}` at {path} was added, removed or changed",
        "Old and new events would follow different limits",
        "Keep the limit as it was; a new optional property may have its own",
    ),
    ChangeKind.ENUM_ARRAY_CHANGED: _Words(
        "The list of permitted values at {path} changed",
        "Consumers may know only the values listed so far, and old events may hold any of them",
        "Keep the same values, in whatever order; for an open list use a plain string",
    ),
    ChangeKind.SUB_SCHEMA_CHANGED: _Words(
        "The number of schemas that are combined in {the} changed",
        "Consumers know the variants listed so far",
        "Keep the same variants; a new optional property may carry what is new",
    ),
    ChangeKind.REQUIRED_ARRAY_CHANGED: _Words(
        "A property at {path} is no longer required",
        "Consumers may rely on finding it in every event",
        "Keep it required; properties that are new may be optional",
    ),
    ChangeKind.ADDITIONAL_PROPERTIES_CHANGED: _Words(
        "Undeclared properties were permitted and are now forbidden, or the other way round, at {path}",
        "Events of one version would not be understood by the other",
        "Keep it as it was, and declare new properties as optional ones",
    ),
    ChangeKind.ADDITIONAL_ITEMS_CHANGED: _Words(
        "Further items were permitted and are now forbidden, or the other way round, at {path}",
        "Events of one version would not be understood by the other",
        "Keep it as it was",
    ),
}

_ANYTHING_ELSE = _Words("{The} changed", "Consumers may rely on it as it was", "Keep it as it was")


def reason_against(change: SchemaChange, judge: str) -> Reason:
    """`judge` is what forbids the change, such as a mode."""
    words = _WORDS.get(change.kind, _ANYTHING_ELSE)
    name = change.place.step
    the = f"schema at {change.path}" if name else "root of the schema"
    places = {"the": f"the {the}", "The": f"The {the}", "name": name, "path": change.path}
    changed = words.change.format_map(places)
    return Reason(
        change.kind.value, change.path, f"{changed}. {words.harm}, so {judge} does not allow it. {words.advice}."
    )

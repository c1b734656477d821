"""Describes changes of a schema: the change, its effect on the version, and why a mode refuses it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nakadi.model.event_type import ChangeLevel
from nakadi.model.outcomes import IncompatibilityReason
from nakadi.schemas.changes import ChangeKind, SchemaChange

_ReasonTexts = tuple[str, str, str]
"""The change, its consequence for publishers or consumers, and what to do instead."""

_REASON_TEXTS: Mapping[ChangeKind, _ReasonTexts] = {
    ChangeKind.DESCRIPTION_CHANGED: (
        "The description of {the} changed",
        "Readers of the schema may rely on it",
        "Keep the description",
    ),
    ChangeKind.TITLE_CHANGED: (
        "The title of {the} changed",
        "Readers of the schema may rely on it",
        "Keep the title",
    ),
    ChangeKind.PROPERTIES_ADDED: (
        "Properties were added at {path}",
        "Events that were valid so far may carry other values under these names",
        "Leave them undeclared",
    ),
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
        "{The} was added or removed",
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


def reason_against(change: SchemaChange, forbidden_by: str) -> IncompatibilityReason:
    """Why a change is refused; `forbidden_by` names the reason, such as a mode."""
    changed, harm, advice = _REASON_TEXTS[change.kind]
    text = f"{_with_places(changed, change)}. {harm}, so {forbidden_by} does not allow it. {advice}."
    return IncompatibilityReason(change.kind.value, change.path.text, text)


def description_of_change(change: SchemaChange, level: ChangeLevel) -> str:
    """A description of a permitted change, and of its effect on the version."""
    return f"{_with_places(_REASON_TEXTS[change.kind][0], change)}. This is a {level.name.lower()} change."


def warning_to_publishers(change: SchemaChange, before: Any, now: Any) -> str:
    """A sentence about properties that publishers now have to send, which follows the description of the change.

    `before` and `now` are the values at the place of the change.
    """
    if change.kind is not ChangeKind.REQUIRED_ARRAY_EXTENDED:
        return ""
    known = before if isinstance(before, list) else []
    added = [f"`{name}`" for name in now if name not in known]
    return f" Publishers that do not send {' and '.join(added)} will be rejected."


def _with_places(template: str, change: SchemaChange) -> str:
    name, path = change.path.step, change.path.text
    the = f"schema at {path}" if name else "root of the schema"
    return template.format_map({"the": f"the {the}", "The": f"The {the}", "name": name, "path": path})

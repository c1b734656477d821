"""The place of a change in both documents, and the values there."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct

from nakadi.schemas.changes import ChangeKind, SchemaChange
from nakadi.schemas.document import COMBINATOR_KEYWORDS, reference_steps, value_at_step

# The paths of these changes name a schema; the change is in these keywords of that schema.
KEYWORDS_BY_KIND: Mapping[ChangeKind, Sequence[str]] = {
    ChangeKind.DESCRIPTION_CHANGED: ("description",),
    ChangeKind.TITLE_CHANGED: ("title",),
    ChangeKind.ID_CHANGED: ("id", "$id"),
    ChangeKind.SUB_SCHEMA_CHANGED: COMBINATOR_KEYWORDS,
    ChangeKind.COMPOSITION_METHOD_CHANGED: COMBINATOR_KEYWORDS,
    ChangeKind.NUMBER_OF_ITEMS_CHANGED: ("items",),
}


class Place(Struct, frozen=True):
    """A place in a document: the enclosing value, and the name or index in that value. The root has no enclosing
    value.
    """

    container: Any = None
    name: str = ""

    @property
    def is_root(self) -> bool:
        return self.container is None

    @property
    def is_filled(self) -> bool:
        if isinstance(self.container, Mapping):
            return self.name in self.container
        return self.name.isdecimal() and int(self.name) < len(self.container)

    @property
    def value(self) -> Any:
        return value_at_step(self.container, self.name)


def place_of(root: Mapping[str, Any], steps: Sequence[str]) -> Place | None:
    """Where the path of a change leads in a document; None if a step of the path is missing in the document.

    Two steps of such a path are not names in the document. `$ref` leads to a definition. Keywords next to a combinator,
    or several types, are compared as members of a list that appears in neither document.
    """
    place, value = Place(), root
    names = deque([*steps, ""])
    while len(names) > 1:
        name = names.popleft()
        if isinstance(value, Mapping) and name == "$ref" and isinstance(value.get(name), str):
            target = _literal_place_of(root, reference_steps(value[name]) or ())
        elif isinstance(value, Mapping) and name in COMBINATOR_KEYWORDS and name not in value and names[0].isdecimal():
            names.popleft()
            continue
        else:
            target = _literal_place_of(value, (name,))
        if target is None:
            return None
        place, value = target, root if target.is_root else target.value
    return place


def _literal_place_of(value: Any, names: Sequence[str]) -> Place | None:
    place = Place()
    for name in names:
        if not isinstance(value, Mapping | list):
            return None
        place = Place(value, name)
        value = place.value
    return place


def value_of(root: Mapping[str, Any], place: Place | None) -> Any:
    return None if place is None else root if place.is_root else place.value


def values_of_change(change: SchemaChange, old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[Any, Any]:
    """The values at the place of a change, before and after; `UNSET` for none."""
    before, now = (_value_in_place(change, root) for root in (old, new))
    if change.kind is ChangeKind.PROPERTIES_ADDED and isinstance(now, Mapping):
        known = before if isinstance(before, Mapping) else {}
        return UNSET, {name: schema for name, schema in now.items() if name not in known}
    return before, now


def _value_in_place(change: SchemaChange, root: Mapping[str, Any]) -> Any:
    place = place_of(root, change.path.steps)
    if place is None or not (place.is_root or place.is_filled):
        return UNSET
    value = value_of(root, place)
    if change.kind not in KEYWORDS_BY_KIND or not isinstance(value, Mapping):
        return value
    return next((value[keyword] for keyword in KEYWORDS_BY_KIND[change.kind] if keyword in value), UNSET)

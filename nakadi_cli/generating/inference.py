"""Proposes a schema under which all events of a sample are valid.

Each value of the events is counted in an `Observation` of its place. A proposal states properties that hold for all
of them and probably for others: types, members that every event has, formats, and few texts that repeat. It leaves out
properties that a sample cannot show: bounds, patterns and lengths.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from nakadi.model.event_type import Category
from nakadi.schemas.formats import FORMAT_CHECKS
from nakadi.schemas.limits import MAX_SCHEMA_VALUES
from nakadi.schemas.strict_json import StrictJsonError, parse_strict
from nakadi_cli.failures import BadInput
from nakadi_cli.generating.model_schemas import guessed_category, owned_part

_MOST_LEVELS = 30
# The limit for the places in all events. A member beyond this limit counts as one that the schema does not name.
_MOST_OBSERVATIONS = 20_000
_MOST_MEMBERS = 1_000

_MOST_CHOICES = 10
_LONGEST_CHOICE = 50
_TEXTS_FOR_EACH_CHOICE = 3
_FEWEST_TEXTS_FOR_CHOICES = 10

_FEWEST_NAMES_OF_MAP = 20
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_NAME_THAT_IS_DATA = re.compile(rf"{_UUID.pattern}|[0-9]+|[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}(?:T.*)?")

_FORMATS = {
    "date-time": lambda text: FORMAT_CHECKS["date-time"](text) is None,
    "uuid": lambda text: _UUID.fullmatch(text) is not None,
    "email": lambda text: FORMAT_CHECKS["email"](text) is None,
}


class Budget:
    """The number of places that may still be observed."""

    def __init__(self) -> None:
        self.left = _MOST_OBSERVATIONS

    def take(self) -> bool:
        self.left -= 1
        return self.left >= 0


class Observation:
    """All values at one place, such as `items[].sku`."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._kinds: Counter[str] = Counter()
        self._texts: dict[str, None] | None = {}
        self._formats = dict.fromkeys(_FORMATS)
        self._counts: Counter[str] = Counter()
        self._members: dict[str, Observation] = {}
        self._items: Observation | None = None
        # Some members were not observed, so statements about a name hold here, but not where places are merged.
        self._is_unknown = False
        self._is_merged = False

    def add(self, value: Any, level: int = 0) -> None:
        """Count a value, and those within it."""
        kind = _KINDS[type(value)]
        self._kinds[kind] += 1
        if level >= _MOST_LEVELS:
            self._is_unknown = True
        elif kind == "string":
            self._add_text(value)
        elif kind == "object":
            self._add_members(value, level)
        elif kind == "array":
            self._add_items(value, level)

    def _add_text(self, text: str) -> None:
        self._formats = {name: None for name in self._formats if _FORMATS[name](text)}
        if self._texts is not None:
            self._texts[text] = None
            if len(self._texts) > _MOST_CHOICES or len(text) > _LONGEST_CHOICE:
                self._texts = None

    def _add_members(self, value: Mapping[str, Any], level: int) -> None:
        for name, each in value.items():
            if name not in self._members:
                if len(self._members) == _MOST_MEMBERS or not self._budget.take():
                    self._is_unknown = True
                    continue
                self._members[name] = Observation(self._budget)
            self._counts[name] += 1
            self._members[name].add(each, level + 1)

    def _add_items(self, value: list[Any], level: int) -> None:
        if self._items is None:
            self._items = Observation(self._budget)
        for each in value:
            self._items.add(each, level + 1)

    def merge(self, other: Observation) -> None:
        """Add the counts of another observation."""
        self._kinds.update(other._kinds)
        self._counts.update(other._counts)
        self._is_unknown |= other._is_unknown
        self._formats = {name: None for name in self._formats if name in other._formats}
        both = None if self._texts is None or other._texts is None else self._texts | other._texts
        self._texts = both if both is not None and len(both) <= _MOST_CHOICES else None
        for name, each in other._members.items():
            self._members.setdefault(name, Observation(self._budget)).merge(each)
        if other._items is not None:
            self._items = self._items or Observation(self._budget)
            self._items.merge(other._items)
        self._is_merged = True

    def schema(self, levels: int, *, has_enums: bool) -> dict[str, Any]:
        """The schema that holds for all values; values deeper than `levels` are not restricted."""
        if not self._kinds or levels == 0:
            return {}
        kinds = [each for each in self._kinds if each != "integer" or "number" not in self._kinds]
        schema: dict[str, Any] = {"type": sorted(kinds) if len(kinds) > 1 else kinds[0]}
        if "string" in kinds:
            schema |= self._text_rules(kinds, has_enums=has_enums)
        if "object" in kinds:
            schema |= self._object_rules(levels, has_enums=has_enums)
        if "array" in kinds and self._items is not None:
            schema["items"] = self._items.schema(levels - 1, has_enums=has_enums)
        return schema

    def _text_rules(self, kinds: list[str], *, has_enums: bool) -> dict[str, Any]:
        found = next(iter(self._formats), None)
        if found is not None:
            return {"format": found}
        enough = max(_FEWEST_TEXTS_FOR_CHOICES, _TEXTS_FOR_EACH_CHOICE * len(self._texts or ()))
        if has_enums and self._texts and self._kinds["string"] >= enough and set(kinds) <= {"string", "null"}:
            return {"enum": [*sorted(self._texts), *([None] if "null" in kinds else [])]}
        return {}

    def _object_rules(self, levels: int, *, has_enums: bool) -> dict[str, Any]:
        if self._is_map():
            value = Observation(self._budget)
            for each in self._members.values():
                value.merge(each)
            return {} if self._is_unknown else {"additionalProperties": value.schema(levels - 1, has_enums=has_enums)}
        if self._is_unknown and self._is_merged:
            return {}
        objects = self._kinds["object"]
        members = {name: each.schema(levels - 1, has_enums=has_enums) for name, each in self._members.items()}
        required = [name for name in self._members if self._counts[name] == objects]
        return {
            **({"properties": members} if members else {}),
            **({"required": required} if required else {}),
        }

    def _is_map(self) -> bool:
        """Whether the names look like data: ids and days, or many names that few objects share."""
        if len(self._members) > 1 and all(map(_NAME_THAT_IS_DATA.fullmatch, self._members)):
            return True
        most_common = max(self._counts.values(), default=0)
        return len(self._members) >= _FEWEST_NAMES_OF_MAP and 2 * most_common < self._kinds["object"]


class Inferred(Struct, frozen=True):
    """The schema that an event type of this category would have, and the number of events from which it was
    inferred."""

    schema: dict[str, Any]
    category: Category
    count: int


def infer_from_events(texts: Iterable[bytes], category: Category | None = None, *, has_enums: bool = True) -> Inferred:
    """Infer a schema from events in their original spelling.

    Without a category, the members of the events decide it. Raises `BadInput` for an event that no broker would accept,
    and if there are no events.
    """
    root = Observation(Budget())
    count = 0
    for count, text in enumerate(texts, 1):
        root.add(_parse(text, count))
    if not count:
        raise BadInput("There are no events.")
    whole = _schema_within_limits(root, has_enums=has_enums)
    chosen = category or _category_of(whole)
    schema = owned_part(whole, chosen)
    if schema.get("type", "object") != "object":
        raise BadInput("The member `data` of a data event must be an object.")
    return Inferred({"type": "object", **schema}, chosen, count)


def _parse(text: bytes, number: int) -> dict[str, Any]:
    try:
        event = parse_strict(text.decode())
    except StrictJsonError as error:
        raise BadInput(f"Event {number}: no broker would accept it: {error}.") from error
    if not isinstance(event, dict):
        raise BadInput(f"Event {number} is not an object.")
    return event


def _schema_within_limits(root: Observation, *, has_enums: bool) -> dict[str, Any]:
    """The schema, with as many levels as fit into the permitted size."""
    for levels in (_MOST_LEVELS, 10, 6, 4, 3, 2):
        schema = root.schema(levels, has_enums=has_enums)
        if _size(schema) < MAX_SCHEMA_VALUES:
            return schema
    return {"type": "object"}


def _category_of(whole: Mapping[str, Any]) -> Category:
    """The category, which follows from the members that every event has."""
    required = set(whole.get("required", ()))
    members = whole.get("properties", {})
    if "eid" not in members.get("metadata", {}).get("required", ()):
        return Category.UNDEFINED
    return guessed_category({name: each for name, each in members.items() if name in required})


_KINDS = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}


def _size(schema: Any) -> int:
    waiting, count = [schema], 0
    while waiting:
        value = waiting.pop()
        count += 1
        if isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
    return count

"""Parts of a schema that no type can express: patterns, formats, alternatives, and others.

Each value at the place of such a part is checked by the code for that part only. So the cost of a schema depends only
on the cost of these parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from operator import itemgetter
from typing import Any

from msgspec import Struct

from nakadi.schemas.values import RemainingSteps

AcceptsValue = Callable[[Any, RemainingSteps], bool]


class Elements(Enum):
    """A step of a path that leads to all elements of a list, or to all values of an object without named members."""

    OF_LIST = auto()
    OF_OBJECT = auto()


PathStep = str | Elements
"""The name of a member, or all elements."""


NO_KEYWORDS: frozenset[str] = frozenset()
KEYWORDS_ABOUT_FURTHER_MEMBERS = frozenset({"properties", "patternProperties", "additionalProperties"})
PartKey = tuple[int, frozenset[str]]


class UntypedPart(Struct, frozen=True):
    """A schema, and the path from an event to the values that it checks.

    `keywords` restricts the part to these keywords of the schema, because the type covers the others.
    """

    path: tuple[PathStep, ...]
    schema: Mapping[str, Any]
    keywords: frozenset[str] = NO_KEYWORDS

    @property
    def key(self) -> PartKey:
        """A key that is the same for the same part of a document, wherever its values are."""
        return id(self.schema), self.keywords

    def below(self, step: PathStep) -> UntypedPart:
        """The same part, with a path from the enclosing value."""
        return UntypedPart((step, *self.path), self.schema, self.keywords)

    def schema_to_check(self) -> Mapping[str, Any]:
        if not self.keywords:
            return self.schema
        checked = {name: self.schema[name] for name in self.keywords}
        if "properties" in checked:  # the type checks the values of these members: here only the names matter
            checked["properties"] = {key: {} for key in checked["properties"]}
        return checked


def values_at(path: Sequence[PathStep], values: Sequence[Any]) -> Sequence[Any]:
    """The values that a path leads to from all of these. A missing or null value on the way leads to no values."""
    for step in path:
        if step is Elements.OF_LIST:
            values = [element for value in values if value is not None for element in value]
        elif step is Elements.OF_OBJECT:
            values = [element for value in values if value is not None for element in value.values()]
        else:
            try:
                values = list(map(itemgetter(step), values))
            except (KeyError, TypeError):
                values = [value[step] for value in values if value is not None and step in value]
    return values

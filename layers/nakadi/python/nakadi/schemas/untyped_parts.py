"""Parts of a schema that no type can say: patterns, formats, alternatives, and whatever else is left.

A batch is decoded to a type that says the rest of the schema. The values in the places of these parts are decoded
without a type, and each is held to the code that is made of its part alone. So a schema is not slower for what it says,
but for what its parts cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from itertools import repeat
from operator import attrgetter
from typing import Any

from msgspec import UNSET, Struct, to_builtins

from nakadi.schemas.values import RemainingSteps, StepsExhausted

AcceptsValue = Callable[[Any, RemainingSteps], bool]

CompileParts = Callable[[Sequence[Mapping[str, Any]]], Sequence[AcceptsValue]]
"""Makes functions of parts of one schema, which refer to it."""

# A hundredth of a second at worst. What takes longer is left to those who wait for their turn.
MAX_STEPS = 200_000


class Elements(Enum):
    """A step of a path that leads to all elements of a list, or to all values of an object without named members."""

    OF_LIST = auto()
    OF_OBJECT = auto()


PathStep = str | Elements
"""A field of a struct, or all elements."""


NO_KEYWORDS: frozenset[str] = frozenset()
KEYWORDS_ABOUT_FURTHER_MEMBERS = frozenset({"properties", "patternProperties", "additionalProperties"})
PartKey = tuple[int, frozenset[str]]


class UntypedPart(Struct, frozen=True):
    """A schema, and the path from a decoded value to the values that are held to it.

    With `keywords`, only these of the schema are meant: the values are structs of a type that says the others.
    """

    path: tuple[PathStep, ...]
    schema: Mapping[str, Any]
    keywords: frozenset[str] = NO_KEYWORDS

    @property
    def key(self) -> PartKey:
        """The same for the same part of a document, wherever its values are."""
        return id(self.schema), self.keywords

    def below(self, step: PathStep) -> UntypedPart:
        """The same part, seen from the value around."""
        return UntypedPart((step, *self.path), self.schema, self.keywords)

    def schema_to_check(self) -> Mapping[str, Any]:
        if not self.keywords:
            return self.schema
        checked = {name: self.schema[name] for name in self.keywords}
        if "properties" in checked:  # the type says what they are: here it matters which members are named
            checked["properties"] = {key: {} for key in checked["properties"]}
        return checked


class UntypedPartCheck:
    """Holds events to the untyped parts of their schema. `compile_parts` is called once for each part of the schema."""

    def __init__(self, compile_parts: CompileParts) -> None:
        self._compile_parts = compile_parts
        self._check_by_part: dict[PartKey, AcceptsValue] = {}

    def prepare(self, parts: Iterable[UntypedPart]) -> None:
        """Compile what these parts need. Takes long."""
        missing = {part.key: part.schema_to_check() for part in parts if part.key not in self._check_by_part}
        if missing:
            self._check_by_part |= zip(missing, self._compile_parts(list(missing.values())), strict=True)

    def accepts(self, events: Sequence[Any], parts: Iterable[UntypedPart]) -> bool:
        """Whether all values in the places of these parts are certainly valid."""
        steps = [MAX_STEPS]
        try:
            for part in parts:
                accepts = self._check_by_part[part.key]
                values = _values_at(part.path, events)
                if not all(map(accepts, to_builtins(values) if part.keywords else values, repeat(steps))):
                    return False
        except (StepsExhausted, RecursionError):
            return False
        return True


def _values_at(path: Sequence[PathStep], values: Sequence[Any]) -> Sequence[Any]:
    """The values that a path leads to from all of these. What is missing or null on the way has none behind it."""
    for step in path:
        if step is Elements.OF_LIST:
            values = [element for value in values if value is not None for element in value]
        elif step is Elements.OF_OBJECT:
            values = [element for value in values if value is not None for element in value.values()]
        else:
            get = attrgetter(step)
            values = [found for value in values if value is not None and (found := get(value)) is not UNSET]
    return values

"""What is wrong with an event, in the words that clients of the API know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from nakadi.schemas.json_text import text_of
from nakadi.schemas.place import escaped
from nakadi.schemas.steps import Steps, spend

MOST_LINES = 100

_MOST_QUOTED = 1_000
_STEPS_PER_CHARACTER = 5
_STEPS_PER_SORTED_NAME = 5

_EXPECTED = {
    "array": "expected type: JSONArray",
    "boolean": "expected type: Boolean",
    "integer": "expected type: Number",
    "null": "expected: null",
    "number": "expected type: Number",
    "object": "expected type: JSONObject",
    "string": "expected type: String",
}

_FOUND = {bool: "Boolean", float: "Double", str: "String", list: "JSONArray", dict: "JSONObject", type(None): "Null"}


@dataclass(frozen=True, slots=True)
class Violation:
    """What is wrong at a place of the event, and what else is wrong in there that caused it."""

    pointer: str
    text: str
    causes: tuple[Violation, ...] = ()
    count: int = field(init=False)
    """How many there are in here, this one if it has no causes."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", sum(each.count for each in self.causes) or 1)

    def lines(self) -> Iterator[str]:
        yield f"{cut(self.pointer)}: {self.text}"
        for each in self.causes:
            yield from each.lines()


def together(pointer: str, violations: tuple[Violation, ...]) -> Violation | None:
    """Several are told as one that counts them."""
    if len(violations) < 2:
        return violations[0] if violations else None
    count = sum(each.count for each in violations)
    number = str(count) if count <= MOST_LINES else f"more than {MOST_LINES}"
    return Violation(pointer, f"{number} schema violations found", violations)


def mismatch(type_name: str, value: Any) -> str:
    expected = "expected type: Integer" if type_name == "integer" and isinstance(value, float) else _EXPECTED[type_name]
    return f"{expected}, found: {_name_of_type(value)}"


def _name_of_type(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return "Integer" if -(2**31) <= value < 2**31 else "Long"
    return _FOUND[type(value)]


def member(pointer: str, name: str) -> str:
    """The place of a member of the object at `pointer`."""
    return f"{pointer}/{cut(escaped(name[: _MOST_QUOTED + 1]))}"


def quoted(value: Any, steps: Steps) -> str:
    """Texts as they are, objects and arrays as JSON, and numbers as Java writes them."""
    room = [_MOST_QUOTED]
    beginning = _beginning(value, room, steps)
    spend(steps, (_MOST_QUOTED - room[0]) * _STEPS_PER_CHARACTER)
    return cut(text_of(beginning))


def _beginning(value: Any, room: list[int], steps: Steps) -> Any:
    """A value that is written like this one as far as there is room, and is little more than that."""
    if isinstance(value, str):
        room[0] -= min(len(value), _MOST_QUOTED + 1)
        return value[: _MOST_QUOTED + 1]
    room[0] -= 1
    if isinstance(value, list):
        return [_beginning(each, room, steps) for each in takewhile(lambda _: room[0] >= 0, value)]
    if isinstance(value, dict):
        spend(steps, len(value) * _STEPS_PER_SORTED_NAME)
        names = takewhile(lambda _: room[0] >= 0, sorted(value))
        return {_beginning(name, room, steps): _beginning(value[name], room, steps) for name in names}
    return value


def cut(text: str) -> str:
    return text if len(text) <= _MOST_QUOTED else f"{text[:_MOST_QUOTED]}…"

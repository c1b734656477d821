"""What is wrong with an event, in the words that clients of the API know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nakadi.schemas.json_text import text_of

MOST_LINES = 100

_MOST_QUOTED = 1_000

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

    def count(self) -> int:
        return sum(each.count() for each in self.causes) or 1

    def lines(self) -> Iterator[str]:
        yield f"{self.pointer}: {self.text}"
        for each in self.causes:
            yield from each.lines()


def together(pointer: str, violations: tuple[Violation, ...]) -> Violation | None:
    """Several are told as one that counts them."""
    if len(violations) < 2:
        return violations[0] if violations else None
    count = sum(each.count() for each in violations)
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
    return f"{pointer}/{cut(name.replace('~', '~0').replace('/', '~1'))}"


def quoted(value: Any) -> str:
    """Texts as they are, objects and arrays as JSON, and numbers as Java writes them."""
    return cut(text_of(value))


def cut(text: str) -> str:
    return text if len(text) <= _MOST_QUOTED else f"{text[:_MOST_QUOTED]}…"

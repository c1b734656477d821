"""JSON values: the names of their types in messages, when two values are the same, and their forms as text.

`1` and `1.0` are the same, `1` and `true` are not, and the order of members does not matter. Keys, event owners and
messages are texts as Java and org.json make them, so that they stay the same when producers and consumers migrate from
the original Nakadi.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeVar

from msgspec import Struct

_JAVA_TYPE_NAMES: dict[type, str] = {
    bool: "Boolean",
    int: "Integer",
    float: "Double",
    str: "String",
    list: "JsonArray",
    dict: "JsonObject",
    type(None): "Null",
}


_JAVA_NUMBER_TYPE_NAMES = frozenset({"Integer", "Long", "Double"})


def java_type_name(value: Any) -> str:
    if type(value) is int and not -(2**31) <= value < 2**31:
        return "Long"
    return _JAVA_TYPE_NAMES[type(value)]


def has_java_type_name(value: Any, name: str) -> bool:
    return java_type_name(value) in (_JAVA_NUMBER_TYPE_NAMES if name == "Number" else {name})


def canonical_text(value: Any) -> str:
    """A text that is equal for equal JSON values: 1, 1.0 and true differ, and the order of members does not count."""
    return json.dumps(value, sort_keys=True)


# These objects make the keys of lists, objects and truth values differ from all others. Their hashes cannot be guessed,
# so no client can send a list of values whose keys all collide.
_LIST_KEY_MARKER, _OBJECT_KEY_MARKER, _BOOLEAN_KEY_MARKER = object(), object(), object()


def equality_key(value: Any, steps: RemainingSteps) -> Hashable:
    """A key that is equal for two values exactly if they are the same."""
    if isinstance(value, list):
        spend_steps(steps, len(value))
        return (_LIST_KEY_MARKER, *[equality_key(each, steps) for each in value])
    if isinstance(value, dict):
        spend_steps(steps, 4 * len(value))
        members = sorted(value.items(), key=lambda member: member[0])
        return (_OBJECT_KEY_MARKER, *[part for name, each in members for part in (name, equality_key(each, steps))])
    return (_BOOLEAN_KEY_MARKER, value) if isinstance(value, bool) else value


_SCALARS_WITH_THEIR_OWN_KEY = frozenset({str, int, float, type(None)})


def all_differ(values: list[Any], steps: RemainingSteps) -> bool:
    spend_steps(steps, 4 * len(values))
    if _SCALARS_WITH_THEIR_OWN_KEY.issuperset(map(type, values)):
        return len(set(values)) == len(values)
    return len({equality_key(each, steps) for each in values}) == len(values)


# Different decimals of this many digits are also different floats.
_DIGITS_OF_FLOAT = 15


class Divisor(Struct, frozen=True):
    """A number that others may be multiples of. Floats below `exact_below`, when multiplied by the denominator, have no
    more digits than floats can distinguish.
    """

    numerator: int
    denominator: int
    exact_below: int

    @classmethod
    def from_number(cls, number: float) -> Divisor:
        fraction = exact_fraction(number)
        decimals = next((each for each in range(_DIGITS_OF_FLOAT) if 10**each % fraction.denominator == 0), None)
        bound = 0 if decimals is None else 10**_DIGITS_OF_FLOAT * fraction.denominator // 10**decimals
        return cls(fraction.numerator, fraction.denominator, bound)


def is_multiple_of(value: float, divisor: Divisor) -> bool:
    """Whether `value` is a whole number of divisors, both read as decimals: 0.3 is a multiple of 0.1."""
    if isinstance(value, int):
        return value * divisor.denominator % divisor.numerator == 0
    scaled = value * divisor.denominator if divisor.exact_below else math.inf
    if -divisor.exact_below < scaled < divisor.exact_below:
        # The nearest multiple of the divisor is a decimal of few digits. If its float is this value, the value is
        # written as that decimal; if not, the value has more decimal places than any multiple.
        quotient = round(scaled)
        return quotient / divisor.denominator == value and quotient % divisor.numerator == 0
    return math.isfinite(value) and exact_fraction(value) % Fraction(divisor.numerator, divisor.denominator) == 0


def exact_fraction(number: float) -> Fraction:
    return Fraction(number) if isinstance(number, int) else Fraction(repr(number))


_LITERAL_TEXTS = {True: "true", False: "false", None: "null"}

# The solidus of `</` is escaped, and so are two ranges of characters that JSON does not require to be escaped.
_CHARACTER_TO_ESCAPE_PATTERN = re.compile(r'["\\\x00-\x1f\x80-\x9f\u2000-\u20ff]|(?<=<)/')
_JAVA_ESCAPES = {'"': r"\"", "\\": r"\\", "\b": r"\b", "\t": r"\t", "\n": r"\n", "\f": r"\f", "\r": r"\r"}


def java_text(value: Any) -> str:
    """A parsed JSON value as text; objects and arrays as compact JSON with sorted keys, spelled as org.json does."""
    match value:
        case str():
            return value
        case bool() | None:
            return _LITERAL_TEXTS[value]
        case int():
            return str(value)
        case float():
            return java_double_text(value)
        case _:
            return org_json_text(value)


def org_json_text(value: Any) -> str:
    """A parsed JSON value as JSON, with sorted keys."""
    match value:
        case str():
            return f'"{_CHARACTER_TO_ESCAPE_PATTERN.sub(_escape_character, value)}"'
        case float():
            return _without_trailing_zeros(java_double_text(value))
        case list():
            return f"[{','.join(map(org_json_text, value))}]"
        case dict():
            members = (f"{org_json_text(name)}:{org_json_text(value[name])}" for name in sorted(value))
            return f"{{{','.join(members)}}}"
        case _:
            return java_text(value)


def _without_trailing_zeros(number: str) -> str:
    """A number as org.json writes it: 1.50 as 1.5 and 1.0 as 1, but 1.0E10 unchanged."""
    return number if "E" in number else number.rstrip("0").removesuffix(".")


def _escape_character(found: re.Match[str]) -> str:
    symbol = found.group()
    if symbol == "/":
        return r"\/"
    return _JAVA_ESCAPES.get(symbol) or f"\\u{ord(symbol):04x}"


def java_double_text(number: float) -> str:
    """The shortest digits, at least two, that identify the number; without an exponent from 0.001 up to ten million."""
    shortest = Decimal(repr(number))
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        plain = f"{shortest:f}"
        return plain if "." in plain else f"{plain}.0"
    if len(shortest.normalize().as_tuple().digits) == 1:
        shortest = Decimal(f"{number:.1e}")
    sign, digits, _ = shortest.normalize().as_tuple()
    fraction = "".join(map(str, digits[1:])) or "0"
    return f"{'-' if sign else ''}{digits[0]}.{fraction}E{shortest.adjusted()}"


RemainingSteps = list[int]

STEPS_PER_SECOND = 20_000_000

# The steps for a single event: a thousand times as many as a large event of an ordinary type needs.
MAX_EVENT_STEPS = 1 * STEPS_PER_SECOND


class StepsExhausted(Exception):
    """Raised when work takes more steps than it is allowed."""


def spend_steps(steps: RemainingSteps, number: int) -> None:
    steps[0] -= number
    if steps[0] < 0:
        raise StepsExhausted


# The most characters of a message. A schema can have thousands of faults, at paths that each fill a page, which no
# reader needs in full.
MAX_MESSAGE_CHARACTERS = 20_000

Item = TypeVar("Item")


def first_items_fitting_message(items: Iterable[Item], text_of_item: Callable[[Item], str]) -> Iterator[Item]:
    """The first of the items, as many as fit into one message with their texts."""
    characters = 0
    for item in items:
        yield item
        characters += len(text_of_item(item))
        if characters > MAX_MESSAGE_CHARACTERS:
            return


class NoValueAtPath(Exception):
    """Raised when an event has nothing at a path; the message names the segment that leads nowhere."""

    def __init__(self, segment: str) -> None:
        super().__init__(f"field {segment} doesn't exist.")


@lru_cache(maxsize=1000)
def path_segments(path: str) -> tuple[str, ...]:
    """The names of a path. A dot in quotes does not separate names, a backslash makes any symbol literal, and an empty
    name ends the path.
    """
    names: list[str] = []
    name, quoted = "", False
    symbols = iter(path)
    for symbol in symbols:
        match symbol:
            case "'":
                quoted = not quoted
            case "\\":
                name += next(symbols, "")
            case "." if not quoted:
                if not name:
                    break
                names.append(name)
                name = ""
            case _:
                name += symbol
    return (*names, name) if name else tuple(names)


def value_at_path(event: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = event
    for segment in path:
        try:
            value = value[segment]
        except (KeyError, TypeError):
            # Only objects contain names; arrays, texts and all other values do not.
            raise NoValueAtPath(segment) from None
    return value

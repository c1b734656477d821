"""JSON values as the text that Java and org.json make of them.

Keys, owners and messages are such texts, and all of them stay what they were when producers and consumers move over.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

_WORDS = {True: "true", False: "false", None: "null"}

# The solidus of `</` is escaped, and so are two ranges that are no control characters in JSON.
_QUOTED = re.compile(r'["\\\x00-\x1f\x80-\x9f\u2000-\u20ff]|(?<=<)/')
_ESCAPES = {'"': r"\"", "\\": r"\\", "\b": r"\b", "\t": r"\t", "\n": r"\n", "\f": r"\f", "\r": r"\r"}


def text_of(value: Any) -> str:
    """A parsed JSON value as text; objects and arrays as compact JSON with sorted keys, spelled as org.json does."""
    match value:
        case str():
            return value
        case bool() | None:
            return _WORDS[value]
        case int():
            return str(value)
        case float():
            return double_text(value)
        case _:
            return json_text(value)


def json_text(value: Any) -> str:
    """A parsed JSON value as JSON, with sorted keys."""
    match value:
        case str():
            return f'"{_QUOTED.sub(_escaped, value)}"'
        case float():
            return _without_zeros(double_text(value))
        case list():
            return f"[{','.join(map(json_text, value))}]"
        case dict():
            members = (f"{json_text(name)}:{json_text(value[name])}" for name in sorted(value))
            return f"{{{','.join(members)}}}"
        case _:
            return text_of(value)


def _without_zeros(number: str) -> str:
    """Within JSON, 1.50 is written as 1.5 and 1.0 as 1, but 1.0E10 as it is."""
    return number if "E" in number else number.rstrip("0").removesuffix(".")


def _escaped(found: re.Match[str]) -> str:
    symbol = found.group()
    if symbol == "/":
        return r"\/"
    return _ESCAPES.get(symbol) or f"\\u{ord(symbol):04x}"


def double_text(number: float) -> str:
    """The shortest digits, at least two, that tell the number; plain from 0.001 up to ten million."""
    shortest = Decimal(repr(number))
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        plain = f"{shortest:f}"
        return plain if "." in plain else f"{plain}.0"
    if len(shortest.normalize().as_tuple().digits) == 1:
        shortest = Decimal(f"{number:.1e}")
    sign, digits, _ = shortest.normalize().as_tuple()
    fraction = "".join(map(str, digits[1:])) or "0"
    return f"{'-' if sign else ''}{digits[0]}.{fraction}E{shortest.adjusted()}"

"""Texts that match a pattern or have a format, for example events."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from random import Random
from re import _constants, _parser  # type: ignore[attr-defined]  # the only parser of patterns in the library
from typing import Any

_MOST_REPEATS = 3
_LONGEST_TEXT = 5_000
_PRINTABLE = [chr(each) for each in range(0x20, 0x7F)]
_CATEGORIES: Mapping[Any, Sequence[str]] = {
    _constants.CATEGORY_DIGIT: "0123456789",
    _constants.CATEGORY_NOT_DIGIT: "abcXYZ_ -",
    _constants.CATEGORY_WORD: "abcxyzABCXYZ0123456789_",
    _constants.CATEGORY_NOT_WORD: " -.,",
    _constants.CATEGORY_SPACE: " ",
    _constants.CATEGORY_NOT_SPACE: "abcXYZ0123456789",
}
# RE2's constructs that Python lacks, in Python's own form.
_UNICODE_CLASS = re.compile(r"\\p(?:\{\^?(\w+)\}|(\w))")
_POSIX_CLASS = re.compile(r"\[:(\w+):\]")
_CLASSES = {
    "Lu": "A-Z",
    "Ll": "a-z",
    "L": "A-Za-z",
    "N": "0-9",
    "Nd": "0-9",
    "Z": " ",
    "Zs": " ",
    "P": ".,;!",
    "S": "+",
}
_POSIX_CLASSES = {
    "alpha": "A-Za-z",
    "digit": "0-9",
    "alnum": "A-Za-z0-9",
    "upper": "A-Z",
    "lower": "a-z",
    "space": " ",
    "punct": ".,;!",
    "word": "A-Za-z0-9_",
    "xdigit": "0-9a-f",
}


def _uuid_text(draw: Random) -> str:
    digits = f"{draw.getrandbits(128):032x}"
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:]}"


FORMATS: Mapping[str, Callable[[Random], str]] = {
    "date-time": lambda draw: f"2026-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}T{draw.randint(0, 23):02}:30:00Z",
    "date": lambda draw: f"2026-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}",
    "time": lambda draw: f"{draw.randint(0, 23):02}:{draw.randint(0, 59):02}:00Z",
    "uri": lambda draw: f"https://example.org/{draw.randint(1, 9999)}",
    "email": lambda draw: f"someone{draw.randint(1, 9999)}@example.org",
    "ipv4": lambda draw: f"192.0.2.{draw.randint(1, 254)}",
    "ipv6": lambda draw: f"2001:db8::{draw.randint(1, 9999)}",
    "hostname": lambda draw: f"host{draw.randint(1, 9999)}.example.org",
    "iso-4217": lambda draw: draw.choice(("EUR", "USD", "GBP", "CHF")),
    "ISO-4217": lambda draw: draw.choice(("EUR", "USD", "GBP", "CHF")),
    "uuid": _uuid_text,
}


def text_matching(pattern: str, draw: Random) -> str | None:
    """A text that probably matches the pattern: the caller has to check it. None if this module does not support the
    pattern.
    """
    try:
        parsed = _parser.parse(_as_python(pattern))
        return "".join(_generate(parsed, draw))[:_LONGEST_TEXT]
    except (re.error, RecursionError, OverflowError, KeyError, IndexError, ValueError):
        return None


def _as_python(pattern: str) -> str:
    def is_inside_class(found: re.Match[str]) -> str:
        chosen = _CLASSES.get(found[1] or found[2], "A-Za-z")
        before = pattern[: found.start()]
        return (
            chosen
            if before.count("[") - before.count("\\[") > before.count("]") - before.count("\\]")
            else f"[{chosen}]"
        )

    pattern = _UNICODE_CLASS.sub(is_inside_class, pattern)
    pattern = _POSIX_CLASS.sub(lambda found: _POSIX_CLASSES.get(found[1], "a-z"), pattern)
    return pattern.replace(r"\z", r"\Z")


def _generate(parsed: Any, draw: Random) -> list[str]:
    out: list[str] = []
    for operator, argument in parsed:
        if operator in _CHARACTER_MAKERS:
            out.append(_CHARACTER_MAKERS[operator](argument, draw))
        elif operator is _constants.BRANCH:
            out += _generate(draw.choice(argument[1]), draw)
        elif operator is _constants.SUBPATTERN:
            out += _generate(argument[-1], draw)
        elif operator in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
            out += _repeat(argument, draw)
        elif operator is not _constants.AT:
            raise ValueError
    return out


def _repeat(argument: Any, draw: Random) -> list[str]:
    least, most, inner = argument
    out: list[str] = []
    for _ in range(draw.randint(least, min(most, least + _MOST_REPEATS))):
        out += _generate(inner, draw)
        if len(out) > _LONGEST_TEXT:
            raise OverflowError
    return out


_CHARACTER_MAKERS: Mapping[Any, Callable[[Any, Random], str]] = {
    _constants.LITERAL: lambda code, _: chr(code),
    _constants.NOT_LITERAL: lambda code, draw: draw.choice([each for each in "abcxyz0" if ord(each) != code]),
    _constants.ANY: lambda _, draw: draw.choice("abcxyz"),
    _constants.IN: lambda parts, draw: draw.choice(_characters(parts)),
}


def _characters(parts: Any) -> Sequence[str]:
    """The characters of a class, a few of them if it is large."""
    chosen: list[str] = []
    is_negated = False
    for operator, argument in parts:
        if operator is _constants.NEGATE:
            is_negated = True
        elif operator is _constants.LITERAL:
            chosen.append(chr(argument))
        elif operator is _constants.RANGE:
            low, high = argument
            chosen += [chr(each) for each in range(low, min(high, low + 200) + 1)]
        elif operator is _constants.CATEGORY:
            chosen += _CATEGORIES[argument]
    if is_negated:
        return [each for each in "abcxyzABC0129 -_.,/" if each not in chosen] or [
            each for each in _PRINTABLE if each not in chosen
        ]
    return [each for each in chosen if each.isprintable()] or chosen

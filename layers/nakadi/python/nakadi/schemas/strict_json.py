"""JSON read strictly: whatever two parsers could understand in two ways is refused.

Keys and strings stand in double quotes and hold no raw control character, a key occurs once in its object, integers fit
64 bits, floats are finite, and nothing is left dangling by a comma. The forms that only a lenient parser would take
(`\\'`, `01`, `1.`) are refused too, since what is accepted here is handed on to others as it is.
"""

from __future__ import annotations

import math
import re
from typing import Any

# Two frames of Python a level, which leaves most of the interpreter's own limit to the callers.
MAX_DEPTH = 200

_BLANKS = re.compile(r"[ \t\r\n]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORD = re.compile("true|false|null")
_UNICODE = re.compile("u([0-9a-fA-F]{4})")
_LOW_SURROGATE = re.compile(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})")

_WORDS = {"true": True, "false": False, "null": None}
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "\\": "\\", "/": "/"}

# A sign and the 19 digits of 2**63: anything longer need not be turned into a number to be too big.
_LONGEST_INTEGER = 20


class StrictJsonError(ValueError):
    """Raised when a text is not strict JSON; the message tells what is wrong and, counting from zero, where."""


def parse(text: str) -> Any:
    """The one value that the text consists of."""
    value, end = read(text)
    behind = _blanks_after(text, end)
    if behind < len(text):
        raise StrictJsonError(f"Unexpected symbol '{text[behind]}' at pos {behind}")
    return value


def read(text: str, start: int = 0) -> tuple[Any, int]:
    """The value that begins at `start`, and the place behind it; messages count from `start`."""
    reader = _Reader(text, start)
    return reader.value(), reader.at


def _blanks_after(text: str, at: int) -> int:
    blanks = _BLANKS.match(text, at)
    assert blanks is not None
    return blanks.end()


class _Reader:
    """Reads one value, from `start` on; `at` is the next symbol to look at."""

    def __init__(self, text: str, start: int) -> None:
        self._text = text
        self._start = start
        self.at = start

    def value(self, depth: int = 0) -> Any:
        match self._peek():
            case "{":
                return self._object(depth + 1)
            case "[":
                return self._array(depth + 1)
            case '"':
                return self._string()
            case symbol if symbol in "-0123456789":
                return self._number()
            case _:
                return self._word()

    def _object(self, depth: int) -> dict[str, Any]:
        self._open(depth)
        members: dict[str, Any] = {}
        if self._closes("}"):
            return members
        while True:
            key = self._key()
            if key in members:
                raise StrictJsonError(f'Duplicate key "{key}"')
            self._take(":")
            members[key] = self.value(depth)
            if self._take(",}") == "}":
                return members
            self._refuse_dangling_comma("}", "object")

    def _array(self, depth: int) -> list[Any]:
        self._open(depth)
        items: list[Any] = []
        if self._closes("]"):
            return items
        while True:
            items.append(self.value(depth))
            if self._take(",]") == "]":
                return items
            self._refuse_dangling_comma("]", "array")

    def _key(self) -> str:
        if self._peek() != '"':
            raise self._unexpected()
        return self._string()

    def _string(self) -> str:
        self.at += 1
        parts: list[str] = []
        while True:
            plain = _PLAIN.match(self._text, self.at)
            assert plain is not None
            parts.append(plain.group())
            self.at = plain.end()
            match self._symbol():
                case '"':
                    self.at += 1
                    return "".join(parts)
                case "\\":
                    parts.append(self._escaped())
                case _:
                    raise self._error("Illegal escape.")

    def _escaped(self) -> str:
        self.at += 1
        simple = _ESCAPES.get(self._symbol())
        if simple is not None:
            self.at += 1
            return simple
        code = _UNICODE.match(self._text, self.at)
        if code is None:
            raise self._error("Illegal escape.")
        self.at = code.end()
        return self._character(int(code[1], 16))

    def _character(self, unit: int) -> str:
        """One UTF-16 unit, or two that belong together; half a pair is no character and cannot be written as UTF-8."""
        if not 0xD800 <= unit <= 0xDFFF:
            return chr(unit)
        low = _LOW_SURROGATE.match(self._text, self.at)
        if unit >= 0xDC00 or low is None:
            raise self._error("Illegal escape.")
        self.at = low.end()
        return chr(0x10000 + ((unit - 0xD800) << 10) + (int(low[1], 16) - 0xDC00))

    def _number(self) -> int | float:
        literal = _NUMBER.match(self._text, self.at)
        if literal is None:
            self.at += 1
            raise self._unexpected()
        value = self._float(literal[0]) if literal[1] or literal[2] else self._integer(literal[0])
        self.at = literal.end()
        return value

    def _integer(self, literal: str) -> int:
        if len(literal) <= _LONGEST_INTEGER and -(2**63) <= int(literal) < 2**63:
            return int(literal)
        raise self._error(f"Can not use long value '{literal}' cause it is too big")

    def _float(self, literal: str) -> float:
        value = float(literal)
        if math.isinf(value):
            raise self._error(f"{literal} can not be used")
        return value

    def _word(self) -> bool | None:
        word = _WORD.match(self._text, self.at)
        if word is None:
            raise self._unexpected()
        self.at = word.end()
        return _WORDS[word.group()]

    def _open(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise self._error(f"Nested more than {MAX_DEPTH} levels deep")
        self.at += 1

    def _closes(self, bracket: str) -> bool:
        if self._peek() != bracket:
            return False
        self.at += 1
        return True

    def _refuse_dangling_comma(self, bracket: str, noun: str) -> None:
        if self._peek() == bracket:
            raise self._error(f"Not allowed to finish {noun} with comma")

    def _take(self, wanted: str) -> str:
        symbol = self._peek()
        if symbol not in wanted:
            raise self._unexpected()
        self.at += 1
        return symbol

    def _peek(self) -> str:
        self.at = _blanks_after(self._text, self.at)
        return self._symbol()

    def _symbol(self) -> str:
        if self.at >= len(self._text):
            raise self._error("Unexpected end of data")
        return self._text[self.at]

    def _unexpected(self) -> StrictJsonError:
        return self._error(f"Unexpected symbol '{self._symbol()}'")

    def _error(self, what: str) -> StrictJsonError:
        return StrictJsonError(f"{what} at pos {self.at - self._start}")

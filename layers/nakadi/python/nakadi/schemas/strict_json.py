"""Strict JSON: any text that two parsers could understand differently is refused.

Keys and strings are in double quotes and contain no raw control character, a key occurs once in its object, integers
fit 64 bits, floats are finite, and no comma dangles. The forms that only a lenient parser would take (`\'`, `01`, `1.`)
are refused too, because an accepted text is passed on unchanged.

Clients compare the messages. Their positions count UTF-16 units, up to the end of the wrong symbol or number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import repeat
from typing import Any

# Each level takes two Python frames, so this leaves most of the interpreter's limit to the callers.
MAX_JSON_DEPTH = 200

_BLANKS_PATTERN = re.compile(r"[ \t\r\n]*")
_PLAIN_CHARACTERS_PATTERN = re.compile(r'[^"\\\x00-\x1f]*')
_NUMBER_PATTERN = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_NUMBER_LIKE_PATTERN = re.compile(r"[-+.0-9eE]+")
_LOW_SURROGATE_PATTERN = re.compile(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})")

_JSON_LITERALS = {"t": ("true", True), "f": ("false", False), "n": ("null", None)}
_CHARACTER_BY_ESCAPE = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "\\": "\\", "/": "/"}
_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
_DIGITS_OF_CODEPOINT = 4

# A sign and the 19 digits of 2**63: any longer integer is too big, and need not be converted to a number.
_MAX_INTEGER_DIGITS = 20


class StrictJsonError(ValueError):
    """Raised when a text is not strict JSON; the message names the fault and its place."""


def parse_strict(text: str) -> Any:
    reader = _StrictReader(text)
    value = reader.read_value()
    reader.require_end()
    return value


def parse_leading_value(text: str) -> tuple[Any, int]:
    """The value with which the text begins, and the index after it."""
    reader = _StrictReader(text)
    return reader.read_value(), reader.at


class _StrictReader:
    """Reads one value after the other; `at` is the index of the next symbol."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.at = 0

    def read_value(self, depth: int = 0) -> Any:
        match self._next_symbol():
            case "{":
                return self._read_object(depth + 1)
            case "[":
                return self._read_array(depth + 1)
            case '"':
                return self._read_string()
            case symbol if symbol in _JSON_LITERALS:
                return self._read_literal(*_JSON_LITERALS[symbol])
            case symbol if symbol in "-0123456789":
                return self._read_number()
            case symbol:
                raise self._unexpected_symbol_error(symbol)

    def require_end(self) -> None:
        self._skip_blanks()
        if self.at < len(self._text):
            raise self._unexpected_symbol_error(self._read_symbol())

    def _read_object(self, depth: int) -> dict[str, Any]:
        self._check_depth(depth)
        members: dict[str, Any] = {}
        symbol = self._next_symbol()
        while symbol != "}" or members:
            key = self._read_key(symbol)
            if self._next_symbol() != ":":
                raise self._error_here("Waiting for name-value separator : while parsing object")
            value = self.read_value(depth)
            if key in members:
                raise StrictJsonError(f'Duplicate key "{key}"')
            members[key] = value
            match self._next_symbol():
                case "}":
                    break
                case ",":
                    symbol = self._next_symbol()
                case other:
                    raise self._unexpected_symbol_error(other, " while parsing object")
        return members

    def _read_key(self, symbol: str) -> str:
        if symbol == "}":
            raise self._error_here("Not allowed to finish object with comma")
        if symbol != '"':
            raise self._unexpected_symbol_error(symbol)
        return self._read_string()

    def _read_array(self, depth: int) -> list[Any]:
        self._check_depth(depth)
        items: list[Any] = []
        if self._next_symbol() == "]":
            return items
        self.at -= 1
        while True:
            items.append(self.read_value(depth))
            match self._next_symbol():
                case "]":
                    return items
                case ",":
                    pass
                case other:
                    raise self._error_here(f"Unexpected separator '{other}'")

    def _read_string(self) -> str:
        parts: list[str] = []
        while True:
            plain = _PLAIN_CHARACTERS_PATTERN.match(self._text, self.at)
            assert plain is not None
            parts.append(plain.group())
            self.at = plain.end()
            match self._read_symbol():
                case '"':
                    return "".join(parts)
                case "\\":
                    parts.append(self._read_escape())
                case _:
                    raise self._error_here("Illegal escape.")

    def _read_escape(self) -> str:
        symbol = self._read_symbol()
        if symbol == "u":
            return self._read_character(self._read_code_point())
        if symbol not in _CHARACTER_BY_ESCAPE:
            raise self._error_here("Illegal escape.")
        return _CHARACTER_BY_ESCAPE[symbol]

    def _read_code_point(self) -> int:
        digits = self._read_symbols(_DIGITS_OF_CODEPOINT)
        if not _HEX_DIGITS.issuperset(digits):
            raise self._error_here(f"Illegal codepoint {digits}")
        return int(digits, 16)

    def _read_character(self, unit: int) -> str:
        """The character that begins with this UTF-16 unit, which is one unit or a pair. Half of a pair is an error,
        because it cannot be written as UTF-8."""
        if not 0xD800 <= unit <= 0xDFFF:
            return chr(unit)
        low = _LOW_SURROGATE_PATTERN.match(self._text, self.at)
        if unit >= 0xDC00 or low is None:
            raise self._error_here("Illegal escape.")
        self.at = low.end()
        return chr(0x10000 + ((unit - 0xD800) << 10) + (int(low[1], 16) - 0xDC00))

    def _read_number(self) -> int | float:
        """Read a number; characters of numbers that do not form one are an error."""
        start = self.at - 1
        found = _NUMBER_LIKE_PATTERN.match(self._text, start)
        assert found is not None
        self.at = found.end()
        literal = _NUMBER_PATTERN.fullmatch(self._text, start, self.at)
        if literal is None:
            raise self._invalid_number_error(found.group())
        return self._read_float(literal[0]) if literal[1] or literal[2] else self._read_integer(literal[0])

    def _read_integer(self, literal: str) -> int:
        if len(literal) <= _MAX_INTEGER_DIGITS and -(2**63) <= int(literal) < 2**63:
            return int(literal)
        raise self._number_too_big_error(literal)

    def _read_float(self, literal: str) -> float:
        value = float(literal)
        if math.isinf(value):
            raise self._error_here(f"{literal} can not be used")
        return value

    def _invalid_number_error(self, literal: str) -> StrictJsonError:
        if "." in literal or "e" in literal.lower():
            return self._error_here(f"The provided value '{literal}' cannot be parsed to float")
        if literal.removeprefix("-").isdecimal():
            return self._error_here(f"The provided value '{literal}' begins with a needless zero")
        return self._number_too_big_error(literal)

    def _number_too_big_error(self, literal: str) -> StrictJsonError:
        return self._error_here(f"Can not use long value '{literal}' cause it is too big")

    def _read_literal(self, word: str, value: bool | None) -> bool | None:
        if self._read_symbols(len(word) - 1) != word[1:]:
            raise self._error_here(f"Expected {word} value")
        return value

    def _check_depth(self, depth: int) -> None:
        if depth > MAX_JSON_DEPTH:
            raise self._error_here(f"Nested more than {MAX_JSON_DEPTH} levels deep")

    def _next_symbol(self) -> str:
        """The next symbol that is not whitespace."""
        self._skip_blanks()
        return self._read_symbol()

    def _skip_blanks(self) -> None:
        blanks = _BLANKS_PATTERN.match(self._text, self.at)
        assert blanks is not None
        self.at = blanks.end()

    def _read_symbol(self) -> str:
        if self.at >= len(self._text):
            raise self._error_here("Unexpected end of data")
        self.at += 1
        return self._text[self.at - 1]

    def _read_symbols(self, number: int) -> str:
        """This number of symbols, followed by at least one more: words and escapes are never at the end of a text."""
        if self.at + number >= len(self._text):
            raise self._error_here("Unexpected end of data")
        self.at += number
        return self._text[self.at - number : self.at]

    def _unexpected_symbol_error(self, symbol: str, where: str = "") -> StrictJsonError:
        return self._error_here(f"Unexpected symbol '{symbol}'{where}")

    def _error_here(self, what: str) -> StrictJsonError:
        return StrictJsonError(f"{what} at pos {utf16_length(self._text[: self.at])}")


def utf16_length(text: str) -> int:
    """How many UTF-16 units a text has: a character beyond the first 65,536 has two."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


JSON_STRING_PATTERN = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_ESCAPED_COLON_PATTERN = re.compile(rb"(?<!\\)(?:\\\\)*+\\u003[aA]")

# An integer of 19 digits may or may not fit into 64 bits. In a text without whitespace, these symbols surround a
# number.
_NINETEEN_ZEROS = b"0" * 19
_DIGITS_TO_ZERO = bytes.maketrans(b"123456789", b"000000000")
_DIGITS_PATTERN = re.compile(rb"[0-9]+")
_LONG_INTEGER_PATTERN = re.compile(rb"[:\[,](-?)([0-9]{19,})(?=[,\]}])")
_MAX_INTEGER_BY_SIGN = {b"": b"9223372036854775807", b"-": b"9223372036854775808"}


def count_colons(text: bytes) -> int:
    """The number of colons in an object, including those in strings. A parser's result has fewer if a key is
    repeated.
    """
    # Searching for one byte takes a tenth of the time of searching for several.
    escaped = len(_ESCAPED_COLON_PATTERN.findall(text)) if b"\\" in text and b"\\u003" in text else 0
    return text.count(b":") + escaped


def holds_too_long_integer(text: bytes) -> bool:
    """Whether a text without whitespace has an integer beyond 64 bits."""
    if not any(map(_exceeds_64_bits, repeat(b""), _runs_of_19_digits(text))):
        return False
    found = _LONG_INTEGER_PATTERN.findall(JSON_STRING_PATTERN.sub(b'""', text))
    return any(_exceeds_64_bits(sign, digits) for sign, digits in found)


def _exceeds_64_bits(sign: bytes, digits: bytes) -> bool:
    return len(digits) > 19 or digits > _MAX_INTEGER_BY_SIGN[sign]


def _runs_of_19_digits(text: bytes) -> Iterator[bytes]:
    """All runs of 19 digits or more in the text, also those within strings."""
    zeros = text.translate(_DIGITS_TO_ZERO)
    at = zeros.find(_NINETEEN_ZEROS)
    while at >= 0:
        found = _DIGITS_PATTERN.match(text, at)
        assert found is not None
        yield found.group()
        at = zeros.find(_NINETEEN_ZEROS, found.end())


JsonText = bytes | memoryview

MEMORY_ESTIMATE_CHUNK_BYTES = 1024 * 1024

# How much memory the parsed form takes for each of these symbols, as measured, including what the parser itself needs.
OBJECT_MEMORY_BYTES = 200
MEMORY_BYTES_BY_SYMBOL = ((b"{", OBJECT_MEMORY_BYTES), (b"[", 90), (b",", 60), (b":", 80))
MAX_MEMORY_BYTES_PER_TEXT_BYTE = OBJECT_MEMORY_BYTES
_OTHER_BYTES = bytes(set(range(256)) - {symbol[0] for symbol, _ in MEMORY_BYTES_BY_SYMBOL})

_STRING_OR_OTHER_PATTERN = re.compile(rb'"(?:[^"\\]|\\.)*+"|([^"]++)', re.DOTALL)


def estimate_parsed_memory(text: JsonText) -> int:
    """An upper estimate of the bytes that the values of the text take, without the characters of strings."""
    memory = 0
    for at in range(0, len(text), MEMORY_ESTIMATE_CHUNK_BYTES):
        # One pass over the text, and one over its symbols for each kind: this takes half the time of four passes over
        # the text.
        symbols = bytes(text[at : at + MEMORY_ESTIMATE_CHUNK_BYTES]).translate(None, _OTHER_BYTES)
        memory += sum([symbols.count(symbol) * each for symbol, each in MEMORY_BYTES_BY_SYMBOL])
    return memory


def parsed_memory_exceeds(text: JsonText, max_bytes: int) -> bool:
    """Whether the values of the text take more than this number of bytes. Symbols in strings are not values."""
    return estimate_parsed_memory(text) > max_bytes and estimate_parsed_memory(_without_strings(text)) > max_bytes


def _without_strings(text: JsonText) -> bytes:
    return b"".join(match[1] for match in _STRING_OR_OTHER_PATTERN.finditer(text) if match[1])

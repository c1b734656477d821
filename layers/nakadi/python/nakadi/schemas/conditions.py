"""Conditions on events, such as `data.order.total > 100 and metadata.event_type == "x"`.

The command line shows only events that meet a condition (`nakadi tail --where`), and sinks receive only such events
(`filter`). A condition is parsed into functions; it never runs as Python. Numbers are compared with numbers, and texts
with texts. A comparison of values of different kinds is false, and so is one with a missing field, unless the operator
is `!=`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Condition = Callable[[Any], bool]
_Value = Callable[[Any], Any]

_MISSING = object()
_LONGEST = 10_000
_DEEPEST = 50

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)
      | (?P<text>"(?:[^"\\]|\\.)*"|'[^']*')
      | (?P<operator>==|!=|<=|>=|<|>)
      | (?P<sign>[().\[\]])
      | (?P<word>[^\W\d][\w$@-]*)
    )""",
    re.VERBOSE,
)
_CONSTANTS = {"true": True, "false": False, "null": None}
_WORDS = {"and", "or", "not", "contains", *_CONSTANTS}


class BadCondition(ValueError):
    """Raised for a text that is not a condition; its message says why, and at which character."""


def parse_condition(text: str) -> Condition:
    """Raises `BadCondition`."""
    if len(text) > _LONGEST:
        raise BadCondition(f"A condition has at most {_LONGEST} characters.")
    return _Parser(text).parse_to_end()


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    at: int


class _Parser:
    """Parses a condition by recursive descent: or > and > not > comparison > path, literal or parentheses."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_tokens(text))
        self._next = 0
        self._depth = 0

    def parse_to_end(self) -> Condition:
        found = self._or()
        if self._now.kind != "end":
            raise self._syntax_error("and, or, or the end")
        return found

    def _or(self) -> Condition:
        found = self._and()
        while self._skip_if_next("or"):
            found = _either_holds(found, self._and())
        return found

    def _and(self) -> Condition:
        found = self._not()
        while self._skip_if_next("and"):
            found = _both_hold(found, self._not())
        return found

    def _not(self) -> Condition:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise BadCondition(f"A condition has at most {_DEEPEST} levels of nesting.")
        try:
            if self._skip_if_next("not"):
                inner = self._not()
                return lambda event: not inner(event)
            if self._skip_if_next("("):
                inner = self._or()
                self._expect(")")
                return inner
            return self._comparison()
        finally:
            self._depth -= 1

    def _comparison(self) -> Condition:
        left = self._value()
        if self._now.kind != "operator" and self._now.text != "contains":
            return lambda event: not any(left(event) is nothing for nothing in _NOTHING)
        compare = _COMPARISONS[self._next_token().text]
        right = self._value()
        return lambda event: compare(left(event), right(event))

    def _value(self) -> _Value:
        token = self._now
        if token.kind == "number":
            number = self._number(self._next_token())
            return lambda _: number
        if token.kind == "text":
            text = _unquote(self._next_token(), self._text)
            return lambda _: text
        if token.kind == "word" and token.text in _CONSTANTS:
            constant = _CONSTANTS[self._next_token().text]
            return lambda _: constant
        if token.kind == "word" and token.text not in _WORDS:
            return self._path()
        raise self._syntax_error("a field, a number or a text in quotes")

    def _number(self, token: _Token) -> int | float:
        try:
            number: int | float = json.loads(token.text)
        except ValueError:
            # The text is not a number of JSON: it may be 007, have digits of other scripts, or thousands of digits.
            raise _syntax_error(self._text, token.at, "a number as in JSON") from None
        return number

    def _path(self) -> _Value:
        steps: list[str | int] = [self._next_token().text]
        while self._now.text in {".", "["}:
            if self._next_token().text == ".":
                if self._now.kind != "word":
                    raise self._syntax_error("the name of a field")
                steps.append(self._next_token().text)
            else:
                steps.append(self._index())
                self._expect("]")
        return lambda event: _find_at(event, steps)

    def _index(self) -> str | int:
        token = self._now
        if token.kind == "text":
            return _unquote(self._next_token(), self._text)
        if token.kind == "number" and token.text.lstrip("-").isdigit():
            return int(self._next_token().text)
        raise self._syntax_error("a number or a text in quotes")

    @property
    def _now(self) -> _Token:
        return self._tokens[self._next]

    def _next_token(self) -> _Token:
        self._next += 1
        return self._tokens[self._next - 1]

    def _skip_if_next(self, text: str) -> bool:
        if self._now.text != text or self._now.kind == "text":
            return False
        self._next_token()
        return True

    def _expect(self, sign: str) -> None:
        if not self._skip_if_next(sign):
            raise self._syntax_error(sign)

    def _syntax_error(self, expected: str) -> BadCondition:
        return _syntax_error(self._text, self._now.at, expected)


def _tokens(text: str) -> list[_Token]:
    found, place = [], 0
    text = text.rstrip()
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            at = len(text) - len(text[place:].lstrip())
            raise _syntax_error(text, at, "a field, a number, a text in quotes or a comparison")
        kind = match.lastgroup or ""
        found.append(_Token(kind, match[kind], match.start(kind)))
        place = match.end()
    return [*found, _Token("end", "", len(text))]


def _syntax_error(text: str, at: int, expected: str) -> BadCondition:
    found = repr(text[at : at + 20]) if text[at:] else "its end"
    return BadCondition(f"The condition is invalid at character {at + 1}: expected {expected}, found {found}.")


def _unquote(token: _Token, text: str) -> str:
    if token.text.startswith("'"):
        return token.text[1:-1]
    try:
        unquoted: str = json.loads(token.text)
    except ValueError:
        raise _syntax_error(text, token.at, "a text as in JSON") from None
    return unquoted


_NOTHING = (_MISSING, None, False)


def _find_at(event: Any, steps: list[str | int]) -> Any:
    for step in steps:
        try:
            event = event[step]
        except (KeyError, IndexError, TypeError):
            return _MISSING
    return event


def _either_holds(left: Condition, right: Condition) -> Condition:
    return lambda event: left(event) or right(event)


def _both_hold(left: Condition, right: Condition) -> Condition:
    return lambda event: left(event) and right(event)


def _equal(left: Any, right: Any) -> bool:
    # True is 1 in Python, but not in JSON.
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def _comparison(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def comparison(left: Any, right: Any) -> bool:
        numbers = _is_number(left) and _is_number(right)
        return (numbers or (isinstance(left, str) and isinstance(right, str))) and compare(left, right)

    return comparison


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _contains(left: Any, right: Any) -> bool:
    if isinstance(left, str):
        return isinstance(right, str) and right in left
    return isinstance(left, list | dict) and any(_equal(each, right) for each in left)


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": _equal,
    "!=": lambda left, right: not _equal(left, right),
    "<": _comparison(lambda left, right: left < right),
    "<=": _comparison(lambda left, right: left <= right),
    ">": _comparison(lambda left, right: left > right),
    ">=": _comparison(lambda left, right: left >= right),
    "contains": _contains,
}

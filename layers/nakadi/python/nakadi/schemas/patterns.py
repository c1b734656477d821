"""Patterns written by strangers, run on RE2: in time proportional to the text, however the pattern is made.

Proportional may still be much: with an unlucky pattern, RE2 falls back to visiting each of its instructions for each
byte of the text. And it makes a pattern ready in time that grows with the square of its optional parts. Hence limits.
"""

from __future__ import annotations

import re
import time
from functools import cache

import re2

from nakadi.schemas.bounds import STEPS_PER_SECOND, Steps, spend

# The bytes that RE2 may use for one pattern, for its instructions and for what it learns while it searches.
_MEMORY = 256 * 1024

# A repeated class of whole alphabets, as in `[\p{L} ]{1,100}`, needs more. It may have it if there is little else.
_LARGE_MEMORY = 4 * 1024 * 1024
_OPERATORS = re.compile(r"[{?*+|]")
_MOST_OPERATORS_OF_LARGE = 6
_TOO_LARGE = "pattern too large"

# Of all patterns of one schema.
MOST_INSTRUCTIONS = 100_000
MOST_LARGE = 4

_VISITS_PER_STEP = 8
_STEPS_PER_SEARCH = 30
_STEPS_NOT_WORTH_MEASURING = 10_000

# What RE2 says in its C++ form, and how its Java form puts it, which is what clients of the API know.
_REASONS = {
    "bad repetition operator": "invalid nested repetition operator",
    "invalid named capture group": "invalid named capture",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid repetition size": "invalid repeat count",
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "no argument for repetition operator": "missing argument to repetition operator",
    "trailing \\": "trailing backslash at end of expression",
}
_TRAILING = "trailing \\"


class BadPattern(ValueError):
    """Raised for a pattern that RE2 does not take; the message is the reason and, in quotes, the part at fault."""


class Pattern:
    """A compiled pattern. It is searched for anywhere in a text, as `pattern` in a schema means it."""

    __slots__ = ("_search", "size", "text")

    def __init__(self, text: str, regexp: re2._Regexp) -> None:
        self.text = text
        self.size: int = regexp.programsize
        self._search = regexp.search

    def found_in(self, text: str, steps: Steps) -> bool:
        """Whether it occurs. A search that could take long is not begun without the steps for the worst case."""
        subject = text.encode("utf-8", "surrogatepass")
        worst = _STEPS_PER_SEARCH + len(subject) * self.size // _VISITS_PER_STEP
        if worst > _STEPS_NOT_WORTH_MEASURING:
            return self._measured(subject, worst, steps)
        spend(steps, worst)
        return self._search(subject) is not None

    def _measured(self, subject: bytes, worst: int, steps: Steps) -> bool:
        """The worst case is rare, and would be far too much to charge for all others."""
        spend(steps, worst)
        begun = time.thread_time()
        found = self._search(subject) is not None
        taken = int((time.thread_time() - begun) * STEPS_PER_SECOND)
        spend(steps, _STEPS_PER_SEARCH + taken - worst)
        return found


class Patterns:
    """The patterns of one schema, each compiled once."""

    def __init__(self) -> None:
        self._compiled: dict[str, Pattern] = {}

    def of(self, text: str) -> Pattern:
        """The pattern, or `BadPattern` if it is none, or one too many for this schema."""
        if text not in self._compiled:
            self._compiled[text] = compiled(text)
            self._check_total()
        return self._compiled[text]

    def _check_total(self) -> None:
        large = [each for each in self._compiled.values() if each.size > _MOST_OF_USUAL]
        usual = sum(each.size for each in self._compiled.values()) - sum(each.size for each in large)
        if usual > MOST_INSTRUCTIONS or len(large) > MOST_LARGE:
            raise BadPattern("patterns too large together")


# Two thirds of the memory may hold instructions of 16 bytes.
_MOST_OF_USUAL = _MEMORY * 2 // 3 // 16


def compiled(text: str) -> Pattern:
    """The pattern, or `BadPattern`."""
    try:
        return Pattern(text, _regexp(text))
    except UnicodeEncodeError as error:
        raise BadPattern(f'invalid UTF-8 "{text[error.start]!a}"') from error
    except re2.error as error:
        raise BadPattern(_reason(error)) from error
    finally:
        # RE2's module would keep the last patterns that anybody used; each may be megabytes.
        re2.purge()


def _regexp(text: str) -> re2._Regexp:
    try:
        return re2.compile(text, _options(_MEMORY))
    except re2.error as error:
        if not _words(error).startswith(_TOO_LARGE) or len(_OPERATORS.findall(text)) > _MOST_OPERATORS_OF_LARGE:
            raise
        return re2.compile(text, _options(_LARGE_MEMORY))


@cache
def _options(memory: int) -> re2.Options:
    options = re2.Options()
    options.max_mem = memory
    options.never_capture = True
    options.log_errors = False
    return options


def _reason(error: re2.error) -> str:
    reason, colon, fragment = _words(error).partition(": ")
    if reason == _TRAILING:
        colon = ":"
    reason = _REASONS.get(reason, reason)
    # Looking behind begins like a name for a group, and that is as far as the Java form reads.
    fragment = "(?<" if fragment.startswith(("(?<=", "(?<!")) else fragment
    return f'{reason} "{fragment}"' if colon else reason


def _words(error: re2.error) -> str:
    return str(error.args[0].decode("utf-8", "replace"))

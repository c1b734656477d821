"""When two JSON values are the same: 1 and 1.0 are, 1 and true are not, and the order of members does not matter."""

from __future__ import annotations

import math
from collections.abc import Hashable
from fractions import Fraction
from typing import Any

from nakadi.schemas.steps import Steps, spend

# They make the keys of lists, objects and truth values unlike all others. Their hashes are nobody's to guess, so
# nobody can send a list of values whose keys all collide.
_LIST, _OBJECT, _TRUTH = object(), object(), object()


def key(value: Any, steps: Steps) -> Hashable:
    """Equal for two values exactly if they are the same."""
    if isinstance(value, list):
        spend(steps, len(value))
        return (_LIST, *[key(each, steps) for each in value])
    if isinstance(value, dict):
        spend(steps, 4 * len(value))
        members = sorted(value.items(), key=_name)
        return (_OBJECT, *[part for name, each in members for part in (name, key(each, steps))])
    return (_TRUTH, value) if isinstance(value, bool) else value


def _name(member: tuple[str, Any]) -> str:
    return member[0]


def all_differ(values: list[Any], steps: Steps) -> bool:
    spend(steps, 4 * len(values))
    return len(values) < 2 or len({key(each, steps) for each in values}) == len(values)


def is_multiple(value: float, divisor: Fraction) -> bool:
    """Whether `value` is a whole number of `divisor`s, both read as decimals: 0.3 is one of 0.1."""
    if isinstance(value, int):
        return value * divisor.denominator % divisor.numerator == 0
    return math.isfinite(value) and exact(value) % divisor == 0


def exact(number: float) -> Fraction:
    """The number as it was written, rather than the nearest one in binary."""
    return Fraction(number) if isinstance(number, int) else Fraction(repr(number))

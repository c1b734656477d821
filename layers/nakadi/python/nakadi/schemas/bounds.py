"""Bounds on the work that events can cause, whatever schema their event type has, and on how much of a refusal is told.

A schema of a few lines can make every value be looked at thousands of times. So checks that repeat themselves count
what they do: in a list of one number, which goes down by about one per 50 nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Steps = list[int]

STEPS_PER_SECOND = 20_000_000

# For a single event that is looked at alone: a thousand times what a large one of an ordinary type takes.
MOST_STEPS = 1 * STEPS_PER_SECOND


class Exhausted(Exception):
    """Raised when something takes more steps than it was given."""


def spend(steps: Steps, number: int) -> None:
    steps[0] -= number
    if steps[0] < 0:
        raise Exhausted


# In characters. A schema can hold thousands of faults in places with names that fill a page; nobody reads them all.
MAX_TOLD = 20_000

Item = TypeVar("Item")


def worth_telling(items: Iterable[Item], text: Callable[[Item], str]) -> Iterator[Item]:
    """The first of the items, until their texts are as long as is told."""
    told = 0
    for item in items:
        yield item
        told += len(text(item))
        if told > MAX_TOLD:
            return

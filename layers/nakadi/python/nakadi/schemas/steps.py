"""A bound on the work that events can cause, whatever schema their event type has.

A schema of a few lines can make every value be looked at thousands of times. So checks that repeat themselves count
what they do: in a list of one number, which goes down by about one per 50 nanoseconds.
"""

from __future__ import annotations

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

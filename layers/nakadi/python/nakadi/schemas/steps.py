"""A bound on the work that one event can cause, whatever schema its event type has.

A schema of a few lines can make every value be looked at millions of times. So checks that repeat themselves count what
they do: in a list of one number, which goes down by about one per 50 nanoseconds.
"""

from __future__ import annotations

Steps = list[int]

STEPS_PER_SECOND = 20_000_000

# A thousand times what a large event of an ordinary type takes.
MOST_STEPS = 1 * STEPS_PER_SECOND


class Exhausted(Exception):
    """Raised when an event takes more steps than it was given."""


def spend(steps: Steps, number: int) -> None:
    steps[0] -= number
    if steps[0] < 0:
        raise Exhausted

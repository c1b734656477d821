"""The work that one batch may cause, in the steps of `nakadi.schemas.bounds`: bounded, and in turns if it is long."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from nakadi.model.outcomes import TryLater
from nakadi.schemas.bounds import Exhausted, Steps
from nakadi.turns import GIVEN_UP, Turns

# About two seconds and a half at worst. Ordinary events take between 0.1 and 3 steps a byte.
MOST_STEPS = 50_000_000
# A hundredth of a second at worst, which is enough for thousands of ordinary events: so much is done without a turn.
FREE_STEPS = 200_000
# Once for each of these portions it is asked whether the work is still wanted.
PORTION = 1_000_000


class Effort:
    """What a batch may still take. `steps` are those for the moment; who runs out of them asks to `extend` them.

    Long work waits for its turn, which it keeps until the block is left, and looks now and then whether the client is
    still there. `is_long` says so from the beginning.
    """

    def __init__(self, most: int, turns: Turns, gone: Callable[[], bool], *, is_long: bool = False) -> None:
        self.most = most
        self.steps: Steps = [min(most, FREE_STEPS)]
        self._left = most - self.steps[0]
        self._portion = PORTION
        self._turns = turns
        self._gone = gone
        self._held = ExitStack()
        self._is_long = is_long
        self._has_turn = False

    def take_turn(self) -> None:
        """Wait for the turn, unless it is there already; raise `TryLater` if that takes too long."""
        if not self._has_turn:
            self._held.enter_context(self._turns.turn(self._gone))
            self._has_turn = True

    def extend(self, *, larger: bool = False) -> None:
        """More steps; `larger` makes it twice as many from now on, for what did not end with so many.

        Raises `Exhausted` when there are none left, and `TryLater` when this is no time for long work.
        """
        if self._left <= 0:
            raise Exhausted
        self.take_turn()
        if self._gone():
            raise TryLater(GIVEN_UP)
        self._portion *= 2 if larger else 1
        self.steps[0] = min(self._portion, self._left)
        self._left -= self.steps[0]

    def spend(self, number: int) -> None:
        """Account for work that goes on where it was when there are more steps."""
        self.steps[0] -= number
        while self.steps[0] < 0:
            missing = self.steps[0]
            self.extend()
            self.steps[0] += missing

    def __enter__(self) -> Self:
        if self._is_long:
            self.take_turn()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()

"""State machines: a table says which fact leads from which state to which, and rejects everything else."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

State = TypeVar("State", bound=Enum)
Fact = TypeVar("Fact", bound=Enum)

Transitions = Mapping[tuple[State, Fact], tuple[State, ...]]
"""The states that may follow. If there are several, the caller decides by the work in progress."""


class UnexpectedFact(Exception):
    """Raised for a fact that is impossible in a state: an error in the broker's code."""

    def __init__(self, state: Enum, fact: Enum) -> None:
        super().__init__(f"the fact {fact.value!r} came in the state {state.value!r}")


def following_states(transitions: Transitions[State, Fact], state: State, fact: Fact) -> tuple[State, ...]:
    found = transitions.get((state, fact))
    if found is None:
        raise UnexpectedFact(state, fact)
    return found


def following_state(transitions: Transitions[State, Fact], state: State, fact: Fact) -> State:
    """The state that follows, if the table has exactly one."""
    [only] = following_states(transitions, state, fact)
    return only

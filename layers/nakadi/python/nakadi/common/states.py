"""Lives with named states: a table says which state follows from which fact, and what it lacks is refused."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

State = TypeVar("State", bound=Enum)
Fact = TypeVar("Fact", bound=Enum)

Transitions = Mapping[tuple[State, Fact], tuple[State, ...]]
"""The states that may follow. If there are several, whatever lives decides by what is under way."""


class UnexpectedFact(Exception):
    """Raised for a fact that a state has no place for: an error of the broker's authors."""

    def __init__(self, state: Enum, fact: Enum) -> None:
        super().__init__(f"the fact {fact.value!r} came in the state {state.value!r}")


def following_states(transitions: Transitions[State, Fact], state: State, fact: Fact) -> tuple[State, ...]:
    found = transitions.get((state, fact))
    if found is None:
        raise UnexpectedFact(state, fact)
    return found


def following_state(transitions: Transitions[State, Fact], state: State, fact: Fact) -> State:
    """The only state that follows."""
    [only] = following_states(transitions, state, fact)
    return only

"""The expectations of an event type's owner for its events, which annotations of the event type state.

    nakadi.io/expect: "total.amount >= 0"
    nakadi.io/expect-customer: "customer.id and not (customer.id contains ' ')"

Each is a condition, in the language of `nakadi tail --where` (`schemas/conditions.py`). No event is refused because of
an expectation: jobs count the events that do not meet it.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from nakadi.model.annotations import is_expectation
from nakadi.schemas.conditions import BadCondition, parse_condition

MAX_EXPECTATIONS = 20
"""The greatest number of expectations of an event type."""


class Expectation(Struct, frozen=True):
    """A condition, and the annotation that states it."""

    annotation: str
    condition: str


class BadExpectation(Exception):
    """Raised for an annotation that states no condition; the message names it."""


def stated_expectations(annotations: Mapping[str, str | None]) -> list[Expectation]:
    """The expectations that annotations state, ordered by name, valid or not."""
    stated = sorted((name, text) for name, text in annotations.items() if is_expectation(name) and text is not None)
    return [Expectation(name, text) for name, text in stated]


def check_expectations(annotations: Mapping[str, str | None]) -> None:
    """Raises `BadExpectation`."""
    stated = stated_expectations(annotations)
    if len(stated) > MAX_EXPECTATIONS:
        raise BadExpectation(f"An event type has at most {MAX_EXPECTATIONS} expectations, and not {len(stated)}.")
    for problem in map(expectation_problem, stated):
        if problem:
            raise BadExpectation(problem)


def expectation_problem(expectation: Expectation) -> str:
    """Why an expectation is not valid; empty if it is."""
    try:
        parse_condition(expectation.condition)
    except BadCondition as reason:
        return f'Annotation {expectation.annotation} is not valid: {reason} Provided value: "{expectation.condition}".'
    return ""

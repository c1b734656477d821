"""Makes state diagrams for Mermaid from the transition tables of state machines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum


def state_diagram(
    transitions: Mapping[tuple[Enum, Enum], Sequence[Enum]],
    first: Enum,
    group_name: str = "",
    group: Sequence[Enum] = (),
) -> str:
    """Draw a table of transitions as a `stateDiagram-v2`. The states of the group are in a box, from which their common
    arrows begin.

    A fact that leaves a state unchanged has no arrow.
    """
    arrows = [(state, fact, to) for (state, fact), following in transitions.items() for to in following if to != state]
    inside = [(state, fact, to) for state, fact, to in arrows if state in group and to in group]
    if not group:
        return "\n".join(
            ["stateDiagram-v2", f"    [*] --> {first.value}", *(f"    {each}" for each in _draw_arrows(arrows))]
        )
    box = group_name.replace(" ", "_")
    lines = [
        "stateDiagram-v2",
        f'    state "{group_name}" as {box} {{',
        f"        [*] --> {first.value}",
        *(f"        {each}" for each in _draw_arrows(inside)),
        "    }",
    ]
    outside = [each for each in arrows if each not in inside]
    into_box = {(state, fact) for state, fact, to in outside if to in group}
    for state, fact in into_box:
        assert set(group) <= set(transitions[state, fact]), "an arrow leads to the box, or to no state in it"
    out_of_box = {(fact, to) for state, fact, to in outside if state in group}
    for fact, to in out_of_box:
        assert all(to in transitions.get((each, fact), ()) for each in group), "all states in the box have an arrow"
    boxed = [
        (box if state in group else state.value, fact.value, box if to in group else to.value)
        for state, fact, to in outside
    ]
    return "\n".join(
        [*lines, *(f"    {each}" for each in dict.fromkeys(f"{a} --> {b}: {fact}" for a, fact, b in boxed))]
    )


def _draw_arrows(arrows: Iterable[tuple[Enum, Enum, Enum]]) -> Iterator[str]:
    for state, fact, to in arrows:
        yield f"{state.value} --> {to.value}: {fact.value}"

"""Which event types are copied to which: a cycle of copies would publish its events forever."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

Copies = Mapping[str, Collection[str]]
"""For each copied event type, the event types that its events are copied to."""


def copies_from_sinks(sinks: Iterable[tuple[Iterable[str], str]]) -> Copies:
    """The copies that sinks make: the copied event types and the target of each."""
    copies: dict[str, set[str]] = {}
    for event_types, target in sinks:
        for each in event_types:
            copies.setdefault(each, set()).add(target)
    return copies


def reachable_event_types(copies: Copies, start: str) -> Collection[str]:
    """The event types that the events of `start` reach through copies, including `start`."""
    reached, waiting = {start}, [start]
    while waiting:
        for each in copies.get(waiting.pop(), ()):
            if each not in reached:
                reached.add(each)
                waiting.append(each)
    return reached

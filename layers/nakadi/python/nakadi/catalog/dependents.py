"""Those who depend on event types: asked before one is deleted, told when one changes under them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from nakadi.model.event_type import EventType
from nakadi.ports.registry import Change


class Dependents(Protocol):
    def released(self, event_type: EventType) -> tuple[Change, ...]:
        """What a write that removes the event type has to do and to insist on besides, so that nobody depends on it
        afterwards. Raises `Conflict` if somebody does and will not let go.
        """

    def clear_up(self) -> None:
        """Clear away what is left of those that were removed together with an event type."""

    def growing(self, event_type: EventType) -> None:
        """The event type is about to get more partitions."""

    def grown(self, event_type: EventType) -> None:
        """The event type has these partitions. It may be told more than once."""


class Later:
    """Dependents that are put together when they are first asked: most processes never ask."""

    def __init__(self, dependents: Callable[[], Dependents]) -> None:
        self._dependents = dependents

    def released(self, event_type: EventType) -> tuple[Change, ...]:
        return self._dependents().released(event_type)

    def clear_up(self) -> None:
        self._dependents().clear_up()

    def growing(self, event_type: EventType) -> None:
        self._dependents().growing(event_type)

    def grown(self, event_type: EventType) -> None:
        self._dependents().grown(event_type)

"""The lot: where a subscription's events are parked that nobody could process, with those of their keys that follow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nakadi.model.coordination import Parked, Replay
from nakadi.model.cursor import Position
from nakadi.model.subscription import EventTypePartition
from nakadi.ports import Coordination

PAGE = 1000


@dataclass(frozen=True, slots=True)
class Lot:
    """Of one subscription."""

    coordination: Coordination
    subscription: str

    def events(
        self, place: EventTypePartition | None = None, after: tuple[EventTypePartition, Position] | None = None
    ) -> Iterator[Parked]:
        """What is parked, or what of it is of a partition, in order."""
        while page := self.coordination.parked(self.subscription, place=place, after=after, limit=PAGE):
            yield from page
            after = page[-1].place, page[-1].position

    def clear(self, place: EventTypePartition, replay: Replay) -> None:
        """Let go of what was sent once more, and not parked again."""
        sent = [each.position for each in self.events(place) if replay.has(each)]
        self.coordination.unpark(self.subscription, place, sent)


def key_of(key: str | None, position: Position) -> str:
    """What an event is parked under. One without a key is on its own: nothing follows it."""
    return f"@{position}" if key is None else key


def own_key(parked: Parked) -> str | None:
    """The other way round."""
    return None if parked.key == f"@{parked.position}" else parked.key

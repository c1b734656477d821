"""Builds event types with a past: their timelines, each given by its numbers of events."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from nakadi.model.event_type import EventType, Timeline
from nakadi.model.events import OffsetBounds
from nakadi.model.outcomes import Unavailable
from nakadi.ports.event_log import UnknownTopic
from tests.support.builders import A_MOMENT, a_timeline, an_event_type


@dataclass(frozen=True)
class TimelineWithPast:
    """A timeline. `events[n]` events were ever stored in partition n, of which the first `expired[n]` are no longer
    there.
    """

    events: Sequence[int]
    expired: Sequence[int] = ()
    deleted: bool = False

    def bounds(self) -> dict[int, OffsetBounds]:
        expired = (*self.expired, *[0] * len(self.events))
        return {
            number: OffsetBounds(oldest=expired[number], next_offset=count) for number, count in enumerate(self.events)
        }


@dataclass
class KnownLogs:
    """Logs with fixed contents. Event n of a partition was stored n minutes after `first_stored`."""

    topics: dict[str, Mapping[int, OffsetBounds]] = field(default_factory=dict)
    first_stored: dict[str, datetime] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    down: bool = False

    def for_storage(self, storage_id: str) -> "KnownLogs":
        if self.down:
            raise Unavailable(f"{storage_id} does not answer")
        return self

    def bounds(self, topic: str, partitions: Sequence[int]) -> Mapping[int, OffsetBounds]:
        self.asked.append(topic)
        if topic not in self.topics:
            raise UnknownTopic(topic)
        return {number: self.topics[topic][number] for number in partitions}

    def first_offset_since(self, topic: str, partition: int, moment: datetime) -> int:
        bounds = self.topics[topic][partition]
        stored = (self.first_stored[topic] + timedelta(minutes=number) for number in range(bounds.next_offset))
        return next((n for n, at in enumerate(stored) if n >= bounds.oldest and at >= moment), bounds.next_offset)


def an_event_type_with_past(*generations: TimelineWithPast, **changes: Any) -> tuple[EventType, KnownLogs]:
    """An event type with a timeline for each generation, the oldest first, and the logs that know its events. The
    events of each generation were stored an hour after those of the one before.
    """
    logs = KnownLogs()
    timelines = []
    for order, generation in enumerate(generations, start=1):
        timeline = _timeline(order, generation, closed=order < len(generations))
        timelines.append(timeline)
        if not generation.deleted:
            logs.topics[timeline.topic] = generation.bounds()
            logs.first_stored[timeline.topic] = A_MOMENT + timedelta(hours=order)
    return an_event_type(timelines=tuple(timelines), **changes), logs


def _timeline(order: int, generation: TimelineWithPast, *, closed: bool) -> Timeline:
    latest = {number: count - 1 for number, count in enumerate(generation.events)}
    return a_timeline(
        order=order,
        partitions=len(generation.events),
        latest_positions=latest if closed else None,
        deleted=generation.deleted,
    )

"""Whose a topic is: what those have to know who look at the event log from below."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from nakadi.catalog.event_types import EventTypes
from nakadi.model.event_type import EventType
from nakadi.model.timeline import Timeline

LOOKED_UP_EVERY = 5.0
"""Seconds. A topic that is not known may be that of an event type which is just being created."""


class TopicDirectory:
    """Event types by their topics. A topic never changes hands, so what is known once is known for good."""

    def __init__(self, event_types: EventTypes, monotonic: Callable[[], float]) -> None:
        self._event_types = event_types
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._names: dict[str, str] = {}
        self._looked_up_at = float("-inf")

    def topics(self) -> Iterator[tuple[str, int]]:
        for event_type in self._event_types.all():
            for timeline in _timelines(event_type):
                self._names[timeline.topic] = event_type.name
                if not timeline.deleted:
                    yield timeline.topic, timeline.partitions

    def event_type_of(self, topic: str) -> str | None:
        if topic not in self._names and self._may_look_up():
            for _ in self.topics():
                pass
        return self._names.get(topic)

    def _may_look_up(self) -> bool:
        with self._lock:
            now = self._monotonic()
            if now - self._looked_up_at < LOOKED_UP_EVERY:
                return False
            self._looked_up_at = now
            return True


def _timelines(event_type: EventType) -> Iterator[Timeline]:
    yield from event_type.timelines
    if event_type.switching_to is not None:
        yield event_type.switching_to

"""The event type to which a topic of an event log belongs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from nakadi.event_types.repository import EventTypes
from nakadi.model.event_type import EventType, Timeline

MIN_SECONDS_BETWEEN_SCANS = 5.0
"""How often the event types are scanned for an unknown topic at most: it may belong to an event type that is being
created, and must not cause a scan for each event.
"""


class TopicDirectory:
    """The names of event types by their topics. A topic always belongs to the same event type, so names are kept."""

    def __init__(self, event_types: EventTypes, monotonic: Callable[[], float]) -> None:
        self._event_types = event_types
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._names: dict[str, str] = {}
        self._adopted: set[str] = set()
        self._scanned_at = float("-inf")

    def topics(self) -> Iterator[tuple[str, int]]:
        for event_type in self._event_types.all():
            for timeline in _timelines_with_switch_target(event_type):
                self._names[timeline.topic] = event_type.name
                if timeline.adopted:
                    self._adopted.add(timeline.topic)
                if not timeline.deleted:
                    yield timeline.topic, timeline.partitions

    def event_type_name_of(self, topic: str) -> str | None:
        if topic not in self._names and self._claim_scan():
            for _ in self.topics():
                pass
        return self._names.get(topic)

    def may_remove_records_from(self, topic: str) -> bool:
        return self.event_type_name_of(topic) is not None and topic not in self._adopted

    def _claim_scan(self) -> bool:
        with self._lock:
            now = self._monotonic()
            if now - self._scanned_at < MIN_SECONDS_BETWEEN_SCANS:
                return False
            self._scanned_at = now
            return True


def _timelines_with_switch_target(event_type: EventType) -> Iterator[Timeline]:
    yield from event_type.timelines
    if event_type.switching_to is not None:
        yield event_type.switching_to

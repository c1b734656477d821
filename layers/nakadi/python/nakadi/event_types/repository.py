"""The registered event types: finding, listing, and writing them without losing anybody's change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from msgspec.structs import replace

from nakadi.common.caching import Cache
from nakadi.event_types.documents import MEASURED_KIND as MEASURED
from nakadi.event_types.documents import (
    MeasuredStatistics,
    event_type_body,
    event_type_of,
    measured_of,
    schema_body,
    schema_of,
)
from nakadi.model.event_type import EventType
from nakadi.model.outcomes import Conflict, NotFound, TryLater
from nakadi.model.schema import Schema
from nakadi.model.timeline import Timeline
from nakadi.ports.event_log import UnknownTopic
from nakadi.ports.registry import ABSENT, Change, ChangedMeanwhile, Put, Registry, Remove

KIND = "event-types"
SCHEMAS = "schemas"
CLEANUP_NOTES = "leftovers"

PAGE_SIZE = 1000

# Writers of one event type meet rarely; who loses this often in a row is better off asking again.
ATTEMPTS = 8

BUSY = "Event type is currently in maintenance, please repeat request"

Result = TypeVar("Result")


class EventTypes:
    def __init__(self, registry: Registry, cache: Cache[str, EventType]) -> None:
        self._registry = registry
        self._cache = cache
        self._listeners: list[Callable[[str], None]] = []

    # Reading

    def find(self, name: str) -> EventType | None:
        document = self._registry.get(KIND, name)
        return None if document is None else event_type_of(document)

    def get(self, name: str) -> EventType:
        event_type = self.find(name)
        if event_type is None:
            raise not_found(name)
        return event_type

    def cached(self, name: str) -> EventType:
        """An event type as it was not long ago; what this process wrote is seen at once."""
        return self._cache.get(name, lambda: self.get(name))

    def all(self) -> Iterator[EventType]:
        """Every event type, by name."""
        after = ""
        while page := self._registry.list(KIND, after=after, limit=PAGE_SIZE):
            yield from map(event_type_of, page)
            after = page[-1].key

    def uses_storage(self, storage_id: str) -> bool:
        """Whether any event type keeps, or is about to keep, events in this storage."""
        return any(
            timeline.storage_id == storage_id
            for event_type in self.all()
            for timeline in (*event_type.timelines, event_type.switching_to)
            if timeline is not None and not timeline.deleted
        )

    def schemas(self, event_type: EventType) -> Sequence[Schema]:
        """Every version, newest first."""
        documents = self._registry.list(SCHEMAS, prefix=f"{event_type.id}/")
        return [schema_of(document.body) for document in reversed(documents)]

    def measured(self, event_type: EventType) -> MeasuredStatistics | None:
        """What was last measured of its traffic, if anything was."""
        document = self._registry.get(MEASURED, event_type.id)
        return None if document is None else measured_of(document.body)

    # Writing

    def on_change(self, listener: Callable[[str], None]) -> None:
        """Have `listener(name)` called after this process has changed or deleted an event type."""
        self._listeners.append(listener)

    def add(self, event_type: EventType, *conditions: Change) -> None:
        put = Put(KIND, event_type.name, event_type_body(event_type), expected=ABSENT)
        try:
            self._write(event_type.name, put, _schema_put(event_type), *conditions)
        except ChangedMeanwhile as error:
            if error.change is put:
                raise already_exists(event_type.name) from error
            raise

    def replace(self, old: EventType, new: EventType, *conditions: Change) -> EventType:
        """Store `new` if nobody has touched `old` meanwhile, else raise `ChangedMeanwhile`; `new` as it is stored."""
        put = Put(KIND, old.name, event_type_body(new), expected=old.revision)
        added = () if new.schema.version == old.schema.version else (_schema_put(new),)
        self._write(old.name, put, *added, *conditions)
        return replace(new, revision=old.revision + 1)

    def remove(self, event_type: EventType, *conditions: Change) -> None:
        """Remove it, leaving a note of what has to be cleared away; raises `ChangedMeanwhile`."""
        timelines = (*event_type.timelines, *([event_type.switching_to] if event_type.switching_to else []))
        remove = Remove(KIND, event_type.name, expected=event_type.revision)
        self._write(event_type.name, remove, cleanup_note(event_type.id, timelines), *conditions)

    def retry_if_changed(self, attempt: Callable[[], Result]) -> Result:
        """Carry out read-decide-write until nobody wrote in between.

        A topic that is not there belongs to an event type that was deleted or moved since it was read.
        """
        for _ in range(ATTEMPTS):
            try:
                return attempt()
            except (ChangedMeanwhile, UnknownTopic):
                continue
        raise TryLater(BUSY)

    def _write(self, name: str, *changes: Change) -> None:
        try:
            self._registry.write(*changes)
        finally:
            self._cache.forget(name)
        for listener in self._listeners:
            listener(name)


def cleanup_note(key: str, timelines: Iterable[Timeline]) -> Put:
    """The note that these timelines' events are to be cleared away."""
    topics = [[each.storage_id, each.topic] for each in timelines if not each.deleted]
    return Put(CLEANUP_NOTES, key, {"topics": topics})


def not_found(name: str) -> NotFound:
    return NotFound(f'EventType "{name}" does not exist.')


def already_exists(name: str) -> Conflict:
    return Conflict(f"EventType {name} already exists.")


def _schema_put(event_type: EventType) -> Put:
    """Versions only grow, so that their keys are in the order of their making."""
    version = event_type.schema.version
    key = f"{event_type.id}/{version.major:09d}.{version.minor:09d}.{version.patch:09d}"
    return Put(SCHEMAS, key, schema_body(event_type.schema), expected=ABSENT)


# Topics ---------------------------------------------------------------------------------------------------------------


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

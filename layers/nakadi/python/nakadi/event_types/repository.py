"""The registered event types: reads, and writes that never lose another process's change.

A change reads a document, decides, and writes on the condition that the document is still the one that was read.
Otherwise, `retry_if_changed` starts the change again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from nakadi.common.caching import Cache
from nakadi.common.work import check_may_block
from nakadi.event_types.documents import event_type_body, event_type_from_document, schema_body, schema_from_body
from nakadi.event_types.measured_statistics import (
    MEASURED_STATISTICS_KIND,
    MeasuredStatistics,
    measured_statistics_from_body,
)
from nakadi.event_types.table_runs import TABLE_RUNS_KIND, TableRuns, table_runs_from_body
from nakadi.event_types.table_states import TABLE_STATES_KIND, TableState, table_state_from_body
from nakadi.model.event_type import EventType, Schema, Timeline
from nakadi.model.outcomes import Conflict, NotFound, TryLater
from nakadi.ports.event_log import UnknownTopic
from nakadi.ports.registry import (
    ABSENT_REVISION,
    ChangedMeanwhile,
    Document,
    DocumentChange,
    PutDocument,
    Registry,
    RemoveDocument,
)

EVENT_TYPES_KIND = "event-types"
SCHEMAS_KIND = "schemas"
CLEANUP_NOTES_KIND = "leftovers"

EVENT_TYPES_PAGE_SIZE = 1000

MAX_SHARED_EVENT_TYPES = 1000

# Two simultaneous writers of one event type are rare. If the writes of a request fail this often in a row, its client
# should repeat the request.
MAX_EVENT_TYPE_WRITE_ATTEMPTS = 8

EVENT_TYPE_BUSY_MESSAGE = "Event type is currently in maintenance, please repeat request"

Result = TypeVar("Result")


class EventTypes:
    def __init__(self, registry: Registry, cache: Cache[str, EventType]) -> None:
        self._registry = registry
        self._cache = cache
        self.cached: Callable[[str], EventType] = partial(cache.get, read_value=self.get)
        """Returns an event type, possibly as it was a moment ago. Changes by this process are visible at once."""
        self._listeners: list[Callable[[str], None]] = []
        self._latest: dict[str, EventType] = {}

    # Reading

    def find(self, name: str) -> EventType | None:
        check_may_block()
        document = self._registry.get(EVENT_TYPES_KIND, name)
        return None if document is None else self._shared_event_type(document)

    def _shared_event_type(self, document: Document) -> EventType:
        """The event type in a document. If the document has not changed, this is the same object as last time, which
        thousands of streams share.
        """
        # Threads that do this at the same time may each create an object; one of these objects is shared from then on.
        latest = self._latest.get(document.key)
        if latest is not None and (latest.revision, latest.id) == (document.revision, document.body["id"]):
            return latest
        if len(self._latest) >= MAX_SHARED_EVENT_TYPES:
            self._latest.clear()
        self._latest[document.key] = event_type = event_type_from_document(document)
        return event_type

    def get(self, name: str) -> EventType:
        event_type = self.find(name)
        if event_type is None:
            raise not_found_error(name)
        return event_type

    def all(self, *, after: str = "", page_size: int = EVENT_TYPES_PAGE_SIZE) -> Iterator[EventType]:
        """All event types with names greater than `after`, in the order of their names, read page by page."""
        while page := self._registry.list(EVENT_TYPES_KIND, after=after, limit=page_size):
            yield from map(event_type_from_document, page)
            after = page[-1].key

    def uses_storage(self, storage_id: str) -> bool:
        """Whether a timeline is in this storage, or is about to be."""
        return any(
            timeline.storage_id == storage_id
            for event_type in self.all()
            for timeline in (*event_type.timelines, event_type.switching_to)
            if timeline is not None and not timeline.deleted
        )

    def schemas(self, event_type: EventType) -> Sequence[Schema]:
        """All versions of its schema, newest first."""
        documents = self._registry.list(SCHEMAS_KIND, prefix=f"{event_type.id}/")
        return [schema_from_body(document.body) for document in reversed(documents)]

    def measured_statistics(self, event_type: EventType) -> MeasuredStatistics | None:
        """The latest measured statistics of its traffic; None if there are none."""
        document = self._registry.get(MEASURED_STATISTICS_KIND, event_type.id)
        return None if document is None else measured_statistics_from_body(document.body)

    def table_state(self, event_type: EventType) -> TableState | None:
        """The result of the last job that changed its table; None if there is none."""
        document = self._registry.get(TABLE_STATES_KIND, event_type.id)
        return None if document is None else table_state_from_body(document.body)

    def table_runs(self, event_type: EventType) -> TableRuns:
        """The newest runs of jobs that added events to its table."""
        document = self._registry.get(TABLE_RUNS_KIND, event_type.id)
        return TableRuns() if document is None else table_runs_from_body(document.body)

    # Writing

    def add_change_listener(self, listener: Callable[[str], None]) -> None:
        """Call `listener(name)` after each change or deletion of an event type by this process."""
        self._listeners.append(listener)

    def add(self, event_type: EventType, *conditions: DocumentChange) -> None:
        put = PutDocument(
            EVENT_TYPES_KIND, event_type.name, event_type_body(event_type), expected_revision=ABSENT_REVISION
        )
        try:
            self._write_and_notify(event_type.name, put, _schema_put(event_type), *conditions)
        except ChangedMeanwhile as error:
            if error.change is put:
                raise already_exists_error(event_type.name) from error
            raise

    def replace(self, old: EventType, new: EventType, *conditions: DocumentChange) -> EventType:
        """Store `new` in place of `old`, and return it with its revision. Raises `ChangedMeanwhile`."""
        put = PutDocument(EVENT_TYPES_KIND, old.name, event_type_body(new), expected_revision=old.revision)
        added = () if new.schema.version == old.schema.version else (_schema_put(new),)
        self._write_and_notify(old.name, put, *added, *conditions)
        return replace(new, revision=old.revision + 1)

    def remove(self, event_type: EventType, *conditions: DocumentChange) -> None:
        """Remove an event type, and note the topics to delete. Raises `ChangedMeanwhile`."""
        timelines = (*event_type.timelines, *([event_type.switching_to] if event_type.switching_to else []))
        remove = RemoveDocument(EVENT_TYPES_KIND, event_type.name, expected_revision=event_type.revision)
        self._write_and_notify(event_type.name, remove, cleanup_note(event_type.id, timelines), *conditions)
        self._latest.pop(event_type.name, None)

    def retry_if_changed(self, attempt: Callable[[], Result]) -> Result:
        """Call `attempt`, which reads, decides and writes, again until no other process has written in between.

        `attempt` is also repeated after `UnknownTopic`, because the event type was then deleted or moved after it was
        read.
        """
        for _ in range(MAX_EVENT_TYPE_WRITE_ATTEMPTS):
            try:
                return attempt()
            except (ChangedMeanwhile, UnknownTopic):
                continue
        raise TryLater(EVENT_TYPE_BUSY_MESSAGE)

    def _write_and_notify(self, name: str, *changes: DocumentChange) -> None:
        try:
            self._registry.write(*changes)
        finally:
            self._cache.invalidate(name)
        for listener in self._listeners:
            listener(name)


def cleanup_note(key: str, timelines: Iterable[Timeline]) -> PutDocument:
    """The write that notes the topics of these timelines for deletion. Adopted topics stay with their owner."""
    topics = [[each.storage_id, each.topic] for each in timelines if not each.deleted and not each.adopted]
    return PutDocument(CLEANUP_NOTES_KIND, key, {"topics": topics})


def not_found_error(name: str) -> NotFound:
    return NotFound(f'EventType "{name}" does not exist.')


def already_exists_error(name: str) -> Conflict:
    return Conflict(f"EventType {name} already exists.")


def _schema_put(event_type: EventType) -> PutDocument:
    """The write of the current schema. Versions only increase, so the order of the keys is the order of creation."""
    version = event_type.schema.version
    key = f"{event_type.id}/{version.major:09d}.{version.minor:09d}.{version.patch:09d}"
    return PutDocument(SCHEMAS_KIND, key, schema_body(event_type.schema), expected_revision=ABSENT_REVISION)

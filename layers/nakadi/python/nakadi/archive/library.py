"""Reading archive objects, the ones read last without asking again."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from nakadi.archive import members
from nakadi.model.events import StoredEvent
from nakadi.model.log_index import Location, Segment
from nakadi.ports import ArchiveGone, ArchiveStore

MOST_BYTES = 4_000_000
"""Compressed, as they are in the store: some segments for each of those who read at the same time."""

READ_AHEAD = 2
"""Threads."""

log = logging.getLogger(__name__)


class Unreadable(ArchiveGone):
    """Raised for events that the archive should have, and has not, or not as they were; the message tells offsets."""


class Library:
    def __init__(self, store: ArchiveStore, most_bytes: int = MOST_BYTES) -> None:
        self._store = store
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._members: OrderedDict[Location, Sequence[StoredEvent]] = OrderedDict()
        self._bytes = 0
        self._ahead: dict[Location, Future[Sequence[StoredEvent]]] = {}
        self._readers: ThreadPoolExecutor | None = None
        self._closed = False

    def events(self, topic: str, partition: int, segment: Segment) -> Sequence[StoredEvent]:
        """The events of a segment that is archived. Raises `Unreadable`."""
        location = segment.archived
        assert location is not None
        with self._lock:
            known = self._members.get(location)
            if known is not None:
                self._members.move_to_end(location)
            ahead = self._ahead.get(location)
        if known is None:
            known = read(self._store, topic, partition, segment) if ahead is None else ahead.result()
            self._remember(location, known)
        return known

    def expect(self, topic: str, partition: int, segment: Segment) -> None:
        """Somebody will soon ask for these events: they are read meanwhile."""
        location = segment.archived
        with self._lock:
            if location is None or self._closed or location in self._members or location in self._ahead:
                return
            self._readers = self._readers or ThreadPoolExecutor(READ_AHEAD, thread_name_prefix="archive-reader")
            self._ahead[location] = self._readers.submit(self._read_ahead, location, topic, partition, segment)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            readers = self._readers
        if readers is not None:
            readers.shutdown()

    def _read_ahead(self, location: Location, topic: str, partition: int, segment: Segment) -> Sequence[StoredEvent]:
        try:
            events = read(self._store, topic, partition, segment)
            self._remember(location, events)
        finally:
            with self._lock:
                self._ahead.pop(location, None)
        return events

    def _remember(self, location: Location, events: Sequence[StoredEvent]) -> None:
        with self._lock:
            if location not in self._members:
                self._members[location] = events
                self._bytes += location.length
            while self._bytes > self._most_bytes and len(self._members) > 1:
                gone, _ = self._members.popitem(last=False)
                self._bytes -= gone.length


def read(store: ArchiveStore, topic: str, partition: int, segment: Segment) -> Sequence[StoredEvent]:
    """The events of a segment as they are in the store, where they must be as they were written."""
    location = segment.archived
    assert location is not None
    try:
        events = members.events_of(store.get(location), topic, partition)
        _check(events, segment)
    except members.BadArchive as error:
        raise _unreadable(topic, partition, segment, f"is damaged: {error}") from error
    except ArchiveGone as error:
        raise _unreadable(topic, partition, segment, "is not there") from error
    return events


def _check(events: Sequence[StoredEvent], segment: Segment) -> None:
    if events and not segment.first <= events[0].offset <= events[-1].offset < segment.end:
        raise members.BadArchive(f"it has offsets {events[0].offset} to {events[-1].offset}")
    if segment.events is not None and len(events) != segment.events:
        raise members.BadArchive(f"it has {len(events)} events of {segment.events}")


def _unreadable(topic: str, partition: int, segment: Segment, why: str) -> Unreadable:
    assert segment.archived is not None
    message = (
        f"Offsets {segment.first} to {segment.end - 1} of {topic}/{partition} cannot be read:"
        f" the archive object {segment.archived.key} {why}"
    )
    log.error("%s", message)
    return Unreadable(message)

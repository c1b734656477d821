"""Reading archive objects, several at a time, and the ones read last without asking again."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

from nakadi.common.metrics import Metrics
from nakadi.engines.archive import objects
from nakadi.engines.archive.manifest import events_behind
from nakadi.model.events import StoredEvent
from nakadi.model.log_index import Location, Segment
from nakadi.ports.archive_store import ArchiveGone, ArchiveStore

MOST_BYTES = 4_000_000
"""Compressed, as they are in the store: some segments for each of those who read at the same time."""

AT_ONCE = 16
"""Objects that a process asks for at the same time."""

MOST_AHEAD = 16
AHEAD_BYTES = 2_000_000
"""Objects, and their bytes as they are in the store, that are asked for before a reader takes the first of them."""

UNPACKED = 4
"""Times larger at least than in the store: to guess which segments are enough for a reader."""

MOST_RUNS = 1000
"""Readers that are recognized when they come back for what follows."""

Events = Sequence[StoredEvent]

log = logging.getLogger(__name__)


class Unreadable(ArchiveGone):
    """Raised for events that the archive should have, and has not, or not as they were; the message tells offsets."""


class Run(NamedTuple):
    """A reader that comes back for what follows: how many segments were read for it the last time, and up to where."""

    segments: int = 0
    end: int = 0


class Library:
    def __init__(self, store: ArchiveStore, most_bytes: int = MOST_BYTES, metrics: Metrics | None = None) -> None:
        self._store = store
        self._metrics = metrics or Metrics()
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._members: OrderedDict[Location, Events] = OrderedDict()
        self._bytes = 0
        self._ahead: dict[Location, Future[Events]] = {}
        self._runs: OrderedDict[tuple[str, int, int], Run] = OrderedDict()
        self._readers: ThreadPoolExecutor | None = None
        self._closed = False

    def events(self, topic: str, partition: int, segment: Segment) -> Events:
        """The events of a segment that is archived. Raises `Unreadable`."""
        location = _location(segment)
        known, ahead = self._known_or_pending(location)
        if known is None and ahead is not None:
            # Its reader may never come back, and leave it.
            with suppress(CancelledError):
                return ahead.result()
        if known is None:
            return self._read_segment(location, topic, partition, segment)
        self._metrics.cache_hits.add(1, "archive")
        return known

    def sequence(
        self, topic: str, partition: int, segments: Iterable[Segment], start: int, limit: int, max_bytes: int
    ) -> Generator[tuple[Segment, Events], None, None]:
        """The events of these segments, one after the other in their order, while those that follow are read.

        No more is asked for at once than what a reader is likely to need for so many events, or bytes, from `start` on.
        To be closed by a reader that needs no more: then what has not begun is not read. Raises `Unreadable` where a
        segment is that cannot be read.
        """
        behind = iter(segments)
        waiting: deque[tuple[Segment, Future[Events] | None]] = deque()
        following = next(behind, None)
        events = size = 0
        try:
            while following is not None or waiting:
                while following is not None and self._may_follow(waiting, following, events < limit, size < max_bytes):
                    # What is read alone needs no thread of its own.
                    alone = not waiting and events_behind(following, start) >= limit
                    waiting.append((following, None if alone else self._begin_read(topic, partition, following)))
                    events += events_behind(following, start)
                    size += UNPACKED * _location(following).length
                    following = next(behind, None)
                segment, future = waiting.popleft()
                yield segment, self._result(topic, partition, segment, future)
        finally:
            for _, future in waiting:
                if future is not None:
                    future.cancel()

    @staticmethod
    def _may_follow(
        waiting: Sequence[tuple[Segment, object]], following: Segment, more_events: bool, more_bytes: bool
    ) -> bool:
        if not waiting:
            return True
        asked = sum(_location(each).length for each, _ in waiting)
        fits = len(waiting) < MOST_AHEAD and asked + _location(following).length <= AHEAD_BYTES
        return fits and more_events and more_bytes

    def expect(self, topic: str, partition: int, segments: Iterable[Segment]) -> int:
        """Read as many of these ahead as fit, since they will be needed soon. Returns where the last of them ends."""
        end = size = 0
        for segment in segments:
            if segment.archived is None or (size and size + segment.archived.length > AHEAD_BYTES):
                break
            size += segment.archived.length
            self._begin_read(topic, partition, segment)
            end = segment.end
        return end

    # Readers that come back

    def run(self, topic: str, partition: int, start: int) -> Run | None:
        """The run of a reader that continues where one has stopped; None if none stopped there."""
        with self._lock:
            return self._runs.pop((topic, partition, start), None)

    def note_run(self, topic: str, partition: int, following: int, run: Run) -> None:
        with self._lock:
            self._runs[topic, partition, following] = run
            while len(self._runs) > MOST_RUNS:
                self._runs.popitem(last=False)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            readers = self._readers
        if readers is not None:
            readers.shutdown(cancel_futures=True)

    def _known_or_pending(self, location: Location) -> tuple[Events | None, Future[Events] | None]:
        with self._lock:
            known = self._members.get(location)
            if known is not None:
                self._members.move_to_end(location)
            return known, self._ahead.get(location)

    def _begin_read(self, topic: str, partition: int, segment: Segment) -> Future[Events] | None:
        """The read of a segment, begun unless it is under way; None if its events are known, or after closing."""
        location = _location(segment)
        with self._lock:
            if self._closed or location in self._members:
                return None
            begun = self._ahead.get(location)
            if begun is not None:
                return begun
            self._readers = self._readers or ThreadPoolExecutor(AT_ONCE, thread_name_prefix="archive-reader")
            begun = self._readers.submit(self._read_segment, location, topic, partition, segment)
            self._ahead[location] = begun
        begun.add_done_callback(self._when_done(location))
        return begun

    def _when_done(self, location: Location) -> Callable[[Future[Events]], None]:
        def when_done(future: Future[Events]) -> None:
            with self._lock:
                if self._ahead.get(location) is future:
                    del self._ahead[location]

        return when_done

    def _result(self, topic: str, partition: int, segment: Segment, future: Future[Events] | None) -> Events:
        if future is not None:
            with suppress(CancelledError):
                return future.result()
        return self.events(topic, partition, segment)

    def _read_segment(self, location: Location, topic: str, partition: int, segment: Segment) -> Events:
        self._metrics.cache_misses.add(1, "archive")
        try:
            events = read(self._store, topic, partition, segment)
        except Unreadable:
            self._metrics.archive_unreadable.add()
            raise
        self._remember(location, events)
        return events

    def _remember(self, location: Location, events: Events) -> None:
        with self._lock:
            if location not in self._members:
                self._members[location] = events
                self._bytes += location.length
            while self._bytes > self._most_bytes and len(self._members) > 1:
                gone, _ = self._members.popitem(last=False)
                self._bytes -= gone.length


def _location(segment: Segment) -> Location:
    assert segment.archived is not None
    return segment.archived


def read(store: ArchiveStore, topic: str, partition: int, segment: Segment) -> Sequence[StoredEvent]:
    """The events of a segment as they are in the store, where they must be as they were written."""
    location = segment.archived
    assert location is not None
    try:
        events = objects.events_of(store.get(location), topic, partition)
        _check(events, segment)
    except objects.BadArchive as error:
        raise _unreadable(topic, partition, segment, f"is damaged: {error}") from error
    except ArchiveGone as error:
        raise _unreadable(topic, partition, segment, "is not there") from error
    return events


def _check(events: Sequence[StoredEvent], segment: Segment) -> None:
    if events and not segment.first <= events[0].offset <= events[-1].offset < segment.end:
        raise objects.BadArchive(f"it has offsets {events[0].offset} to {events[-1].offset}")
    if segment.events is not None and len(events) != segment.events:
        raise objects.BadArchive(f"it has {len(events)} events of {segment.events}")


def _unreadable(topic: str, partition: int, segment: Segment, why: str) -> Unreadable:
    assert segment.archived is not None
    message = (
        f"Offsets {segment.first} to {segment.end - 1} of {topic}/{partition} cannot be read:"
        f" the archive object {segment.archived.key} {why}"
    )
    log.error("%s", message)
    return Unreadable(message)

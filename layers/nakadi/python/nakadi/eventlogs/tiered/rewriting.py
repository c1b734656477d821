"""Writing the cold half of a partition anew: without what newer events replaced, and in fewer pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from uuid import uuid4

from nakadi.archive import keys, library
from nakadi.archive.manifest import archived
from nakadi.archive.members import Packer
from nakadi.eventlogs.keeping import Rule
from nakadi.eventlogs.tiered.options import Directory
from nakadi.model.events import StoredEvent
from nakadi.model.log_index import Location, Segment
from nakadi.model.moments import microseconds
from nakadi.ports import ArchiveStore, LogIndex

CLAIMED_FOR = 600.0
"""Seconds. Of two who write a partition anew at once, the second one has nothing to do."""

MANY = 16
"""So many small neighbours are worth writing anew."""

GROUP_EVENTS = 20_000
GROUP_BYTES = 1_000_000
"""Compressed: about as much as a reader unpacks at once."""


Keeps = Callable[[StoredEvent], bool]


class Busy(Exception):
    """Raised when somebody else writes a partition anew."""


class Rewriter:
    def __init__(self, index: LogIndex, store: ArchiveStore, directory: Directory) -> None:
        self._index = index
        self._store = store
        self._directory = directory

    def compact(
        self, topic: str, partition: int, *, oldest: int, end: int, last: int, tombstones_before: int
    ) -> int | None:
        """Compact what is archived before `end`. Answers when the oldest tombstone that stayed was stored."""
        with self._alone(topic, partition):
            there = [each for each in archived(self._index, topic, partition, oldest) if each.first < end]
            newest = {
                event.record.key: event.offset for event in self._events(topic, partition, there) if event.offset < end
            }
            rule = Rule(oldest=oldest, end=end, last=last, newest=newest, tombstones_before=tombstones_before)
            tombstone_at = self._rewrite(topic, partition, there, rule)
            self._index.note_compacted(topic, partition, end)
        return tombstone_at

    def merge(self, topic: str, partition: int, rest: Callable[[], None]) -> None:
        """Write many small neighbours as one, for those who read them."""
        groups = [group for group in _groups(archived(self._index, topic, partition)) if len(group) >= MANY]
        if groups:
            with self._alone(topic, partition):
                for group in groups:
                    written = self._written(topic, partition, group, _everything_stays, [])
                    self._index.replace(topic, partition, [written], written.end)
                    rest()

    @contextmanager
    def _alone(self, topic: str, partition: int) -> Iterator[None]:
        claim, owner = f"compaction/{topic}/{partition}", uuid4().hex
        if not self._index.claim(claim, owner, CLAIMED_FOR):
            raise Busy(claim)
        try:
            yield
        finally:
            self._index.release(claim, owner)

    def _rewrite(self, topic: str, partition: int, there: Sequence[Segment], rule: Rule) -> int | None:
        tombstones: list[int] = []
        written = [self._written(topic, partition, group, rule.keeps, tombstones) for group in _groups(there)]
        if written != there:
            self._index.replace(topic, partition, written, there[-1].end)
        return min(tombstones, default=None)

    def _written(
        self, topic: str, partition: int, group: Sequence[Segment], keeps: Keeps, tombstones: list[int]
    ) -> Segment:
        """These segments as one, in an object of its own; a single one of which everything stays is left as it is."""
        packer = Packer(topic, partition, self._directory.event_type_of(topic))
        found = kept = 0
        for each in group:
            events = library.read(self._store, topic, partition, each)
            staying = [event for event in events if keeps(event)]
            tombstones += [
                microseconds(event.stored_at)
                for event in staying
                if event.record.value is None and event.record.key is not None
            ]
            packer.add(staying)
            found += len(events)
            kept += len(staying)
        if len(group) == 1 and kept == found:
            return group[0]
        content = packer.finish()
        assert group[0].archived is not None
        key = keys.rewritten(group[0].archived.key, topic, partition, group[0].first)
        self._store.put(key, content)
        return Segment(
            before=group[0].before,
            count=group[-1].end - group[0].first,
            since=group[0].since,
            until=group[-1].until,
            archived=Location(key, 0, len(content)),
            events=kept,
        )

    def _events(self, topic: str, partition: int, segments: Sequence[Segment]) -> Iterator[StoredEvent]:
        for each in segments:
            yield from library.read(self._store, topic, partition, each)


def _everything_stays(_: StoredEvent) -> bool:
    return True


def _groups(segments: Iterable[Segment]) -> Iterator[Sequence[Segment]]:
    """Neighbours that are small enough to be one segment."""
    group: list[Segment] = []
    for segment in segments:
        together = [*group, segment]
        events = sum(each.count if each.events is None else each.events for each in together)
        size = sum(each.archived.length for each in together if each.archived)
        if group and (events > GROUP_EVENTS or size > GROUP_BYTES):
            yield group
            group = []
        group.append(segment)
    if group:
        yield group

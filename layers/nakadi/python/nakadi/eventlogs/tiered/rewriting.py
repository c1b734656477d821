"""Writing the cold half of a partition anew: without what newer events replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from nakadi.archive import library
from nakadi.archive.manifest import archived
from nakadi.archive.members import Packer
from nakadi.archive.merging import GROUP_BYTES, GROUP_EVENTS, alone, stored_for
from nakadi.eventlogs.keeping import Rule
from nakadi.eventlogs.tiered.options import Directory
from nakadi.model.events import StoredEvent
from nakadi.model.log_index import Segment
from nakadi.model.moments import microseconds
from nakadi.ports import ArchiveStore, LogIndex

Keeps = Callable[[StoredEvent], bool]


class Rewriter:
    def __init__(self, index: LogIndex, store: ArchiveStore, directory: Directory) -> None:
        self._index = index
        self._store = store
        self._directory = directory

    def compact(
        self, topic: str, partition: int, *, oldest: int, end: int, last: int, tombstones_before: int
    ) -> int | None:
        """Compact what is archived before `end`. Answers when the oldest tombstone that stayed was stored."""
        with alone(self._index, topic, partition) as make_sure:
            there = [each for each in archived(self._index, topic, partition, oldest) if each.first < end]
            newest = {
                event.record.key: event.offset for event in self._events(topic, partition, there) if event.offset < end
            }
            rule = Rule(oldest=oldest, end=end, last=last, newest=newest, tombstones_before=tombstones_before)
            tombstone_at = self._rewrite(topic, partition, there, rule, make_sure)
            self._index.note_compacted(topic, partition, end)
        return tombstone_at

    def _rewrite(
        self, topic: str, partition: int, there: Sequence[Segment], rule: Rule, make_sure: Callable[[], None]
    ) -> int | None:
        tombstones: list[int] = []
        written = [self._written(topic, partition, group, rule.keeps, tombstones) for group in _groups(there)]
        make_sure()
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
        return stored_for(group, packer.finish(), kept, self._store, topic, partition)

    def _events(self, topic: str, partition: int, segments: Sequence[Segment]) -> Iterator[StoredEvent]:
        for each in segments:
            yield from library.read(self._store, topic, partition, each)


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

"""Compaction: writing a partition's archive anew without what newer events replaced.

The stream itself never changes. From then on readers take what is compacted from the archive alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import replace

from nakadi.engines.archive import objects
from nakadi.engines.archive.compaction import CompactionRule
from nakadi.engines.archive.maintenance import Busy, alone
from nakadi.engines.kinesis.continuity import Ancestry
from nakadi.engines.kinesis.envelopes import hash_key, partition_key
from nakadi.engines.kinesis.indexing import Indexer
from nakadi.engines.kinesis.reading import LastingReader
from nakadi.engines.kinesis.topics import Topics
from nakadi.model.events import StoredEvent
from nakadi.model.log_index import Location, Segment
from nakadi.model.outcomes import Unavailable
from nakadi.ports.archive_store import ArchiveStore
from nakadi.ports.log_index import LogIndex

FOLDER = "compacted/"
"""Objects in here hold one segment each, and no other events: they can be removed when it is replaced."""

GROUP_EVENTS = 20_000
GROUP_BYTES = 16_000_000
READ_AT_ONCE = 1000


class Compactor(Struct, frozen=True, kw_only=True):
    stream: str
    index: LogIndex
    archive: ArchiveStore | None
    topics: Topics
    reader: LastingReader
    indexer: Indexer
    ancestry: Ancestry

    def compact(self, topic: str, partition: int, upto: int, tombstones_before: int) -> None:
        oldest = self.topics.with_partition(topic, partition).oldest.get(partition, 0)
        end = self.reader.offset_at(topic, partition, upto)
        if end <= oldest:
            return
        if self.archive is None:
            raise Unavailable("Compaction needs an archive")
        with suppress(Busy), alone(self.index, topic, partition) as make_sure:
            self._index_up_to(topic, partition, end)
            self._rewrite(topic, partition, self._rule(topic, partition, oldest, end, tombstones_before), make_sure)

    def removed(self, locations: Sequence[Location]) -> None:
        """Nothing refers to these any more."""
        keys = [location.key for location in locations if location.key.startswith(FOLDER)]
        if keys and self.archive is not None:
            self.archive.remove(keys)

    def _index_up_to(self, topic: str, partition: int, end: int) -> None:
        """The indexer is seconds behind, and what is compacted is older; this is for the day when it stands still."""
        if self._indexed_until(topic, partition) < end:
            for shard in self.ancestry.refreshed().chain(hash_key(partition_key(topic, partition))):
                self.indexer.catch_up(shard)
            if self._indexed_until(topic, partition) < end:
                raise Unavailable(f"{topic}/{partition} is not indexed up to {end}")

    def _indexed_until(self, topic: str, partition: int) -> int:
        return self.index.heads([(topic, partition)])[topic, partition].counted.next

    def _rule(self, topic: str, partition: int, oldest: int, end: int, tombstones_before: int) -> CompactionRule:
        found = self._events(topic, partition, oldest, end)
        newest = {event.record.key: event.offset for event in found if event.offset < end}
        last = self.reader.state(topic, partition).next - 1
        return CompactionRule(oldest=oldest, end=end, last=last, newest=newest, tombstones_before=tombstones_before)

    def _rewrite(self, topic: str, partition: int, rule: CompactionRule, make_sure: Callable[[], None]) -> None:
        there = list(self._segments(topic, partition, rule.oldest, rule.end))
        written = [self._written(topic, partition, group, rule) for group in _groups(there)]
        end = there[-1].end
        make_sure()
        if written != there:
            self.index.replace(topic, partition, written, end)
        elif not self._was_cut_short(topic, partition, there):
            return
        self.index.note_compacted(topic, partition, end)
        self.topics.forget(topic)
        kept = {segment.archived for segment in written}
        self.removed([each.archived for each in there if each.archived and each.archived not in kept])

    def _was_cut_short(self, topic: str, partition: int, there: Sequence[Segment]) -> bool:
        """Whether compacted segments were written without being noted."""
        compacted = [each.end for each in there if each.archived and each.archived.key.startswith(FOLDER)]
        noted = self.topics.fresh(topic).topic.compacted.get(partition, 0)
        return max(compacted, default=0) > noted

    def _written(self, topic: str, partition: int, group: Sequence[Segment], rule: CompactionRule) -> Segment:
        """These segments as one, in an object of its own; a single one of which everything stays is left as it is."""
        events = list(self._events(topic, partition, max(group[0].first, rule.oldest), group[-1].end))
        kept = [event for event in events if rule.keeps(event)]
        if len(group) == 1 and len(kept) == len(events) and group[0].archived is not None:
            return group[0]
        content = objects.member(topic, partition, kept)
        key = f"{FOLDER}{self.stream}/{topic}/{partition}/{group[0].first:018d}-{uuid4().hex}.json.gz"
        assert self.archive is not None
        self.archive.put(key, content)
        return replace(
            group[0],
            count=group[-1].end - group[0].first,
            until=group[-1].until,
            archived=Location(key, 0, len(content)),
        )

    def _segments(self, topic: str, partition: int, start: int, end: int) -> Iterator[Segment]:
        """The segments that hold anything from one offset to another."""
        segment = self.index.segment(topic, partition, start)
        following = start
        if segment is not None and segment.end > start:
            yield segment
            following = segment.end
        while following < end:
            found = self.index.segments(topic, partition, following, 100)
            for each in found:
                if each.first >= end:
                    return
                yield each
                following = each.end
            if not found:
                return

    def _events(self, topic: str, partition: int, start: int, end: int) -> Iterator[StoredEvent]:
        place = start
        while place < end:
            piece = self.reader.look(topic, partition, place, READ_AT_ONCE, 4_000_000)
            yield from (event for event in piece.events if event.offset < end)
            place = max(piece.next_offset, place + 1)


def _groups(segments: Sequence[Segment]) -> Iterator[Sequence[Segment]]:
    """Neighbours that are small enough to be one segment."""
    group: list[Segment] = []
    for segment in segments:
        events = sum(each.count for each in [*group, segment])
        size = sum(each.archived.length for each in [*group, segment] if each.archived)
        if group and (events > GROUP_EVENTS or 8 * size > GROUP_BYTES):
            yield group
            group = []
        group.append(segment)
    if group:
        yield group

"""The parts of the archive that hold the events of an event type, as the log index lists them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson
from msgspec import Struct
from msgspec.structs import replace

from nakadi.model.event_type import EventType
from nakadi.model.log_index import ArchiveLocation, IndexHead, IndexSegment
from nakadi.ports.log_index import LogIndex

SEGMENTS_PER_READ = 1000

TopicPartition = tuple[str, int]
"""A topic and a partition of it."""


class ArchiveRange(Struct, frozen=True, kw_only=True):
    """Offsets of one partition whose events lie next to each other in the archive.

    `events` is the number of events: it is smaller than the number of offsets if compaction or an erasure removed some
    events, and None if the remaining ones were not counted. Times are microseconds.
    """

    topic: str
    timeline: int
    partition: int
    first: int
    end: int
    location: ArchiveLocation
    since: int
    until: int
    events: int | None

    @property
    def place(self) -> TopicPartition:
        return self.topic, self.partition

    @property
    def name(self) -> str:
        """The place of its events in the archive, as text."""
        return f"{self.location.key}@{self.location.start}"


class Progress(Struct, frozen=True):
    """For each partition, the offset up to which a table has every event, except in gaps, which could not be read.

    `damaged` names the ranges in the gaps. A job reads them again only if they were replaced, or on request.
    `timelines` has the order of the timeline of each topic: tables that older versions made may lack some.
    """

    following: Mapping[TopicPartition, int]
    gaps: Mapping[TopicPartition, tuple[tuple[int, int], ...]]
    damaged: frozenset[str] = frozenset()
    timelines: Mapping[str, int] = {}

    @classmethod
    def read(cls, text: str) -> Progress:
        known = orjson.loads(text)
        return cls(
            {_parse_topic_partition(name): offset for name, offset in known["next"].items()},
            {
                _parse_topic_partition(name): tuple((first, end) for first, end in found)
                for name, found in known["gaps"].items()
            },
            frozenset(known.get("damaged", ())),
            known.get("timelines", {}),
        )

    def to_text(self) -> str:
        known: dict[str, Any] = {
            "next": {f"{topic}/{partition}": offset for (topic, partition), offset in self.following.items()},
            "gaps": {f"{topic}/{partition}": found for (topic, partition), found in self.gaps.items() if found},
        }
        if self.damaged:
            known["damaged"] = sorted(self.damaged)
        if self.timelines:
            known["timelines"] = self.timelines
        return orjson.dumps(known, option=orjson.OPT_SORT_KEYS).decode()

    def after_reading(self, read: Iterable[ArchiveRange], damaged: Iterable[ArchiveRange]) -> Progress:
        """The progress after the job has read some ranges, and failed to read others."""
        read, damaged = [*read], [*damaged]
        following = dict(self.following)
        gaps = {place: list(found) for place, found in self.gaps.items()}
        names = set(self.damaged)
        for part in read:
            names.discard(part.name)
            gaps[part.place] = list(_subtract(gaps.get(part.place, ()), part.first, part.end))
            following[part.place] = max(following.get(part.place, 0), part.end)
        for part in damaged:
            names.add(part.name)
            left = list(_subtract(gaps.get(part.place, ()), part.first, part.end))
            gaps[part.place] = sorted([*left, (part.first, part.end)])
            following[part.place] = max(following.get(part.place, 0), part.end)
        timelines = {**self.timelines, **{part.topic: part.timeline for part in (*read, *damaged)}}
        return Progress(following, {place: tuple(found) for place, found in gaps.items()}, frozenset(names), timelines)


NO_PROGRESS = Progress({}, {})


AFTER_LAST_OFFSET = 10**17
"""Greater than the last offset of any partition."""


def refresh_ranges(index: LogIndex, event_type: EventType, read: Iterable[ArchiveRange]) -> Iterator[ArchiveRange]:
    """The ranges that the index has now for the offsets of `read`."""
    ranges: dict[TopicPartition, tuple[int, int]] = {}
    for part in read:
        first, end = ranges.get(part.place, (part.first, part.end))
        ranges[part.place] = min(first, part.first), max(end, part.end)
    behind = dict.fromkeys(ranges, AFTER_LAST_OFFSET)
    progress = Progress(behind, {place: (found,) for place, found in ranges.items()})
    return unread_parts(index, event_type, progress, ranges)


def unread_parts(
    index: LogIndex, event_type: EventType, progress: Progress, among: Container[TopicPartition] | None = None
) -> Iterator[ArchiveRange]:
    """The ranges beyond the progress, and in its gaps. A topic that the index does not know has none."""
    for timeline in event_type.timelines:
        known = index.topic(timeline.topic)
        if known is None:
            continue
        for partition in range(known.partitions):
            place = (timeline.topic, partition)
            if among is not None and place not in among:
                continue
            oldest = known.oldest.get(partition, 0)
            wanted = [*progress.gaps.get(place, ()), (progress.following.get(place, 0), None)]
            for first, end in wanted:
                for segment in _segments(index, place, max(first, oldest), end):
                    found = _make_range(place, timeline.order, segment, known.compacted.get(partition, 0))
                    yield _cut(found, max(first, oldest), end)


def unread_parts_since(
    index: LogIndex, event_type: EventType, progress: Progress, moment: int
) -> Iterator[ArchiveRange]:
    """The ranges beyond the progress, and in its gaps, that were stored at this moment or later.

    If the index goes back for years, this reads only its end.
    """
    known = {timeline.topic: index.topic(timeline.topic) for timeline in event_type.timelines}
    places = [(topic, number) for topic, found in known.items() if found for number in range(found.partitions)]
    heads = index.index_heads(places)
    following = dict(progress.following)
    for topic, partition in places:
        found = known[topic]
        assert found is not None
        start = max(following.get((topic, partition), 0), found.oldest.get(partition, 0))
        following[topic, partition] = _find_start(index, (topic, partition), start, heads[topic, partition], moment)
    with_any = {
        place for place in places if following[place] < heads[place].state.next_offset or progress.gaps.get(place)
    }
    later = unread_parts(index, event_type, Progress(following, progress.gaps, progress.damaged), with_any)
    return (part for part in later if part.until >= moment)


def _find_start(index: LogIndex, place: TopicPartition, start: int, head: IndexHead, moment: int) -> int:
    """The first offset of the first segment that ends at this moment or later; the next offset of the partition if
    there is none. Stored times never decrease.
    """
    end = head.state.next_offset
    if head.state.latest_stored_at < moment:
        return max(start, end)
    while start < end:
        middle = (start + end) // 2
        segment = index.segment_at_or_before(*place, middle)
        if segment is None or segment.last_stored_at < moment:
            start = middle + 1 if segment is None else max(middle + 1, segment.end_offset)
        else:
            end = max(start, min(middle, segment.first_offset))
    return start


def unblocked_prefixes(found: Iterable[ArchiveRange], names: Container[str]) -> Iterator[ArchiveRange]:
    """For each partition, the ranges with these names, up to the first one with another name: no range is skipped."""
    ended: set[TopicPartition] = set()
    for part in found:
        if part.name not in names:
            ended.add(part.place)
        elif part.place not in ended:
            yield part


def split_into_batches(found: Iterable[ArchiveRange], max_bytes: int) -> Iterator[Sequence[ArchiveRange]]:
    """Split ranges into batches, oldest first, each small enough for one commit. Within a partition, no range is
    skipped.
    """
    batch: list[ArchiveRange] = []
    size = 0
    for part in sorted(found, key=lambda each: (each.since, each.topic, each.partition, each.first)):
        if batch and size + part.location.length > max_bytes:
            yield batch
            batch, size = [], 0
        batch.append(part)
        size += part.location.length
    if batch:
        yield batch


def _segments(index: LogIndex, place: TopicPartition, start: int, end: int | None) -> Iterator[IndexSegment]:
    """Segments with offsets from `start` to before `end`, up to the first one that is not archived."""
    if end is not None and start >= end:
        return
    first = index.segment_at_or_before(*place, start)
    if first is not None and first.end_offset > start:
        if first.location is None:
            return
        yield first
        start = first.end_offset
    while found := index.segments_from(*place, start, SEGMENTS_PER_READ):
        for segment in found:
            if segment.location is None or (end is not None and segment.first_offset >= end):
                return
            yield segment
        start = found[-1].end_offset


def _make_range(place: TopicPartition, timeline: int, segment: IndexSegment, compacted: int) -> ArchiveRange:
    topic, partition = place
    assert segment.location is not None
    return ArchiveRange(
        topic=topic,
        timeline=timeline,
        partition=partition,
        first=segment.first_offset,
        end=segment.end_offset,
        location=segment.location,
        since=segment.first_stored_at,
        until=segment.last_stored_at,
        events=_count_events(segment, compacted),
    )


def _count_events(segment: IndexSegment, compacted: int) -> int | None:
    """The number of events of a segment; None if it is unknown. A rewritten segment stores the number, except in old
    archives.
    """
    if segment.event_count is not None:
        return segment.event_count
    return segment.offset_count if segment.first_offset >= compacted else None


def _cut(part: ArchiveRange, first: int, end: int | None) -> ArchiveRange:
    """The part of a range between two offsets; if some of its offsets are empty, its number of events is unknown."""
    first, last = max(first, part.first), part.end if end is None else min(end, part.end)
    if (first, last) == (part.first, part.end):
        return part
    has_all = part.events == part.end - part.first
    return replace(part, first=first, end=last, events=last - first if has_all else None)


def _subtract(ranges: Iterable[tuple[int, int]], first: int, end: int) -> Iterator[tuple[int, int]]:
    for start, stop in ranges:
        if start < min(first, stop):
            yield start, min(first, stop)
        if max(end, start) < stop:
            yield max(end, start), stop


def _parse_topic_partition(name: str) -> TopicPartition:
    topic, _, partition = name.rpartition("/")
    return topic, int(partition)

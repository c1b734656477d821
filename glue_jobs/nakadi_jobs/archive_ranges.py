"""Which parts of the archive hold the events of an event type that were not read yet. The log index says so."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

import orjson
from msgspec import Struct
from msgspec.structs import replace

from nakadi.model.event_type import EventType
from nakadi.model.log_index import Location, Segment
from nakadi.ports.log_index import LogIndex

AT_ONCE = 1000

Place = tuple[str, int]
"""A topic and a partition of it."""


class Stretch(Struct, frozen=True, kw_only=True):
    """Offsets of one partition whose events lie next to each other in the archive.

    `whole` is false where events were compacted away: then there may be fewer than offsets. Times are microseconds.
    """

    topic: str
    timeline: int
    partition: int
    first: int
    end: int
    location: Location
    since: int
    until: int
    whole: bool = True

    @property
    def place(self) -> Place:
        return self.topic, self.partition


class Progress(Struct, frozen=True):
    """Per partition the offset up to which a table has every event, but for the gaps: what could not be read."""

    following: Mapping[Place, int]
    gaps: Mapping[Place, tuple[tuple[int, int], ...]]

    @classmethod
    def read(cls, text: str) -> Progress:
        known = orjson.loads(text)
        return cls(
            {_place(name): offset for name, offset in known["next"].items()},
            {_place(name): tuple((first, end) for first, end in found) for name, found in known["gaps"].items()},
        )

    def written(self) -> str:
        known = {
            "next": {f"{topic}/{partition}": offset for (topic, partition), offset in self.following.items()},
            "gaps": {f"{topic}/{partition}": found for (topic, partition), found in self.gaps.items() if found},
        }
        return orjson.dumps(known, option=orjson.OPT_SORT_KEYS).decode()

    def with_read(self, read: Iterable[Stretch], damaged: Iterable[Stretch]) -> Progress:
        """What is known after these were read, and those could not be."""
        following = dict(self.following)
        gaps = {place: list(found) for place, found in self.gaps.items()}
        for stretch in read:
            gaps[stretch.place] = list(_without(gaps.get(stretch.place, ()), stretch.first, stretch.end))
            following[stretch.place] = max(following.get(stretch.place, 0), stretch.end)
        for stretch in damaged:
            left = list(_without(gaps.get(stretch.place, ()), stretch.first, stretch.end))
            gaps[stretch.place] = sorted([*left, (stretch.first, stretch.end)])
            following[stretch.place] = max(following.get(stretch.place, 0), stretch.end)
        return Progress(following, {place: tuple(found) for place, found in gaps.items()})


NOTHING_READ = Progress({}, {})


BEHIND_ALL = 10**17
"""Behind the last offset of any partition."""


def again(index: LogIndex, event_type: EventType, read: Iterable[Stretch]) -> Iterator[Stretch]:
    """What there is now where these were found."""
    ranges: dict[Place, tuple[int, int]] = {}
    for stretch in read:
        first, end = ranges.get(stretch.place, (stretch.first, stretch.end))
        ranges[stretch.place] = min(first, stretch.first), max(end, stretch.end)
    behind = dict.fromkeys(ranges, BEHIND_ALL)
    progress = Progress(behind, {place: (found,) for place, found in ranges.items()})
    return stretches(index, event_type, progress, ranges)


def stretches(
    index: LogIndex, event_type: EventType, progress: Progress, among: Container[Place] | None = None
) -> Iterator[Stretch]:
    """What there is to read beyond the progress, and in its gaps. A topic that is gone has nothing."""
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
                    found = _stretch(place, timeline.order, segment, known.compacted.get(partition, 0))
                    yield _cut(found, max(first, oldest), end)


def in_batches(found: Iterable[Stretch], most_bytes: int) -> Iterator[Sequence[Stretch]]:
    """Oldest first, as much at once as one commit is to hold. Within a partition nothing is ever passed over."""
    batch: list[Stretch] = []
    size = 0
    for stretch in sorted(found, key=lambda each: (each.since, each.topic, each.partition, each.first)):
        if batch and size + stretch.location.length > most_bytes:
            yield batch
            batch, size = [], 0
        batch.append(stretch)
        size += stretch.location.length
    if batch:
        yield batch


def sizes(found: Iterable[Stretch]) -> Mapping[str, int]:
    """Object -> how many of its bytes these are."""
    known: dict[str, int] = {}
    for location in {stretch.location for stretch in found}:
        known[location.key] = known.get(location.key, 0) + location.length
    return known


def _segments(index: LogIndex, place: Place, start: int, end: int | None) -> Iterator[Segment]:
    """Segments with anything from `start` to before `end`, up to the first that is not archived."""
    if end is not None and start >= end:
        return
    first = index.segment(*place, start)
    if first is not None and first.end > start:
        if first.archived is None:
            return
        yield first
        start = first.end
    while found := index.segments(*place, start, AT_ONCE):
        for segment in found:
            if segment.archived is None or (end is not None and segment.first >= end):
                return
            yield segment
        start = found[-1].end


def _stretch(place: Place, timeline: int, segment: Segment, compacted: int) -> Stretch:
    topic, partition = place
    assert segment.archived is not None
    return Stretch(
        topic=topic,
        timeline=timeline,
        partition=partition,
        first=segment.first,
        end=segment.end,
        location=segment.archived,
        since=segment.since,
        until=segment.until,
        whole=segment.first >= compacted,
    )


def _cut(stretch: Stretch, first: int, end: int | None) -> Stretch:
    last = stretch.end if end is None else min(end, stretch.end)
    return replace(stretch, first=max(first, stretch.first), end=last)


def _without(ranges: Iterable[tuple[int, int]], first: int, end: int) -> Iterator[tuple[int, int]]:
    for start, stop in ranges:
        if start < min(first, stop):
            yield start, min(first, stop)
        if max(end, start) < stop:
            yield max(end, start), stop


def _place(name: str) -> Place:
    topic, _, partition = name.rpartition("/")
    return topic, int(partition)

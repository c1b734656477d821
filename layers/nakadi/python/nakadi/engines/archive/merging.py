"""Merges many small neighbouring segments of the archive into few."""

from __future__ import annotations

import itertools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import NamedTuple
from uuid import uuid4

from msgspec import Struct

from nakadi.engines.archive import object_keys
from nakadi.engines.archive.member_format import MemberPacker
from nakadi.engines.archive.segment_cache import SegmentCache, read_segment
from nakadi.model.events import StoredEvent
from nakadi.model.log_index import ArchiveLocation, IndexSegment
from nakadi.ports.archive_store import ArchiveStore
from nakadi.ports.log_index import LogIndex

CLAIM_DURATION_SECONDS = 600.0
"""How long a claim lasts. If two processes rewrite a partition at once in spite of the claims, the later one finds
nothing left to do.
"""

CLAIM_POLL_SECONDS = 0.5

MIN_SEGMENTS_TO_MERGE = 16
"""How many small neighbouring segments are worth rewriting."""

MAX_GROUP_EVENTS = 20_000
MAX_GROUP_BYTES = 1_000_000
"""The compressed size of a group: about as much as a reader unpacks at once."""

SEGMENTS_PER_MERGE_QUERY = 1000

BLOCK_BYTES = 1 << 22
MAX_CACHED_BLOCK_BYTES = 1 << 27

NO_SPAN_LIMIT = 1 << 62


class PartitionBusy(Exception):
    """Raised when another process rewrites the partition."""


class SegmentGroup(NamedTuple):
    """Neighbouring segments of a partition, from one offset to another. Groups sort by the time of their first
    event.
    """

    first_stored_at: int
    topic: str
    partition: int
    first_offset: int
    end_offset: int


@contextmanager
def claim_partition(index: LogIndex, topic: str, partition: int) -> Iterator[Callable[[], None]]:
    """Claim a partition, so that no other process rewrites it. The yielded function renews the claim.

    Entering the context and each renewal raise `PartitionBusy` if another process has the claim.
    """
    claim, owner = f"compaction/{topic}/{partition}", uuid4().hex

    def renew_claim() -> None:
        if not index.claim(claim, owner, CLAIM_DURATION_SECONDS):
            raise PartitionBusy(claim)

    renew_claim()
    try:
        yield renew_claim
    finally:
        index.release_claim(claim, owner)


@contextmanager
def wait_for_partition(
    index: LogIndex, topic: str, partition: int, patience_seconds: float
) -> Iterator[Callable[[], None]]:
    """Claim a partition once no other process rewrites it; raises `PartitionBusy` if that takes too long."""
    give_up = time.monotonic() + patience_seconds
    with ExitStack() as claimed:
        while True:
            try:
                renew_claim = claimed.enter_context(claim_partition(index, topic, partition))
                break
            except PartitionBusy:
                if time.monotonic() >= give_up:
                    raise
            time.sleep(CLAIM_POLL_SECONDS)
        yield renew_claim


class SegmentMerger(Struct, frozen=True, kw_only=True):
    """Merges segments. `max_small_segment_bytes`: segments with more compressed bytes stay unchanged.
    `max_span_microseconds`: the longest time between the first and the last event of a group; a segment is dropped when
    all its events are too old, so its first events stay that much longer. `read_concurrently`: read several objects at
    a time, even if other work needs the processor.
    """

    index: LogIndex
    store: ArchiveStore
    event_type_name_of: Callable[[str], str | None]
    max_small_segment_bytes: int = MAX_GROUP_BYTES
    max_span_microseconds: int = NO_SPAN_LIMIT
    read_concurrently: bool = False

    def plan_merges(self, topic: str, partition: int) -> list[SegmentGroup]:
        """The groups of segments in a partition that are worth merging."""
        segments = list(self._list_segments(topic, partition, 0, NO_SPAN_LIMIT))
        covered = [
            first for first, following in itertools.pairwise(segments) if following.first_offset < first.end_offset
        ]
        groups = [group for group in self._mergeable_groups(segments) if len(group) >= MIN_SEGMENTS_TO_MERGE]
        pieces = [
            SegmentGroup(group[0].first_stored_at, topic, partition, group[0].first_offset, group[-1].end_offset)
            for group in (*groups, *([segment] for segment in covered))
        ]
        return sorted(set(pieces))

    def merge_group(self, group: SegmentGroup) -> int:
        """Replace these segments by one, and return how many were replaced.

        Raises `PartitionBusy`, and `Unreadable`.
        """
        _, topic, partition, first, end = group
        with claim_partition(self.index, topic, partition) as renew_claim:
            segments = list(self._list_segments(topic, partition, first, end))
            if not segments or segments[0].first_offset != first or self.index.topic(topic) is None:
                return 0  # another process was faster, or removed the segment
            if segments[0].end_offset >= max(each.end_offset for each in segments):
                whole = segments[0]  # the other segments are the remains of a crash
            elif _are_adjacent(segments) and segments[-1].end_offset == end:
                whole = self._store_merged(topic, partition, segments)
            else:
                return 0
            renew_claim()
            if len(segments) == 1 or list(self._list_segments(topic, partition, first, end)) != segments:
                return 0
            self.index.replace_segments(topic, partition, [whole], whole.end_offset)
            return len(segments) - 1

    def _read_events(
        self, topic: str, partition: int, group: Sequence[IndexSegment]
    ) -> Generator[Sequence[StoredEvent], None, None]:
        if not self.read_concurrently:
            yield from (read_segment(self.store, topic, partition, segment) for segment in group)
            return
        with closing(SegmentCache(self.store)) as segment_cache:
            found = segment_cache.read_in_order(
                topic, partition, group, group[0].first_offset, NO_SPAN_LIMIT, NO_SPAN_LIMIT
            )
            with closing(found):
                yield from (events for _, events in found)

    def _list_segments(self, topic: str, partition: int, first: int, end: int) -> Iterator[IndexSegment]:
        """All segments that begin between two offsets, including those that another segment covers."""
        while found := self.index.segments_from(topic, partition, first, SEGMENTS_PER_MERGE_QUERY):
            for segment in found:
                if segment.first_offset >= end:
                    return
                yield segment
            first = found[-1].first_offset + 1

    def _mergeable_groups(self, segments: Iterable[IndexSegment]) -> Iterator[Sequence[IndexSegment]]:
        """The groups of neighbouring segments that are small enough, and close enough in time, to form one segment."""
        group: list[IndexSegment] = []
        events = size = 0
        for segment in segments:
            small = segment.location is not None and segment.location.length <= self.max_small_segment_bytes
            length = segment.location.length if segment.location else 0
            count = segment.offset_count if segment.event_count is None else segment.event_count
            if group and not (
                small
                and segment.first_offset == group[-1].end_offset
                and events + count <= MAX_GROUP_EVENTS
                and size + length <= MAX_GROUP_BYTES
                and segment.last_stored_at - group[0].first_stored_at <= self.max_span_microseconds
            ):
                yield group
                group, events, size = [], 0, 0
            if small:
                group.append(segment)
                events, size = events + count, size + length
        if group:
            yield group

    def _store_merged(self, topic: str, partition: int, group: Sequence[IndexSegment]) -> IndexSegment:
        packer = MemberPacker(topic, partition, self.event_type_name_of(topic))
        kept = 0
        with closing(self._read_events(topic, partition, group)) as found:
            for events in found:
                packer.add_events(events)
                kept += len(events)
        return store_replacement(group, packer.finish(), kept, self.store, topic, partition)


def store_replacement(
    group: Sequence[IndexSegment], content: bytes, event_count: int, store: ArchiveStore, topic: str, partition: int
) -> IndexSegment:
    """Store the remaining events of neighbours as a new object, and return the one segment that may replace them."""
    assert group[0].location is not None
    key = object_keys.new_rewritten_key(group[0].location.key, topic, partition, group[0].first_offset)
    store.put(key, content)
    return IndexSegment(
        state_before=group[0].state_before,
        offset_count=group[-1].end_offset - group[0].first_offset,
        first_stored_at=group[0].first_stored_at,
        last_stored_at=group[-1].last_stored_at,
        location=ArchiveLocation(key, 0, len(content)),
        event_count=event_count,
    )


def _are_adjacent(segments: Sequence[IndexSegment]) -> bool:
    archived = all(each.location for each in segments)
    return archived and all(one.end_offset == other.first_offset for one, other in itertools.pairwise(segments))


class BlockCachingStore:
    """A store that reads whole blocks and caches them, because an object of an indexer has a few events of each of many
    partitions, and each partition is merged separately.
    """

    def __init__(self, store: ArchiveStore, most_bytes: int = MAX_CACHED_BLOCK_BYTES) -> None:
        self._store = store
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._blocks: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._bytes = 0
        self.put = store.put
        self.remove = store.remove
        self.list_objects = store.list_objects
        self.close = store.close

    def read_range(self, location: ArchiveLocation) -> bytes:
        number, start = divmod(location.start, BLOCK_BYTES)
        end = start + location.length
        if end > BLOCK_BYTES:
            return self._store.read_range(location)
        return self._read_block(location.key, number)[start:end]

    def _read_block(self, key: str, number: int) -> bytes:
        with self._lock:
            block = self._blocks.get((key, number))
            if block is not None:
                self._blocks.move_to_end((key, number))
                return block
        block = self._store.read_range(ArchiveLocation(key, number * BLOCK_BYTES, BLOCK_BYTES))
        with self._lock:
            if (key, number) not in self._blocks:
                self._blocks[key, number] = block
                self._bytes += len(block)
            while self._bytes > self._most_bytes:
                _, gone = self._blocks.popitem(last=False)
                self._bytes -= len(gone)
        return block

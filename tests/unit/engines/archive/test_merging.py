"""Merging many small segments into a few, despite any interruption."""

from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from nakadi.engines.archive import member_format, merging
from nakadi.engines.archive.merging import (
    MIN_SEGMENTS_TO_MERGE,
    BlockCachingStore,
    PartitionBusy,
    SegmentMerger,
    claim_partition,
)
from nakadi.engines.archive.reading import ArchiveReader
from nakadi.engines.archive.segment_cache import SegmentCache, UnreadableSegment
from nakadi.engines.archive.stores import MemoryStore
from nakadi.engines.archive.sweeping import ArchiveSweep
from nakadi.engines.dynamodb.client import CallRetryPolicy
from nakadi.engines.dynamodb.log_index import DynamoDbLogIndex
from nakadi.engines.dynamodb.table_address import TableAddress
from nakadi.engines.memory.log_index import MemoryLogIndex
from nakadi.model.events import Record, StoredEvent
from nakadi.model.log_index import ArchiveLocation, IndexHead, IndexingState, IndexSegment
from nakadi.model.outcomes import Unavailable
from tests.support.aws import REGION, aws, refusal_fault

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
MINUTE = 60_000_000
WINDOWS = 40


class UnreachableStore(MemoryStore):
    out_of_reach = False

    def put(self, key: str, content: bytes) -> None:
        if self.out_of_reach:
            raise Unavailable("on purpose")
        super().put(key, content)


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[ArchiveLocation] = []

    def read_range(self, location: ArchiveLocation) -> bytes:
        self.asked.append(location)
        return super().read_range(location)


class MergingSetup:
    """Two partitions, and an indexer that has put some events of both into each of its objects."""

    def __init__(self, index, windows: int = WINDOWS) -> None:
        self.index = index
        self.store = UnreachableStore()
        self.asked: list[ArchiveLocation] = []
        self.merger = self.a_merger()
        index.create_topic("t", 2)
        self.windows = 0
        self.add(windows)

    def a_merger(self, **changes) -> SegmentMerger:
        return SegmentMerger(index=self.index, store=self.store, event_type_name_of=lambda _: "order.placed", **changes)

    def add(self, windows: int, events: int = 2) -> None:
        for number in range(self.windows, self.windows + windows):
            key, content = f"log/stream/shard/{number:03}", b""
            for partition in range(2):
                head = self.index.index_heads([("t", partition)])["t", partition]
                first = head.state.next_offset
                member = member_format.pack_member("t", partition, [event(first + each) for each in range(events)])
                segment = IndexSegment(
                    state_before=IndexingState(next_offset=first),
                    offset_count=events,
                    first_stored_at=number * MINUTE,
                    last_stored_at=number * MINUTE + 1,
                    location=ArchiveLocation(key, len(content), len(member)),
                )
                content += member
                self.index.advance_head(
                    "t", partition, head.revision, IndexHead(IndexingState(next_offset=first + events)), segment
                )
            self.store.put(key, content)
        self.windows += windows

    def segments(self, partition: int = 0) -> list[tuple[int, int]]:
        return [(each.first_offset, each.end_offset) for each in self.index.segments_from("t", partition, 0, 1000)]

    def objects(self) -> set[str]:
        return {each.key for each in self.store.list_objects("")}

    def merge(self, merger: SegmentMerger | None = None) -> int:
        merger = merger or self.merger
        return sum(merger.merge_group(piece) for partition in range(2) for piece in merger.plan_merges("t", partition))

    def sweep(self) -> None:
        ArchiveSweep(self.index, self.store).run(datetime.now(UTC) + timedelta(hours=1))

    def _copy_index(self) -> MemoryLogIndex:
        """A copy of the index, which tests can read often."""
        return index_of([self.index.segments_from("t", partition, 0, 1000) for partition in range(2)])

    def see_that_all_is_there(self) -> None:
        """Check that a reader without a cache finds all events from each offset on."""
        end = 2 * self.windows
        with closing(ArchiveReader(self._copy_index(), SegmentCache(self.store))) as reader:
            for partition in range(2):
                for start in range(end):
                    place, found = start, []
                    while (slice_ := reader.read_slice("t", partition, place, 7, 1_000_000)) is not None:
                        found += [each.offset for each in slice_.events]
                        place = slice_.next_offset
                    assert found == list(range(start, end))


def index_of(partitions: Sequence[Sequence[IndexSegment]]) -> MemoryLogIndex:
    index = MemoryLogIndex()
    index.create_topic("t", len(partitions))
    for partition, segments in enumerate(partitions):
        for revision, segment in enumerate(segments):
            index.advance_head(
                "t", partition, revision, IndexHead(IndexingState(next_offset=segment.end_offset)), segment
            )
    return index


def event(offset: int) -> StoredEvent:
    return StoredEvent(offset, Record(b"%d" % offset), NOW)


@pytest.fixture
def setup():
    return MergingSetup(MemoryLogIndex())


@pytest.fixture
def service():
    with aws() as opened:
        opened.create_tables("test")
        yield opened


@pytest.fixture
def in_dynamodb(service):  # noqa: ARG001  # the tables
    """The partitions and the indexer of `MergingSetup`, with an index in DynamoDB, which a crash can leave half
    written.
    """
    return MergingSetup(DynamoDbLogIndex(TableAddress("test", REGION), CallRetryPolicy(lambda _: None)), windows=28)


def test_many_small_neighbours_become_one(setup: MergingSetup):
    """Each partition has one segment instead of many, with all its events, and a second run finds nothing to do."""
    assert setup.merge() == 2 * (WINDOWS - 1)
    assert setup.segments(0) == setup.segments(1) == [(0, 2 * WINDOWS)]
    setup.see_that_all_is_there()
    assert setup.merge() == 0


def test_the_indexer_goes_on_behind_what_is_merged(setup: MergingSetup):
    """Events that are indexed after a merge was planned stay after the merged segment, and are merged later if there
    are many.
    """
    [piece] = setup.merger.plan_merges("t", 0)
    setup.add(3)
    setup.merger.merge_group(piece)
    assert setup.segments()[:2] == [(0, 2 * WINDOWS), (2 * WINDOWS, 2 * WINDOWS + 2)]
    setup.see_that_all_is_there()


def test_few_or_large_neighbours_stay(setup: MergingSetup):
    """Segments that are large enough to be read separately stay, and so do a few small ones between them."""
    sizes = [each.location.length for each in setup.index.segments_from("t", 0, 0, 1000)]
    assert setup.merge(setup.a_merger(max_small_segment_bytes=min(sizes) - 1)) == 0
    setup.add(1, events=200)
    setup.add(MIN_SEGMENTS_TO_MERGE - 1)
    merger = setup.a_merger(max_small_segment_bytes=max(sizes) + 10)
    assert setup.merge(merger) == 2 * (WINDOWS - 1)
    assert len(setup.segments()) == 1 + 1 + MIN_SEGMENTS_TO_MERGE - 1


def test_a_piece_does_not_last_too_long(setup: MergingSetup):
    """Events that are far apart in time stay in separate segments, because a segment is removed as a whole."""
    setup.merge(setup.a_merger(max_span_microseconds=MIN_SEGMENTS_TO_MERGE * MINUTE))
    assert setup.segments()[:3] == [
        (0, 2 * MIN_SEGMENTS_TO_MERGE),
        (2 * MIN_SEGMENTS_TO_MERGE, 4 * MIN_SEGMENTS_TO_MERGE),
        (4 * MIN_SEGMENTS_TO_MERGE, 4 * MIN_SEGMENTS_TO_MERGE + 2),
    ]


@pytest.mark.parametrize("gap", ["not archived", "not connected"])
def test_gaps_are_left_alone(setup: MergingSetup, gap):
    """A segment that is not archived, or does not follow the one before it, is not merged with others."""
    segments = list(setup.index.segments_from("t", 0, 0, 1000))
    if gap == "not archived":
        segments[20] = IndexSegment(
            state_before=segments[20].state_before, offset_count=2, first_stored_at=0, last_stored_at=0
        )
    else:
        del segments[20]
    setup.index = index_of([segments, []])
    setup.merge(setup.a_merger())
    assert (0, 40) in setup.segments()
    assert (42, 80) in setup.segments()


def test_readers_with_the_old_list_find_the_old_objects(setup: MergingSetup):
    """Objects stay until a sweep, so a reader with the earlier segments finds them; a reader that comes later reads the
    index again.
    """
    with closing(ArchiveReader(setup.index, SegmentCache(setup.store))) as reader:
        old = setup.index.segment_at_or_before("t", 0, 10)
        setup.merge()
        assert reader.read_from_segment(old, "t", 0, 10, 2, 1000).events == (event(10), event(11))
        setup.sweep()
        segment, looks = setup.index.segment_at_or_before, [old]
        setup.index.segment_at_or_before = lambda *place: looks.pop() if looks else segment(*place)
    with closing(ArchiveReader(setup.index, SegmentCache(setup.store))) as late:
        assert late.read_slice("t", 0, 10, 2, 1000).events == (event(10), event(11))
    setup.see_that_all_is_there()
    assert len(setup.objects()) == 2


def test_only_one_of_two_workers_merges(setup: MergingSetup):
    """While another process rewrites a partition, the merger skips it and merges the others."""
    with claim_partition(setup.index, "t", 0):
        for piece in setup.merger.plan_merges("t", 0):
            with pytest.raises(PartitionBusy):
                setup.merger.merge_group(piece)
        assert [setup.merger.merge_group(piece) for piece in setup.merger.plan_merges("t", 1)] == [WINDOWS - 1]
    assert len(setup.segments()) == WINDOWS


def test_a_worker_whose_claim_is_over_changes_nothing(setup: MergingSetup, monkeypatch):
    """A worker that was suspended for longer than its claim leaves the replacement to another worker."""
    put = setup.store.put

    def put_and_sleep(key, content):
        put(key, content)
        assert setup.index.claim("compaction/t/0", "another worker", 60)

    monkeypatch.setattr(merging, "CLAIM_DURATION_SECONDS", 0.0)
    setup.store.put = put_and_sleep
    [piece] = setup.merger.plan_merges("t", 0)
    with pytest.raises(PartitionBusy):
        setup.merger.merge_group(piece)
    assert len(setup.segments()) == WINDOWS


def test_what_was_erased_meanwhile_does_not_come_back(setup: MergingSetup):
    """A segment that another worker replaced after the merger had read it stays as that worker wrote it."""
    put = setup.store.put

    def put_and_erase(key, content):
        put(key, content)
        old = setup.index.segment_at_or_before("t", 0, 10)
        put("compacted/stream/erased", member_format.pack_member("t", 0, [event(10)]))
        size = len(setup.store.content("compacted/stream/erased"))
        new = IndexSegment(
            state_before=old.state_before,
            offset_count=2,
            first_stored_at=old.first_stored_at,
            last_stored_at=old.last_stored_at,
            location=ArchiveLocation("compacted/stream/erased", 0, size),
            event_count=1,
        )
        setup.index.replace_segments("t", 0, [new], old.end_offset)

    setup.store.put = put_and_erase
    [piece] = setup.merger.plan_merges("t", 0)
    assert setup.merger.merge_group(piece) == 0
    setup.store.put = put
    assert len(setup.segments()) == WINDOWS
    setup.merge()
    with closing(ArchiveReader(setup.index, SegmentCache(setup.store))) as reader:
        found = reader.read_slice("t", 0, 0, 1000, 1_000_000)
    assert [each.offset for each in found.events] == [offset for offset in range(2 * WINDOWS) if offset != 11]


def test_what_was_released_meanwhile_is_not_merged(setup: MergingSetup):
    """If the first of the segments to be merged are removed, or their topic is deleted, the merger leaves the rest to a
    later plan.
    """
    [piece] = setup.merger.plan_merges("t", 0)
    setup.index.drop_segments_before("t", 0, 10)
    assert setup.merger.merge_group(piece) == 0
    [piece] = setup.merger.plan_merges("t", 1)
    setup.index.delete_topic("t")
    assert setup.merger.merge_group(piece) == 0
    assert setup.index.segments_from("t", 1, 0, 10) == []


def test_what_cannot_be_read_is_reported_and_stays(setup: MergingSetup):
    """If one of the objects to be merged is damaged, the merger reports the reason, and leaves the segments
    unchanged.
    """
    setup.store.remove(["log/stream/shard/007"])
    [piece] = setup.merger.plan_merges("t", 0)
    for merger in (setup.merger, setup.a_merger(read_concurrently=True)):
        with pytest.raises(UnreadableSegment, match="Offsets 14 to 15"):
            merger.merge_group(piece)
    assert len(setup.segments()) == WINDOWS
    with claim_partition(setup.index, "t", 0):
        pass  # the partition is free for others again


CRASHES = {
    "in front of the object": ("put", 0),
    "behind the object": ("PutItem", 1),
    "when the new segment is there": ("BatchWriteItem", 0),
    "when a part of the old ones is gone": ("BatchWriteItem", 1),
}


@pytest.mark.parametrize("crash", CRASHES.values(), ids=CRASHES)
def test_a_crash_leaves_everything_to_be_read(in_dynamodb: MergingSetup, service, crash):
    """Wherever a worker dies, all events are there, once each; the next worker finishes the work, and nothing is left
    over."""
    operation, after = crash
    [piece] = in_dynamodb.merger.plan_merges("t", 0)
    lost = refusal_fault("AccessDeniedException")
    if operation == "put":
        in_dynamodb.store.out_of_reach = True
    else:
        # The first item that the worker writes is the claim.
        service.goes_wrong(operation, *[lambda _, effect: effect()] * after, *[lost] * 60)
    with pytest.raises(Unavailable):
        in_dynamodb.merger.merge_group(piece)
    service.goes_right()
    in_dynamodb.store.out_of_reach = False
    in_dynamodb.see_that_all_is_there()
    in_dynamodb.merge()
    assert in_dynamodb.segments(0) == in_dynamodb.segments(1) == [(0, 2 * in_dynamodb.windows)]
    in_dynamodb.see_that_all_is_there()
    in_dynamodb.sweep()
    assert len(in_dynamodb.objects()) == 2
    assert in_dynamodb.merge() == 0


def test_objects_that_many_partitions_share_are_read_once(setup: MergingSetup):
    """An indexer's object is fetched once for all the partitions with a part in it."""
    get = setup.store.read_range

    def record_read(location: ArchiveLocation) -> bytes:
        setup.asked.append(location)
        return get(location)

    setup.store.read_range = record_read
    assert setup.merge(setup.a_merger(read_concurrently=True)) == 2 * (WINDOWS - 1)
    assert len(setup.asked) == 2 * WINDOWS

    other = MergingSetup(MemoryLogIndex())
    get = other.store.read_range
    other.store.read_range = lambda location: (setup.asked.append(location), get(location))[1]
    setup.asked.clear()
    merger = SegmentMerger(
        index=other.index,
        store=BlockCachingStore(other.store),
        event_type_name_of=lambda _: None,
        read_concurrently=True,
    )
    assert other.merge(merger) == 2 * (WINDOWS - 1)
    assert len(setup.asked) == WINDOWS
    other.see_that_all_is_there()


def test_blocks_are_what_the_store_has():
    """A range that is cut from blocks equals the range in the store, even if it spans two blocks; memory is bounded."""
    store = CountingStore()
    content = bytes(range(256)) * (5 << 12)
    store.put("large", content)
    store.put("small", b"abc")
    blocks = BlockCachingStore(store, most_bytes=1000)
    for location in (
        ArchiveLocation("large", 0, 10),
        ArchiveLocation("large", (1 << 22) - 5, 10),
        ArchiveLocation("large", (1 << 22) + 5, 10),
        ArchiveLocation("small", 1, 2),
    ):
        assert blocks.read_range(location) == store.read_range(location)
    store.asked.clear()
    for location in (
        ArchiveLocation("small", 0, 1),
        ArchiveLocation("small", 0, 2),
        ArchiveLocation("large", 0, 1),
        ArchiveLocation("large", 0, 2),
    ):
        blocks.read_range(location)
    assert [each.key for each in store.asked] == [
        "large",
        "large",
    ]  # the small range is cached, the large ones are too long

"""Reading segments, some of them in advance."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from nakadi.engines.archive import gzip_format, member_format, segment_cache
from nakadi.engines.archive.reading import ArchiveReader
from nakadi.engines.archive.segment_cache import (
    CONCURRENT_READS,
    CONCURRENT_UNPACKINGS,
    SegmentCache,
    UnreadableSegment,
)
from nakadi.engines.archive.segments import archived_segments_from
from nakadi.engines.archive.stores import MemoryStore
from nakadi.engines.memory.log_index import MemoryLogIndex
from nakadi.model.events import Record, StoredEvent
from nakadi.model.log_index import ArchiveLocation, IndexHead, IndexingState, IndexSegment
from tests.support.patience import PATIENCE, until
from tests.support.traced_memory import trace_memory

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)

LARGE = 500
MANY = 1_000_000


class RoundByRoundStore(MemoryStore):
    """A store that holds back reads until the test releases them: each round releases all reads that wait."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.rounds = 0
        self._changed = threading.Condition()
        self._waiting = 0
        self._round = 0

    def read_range(self, location: ArchiveLocation) -> bytes:
        with self._changed:
            self.asked.append(location.key)
            self._waiting += 1
            mine = self._round
            assert self._changed.wait_for(lambda: self._round > mine, PATIENCE)
        return super().read_range(location)

    @property
    def waiting(self) -> int:
        return self._waiting

    def release_round(self) -> None:
        with self._changed:
            self._waiting = 0
            self._round += 1
            self.rounds += 1
            self._changed.notify_all()


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def read_range(self, location: ArchiveLocation) -> bytes:
        self.asked.append(location.key)
        assert self.may_go_on.wait(PATIENCE)
        return super().read_range(location)


class ReadingSetup:
    def __init__(self, *counts: int, store: MemoryStore | None = None) -> None:
        self.store = store or CountingStore()
        self.index = MemoryLogIndex()
        self.segment_cache = SegmentCache(self.store)
        self.reader = ArchiveReader(self.index, self.segment_cache)
        first = 0
        for revision, count in enumerate(counts):
            events = [StoredEvent(first + number, Record(b"%d" % number), NOW) for number in range(count)]
            content = member_format.pack_member("t", 0, events, "order.placed")
            self.store.put(f"object {revision}", content)
            segment = IndexSegment(
                state_before=IndexingState(next_offset=first),
                offset_count=count,
                first_stored_at=0,
                last_stored_at=0,
                location=ArchiveLocation(f"object {revision}", 0, len(content)),
                event_count=count,
            )
            first += count
            assert self.index.advance_head("t", 0, revision, IndexHead(IndexingState(next_offset=first)), segment)

    @property
    def segments(self) -> list[IndexSegment]:
        return list(archived_segments_from(self.index, "t", 0))


@pytest.fixture
def setup():
    setup = ReadingSetup(3, 3, 3)
    yield setup
    setup.reader.close()


def test_what_was_read_last_is_not_asked_for_again(setup: ReadingSetup):
    """A reader that reads a segment in several slices fetches the segment once."""
    for start in range(3):
        assert setup.reader.read_slice("t", 0, start, 1, 1000).events[0].offset == start
    assert setup.store.asked.count("object 0") == 1


def test_small_segments_are_read_together(setup: ReadingSetup):
    """A slice spans as many segments as it needs, and ends at its limit."""
    assert [event.offset for event in setup.reader.read_slice("t", 0, 1, 7, 1000).events] == list(range(1, 8))
    found = setup.reader.read_slice("t", 0, 0, 100, 5)
    assert [event.offset for event in found.events] == [0, 1, 2, 3, 4]
    assert found.next_offset == 5


def test_nothing_is_made_up_beyond_the_end(setup: ReadingSetup):
    """Where no events are archived, a read returns no slice at all, rather than an empty one."""
    assert setup.reader.read_slice("t", 0, 9, 1, 1000) is None
    assert setup.reader.read_slice("t", 1, 0, 1, 1000) is None
    assert [event.offset for event in setup.reader.read_slice("t", 0, 8, 10, 1000).events] == [8]


def test_what_is_good_in_front_of_damage_is_delivered(setup: ReadingSetup):
    """A slice ends before a segment that cannot be read; the next slice reports the damage."""
    setup.store.remove(["object 1"])
    assert [event.offset for event in setup.reader.read_slice("t", 0, 0, 10, 1000).events] == [0, 1, 2]
    with pytest.raises(UnreadableSegment, match="Offsets 3 to 5 of t/0 cannot be read: the archive object object 1"):
        setup.reader.read_slice("t", 0, 3, 10, 1000)


def test_any_client_that_reads_on_finds_the_next_segment_read_ahead():
    """While a reader is in the middle of a large segment, the next one is fetched, once."""
    setup = ReadingSetup(LARGE, LARGE, LARGE)
    setup.reader.read_slice("t", 0, 0, 10, 1000)
    assert setup.store.asked == ["object 0"]
    setup.store.may_go_on.clear()
    setup.reader.read_slice("t", 0, 10, 10, 1000)
    setup.reader.read_slice("t", 0, 20, 10, 1000)
    setup.store.may_go_on.set()
    assert setup.reader.read_slice("t", 0, LARGE, 10, 1000).events[0].offset == LARGE
    assert setup.store.asked == ["object 0", "object 1"]
    setup.reader.close()


def test_damage_that_is_read_ahead_is_reported_when_it_is_asked_for():
    """Reading ahead neither hides damage nor reports it too early."""
    setup = ReadingSetup(LARGE, LARGE)
    setup.store.remove(["object 1"])
    setup.reader.read_slice("t", 0, 0, 10, 1000)
    setup.reader.read_slice("t", 0, 10, 10, 1000)
    for _ in range(2):
        with pytest.raises(UnreadableSegment, match=f"Offsets {LARGE} to {2 * LARGE - 1}"):
            setup.reader.read_slice("t", 0, LARGE, 10, 1000)
    setup.reader.close()


def read_in_rounds(count: int, at_once: int) -> RoundByRoundStore:
    """Read this number of objects, and expect `at_once` requests in each round."""
    store = RoundByRoundStore()
    setup = ReadingSetup(*[10] * count, store=store)
    with ThreadPoolExecutor(1) as threads, closing(setup.reader):
        found = setup.segment_cache.read_in_order("t", 0, setup.segments, 0, 10 * count, MANY)
        reading = threads.submit(lambda: [event.offset for _, events in found for event in events])
        while len(store.asked) < count or store.waiting:
            until(lambda: store.waiting == min(at_once, count - at_once * store.rounds))
            store.release_round()
        assert reading.result(PATIENCE) == list(range(10 * count))
    assert len(set(store.asked)) == len(store.asked) == count
    return store


def test_many_windows_are_read_in_few_rounds():
    """Two hundred objects are requested sixteen at a time, and arrive in their order."""
    assert read_in_rounds(200, CONCURRENT_READS).rounds == 13


def test_a_slice_takes_many_small_segments_at_once():
    """The reader fills slices of the requested size from many small objects, each of which it reads once."""
    setup = ReadingSetup(*[10] * 200)
    place, slices = 0, 0
    with closing(setup.reader):
        while (found := setup.reader.read_slice("t", 0, place, 1000, MANY)) is not None:
            assert [event.offset for event in found.events] == list(range(place, found.next_offset))
            place, slices = found.next_offset, slices + 1
    assert (place, slices) == (2000, 2)
    assert sorted(setup.store.asked) == sorted(f"object {number}" for number in range(200))


@pytest.mark.parametrize(("limit", "objects"), [(1, 1), (10, 1), (11, 2), (25, 3)])
def test_no_more_is_asked_for_than_a_limit_needs(limit, objects):
    """Small segments are read up to the limit of events, and no segment beyond it."""
    setup = ReadingSetup(*[10] * 50)
    with closing(setup.reader):
        assert len(setup.reader.read_slice("t", 0, 0, limit, MANY).events) == limit
    assert sorted(setup.store.asked) == sorted(f"object {number}" for number in range(objects))


def test_no_more_is_asked_for_than_many_bytes_need():
    """For a reader that wants few bytes, not many objects are read."""
    setup = ReadingSetup(*[10] * 50)
    with closing(setup.reader):
        assert len(setup.reader.read_slice("t", 0, 0, 500, 25).events) == 25
    assert setup.store.asked == ["object 0", "object 1", "object 2"]


@pytest.mark.parametrize(("bytes_ahead", "at_once"), [(0, 1), (600, 3)])
def test_what_is_asked_for_at_once_is_bounded_by_bytes(monkeypatch, bytes_ahead, at_once):
    """The reader reads a few large objects at a time, and a very large one alone."""
    sizes = {segment.location.length for segment in ReadingSetup(*[10] * 12).segments}
    assert 150 < min(sizes) <= max(sizes) <= 200
    monkeypatch.setattr(segment_cache, "MAX_BYTES_READ_AHEAD", bytes_ahead)
    assert read_in_rounds(12, at_once).rounds == 12 / at_once


def test_a_reader_that_ends_leaves_nothing_to_be_read(monkeypatch):
    """A read that has not started when its reader ends never starts."""
    monkeypatch.setattr(segment_cache, "CONCURRENT_READS", 1)
    store = RoundByRoundStore()
    setup = ReadingSetup(*[10] * 30, store=store)
    with ThreadPoolExecutor(1) as threads, closing(setup.reader):
        found = setup.segment_cache.read_in_order("t", 0, setup.segments, 0, MANY, MANY)
        first = threads.submit(next, found)
        until(lambda: store.waiting == 1)
        store.release_round()
        assert first.result(PATIENCE)[0] == setup.segments[0]
        until(lambda: store.waiting == 1)
        found.close()
        store.release_round()
        until(lambda: not setup.segment_cache._ahead)
    assert store.asked == ["object 0", "object 1"]


def test_what_one_reader_gives_up_another_still_gets():
    """If two readers wait for the same objects, one may end, and the other still gets its events."""
    store = RoundByRoundStore()
    setup = ReadingSetup(*[10] * (CONCURRENT_READS + 4), store=store)
    with ThreadPoolExecutor(2) as threads, closing(setup.reader):
        blocked = setup.segment_cache.read_in_order("t", 0, setup.segments[:CONCURRENT_READS], 0, MANY, MANY)
        holding = threads.submit(list, blocked)
        until(lambda: store.waiting == CONCURRENT_READS)
        behind = setup.segments[CONCURRENT_READS:]
        ending = setup.segment_cache.read_in_order("t", 0, behind, behind[0].first_offset, MANY, MANY)
        futures = [setup.segment_cache._begin_read("t", 0, segment) for segment in behind]
        staying = threads.submit(lambda: [segment.first_offset for segment, _ in ending])
        for future in futures[1:]:
            future.cancel()
        while not (staying.done() and holding.done()):
            until(lambda: store.waiting or (staying.done() and holding.done()))
            store.release_round()
        assert staying.result(PATIENCE) == [segment.first_offset for segment in behind]


def test_readers_that_come_back_have_more_and_more_read_for_them():
    """The amount that is read ahead doubles each time a reader comes back, and never exceeds the amount that it has
    read."""
    setup = ReadingSetup(*[LARGE] * 60)
    with closing(setup.reader):
        for number in range(40):
            found = setup.reader.read_slice("t", 0, number * LARGE, LARGE, MANY)
            assert found.next_offset == (number + 1) * LARGE
            until(lambda: not setup.segment_cache._ahead)
            assert len(setup.store.asked) <= 2 * (number + 1) + 1
            assert len(setup.store.asked) - number <= CONCURRENT_READS + 1
    assert len(set(setup.store.asked)) == len(setup.store.asked) > 40


def test_readers_do_not_wait_for_more_together_than_one_may(monkeypatch):
    """While one reader waits for as many bytes as may be read ahead, another one reads only what it needs now."""
    setup = ReadingSetup(*[LARGE] * 8)
    lengths = [segment.location.length for segment in setup.segments]
    monkeypatch.setattr(segment_cache, "MAX_BYTES_READ_AHEAD", sum(lengths[1:3]))
    with closing(setup.reader):
        setup.store.may_go_on.clear()
        assert setup.segment_cache.begin_reading_ahead("t", 0, setup.segments[1:5]) == 3 * LARGE
        assert setup.segment_cache.begin_reading_ahead("t", 0, setup.segments[4:]) == 0
        found = setup.segment_cache.read_in_order("t", 0, setup.segments[4:], 4 * LARGE, MANY, MANY)
        with ThreadPoolExecutor(1) as threads, closing(found):
            reading = threads.submit(next, found)
            until(lambda: len(setup.store.asked) == 3)
            assert sorted(setup.store.asked) == ["object 1", "object 2", "object 4"]
            setup.store.may_go_on.set()
            assert reading.result(PATIENCE)[0] == setup.segments[4]
        until(lambda: not setup.segment_cache._ahead)
        assert setup.segment_cache.begin_reading_ahead("t", 0, setup.segments[6:]) == 8 * LARGE


def test_a_segment_is_read_once_for_all_who_need_it_now(setup: ReadingSetup):
    """While one reader reads a segment, others wait for its result, or its failure."""
    setup.store.remove(["object 1"])
    for number, outcome in enumerate(("events", "failure")):
        setup.store.may_go_on.clear()
        with ThreadPoolExecutor(4) as threads:
            readings = [
                threads.submit(setup.segment_cache.read_segment, "t", 0, setup.segments[number]) for _ in range(4)
            ]
            until(lambda: len(setup.store.asked) > number)  # noqa: B023  # it is called in this iteration
            setup.store.may_go_on.set()
            failures = [type(reading.exception(PATIENCE)) for reading in readings]
        assert failures == [UnreadableSegment if outcome == "failure" else type(None)] * 4
    assert setup.store.asked == ["object 0", "object 1"]
    assert not setup.segment_cache._ahead
    assert setup.segment_cache._bytes_ahead == 0


def test_few_segments_are_unpacked_at_once(monkeypatch):
    """However many segments arrive at the same time, only a few are unpacked at a time."""
    parse, lock, may_go_on = member_format.parse_partition_member, threading.Lock(), threading.Event()
    running: list[int] = []
    most: list[int] = []

    def parse_when_allowed(content, topic, partition):
        with lock:
            running.append(1)
            most.append(len(running))
        assert may_go_on.wait(PATIENCE)
        events = parse(content, topic, partition)
        with lock:
            running.pop()
        return events

    monkeypatch.setattr(member_format, "parse_partition_member", parse_when_allowed)
    setup = ReadingSetup(*[10] * 12)
    with ThreadPoolExecutor(1) as threads, closing(setup.reader):
        reading = threads.submit(list, setup.segment_cache.read_in_order("t", 0, setup.segments, 0, MANY, MANY))
        until(lambda: len(setup.store.asked) == 12 and len(running) == CONCURRENT_UNPACKINGS)
        may_go_on.set()
        assert len(reading.result(PATIENCE)) == 12
    assert max(most) == CONCURRENT_UNPACKINGS


@pytest.mark.parametrize("key", [None, "k"])
def test_the_cache_takes_as_much_memory_as_it_may(key):
    """The limit holds for memory, also if events take little of the store because they compress well, and whether they
    are kept as text or as objects."""
    store, segments = MemoryStore(), []
    for first in range(0, 40_000, 2000):
        events = [
            StoredEvent(offset, Record(b'{"word":"%b"}' % (b"a" * 100), key), NOW + timedelta(seconds=offset // 10))
            for offset in range(first, first + 2000)
        ]
        content = member_format.pack_member("t", 0, events)
        store.put(f"object {first}", content)
        location = ArchiveLocation(f"object {first}", 0, len(content))
        segments.append(
            IndexSegment(
                state_before=IndexingState(next_offset=first),
                offset_count=2000,
                first_stored_at=0,
                last_stored_at=0,
                location=location,
            )
        )
    max_bytes = 3_000_000

    def fill_cache() -> SegmentCache:
        cache = SegmentCache(store, most_bytes=max_bytes)
        for segment in segments:
            cache.read_segment("t", 0, segment)
        return cache

    assert 0.5 * max_bytes < trace_memory(fill_cache).kept < 1.3 * max_bytes


def test_a_single_look_reads_nothing_ahead():
    """For a new reader, nothing is read ahead, wherever it begins."""
    setup = ReadingSetup(*[LARGE] * 5)
    with closing(setup.reader):
        setup.reader.read_slice("t", 0, 100, 10, MANY)
        setup.reader.read_slice("t", 0, LARGE + 100, 10, MANY)
    assert setup.store.asked == ["object 0", "object 1"]


def test_what_was_written_anew_meanwhile_is_read_from_there(setup: ReadingSetup):
    """A reader that knows a segment whose object was removed finds the object that replaced it."""
    old = setup.segments[0]
    setup.store.put("new", setup.store.content("object 0"))
    new = IndexSegment(
        state_before=old.state_before,
        offset_count=old.offset_count,
        first_stored_at=0,
        last_stored_at=0,
        location=ArchiveLocation("new", 0, old.location.length),
        event_count=old.offset_count,
    )
    looks = iter([old, new])
    setup.index.segment_at_or_before = lambda *_: next(looks)
    setup.store.remove(["object 0"])
    assert [event.offset for event in setup.reader.read_slice("t", 0, 0, 3, MANY).events] == [0, 1, 2]


def test_the_manifest_begins_with_the_segment_of_an_offset(setup: ReadingSetup):
    """The segments with an event at or after an offset are returned in order."""
    assert [each.first_offset for each in archived_segments_from(setup.index, "t", 0, 4)] == [3, 6]
    assert [each.first_offset for each in archived_segments_from(setup.index, "t", 0)] == [0, 3, 6]
    assert list(archived_segments_from(setup.index, "t", 0, 9)) == []


def test_members_of_many_events_are_split(monkeypatch):
    """A range may hold several members; the reader returns their events as one sequence, with the whole content of each
    line."""
    monkeypatch.setattr(member_format, "GZIP_MEMBER_BYTES", 200)
    events = [StoredEvent(number, Record(b"%d" % number), NOW) for number in range(50)]
    events += [StoredEvent(50, Record(None, "key"), NOW), StoredEvent(51, Record(b"1", "key"), NOW)]
    packer = member_format.MemberPacker("t", 0, "order.placed")
    for event in events:
        packer.add_events([event])
    content = packer.finish()
    assert content.count(b"\x1f\x8b\x08") > 5
    assert (
        list(member_format.parse_partition_member(content, "t", 0))
        == list(member_format.parse_member(content))
        == events
    )
    for wrong in (("t", 1), ("u", 0)):
        with pytest.raises(gzip_format.BadArchive):
            member_format.parse_partition_member(content, *wrong)
    with pytest.raises(gzip_format.BadArchive):
        member_format.parse_partition_member(content + content, "t", 0)

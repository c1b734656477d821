"""Reading from memory, from the archive, and from the stream."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from msgspec.structs import replace

from nakadi.common.caching import ChangeWatch
from nakadi.common.waiting import run_blocking
from nakadi.engines.kinesis import envelopes
from nakadi.engines.kinesis.call_rate import GrowingPauses
from nakadi.engines.kinesis.continuity import ShardTreeCache
from nakadi.engines.kinesis.reading import StreamReader
from nakadi.engines.kinesis.restarting_reader import RestartingReader
from nakadi.engines.kinesis.tails import MAX_READ_PAUSE_SECONDS, LastWrittenRecords
from nakadi.engines.kinesis.topics import TopicCache
from nakadi.model.events import OffsetBounds, Record
from nakadi.model.log_index import IndexHead
from nakadi.ports.event_log import OffsetUnavailable
from tests.support.kinesis_faults import FAST_OPTIONS, FaultyKinesis
from tests.support.patience import PATIENCE

FORGETFUL = replace(FAST_OPTIONS, window_bytes=3000)
"""Remembers about ten records."""


@pytest.fixture
def log(faulty_kinesis: FaultyKinesis):
    log = faulty_kinesis.a_log()
    log.create_topic("t", 2)
    return log


def publish(log, numbers, partition: int = 0) -> None:
    for number in numbers:
        run_blocking(log.append("t", {partition: [Record(b"%d" % number), Record(b"%d.5" % number)]}))


def events(log, start: int = 0, partition: int = 0, limit: int = 7) -> list[bytes]:
    found = []
    while (piece := log.read("t", partition, start, limit=limit)).events:
        assert [event.offset for event in piece.events] == list(range(start, piece.next_offset))
        found += [event.record.value for event in piece.events]
        start = piece.next_offset
    return found


def offsets(log, start: int = 0) -> list[int]:
    found = []
    while (piece := log.read("t", 0, start)).events:
        found += [event.offset for event in piece.events]
        start = piece.next_offset
    return found


def both_halves_of(numbers) -> list[bytes]:
    return [text for number in numbers for text in (b"%d" % number, b"%d.5" % number)]


@pytest.mark.parametrize("how", ["indexed", "indexed without an archive", "indexed in part", "not indexed"])
@pytest.mark.parametrize("options", [FAST_OPTIONS, FORGETFUL], ids=["remembered", "forgotten"])
def test_every_way_leads_to_the_same_events(faulty_kinesis: FaultyKinesis, log, how, options):
    """From any offset, the same events are read, whether they are cached, archived, or only in the stream."""
    publish(log, range(30))
    if how != "not indexed":
        faulty_kinesis.index_all(archived=how != "indexed without an archive")
    publish(log, range(30, 60 if how == "indexed in part" else 30))
    publish(log, range(5), partition=1)
    reader = faulty_kinesis.a_log(options)
    expected = both_halves_of(range(60 if how == "indexed in part" else 30))
    assert reader.bounds("t", [0]) == {0: OffsetBounds(0, len(expected))}
    for start in (0, 1, 17, 59, len(expected) - 1):
        assert events(reader, start) == expected[start:]
    assert events(reader, partition=1) == both_halves_of(range(5))


def test_a_log_without_an_archive_reads_the_stream(faulty_kinesis: FaultyKinesis, log):
    """Without an archive, events that are no longer cached are read from the record that the index names."""
    publish(log, range(20))
    faulty_kinesis.index_all()
    reader = faulty_kinesis.a_log(FORGETFUL, archived=False)
    publish(log, range(20, 40))
    assert events(reader) == both_halves_of(range(40))


def test_any_client_that_catches_up_reads_the_stream_once(faulty_kinesis: FaultyKinesis, log):
    """A read of events that are no longer cached continues where the last read ended, and not at the beginning."""
    publish(log, range(100))
    reader = faulty_kinesis.a_log(FORGETFUL, archived=False)
    reader.bounds("t", [0])
    place = 0
    for _ in range(10):
        calls = faulty_kinesis.counting("GetRecords")
        place = reader.read("t", 0, place, limit=1000, max_bytes=200).next_offset
        assert calls() <= 2
    assert place > 30


def test_the_index_is_ahead_of_a_reader(faulty_kinesis: FaultyKinesis, log):
    """A reader that finds more in the index than it has read itself counts no event twice."""
    reader = faulty_kinesis.a_log()
    assert reader.bounds("t", [0]) == {0: OffsetBounds(0, 0)}
    publish(log, range(3), partition=1)
    faulty_kinesis.index_all()
    assert reader.bounds("t", [1]) == {1: OffsetBounds(0, 6)}
    assert events(reader, partition=1) == both_halves_of(range(3))


def test_a_new_process_begins_where_the_index_ends(faulty_kinesis: FaultyKinesis, log):
    """The tip of an indexed partition costs at most two reads of the stream, however many records are in it."""
    publish(log, range(50))
    faulty_kinesis.index_all()
    reader = faulty_kinesis.a_log()
    calls = faulty_kinesis.counting("GetRecords")
    assert reader.bounds("t", [0, 1]) == {0: OffsetBounds(0, 100), 1: OffsetBounds(0, 0)}
    assert calls() <= 2


def test_bounds_have_whatever_was_acknowledged_before_they_were_asked_for(faulty_kinesis: FaultyKinesis, log):
    """A tip that was read before the request does not answer it; partitions share a read. (C13, L36)"""
    reader = faulty_kinesis.a_log(replace(FAST_OPTIONS, shared_for=60))
    assert reader.bounds("t", [0, 1]) == {0: OffsetBounds(0, 0), 1: OffsetBounds(0, 0)}
    publish(log, range(3))
    publish(log, range(2), partition=1)

    calls = faulty_kinesis.counting("GetRecords")
    assert reader.bounds("t", [0, 1]) == {0: OffsetBounds(0, 6), 1: OffsetBounds(0, 4)}
    assert calls() <= 1

    publish(log, range(3, 5))
    assert reader.first_offset_since("t", 0, faulty_kinesis.clock.now() + timedelta(seconds=1)) == 10


def test_the_tip_is_shared(faulty_kinesis: FaultyKinesis, log):
    """Streams that have reached the tip, and read again within a moment, do not cause a read of the shard."""
    publish(log, range(3))
    reader = faulty_kinesis.a_log(replace(FAST_OPTIONS, shared_for=30.0))
    reader.bounds("t", [0])
    calls = faulty_kinesis.counting("GetRecords")
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: reader.read("t", 0, 6), range(100)))
    assert calls() == 0


def test_those_who_asked_before_a_read_began_share_it(faulty_kinesis: FaultyKinesis, log):
    """However many callers ask for the tip, a read that begins after they have asked answers all of them."""
    publish(log, range(3))
    shard_trees = ShardTreeCache(faulty_kinesis.a_stream())
    topics = TopicCache(
        faulty_kinesis.index, 60.0, ChangeWatch(faulty_kinesis.index.change_counters, faulty_kinesis.clock)
    )
    reader = StreamReader(
        shard_trees,
        faulty_kinesis.index,
        topics,
        None,
        lambda *_: None,
        LastWrittenRecords(),
        shared_for=0.0,
        window_bytes=1_000_000,
    )
    reader.bounds("t", 0, time.monotonic())
    asked_at = time.monotonic()
    calls = faulty_kinesis.counting("GetRecords")
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: reader.bounds("t", 0, asked_at), range(100)))
    assert set(found) == {OffsetBounds(0, 6)}
    assert calls() == 1


@pytest.mark.usefixtures("log")
def test_a_process_knows_at_once_what_it_stored_itself(faulty_kinesis: FaultyKinesis):
    """However old the cached tip may be for others, a process sees its own events with the next read."""
    own = faulty_kinesis.a_log(replace(FAST_OPTIONS, shared_for=3600.0))
    for number in range(5):
        publish(own, [number])
        assert own.bounds("t", [0])[0].next_offset == 2 * (1 + number)


@pytest.mark.parametrize("streams", [1, 500])
def test_streams_cost_a_shard_the_same(faulty_kinesis: FaultyKinesis, log, streams):
    """One reader reads for all: five hundred streams that follow their partitions cause no more calls than one."""
    topics = [f"s{number}" for number in range(streams)]
    for topic in topics:
        log.create_topic(topic, 1)
    reader = faulty_kinesis.a_log(replace(FAST_OPTIONS, poll=0.1, shared_for=5.0))
    told = threading.Event()
    end = reader.add_change_listener(lambda *_: told.set())
    reader.bounds(topics[0], [0])
    begun = time.monotonic()
    calls = faulty_kinesis.counting("GetRecords")
    for topic in topics:
        assert reader.read(topic, 0, 0).events == ()
    run_blocking(log.append(topics[-1], {0: [Record(b"1")]}))
    assert told.wait(PATIENCE)
    assert len(reader.read(topics[-1], 0, 0).events) == 1
    asked = calls()
    passed = time.monotonic() - begun
    end()
    assert asked <= 2 + passed / 0.1


def test_what_others_store_is_reported(faulty_kinesis: FaultyKinesis, log):
    """A watcher is notified of another process's events, and finds them when it reads."""
    reader = faulty_kinesis.a_log()
    found = []
    told = threading.Event()

    def look(topic: str, partition: int) -> None:
        found.append((topic, partition))
        told.set()

    end = reader.add_change_listener(look)
    publish(log, [1], partition=1)
    assert told.wait(PATIENCE)
    assert found[0] == ("t", 1)
    assert events(reader, partition=1) == both_halves_of([1])
    end()


def test_a_damaged_frame_keeps_its_numbers(faulty_kinesis: FaultyKinesis, log):
    """An unreadable frame is skipped, and later events have the same offsets for all readers."""
    publish(log, [1])
    faulty_kinesis.put("t/0", envelopes.pack_frame(3, 0, b"nf\x01\x00 no frame"))
    publish(log, [2])
    assert [event.offset for event in log.read("t", 0, 0).events] == [0, 1, 5, 6]
    assert log.read("t", 0, 2).next_offset == 7
    assert log.bounds("t", [0]) == {0: OffsetBounds(0, 7)}


def test_moments_are_found_in_the_index_and_behind_it(faulty_kinesis: FaultyKinesis, log):
    """For every point in time, the lookup finds the event that a full read finds, in archived segments as in the
    tail."""
    began = faulty_kinesis.clock.now()
    for number in range(20):
        publish(log, [number])
        faulty_kinesis.clock.move(60)
        if number % 3 == 2 and number < 15:
            faulty_kinesis.index_all()
    reader = faulty_kinesis.a_log(FORGETFUL)
    for minutes in range(21):
        assert reader.first_offset_since("t", 0, began + timedelta(minutes=minutes)) == 2 * minutes
        assert reader.first_offset_since("t", 0, began + timedelta(minutes=minutes, seconds=1)) == min(
            2 * minutes + 2, 40
        )


def test_trimming_is_seen_by_others(faulty_kinesis: FaultyKinesis, log):
    """The low-water mark is shared, and other processes see it within a lease's duration."""
    publish(log, range(3))
    faulty_kinesis.clock.move(60)
    publish(log, range(3, 5))
    faulty_kinesis.index_all()
    reader = faulty_kinesis.a_log()
    assert events(reader) == both_halves_of(range(5))
    log.trim("t", 0, faulty_kinesis.clock.now())
    time.sleep(FAST_OPTIONS.lease)
    assert reader.bounds("t", [0]) == {0: OffsetBounds(6, 10)}
    with pytest.raises(OffsetUnavailable):
        reader.read("t", 0, 5)


def test_compaction_is_seen_by_others_and_by_those_who_come_later(faulty_kinesis: FaultyKinesis, log):
    """Every process reads the compacted events; replaced archive objects are removed."""
    reader = faulty_kinesis.a_log()
    for number in range(10):
        run_blocking(log.append("t", {0: [Record(b"%d" % number, f"k{number % 3}")]}))
    assert len(reader.read("t", 0, 0).events) == 10
    kept = []
    for _ in range(3):
        faulty_kinesis.clock.move(3600)
        log.compact("t", 0, stored_before=faulty_kinesis.clock.now(), tombstones_before=faulty_kinesis.clock.now())
        kept.append([key for key in faulty_kinesis.archive.all_keys() if key.startswith("compacted/")])
        run_blocking(log.append("t", {0: [Record(b'"again"', "k0")]}))
    time.sleep(FAST_OPTIONS.lease)
    expected = [7, 8, 11, 12]
    for each in (log, reader, faulty_kinesis.a_log()):
        assert offsets(each) == expected
    assert [len(keys) for keys in kept] == [1, 1, 1]


def test_nothing_new_is_not_compacted_again(faulty_kinesis: FaultyKinesis, log):
    """Compacting a log that is already compact writes nothing."""
    publish(log, range(5))
    faulty_kinesis.clock.move(3600)
    log.compact("t", 0, stored_before=faulty_kinesis.clock.now(), tombstones_before=faulty_kinesis.clock.now())
    before = faulty_kinesis.archive.all_keys()
    log.compact("t", 0, stored_before=faulty_kinesis.clock.now(), tombstones_before=faulty_kinesis.clock.now())
    assert faulty_kinesis.archive.all_keys() == before


def test_two_do_not_compact_at_once(faulty_kinesis: FaultyKinesis, log):
    """While one process compacts a partition, others leave the partition alone."""
    run_blocking(log.append("t", {0: [Record(b"1", "k"), Record(b"2", "k"), Record(b"3")]}))
    faulty_kinesis.clock.move(3600)
    now = faulty_kinesis.clock.now()
    assert faulty_kinesis.index.claim("compaction/t/0", "somebody", 60)
    log.compact("t", 0, stored_before=now, tombstones_before=now)
    assert len(log.read("t", 0, 0).events) == 3
    faulty_kinesis.index.release_claim("compaction/t/0", "somebody")
    log.compact("t", 0, stored_before=now, tombstones_before=now)
    assert len(log.read("t", 0, 0).events) == 2


def test_what_the_archive_has_already_is_reported_when_the_tip_is(faulty_kinesis: FaultyKinesis, log):
    """Until a reader has read the tip again, it shows no newer events, even if the archive has them; yet it refuses no
    offset as too high.
    """
    publish(log, range(3))
    faulty_kinesis.index_all()
    reader = faulty_kinesis.a_log(replace(FAST_OPTIONS, shared_for=3600.0, window_bytes=1))
    assert reader.bounds("t", [0]) == {0: OffsetBounds(0, 6)}
    publish(log, range(3, 5))
    faulty_kinesis.index_all()
    assert events(reader, limit=100) == both_halves_of(range(3))
    assert reader.read("t", 0, 10).events == ()
    assert reader.bounds("t", [0]) == {0: OffsetBounds(0, 10)}
    assert events(reader) == both_halves_of(range(5))
    with pytest.raises(OffsetUnavailable):
        reader.read("t", 0, 11)


def test_a_batch_may_touch_many_partitions(faulty_kinesis: FaultyKinesis, log):
    """However many partitions a batch of the indexer touches, each is indexed."""
    log.create_topic("wide", 40)
    for _ in range(2):
        run_blocking(log.append("wide", {partition: [Record(b"%d" % partition)] for partition in range(40)}))
    faulty_kinesis.index_all()
    heads = faulty_kinesis.index.index_heads([("wide", partition) for partition in range(40)])
    assert {head.state.next_offset for head in heads.values()} == {2}
    assert [event.record.value for event in faulty_kinesis.a_log().read("wide", 17, 0).events] == [b"17", b"17"]


def test_a_reader_that_begins_anew_goes_on_reporting_a_continued_topic(faulty_kinesis: FaultyKinesis, log, monkeypatch):
    """A reader that begins anew, after a long sleep, still notifies the watchers of a topic that continues another
    one.
    """
    publish(log, range(2))
    faulty_kinesis.index.create_next_topic("t", "t~2", [])
    faulty_kinesis.index.advance_head("t~2", 0, 0, IndexHead(), None)
    shard_trees = ShardTreeCache(faulty_kinesis.a_stream())
    topics = TopicCache(
        faulty_kinesis.index, 60.0, ChangeWatch(faulty_kinesis.index.change_counters, faulty_kinesis.clock)
    )
    reported = []

    def begin(last_written: LastWrittenRecords) -> StreamReader:
        return StreamReader(
            shard_trees,
            faulty_kinesis.index,
            topics,
            None,
            lambda *place: reported.append(place),
            last_written,
            shared_for=0.0,
            window_bytes=1_000_000,
        )

    reader = RestartingReader(begin, shard_trees)
    reader.partition_state("t~2", 0, time.monotonic())
    reported.clear()
    publish(log, [2])
    later = time.time() + 2 * MAX_READ_PAUSE_SECONDS
    monkeypatch.setattr(time, "time", lambda: later)
    for shard in shard_trees.current.leaves():
        reader.read_to_tip(shard, time.monotonic(), GrowingPauses(PATIENCE))

    assert ("t~2", 0) in reported

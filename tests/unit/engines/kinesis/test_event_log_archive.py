"""Events that a Kinesis log has only in the archive."""

from datetime import UTC, datetime, timedelta

import pytest

from nakadi.common.waiting import run_blocking
from nakadi.engines.archive import merging
from nakadi.engines.archive.merging import MIN_SEGMENTS_TO_MERGE, SegmentMerger
from nakadi.engines.archive.segments import archived_segments_from
from nakadi.engines.archive.sweeping import ArchiveSweep
from nakadi.model.events import OffsetBounds, Record
from nakadi.model.outcomes import Unavailable
from tests.support.kinesis_faults import FaultyKinesis


@pytest.fixture
def log(faulty_kinesis: FaultyKinesis):
    log = faulty_kinesis.a_log()
    log.create_topic("t", 1)
    return log


def newest_sequence(faulty_kinesis: FaultyKinesis) -> int:
    stream = faulty_kinesis.a_stream()
    [shard] = stream.list_shards()
    return stream.read_page(shard.id, stream.request_iterator_from_start(shard.id)).records[-1].position.sequence


def publish(faulty_kinesis: FaultyKinesis, log, *numbers: int) -> None:
    for number in numbers:
        run_blocking(log.append("t", {0: [Record(b"%d" % number)]}))
    faulty_kinesis.index_all()


def test_damage_is_reported_with_its_offsets(faulty_kinesis: FaultyKinesis, log, caplog):
    """When the stream has forgotten the events of a damaged archive object, their offsets are reported, and nothing is
    skipped."""
    publish(faulty_kinesis, log, 0, 1, 2)
    publish(faulty_kinesis, log, 3, 4)
    [first, _] = archived_segments_from(faulty_kinesis.index, "t", 0)
    faulty_kinesis.archive.put(first.location.key, b"what is this?" * 20)
    faulty_kinesis.client.forgets(newest_sequence(faulty_kinesis))
    reader = faulty_kinesis.a_log()
    assert reader.bounds("t", [0]) == {0: OffsetBounds(0, 5)}
    with pytest.raises(Unavailable):
        reader.read("t", 0, 0)
    assert "Offsets 0 to 2 of partition 0 of the topic t cannot be read" in caplog.text
    assert [event.offset for event in reader.read("t", 0, 3).events] == [3, 4]


def test_objects_go_with_what_was_in_them(faulty_kinesis: FaultyKinesis, log):
    """An object with events of several partitions is removed when no partition needs it any more; other objects
    stay."""
    publish(faulty_kinesis, log, 0, 1)
    faulty_kinesis.clock.move(3600)
    publish(faulty_kinesis, log, 2)
    assert len(faulty_kinesis.archive.all_keys()) == 2
    log.trim("t", 0, faulty_kinesis.clock.now() - timedelta(minutes=1))
    sweep = ArchiveSweep(faulty_kinesis.index, faulty_kinesis.archive)
    assert sweep.run(datetime.now(UTC) + timedelta(seconds=1)).removed_count == 1
    assert faulty_kinesis.archive.all_keys() == [
        each.location.key for each in archived_segments_from(faulty_kinesis.index, "t", 0)
    ]
    log.delete_topic("t")
    ArchiveSweep(faulty_kinesis.index, faulty_kinesis.archive, (faulty_kinesis.name,)).run(
        datetime.now(UTC) + timedelta(seconds=1)
    )
    assert faulty_kinesis.archive.all_keys() == []


def test_small_windows_can_be_merged(faulty_kinesis: FaultyKinesis, log):
    """Events that an indexer has archived in many windows and a worker has merged are read, found by time and removed
    as before, even when the stream has forgotten them."""
    moments = []
    for number in range(2 * MIN_SEGMENTS_TO_MERGE):
        faulty_kinesis.clock.move(60)
        moments.append(faulty_kinesis.clock.now())
        run_blocking(log.append("t", {0: [Record(b"%d" % number, f"key-{number % 5}")]}))
        faulty_kinesis.index_all()
    merger = SegmentMerger(index=faulty_kinesis.index, store=faulty_kinesis.archive, event_type_name_of=lambda _: None)
    [piece] = merger.plan_merges("t", 0)
    assert merger.merge_group(piece) == 2 * MIN_SEGMENTS_TO_MERGE - 1
    faulty_kinesis.client.forgets(newest_sequence(faulty_kinesis))
    reader = faulty_kinesis.a_log()
    found = [event for start in (0, 10, 20) for event in reader.read("t", 0, start, limit=10).events]
    assert [int(event.record.value) for event in found] == list(range(30))
    assert [reader.first_offset_since("t", 0, moment) for moment in moments] == list(range(2 * MIN_SEGMENTS_TO_MERGE))

    faulty_kinesis.index_all()
    run_blocking(log.append("t", {0: [Record(b"behind", "key-0")]}))
    faulty_kinesis.index_all()
    assert reader.read("t", 0, 2 * MIN_SEGMENTS_TO_MERGE).events[0].record.value == b"behind"

    log.trim("t", 0, moments[20])
    assert log.bounds("t", [0])[0].oldest == 20
    [merged, _] = archived_segments_from(faulty_kinesis.index, "t", 0)
    assert merged.location.key in faulty_kinesis.archive.all_keys()
    log.trim("t", 0, moments[-1] + timedelta(microseconds=1))
    assert merged.location.key not in faulty_kinesis.archive.all_keys()


def test_merged_windows_can_be_compacted(faulty_kinesis: FaultyKinesis, log):
    """A compaction of merged windows leaves the newest event of each key, and every reader can read them."""
    for number in range(MIN_SEGMENTS_TO_MERGE):
        run_blocking(log.append("t", {0: [Record(b"%d" % number, f"key-{number % 5}")]}))
        faulty_kinesis.index_all()
    merger = SegmentMerger(index=faulty_kinesis.index, store=faulty_kinesis.archive, event_type_name_of=lambda _: None)
    [piece] = merger.plan_merges("t", 0)
    assert merger.merge_group(piece) == MIN_SEGMENTS_TO_MERGE - 1
    faulty_kinesis.clock.move(1)

    upto = faulty_kinesis.clock.now()
    log.compact("t", 0, stored_before=upto, tombstones_before=upto)

    newest = list(range(MIN_SEGMENTS_TO_MERGE - 5, MIN_SEGMENTS_TO_MERGE))
    assert [event.offset for event in faulty_kinesis.a_log().read("t", 0, 0).events] == newest


def test_compaction_that_was_asleep_changes_nothing(faulty_kinesis: FaultyKinesis, log, monkeypatch):
    """A compaction whose claim ran out while it wrote leaves the partition to the process that now has the claim."""
    for number in range(4):
        run_blocking(log.append("t", {0: [Record(b"%d" % number, "key")]}))
    faulty_kinesis.index_all()
    put = faulty_kinesis.archive.put

    def put_and_sleep(key, content):
        put(key, content)
        assert faulty_kinesis.index.claim("compaction/t/0", "another process", 60)

    monkeypatch.setattr(merging, "CLAIM_DURATION_SECONDS", 0.0)
    faulty_kinesis.archive.put = put_and_sleep
    before = list(archived_segments_from(faulty_kinesis.index, "t", 0))
    upto = faulty_kinesis.clock.now() + timedelta(seconds=1)
    log.compact("t", 0, stored_before=upto, tombstones_before=upto)
    assert list(archived_segments_from(faulty_kinesis.index, "t", 0)) == before
    assert faulty_kinesis.index.topic("t").compacted == {}
    faulty_kinesis.archive.put = put
    faulty_kinesis.index.release_claim("compaction/t/0", "another process")
    log.compact("t", 0, stored_before=upto, tombstones_before=upto)
    assert [event.offset for event in log.read("t", 0, 0).events] == [3]

"""Failures of Kinesis, as publishers and readers see them: nothing acknowledged is lost, and no answer is wrong."""

import random
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from nakadi.common.waiting import run_blocking
from nakadi.engines.kinesis import continuity, gaps, indexing, scanning, shard_watch, tails
from nakadi.model.events import AppendRefused, AppendStored, Record
from nakadi.model.log_index import ArchiveLocation
from nakadi.model.outcomes import Unavailable
from nakadi.ports.archive_store import ArchiveObjectGone
from tests.support.aws import (
    error_after_effect,
    error_before_effect,
    no_connection,
    refusal_fault,
    timeout_after_effect,
    timeout_before_effect,
    truncated_answer_after_effect,
    unreadable_answer_after_effect,
)
from tests.support.kinesis_faults import FAST_OPTIONS, IMPATIENT_OPTIONS, FaultyKinesis
from tests.support.patience import PATIENCE, until

THROTTLED = refusal_fault("ProvisionedThroughputExceededException")
EXPIRED = refusal_fault("ExpiredTokenException")
ITERATOR_EXPIRED = refusal_fault("ExpiredIteratorException")
TOO_OLD = refusal_fault("InvalidArgumentException")

TIMED_OUT = AppendRefused("timed out")
FAILED = AppendRefused("internal error")


@pytest.fixture
def log(faulty_kinesis: FaultyKinesis):
    log = faulty_kinesis.a_log()
    log.create_topic("t", 3)
    return log


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """Shorten the time for which each module of the engine repeats failing calls."""
    for module in (continuity, gaps, indexing, scanning, shard_watch, tails):
        monkeypatch.setattr(module, "RETRY_TIMEOUT_SECONDS", 1.0)


def test_every_module_that_waits_is_known():
    """These tests shorten the time for repetition in every module of the engine that has one."""
    folder = Path(continuity.__file__).parent
    waiting = {each.stem for each in folder.glob("*.py") if "RETRY_TIMEOUT_SECONDS" in each.read_text()}
    assert waiting == {"continuity", "gaps", "indexing", "scanning", "shard_watch", "tails"}


def values(log, partition: int = 0) -> list[bytes | None]:
    found = []
    place = 0
    while (piece := log.read("t", partition, place)).events:
        found += [event.record.value for event in piece.events]
        place = piece.next_offset
    return found


class TestPublishing:
    @pytest.mark.parametrize("fault", [THROTTLED, no_connection])
    def test_goes_on_when_nothing_was_done(self, faulty_kinesis: FaultyKinesis, log, fault):
        """A throttled or lost record is sent again, and stored once."""
        faulty_kinesis.faults.goes_wrong("PutRecords", fault, fault)
        assert run_blocking(log.append("t", {0: [Record(b"1")]})) == {0: AppendStored()}
        assert values(log) == [b"1"]

    @pytest.mark.parametrize(
        ("fault", "stored"),
        [
            (error_before_effect, False),
            (error_after_effect, True),
            (timeout_before_effect, False),
            (timeout_after_effect, True),
            (truncated_answer_after_effect, True),
            (unreadable_answer_after_effect, True),
        ],
    )
    def test_reports_that_it_does_not_know(self, faulty_kinesis: FaultyKinesis, log, fault, stored):
        """Events that may have been stored are not sent again, and their publisher learns that the outcome is
        unknown."""
        calls = faulty_kinesis.counting("PutRecords")
        faulty_kinesis.faults.goes_wrong("PutRecords", fault)
        assert run_blocking(log.append("t", {0: [Record(b"1"), Record(b"2")]})) == {0: TIMED_OUT}
        assert calls() == 1
        assert values(log) == ([b"1", b"2"] if stored else [])

    def test_again_after_a_lost_answer_stores_twice(self, faulty_kinesis: FaultyKinesis, log):
        """A publisher that retries an append that was stored stores it twice, each time completely and in order."""
        faulty_kinesis.faults.goes_wrong("PutRecords", timeout_after_effect)
        batch = {0: [Record(b"1"), Record(b"2")]}
        assert run_blocking(log.append("t", batch)) == {0: TIMED_OUT}
        assert run_blocking(log.append("t", batch)) == {0: AppendStored()}
        assert values(log) == [b"1", b"2", b"1", b"2"]

    def test_ends_when_no_one_lets_it_in(self, faulty_kinesis: FaultyKinesis, log):
        """An append that is throttled for too long is refused, and nothing is stored."""
        faulty_kinesis.faults.goes_wrong("PutRecords", *[THROTTLED] * 50)
        impatient = faulty_kinesis.a_log(IMPATIENT_OPTIONS)
        assert run_blocking(impatient.append("t", {0: [Record(b"1")]})) == {0: TIMED_OUT}
        faulty_kinesis.faults.goes_right()
        assert values(log) == []

    def test_publishing_with_expired_credentials_is_refused_at_once(self, faulty_kinesis: FaultyKinesis, log):
        """With expired credentials, an append fails at once: it is not retried."""
        calls = faulty_kinesis.counting("PutRecords")
        faulty_kinesis.faults.goes_wrong("PutRecords", EXPIRED)
        assert run_blocking(log.append("t", {0: [Record(b"1")]})) == {0: FAILED}
        assert calls() == 1

    def test_fails_for_those_partitions_whose_records_failed(self, faulty_kinesis: FaultyKinesis, log):
        """In a call with several partitions, only the partitions with refused records are refused. (P111)"""
        faulty_kinesis.client.refuses({1: "InternalFailure"})
        fates = run_blocking(log.append("t", {partition: [Record(b"%d" % partition)] for partition in range(3)}))
        assert fates == {0: AppendStored(), 1: FAILED, 2: AppendStored()}
        assert [values(log, partition) for partition in range(3)] == [[b"0"], [], [b"2"]]

    def test_sends_again_those_that_were_throttled(self, faulty_kinesis: FaultyKinesis, log):
        """If some partitions of a call are throttled, only their records are sent again."""
        throttled = "ProvisionedThroughputExceededException"
        faulty_kinesis.client.refuses({0: throttled, 2: throttled}, {1: throttled})
        fates = run_blocking(log.append("t", {partition: [Record(b"%d" % partition)] for partition in range(3)}))
        assert fates == dict.fromkeys(range(3), AppendStored())
        assert [values(log, partition) for partition in range(3)] == [[b"0"], [b"1"], [b"2"]]
        assert [len(call) for call in faulty_kinesis.client.put] == [3, 2, 1]

    @pytest.mark.parametrize("failing", [0, 1, 2])
    def test_publishing_a_long_frame_is_all_or_nothing(self, faulty_kinesis: FaultyKinesis, failing):
        """When one of several records fails, none of the events are stored, and the offsets of other events have no
        gap."""
        log = faulty_kinesis.a_log(small_records())
        log.create_topic("t", 1)
        run_blocking(log.append("t", {0: [Record(b"before")]}))
        faulty_kinesis.client.refuses(*[{}] * failing, {0: "InternalFailure"})
        assert run_blocking(log.append("t", {0: long_batch()})) == {0: FAILED}
        run_blocking(log.append("t", {0: [Record(b"after")]}))
        assert values(log) == [b"before", b"after"]
        assert [event.offset for event in log.read("t", 0, 0).events] == [0, 1]

    def test_publishing_a_long_frame_waits_for_each_record(self, faulty_kinesis: FaultyKinesis):
        """The records of a long frame are sent in sequence: each one only when the previous one has been stored."""
        log = faulty_kinesis.a_log(small_records())
        log.create_topic("t", 1)
        batch = long_batch()
        throttled = {0: "ProvisionedThroughputExceededException"}
        faulty_kinesis.client.refuses({}, throttled, throttled)
        assert run_blocking(log.append("t", {0: batch})) == {0: AppendStored()}
        assert [event.record for event in log.read("t", 0, 0).events] == batch
        assert all(len(call) == 1 for call in faulty_kinesis.client.put)


def small_records():
    return type(FAST_OPTIONS)(lease=0.05, shared_for=0.0, poll=0.02, record_bytes=600, give_up_after=20.0)


def long_batch() -> list[Record]:
    """Events that cannot be compressed into one small record."""
    return [Record(b'"%s"' % bytes(random.choices(range(97, 123), k=500))) for _ in range(4)]


class TestReading:
    @pytest.mark.parametrize("operation", ["GetRecords", "GetShardIterator", "ListShards"])
    @pytest.mark.parametrize(
        "fault", [THROTTLED, error_before_effect, timeout_before_effect, no_connection, unreadable_answer_after_effect]
    )
    def test_waits_until_it_is_answered(self, faulty_kinesis: FaultyKinesis, log, operation, fault):
        """A throttled or failed call is repeated until the tip is known; no caller gets an earlier tip meanwhile."""
        run_blocking(log.append("t", {0: [Record(b"1")]}))
        reader = faulty_kinesis.a_log()
        faulty_kinesis.faults.goes_wrong(operation, fault, fault)
        assert reader.bounds("t", [0])[0].next_offset == 1
        faulty_kinesis.faults.goes_wrong("GetRecords", fault)
        run_blocking(log.append("t", {0: [Record(b"2")]}))
        assert reader.bounds("t", [0])[0].next_offset == 2

    def test_goes_on_behind_an_expired_iterator(self, faulty_kinesis: FaultyKinesis, log):
        """An expired iterator is replaced by one for the same position: no record is missed or read twice."""
        run_blocking(log.append("t", {0: [Record(b"1")]}))
        assert values(log) == [b"1"]
        run_blocking(log.append("t", {0: [Record(b"2")]}))
        faulty_kinesis.faults.goes_wrong("GetRecords", ITERATOR_EXPIRED)
        assert values(log) == [b"1", b"2"]

    def test_begins_with_what_is_left_when_its_place_is_too_old(self, faulty_kinesis: FaultyKinesis, log):
        """When the stream no longer has the record where the index ends, reading begins with the oldest record that is
        left."""
        run_blocking(log.append("t", {0: [Record(b"1")]}))
        faulty_kinesis.index_all()
        run_blocking(log.append("t", {0: [Record(b"2")]}))
        reader = faulty_kinesis.a_log()
        faulty_kinesis.faults.goes_wrong("GetShardIterator", TOO_OLD)
        assert reader.bounds("t", [0])[0].next_offset == 2
        assert values(reader) == [b"1", b"2"]

    @pytest.mark.parametrize("fault", [THROTTLED, error_before_effect, EXPIRED])
    def test_is_unavailable_rather_than_wrong(self, faulty_kinesis: FaultyKinesis, log, fault, monkeypatch):
        """When no answer arrives in time, the call fails."""
        monkeypatch.setattr(tails, "RETRY_AFTER_REFUSAL_SECONDS", 0.0)  # each of these calls asks Kinesis itself
        run_blocking(log.append("t", {0: [Record(b"1")]}))
        faulty_kinesis.faults.goes_wrong("GetRecords", *[fault] * 100)
        impatient = faulty_kinesis.a_log(IMPATIENT_OPTIONS)
        for attempt in (
            lambda: impatient.bounds("t", [0]),
            lambda: impatient.read("t", 0, 0),
            lambda: impatient.first_offset_since("t", 0, faulty_kinesis.clock.now()),
        ):
            with pytest.raises(Unavailable):
                attempt()
        faulty_kinesis.faults.goes_right()
        assert values(log) == [b"1"]

    def test_reading_a_missing_object_falls_back_on_the_stream(self, faulty_kinesis: FaultyKinesis, log):
        """While the archive object of a segment is missing, its events are read from the stream."""
        run_blocking(log.append("t", {0: [Record(b"1")]}))
        faulty_kinesis.index_all()
        faulty_kinesis.archive.remove(faulty_kinesis.archive.all_keys())
        assert values(faulty_kinesis.a_log()) == [b"1"]

    def test_reading_a_damaged_object_falls_back_on_the_stream(self, faulty_kinesis: FaultyKinesis, log):
        """An archive object that cannot be read is treated like a missing one."""
        run_blocking(log.append("t", {0: [Record(b"1")]}))
        faulty_kinesis.index_all()
        [key] = faulty_kinesis.archive.all_keys()
        faulty_kinesis.archive.put(key, b"what is this?" * 20)
        assert values(faulty_kinesis.a_log()) == [b"1"]

    def test_reading_a_silent_archive_is_unavailable(self, faulty_kinesis: FaultyKinesis, log):
        """A slow or broken archive never causes an empty answer."""
        run_blocking(log.append("t", {0: [Record(b"1")]}))
        faulty_kinesis.index_all()
        with pytest.raises(Unavailable):
            faulty_kinesis.a_log(archive=BrokenStore()).read("t", 0, 0)

    def test_reading_compacted_events_never_falls_back_on_the_stream(self, faulty_kinesis: FaultyKinesis, log):
        """Compacted events do not come back, even if an archive object is missing."""
        run_blocking(log.append("t", {0: [Record(b"1", "k"), Record(b"2", "k"), Record(b"3")]}))
        faulty_kinesis.clock.move(3600)
        log.compact(
            "t",
            0,
            stored_before=faulty_kinesis.clock.now(),
            tombstones_before=faulty_kinesis.clock.now() - timedelta(days=1),
        )
        assert values(log) == [b"2", b"3"]
        faulty_kinesis.archive.remove(faulty_kinesis.archive.all_keys())
        with pytest.raises(Unavailable):
            faulty_kinesis.a_log().read("t", 0, 0)


class IndexThatCrashes:
    """An index whose process dies after it has written compacted segments."""

    def __init__(self, index) -> None:
        self._index = index

    def set_compacted_until(self, *_: object) -> None:
        raise Unavailable("the end")

    def __getattr__(self, name: str):
        return getattr(self._index, name)


class TestCompaction:
    def test_that_was_cut_short_is_completed(self, faulty_kinesis: FaultyKinesis, log):
        """If a process ends after it has written compacted segments, the next process publishes them to readers."""
        run_blocking(log.append("t", {0: [Record(b"1", "k"), Record(b"2", "k"), Record(b"3")]}))
        faulty_kinesis.clock.move(3600)
        now = faulty_kinesis.clock.now()
        with pytest.raises(Unavailable):
            faulty_kinesis.a_log(index=IndexThatCrashes(faulty_kinesis.index)).compact(
                "t", 0, stored_before=now, tombstones_before=now
            )
        assert faulty_kinesis.index.topic("t").compacted == {}
        log.compact("t", 0, stored_before=now, tombstones_before=now)
        assert faulty_kinesis.index.topic("t").compacted == {0: 3}
        assert values(faulty_kinesis.a_log()) == [b"2", b"3"]


class TestWatching:
    def test_goes_on_whatever_happens(self, faulty_kinesis: FaultyKinesis, log):
        """After faults of every kind, known or not, events are reported again: no reader waits for ever."""
        told = threading.Event()
        reader = faulty_kinesis.a_log()
        end = reader.add_change_listener(lambda *_: told.set())

        def beyond_understanding(*_: object) -> None:
            raise KeyError("what is this?")

        for fault in (THROTTLED, EXPIRED, beyond_understanding, error_before_effect, ITERATOR_EXPIRED):
            told.clear()
            faulty_kinesis.faults.goes_wrong("GetRecords", fault)
            until(lambda: not faulty_kinesis.faults.awaits_fault("GetRecords"))
            run_blocking(log.append("t", {0: [Record(b"1")]}))
            assert told.wait(PATIENCE)
        end()


class BrokenStore:
    def read_range(self, location: ArchiveLocation) -> bytes:
        raise Unavailable(f"no answer for {location.key}")

    def close(self) -> None:
        pass


class TestSealing:
    def test_that_failed_is_reported_and_can_be_repeated(self, faulty_kinesis: FaultyKinesis, log):
        """A seal whose outcome is unknown is not reported as done; sealing again completes it."""
        run_blocking(log.append("t", {0: [Record(b"1")]}))
        faulty_kinesis.faults.goes_wrong("PutRecords", error_before_effect)
        with pytest.raises(Unavailable):
            log.seal_topic("t")
        log.seal_topic("t")
        assert log.bounds("t", [0])[0].next_offset == 1


def test_an_archive_object_that_is_gone_says_so(faulty_kinesis: FaultyKinesis):
    """A missing object is distinguished from a store that does not answer."""
    with pytest.raises(ArchiveObjectGone):
        faulty_kinesis.archive.read_range(ArchiveLocation("nothing", 0, 1))

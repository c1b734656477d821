"""The lag of the indexer, which housekeeping measures without the indexer's help."""

from datetime import timedelta

import pytest

from nakadi.common.waiting import run_blocking
from nakadi.model.events import Record, datetime_from_microseconds
from tests.support.kinesis_faults import FaultyKinesis


@pytest.fixture
def log(faulty_kinesis: FaultyKinesis):
    log = faulty_kinesis.a_log()
    log.create_topic("t", 1)
    return log


def arrival_of(faulty_kinesis: FaultyKinesis, number: int) -> int:
    """The time at which the record with this number arrived in the stream, in milliseconds."""
    stream = faulty_kinesis.a_stream()
    [shard] = stream.list_shards()
    return stream.read_page(shard.id, stream.request_iterator_from_start(shard.id)).records[number].arrived_at_ms


def test_nothing_waits_where_nothing_was_stored(log):
    """A stream without records has no lag."""
    assert log.measure_index_lag() == timedelta(0)


def test_the_lag_is_the_age_of_the_oldest_event_that_is_not_indexed(faulty_kinesis: FaultyKinesis, log):
    """The lag begins with the first event that is not indexed, and ends when the indexer has reached the tip."""
    for number in range(3):
        run_blocking(log.append("t", {0: [Record(b"%d" % number)]}))
    indexer = faulty_kinesis.an_indexer()
    first = datetime_from_microseconds(arrival_of(faulty_kinesis, 0) * 1000)
    assert indexer.survey_backlog().lag(first + timedelta(hours=2)) == timedelta(hours=2)

    faulty_kinesis.index_all()
    assert indexer.survey_backlog().lag(first + timedelta(hours=2)) == timedelta(0)

    run_blocking(log.append("t", {0: [Record(b"3")]}))
    fourth = datetime_from_microseconds(arrival_of(faulty_kinesis, 3) * 1000)
    assert indexer.survey_backlog().lag(fourth + timedelta(minutes=7)) == timedelta(minutes=7)


def test_a_round_of_housekeeping_reads_the_stream_once(faulty_kinesis: FaultyKinesis, log):
    """A search for gaps also measures the lag, which the next call returns; the call after that reads again."""
    run_blocking(log.append("t", {0: [Record(b"0")]}))
    faulty_kinesis.clock.move(
        -(faulty_kinesis.clock.now() - datetime_from_microseconds(arrival_of(faulty_kinesis, 0) * 1000)).total_seconds()
        + 60
    )
    reads = faulty_kinesis.counting("GetRecords")
    assert log.gaps() == ()
    once = reads()
    assert log.measure_index_lag() == timedelta(minutes=1)
    assert reads() == once > 0

    faulty_kinesis.index_all()
    assert log.measure_index_lag() == timedelta(0)


def test_clocks_that_disagree_make_no_negative_lag(faulty_kinesis: FaultyKinesis, log):
    """An event whose time is in the future, by this process's clock, has not waited at all."""
    run_blocking(log.append("t", {0: [Record(b"0")]}))
    arrived = datetime_from_microseconds(arrival_of(faulty_kinesis, 0) * 1000)

    assert faulty_kinesis.an_indexer().survey_backlog().lag(arrived - timedelta(minutes=1)) == timedelta(0)

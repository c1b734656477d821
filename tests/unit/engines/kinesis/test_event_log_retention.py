"""The stream forgets events after its retention time: offsets stay the same, and no answer is wrong."""

import time

import pytest
from msgspec.structs import replace

from nakadi.common.waiting import run_blocking
from nakadi.engines.common import frames
from nakadi.engines.kinesis import envelopes, tails
from nakadi.model.events import OffsetBounds, Record
from nakadi.model.outcomes import Unavailable
from tests.support.kinesis_faults import FAST_OPTIONS, FaultyKinesis

FORGETFUL = replace(FAST_OPTIONS, window_bytes=1000)
"""Remembers about three records."""

BOTH = pytest.mark.parametrize("strict", [False, True], ids=["lenient", "strict"])
"""No documentation says how the service answers a request for a place that it has forgotten."""


@pytest.fixture
def log(faulty_kinesis: FaultyKinesis):
    log = faulty_kinesis.a_log()
    log.create_topic("t", 2)
    return log


def publish(log, *numbers: int, partition: int = 0) -> None:
    for number in numbers:
        run_blocking(log.append("t", {partition: [Record(b"%d" % number)]}))


def newest_sequence(faulty_kinesis: FaultyKinesis) -> int:
    """The last record's sequence number."""
    stream = faulty_kinesis.a_stream()
    [shard] = stream.list_shards()
    return stream.read_page(shard.id, stream.request_iterator_from_start(shard.id)).records[-1].position.sequence


def events(log, start: int = 0) -> list[tuple[int, bytes | None]]:
    found = []
    while (piece := log.read("t", 0, start)).events:
        found += [(event.offset, event.record.value) for event in piece.events]
        start = piece.next_offset
    return found


def make_records(*numbers: int) -> list[tuple[int, bytes]]:
    return [(number, b"%d" % number) for number in numbers]


@BOTH
def test_what_is_forgotten_is_read_from_the_archive(faulty_kinesis: FaultyKinesis, log, strict):
    """A reader crosses from the archive to the stream without a gap, although the stream begins in the middle of the
    events."""
    publish(log, *range(10))
    faulty_kinesis.index_all()
    publish(log, *range(10, 12))
    faulty_kinesis.index_all()
    faulty_kinesis.client.forgets(newest_sequence(faulty_kinesis) - 1, strict=strict)
    publish(log, *range(12, 15))
    for reader in (faulty_kinesis.a_log(), faulty_kinesis.a_log(FORGETFUL)):
        assert events(reader) == make_records(*range(15))
        assert events(reader, 11) == make_records(*range(11, 15))


@BOTH
def test_an_idle_partition_goes_on_where_it_was(faulty_kinesis: FaultyKinesis, log, strict):
    """When the stream has forgotten all events of a partition, its next event still has the next offset."""
    publish(log, *range(5))
    faulty_kinesis.index_all()
    faulty_kinesis.client.forgets(newest_sequence(faulty_kinesis), strict=strict)
    reader = faulty_kinesis.a_log()
    assert reader.bounds("t", [0]) == {0: OffsetBounds(0, 5)}
    publish(log, 5)
    faulty_kinesis.index_all()
    assert events(reader) == events(faulty_kinesis.a_log()) == make_records(*range(6))


@BOTH
@pytest.mark.parametrize("archived", [True, False])
def test_what_no_one_has_is_not_made_up(faulty_kinesis: FaultyKinesis, log, strict, archived):
    """When neither the archive nor the stream has an event, no other event is returned instead."""
    publish(log, *range(10))
    faulty_kinesis.index_all(archived=archived)
    faulty_kinesis.client.forgets(newest_sequence(faulty_kinesis) - 3, strict=strict)
    faulty_kinesis.archive.remove(faulty_kinesis.archive.all_keys())
    reader = faulty_kinesis.a_log(archived=archived)
    publish(log, 10)
    with pytest.raises(Unavailable):
        reader.read("t", 0, 0)
    with pytest.raises(Unavailable):
        reader.read("t", 0, 8)
    assert events(reader, 10) == make_records(10)


@BOTH
def test_a_process_that_slept_counts_anew(faulty_kinesis: FaultyKinesis, log, monkeypatch, strict):
    """A process that has not read for long begins at the end of the index, because it may have missed forgotten
    records."""
    publish(log, *range(3))
    faulty_kinesis.index_all()
    sleeper = faulty_kinesis.a_log()
    assert events(sleeper) == make_records(*range(3))
    publish(log, *range(3, 8))
    faulty_kinesis.index_all()
    faulty_kinesis.client.forgets(newest_sequence(faulty_kinesis) - 1, strict=strict)
    later = time.time() + 2 * tails.MAX_READ_PAUSE_SECONDS
    monkeypatch.setattr(time, "time", lambda: later)
    assert events(sleeper) == events(faulty_kinesis.a_log()) == make_records(*range(8))


@BOTH
def test_an_append_that_was_given_up_stops_no_one(faulty_kinesis: FaultyKinesis, log, strict):
    """Parts of an append that was never completed can be forgotten; the indexer and readers continue without them."""
    publish(log, 0)
    half = envelopes.pack_parts(3, 0, bytes(1000), b"a" * 8, 500)
    faulty_kinesis.put("t/0", half[0])
    faulty_kinesis.index_all()
    faulty_kinesis.client.forgets(newest_sequence(faulty_kinesis), strict=strict)
    publish(log, 1)
    faulty_kinesis.index_all()
    assert faulty_kinesis.index.index_heads([("t", 0)])["t", 0].state.next_offset == 2
    assert events(faulty_kinesis.a_log()) == make_records(0, 1)


@pytest.mark.usefixtures("log")
def test_a_long_append_whose_beginning_is_forgotten_is_not_shown_in_part(faulty_kinesis: FaultyKinesis):
    """A reader that has to fall back on the stream, and finds half of an append there, reports the gap rather than
    skipping it."""
    first, second = long_append()
    faulty_kinesis.put("t/0", first)
    faulty_kinesis.index_all()
    faulty_kinesis.put("t/0", second)
    faulty_kinesis.index_all()
    assert faulty_kinesis.index.index_heads([("t", 0)])["t", 0].state.next_offset == 2
    faulty_kinesis.client.forgets(newest_sequence(faulty_kinesis) - 1)
    assert events(faulty_kinesis.a_log()) == [(0, b"1" * 400), (1, b"2" * 400)]
    faulty_kinesis.archive.remove(faulty_kinesis.archive.all_keys())
    with pytest.raises(Unavailable):
        faulty_kinesis.a_log().read("t", 0, 0)


def long_append() -> list[bytes]:
    frame = frames.encode([Record(b"1" * 400), Record(b"2" * 400)])
    return envelopes.pack_parts(2, 0, frame, b"b" * 8, 500)


def test_what_is_remembered_of_a_scan_is_remembered_for_a_while_only(faulty_kinesis: FaultyKinesis, log, monkeypatch):
    """Reading continues from the end of an earlier scan only while the stream certainly has the records that follow."""
    publish(log, *range(10))
    faulty_kinesis.index_all(archived=False)
    reader = faulty_kinesis.a_log(FORGETFUL, archived=False)
    piece = reader.read("t", 0, 0, max_bytes=1)
    assert piece.next_offset == 1
    faulty_kinesis.client.forgets(newest_sequence(faulty_kinesis) - 5)
    monkeypatch.setattr("nakadi.engines.kinesis.scanning.REMEMBERED_STATE_MAX_AGE_SECONDS", 0.0)
    with pytest.raises(Unavailable):
        reader.read("t", 0, 1)


def test_records_of_other_producers_get_no_offset(faulty_kinesis: FaultyKinesis, log):
    """Records that others put into the stream have no offset, wherever they are."""
    publish(log, 0)
    for key, data in (("t/0", b"not ours"), ("no place", b"nk"), ("t/9", b"")):
        faulty_kinesis.put(key, data)
    publish(log, 1)
    faulty_kinesis.index_all()
    assert events(faulty_kinesis.a_log()) == make_records(0, 1)
    assert sum(key.startswith("set-aside/") for key in faulty_kinesis.archive.all_keys()) == 3

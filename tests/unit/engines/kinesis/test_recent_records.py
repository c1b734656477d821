"""The records in a process's memory, and what it knows after the oldest ones are gone."""

import pytest

from nakadi.engines.kinesis import envelopes
from nakadi.engines.kinesis.numbering import ArrivedRecord
from nakadi.engines.kinesis.recent_records import RECORD_OVERHEAD_BYTES, RecentRecords
from nakadi.model.log_index import NOTHING_INDEXED, IndexingState, RecordPosition

SIZE = 100


def rank(mark: RecordPosition | None) -> tuple[int, int]:
    return (-1, -1) if mark is None else (0, mark.sequence)


def a_record(sequence: int, key: str = "t/0", count: int = 1) -> ArrivedRecord:
    frame = b"%d" % sequence
    return ArrivedRecord(RecordPosition("s", sequence), key, 0, envelopes.pack_frame(count, 0, frame.ljust(SIZE)))


def contents(frames) -> list[int]:
    return [int(frame.content) for frame in frames]


@pytest.fixture
def recent_records():
    return RecentRecords(10_000_000)


def small_memory() -> RecentRecords:
    """A memory with room for about five records."""
    return RecentRecords(5 * (SIZE + RECORD_OVERHEAD_BYTES + envelopes.HEADER_FORMAT.size))


def test_a_row_is_counted_when_someone_asks(recent_records):
    """Records that arrive before and after the first request are numbered in order."""
    recent_records.add_records([a_record(1, count=2), a_record(2)], rank)
    assert recent_records.numbering_state("t/0", "t") is None
    assert recent_records.frames_from("t/0", "t", 0, 10, 1000) is None
    assert recent_records.start_numbering("t/0", "t", NOTHING_INDEXED, {}, rank)
    recent_records.add_records([a_record(3)], rank)
    assert [
        (frame.first_offset, frame.event_count) for frame in recent_records.frames_from("t/0", "t", 0, 10, 1000)
    ] == [
        (0, 2),
        (2, 1),
        (3, 1),
    ]
    assert recent_records.numbering_state("t/0", "t").next_offset == 4


def test_counting_begins_at_any_known_place(recent_records):
    """Records up to the one where counting begins are skipped, even if they arrive later."""
    recent_records.add_records([a_record(1), a_record(2)], rank)
    assert recent_records.start_numbering(
        "t/0", "t", IndexingState(last_position=RecordPosition("s", 3), next_offset=7), {}, rank
    )
    recent_records.add_records([a_record(3), a_record(4)], rank)
    assert contents(recent_records.frames_from("t/0", "t", 7, 10, 1000)) == [4]
    assert recent_records.frames_from("t/0", "t", 6, 10, 1000) is None
    assert recent_records.first_offset("t/0", "t") == 7


def test_partitions_do_not_mix(recent_records):
    """Each partition is numbered separately."""
    recent_records.add_records([a_record(1, "t/0"), a_record(2, "t/1"), a_record(3, "t/0")], rank)
    for key in ("t/0", "t/1"):
        recent_records.start_numbering(key, "t", NOTHING_INDEXED, {}, rank)
    assert contents(recent_records.frames_from("t/0", "t", 0, 10, 1000)) == [1, 3]
    assert contents(recent_records.frames_from("t/1", "t", 0, 10, 1000)) == [2]


def test_frames_begin_with_the_one_that_is_asked_for(recent_records):
    """The first frame is the one that contains the offset, and as many frames follow as the limits on events and bytes
    allow.
    """
    recent_records.add_records([a_record(sequence, count=3) for sequence in range(1, 9)], rank)
    recent_records.start_numbering("t/0", "t", NOTHING_INDEXED, {}, rank)
    assert contents(recent_records.frames_from("t/0", "t", 4, 1, 1_000_000)) == [2]
    assert contents(recent_records.frames_from("t/0", "t", 4, 6, 1_000_000)) == [2, 3, 4]
    assert contents(recent_records.frames_from("t/0", "t", 4, 100, 2 * SIZE)) == [2, 3]
    assert contents(recent_records.frames_from("t/0", "t", 4, 100, 1)) == [2]
    assert recent_records.frames_from("t/0", "t", 24, 100, 1000) == []


def test_the_oldest_is_forgotten_first():
    """Above the size limit, the oldest records of all partitions are dropped, and numbering continues."""
    recent_records = small_memory()
    recent_records.start_numbering("t/0", "t", NOTHING_INDEXED, {}, rank)
    for sequence in range(1, 200):
        recent_records.add_records([a_record(sequence)], rank)
    assert recent_records.numbering_state("t/0", "t").next_offset == 199
    assert 3 <= 199 - recent_records.first_offset("t/0", "t") <= 6
    assert recent_records.frames_from("t/0", "t", recent_records.first_offset("t/0", "t") - 1, 10, 10_000) is None
    assert contents(recent_records.frames_from("t/0", "t", 198, 10, 10_000)) == [199]


def test_what_was_forgotten_is_not_counted_wrongly():
    """If a partition's first records in memory are lost, numbering cannot begin before the loss, but only after it."""
    recent_records = small_memory()
    recent_records.add_records([a_record(sequence) for sequence in range(1, 21)], rank)
    lost = recent_records.last_evicted_position("t/0")
    assert lost is not None
    assert not recent_records.start_numbering("t/0", "t", NOTHING_INDEXED, {}, rank)
    assert not recent_records.start_numbering(
        "t/0", "t", IndexingState(last_position=RecordPosition("s", lost.sequence - 1), next_offset=4), {}, rank
    )
    assert recent_records.numbering_state("t/0", "t") is None
    assert recent_records.start_numbering(
        "t/0", "t", IndexingState(last_position=lost, next_offset=lost.sequence), {}, rank
    )
    assert recent_records.numbering_state("t/0", "t").next_offset == 20


def test_a_frame_in_parts_is_put_together(recent_records):
    """The bytes of a frame in parts are those of its records in order, wherever the first of them was found."""
    pieces = envelopes.pack_parts(2, 0, b"abcdef", b"12345678", envelopes.MAX_HEADER_BYTES + 2)
    records = [ArrivedRecord(RecordPosition("s", 1 + at), "t/0", 0, piece) for at, piece in enumerate(pieces)]
    recent_records.start_numbering("t/0", "t", NOTHING_INDEXED, {}, rank)
    recent_records.add_records(records, rank)
    [frame] = [each for each in recent_records.frames_from("t/0", "t", 0, 10, 1000) if each.event_count]
    assert frame.content == b"abcdef"

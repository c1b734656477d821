"""Numbering, as a pure function of the log."""

import pytest

from nakadi.engines.kinesis import envelopes, numbering
from nakadi.engines.kinesis.numbering import ABANDONED_APPEND_AGE_MS, ArrivedRecord
from nakadi.model.log_index import NOTHING_INDEXED, RecordPosition


class NumberedRecords:
    """Consecutive records, and the result of numbering them."""

    def __init__(self) -> None:
        self.state = NOTHING_INDEXED
        self.numbered: list[tuple[int, int, int]] = []
        self._sequence = 0

    def add_frame(self, count: int, stored_at: int = 0, at: int = 0) -> None:
        self._number_record(envelopes.pack_frame(count, stored_at, b"frame"), at)

    def part(self, append: str, number: int, of: int, *, count: int = 1, at: int = 0) -> None:
        pieces = envelopes.pack_parts(count, 0, bytes(of), append.encode().ljust(8), envelopes.MAX_HEADER_BYTES + 1)
        self._number_record(pieces[number], at)

    def seal(self, at: int = 0) -> None:
        self._number_record(envelopes.pack_seal(0), at)

    def add_foreign_record(self) -> None:
        self._number_record(b"whatever", 0)

    def _number_record(self, data: bytes, at: int) -> None:
        self._sequence += 1
        record = ArrivedRecord(RecordPosition("shard", self._sequence), "t/0", at, data)
        self.state, found = numbering.state_after_record(self.state, record, envelopes.parse_envelope(data))
        assert self.state.last_position == record.position
        if found is not None:
            self.numbered.append((found.first_offset, found.event_count, len(found.record_positions)))


@pytest.fixture
def log():
    return NumberedRecords()


def test_frames_get_the_next_numbers(log):
    """Each frame is numbered from where the previous one ended."""
    log.add_frame(3)
    log.add_frame(1)
    log.add_frame(2)
    assert log.numbered == [(0, 3, 1), (3, 1, 1), (4, 2, 1)]
    assert log.state.next_offset == 6


def test_records_of_others_take_no_number(log):
    """All readers skip records that others wrote."""
    log.add_frame(1)
    log.add_foreign_record()
    log.add_frame(1)
    assert log.numbered == [(0, 1, 1), (1, 1, 1)]


def test_time_never_goes_back(log):
    """A frame counts as stored no earlier than the frames before it, whatever its publisher's clock said."""
    moments = []
    for stored_at in (5, 9, 3, 10):
        log.add_frame(1, stored_at)
        moments.append(log.state.latest_stored_at)
    assert moments == [5, 9, 9, 10]


def test_parts_are_numbered_together_where_the_last_one_lies(log):
    """An append in parts comes after all the events that were stored between its first part and its last."""
    log.part("a", 0, 3, count=4)
    log.add_frame(1)
    log.part("a", 1, 3, count=4)
    log.add_frame(1)
    log.part("a", 2, 3, count=4)
    log.add_frame(1)
    assert log.numbered == [(0, 1, 1), (1, 1, 1), (2, 4, 3), (6, 1, 1)]
    assert log.state.unfinished_parts == ()


def test_parts_of_several_appends_do_not_mix(log):
    """If two publishers write in parts at the same time, their events are numbered separately."""
    for append, number in (("a", 0), ("b", 0), ("b", 1), ("a", 1)):
        log.part(append, number, 2, count=2 if append == "a" else 3)
    assert log.numbered == [(0, 3, 2), (3, 2, 2)]


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_an_append_that_lacks_a_part_counts_nothing(log, missing):
    """If any part is missing, no offset is used."""
    for number in range(3):
        if number != missing:
            log.part("a", number, 3)
    log.add_frame(1)
    assert log.numbered == [(0, 1, 1)]


def test_a_part_that_is_there_twice_counts_once(log):
    """A part that was stored again changes nothing."""
    for number in (0, 0, 1, 1, 2, 2):
        log.part("a", number, 3)
    assert log.numbered == [(0, 1, 3)]


def test_parts_that_come_too_late_count_nothing(log):
    """An append whose last part arrived long after its first is abandoned by every process, no matter when the process
    reads its parts.
    """
    log.part("a", 0, 2, at=0)
    log.part("b", 0, 2, at=0)
    log.part("b", 1, 2, at=ABANDONED_APPEND_AGE_MS)
    log.part("a", 1, 2, at=ABANDONED_APPEND_AGE_MS + 1)
    assert log.numbered == [(0, 1, 2)]
    assert log.state.unfinished_parts == ()


def test_abandoned_parts_are_forgotten(log):
    """Parts whose append is abandoned take no memory."""
    log.part("a", 0, 2, at=0)
    log.add_frame(1, at=ABANDONED_APPEND_AGE_MS)
    assert len(log.state.unfinished_parts) == 1
    log.add_frame(1, at=ABANDONED_APPEND_AGE_MS + 1)
    assert log.state.unfinished_parts == ()


def test_behind_a_seal_nothing_counts(log):
    """The first seal ends a partition; events, parts and further seals after it have no effect."""
    log.add_frame(2)
    log.part("a", 0, 2)
    log.seal()
    sealed_at = log.state.last_position
    log.part("a", 1, 2)
    log.add_frame(5)
    log.seal()
    assert log.numbered == [(0, 2, 1)]
    assert (log.state.next_offset, log.state.sealed_at, log.state.unfinished_parts) == (2, sealed_at, ())

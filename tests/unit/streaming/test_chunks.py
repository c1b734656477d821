"""Stretches of a partition that streams share."""

import pytest

from nakadi.model.authorization import Attribute
from nakadi.model.event_type import Position
from nakadi.model.events import Record, Slice, StoredEvent
from nakadi.streaming.chunks import EventChunk, EventRun, is_public
from tests.support.chunks import STORED_AT, a_chunk, a_record

TOMBSTONE = Record(None, key="k")
DIRECTED = Record(b"1", directed_to="subscription")
OWNED = Record(b"2", owner=Attribute("team", "shop"))


def joined(run: EventRun) -> bytes:
    return b",".join(run.values)


def test_events_are_joined_as_they_were_stored():
    """The bytes of events are put together without being looked into. (L41, L45)"""
    assert joined(a_chunk("a", "b", "c").from_offset(0)) == b'"a","b","c"'


def test_equal_cuts_share_their_bytes():
    """Streams that cut at the same places get the very same bytes."""
    chunk = a_chunk("a", "b", "c")
    chunk.shared = True
    first, _ = chunk.from_offset(0).split(2)
    second, _ = chunk.from_offset(0).split(2)
    assert first.serialised(b",".join) is second.serialised(b",".join)


def test_many_different_cuts_do_not_multiply_the_memory():
    """What is remembered of a chunk stays in proportion to it."""
    chunk = a_chunk(*map(str, range(100)))
    chunk.shared = True
    for last in range(2, 101):
        assert chunk.serialised(0, last, b",".join).count(b",") == last - 1
    assert sum(map(len, chunk._cached.values())) <= 2 * chunk.weight


@pytest.mark.parametrize(("offset", "expected"), [(10, b'"a","b"'), (11, b'"b"'), (12, b"")])
def test_a_run_begins_anywhere_in_a_chunk(offset, expected):
    """What lies behind an offset is found, also in the middle. (L33)"""
    assert joined(a_chunk("a", "b", start=10).from_offset(offset)) == expected


def test_holes_left_by_compaction_are_stepped_over():
    """Offsets that have no event any more are passed by, and a position is that of a real event. (L44)"""
    events = (StoredEvent(3, a_record("a"), STORED_AT), StoredEvent(7, a_record("b"), STORED_AT))
    chunk = EventChunk(2, 1, Slice(events, 9))
    assert chunk.from_offset(1).end == Position(2, 7)
    assert joined(chunk.from_offset(4)) == b'"b"'
    assert chunk.next == 9


def test_splitting_keeps_sizes_and_ends_right():
    """Each part of a run knows its size and its last event."""
    first, rest = a_chunk("a", "bb", "ccc", start=5).from_offset(5).split(2)
    assert (first.count, first.size, first.end) == (2, 7, Position(1, 6))
    assert (rest.count, rest.size, rest.end) == (1, 5, Position(1, 7))


@pytest.mark.parametrize("special", [TOMBSTONE, DIRECTED, OWNED])
def test_what_a_reader_may_not_see_is_left_out(special):
    """Tombstones, directed events and other owners' events are cut out, the rest stays in order. (L58)"""
    run = a_chunk("a", special, special, "b", "c", special).from_offset(0)
    assert [joined(each) for each in run.readable(is_public)] == [b'"a"', b'"b","c"']


def test_an_ordinary_chunk_is_not_searched():
    """Where all clients may read all events, access is not checked for each."""

    def ask_nobody(record: Record) -> bool:
        raise AssertionError(record)

    run = a_chunk("a", "b").from_offset(0)
    assert list(run.readable(ask_nobody)) == [run]

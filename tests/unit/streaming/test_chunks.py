"""Chunks of a partition that streams share."""

import json
from datetime import timedelta
from itertools import combinations

import pytest

from nakadi.model.authorization import Attribute
from nakadi.model.event_type import Position
from nakadi.model.events import EventSlice, EventTextBlock, LazyEvents, Record, StoredEvent
from nakadi.streaming.chunks import (
    MAX_STEP_EVENTS,
    EventChunk,
    EventRun,
    escape_line_separators,
    is_public,
    joined_json,
    runs_in_steps,
)
from nakadi.streaming.formats import batch_line
from nakadi.streaming.session import SendEvents
from tests.support.chunks import STORED_AT, a_chunk, a_record

LATER = STORED_AT + timedelta(seconds=1)
TOMBSTONE = Record(None, key="k")
DIRECTED = Record(b"1", directed_to="subscription")
OWNED = Record(b"2", owner=Attribute("team", "shop"))


LINES = LazyEvents(
    [
        EventTextBlock(3, STORED_AT, b'"a","b","c"', [3, 7, 11]),
        EventTextBlock(9, LATER, b'"dd"', [4]),
        EventTextBlock(10, LATER, b"1,22", [1, 4]),
    ]
)


def bytes_of(run: EventRun) -> bytes:
    return joined_json(b"", [run], b"")


def stored_lines() -> EventChunk:
    """Six events in the form of stored text."""
    return EventChunk(1, 2, EventSlice(LINES, 12))


def stored_records() -> EventChunk:
    return EventChunk(1, 2, EventSlice(tuple(LINES), 12))


def test_events_are_joined_as_they_were_stored():
    """The bytes of events are concatenated without being parsed. (L41, L45)"""
    assert bytes_of(a_chunk("a", "b", "c").run_from_offset(0)) == b'"a","b","c"'


def test_equal_cuts_share_their_bytes():
    """Streams whose batches have the same events share the bytes of their lines."""
    chunk = a_chunk("a", "b", "c")
    chunk.shared = True
    first, _ = chunk.run_from_offset(0).split(2)
    second, _ = chunk.run_from_offset(0).split(2)
    batches = [SendEvents("0", run.end, (run,)) for run in (first, second)]
    assert batch_line(batches[0]) is batch_line(batches[1])


def test_many_different_cuts_do_not_multiply_the_memory():
    """The size of a chunk's cached parts is proportional to that of the chunk."""
    chunk = a_chunk(*map(str, range(100)))
    chunk.shared = True
    made = [chunk.cached_bytes(0, last, lambda: b"x" * 100) for last in range(2, 101)]
    again = [chunk.cached_bytes(0, last, lambda: b"y" * 100) for last in range(2, 101)]
    kept = sum(old is new for old, new in zip(made, again, strict=True))
    assert 0 < kept * 100 <= 2 * chunk.weight


@pytest.mark.parametrize(("first", "last"), list(combinations(range(7), 2)))
def test_stored_text_is_cut_anywhere(first, last):
    """A run of stored text has the same bytes, size and positions as the same events one by one."""
    run, expected = EventRun(stored_lines(), first, last), EventRun(stored_records(), first, last)
    values = list(expected.values)
    assert joined_json(b"[", [run], b"]\n") == b"[" + b",".join(values) + b"]\n"
    assert (run.size, run.end, list(run.values)) == (expected.size, expected.end, values)
    assert run.size == sum(map(len, values))
    assert (run.stored_at(0), run.stored_at(-1)) == (expected.stored_at(0), expected.stored_at(-1))


@pytest.mark.parametrize("middle", range(1, 6))
def test_runs_of_both_kinds_are_joined(middle):
    """A batch may consist of several runs, some of stored text and some of events. (L45)"""
    first, _ = EventRun(stored_lines(), 0, 6).split(middle)
    _, rest = EventRun(stored_records(), 0, 6).split(middle)
    expected = b",".join(event.record.value for event in LINES)
    assert joined_json(b"[", [first, rest], b"]") == b"[" + expected + b"]"
    assert joined_json(b"[", [rest, first], b"]").count(b",") == 5


@pytest.mark.parametrize("offset", [2, 3, 5, 6, 8, 9, 11, 12])
def test_stored_text_is_taken_up_behind_any_offset(offset):
    """Offsets without an event are skipped in stored text, too. (L44)"""
    assert stored_lines().run_from_offset(offset).first == stored_records().run_from_offset(offset).first


def test_events_are_made_of_stored_text_where_they_are_looked_at():
    """An event that is taken from stored text equals the one that was stored."""
    events = [StoredEvent(3, Record(b'"a"'), STORED_AT), StoredEvent(4, Record(b'"b"'), STORED_AT)]
    assert list(LINES[:2]) == events == [LINES[0], LINES[1]]
    assert LINES[-1] == StoredEvent(11, Record(b"22"), LATER)
    assert tuple(LINES) == LINES
    with pytest.raises(IndexError):
        LINES[6]


def test_no_event_of_stored_text_is_made_to_be_sent(monkeypatch):
    """Sending takes a few steps per batch, not per event."""
    monkeypatch.setattr(EventChunk, "records", property(lambda _: pytest.fail("events were made")))
    run = stored_lines().run_from_offset(2)
    assert [each.count for each in run.readable_parts(is_public)] == [6]
    assert batch_line(SendEvents("0", run.end, (run,))).endswith(b'"events":["a","b","c","dd",1,22]}\n')


@pytest.mark.parametrize(("offset", "expected"), [(10, b'"a","b"'), (11, b'"b"'), (12, b"")])
def test_a_run_begins_anywhere_in_a_chunk(offset, expected):
    """A chunk returns the events after an offset, even from its middle. (L33)"""
    assert bytes_of(a_chunk("a", "b", start=10).run_from_offset(offset)) == expected


def test_holes_left_by_compaction_are_stepped_over():
    """Offsets without an event are skipped, and a position belongs to an existing event. (L44)"""
    events = (StoredEvent(3, a_record("a"), STORED_AT), StoredEvent(7, a_record("b"), STORED_AT))
    chunk = EventChunk(2, 1, EventSlice(events, 9))
    assert chunk.run_from_offset(1).end == Position(2, 7)
    assert bytes_of(chunk.run_from_offset(4)) == b'"b"'
    assert chunk.next_offset == 9


def test_splitting_keeps_sizes_and_ends_right():
    """Each part of a split run knows its size and its last event."""
    first, rest = a_chunk("a", "bb", "ccc", start=5).run_from_offset(5).split(2)
    assert (first.count, first.size, first.end) == (2, 7, Position(1, 6))
    assert (rest.count, rest.size, rest.end) == (1, 5, Position(1, 7))


@pytest.mark.parametrize("special", [TOMBSTONE, DIRECTED, OWNED])
def test_what_a_reader_may_not_see_is_left_out(special):
    """Tombstones, events addressed to others and events of other owners are left out; the rest stays in order. (L58)"""
    run = a_chunk("a", special, special, "b", "c", special).run_from_offset(0)
    assert [bytes_of(each) for each in run.readable_parts(is_public)] == [b'"a"', b'"b","c"']


def test_an_ordinary_chunk_is_not_searched():
    """If all clients may read all events, access is not checked for each event."""

    def ask_nobody(record: Record) -> bool:
        raise AssertionError(record)

    run = a_chunk("a", "b").run_from_offset(0)
    assert list(run.readable_parts(ask_nobody)) == [run]


SEPARATORS = "\u2028 \u2029 \u0085"


@pytest.mark.parametrize("text", ["", "é €", "\u2027 \u202a \u0084 \u0086", SEPARATORS, f'"{SEPARATORS}"' * 3])
def test_no_other_character_is_escaped(text):
    """Only the three characters at which clients split lines by mistake are escaped. (L71)"""
    safe = text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029").replace("\u0085", "\\u0085")
    assert escape_line_separators(text.encode()) == safe.encode()


@pytest.mark.parametrize(("first", "last"), list(combinations(range(4), 2)))
def test_text_that_grows_is_cut_at_the_same_places(first, last):
    """Sizes and positions count the escapes that are sent, and the stored bytes stay unchanged. (L71)"""
    values = [f'"{SEPARATORS}"'.encode(), b'"plain"', '"é\u2028"'.encode()]
    text = b",".join(values)
    ends = [index for index, byte in enumerate(text + b",") if byte == ord(",")]
    block = EventTextBlock(0, STORED_AT, text, ends)
    run = EventRun(EventChunk(1, 0, EventSlice(LazyEvents([block]), 3)), first, last)
    sent = joined_json(b"[", [run], b"]")
    assert len(sent.decode().splitlines()) == 1
    assert json.loads(sent) == [json.loads(value) for value in values[first:last]]
    assert run.size == sum(map(len, values[first:last]))
    assert list(run.values) == values[first:last]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([3, 3, 3], [3]),
        ([4, 4, 4, 4, 4], [2, 2, 1]),
        ([30, 1, 1, 30, 9], [1, 2, 1, 1]),
        ([0] * (2 * MAX_STEP_EVENTS + 1), [MAX_STEP_EVENTS, MAX_STEP_EVENTS, 1]),
    ],
)
@pytest.mark.parametrize("as_text", [False, True])
def test_long_work_is_cut_into_steps(sizes, expected, as_text):
    """Here, a step covers at most ten bytes, or a single longer event, and never more than the maximum number of
    events. (P176)
    """
    texts = [b"7" * size for size in sizes]
    found = a_chunk(*map(Record, texts), start=5).run_from_offset(5)
    if as_text:
        found = EventChunk(1, 5, EventSlice(LazyEvents([EventTextBlock.join(5, STORED_AT, texts)]), 5 + len(texts)))
        found = found.run_from_offset(5)

    steps = list(runs_in_steps([found, found], 10))

    assert [each.count for each in steps] == expected * 2
    assert [value for each in steps for value in each.values] == texts * 2
    assert steps[-1].end == found.end

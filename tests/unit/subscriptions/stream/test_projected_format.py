"""Streams that send only the members that the subscription reads."""

import json

import pytest
from msgspec.structs import replace

from nakadi.model.event_type import Category, Position
from nakadi.model.events import EventSlice, EventTextBlock, LazyEvents, Record
from nakadi.model.subscription import EventTypePartition, Subscription
from nakadi.streaming.chunks import EventChunk
from nakadi.subscriptions.stream import projected_format
from nakadi.subscriptions.stream.actions import SendBatch, SendKeepAlive
from nakadi.subscriptions.stream.driver import JsonSubscriptionFormat
from nakadi.subscriptions.stream.projected_format import ProjectedFormat, format_for, make_projection, projected_run
from tests.support.builders import A_MOMENT, an_event_type
from tests.support.chunks import a_chunk

EVENTS = [b'{"a":%d,"b":{"c":1}}' % number for number in range(6)]
CUT_EVENTS = [b'{"a":%d}' % number for number in range(6)]


def stored_lines() -> EventChunk:
    """The events as the data file returns them: in two blocks with a gap between them."""
    blocks = [EventTextBlock.join(10, A_MOMENT, EVENTS[:2]), EventTextBlock.join(15, A_MOMENT, EVENTS[2:])]
    return EventChunk(1, 10, EventSlice(LazyEvents(blocks), 19))


def stored_records() -> EventChunk:
    return a_chunk(*map(Record, EVENTS), start=10)


def encode(lines, line):
    with pytest.raises(StopIteration) as finished:
        next(lines.encode_line(line))
    return finished.value.value


def values(run):
    return run.chunk.values[run.first : run.last]


@pytest.mark.parametrize("chunk", [stored_lines(), stored_records()], ids=["lines", "records"])
@pytest.mark.parametrize("first", range(6))
def test_a_run_keeps_its_places_and_times(chunk, first):
    """However a log returns events, each is projected and keeps its position. (D11)"""
    for last in range(first + 1, 7):
        run = chunk.run_from_offset(chunk.offset_at(first)).split(last - first)[0]
        cut = projected_run(run, make_projection(("a",), ()))
        assert values(cut) == CUT_EVENTS[first:last]
        assert (cut.count, cut.end) == (run.count, run.end)
        offsets = [cut.chunk.offset_at(cut.first + index) for index in range(cut.count)]
        assert offsets == [chunk.offset_at(index) for index in range(first, last)]
        assert cut.stored_at(0) == run.stored_at(0)
        assert cut.size == sum(map(len, CUT_EVENTS[first:last]))


def test_only_events_are_cut():
    """The cursor of a batch and keep-alives stay unchanged, and events of another event type are sent whole. (D11,
    D12)"""
    lines = JsonSubscriptionFormat(lambda: "token")
    projected = ProjectedFormat(lines, {"orders": make_projection(("a",), ())})
    partition, chunk = EventTypePartition("orders", "0"), stored_lines()
    batch = SendBatch(partition, Position(1, 16), (chunk.run_from_offset(10).split(3)[0],), "why")
    assert json.loads(encode(projected, batch)) == json.loads(lines.encode_line(batch)) | {
        "events": [{"a": 0}, {"a": 1}, {"a": 2}]
    }
    keep_alive = SendKeepAlive(partition, Position(1, 16))
    assert projected.encode_line(keep_alive) == lines.encode_line(keep_alive)
    other = replace(batch, partition=EventTypePartition("redriven", "0"))
    assert projected.encode_line(other) == lines.encode_line(other)
    assert (projected.content_type, projected.stream_opening("x")) == (lines.content_type, lines.stream_opening("x"))


@pytest.mark.parametrize("fields", [{}, {"reads": ("a",)}])
def test_without_a_projection_everything_is_sent(fields):
    """A declaration without a projection changes nothing. (D11)"""
    subscription = Subscription(
        id="s", owning_application="shop", event_types=("orders",), created_at=A_MOMENT, updated_at=A_MOMENT, **fields
    )
    lines = JsonSubscriptionFormat()
    assert format_for(lines, subscription, [an_event_type(category=Category.UNDEFINED)]) is lines


def test_long_batches_are_cut_in_steps(monkeypatch):
    """A long batch is projected in steps, between which other streams have their turns, and the batch is the same.
    (D11, P176)
    """
    projected = ProjectedFormat(JsonSubscriptionFormat(lambda: "token"), {"orders": make_projection(("a",), ())})
    batch = SendBatch(EventTypePartition("orders", "0"), Position(1, 18), (stored_lines().run_from_offset(10),))
    at_once = encode(projected, batch)
    monkeypatch.setattr(projected_format, "MAX_CUT_BYTES", 2 * len(EVENTS[0]))

    steps = projected.encode_line(batch)

    assert [next(steps), next(steps)] == [None, None]
    with pytest.raises(StopIteration) as finished:
        next(steps)
    assert finished.value.value == at_once

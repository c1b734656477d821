"""The history of an event type: which events belong to it, and that each is read once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest

from nakadi.common.waiting import run_blocking
from nakadi.engines.memory.event_log import MemoryLog
from nakadi.event_types.snapshot import PartitionSnapshot
from nakadi.model.event_type import EventType, Position
from nakadi.model.events import EventSlice, Record
from nakadi.model.outcomes import Invalid, NotFound, Unavailable
from nakadi.ports.event_log import UnknownTopic
from nakadi.rehearsals.history import (
    RETRY_PAUSES_SECONDS,
    HistoryReader,
    PartitionSpan,
    Span,
    even_shares,
    parse_duration,
    partition_spans,
)
from tests.support.builders import A_MOMENT, a_timeline, an_event_type
from tests.support.clock import HandMovedClock
from tests.support.places import TimelineWithPast, an_event_type_with_past


@pytest.mark.parametrize(
    ("total", "available", "shares"),
    [
        (4, {"0": 1, "1": 9}, {"0": 1, "1": 3}),
        (5, {"0": 9, "1": 9}, {"0": 3, "1": 2}),
        (100, {"0": 1, "1": 2}, {"0": 1, "1": 2}),
        (1, {"0": 0, "1": 0, "2": 5}, {"0": 0, "1": 0, "2": 1}),
    ],
)
def test_partitions_have_equal_shares_unless_one_has_fewer(total, available, shares):
    """The reader requests no event that does not exist, and leaves out none that does. (H2)"""
    assert even_shares(total, available) == shares


@pytest.mark.parametrize(("text", "delta"), [("30s", timedelta(seconds=30)), ("7d", timedelta(days=7))])
def test_durations(text, delta):
    """A duration is a number with a unit. (H2)"""
    assert parse_duration(text) == delta


@pytest.mark.parametrize("last", ["", "7", "d", "-1d", "1.5d", "1w", "1234567d", " 7d", "\u0667d"])
def test_anything_else_is_no_duration(last):
    """(H2)"""
    with pytest.raises(Invalid):
        Span.parse(last, None)


def test_spans_go_over_timelines():
    """A span of a number of events reaches back into older timelines, and so does a span of a time. (H2, H4)"""
    event_type, logs = an_event_type_with_past(TimelineWithPast([5, 3], expired=[1, 0]), TimelineWithPast([2, 0]))
    now = A_MOMENT + timedelta(hours=3)

    def spans_of(span: Span) -> list[tuple[str, str, int]]:
        spans = partition_spans(event_type, PartitionSnapshot(event_type, logs), span, now)
        return [(str(each.start)[4:], str(each.end)[4:], each.count) for each in spans]

    assert spans_of(Span(events=7)) == [
        ("0001-000000000000000002", "0002-000000000000000001", 4),
        ("0001--1", "0002--1", 3),
    ]
    assert [count for _, _, count in spans_of(Span(events=100))] == [6, 3]
    assert [count for _, _, count in spans_of(Span(last="1h"))] == [2, 0]
    assert [count for _, _, count in spans_of(Span(last="118m"))] == [5, 1]
    assert [count for _, _, count in spans_of(Span(last="999999d"))] == [6, 3]


class EventTypeWithHistory:
    """An event type in a log in memory that may fail. `pauses` has the pauses of the reader."""

    def __init__(self) -> None:
        self.log = MemoryLog(HandMovedClock())
        self.event_type = an_event_type(timelines=(a_timeline(),))
        self.log.create_topic(self.topic, 1)
        self.pauses: list[float] = []
        self.troubles: list[Exception] = []
        self.current: EventType | None = self.event_type
        self.reader = HistoryReader(event_types=self, logs=self, pause=self.pauses.append)  # type: ignore[arg-type]

    @property
    def topic(self) -> str:
        return self.event_type.timeline.topic

    def publish(self, *numbers: int) -> None:
        run_blocking(self.log.append(self.topic, {0: [Record(str(number).encode()) for number in numbers]}))

    def for_storage(self, _storage_id: str) -> EventTypeWithHistory:
        return self

    def find(self, _name: str) -> EventType | None:
        return self.current

    def read(self, *place: Any, **limits: Any) -> EventSlice:
        if self.troubles:
            raise self.troubles.pop(0)
        return self.log.read(*place, **limits)

    def bounds(self, topic: str, partitions: Sequence[int]) -> Any:
        return self.log.bounds(topic, partitions)

    def numbers(self, first: int, last: int) -> list[int]:
        span = PartitionSpan(partition=0, start=Position(1, first - 1), end=Position(1, last), count=0)
        return [json.loads(each) for run in self.reader.read_span(self.event_type, span) for each in run.values]


@pytest.fixture
def history():
    history = EventTypeWithHistory()
    with closing(history.log):
        yield history


def test_a_span_ends_where_it_says(history):
    """Reading ends at the end of the span, even if later events are stored. (H2)"""
    history.publish(*range(2500))
    assert history.numbers(3, 2100) == list(range(3, 2101))
    assert history.numbers(3, 3) == [3]
    assert history.numbers(5, 4) == []


def test_a_log_that_does_not_answer_is_asked_again(history):
    """The reader repeats a read that fails, with growing pauses and a limited number of attempts."""
    history.publish(1)
    history.troubles = [Unavailable("down")] * 3
    assert history.numbers(0, 0) == [1]
    assert tuple(history.pauses) == RETRY_PAUSES_SECONDS[:3]
    history.troubles = [Unavailable("down")] * 20
    with pytest.raises(Unavailable):
        history.numbers(0, 0)


def test_events_that_expire_meanwhile_are_left_out(history):
    """If events expire during the reading, it continues with the oldest event that still exists. (H4)"""
    history.publish(*range(10))
    history.log.trim(history.topic, 0, A_MOMENT + timedelta(days=1))
    assert history.numbers(0, 9) == []
    history.publish(10)
    assert history.numbers(0, 10) == [10]


def test_a_deleted_event_type_ends_the_reading(history):
    """Reading ends if the event type is deleted, if another one has its name, or if only its events are removed.
    (H10)
    """
    for current in (None, an_event_type(name=history.event_type.name, id="another"), history.event_type):
        history.current = current
        history.troubles = [UnknownTopic()]
        with pytest.raises(NotFound):
            history.numbers(0, 0)

"""The decisions of a reader: whatever breaks at any time, every event comes once, in its order."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from nakadi_client import EventsUnreadable, NakadiError, NoAnswer, Patience, Refused, Trouble
from nakadi_client.answers import Answer
from nakadi_client.consumer_core import End, Wait
from nakadi_client.reader_core import EMPTY_LINES_AT_END, Find, Measure, OpenStream, Place, ReaderCore, ReadOptions


def offset_text(number):
    return f"001-0001-{number:018d}" if number >= 0 else "001-0001--1"


def stream_line(partition, numbers, last=None):
    cursor = {"partition": partition, "offset": offset_text(numbers[-1] if last is None else last)}
    return msgspec.json.encode({"cursor": cursor, **({"events": [{"n": n} for n in numbers]} if numbers else {})})


def cloud_events_line(partition, numbers):
    place = {"partition": partition, "eventtype": "t"}
    return msgspec.json.encode([{"data": {"n": n}, "offset": offset_text(n)} | place for n in numbers])


def test_damage_ends_a_reader_when_its_patience_does():
    """If the broker cannot read the next events of one partition, the reader ends in time, even while other
    partitions send lines.
    """
    core = ReaderCore("t", ReadOptions({"0": "BEGIN", "1": "BEGIN"}, patience=Patience(without_answer=15)), lambda: 0)
    damage = b'{"status":503,"detail":"Offsets 4 to 7 cannot be read","unreadable":{"partition":"0"}}'
    now, told = 0.0, 0
    while not isinstance(step := core.step(now), End):
        if isinstance(step, Wait):
            now = step.until
        elif isinstance(step, Trouble):
            told += 1
        else:
            with pytest.raises(EventsUnreadable) as error:
                list(core.batches([stream_line("1", [int(now) + 1]), damage]))
            now += 1
            core.handle_closed_stream(now, error.value)

    assert isinstance(step.error, EventsUnreadable)
    assert str(step.error) == "Offsets 4 to 7 cannot be read"
    assert (told > 1, now >= 15) == (True, True)


class SimulatedBroker:
    """A broker whose partitions have gaps, and which lets everything happen that may happen to its only reader."""

    def __init__(self, seed, *, follow, start="begin", cloud_events=False):
        self.random = random.Random(seed)
        options = ReadOptions(start, None, follow, 4, cloud_events=cloud_events)
        self.knows_until = self.random.random() < 0.5
        # The last events may be tombstones, which no stream delivers.
        self.has_tombstones = self.random.random() < 0.5
        self.core = ReaderCore("t", options, self.random.random)
        self.follow = follow
        self.log = {name: [n for n in range(30) if self.random.random() < 0.8] for name in ("0", "1", "2")}
        self.got = {name: [] for name in self.log}
        self.now = 0.0

    def run(self):
        """Run to the end or, for a reader that follows, until all events have come."""
        for _ in range(10_000):
            step = self.core.step(self.now)
            if isinstance(step, End):
                return step
            if isinstance(step, Wait):
                self.now = step.until
            elif isinstance(step, OpenStream):
                self.stream(step)
                if self.follow and self.got == self.log and self.random.random() < 0.1:
                    return None
            elif not isinstance(step, Trouble):
                self.core.handle_answer(step, self.answer(step), self.now)
        raise AssertionError("no end")

    def answer(self, step):
        if self.random.random() < 0.2:
            return self.random.choice([NoAnswer("lost"), Answer(503), Answer(429)])
        if isinstance(step, Find):
            return answer_200([{"partition": name, "newest_available_offset": offset_text(29)} for name in self.log])
        return answer_200([self.lag(cursor) for cursor in step.cursors])

    def lag(self, cursor):
        number = -1 if cursor.offset == "BEGIN" else int(cursor.offset.removeprefix("001-0001-"))
        # The broker counts offsets, including those of events that compaction has removed.
        newest = 29 if self.has_tombstones else max([-1, *self.log[cursor.partition]])
        return {
            "partition": cursor.partition,
            "newest_available_offset": offset_text(newest),
            "unconsumed_events": max(0, newest - number),
        }

    def has_more(self, at):
        return any(number > offset for name, offset in at.items() for number in self.log[name])

    def stream(self, step):
        if self.random.random() < 0.2:
            self.core.handle_answer(step, self.random.choice([NoAnswer("down"), Answer(503)]), self.now)
            return
        at = {each.partition: -1 if each.offset == "BEGIN" else int(each.offset[9:]) for each in step.cursors}
        untils = {
            each.partition: int(each.until[9:]) for each in step.cursors if self.knows_until and each.until is not UNSET
        }
        self.core.handle_opened_stream({"X-Nakadi-Until": "true"} if untils else {})
        left = step.stream_limit or 1_000
        empty_lines = dict.fromkeys(at, 0)
        silent_lines = 0
        for _ in range(self.random.randrange(30)):
            name = self.random.choice(sorted(at))
            size = min(left, step.batch_limit)
            numbers = [n for n in self.log[name] if n > at[name]][: self.random.randint(1, size)]
            # A busy broker may send several empty lines before it sends events; one that says when a partition ends may
            # send any number of them.
            if untils:
                numbers = numbers if self.random.random() < 0.4 else []
            elif self.random.random() < 0.2 and empty_lines[name] < EMPTY_LINES_AT_END - 1:
                numbers = []
            empty_lines[name] = 0 if numbers else empty_lines[name] + 1
            # A broker sends empty lines for all partitions equally often, so after this number of lines, each partition
            # would seem to be at its end.
            silent_lines = 0 if numbers else silent_lines + 1
            if not untils and self.has_more(at) and silent_lines >= EMPTY_LINES_AT_END * len(at):
                break
            at[name] = numbers[-1] if numbers else at[name]
            if not numbers and name in untils and not self.has_more({name: at[name]}):
                at[name] = untils[name]
            left -= len(numbers)
            text = cloud_events_line(name, numbers) if step.cloud_events else stream_line(name, numbers, at[name])
            for batch in self.core.batches([text]):
                events = [event["data"] if step.cloud_events else event for event in batch.events]
                self.got[batch.partition] += [event["n"] for event in events]
            if self.core.is_stream_done:
                return
            if left == 0:
                break
        self.core.handle_closed_stream(self.now, self.random.choice([None, NoAnswer("cut")]))


def answer_200(value):
    return Answer(200, msgspec.json.encode(value))


@given(seed=st.integers(0, 2**32), follow=st.booleans(), cloud_events=st.booleans())
def test_every_event_comes_once_whatever_breaks(seed, follow, cloud_events):
    """Every event comes once, although streams end and break, and requests fail. A reader that does not follow ends
    after the existing events.
    """
    broker = SimulatedBroker(seed, follow=follow, cloud_events=cloud_events)
    end = broker.run()
    assert broker.got == broker.log
    assert end is None or end == End()
    assert follow is not broker.core.is_done


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("begin", {"0": "BEGIN", "1": "BEGIN"}),
        ("end", {"0": offset_text(7), "1": offset_text(7)}),
        (
            datetime(2026, 11, 26, 12, tzinfo=timezone(timedelta(hours=1))),
            {"0": "2026-11-26T11:00:00.000000Z", "1": "2026-11-26T11:00:00.000000Z"},
        ),
        ({"1": offset_text(3)}, {"1": offset_text(3)}),
    ],
)
def test_a_start_is_an_offset_of_each_partition(start, expected):
    """Words, times and offsets say where the first stream begins."""
    core = ReaderCore("t", ReadOptions(start), lambda: 0.0)
    if isinstance(step := core.step(0.0), Find):
        core.handle_answer(
            step, answer_200([{"partition": name, "newest_available_offset": offset_text(7)} for name in "01"]), 0.0
        )
    assert core.step(0.0).cursors == [Place(*pair) for pair in expected.items()]


def test_a_broker_that_knows_until_says_where_a_partition_ends():
    """A line whose cursor is at `until` ends the reader, even if the last event is never delivered."""
    core = core_with_end(cloud_events=False)
    assert core.step(0.0).cursors == [Place("0", offset_text(1), until=offset_text(4))]
    core.handle_opened_stream({"X-Nakadi-Until": "true"})
    [batch] = core.batches([stream_line("0", [3]), stream_line("0", [], 4)])
    assert batch.cursor.offset == offset_text(3)
    assert core.step(0.0) == End()


def core_with_end(**options):
    """A reader of events 2 to 4 of a partition, which is about to open its stream."""
    core = ReaderCore("t", ReadOptions({"0": offset_text(1)}, follow=False, **options), lambda: 0.0)
    lag = {"partition": "0", "newest_available_offset": offset_text(4), "unconsumed_events": 3}
    core.handle_answer(core.step(0.0), answer_200([lag]), 0.0)
    return core


def test_silence_is_no_end_if_the_broker_knows_until():
    """A broker that cannot read the events sends lines without events, and they must not look like the end."""
    for headers, is_done in (({"X-Nakadi-Until": "true"}, False), ({}, True)):
        core = core_with_end()
        core.step(0.0)
        core.handle_opened_stream(headers)
        list(core.batches([stream_line("0", [], 1)] * 100))
        assert core.is_done is is_done


def test_another_stream_confirms_the_end_of_cloud_events():
    """A line without CloudEvents names no partition. So after silence, or the end of a stream, a stream of lines with
    cursors says whether there are more events.
    """
    for ends_by_itself in (False, True):
        core = core_with_end(cloud_events=True)
        for _ in range(2):
            assert core.step(0.0).cloud_events
            core.handle_opened_stream({"X-Nakadi-Until": "true"})
            list(core.batches([b"[]"] * (1 if ends_by_itself else 100)))
            assert core.is_stream_done is not ends_by_itself
            if ends_by_itself:
                core.handle_closed_stream(0.0)
            assert core.step(0.0) == OpenStream([Place("0", offset_text(1), until=offset_text(4))], 1, 1)
            core.handle_opened_stream({"X-Nakadi-Until": "true"})
            assert list(core.batches([stream_line("0", [2])])) == []
            core.handle_closed_stream(0.0)
        core.step(0.0)
        core.handle_opened_stream({"X-Nakadi-Until": "true"})
        list(core.batches([cloud_events_line("0", [2, 3])]))
        core.handle_closed_stream(0.0)
        core.step(0.0)
        core.handle_opened_stream({"X-Nakadi-Until": "true"})
        list(core.batches([stream_line("0", [], 4)]))
        assert core.step(0.0) == End()


def test_an_end_that_is_reached_already_opens_no_stream():
    """If the end has already been reached, the reader opens no stream."""
    core = ReaderCore("t", ReadOptions({"0": offset_text(1)}, follow=False), lambda: 0.0)
    step = core.step(0.0)
    assert isinstance(step, Measure)
    core.handle_answer(
        step, answer_200([{"partition": "0", "newest_available_offset": offset_text(1), "unconsumed_events": 0}]), 0.0
    )
    assert core.step(0.0) == End()


def test_a_partition_that_does_not_exist_is_refused():
    core = ReaderCore("t", ReadOptions(partitions=["0", "9"]), lambda: 0.0)
    core.handle_answer(core.step(0.0), answer_200([{"partition": "0", "newest_available_offset": offset_text(1)}]), 0.0)
    assert str(core.step(0.0).error) == "t has no partition 9."


def test_a_refusal_ends_the_reader_and_a_fault_does_not():
    """The reader raises a refusal that would repeat. It retries a failing broker until its patience ends."""
    core = ReaderCore("t", ReadOptions(patience=Patience(without_answer=10)), lambda: 0.0)
    core.handle_answer(core.step(0.0), Answer(503), 0.0)
    assert core.step(0.0).failures == 1
    assert isinstance(core.step(0.0), Wait)
    core.handle_answer(core.step(10.0), NoAnswer("down"), 10.0)
    assert core.step(10.0) == End(core.step(10.0).error)
    assert isinstance(core.step(10.0).error, NoAnswer)

    core = ReaderCore("t", ReadOptions(), lambda: 0.0)
    core.handle_answer(core.step(0.0), Answer(404), 0.0)
    assert isinstance(core.step(0.0).error, Refused)


def test_a_stream_that_says_why_it_ends_is_opened_again():
    """The reader reports a Problem or an invalid line in a stream, and continues with a new stream."""
    core = ReaderCore("t", ReadOptions({"0": offset_text(1)}), lambda: 0.0)
    for text, told in ((b'{"title":"Gone","detail":"moved"}', "moved"), (b"<html>", "no line of a stream")):
        with pytest.raises(NakadiError, match=told) as raised:
            list(core.batches([text]))
        core.handle_closed_stream(0.0, raised.value)
        assert isinstance(core.step(0.0), Trouble)
        assert isinstance(core.step(100.0), OpenStream)


def test_streams_without_a_line_are_not_opened_without_a_pause():
    """If a server ends each stream at once, the reader pauses between requests."""
    core = ReaderCore("t", ReadOptions({"0": offset_text(1)}), lambda: 0.0)
    assert isinstance(core.step(0.0), OpenStream)
    core.handle_closed_stream(0.0)
    assert isinstance(core.step(0.0), Trouble)
    assert isinstance(core.step(0.0), Wait)

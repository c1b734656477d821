"""The source of replayed events."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from nakadi.model.outcomes import Unavailable
from nakadi.subscriptions.stream import parking
from nakadi.subscriptions.stream.parking import ReplaySource
from tests.support.chunks import some_events
from tests.support.consuming import at
from tests.support.coordination import a_parked_event


class EventsAfterParked:
    """The events that follow the parked ones."""

    is_topic_missing = False
    needs_move = False
    has_more = False
    left = False

    async def move_to_next_event(self, _wake):
        self.needs_move = False

    def take_run(self):
        return some_events(1, start=100)

    def release(self):
        self.left = True


@pytest.fixture
def threads():
    with ThreadPoolExecutor(1) as threads:
        yield threads


def read_until_gap(source):
    """The offsets up to the first event of the log, with None for skipped ones."""
    found = []

    async def take():
        while not found or found[-1] != (1, 100):
            if source.needs_move:
                await source.move_to_next_event(lambda: None)
            run = source.take_run()
            for index in range(run.first, run.last):
                record = run.chunk.records[index]
                found.append((run.chunk.order, run.chunk.events[index].offset) if record.value else None)

    asyncio.run(take())
    return found[:-1]


def a_source(threads, *events, until=50, fetch=None):
    heads = [each.parked for each in events]
    values = {each.parked: each.value for each in events}
    return ReplaySource(heads, at(-1), at(until), fetch or values.get, threads, EventsAfterParked())


def test_parked_events_come_before_the_log(threads):
    """Parked events come in order, timeline by timeline; the events between them are skipped, and then the log
    continues."""
    events = [a_parked_event(3), a_parked_event(9), a_parked_event(0, timeline=2)]
    assert read_until_gap(a_source(threads, *events[:2])) == [(1, 3), (1, 9), None]
    assert read_until_gap(a_source(threads, *events)) == [(1, 3), (1, 9), (2, 0)]


def test_nothing_is_passed_over_where_nothing_lies_between(threads):
    """If the last parked event is at the cursor's earlier position, the log follows immediately."""
    assert read_until_gap(a_source(threads, a_parked_event(50))) == [(1, 50)]


def test_many_are_fetched_bit_by_bit(threads):
    """Only a few events are in memory at a time."""
    fetched = []
    events = [a_parked_event(each) for each in range(parking.MAX_FETCHED_AT_ONCE + 1)]
    source = a_source(threads, *events, fetch=lambda parked: fetched.append(parked) or b"{}")
    asyncio.run(source.move_to_next_event(lambda: None))
    assert len(fetched) == parking.MAX_FETCHED_AT_ONCE
    assert len(read_until_gap(source)) == parking.MAX_FETCHED_AT_ONCE + 2


def test_what_was_skipped_meanwhile_is_left_out(threads):
    """An event that was removed from the parked events is not sent."""
    first, second = a_parked_event(3), a_parked_event(9)
    source = a_source(threads, first, second, fetch={second.parked: b"{}"}.get)
    assert read_until_gap(source) == [(1, 9), None]


def test_a_store_that_does_not_answer_is_asked_again(threads, monkeypatch):
    """While parked events cannot be read, nothing is sent or skipped."""
    monkeypatch.setattr(parking, "FETCH_RETRY_INTERVAL_SECONDS", 0.0)
    answers = [Unavailable("no"), b"{}"]

    def fetch(_):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def take():
        source = a_source(threads, a_parked_event(3), fetch=fetch)
        woken = asyncio.Event()
        await source.move_to_next_event(woken.set)
        assert source.take_run() is None
        await woken.wait()
        assert source.needs_move
        await source.move_to_next_event(woken.set)
        return source.take_run()

    assert asyncio.run(take()).end == at(3)


def test_a_replay_source_is_lost_with_its_log(threads):
    """After the parked events, the source reports a missing topic as soon as the source of the log does; both are
    released together.
    """
    source = a_source(threads)
    source._onward.is_topic_missing = True
    assert not source.is_topic_missing
    assert source.take_run().end == at(50)
    assert source.is_topic_missing
    source.release()
    assert source._onward.left

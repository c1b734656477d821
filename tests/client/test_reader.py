"""Readers read event types of a real broker, over sockets, with threads and with asyncio."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from nakadi_client import NakadiError, NoAnswer, Patience, Poison, Producer, Refused, aio, read
from tests.support.patience import PATIENCE


class Order(msgspec.Struct):
    n: int


@pytest.fixture
def orders_event_type(nakadi):
    """The name of an event type with 300 events in three partitions."""
    nakadi.create_event_type("order", partitions=3)
    publish(nakadi, range(300))
    return "order"


@pytest.fixture(params=[False, True], ids=["threads", "asyncio"])
def read_batches(request):
    """A function that reads, with threads or with asyncio, and returns the batches once they have enough events."""

    def batches(*arguments, enough=None, **options):
        found = []
        read_all = on_loop if request.param else with_threads
        read_all(found, arguments, options, enough)
        return found

    return batches


def with_threads(found, arguments, options, enough):
    for batch in read(*arguments, **options):
        found.append(batch)
        if enough and sum(map(len, found)) >= enough:
            return


def on_loop(found, arguments, options, enough):
    async def read_all():
        async with aclosing(aio.read(*arguments, **options)) as batches:
            async for batch in batches:
                found.append(batch)
                if enough and sum(map(len, found)) >= enough:
                    return

    asyncio.run(asyncio.wait_for(read_all(), PATIENCE))


def publish(nakadi, numbers):
    with Producer(nakadi.url, "order", stop_on_signals=False) as producer:
        producer.send_all({"n": n} for n in numbers)


def numbers(read_batches):
    return sorted(event["n"] for batch in read_batches for event in batch.events)


def test_what_there_is_is_read_from_the_beginning(nakadi, orders_event_type, read_batches):
    """Without following, a reader ends after the existing events; each batch has its cursor."""
    found = read_batches(nakadi.url, orders_event_type, start="begin", follow=False, batch_limit=30)

    assert numbers(found) == list(range(300))
    assert {(batch.event_type, batch.partition) for batch in found} == {(orders_event_type, name) for name in "012"}
    assert max(map(len, found)) == 30
    assert read_batches(nakadi.url, orders_event_type, follow=False) == []


def test_a_connection_that_breaks_loses_and_doubles_nothing(breakable_network, orders_event_type, read_batches):
    """A truncated line is read again with the next connection, which continues after the last complete line."""
    told = []
    breakable_network.cut_after(20_000)
    found = read_batches(
        breakable_network.url, orders_event_type, start="begin", follow=False, batch_limit=7, on_trouble=told.append
    )

    assert numbers(found) == list(range(300))
    assert [trouble.failures for trouble in told] == [1]


def test_events_are_read_as_cloud_events(nakadi, orders_event_type, read_batches):
    """CloudEvents come in the same batches, each with its cursor. (E20)"""
    found = read_batches(nakadi.url, orders_event_type, start="begin", follow=False, batch_limit=30, cloud_events=True)

    assert sorted(each["data"]["n"] for batch in found for each in batch.events) == list(range(300))
    assert all(batch.offset == batch.events[-1]["offset"] for batch in found)
    assert {(batch.event_type, batch.partition) for batch in found} == {(orders_event_type, name) for name in "012"}


def test_a_reader_follows(nakadi, orders_event_type, read_batches):
    """A reader follows new events, and can begin at an offset or a time."""
    [*_, last] = read_batches(nakadi.url, orders_event_type, start="begin", follow=False, partitions=["1"])
    publish(nakadi, range(300, 310))
    behind = read_batches(nakadi.url, orders_event_type, start={"1": last.offset}, follow=False)

    assert all(n >= 300 for n in numbers(behind))
    hour_ago = datetime.now(UTC) - timedelta(hours=1)
    assert numbers(read_batches(nakadi.url, orders_event_type, start=hour_ago, enough=310)) == list(range(310))


def test_events_are_of_the_model_or_as_they_were_stored(nakadi, orders_event_type, read_batches):
    """An event that does not fit the model ends the reader or is skipped."""
    publish(nakadi, ["x"])
    raw = read_batches(nakadi.url, orders_event_type, model=msgspec.Raw, start="begin", follow=False)
    assert all(bytes(event).startswith(b'{"') for batch in raw for event in batch.events)

    options = {"model": Order, "start": "begin", "follow": False}
    assert sum(map(len, read_batches(nakadi.url, orders_event_type, on_poison="skip", **options))) == 300
    with pytest.raises(Poison):
        read_batches(nakadi.url, orders_event_type, **options)


def test_what_cannot_be_read_is_raised(nakadi, read_batches):
    """An unknown event type, an unknown partition and an unreachable broker raise an error in the loop."""
    nakadi.create_event_type("order")
    with pytest.raises(Refused, match="404"):
        read_batches(nakadi.url, "unknown")
    with pytest.raises(NakadiError, match="no partition 7"):
        read_batches(nakadi.url, "order", partitions=["7"])
    with pytest.raises(NoAnswer, match="cannot be reached"):
        read_batches("http://127.0.0.1:9", "order", patience=Patience(without_answer=0))

"""The producer for asyncio keeps the promises of the producer for threads."""

from __future__ import annotations

import asyncio
import socket

import pytest

from nakadi_client import BufferFull, Closed, EventRefused, Limits, NotDelivered, key_at
from nakadi_client.aio import Producer
from tests.support.patience import PATIENCE


def sorted_numbers(events):
    return [event["n"] for event in events]


def test_events_are_published_and_awaited(nakadi):
    """Every event is stored in its order, and its report can be awaited."""
    nakadi.create_event_type("sent")

    async def publish():
        async with Producer(nakadi.url, "sent") as producer:
            deliveries = await producer.send_all({"n": n} for n in range(1_000))
            assert (await deliveries[0]).attempts == 1
            return await asyncio.gather(*deliveries)

    assert len(asyncio.run(publish())) == 1_000
    assert sorted_numbers(nakadi.events("sent")) == list(range(1_000))


def test_what_a_partition_refused_is_sent_again_in_its_order(nakadi):
    """The producer sends the events of a failed partition again, and the events of each key stay in order."""
    nakadi.create_event_type("sent", partitions=4, partition_strategy="hash", partition_key_fields=["key"])
    nakadi.faults.refuse(event_type="sent", partition="1", times=3)

    async def publish():
        limits = Limits(batch_events=20, in_flight=3)
        async with Producer(nakadi.url, "sent", key=key_at("key"), limits=limits) as producer:
            await producer.send_all({"key": str(n % 17), "n": n} for n in range(400))

    asyncio.run(publish())
    stored = nakadi.events("sent")
    assert sorted(sorted_numbers(stored)) == list(range(400))
    for key in range(17):
        of_key = [event["n"] for event in stored if event["key"] == str(key)]
        assert of_key == sorted(of_key)


def test_a_refused_event_raises_where_it_is_awaited(nakadi):
    """A caller that awaits the report of a refused event gets an `EventRefused`."""
    schema = '{"type":"object","properties":{"n":{"type":"integer"}}}'
    nakadi.create_event_type("sent", schema={"type": "json_schema", "schema": schema})

    async def publish():
        async with Producer(nakadi.url, "sent") as producer:
            bad = await producer.send({"n": "?"})
            good = await producer.send({"n": 1})
            with pytest.raises(EventRefused):
                await bad
            await good

    asyncio.run(publish())
    assert sorted_numbers(nakadi.events("sent")) == [1]


def test_a_producer_that_stops_takes_nothing_behind_what_failed(nakadi):
    """With `on_failure="stop"`, a refused event ends the producer."""
    schema = '{"type":"object","properties":{"n":{"type":"integer"}}}'
    nakadi.create_event_type("sent", schema={"type": "json_schema", "schema": schema})

    async def publish():
        async with Producer(nakadi.url, "sent", on_failure="stop") as producer:
            await (await producer.send({"n": 1}))
            await producer.send({"n": "?"})
            await producer.flush()
            with pytest.raises(Closed, match="not delivered"):
                await producer.send({"n": 2})

    asyncio.run(publish())
    assert sorted_numbers(nakadi.events("sent")) == [1]


def test_a_full_buffer_holds_senders_back(breakable_network):
    """`send` waits for room without blocking the loop, and raises an error if there is none in time."""
    breakable_network.go_down()

    async def publish():
        producer = Producer(breakable_network.url, "sent", limits=Limits(buffer_events=2))
        deliveries = [await producer.send({"n": n}) for n in range(2)]
        with pytest.raises(BufferFull):
            await producer.send({"n": 3}, timeout=0.1)
        await producer.close(timeout=0.1)
        with pytest.raises(Closed):
            await producer.send({"n": 4})
        for each in deliveries:
            with pytest.raises(NotDelivered):
                await each

    asyncio.run(publish())


def test_closing_in_time_reports_events_that_are_on_their_way():
    """A caller that awaits the report of an event whose request is unanswered learns that the producer was closed, and
    that the event may be stored.
    """

    async def publish(silent):
        producer = Producer(f"http://127.0.0.1:{silent.getsockname()[1]}", "sent")
        delivery = await producer.send({"n": 1})
        connection, _ = await asyncio.to_thread(silent.accept)
        with connection:
            assert await asyncio.to_thread(connection.recv, 1)
            await producer.close(timeout=0.1)
        with pytest.raises(NotDelivered) as failed:
            await asyncio.wait_for(delivery_of(delivery), PATIENCE)
        return failed.value.maybe_stored, producer.waiting

    async def delivery_of(delivery):
        return await delivery

    # This server receives the request, and never answers.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(PATIENCE)
        assert asyncio.run(publish(silent)) == (True, 0)


def test_a_cancelled_task_delivers_what_it_sent(nakadi):
    """When a task is cancelled within the `async with`, the producer first delivers its events."""
    nakadi.create_event_type("sent")

    async def publish(sent):
        async with Producer(nakadi.url, "sent", limits=Limits(linger=5)) as producer:
            await producer.send_all({"n": n} for n in range(100))
            sent.set()
            await asyncio.sleep(PATIENCE)

    async def cancel():
        sent = asyncio.Event()
        task = asyncio.create_task(publish(sent))
        await sent.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert sorted_numbers(nakadi.events("sent")) == list(range(100))


def test_a_broker_that_is_gone_for_a_while_gets_everything(nakadi, breakable_network):
    """While the connection is cut, events wait; none is lost, and they keep their order."""
    nakadi.create_event_type("sent")

    async def publish():
        async with Producer(breakable_network.url, "sent", limits=Limits(batch_events=10)) as producer:
            breakable_network.go_down()
            await producer.send_all({"n": n} for n in range(100))
            assert not await producer.flush(0.3)
            breakable_network.heal()
            assert await producer.flush(PATIENCE)

    asyncio.run(publish())
    assert sorted_numbers(nakadi.events("sent")) == list(range(100))

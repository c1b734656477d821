"""The consumer for asyncio keeps the promises of the consumer for threads."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from nakadi_client import CommitPolicy, Park, Poison, Producer, Refused, StreamOptions
from nakadi_client.aio import Consumer, consume
from tests.support.environment import plain_environment
from tests.support.patience import PATIENCE, until, wait_on_loop

ROOT = Path(__file__).parents[3]
QUICK = StreamOptions(commit_timeout=2, batch_limit=20, max_uncommitted_events=100)
# Long enough for commits on a busy machine, so no event is delivered again.
PATIENT = StreamOptions(commit_timeout=10, batch_limit=20, max_uncommitted_events=100)
# No commit is due while a test runs.
LATE = StreamOptions(commit_timeout=60, batch_limit=20)


class Order(msgspec.Struct):
    n: int


@pytest.fixture
def subscription_to_orders(nakadi):
    """The id of a subscription with 300 events in three partitions."""
    nakadi.create_event_type("order", partitions=3)
    publish(nakadi, range(300))
    return nakadi.subscribe("order")


def publish(nakadi, numbers):
    with Producer(nakadi.url, "order", stop_on_signals=False) as producer:
        producer.send_all({"n": n} for n in numbers)


async def read(consumer, count, seen):
    async for batch in consumer:
        seen.update(event["n"] if isinstance(event, dict) else event.n for event in batch.events)
        if len(seen) >= count:
            batch.done()
            break


def test_everything_is_read_once_and_committed(nakadi, subscription_to_orders):
    """A loop gets every event once, decoded into the model, and the consumer commits the finished events when the
    loop ends.
    """
    seen = Counter()

    async def work():
        async with Consumer(nakadi.url, subscription_to_orders, model=Order) as consumer:
            await read(consumer, 300, seen)
            assert consumer.health().events_handled == 300
            assert set(await consumer.lag()) == {("order", partition) for partition in "012"}

    asyncio.run(work())
    assert seen == Counter(range(300))
    assert nakadi.unconsumed(subscription_to_orders) == 0


def test_a_connection_that_breaks_within_a_line_loses_nothing(nakadi, breakable_network, subscription_to_orders):
    """Truncated lines are discarded, and their events come again with the next stream."""
    seen = Counter()

    async def work():
        async with Consumer(breakable_network.url, subscription_to_orders, options=QUICK) as consumer:
            async for batch in consumer:
                seen.update(event["n"] for event in batch)
                if len(seen) == 300:
                    batch.done()
                    break
                breakable_network.cut_after(700 + 1_300 * len(seen) % 2_000)
            assert consumer.health().reconnects >= 1

    asyncio.run(work())
    assert set(seen) == set(range(300))
    until(lambda: nakadi.unconsumed(subscription_to_orders) == 0)


def test_two_consumers_of_one_loop_share_the_partitions(nakadi, subscription_to_orders):
    """Two consumers in one event loop get different partitions, and no event is lost or read twice."""
    seen = Counter()
    told = [], []

    async def work():
        consumers = [
            Consumer(
                nakadi.url, subscription_to_orders, options=PATIENT, on_rebalance=each.append, stop_on_signals=False
            )
            for each in told
        ]

        async def drain(consumer):
            async for batch in consumer:
                seen.update(event["n"] for event in batch)

        tasks = [asyncio.create_task(drain(consumer)) for consumer in consumers]
        await wait_on_loop(lambda: len(seen) == 300 and all(told))
        for consumer in consumers:
            consumer.stop()
        await asyncio.gather(*tasks)
        for consumer in consumers:
            await consumer.close()

    asyncio.run(work())
    assert set(seen.values()) == {1}
    assert nakadi.unconsumed(subscription_to_orders) == 0


def test_slow_work_keeps_its_partitions(nakadi, subscription_to_orders):
    """Work that takes longer than the commit timeout is not repeated."""
    seen = Counter()

    async def work():
        # On a busy machine, an extension of the timeout may be more than a second late.
        options = StreamOptions(commit_timeout=3, batch_limit=100)
        async with Consumer(nakadi.url, subscription_to_orders, options=options) as consumer:
            async for batch in consumer:
                await asyncio.sleep(0 if seen else 4)
                seen.update(event["n"] for event in batch)
                if len(seen) == 300:
                    batch.done()
                    break
            assert consumer.health().commits_lost == 0

    asyncio.run(work())
    assert set(seen.values()) == {1}


@pytest.mark.parametrize("policy", ["stop", "skip", "park"])
def test_events_that_do_not_fit_are_treated_as_asked(nakadi, subscription_to_orders, policy):
    """Poison events end the loop, are skipped, or are parked in another event type."""
    nakadi.create_event_type("parked")
    publish(nakadi, ["bad", 300])
    seen = Counter()

    async def work():
        on_poison = Park("parked") if policy == "park" else policy
        async with Consumer(nakadi.url, subscription_to_orders, model=Order, on_poison=on_poison) as consumer:
            await read(consumer, 301, seen)

    if policy == "stop":
        with pytest.raises(Poison):
            asyncio.run(work())
        return
    asyncio.run(work())
    assert seen == Counter(range(301))
    assert [event["event"]["n"] for event in nakadi.events("parked")] == (["bad"] if policy == "park" else [])


@pytest.mark.parametrize("policy", ["stop", "park"])
def test_an_event_that_the_handler_fails_at_is_treated_as_asked(nakadi, subscription_to_orders, policy):
    """A handler gets several attempts for each event; after these, the event ends the consumer, or is parked."""
    nakadi.create_event_type("parked")
    tried = Counter()

    async def work():
        on_poison = Park("parked") if policy == "park" else policy
        async with Consumer(nakadi.url, subscription_to_orders, options=PATIENT, on_poison=on_poison) as consumer:

            async def handle(event):
                tried[event["n"]] += 1
                if event["n"] == 150:
                    raise ArithmeticError("not this one")
                if len(tried) == 300:
                    consumer.stop()

            await consumer.run(handle, attempts=2)

    if policy == "stop":
        with pytest.raises(ArithmeticError):
            asyncio.run(work())
    else:
        asyncio.run(work())
        assert set(tried) == set(range(300))
    assert tried[150] == 2
    assert [event["event"]["n"] for event in nakadi.events("parked")] == ([150] if policy == "park" else [])


def test_a_consumer_of_nothing_says_so(nakadi):
    """A subscription that does not exist ends the consumer with the broker's message."""

    async def work():
        async for _ in consume(nakadi.url, "no-such-id"):
            pass

    with pytest.raises(Refused, match="does not exist"):
        asyncio.run(work())


PROGRAM = """
import asyncio, sys
from nakadi_client import StreamOptions, aio

async def main():
    async for batch in aio.consume(sys.argv[1], sys.argv[2], options=StreamOptions(batch_limit=10)):
        print(len(batch), flush=True)
        await asyncio.sleep(0.5)
        print("done", flush=True)
    print("ended", flush=True)

asyncio.run(main())
"""


def test_a_program_that_is_ended_finishes_its_batch_and_commits_it(nakadi, subscription_to_orders):
    """At SIGTERM, a consumer finishes and commits the current batch, and takes no other."""
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, nakadi.url, subscription_to_orders],
        cwd=ROOT,
        env=plain_environment(PYTHONPATH=str(ROOT)),
        stdout=subprocess.PIPE,
        text=True,
    )
    with program:
        assert program.stdout is not None
        handled = int(program.stdout.readline())
        os.kill(program.pid, signal.SIGTERM)
        assert program.stdout.read() == "done\nended\n"
        assert program.wait(PATIENCE) == 0
    assert nakadi.unconsumed(subscription_to_orders) == 300 - handled


def test_a_consumer_ends_at_its_limit_or_when_nothing_waits(nakadi, subscription_to_orders):
    """A consumer with a limit, or without following, commits the batches that it handed out, and the next consumer
    continues after them.
    """

    async def work(**options):
        return [
            event["n"]
            async for batch in consume(nakadi.url, subscription_to_orders, options=PATIENT, **options)
            for event in batch.events
        ]

    first = asyncio.run(work(limit=70))
    assert len(first) == 70
    assert nakadi.unconsumed(subscription_to_orders) == 230
    assert sorted(first + asyncio.run(work(follow=False))) == list(range(300))
    assert asyncio.run(work(follow=False)) == []
    assert nakadi.unconsumed(subscription_to_orders) == 0


def test_a_consumer_that_is_aborted_commits_nothing(nakadi, subscription_to_orders):
    """After an abort, the current batch and the handled, uncommitted ones come again."""

    async def work():
        commit = CommitPolicy(seconds=15.0)
        async with Consumer(nakadi.url, subscription_to_orders, commit=commit, options=LATE) as consumer:
            seen = 0
            async for batch in consumer:
                seen += len(batch)
                if seen > len(batch):
                    consumer.abort()

    asyncio.run(work())
    assert nakadi.unconsumed(subscription_to_orders) == 300

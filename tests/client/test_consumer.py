"""Consumers read subscriptions of a real broker, over sockets, despite all kinds of faults."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import msgspec
import pydantic
import pytest

from nakadi_client import (
    BY_HAND,
    CommitPolicy,
    Connection,
    Consumer,
    NoAnswer,
    Park,
    Patience,
    Poison,
    Producer,
    Refused,
    StreamOptions,
    aio,
    consume,
)
from nakadi_client.testing import LocalNakadi, Network
from tests.support.environment import plain_environment
from tests.support.patience import PATIENCE, until

ROOT = Path(__file__).parents[2]
# With this commit timeout, a broken stream keeps its partitions for two seconds if nobody can release them.
QUICK = StreamOptions(commit_timeout=2, batch_limit=20, max_uncommitted_events=100)
# Long enough for commits on a busy machine, so no event is delivered again.
PATIENT = StreamOptions(commit_timeout=10, batch_limit=20, max_uncommitted_events=100)
# No commit is due while a test runs.
LATE = StreamOptions(commit_timeout=60, batch_limit=20)


class Order(msgspec.Struct):
    n: int


class PydanticOrder(pydantic.BaseModel):
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


def read(consumer, count, seen=None):
    """Read until every number has been seen, and return how often each number was seen."""
    seen = Counter() if seen is None else seen
    for batch in consumer:
        seen.update(number_of(event) for event in batch.events)
        if len(seen) >= count:
            batch.done()
            break
    return seen


def number_of(event):
    return event["n"] if isinstance(event, dict) else event.n


def test_everything_is_read_once_and_committed(nakadi, subscription_to_orders):
    """A loop gets every event once, and the consumer commits the finished events when the loop ends."""
    with Consumer(nakadi.url, subscription_to_orders) as consumer:
        assert read(consumer, 300) == Counter(range(300))
        assert sum(consumer.lag().values()) == 0
    assert nakadi.unconsumed(subscription_to_orders) == 0


@pytest.mark.parametrize("model", [Order, PydanticOrder])
def test_events_are_of_the_model(nakadi, subscription_to_orders, model):
    """Events have the type that the application chose."""
    for batch in consume(nakadi.url, subscription_to_orders, model=model):
        assert all(isinstance(event, model) for event in batch.events)
        break


def test_a_loop_that_ends_early_does_not_commit_what_was_in_hand(nakadi, subscription_to_orders):
    """After a `break` or an exception, the current batch comes again, unless the loop has marked it as done."""
    first = []
    for batch in consume(nakadi.url, subscription_to_orders, options=QUICK):
        first = [event["n"] for event in batch]
        break
    assert nakadi.unconsumed(subscription_to_orders) == 300

    with Consumer(nakadi.url, subscription_to_orders, options=QUICK) as consumer:
        assert read(consumer, 300)[first[0]] == 1
    assert nakadi.unconsumed(subscription_to_orders) == 0


@pytest.mark.parametrize(
    "policy", [CommitPolicy(events=40), CommitPolicy(seconds=0.2), CommitPolicy(events=1_000_000, seconds=0.1)]
)
def test_commits_are_made_after_so_many_events_or_seconds(nakadi, subscription_to_orders, policy):
    """With a commit policy, a consumer makes fewer commits than there are batches, and still commits everything."""
    with Consumer(nakadi.url, subscription_to_orders, options=PATIENT, commit=policy) as consumer:
        read(consumer, 300)
        health = consumer.health()
    assert health.commits < health.batches_handled
    assert nakadi.unconsumed(subscription_to_orders) == 0


def test_a_commit_by_hand_is_the_only_one(nakadi, subscription_to_orders):
    """With `by_hand`, the consumer commits only batches that the application has marked as done."""
    marked = 0
    options = StreamOptions(commit_timeout=2, batch_limit=10, max_uncommitted_events=1_000)
    with Consumer(nakadi.url, subscription_to_orders, options=options, commit=BY_HAND) as consumer:
        seen = 0
        places = set()
        for batch in consumer:
            seen += len(batch)
            if batch.partition not in places:
                places.add(batch.partition)
                marked += len(batch)
                batch.done()
            if seen == 300:
                break
    assert nakadi.unconsumed(subscription_to_orders) == 300 - marked


def test_a_connection_that_breaks_within_a_line_loses_nothing(nakadi, breakable_network, subscription_to_orders):
    """Truncated lines are discarded, and their events come again with the next stream."""
    seen = Counter()
    with Consumer(breakable_network.url, subscription_to_orders, options=QUICK) as consumer:
        for batch in consumer:
            seen.update(event["n"] for event in batch)
            if len(seen) == 300:
                batch.done()
                break
            breakable_network.cut_after(700 + 1_300 * len(seen) % 2_000)
        assert consumer.health().reconnects >= 1
    assert set(seen) == set(range(300))
    until(lambda: nakadi.unconsumed(subscription_to_orders) == 0)


def test_a_broker_that_restarts_loses_nothing(tmp_path):
    """A consumer outlives its broker, and continues with the next broker on the same data."""
    data = {"registry": f"sqlite:///{tmp_path}/nakadi.db", "event_log": f"sqlite:///{tmp_path}/nakadi.db"}
    first = LocalNakadi(**data)
    first.create_event_type("order", partitions=3)
    publish(first, range(100))
    orders = first.subscribe("order")
    seen = Counter()
    with Network(first.url) as network, Consumer(network.url, orders, options=QUICK) as consumer:
        reading = threading.Thread(target=read, args=(consumer, 200, seen))
        reading.start()
        until(lambda: len(seen) == 100)
        first.close()
        with LocalNakadi(**data) as second:
            network.lead_to(second.url)
            publish(second, range(100, 200))
            reading.join(PATIENCE)
            assert not reading.is_alive()
            assert set(seen) == set(range(200))
            assert second.unconsumed(orders) == 0


def test_two_consumers_share_the_partitions(nakadi, subscription_to_orders):
    """A second consumer takes over partitions, both consumers report which partitions they have, and nothing is lost or
    read twice.
    """
    told = {"first": [], "second": []}
    seen = Counter()
    consumers = [
        Consumer(
            nakadi.url, subscription_to_orders, options=PATIENT, on_rebalance=told[name].append, stop_on_signals=False
        )
        for name in told
    ]

    def work(consumer):
        for batch in consumer:
            seen.update(event["n"] for event in batch)

    threads = [threading.Thread(target=work, args=(consumer,)) for consumer in consumers]
    threads[0].start()
    until(lambda: len(seen) == 300)
    threads[1].start()
    until(lambda: told["second"])
    publish(nakadi, range(300, 600))
    until(lambda: len(seen) == 600)
    until(lambda: nakadi.unconsumed(subscription_to_orders) == 0)
    for consumer in consumers:
        consumer.stop()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert set(seen.values()) == {1}
    assert {place for each in told["first"] for place in each.gained} == {("order", p) for p in "012"}
    for consumer in consumers:
        consumer.close()


def test_an_event_that_does_not_fit_ends_the_consumer(nakadi, subscription_to_orders):
    """By default a poison event ends the loop, and is not committed."""
    publish(nakadi, ["bad"])
    with (
        pytest.raises(Poison, match="Expected `int`"),
        Consumer(nakadi.url, subscription_to_orders, model=Order) as consumer,
    ):
        read(consumer, 1_000)
    assert nakadi.unconsumed(subscription_to_orders) >= 1


def test_an_event_that_does_not_fit_is_skipped(nakadi, subscription_to_orders):
    """A consumer may skip poison events; all others arrive."""
    publish(nakadi, ["bad", 300])
    with Consumer(nakadi.url, subscription_to_orders, model=Order, on_poison="skip") as consumer:
        assert read(consumer, 301) == Counter(range(301))
    assert nakadi.unconsumed(subscription_to_orders) == 0


def test_an_event_that_does_not_fit_is_parked(nakadi, subscription_to_orders):
    """The consumer publishes a poison event to another event type, with the reason, before it commits the batch."""
    nakadi.create_event_type("parked")
    publish(nakadi, ["bad", 300])
    with Consumer(nakadi.url, subscription_to_orders, model=PydanticOrder, on_poison=Park("parked")) as consumer:
        read(consumer, 301)
    [parked] = nakadi.events("parked")
    assert parked["event"]["n"] == "bad"
    assert parked["subscription_id"] == subscription_to_orders
    assert "int" in parked["error"]["message"]


def test_an_event_that_cannot_be_parked_ends_the_consumer(nakadi, subscription_to_orders):
    """If the poison event cannot be parked, the consumer ends, and does not commit the batch."""
    publish(nakadi, ["bad"])
    with pytest.raises(Refused, match="nowhere"):
        for _ in consume(nakadi.url, subscription_to_orders, model=Order, on_poison=Park("nowhere")):
            pass
    assert nakadi.unconsumed(subscription_to_orders) >= 1


@pytest.mark.parametrize("policy", ["stop", "skip", "park"])
def test_an_event_that_the_handler_fails_at_is_treated_as_asked(nakadi, subscription_to_orders, policy):
    """A handler gets several attempts for each event; after these, the event ends the consumer, is skipped, or is
    parked.
    """
    nakadi.create_event_type("parked")
    tried = Counter()
    on_poison = Park("parked") if policy == "park" else policy
    consumer = Consumer(nakadi.url, subscription_to_orders, model=Order, options=PATIENT, on_poison=on_poison)

    def handle(order):
        tried[order.n] += 1
        if order.n == 150:
            raise ArithmeticError("not this one")
        if len(tried) == 300:
            consumer.stop()

    with consumer:
        if policy == "stop":
            with pytest.raises(ArithmeticError, match="not this one"):
                consumer.run(handle, attempts=2)
        else:
            consumer.run(handle, attempts=2)
            assert set(tried) == set(range(300))
    assert tried.pop(150) == 2
    assert set(tried.values()) == {1}
    parked = [(event["event"]["n"], event["error"]["message"]) for event in nakadi.events("parked")]
    assert parked == ([(150, "ArithmeticError: not this one")] if policy == "park" else [])
    assert (nakadi.unconsumed(subscription_to_orders) == 0) == (policy != "stop")


def test_slow_work_on_a_long_batch_keeps_its_partitions(nakadi, subscription_to_orders):
    """Work that takes longer than the commit timeout is neither given to another consumer nor repeated."""
    seen = Counter()
    # On a busy machine, an extension of the timeout may be more than a second late.
    with Consumer(
        nakadi.url, subscription_to_orders, options=StreamOptions(commit_timeout=3, batch_limit=100)
    ) as consumer:
        for number, batch in enumerate(consumer):
            for event in batch:
                seen[event["n"]] += 1
                time.sleep(0 if number else 0.04)
            if len(seen) == 300:
                batch.done()
                break
        assert consumer.health().commits_lost == 0
    assert set(seen.values()) == {1}
    assert nakadi.unconsumed(subscription_to_orders) == 0


def test_a_consumer_of_nothing_says_so(nakadi):
    """A subscription that does not exist ends the consumer with the broker's message."""
    with pytest.raises(Refused, match="does not exist"), Consumer(nakadi.url, "no-such-id") as consumer:
        read(consumer, 1)


def test_health_and_lag_are_numbers(nakadi, subscription_to_orders):
    """The consumer's health has the open streams, and the numbers of finished and remaining events."""
    with Consumer(nakadi.url, subscription_to_orders, options=QUICK) as consumer:
        for batch in consumer:
            assert sum(consumer.lag().values()) == 300
            health = consumer.health()
            assert health.state == "open"
            assert health.seconds_in_hand >= 0
            batch.done()
            break
        assert consumer.health().events_handled == len(batch)


PROGRAM = """
import sys, time
from nakadi_client import StreamOptions, consume

for batch in consume(sys.argv[1], sys.argv[2], options=StreamOptions(batch_limit=10)):
    print(len(batch), flush=True)
    time.sleep(0.5)
    print("done", flush=True)
print("ended", flush=True)
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
    first = [
        event["n"]
        for batch in consume(nakadi.url, subscription_to_orders, limit=70, options=PATIENT)
        for event in batch.events
    ]
    assert len(first) == 70
    assert nakadi.unconsumed(subscription_to_orders) == 230
    with Consumer(nakadi.url, subscription_to_orders, follow=False, options=PATIENT) as consumer:
        rest = [event["n"] for batch in consumer for event in batch.events]
        assert consumer.health().events_committed == 230
    assert sorted(first + rest) == list(range(300))
    assert list(consume(nakadi.url, subscription_to_orders, follow=False)) == []


def test_a_consumer_that_does_not_follow_ends_while_events_keep_coming(nakadi, subscription_to_orders):
    """A consumer that does not follow ends after the events that existed at its beginning, and perhaps some
    later ones.
    """
    numbers = []
    for batch in consume(nakadi.url, subscription_to_orders, follow=False, options=PATIENT):
        numbers += [event["n"] for event in batch.events]
        # Each batch has successors, so the log never ends.
        publish(nakadi, range(len(numbers) + 1000, len(numbers) + 1010))
        assert len(numbers) < 1000
    assert set(range(300)) <= set(numbers)


def test_a_consumer_that_is_aborted_commits_nothing(nakadi, subscription_to_orders):
    """After an abort, the current batch and the handled, uncommitted ones come again, and the consumer reports no
    trouble.
    """
    told = []
    with Consumer(
        nakadi.url, subscription_to_orders, commit=CommitPolicy(seconds=15.0), options=LATE, on_trouble=told.append
    ) as consumer:
        for number, batch in enumerate(consumer):
            assert batch.events
            if number == 1:
                consumer.abort()
    assert told == []
    assert nakadi.unconsumed(subscription_to_orders) == 300


def test_a_broker_that_is_not_there_is_told_and_given_up(nakadi, subscription_to_orders):
    """The consumer reports each failure in the loop's thread, and raises the last error when its patience ends."""
    with Network(nakadi.url) as network:
        network.go_down()
        told = []

        def stop_at_third(trouble):
            told.append(trouble)
            if len(told) == 3:
                consumer.stop()

        with Consumer(network.url, subscription_to_orders, on_trouble=stop_at_third) as consumer:
            assert list(consumer) == []
        with pytest.raises(NoAnswer):
            list(consume(network.url, subscription_to_orders, patience=Patience(without_answer=0)))
    failures = [trouble.failures for trouble in told]
    assert failures == sorted(failures)
    assert all(isinstance(trouble.error, NoAnswer) for trouble in told)


@pytest.mark.parametrize("kind", [Consumer, aio.Consumer])
def test_what_cannot_be_made_leaves_nothing_open(kind):
    """A model that cannot be decoded is refused before connections are opened."""

    class PoolCountingConnection(Connection):
        pools = 0

        def client(self):
            self.pools += 1
            return super().client()

        def async_client(self):
            self.pools += 1
            return super().async_client()

    connection = PoolCountingConnection("http://broker.test")
    with pytest.raises(TypeError):
        kind(connection, "subscription", model=list[int] | set[int])
    assert connection.pools == 0

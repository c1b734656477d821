"""With all faults at once, in a random order, no event is lost, and only uncommitted events are handled twice."""

from __future__ import annotations

import random
import threading
from collections import Counter
from itertools import count, islice

import httpx
import pytest

from nakadi_client import Connection, Consumer, Limits, Producer, StreamOptions, key_at
from nakadi_client.testing import LocalNakadi, Network
from tests.support.everything import SEED, choose_by_suite
from tests.support.patience import PATIENCE, until

PARTITIONS = 3
OPTIONS = StreamOptions(commit_timeout=2, batch_limit=20, max_uncommitted_events=200)
EVENT_TYPE = {"partition_strategy": "hash", "partition_key_fields": ["key"]}


class Gateway:
    """A proxy before a broker; the proxy answers a given number of the next requests with 503."""

    def __init__(self, url):
        self.url, self.refusals = url, 0

    def connection(self):
        return Connection(self.url, transport=_FaultyTransport(self))


class _FaultyTransport(httpx.HTTPTransport):
    def __init__(self, gateway):
        super().__init__()
        self._gateway = gateway

    def handle_request(self, request):
        if self._gateway.refusals > 0:
            self._gateway.refusals -= 1
            return httpx.Response(503, headers={"Retry-After": "0"})
        return super().handle_request(request)


class ConsumerGroup:
    """Consumers of one subscription that come and go, with the events that they have handled, in order."""

    def __init__(self, nakadi, gateway):
        self.nakadi, self._gateway = nakadi, gateway
        self.subscription = nakadi.subscribe("order")
        self.handled = []
        self._members = []
        self._marks = []
        self.reconnects = self.commits_lost = self.hand_overs = 0

    def join(self):
        consumer = Consumer(self._gateway.connection(), self.subscription, options=OPTIONS, stop_on_signals=False)
        thread = threading.Thread(target=self._work, args=(consumer,), daemon=True)
        thread.start()
        self._members.append((consumer, thread))

    def leave(self):
        consumer, thread = self._members.pop(0)
        consumer.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        health = consumer.health()
        self.reconnects += health.reconnects
        self.commits_lost += health.commits_lost
        consumer.close()

    def hand_over(self):
        """Let another consumer join, and the oldest one leave."""
        self.join()
        self.leave()
        self.hand_overs += 1

    def close(self):
        while self._members:
            self.leave()

    def remember_commits(self):
        """Remember the current commits: streams that begin later must not send the committed events again."""
        committed = self.nakadi.committed(self.subscription)
        self._marks.append((committed, {stream for stream, *_ in list(self.handled)}))

    def numbers(self):
        return [n for *_, numbers in list(self.handled) for n in numbers]

    def committed_and_handled_again(self):
        return [
            (place, offset)
            for committed, known in self._marks
            for stream, place, offset, _ in self.handled
            if stream not in known and offset <= committed.get(place, "")
        ]

    def _work(self, consumer):
        for batch in consumer:
            numbers = [event["n"] for event in batch]
            self.handled.append((batch.stream_id, batch.cursor.place, batch.offset, numbers))


@pytest.fixture
def nakadi():
    with LocalNakadi() as nakadi:
        nakadi.create_event_type("order", partitions=PARTITIONS, **EVENT_TYPE)
        yield nakadi


def test_every_fault_at_once(nakadi, record_property):
    """Parts of batches fail (207), a gateway is overloaded (503), reads are throttled, answers get lost, lines are cut
    off, and consumers change. Every event is acknowledged and handled. It is stored twice only if its report says so,
    and a stream sends nothing that was committed before it began.
    """
    rng = random.Random(SEED)
    faults = nakadi.faults
    numbers = count()
    limits = Limits(batch_events=20, in_flight=2, linger=0.005)
    deliveries = []
    with Network(nakadi.url) as network:
        gateway = Gateway(network.url)
        group = ConsumerGroup(nakadi, gateway)
        group.join()
        kinds = {
            "207": lambda: faults.refuse(partition=str(rng.randrange(PARTITIONS)), times=rng.randint(1, 3)),
            "503": lambda: setattr(gateway, "refusals", rng.randint(1, 5)),
            "throttled": lambda: faults.throttle(times=rng.randint(1, 3)),
            "timed out": lambda: faults.time_out(partition=str(rng.randrange(PARTITIONS))),
            "reads throttled": lambda: faults.throttle_reads(times=rng.randint(1, 3)),
            "torn": lambda: network.cut_after(rng.randrange(3_000)),
            "cut": network.cut,
            "hand-over": group.hand_over,
        }
        done = Counter()
        with Producer(
            gateway.connection(), "order", key=key_at("key"), limits=limits, stop_on_signals=False
        ) as producer:
            for _ in range(choose_by_suite(3, 40)):
                for name in rng.sample(sorted(kinds), len(kinds)):
                    seen = len(group.handled)
                    deliveries += [producer.send({"n": n, "key": str(n % 7)}) for n in islice(numbers, 60)]
                    kinds[name]()
                    done[name] += 1
                    until(lambda seen=seen: len(group.handled) > seen)
                    group.remember_commits()
            network.heal()
            assert producer.flush(PATIENCE)
        outcomes = [delivery.result(0) for delivery in deliveries]
        until(lambda: set(group.numbers()) == set(range(len(outcomes))))
        until(lambda: nakadi.unconsumed(group.subscription) == 0)
        group.close()

    stored = Counter(event["n"] for event in nakadi.events("order"))
    assert set(stored) == set(range(len(outcomes)))
    assert not [n for n, times in stored.items() if times > 1 and not outcomes[n].maybe_doubled]
    assert group.committed_and_handled_again() == []
    again = len(group.numbers()) - sum(stored.values())
    record_property(
        "figures",
        f"faults {dict(done)} acknowledged {len(outcomes)} lost 0 stored twice {sum(stored.values()) - len(stored)}"
        f" handled again {again} reconnects {group.reconnects} commits lost {group.commits_lost}",
    )

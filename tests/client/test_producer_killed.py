"""A broker is killed repeatedly while a producer and a consumer continue."""

from __future__ import annotations

import random
import re
import sys
import threading
import time
from collections import Counter, defaultdict
from contextlib import ExitStack

import httpx
import pytest

from nakadi_client import Consumer, Limits, Producer, StreamOptions, key_at
from nakadi_client.testing import Network
from tests.support.everything import SEED, choose_by_suite
from tests.support.patience import PATIENCE, until
from tests.support.processes import run_process

EVENT_TYPE = {
    "name": "killed",
    "owning_application": "tests",
    "category": "business",
    "enrichment_strategies": ["metadata_enrichment"],
    "schema": {"type": "json_schema", "schema": "{}"},
    "partition_strategy": "hash",
    "partition_key_fields": ["key"],
    "default_statistic": {
        "messages_per_minute": 1,
        "message_size": 1,
        "read_parallelism": 3,
        "write_parallelism": 3,
    },
}


class BrokerProcess:
    """A broker's process, from its start until it is killed, on the data of its predecessors."""

    def __init__(self, folder):
        self._stack = ExitStack()
        command = [sys.executable, "-m", "nakadi.local", "--port=0", f"--data={folder}"]
        log = self._stack.enter_context((folder / "log").open("a"))
        self._process = self._stack.enter_context(run_process(command, log=log))
        greeting = ""
        while not (found := re.search(r"http://127\.0\.0\.1:\d+", greeting)):
            line = self._process.stdout.readline()
            assert line, greeting
            greeting += line
        self.url = found[0]

    def kill(self):
        self._process.kill()
        self._stack.close()


@pytest.mark.long("tests/client/test_consumer.py::test_a_broker_that_restarts_loses_nothing")
def test_nothing_that_was_acknowledged_is_lost(tmp_path, record_property):
    """Every acknowledged event is stored and consumed, in the order of its key; the report of an event says if a
    copy is possible.
    """
    rng = random.Random(SEED)
    kills = choose_by_suite(3, 40)
    life = BrokerProcess(tmp_path)
    httpx.post(f"{life.url}/event-types", json=EVENT_TYPE, timeout=PATIENCE).raise_for_status()
    subscription = httpx.post(
        f"{life.url}/subscriptions",
        json={"owning_application": "tests", "event_types": ["killed"], "read_from": "begin"},
        timeout=PATIENCE,
    ).json()["id"]
    read = []
    with Network(life.url) as network:
        options = StreamOptions(commit_timeout=3, batch_limit=50)
        consumer = Consumer(network.url, subscription, options=options, stop_on_signals=False)

        def work():
            for batch in consumer:
                read.extend((event["key"], event["n"]) for event in batch)

        working = threading.Thread(target=work, daemon=True)
        working.start()
        limits = Limits(batch_events=20, in_flight=2, linger=0.005)
        with Producer(network.url, "killed", key=key_at("key"), limits=limits, stop_on_signals=False) as producer:
            deliveries = {}
            ended = threading.Event()

            def send():
                while not ended.is_set():
                    n = len(deliveries)
                    deliveries[n] = producer.send({"key": str(n % 11), "n": n})
                    time.sleep(0.001)

            sending = threading.Thread(target=send, daemon=True)
            sending.start()
            for _ in range(kills):
                count = len(read)
                until(lambda count=count: len(read) > count)
                time.sleep(rng.random() * 0.3)
                life.kill()
                life = BrokerProcess(tmp_path)
                network.lead_to(life.url)
            ended.set()
            sending.join()
            assert producer.flush(PATIENCE)
        until(lambda: {n for _, n in read} >= set(deliveries))
        consumer.stop()
        working.join(PATIENCE)
        assert not working.is_alive()
        assert sum(consumer.lag().values()) == 0
        health = consumer.health()
        consumer.close()
    life.kill()

    outcomes = {n: delivery.result(0) for n, delivery in deliveries.items()}
    first = defaultdict(list)
    for key, n in dict.fromkeys(read):
        first[key].append(n)
    assert all(numbers == sorted(numbers) for numbers in first.values())
    again = sum(count - 1 for count in Counter(n for _, n in read).values())
    doubtful = sum(outcome.maybe_doubled for outcome in outcomes.values())
    record_property(
        "figures",
        f"kills {kills} acknowledged {len(outcomes)} lost 0 maybe doubled {doubtful} read again {again}"
        f" reconnects {health.reconnects}",
    )

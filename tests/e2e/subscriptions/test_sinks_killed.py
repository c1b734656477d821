"""A broker's processes are killed repeatedly while it delivers to many sinks."""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter, defaultdict
from contextlib import ExitStack, suppress
from uuid import UUID

import httpx
import pytest

from tests.support.api import a_business_definition, create_event_type
from tests.support.everything import SEED, choose_by_suite
from tests.support.patience import PATIENCE, until
from tests.support.receiver import ON_LOOPBACK_VARIABLES, Receiver, a_sink
from tests.support.subscriptions import create_subscription
from tests.support.workers import BrokerProgram, start_broker

SINKS = 20
SINKS_IN_ORDER = 10
PARTITIONS = 2
EVENTS_A_ROUND = 60


class Deliveries:
    """The offsets of the deliveries that each sink has got, by partition and in order. For a sink that gets events by
    key, the numbers of each key have to come in order; if a number was published twice, the first one counts.
    """

    def __init__(self, receiver):
        self._receiver = receiver
        self._read = 0
        self.seen = defaultdict(lambda: -1)
        self.seen_by_key = defaultdict(dict)
        self.repeated = Counter()
        self.count = 0
        # The committed offset of each partition by sink at some moment, and the number of deliveries until then.
        self._committed = {}
        self._until = 0

    def note_commits(self, committed):
        """Note the committed offset of each sink and partition: from now on, no committed event may come again."""
        self.read()
        self._committed = committed
        self._until = len(self._receiver.received)

    def read(self):
        """Check the deliveries since the last call: each continues where the one before ended, or repeats events."""
        received = self._receiver.received
        while self._read < len(received):
            each = received[self._read]
            self._read += 1
            body = json.loads(each.body)
            self.count += 1
            self._check_not_committed(each.headers["x-sink"], body["cursor"])
            if "x-by-key" in each.headers:
                self._read_by_key(each.headers["x-sink"], body["events"])
                continue
            place = (each.headers["x-sink"], body["cursor"]["partition"])
            last = offset_of(body["cursor"])
            first = last - len(body["events"]) + 1
            assert first <= self.seen[place] + 1, f"{place} got {first} after {self.seen[place]}"
            self.repeated[place] += max(0, min(last, self.seen[place]) - first + 1)
            self.seen[place] = max(self.seen[place], last)

    def _check_not_committed(self, sink, cursor):
        if self._read > self._until:
            committed = self._committed.get((sink, cursor["partition"]), -1)
            assert offset_of(cursor) > committed, f"{sink} got {cursor} again, which was committed up to {committed}"

    def _read_by_key(self, sink, events):
        for each in events:
            numbers = self.seen_by_key[sink, each["key"]]
            newest = next(reversed(numbers), -1)
            assert each["n"] > newest or each["n"] in numbers, f"{sink} got {each['n']} after {newest}"
            self.repeated[sink] += each["n"] in numbers
            numbers[each["n"]] = True

    def numbers_by_key(self, sink):
        return {number for (name, _), numbers in self.seen_by_key.items() if name == sink for number in numbers}


def offset_of(cursor):
    """The number in an offset; it is -1 before the first event."""
    return int(cursor["offset"].split("-", 2)[2])


class Brokers:
    """A broker of several processes, which is restarted on its data when all of them were killed."""

    def __init__(self, folder, stack):
        self._folder = folder
        self._stack = stack
        self._number = 0
        self.program: BrokerProgram
        self.start()

    def start(self):
        self._number += 1
        log = self._stack.enter_context((self._folder / f"log-{self._number}").open("w"))
        broker = start_broker(self._folder / "data", ON_LOOPBACK_VARIABLES, log, processes=3)
        self.program = self._stack.enter_context(broker)

    def restart_if_ended(self):
        """Restart the broker if it has ended: it gives up if its workers are killed too often."""
        if self.program.process.poll() is not None:
            self.start()

    def kill_one(self, rng):
        with suppress(ProcessLookupError):
            os.kill(rng.choice(self.program.workers), signal.SIGKILL)

    def kill_all(self):
        processes = [self.program.process.pid, *self.program.workers]
        for each in processes:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        self.program.process.wait(PATIENCE)
        self.start()


def publish_patiently(brokers, name, numbers):
    """Publish until there is an answer: events may be stored twice, which does not matter here."""
    metadata = {"occurred_at": "2026-01-01T00:00:00Z", "eid": str(UUID(int=0))}
    events = [{"key": str(number % 7), "n": number, "metadata": metadata} for number in numbers]

    def is_published():
        try:
            answer = httpx.post(f"{brokers.program.url}/event-types/{name}/events", json=events, timeout=PATIENCE)
        except httpx.TransportError:
            brokers.restart_if_ended()
            return False
        return answer.status_code == 200

    until(is_published)


def committed_by_sinks(brokers, subscriptions):
    """The committed offset of each partition by sink, without the commits whose answers were lost."""
    committed = {}
    for sink, subscription in subscriptions.items():
        try:
            answer = httpx.get(f"{brokers.program.url}/subscriptions/{subscription}/cursors", timeout=PATIENCE)
        except httpx.TransportError:
            brokers.restart_if_ended()
            continue
        if answer.status_code == 200:
            committed |= {(sink, each["partition"]): offset_of(each) for each in answer.json()["items"]}
    return committed


@pytest.mark.long("tests/e2e/subscriptions/test_sinks.py::test_sinks_are_spread_over_workers_and_taken_over")
def test_nothing_is_lost_or_reordered_by_processes_that_are_killed(tmp_path, record_property):
    """However often processes are killed, only uncommitted events come again, in the order of their partitions or
    keys. (X11, X31, X32, X33, X60, X61)
    """
    rng = random.Random(SEED)
    kills = choose_by_suite(10, 50)
    with ExitStack() as stack:
        receiver = stack.enter_context(Receiver())
        brokers = Brokers(tmp_path, stack)
        deliveries = Deliveries(receiver)
        statistic = {"messages_per_minute": 1, "message_size": 1}
        statistic |= {"read_parallelism": PARTITIONS, "write_parallelism": PARTITIONS}
        definition = a_business_definition(
            partition_strategy="hash", partition_key_fields=["key"], default_statistic=statistic
        )
        subscriptions = {}
        with httpx.Client(base_url=brokers.program.url, timeout=PATIENCE) as api:
            name = create_event_type(api, definition)["name"]
            for number in range(SINKS):
                subscription = create_subscription(api, name, read_from="begin", consumer_group=str(number))
                sink = a_sink(receiver, headers={"x-sink": str(number)}, batch_limit=3, max_in_flight=2)
                if number >= SINKS_IN_ORDER:
                    sink |= {
                        "headers": {"x-sink": str(number), "x-by-key": "yes"},
                        "parallel": "key",
                        "max_in_flight": 5,
                    }
                api.put(f"/subscriptions/{subscription['id']}/sink", json=sink).raise_for_status()
                subscriptions[str(number)] = subscription["id"]
        for kill in range(kills):
            before = deliveries.count
            publish_patiently(brokers, name, range(kill * EVENTS_A_ROUND, (kill + 1) * EVENTS_A_ROUND))

            def is_delivering(before=before):
                brokers.restart_if_ended()
                deliveries.read()
                return deliveries.count >= before + SINKS

            until(is_delivering)
            deliveries.note_commits(committed_by_sinks(brokers, subscriptions))
            if rng.random() < 0.2:
                brokers.kill_all()
            else:
                brokers.kill_one(rng)
        brokers.restart_if_ended()
        with httpx.Client(base_url=brokers.program.url, timeout=PATIENCE) as api:
            found = api.get(f"/event-types/{name}/partitions").json()
        ends = {each["partition"]: int(each["newest_available_offset"].rsplit("-", 1)[1]) for each in found}
        assert sum(ends.values()) + PARTITIONS >= kills * EVENTS_A_ROUND

        def is_all_delivered():
            deliveries.read()
            in_order = range(SINKS_IN_ORDER)
            return all(
                deliveries.seen[str(sink), partition] == end for sink in in_order for partition, end in ends.items()
            ) and all(
                deliveries.numbers_by_key(str(sink)) == set(range(kills * EVENTS_A_ROUND))
                for sink in range(SINKS_IN_ORDER, SINKS)
            )

        until(is_all_delivered, 3 * PATIENCE)
    record_property("kills", kills)
    record_property("deliveries", deliveries.count)
    record_property("repeated_events", sum(deliveries.repeated.values()))
    print(f"{kills} kills, {deliveries.count} deliveries, {sum(deliveries.repeated.values())} events repeated")

"""Two server processes on one data file share subscriptions, and one takes over when the other is killed."""

import json
import re
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from tests.support.api import create_event_type
from tests.support.consumer import Consumer, owners
from tests.support.parking import PARKING, a_keyed_definition, fail_until_parked, parked_ids, publish_events
from tests.support.patience import PATIENCE, until
from tests.support.processes import ENVIRONMENT
from tests.support.subscriptions import create_subscription, subscribe_from_beginning


@contextmanager
def a_server(folder):
    """A server process, and a client of it."""
    with subprocess.Popen(
        [sys.executable, "-m", "nakadi.local", "--port=0", "--data", str(folder)],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            greeting = ""
            while not (ready := re.search(r"ready at (\S+)", greeting)):
                line = process.stdout.readline()
                assert line, greeting
                greeting += line
            with httpx.Client(base_url=ready[1], timeout=PATIENCE) as api:
                yield process, api
        finally:
            process.kill()


@pytest.fixture
def servers(tmp_path):
    with ExitStack() as both:
        yield [both.enter_context(a_server(tmp_path)) for _ in range(2)]


class ConsumingThread(threading.Thread):
    """Consumes until it is stopped, and opens a new stream whenever one ends."""

    def __init__(self, api, subscription, seen):
        super().__init__(daemon=True)
        self.api, self.subscription, self.seen = api, subscription, seen
        self.stopped = threading.Event()
        self.start()

    def run(self):
        while not self.stopped.is_set():
            try:
                self.consume()
            except httpx.HTTPError:
                self.stopped.wait(0.2)

    def consume(self):
        url = f"/subscriptions/{self.subscription['id']}"
        limits = {"batch_limit": 5, "batch_flush_timeout": 1, "stream_timeout": 120, "commit_timeout": 5}
        with self.api.stream("GET", f"{url}/events", params=limits) as stream:
            stream_id = {"X-Nakadi-StreamId": stream.headers.get("X-Nakadi-StreamId", "")}
            for line in stream.iter_lines():
                if self.stopped.is_set():
                    return
                batch = json.loads(line)
                if "events" in batch:
                    cursor = batch["cursor"]
                    self.seen[cursor["partition"]].append([each["n"] for each in batch["events"]])
                    self.api.post(f"{url}/cursors", json={"items": [cursor]}, headers=stream_id)


def test_killing_one_of_two_servers_loses_nothing(servers):
    """Two processes serve a subscription; one is killed while events flow. Every event comes, in order within its
    partition except for those that are resent, and eventually the other process has all partitions. (S225, S239, S245,
    S312, S315)
    """
    (first, one), (_, two) = servers
    statistic = {"messages_per_minute": 1, "message_size": 1, "read_parallelism": 4, "write_parallelism": 4}
    name = create_event_type(one, default_statistic=statistic)["name"]
    subscription = create_subscription(one, name, read_from="begin")
    seen = defaultdict(list)
    workers = [ConsumingThread(api, subscription, seen) for api in (one, two)]
    until(lambda: len(set(owners(two, subscription).values())) == 2)
    for start in range(0, 200, 10):
        if start == 100:
            first.send_signal(signal.SIGKILL)
        events = [{"n": n} for n in range(start, start + 10)]
        assert two.post(f"/event-types/{name}/events", json=events).status_code == 200
    until(lambda: {n for batches in seen.values() for batch in batches for n in batch} == set(range(200)))
    until(lambda: len(set(owners(two, subscription).values()) - {""}) == 1)
    for worker in workers:
        worker.stopped.set()
    for worker in workers:
        worker.join(PATIENCE)
    for batches in seen.values():
        fresh, reached = [], -1
        for n in (n for batch in batches for n in batch):
            if n > reached:
                fresh.append(n)
                reached = n
        assert set(fresh) == {n for batch in batches for n in batch}, "an event came only after a later one"


def test_parked_events_are_the_same_in_both_processes(servers):
    """An event parked through one process is listed, redriven and sent through the other."""
    (_, one), (_, two) = servers
    name = create_event_type(one, a_keyed_definition())["name"]
    subscription = create_subscription(one, name, read_from="begin", annotations=PARKING)
    publish_events(one, name, "a1", "b1", "a2")
    fail_until_parked(one, subscription, "a1")
    with Consumer(one, subscription, batch_flush_timeout=1) as stream:
        assert [each["event"] for each in stream.consumed(1)] == ["b1"]
        until(lambda: len(parked_ids(two, subscription)) == 2)
        [first, _] = parked_ids(two, subscription)
        assert two.post(f"/subscriptions/{subscription['id']}/parked-events/{first}/redrive").status_code == 204
        assert stream.debug_at_the_end() == ["Resetting subscription cursors"]
    publish_events(one, name, "a3")
    with Consumer(two, subscription) as stream:
        assert [each["event"] for each in stream.consumed(3)] == ["a1", "a2", "a3"]
    until(lambda: parked_ids(one, subscription) == [])


def test_a_stream_is_left_and_extended_through_another_process(servers):
    """Any process may receive a client's request: the process that serves the stream executes it. (S324, S327,
    S330)"""
    (_, one), (_, two) = servers
    subscription = subscribe_from_beginning(one, events=1)
    with Consumer(one, subscription) as stream:
        batch = stream.batch()
        where = f"/subscriptions/{subscription['id']}/streams/{stream.id}"
        assert two.post(f"{where}/extend").status_code == 200
        assert two.delete(where).status_code == 204
        with Consumer(two, subscription) as next_one:
            assert next_one.batch()["events"] == batch["events"]
        assert stream.debug_at_the_end() == []


def test_a_stream_of_a_process_that_died_is_left_too(servers):
    """A stream of a process that died can be left, too; the answer comes at the latest when the lease of the process
    expires. (S327)
    """
    (first, one), (_, two) = servers
    subscription = subscribe_from_beginning(one, events=1)
    with Consumer(one, subscription) as stream:
        batch = stream.batch()
        first.send_signal(signal.SIGKILL)
        first.wait()
        assert two.delete(f"/subscriptions/{subscription['id']}/streams/{stream.id}").status_code == 204
        with Consumer(two, subscription) as next_one:
            assert next_one.batch()["events"] == batch["events"]

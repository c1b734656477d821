"""The program with several processes: which one answers, which one commits, and what survives when one of them is
killed."""

import json
import os
import re
import select
import signal
import socket
import threading
from collections import Counter
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from nakadi.engines.sqlite.coordination import SqliteCoordination
from tests.support import http
from tests.support.alerts import AlertWatch
from tests.support.api import a_definition, create_event_type
from tests.support.consumer import Consumer
from tests.support.metrics import sample_value, scrape
from tests.support.patience import PATIENCE, until
from tests.support.processes import is_listening
from tests.support.subscriptions import create_subscription
from tests.support.workers import program_whose_second_start_hangs, program_with_silence_limits, start_broker

EVENT_TYPE = {
    "name": "kept.thing",
    "owning_application": "me",
    "category": "undefined",
    "schema": {"type": "json_schema", "schema": "{}"},
}
CONTINUE = "Expect: 100-continue"
ESTABLISHED, LISTENING = "01", "0A"
"""The states of connections in Linux's list."""
EVENTS = f"/event-types/{EVENT_TYPE['name']}/events"

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="it asks Linux for its processes")


def count_published(program):
    """The number of published events that the broker reports; 0 if it reports none. Late processes count with their
    last values.
    """
    with httpx.Client(base_url=program.url, timeout=PATIENCE) as api:
        return sample_value(scrape(api), "nakadi_events_published_total", event_type="kept.thing")


def processor_seconds(program):
    with httpx.Client(base_url=program.url, timeout=PATIENCE) as api:
        return sample_value(scrape(api), "process_cpu_seconds_total")


def process_state(process):
    """The state of a process in Linux: "Z" if it has ended but its parent has not waited for it, "" if there
    is none.
    """
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def has_ended(process):
    """Whether a process has ended completely: its first thread may have ended while another one still keeps its
    sockets open.
    """
    try:
        threads = list(Path(f"/proc/{process}/task").iterdir())
    except FileNotFoundError:
        return True
    return len(threads) == 1 and process_state(process) in ("", "Z")


def accepts_waiting(port):
    """The number of connections to a port that are established but not accepted yet; -1 if Linux does not list the
    port, which may happen if the list changes while it is read.
    """
    return max(
        (
            int(fields[4].partition(":")[2], 16)
            for each in Path("/proc/net/tcp").read_text().splitlines()[1:]
            if (fields := each.split())[1].endswith(f":{port:04X}") and fields[3] == LISTENING
        ),
        default=-1,
    )


class Publishers:
    """Clients with a connection each, which publish events with their own name until they are stopped."""

    def __init__(self, url):
        self.acknowledged, self.sent = Counter(), Counter()
        self.hung = []
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._publish, args=(url, number)) for number in range(6)]
        for each in self._threads:
            each.start()

    def _publish(self, url, thread):
        api, number = self._connect(url, thread), 0
        while not self._stopped.is_set():
            name = f"{thread}.{number}"
            number += 1
            self.sent[name] += 1
            try:
                if api.post(EVENTS, json=[{"name": name}]).status_code == 200:
                    self.acknowledged[name] += 1
            except httpx.TimeoutException:
                self.hung.append(name)
            except httpx.TransportError:
                # The connection led to a process that was killed; the next one may lead to another process.
                api.close()
                if not is_listening(httpx.URL(url).port):
                    return
                api = self._connect(url, thread)
        api.close()

    @staticmethod
    def _connect(url, thread):
        """A client. The first process serves publishers of single events, so some clients avoid this pattern, to be
        served by workers.
        """
        api = httpx.Client(base_url=url, timeout=PATIENCE)
        if thread % 3:
            with suppress(httpx.TransportError):
                api.get("/health")
        return api

    def stop(self):
        self._stopped.set()
        for each in self._threads:
            each.join()


def names_in(url):
    """The names of all events, in the order of their offsets."""
    [partition] = http.get(f"{url}/event-types/{EVENT_TYPE['name']}/partitions").json()
    newest = int(partition["newest_available_offset"][-18:])
    cursors = json.dumps([{"partition": "0", "offset": "BEGIN"}])
    found = []
    with httpx.stream("GET", f"{url}{EVENTS}", headers={"X-Nakadi-Cursors": cursors}, timeout=PATIENCE) as stream:
        for line in stream.iter_lines():
            found += [event["name"] for event in json.loads(line).get("events", [])]
            if len(found) > newest:
                break
    return found


def the_partitions_of_killed_workers_are_free(program, data):
    """Clients that reconnect get the partitions of killed workers without waiting for the leases to expire."""
    with client_of_a_worker(program) as api:
        subscription = create_subscription(api, EVENT_TYPE["name"], read_from="begin")
        with (
            closing(SqliteCoordination(data / "nakadi.db")) as coordination,
            # Send this over the client's connection: a new connection might go to the first process, which is not
            # killed.
            api.stream("GET", f"/subscriptions/{subscription['id']}/events") as stream,
        ):
            assert "events" in json.loads(next(stream.iter_lines()))
            assert len(coordination.lease_expiries()) == 1
            killed = set(program.workers)
            for each in killed:
                os.kill(each, signal.SIGKILL)
            until(lambda: not coordination.lease_expiries() and not killed & set(program.workers))
    with httpx.Client(base_url=program.url, timeout=PATIENCE) as api, Consumer(api, subscription) as consumer:
        assert consumer.batch() is not None


def see_each_others_changes(program):
    first, second = (httpx.Client(base_url=program.url, timeout=PATIENCE) for _ in range(2))
    with first, second:
        # The worker with the fewest connections gets the next one, so the two clients have different workers.
        assert first.get("/health").text == second.get("/health").text == "OK"
        assert first.post("/event-types", json=EVENT_TYPE).status_code == 201
        assert second.post(EVENTS, json=[{"name": "second"}]).status_code == 200
        assert first.post(EVENTS, json=[{"name": "first"}]).status_code == 200
        for owner in ("you", "them", "me"):
            assert first.put("/event-types/kept.thing", json={**EVENT_TYPE, "owning_application": owner}).is_success
            assert second.get("/event-types/kept.thing").json()["owning_application"] == owner
    until(lambda: count_published(program) == 2)


def get_answers_while_a_worker_leaves(program):
    """An ending worker finishes its requests, and gets no new connections meanwhile."""
    address = ("127.0.0.1", httpx.URL(program.url).port)
    with ExitStack() as stack:
        begun, idle = (
            [stack.enter_context(socket.create_connection(address, PATIENCE)) for _ in range(4)] for _ in "12"
        )
        for each in begun:
            each.sendall(
                f"POST {EVENTS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20000\r\n{CONTINUE}\r\n\r\n".encode()
            )
            assert each.recv(100).startswith(b"HTTP/1.1 100 Continue")
        leaving = program.workers[0]
        os.kill(leaving, signal.SIGTERM)
        # The worker closes its idle connections once the supervisor knows of its end.
        assert select.select(idle, [], [], PATIENCE)[0]
        for _ in range(6):
            assert http.get(f"{program.url}/health").text == "OK"
    until(lambda: leaving not in (there := program.workers) and len(there) == 2)


def forget_deleted_event_types(program):
    """When any worker deletes an event type, the others drop its counts."""
    with ExitStack() as stack:
        clients = [stack.enter_context(httpx.Client(base_url=program.url, timeout=PATIENCE)) for _ in range(4)]
        create_event_type(clients[0], a_definition(name="gone.with-its-figures"))
        for each in clients:
            assert each.post("/event-types/gone.with-its-figures/events", json=[{}]).status_code == 200
        assert "gone.with-its-figures" in clients[0].get("/metrics").text
        assert clients[0].delete("/event-types/gone.with-its-figures").status_code == 200
        until(lambda: not any("gone.with-its-figures" in each.get("/metrics").text for each in clients))


def serve_the_names_of_the_machine(program):
    """Workers know the address that the supervisor is bound to. (R290)"""
    statuses = [
        httpx.get(f"{program.url}/health", headers={"Host": host}, timeout=PATIENCE).status_code
        for host in ("localhost", "evil.example")
    ]
    assert statuses == [200, 421]


def be_served_when_all_workers_have_died(program):
    """The first process accepts connections before it sees that every worker has died: some process serves them."""
    workers = program.workers
    program.process.send_signal(signal.SIGSTOP)
    until(lambda: process_state(program.process.pid) == "T")
    with requests_over_connections(program) as connections:
        for each in workers:
            os.kill(each, signal.SIGKILL)
        until(lambda: all(map(has_ended, workers)))
        program.process.send_signal(signal.SIGCONT)
        for each in connections:
            assert each.recv(100).startswith(b"HTTP/1.1 200 OK")
    wait_until_workers_serve(program)


def be_served_by_another_than_the_worker_that_was_handed_it(program):
    """If a worker dies before it takes a connection that was handed to it, the connection goes to another process."""
    workers, port = program.workers, httpx.URL(program.url).port
    for each in workers:
        os.kill(each, signal.SIGSTOP)
    until(lambda: all(process_state(each) == "T" for each in workers))
    with requests_over_connections(program) as connections:
        until(lambda: accepts_waiting(port) == 0)
        for each in workers:
            os.kill(each, signal.SIGKILL)
        for each in connections:
            assert each.recv(100).startswith(b"HTTP/1.1 200 OK")
    wait_until_workers_serve(program)


@contextmanager
def requests_over_connections(program):
    """More connections than there are processes, so that each process gets one, with a request on each."""
    address = ("127.0.0.1", httpx.URL(program.url).port)
    with ExitStack() as stack:
        connections = [stack.enter_context(socket.create_connection(address, PATIENCE)) for _ in range(6)]
        for each in connections:
            each.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        yield connections


def wait_until_workers_serve(program):
    """Open connections until each of two workers has taken one."""
    address, taken_by = ("127.0.0.1", httpx.URL(program.url).port), set()
    with ExitStack() as stack:

        def has_each_taken_one():
            connection = stack.enter_context(socket.create_connection(address, PATIENCE))
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 200 OK")
            taken_by.update(each for each in program.workers if holds_other_end(each, connection))
            return len(taken_by.intersection(program.workers)) == 2

        until(has_each_taken_one)


@contextmanager
def client_of_a_worker(program):
    """A client whose requests, as long as they do not overlap, all go to one of the workers."""
    with ExitStack() as stack:
        while True:
            client = stack.enter_context(httpx.Client(base_url=program.url, timeout=PATIENCE))
            connection = client.get("/health").extensions["network_stream"].get_extra_info("socket")
            if any(holds_other_end(each, connection) for each in program.workers):
                break
        yield client


def holds_other_end(process, connection):
    """Whether a process has the server's end of a connection, by the number that Linux gives to its socket."""
    ends = (f":{connection.getpeername()[1]:04X}", f":{connection.getsockname()[1]:04X}")
    sockets: set[str] = set()

    def is_listed():
        # Linux may list a connection twice, or not at all, if the list changes while it is read. The list also has
        # earlier connections with the same ports, in another state.
        lines = [each.split() for each in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        sockets.update(
            f"socket:[{each[9]}]"
            for each in lines
            if each[3] == ESTABLISHED and each[1].endswith(ends[0]) and each[2].endswith(ends[1])
        )
        return sockets

    until(is_listed)
    with suppress(OSError):
        for each in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):
                if str(each.readlink()) in sockets:
                    return True
    return False


def outlive_a_worker(program, publishers):
    """A killed worker is restarted, which an alert reports.

    Its counts at the last reading of metrics stay in the sums.
    """
    until(lambda: len(publishers.acknowledged) > 10 and count_published(program) > 10)
    counted, used = count_published(program), processor_seconds(program)
    with httpx.Client(base_url=program.url, timeout=PATIENCE) as api:
        before = AlertWatch(api)
        restarts = sample_value(scrape(api), "nakadi_worker_restarts_total")
        killed = program.workers[0]
        os.kill(killed, signal.SIGKILL)
        until(lambda: killed not in (there := program.workers) and len(there) == 2)
    with httpx.Client(base_url=program.url, timeout=PATIENCE) as api:
        until(lambda: sample_value(scrape(api), "nakadi_worker_restarts_total") == restarts + 1)
        before.api = api
        assert before.fires("NakadiWorkersDie")
        assert not AlertWatch(api).fires("NakadiWorkersDie")
    seen = len(publishers.acknowledged)
    until(lambda: len(publishers.acknowledged) > seen + 10)
    assert count_published(program) >= counted
    assert processor_seconds(program) >= used


def be_served_by_the_process_that_suits_them(program):
    """The process that commits serves publishers of single events. A client that publishes larger batches continues in
    another process, on the same connection.
    """
    with ExitStack() as stack:
        clients = [stack.enter_context(httpx.Client(base_url=program.url, timeout=PATIENCE)) for _ in range(6)]

        def count_served_by_first(events):
            answers = [each.post(EVENTS, json=events) for each in clients]
            assert {each.status_code for each in answers} == {200}
            connections = [each.extensions["network_stream"].get_extra_info("socket") for each in answers]
            return sum(holds_other_end(program.process.pid, each) for each in connections)

        assert count_served_by_first([{"name": "moving"}]) == 6
        until(lambda: count_served_by_first([{"name": "moving", "text": "x" * 20_000}]) < 4)
        ports = [each.get("/health").extensions["network_stream"].get_extra_info("client_addr") for each in clients]
        assert count_served_by_first([{"name": "moving"}]) < 4
        assert ports == [
            each.get("/health").extensions["network_stream"].get_extra_info("client_addr") for each in clients
        ]


def end_with_the_process_that_commits(program, publishers):
    """If the process that commits ends, its workers end by themselves."""
    workers = program.workers
    program.process.kill()
    until(lambda: all(map(has_ended, workers)))
    publishers.stop()
    _, said = program.process.communicate(timeout=PATIENCE)
    assert len(re.findall(r"Worker \d ended with -9 and is being restarted", said)) == 7, said
    assert publishers.hung == []


def test_nothing_is_lost_whichever_process_is_killed(tmp_path):
    """Two workers share commits and see each other's changes at once. One worker is killed, then both, then the
    process that commits: after the next start, all acknowledged events are stored, and none is stored twice."""
    with start_broker(tmp_path, processes=3) as program:
        serve_the_names_of_the_machine(program)
        forget_deleted_event_types(program)
        see_each_others_changes(program)
        be_served_by_the_process_that_suits_them(program)
        get_answers_while_a_worker_leaves(program)
        be_served_when_all_workers_have_died(program)
        be_served_by_another_than_the_worker_that_was_handed_it(program)
        publishers = Publishers(program.url)
        try:
            outlive_a_worker(program, publishers)
            the_partitions_of_killed_workers_are_free(program, tmp_path)
            end_with_the_process_that_commits(program, publishers)
        finally:
            publishers.stop()
    with start_broker(tmp_path, processes=3) as program:
        names = Counter(names_in(program.url))
        assert publishers.acknowledged.keys() - names.keys() == set()
        moving = names.pop("moving")
        assert moving > 12
        assert set(names.values()) == {1}
        assert names.keys() - publishers.sent.keys() == {"first", "second"}
        assert program.end() == (0, "")


def continue_process(process):
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGCONT)


@pytest.mark.long("tests/unit/local/test_heartbeats.py::test_a_silent_worker_is_noticed_and_then_ended")
def test_a_worker_that_hangs_is_noticed_and_replaced(tmp_path):
    """A stopped worker is noticed and killed, and another takes its place. Requests that it was handed and did not
    take get their answers from another process. The metrics name the silent worker, count its end, and fire the alert.
    """
    limits = program_with_silence_limits(until_noticed=3, until_ended=12)
    with start_broker(tmp_path, processes=2, program=limits) as program, ExitStack() as stack:
        [hanging] = program.workers
        # The process that commits serves the publisher, whose connection is kept.
        api = stack.enter_context(httpx.Client(base_url=program.url, timeout=PATIENCE))
        assert api.post("/event-types", json=EVENT_TYPE).status_code == 201
        assert sample_value(scrape(api), "nakadi_processes_expected") == 2
        watch = AlertWatch(api)
        # If this test fails, the worker must not stay behind: once it runs, it ends with the broker.
        stack.callback(continue_process, hanging)
        os.kill(hanging, signal.SIGSTOP)
        waiting = [stack.enter_context(httpx.Client(base_url=program.url, timeout=PATIENCE)) for _ in range(4)]
        statuses = []
        threads = [
            threading.Thread(target=lambda each=each: statuses.append(each.get("/health").status_code))
            for each in waiting
        ]
        for each in threads:
            each.start()

        until(lambda: sample_value(scrape(api), "nakadi_process_silent_seconds", process=str(hanging)) >= 3)
        until(lambda: has_ended(hanging))
        until(lambda: sample_value(scrape(api), "nakadi_worker_restarts_total") >= 1)
        for each in threads:
            each.join()
        assert statuses == [200] * 4
        assert watch.fires("NakadiWorkersDie")
        until(lambda: program.workers not in ([], [hanging]))
        _, said = program.end()
        assert re.search(rf"Worker 1 \(pid {hanging}\) has not answered for \d+ s, and gets no new connections", said)
        assert re.search(rf"Worker 1 \(pid {hanging}\) has not answered for \d+ s and is being killed", said)
        assert "Worker 1 ended with -9 and is being restarted" in said


def test_a_worker_that_hangs_while_it_starts_is_replaced(tmp_path):
    """A worker that does not begin to serve in time is killed, and another is started in its place."""
    with start_broker(tmp_path, processes=2, program=program_whose_second_start_hangs()) as program:
        [first] = program.workers
        os.kill(first, signal.SIGKILL)
        with httpx.Client(base_url=program.url, timeout=PATIENCE) as api:
            until(lambda: sample_value(scrape(api), "nakadi_worker_restarts_total") >= 2)
        until(lambda: program.workers not in ([], [first]))
        code, said = program.end()
    assert code == 0, said
    [hanging] = re.findall(r"Worker 1 \(pid (\d+)\) has not begun to serve within \d+ s and is being killed", said)
    assert int(hanging) != first

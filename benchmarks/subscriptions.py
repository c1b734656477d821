"""What are the throughput, latency and number of subscription streams over a loopback socket, with commits?

    python benchmarks/subscriptions.py [throughput] [commits] [takeover] [idle] [projection] [--engine memory|sqlite]
                                       [--quick] [--json FILE]

The server runs in its own process, and all clients in another. Consuming is compared with low-level streams of the
same server in the same run: as many clients read the same partitions with the same code, but do not commit.
"""

from __future__ import annotations

import os
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from benchmarks.asking import Figures, answer_questions
from benchmarks.consuming import (
    BATCH,
    COMMIT_SECONDS,
    CURSOR,
    LONGEST_CURSOR,
    NAME,
    ORDER_SCHEMA,
    PARTITIONS,
    Consumer,
    Server,
    a_place,
    a_server,
    an_order,
    connection_to,
    consume_all,
    create_event_type,
    numbers,
    send_post,
)
from benchmarks.stream import connect, cpu_of, drain, memory_of, raise_file_limit


def measure_throughput(engine: str, *, quick: bool) -> Figures:
    """Stream old events from eight partitions to one session, to four and to eight, in batches of 100."""
    each = 5_000 if quick else 20_000
    rounds = 3 if quick else 7
    events = {"": each, "newest": each, "each": each // 4}
    figures: Figures = {}
    with a_place(engine) as place, a_server(place) as server:
        server.fill(each)
        for sessions in (1, 4, 8):
            # One after the other, so that a ratio compares figures of the same moment.
            found = [[measure_consumption(server, sessions, events[way], way) for way in events] for _ in range(rounds)]
            low, newest, every = ([round_[way] for round_ in found] for way in range(3))
            label = f"consume_{sessions}"
            figures |= {
                f"{label}_low_level_events_s": statistics.median(each.events_s for each in low),
                f"{label}_low_level_cpu_us": statistics.median(each.cpu_us for each in low),
                f"{label}_events_s": statistics.median(each.events_s for each in newest),
                f"{label}_cpu_us": statistics.median(each.cpu_us for each in newest),
                f"{label}_of_low_level": statistics.median(
                    ours.events_s / floor.events_s for ours, floor in zip(newest, low, strict=True)
                ),
                f"{label}_commits_s": statistics.median(each.commits_s for each in newest),
                f"{label}_each_batch_committed_events_s": statistics.median(each.events_s for each in every),
                f"{label}_each_batch_committed_cpu_us": statistics.median(each.cpu_us for each in every),
            }
    return figures


@dataclass(frozen=True, slots=True)
class Consumption:
    """The result of consuming; `cpu_us` is the server's CPU time per event."""

    events_s: float
    commits_s: float
    cpu_us: float


def measure_consumption(server: Server, sessions: int, events: int, commits: str, **fields: Any) -> Consumption:
    subscription = server.subscribe(**fields) if commits else ""
    consumers = [
        Consumer(server, range(first, PARTITIONS, sessions), events - 1, commits, subscription)
        for first in range(sessions)
    ]
    cpu = cpu_of(server.pid)
    seconds = consume_all(consumers)
    cpu = cpu_of(server.pid) - cpu
    requests = sum(each.requests for each in consumers)
    return Consumption(PARTITIONS * events / seconds, requests / seconds, 1e6 * cpu / (PARTITIONS * events))


PROJECTIONS: dict[str, dict[str, Any]] = {
    "all": {},
    "one_member": {"reads": ["order_number"], "projection": True},
    "nested_members": {"reads": ["order_number", "customer.id", "items.sku"], "projection": True},
}


def measure_projection(engine: str, *, quick: bool) -> Figures:
    """Consume events of a kilobyte, all of each or declared members only, and commit each batch of 100; in alternating
    rounds.
    """
    each, rounds = (2_000, 3) if quick else (10_000, 15)
    figures: Figures = {"projection_event_bytes": len(an_order(0))}
    with a_place(engine) as place, a_server(place, "") as server:
        create_event_type(server.url, NAME, ORDER_SCHEMA)
        server.fill(each, orders=True)
        for way in ("each", "newest"):
            cpu: dict[str, list[float]] = {name: [] for name in PROJECTIONS}
            for _ in range(rounds):
                for name, fields in PROJECTIONS.items():
                    cpu[name].append(measure_consumption(server, 1, each, way, **fields).cpu_us)
            medians = {name: statistics.median(found) for name, found in cpu.items()}
            for name, median in medians.items():
                figures |= {
                    f"projection_{way}_{name}_cpu_us": median,
                    f"projection_{way}_{name}_of_all": median / medians["all"],
                }
    return figures


def measure_commits(engine: str, *, quick: bool) -> Figures:
    """Commit one after the other on one connection, and on eight at once, each with an open stream."""
    each = 300 if quick else 2_000
    figures: Figures = {}
    for clients in (1, PARTITIONS):
        with a_place(engine) as place, a_server(place) as server:
            server.fill(each)
            subscription = server.subscribe()
            seconds: list[float] = []
            with ExitStack() as streams:
                committers = [
                    make_committer(server, subscription, partition, each, streams.enter_context)
                    for partition in range(clients)
                ]
                cpu, began = cpu_of(server.pid), time.perf_counter()
                with ThreadPoolExecutor(clients) as threads:
                    for run in [threads.submit(each, seconds) for each in committers]:
                        run.result()
                wall, cpu = time.perf_counter() - began, cpu_of(server.pid) - cpu
            seconds.sort()
            figures |= {
                f"commits_{clients}_s": clients * each / wall,
                f"commits_{clients}_p50_ms": 1000 * seconds[len(seconds) // 2],
                f"commits_{clients}_p99_ms": 1000 * seconds[int(len(seconds) * 0.99)],
                f"commits_{clients}_cpu_us": 1e6 * cpu / (clients * each),
            }
    return figures


def make_committer(
    server: Server, subscription: str, partition: int, times: int, keep: Callable[[socket.socket], socket.socket]
) -> Callable[[list[float]], None]:
    """A client that receives all events of a partition, and then commits event by event."""
    body = {
        "batch_limit": BATCH,
        "batch_flush_timeout": 1,
        "max_uncommitted_events": 1_000_000,
        "partitions": [{"event_type": NAME, "partition": str(partition)}],
    }
    stream = keep(send_post(server.url, f"/subscriptions/{subscription}/events", body))
    received = b""
    while b"\r\n\r\n" not in received:
        received += stream.recv(4096)
    found = re.search(rb"x-nakadi-streamid: (\S+)", received, re.IGNORECASE)
    assert found, received
    head = (
        f"POST /subscriptions/{subscription}/cursors HTTP/1.1\r\nHost: localhost\r\n"
        f"X-Nakadi-StreamId: {found[1].decode()}\r\nContent-Type: application/json\r\nContent-Length: "
    )
    while f"{times - 1:018d}".encode() not in received:
        received = received[-LONGEST_CURSOR:] + stream.recv(1 << 20)
    client = keep(connection_to(server.url))

    def run(seconds: list[float]) -> None:
        for number in range(times):
            cursor = f'"partition":"{partition}","offset":"001-0001-{number:018d}","event_type":"{NAME}"'
            content = f'{{"items":[{{{cursor},"cursor_token":"t"}}]}}'
            began = time.perf_counter()
            client.sendall(f"{head}{len(content)}\r\n\r\n{content}".encode())
            answer = client.recv(4096)
            seconds.append(time.perf_counter() - began)
            assert answer.startswith(b"HTTP/1.1 204"), answer

    return run


def measure_takeover(engine: str, *, quick: bool) -> Figures:
    """Measure the time from opening a stream to its first event, and from the end of a stream to the first events of
    the next one.
    """
    figures: Figures = {}
    with a_place(engine) as place, a_server(place) as server:
        server.fill(1000)
        figures |= median_and_maximum(
            "first_event", [seconds_to_first_event(server) for _ in range(3 if quick else 30)]
        )
        idle = [seconds_after_killed_client(server, busy=False) for _ in range(2 if quick else 10)]
        figures |= median_and_maximum("killed_client_to_next_owner", idle)
        busy = [seconds_after_killed_client(server, busy=True) for _ in range(1 if quick else 3)]
        figures |= median_and_maximum(f"killed_client_commit_timeout_{COMMIT_SECONDS}_to_next_owner", busy)
    if engine == "sqlite":
        killed = [seconds_after_killed_server() for _ in range(1 if quick else 3)]
        figures |= median_and_maximum("killed_server_to_next_owner", killed)
    return figures


def median_and_maximum(label: str, seconds: Sequence[float]) -> Figures:
    return {f"{label}_p50_ms": 1000 * statistics.median(seconds), f"{label}_max_ms": 1000 * max(seconds)}


def seconds_to_first_event(server: Server) -> float:
    subscription = server.subscribe()
    began = time.perf_counter()
    with connect(server.url, events_of(subscription)) as client:
        next(partitions_seen(client))
        return time.perf_counter() - began


def events_of(subscription: str, commit_timeout: int = COMMIT_SECONDS) -> str:
    return f"/subscriptions/{subscription}/events?max_uncommitted_events=10000&commit_timeout={commit_timeout}"


def partitions_seen(client: socket.socket) -> Iterator[set[bytes]]:
    """Yield the partitions whose events have arrived, each time that some arrive."""
    rest, found = b"", set[bytes]()
    while True:
        received = client.recv(1 << 20)
        assert received, rest
        rest += received
        cursors = list(CURSOR.finditer(rest))
        found |= {each[2] for each in cursors}
        rest = rest[cursors[-1].end() if cursors else -LONGEST_CURSOR :]
        if cursors:
            yield found


# A client in its own process, to be killed. It reports when its stream opens, and when events arrive.
CLIENT = """
import http.client, sys
host, target = sys.argv[1:]
stream = http.client.HTTPConnection(host)
stream.request("GET", target)
answer = stream.getresponse()
assert answer.status == 200, answer.read()
print("opened", flush=True)
while True:
    line = answer.readline()
    if b'"events"' in line:
        print("got some", flush=True)
"""


def seconds_after_killed_client(server: Server, *, busy: bool) -> float:
    """Kill a client with all eight partitions while another one connects. Measures the time until that client has
    events of all partitions. A busy client has received events without committing them; for an idle one, events arrive
    after its end.
    """
    name = f"{NAME}.{next(numbers)}"
    create_event_type(server.url, name)
    subscription = server.subscribe(name)
    command = [sys.executable, "-c", CLIENT, urlsplit(server.url).netloc, events_of(subscription)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        if busy:
            server.fill(10, name)
            process.stdout.readline()
        process.kill()
        began = time.perf_counter()
    if not busy:
        time.sleep(0.02)
        server.fill(10, name)
    with connect(server.url, events_of(subscription, 60)) as client:
        next(each for each in partitions_seen(client) if len(each) == PARTITIONS)
    return time.perf_counter() - began


def seconds_after_killed_server() -> float:
    """Kill one of two servers that share a file and have a stream each. Measures the time until the other stream has
    all partitions.
    """
    with a_place("sqlite") as place, a_server(place) as staying, a_server(place, "") as leaving:
        subscription = staying.subscribe()
        target = events_of(subscription, 60)
        with connect(staying.url, target) as ours, connect(leaving.url, target):
            wait_until(lambda: len(owners(staying, subscription)) == 2)
            staying.fill(10)
            seen = partitions_seen(ours)
            next(each for each in seen if len(each) == PARTITIONS // 2)
            os.kill(leaving.pid, 9)
            began = time.perf_counter()
            next(each for each in seen if len(each) > PARTITIONS // 2)
            return time.perf_counter() - began


def owners(server: Server, subscription: str) -> set[str]:
    answer = httpx.get(f"{server.url}/subscriptions/{subscription}/stats").raise_for_status()
    [item] = answer.json()["items"]
    settled = all(each["state"] == "assigned" for each in item["partitions"])
    return {each["stream_id"] for each in item["partitions"]} if settled else set()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it is still not so"
        time.sleep(0.01)


def measure_idle_streams(engine: str, *, quick: bool) -> Figures:
    """Open a thousand subscription streams in one process, and let nothing happen."""
    streams = 100 if quick else 1_000
    seconds = 10 if quick else 60
    raise_file_limit()
    with a_place(engine) as place, a_server(place) as server, ExitStack() as open_streams:
        for _ in range(20):  # the first stream creates what all streams share
            open_streams.enter_context(open_stream(server, server.subscribe(read_from="end")))
        subscriptions = [server.subscribe(read_from="end") for _ in range(streams)]
        time.sleep(2)
        before, began = memory_of(server.pid), time.perf_counter()
        clients = [open_streams.enter_context(open_stream(server, each)) for each in subscriptions]
        to_open = time.perf_counter() - began
        time.sleep(5)
        memory = memory_of(server.pid) - before
        cpu, reads = cpu_of(server.pid), drain(clients, seconds)
        cpu = cpu_of(server.pid) - cpu
        began = time.perf_counter()
        server.fill(1)
        drain(clients, 30, wanted=streams)
        to_all = time.perf_counter() - began
    return {
        "idle_subscriptions": streams,
        "idle_open_ms_per_stream": 1000 * to_open / streams,
        "idle_kb_per_stream": memory / streams / 1024,
        "idle_memory_mb": (before + memory) / 1e6,
        "idle_cpu_percent": 100 * cpu / seconds,
        "idle_keep_alives": reads,
        "idle_one_event_to_all_s": to_all,
    }


def open_stream(server: Server, subscription: str) -> socket.socket:
    client = connect(server.url, f"/subscriptions/{subscription}/events")
    assert client.recv(4096).startswith(b"HTTP/1.1 200")
    return client


QUESTIONS = {
    "throughput": measure_throughput,
    "commits": measure_commits,
    "takeover": measure_takeover,
    "idle": measure_idle_streams,
    "projection": measure_projection,
}


if __name__ == "__main__":
    answer_questions(__doc__, QUESTIONS, engine="sqlite")

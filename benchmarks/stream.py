"""What are the throughput, latency and number of low-level streams over a loopback socket?

    python benchmarks/stream.py [throughput] [latency] [idle] [--engine memory|sqlite] [--quick] [--json FILE]

The server runs in its own process, and so do publishers and readers. The floor, from the same run, is the same server
writing the same bytes from memory, in pieces of the same size.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import resource
import selectors
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from benchmarks.asking import Figures, answer_questions
from nakadi.common.waiting import run_blocking

EVENT_BYTES = 700
BATCH = 100
NAME = "bench.stream"
PUBLISHERS = 4
BEGIN = '[{"partition":"0","offset":"BEGIN"}]'

STAMP = re.compile(rb'"at":([0-9.]+),')


def serve(engine: str, ready: Any, stop: Any) -> None:
    """Serve a broker with an additional route that writes a stream's bytes from memory."""
    from nakadi.app.broker import open_broker  # noqa: PLC0415  # the load generators do without
    from nakadi.app.routes import make_application  # noqa: PLC0415
    from nakadi.app.settings import Settings  # noqa: PLC0415
    from nakadi.http.application import Application  # noqa: PLC0415
    from nakadi.http.message import Outlet, Request, Response, StreamingResponse  # noqa: PLC0415
    from nakadi.http.parameters import IntegerParameter  # noqa: PLC0415
    from nakadi.http.router import Route  # noqa: PLC0415
    from nakadi.http.server import tune_interpreter  # noqa: PLC0415
    from nakadi.local.serving import ServerThread  # noqa: PLC0415
    from nakadi.model.events import Record  # noqa: PLC0415

    raise_file_limit()
    events_parameter, rate, seconds = (IntegerParameter(name, 0) for name in ("events", "rate", "seconds"))
    made: dict[int, list[bytes]] = {}

    def floor(request: Request) -> StreamingResponse:
        events = events_parameter.read(request)
        if events not in made:
            made[events] = [batch_line(last) for last in range(BATCH - 1, events, BATCH)]

        async def write_pieces(outlet: Outlet) -> None:
            for piece in made[events]:
                await outlet.write(piece)

        return StreamingResponse(write_pieces, {"content-type": "application/x-json-stream"})

    with tempfile.TemporaryDirectory() as folder:
        url = "memory:" if engine == "memory" else f"sqlite:///{folder}/nakadi.db"
        broker = open_broker(Settings(registry=url, event_log=url))

        def append(request: Request) -> Response:
            """Store events at a steady rate directly in the log, so that only streaming is measured."""
            timeline = broker.event_types.get(NAME).timeline
            for event in yield_steadily(rate.read(request), seconds.read(request)):
                run_blocking(broker.logs.for_storage(timeline.storage_id).append(timeline.topic, {0: [Record(event)]}))
            return Response()

        append_route = Route(
            method="GET", template="/append", handler=append, operation="append", parameters=(rate, seconds)
        )
        floor_route = Route(
            method="GET", template="/floor", handler=floor, operation="floor", parameters=(events_parameter,)
        )
        application = Application([*make_application(broker).router.routes, floor_route, append_route])
        tune_interpreter()
        with ServerThread(application) as serving:
            ready.send(serving.url)
            stop.wait()
        broker.close()


@contextmanager
def a_server(engine: str) -> Iterator[tuple[str, int]]:
    """The URL and process id of a server with the event type."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    stop = context.Event()
    process = context.Process(target=serve, args=(engine, theirs, stop))
    process.start()
    assert process.pid is not None
    try:
        url = ours.recv()
        definition = {
            "name": NAME,
            "owning_application": "bench",
            "category": "undefined",
            "schema": {"type": "json_schema", "schema": "{}"},
        }
        httpx.post(f"{url}/event-types", json=definition).raise_for_status()
        yield url, process.pid
    finally:
        stop.set()
        process.join(30)
        process.kill()


def an_event(number: int) -> str:
    head = f'{{"number":{number:09d},"text":"'.replace(":0", ":1", 1)
    return head + "x" * (EVENT_BYTES - len(head) - 2) + '"}'


def batch_line(last: int) -> bytes:
    """The line of a full batch that ends with this offset."""
    events = ",".join(an_event(number) for number in range(last - BATCH + 1, last + 1))
    return f'{{"cursor":{{"partition":"0","offset":"001-0001-{last:018d}"}},"events":[{events}]}}\n'.encode()


def raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def connect(url: str, target: str, headers: str = "") -> socket.socket:
    """Open a socket and send a request on it."""
    parts = urlsplit(url)
    client = socket.create_connection((parts.hostname, parts.port))
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode())
    return client


def read_all(url: str, targets: list[str], headers: str) -> tuple[float, int]:
    """Read several answers to their ends at once. Returns the seconds and the number of bytes."""
    waiting = selectors.DefaultSelector()
    buffer = bytearray(1 << 20)
    total = 0
    sockets = [connect(url, target, headers) for target in targets]
    tails = dict.fromkeys(sockets, b"")
    began = 0.0
    for client in sockets:
        client.setblocking(False)
        waiting.register(client, selectors.EVENT_READ)
    while waiting.get_map():
        for key, _ in waiting.select():
            client = key.fileobj
            count = client.recv_into(buffer)
            total += count
            tails[client] = (tails[client] + bytes(buffer[max(0, count - 5) : count]))[-5:]
            # The servers briefly delay the first bytes of a body, because some clients need the delay.
            if not began and total > 100_000:
                began, total = time.perf_counter(), 0
            if count == 0 or tails[client] == b"0\r\n\r\n":
                waiting.unregister(client)
                client.close()
    return time.perf_counter() - began, total


def publish(url: str, events: int) -> None:
    with httpx.Client(base_url=url) as client:
        for first in range(0, events, 1000):
            body = "[" + ",".join(an_event(number) for number in range(first, first + 1000)) + "]"
            client.post(f"/event-types/{NAME}/events", content=body, headers={"content-type": "application/json"})


def measure_throughput(engine: str, *, quick: bool) -> Figures:
    """Stream old events to one client and to a hundred, in batches of 100."""
    events = 20_000 if quick else 60_000
    rounds = 5 if quick else 15
    figures: Figures = {}
    with a_server(engine) as (url, _):
        publish(url, events)
        stream = f"/event-types/{NAME}/events?batch_limit={BATCH}&stream_limit="
        for clients, wanted in ((1, events), (100, events // 10)):
            # One after the other, so that a ratio compares figures of the same moment.
            pairs = [
                (stream_rate(url, f"/floor?events={wanted}", clients), stream_rate(url, f"{stream}{wanted}", clients))
                for _ in range(rounds)
            ]
            figures |= {
                f"throughput_{clients}_floor_mb_s": statistics.median(floor for floor, _ in pairs),
                f"throughput_{clients}_mb_s": statistics.median(measured for _, measured in pairs),
                f"throughput_{clients}_events_s": statistics.median(measured for _, measured in pairs)
                * 1e6
                / EVENT_BYTES,
                f"throughput_{clients}_of_floor": statistics.median(measured / floor for floor, measured in pairs),
            }
    return figures


def stream_rate(url: str, target: str, clients: int) -> float:
    """The megabytes per second of this many clients together."""
    seconds, size = read_all(url, [target] * clients, f"X-nakadi-cursors: {BEGIN}\r\n")
    return size / seconds / 1e6


def publish_from_connections(url: str, per_request: int, rate: int, seconds: float) -> None:
    """Publish at a steady rate over several connections; every event contains the time when it was due."""
    with ThreadPoolExecutor(PUBLISHERS) as threads:
        began = time.monotonic()
        for number in range(PUBLISHERS):
            due = began + number * per_request / rate
            threads.submit(publish_steadily, url, per_request, rate / PUBLISHERS, seconds, due)


def publish_steadily(url: str, per_request: int, rate: float, seconds: float, began: float) -> None:
    parts = urlsplit(url)
    connection = socket.create_connection((parts.hostname, parts.port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for event in yield_steadily(rate / per_request, seconds, began):
        body = b"[" + b",".join([event] * per_request) + b"]"
        head = f"POST /event-types/{NAME}/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = connection.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200"), answer


def yield_steadily(rate: float, seconds: float, began: float | None = None) -> Iterator[bytes]:
    """Yield due times at a steady rate, so that a late publisher does not hide its delay."""
    began = time.monotonic() if began is None else began
    filler = "x" * (EVENT_BYTES - 60)
    for number in range(int(seconds * rate)):
        due = began + number / rate
        while (left := due - time.monotonic()) > 0:
            time.sleep(left)
        yield f'{{"at":{due:.6f},"text":"{filler}"}}'.encode()


def measure_latency(engine: str, *, quick: bool) -> Figures:
    """Measure the time from publishing to delivery at 1,000 events a second, with one client."""
    figures: Figures = {}
    seconds = 5 if quick else 15
    for per_request in (0, 1, 10, 100):
        with a_server(engine) as (url, _):
            delays = delays_of(url, per_request, 1000, seconds)
        label = f"latency_{per_request}_a_request" if per_request else "latency_from_the_log"
        figures |= {
            f"{label}_p50_ms": delays[len(delays) // 2],
            f"{label}_p99_ms": delays[int(len(delays) * 0.99)],
            f"{label}_max_ms": delays[-1],
        }
    return figures


def delays_of(url: str, per_request: int, rate: int, seconds: int) -> list[float]:
    """The sorted delays in milliseconds of all events after the first second."""
    step = PUBLISHERS * max(per_request, 1)
    expected = seconds * rate // step * step
    target = f"/event-types/{NAME}/events?batch_limit={max(per_request, 1)}&stream_limit={expected}"
    client = connect(url, target, f"X-nakadi-cursors: {BEGIN}\r\n")
    time.sleep(0.5)
    if per_request:
        publishing = (url, per_request, rate, seconds)
        multiprocessing.get_context("spawn").Process(
            target=publish_from_connections, args=publishing, daemon=True
        ).start()
    else:
        connect(url, f"/append?rate={rate}&seconds={seconds}")
    delays: list[float] = []
    rest = b""
    while len(delays) < expected:
        received = client.recv(1 << 20)
        now = time.monotonic()
        assert received, f"the stream ended after {len(delays)} events"
        rest += received
        stamps = list(STAMP.finditer(rest))
        delays += [(now - float(stamp[1])) * 1000 for stamp in stamps]
        rest = rest[stamps[-1].end() :] if stamps else rest
    client.close()
    return sorted(delays[rate:])


def measure_idle_streams(engine: str, *, quick: bool) -> Figures:
    """Open ten thousand idle streams."""
    count = 2_000 if quick else 10_000
    seconds = 10 if quick else 60
    raise_file_limit()
    with a_server(engine) as (url, pid):
        open_streams(url, 200)  # the first stream creates what all streams share
        before = memory_of(pid)
        began = time.perf_counter()
        clients = open_streams(url, count)
        to_open = time.perf_counter() - began
        time.sleep(2)
        memory = memory_of(pid) - before
        cpu, drained = cpu_of(pid), drain(clients, seconds)
        cpu = cpu_of(pid) - cpu
        began = time.perf_counter()
        publish_one(url)
        drain(clients, 30, wanted=count)
        to_all = time.perf_counter() - began
        began = time.perf_counter()
        for client in clients:
            client.close()
        while open_files_of(pid) > 200 and time.perf_counter() < began + 30:
            time.sleep(0.05)
        to_close = time.perf_counter() - began
    return {
        "idle_streams": count,
        "idle_open_s": to_open,
        "idle_kb_per_stream": memory / count / 1024,
        "idle_cpu_percent": 100 * cpu / seconds,
        "idle_keep_alives": drained,
        "idle_one_event_to_all_s": to_all,
        "idle_all_gone_s": to_close,
    }


def open_streams(url: str, count: int) -> list[socket.socket]:
    """Open this many streams, and wait for their heads."""
    clients: list[socket.socket] = []
    for _ in range(0, count, 100):
        some = [connect(url, f"/event-types/{NAME}/events") for _ in range(100)]
        for client in some:
            assert client.recv(4096).startswith(b"HTTP/1.1 200")
        clients += some
    return clients


def drain(clients: list[socket.socket], seconds: float, wanted: int = sys.maxsize) -> int:
    """Read for some time, or until this many clients got an event. Returns the number of reads."""
    waiting = selectors.DefaultSelector()
    for client in clients:
        client.setblocking(False)
        waiting.register(client, selectors.EVENT_READ)
    end = time.monotonic() + seconds
    reads = got = 0
    while (left := end - time.monotonic()) > 0 and got < wanted:
        for key, _ in waiting.select(left):
            received = key.fileobj.recv(65536)
            reads += 1
            got += b'"events"' in received
    return reads


def publish_one(url: str) -> None:
    answer = httpx.post(
        f"{url}/event-types/{NAME}/events", content="[{}]", headers={"content-type": "application/json"}
    )
    answer.raise_for_status()


def memory_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files_of(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def cpu_of(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


QUESTIONS = {"throughput": measure_throughput, "latency": measure_latency, "idle": measure_idle_streams}


if __name__ == "__main__":
    answer_questions(__doc__, QUESTIONS, engine="memory")

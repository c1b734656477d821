"""What does publishing cost? CPU of the pipeline per event, and requests and events per second over HTTP.

    python benchmarks/publish.py [cpu] [http] [followed] [--quick] [--json FILE]

`cpu` runs the pipeline in this process, from the body of a request to the records for the log, and compares it with
parsing and serializing the same body. `http` publishes over loopback to a broker on SQLite in its own process; its
floor is the same server, which only parses and serializes the body, and answers. `followed` does the same while a
thousand streams follow another event type, which gets an event a second, and compares it with a broker without readers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
from msgspec.structs import replace

from benchmarks.stream import connect, drain, raise_file_limit
from nakadi.app.broker import BrokerServices, open_broker
from nakadi.app.routes import make_application
from nakadi.app.settings import Settings
from nakadi.common.metrics import Metrics
from nakadi.http.application import Application
from nakadi.http.memory import tune_allocator
from nakadi.http.message import Request, Response, empty_response
from nakadi.http.router import Route
from nakadi.http.server import Server, new_event_loop, open_listening_socket, tune_interpreter
from nakadi.model.authorization import UNAUTHENTICATED
from nakadi.model.events import AppendResult, AppendStored, Record
from nakadi.publishing.batch import BatchStatus
from nakadi.publishing.publisher import Publisher

# The number of partitions by partition strategy; the first strategy is the default.
PARTITIONS = {"random": 1, "hash": 8}
TEXT = {"type": "string"}
PRICE = {
    "type": "object",
    "properties": {"amount": {"type": "number", "minimum": 0}, "currency": TEXT},
    "required": ["amount", "currency"],
}
ITEM = {
    "type": "object",
    "properties": {
        "sku": TEXT,
        "quantity": {"type": "integer", "minimum": 1},
        "price": PRICE,
        "tags": {"type": "array", "items": TEXT},
    },
    "required": ["sku", "quantity"],
}
ADDRESS = {"type": "object", "properties": dict.fromkeys(("street", "zip", "city", "country"), TEXT)}
CUSTOMER = {
    "type": "object",
    "properties": {"id": TEXT, "name": TEXT, "email": TEXT, "address": ADDRESS},
    "required": ["id"],
}
SCHEMA = {
    "type": "object",
    "properties": {
        "order_number": TEXT,
        "customer": CUSTOMER,
        "items": {"type": "array", "minItems": 1, "items": ITEM},
        "total": PRICE,
        "paid": {"type": "boolean"},
        "comment": {"type": ["string", "null"]},
    },
    "required": ["order_number", "customer", "items"],
}

FOLLOWERS = 1_000

Figures = dict[str, float]


def an_event(number: int) -> dict[str, Any]:
    """An event of about 0.7 KB, nested four levels deep."""
    items = [
        {
            "sku": f"sku-{number}-{n}",
            "quantity": n + 1,
            "price": {"amount": 19.95 + n, "currency": "EUR"},
            "tags": ["a", "b"],
        }
        for n in range(3)
    ]
    return {
        "metadata": {"eid": str(UUID(int=number)), "occurred_at": "2026-11-21T12:00:00.123Z"},
        "order_number": f"order-{number:08d}",
        "customer": {
            "id": str(UUID(int=2**100 + number)),
            "name": "Zoë Ørsted",
            "email": "zoe@example.org",
            "address": {"street": "Nørregade 12", "zip": "1165", "city": "København", "country": "DK"},
        },
        "items": items,
        "total": {"amount": 59.85, "currency": "EUR"},
        "paid": True,
        "comment": None,
    }


def event_type_definition(strategy: str) -> dict[str, Any]:
    """An event type named after its partition strategy."""
    partitions = PARTITIONS[strategy]
    statistic = {"messages_per_minute": 1, "message_size": 1, "read_parallelism": partitions, "write_parallelism": 1}
    return {
        "name": strategy,
        "owning_application": "bench",
        "category": "business",
        "enrichment_strategies": ["metadata_enrichment"],
        "partition_strategy": strategy,
        "partition_key_fields": ["order_number"],
        "schema": {"type": "json_schema", "schema": json.dumps(SCHEMA)},
        "default_statistic": statistic,
    }


def register(broker: BrokerServices, strategy: str) -> None:
    headers = {"content-type": "application/json"}
    body = json.dumps(event_type_definition(strategy)).encode()
    answer = make_application(broker).answer(
        Request(method="POST", path="/event-types", target="/event-types", headers=headers, body=body)
    )
    assert answer.status == 201, answer


def least_work(body: bytes) -> bytes:
    return orjson.dumps(orjson.loads(body))


class DiscardingLogs:
    """A log that accepts every record and stores none."""

    def for_storage(self, _storage_id: str) -> Any:
        return self

    async def append(self, _topic: str, batches: Mapping[int, Sequence[Record]]) -> Mapping[int, AppendResult]:
        return dict.fromkeys(batches, AppendStored())


SPELLINGS: Mapping[str, Callable[[Any], bytes]] = {
    "compact": orjson.dumps,
    "pretty": lambda events: orjson.dumps(events, option=orjson.OPT_INDENT_2),
    "escaped": lambda events: json.dumps(events).encode(),
}


def measure_cpu(seconds: float) -> Figures:
    broker = open_broker(Settings())
    figures: Figures = {}
    for strategy in PARTITIONS:
        register(broker, strategy)
    for strategy, spelling, size in (
        *((strategy, "compact", size) for strategy in PARTITIONS for size in (1, 10, 100, 1000)),
        ("random", "pretty", 100),
        ("random", "escaped", 100),
    ):
        body = SPELLINGS[spelling]([an_event(number) for number in range(size)])
        publish = make_publish_call(broker, strategy, body)
        # The two alternate, so that other work on the machine affects both.
        each, floor_each = alternate(publish, partial(least_work, body), seconds)
        ratio = each / floor_each
        figures[f"cpu_{strategy}_{spelling}_{size}"] = ratio
        print(
            f"{strategy:6} {spelling:7} {size:5} per batch: {each / size * 1e6:6.2f} µs per event,"
            f" floor {floor_each / size * 1e6:5.2f} µs: {ratio:.2f} times the floor"
        )
    figures["cpu_counting"] = measure_counting(broker, seconds)
    broker.close()
    return figures


def measure_counting(broker: BrokerServices, seconds: float) -> float:
    """The cost of metrics for the smallest batch, where their share is greatest."""
    body = orjson.dumps([an_event(1)])
    publisher = replace(broker.publisher, logs=DiscardingLogs())

    class UncountedMetrics(Metrics):
        def stored(self, event_type: str, events: int, size: int) -> None:
            pass

    def publish(publisher: Publisher) -> None:
        publisher.publish("random", body, UNAUTHENTICATED, "the-flow")

    counted, uncounted = alternate(
        partial(publish, publisher), partial(publish, replace(publisher, metrics=UncountedMetrics())), seconds
    )
    print(f"counting: {(counted - uncounted) * 1e6:.2f} µs per batch, {counted / uncounted - 1:.1%} of one event")
    return counted / uncounted


def make_publish_call(broker: BrokerServices, name: str, body: bytes) -> Callable[[], object]:
    publisher = replace(broker.publisher, logs=DiscardingLogs())

    def publish() -> None:
        outcome = publisher.publish(name, body, UNAUTHENTICATED, "the-flow")
        assert outcome.status is BatchStatus.STORED

    return publish


def alternate(first: Callable[[], object], second: Callable[[], object], seconds: float) -> tuple[float, float]:
    """The lowest CPU seconds of one call of each function, over many short rounds."""
    rounds = 20
    calls = [max(1, int(seconds / rounds / 2 / seconds_of_call(call))) for call in (first, second)]
    least = [float("inf"), float("inf")]
    for _ in range(rounds):
        for index, call in enumerate((first, second)):
            began = time.process_time()
            for _ in range(calls[index]):
                call()
            least[index] = min(least[index], (time.process_time() - began) / calls[index])
    return least[0], least[1]


def seconds_of_call(call: Callable[[], object]) -> float:
    call()
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def serve_broker(listening: socket.socket, folder: str) -> None:
    tune_allocator()
    url = f"sqlite:///{folder}/nakadi.db"
    broker = open_broker(Settings(registry=url, event_log=url))
    for strategy in PARTITIONS:
        register(broker, strategy)
    serve(listening, make_application(broker))


def serve_floor(listening: socket.socket, _folder: str) -> None:
    def answer(request: Request) -> Response:
        least_work(request.body)
        return empty_response()

    template = "/event-types/{name}/events"
    route = Route(
        method="POST", template=template, handler=answer, operation="publish_events", accepts_any_content_type=True
    )
    serve(listening, Application([route]))


def serve(listening: socket.socket, application: Application) -> None:
    tune_interpreter()

    async def serve_forever() -> None:
        await Server(application).serve(listening, asyncio.Event())

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve_forever())


@dataclass(frozen=True)
class RunningServer:
    port: int
    pid: int

    def cpu_seconds(self) -> float:
        """The CPU seconds of the process so far, for all threads, with the nanosecond precision of Linux."""
        return time.clock_gettime(~self.pid << 3 | 2)


@contextmanager
def a_server(target: Callable[[socket.socket, str], None], folder: str) -> Iterator[RunningServer]:
    with open_listening_socket("127.0.0.1", 0) as listening:
        process = multiprocessing.get_context("fork").Process(target=target, args=(listening, folder), daemon=True)
        process.start()
        port = listening.getsockname()[1]
    try:
        assert process.pid is not None
        yield RunningServer(port, process.pid)
    finally:
        process.terminate()
        process.join()


class Client(asyncio.Protocol):
    """Publishes and waits for the answer until the time is over, at most once in `pace` seconds."""

    def __init__(self, load: Load, first: int) -> None:
        self._load, self._next = load, first
        self._due = time.perf_counter() + load.pace * first / load.clients

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # TCP is a stream
        self._transport = transport
        self._publish_when_due()

    def data_received(self, data: bytes) -> None:
        assert data.startswith(b"HTTP/1.1 200"), data
        now = time.perf_counter()
        if now > self._load.begin:
            # A client that waits for a late slot has waited since the slot was due.
            self._load.took.append(now - (self._due if self._load.pace else self._began))
        if now < self._load.end:
            self._due += self._load.pace
            self._publish_when_due()
        else:
            self._transport.close()
            self._load.done.release()

    def _publish_when_due(self) -> None:
        wait = self._due - time.perf_counter() if self._load.pace else 0.0
        if wait > 0:
            asyncio.get_running_loop().call_later(wait, self._publish)
        else:
            self._publish()

    def _publish(self) -> None:
        self._began = time.perf_counter()
        self._transport.write(self._load.requests[self._next % len(self._load.requests)])
        self._next += 1
        self._load.sent += 1


class Load:
    """The shared state of the clients of one measurement. Requests before `begin` do not count."""

    def __init__(self, clients: int, requests: Sequence[bytes], seconds: float, pace: float = 0.0) -> None:
        self.clients, self.requests, self.seconds, self.pace = clients, requests, seconds, pace
        self.name = requests[0].split(b"/")[2].decode()
        self.begin = time.perf_counter() + seconds / 4
        self.end = self.begin + seconds
        self.took: list[float] = []
        self.sent = 0
        self.done = asyncio.Semaphore(0)


async def publish_load(port: int, load: Load) -> None:
    for number in range(load.clients):
        await asyncio.get_running_loop().create_connection(partial(Client, load, number), "127.0.0.1", port)
    # A dead server would never answer.
    async with asyncio.timeout(load.end - time.perf_counter() + 30):
        for _ in range(load.clients):
            await load.done.acquire()


def a_request(name: str, batch: int, first: int) -> bytes:
    body = orjson.dumps([an_event(first + number) for number in range(batch)])
    head = (
        f"POST /event-types/{name}/events HTTP/1.1\r\nHost: localhost\r\n"
        "Content-Type: application/json\r\nContent-Length: "
    )
    return f"{head}{len(body)}\r\n\r\n".encode() + body


def measure_http(seconds: float) -> Figures:
    figures: Figures = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        a_server(serve_broker, folder) as broker,
        a_server(serve_floor, folder) as lowest,
    ):
        warm_up(broker, lowest)
        for batch in (1, 100):
            one, spread = ([a_request(name, batch, number * batch) for number in range(50)] for name in PARTITIONS)
            for clients in (1, 8, 64):
                name = f"{clients}_clients_{batch}_per_batch"
                rate = report_load("broker", broker, Load(clients, one, seconds), batch, figures)
                floor_rate = report_load("floor", lowest, Load(clients, one, seconds), batch, figures)
                spread_rate = report_load("broker", broker, Load(clients, spread, seconds), batch, figures)
                figures[f"http_random_{name}_of_floor"] = rate / floor_rate
                figures[f"http_hash_{name}_of_floor"] = spread_rate / floor_rate
                figures[f"http_hash_{name}_of_random"] = spread_rate / rate
                print(
                    f"{'':8}{rate / floor_rate:.0%} of the floor, hash {spread_rate / rate:.0%} of random", flush=True
                )
            report_load("at half", broker, Load(64, one, seconds, pace=2 * 64 / rate), batch, figures)
    return figures


def measure_followed(seconds: float) -> Figures:
    """Measure both brokers in alternating rounds. Both receive the additional event every second."""
    raise_file_limit()
    requests = [a_request("random", 100, number * 100) for number in range(50)]
    single = [a_request("hash", 1, 0)]
    found: tuple[list[Figures], list[Figures]] = ([], [])
    with ExitStack() as stack:
        folders = [stack.enter_context(tempfile.TemporaryDirectory()) for _ in range(2)]
        brokers = [stack.enter_context(a_server(serve_broker, each)) for each in folders]
        url = f"http://127.0.0.1:{brokers[1].port}"
        streams = [stack.enter_context(connect(url, "/event-types/hash/events")) for _ in range(FOLLOWERS)]
        for each in streams:
            assert each.recv(4096).startswith(b"HTTP/1.1 200")
        is_over, reads = threading.Event(), list[int]()

        def read() -> None:
            while not is_over.is_set():
                reads.append(drain(streams, 0.5))

        reading = threading.Thread(target=read)
        reading.start()
        stack.callback(reading.join)
        stack.callback(is_over.set)
        warm_up(*brokers)
        for _ in range(5):
            for broker, rounds in zip(brokers, found, strict=True):
                figures: Figures = {}
                report_load(
                    "broker", broker, Load(8, requests, seconds), 100, figures, Load(1, single, seconds, pace=1.0)
                )
                rounds.append(figures)
    assert sum(reads) >= FOLLOWERS, "the streams were sent nothing"
    alone, followed = found
    rate, cpu = (f"http_random_broker_8_clients_100_per_batch_{each}" for each in ("requests_per_s", "cpu_us"))
    figures = {
        "followed_of_alone": statistics.median(b[rate] / a[rate] for a, b in zip(alone, followed, strict=True)),
        "followed_cpu_of_alone": statistics.median(b[cpu] / a[cpu] for a, b in zip(alone, followed, strict=True)),
    }
    print(f"with {FOLLOWERS:,} streams: {figures['followed_of_alone']:.0%} of the rate without, ", end="")
    print(f"{figures['followed_cpu_of_alone']:.2f} times the CPU")
    return figures


def warm_up(*servers: RunningServer) -> None:
    """Send requests for half a second per event type, so that the brokers fill their caches."""
    for server in servers:
        for name in PARTITIONS:
            asyncio.run(publish_load(server.port, Load(1, [a_request(name, 1, 0)], 0.5)))


def report_load(what: str, server: RunningServer, load: Load, batch: int, figures: Figures, *beside: Load) -> float:
    """Measure, print and record a load, and return its requests per second. `beside` runs meanwhile and does not
    count.
    """

    async def all_published() -> None:
        await asyncio.gather(*(publish_load(server.port, each) for each in (load, *beside)))

    before = server.cpu_seconds()
    asyncio.run(all_published())
    cpu = (server.cpu_seconds() - before) / load.sent * 1e6
    took = sorted(load.took)
    rate = len(took) / load.seconds
    middle, worst = took[len(took) // 2] * 1000, took[len(took) * 99 // 100] * 1000
    print(
        f"{what:8}{load.name:7}{load.clients:3} clients, {batch:3} per batch: {rate:6.0f} requests/s,"
        f" {rate * batch:7.0f} events/s, p50 {middle:6.2f} ms, p99 {worst:6.2f} ms, {cpu:5.0f} µs of CPU each"
    )
    name = f"http_{load.name}_{what.replace(' ', '_')}_{load.clients}_clients_{batch}_per_batch"
    figures |= {
        f"{name}_requests_per_s": rate,
        f"{name}_p50_ms": middle,
        f"{name}_p99_ms": worst,
        f"{name}_cpu_us": cpu,
    }
    return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=["cpu", "http", "followed", []], help="all of it unless told")
    parser.add_argument("--quick", action="store_true", help="a tenth of the time, for a first look")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    seconds = 0.3 if options.quick else 3.0
    figures: Figures = {}
    if "cpu" in (options.what or ["cpu"]):
        figures |= measure_cpu(seconds)
    if "http" in (options.what or ["http"]):
        figures |= measure_http(seconds)
    if "followed" in (options.what or ["followed"]):
        figures |= measure_followed(seconds)
    print(f"Load average: {', '.join(f'{each:.1f}' for each in os.getloadavg())}, {os.cpu_count()} cores")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()

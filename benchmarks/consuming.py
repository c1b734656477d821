"""Brokers in their own processes, and clients that consume their subscriptions and commit."""

from __future__ import annotations

import json
import multiprocessing
import re
import selectors
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import httpx

from benchmarks.stream import an_event, connect, raise_file_limit
from nakadi.common.waiting import run_blocking

NAME = "bench.subscriptions"
PARTITIONS = 8
BATCH = 100
WINDOW = 10_000
COMMIT_SECONDS = 5

CURSOR = re.compile(rb'\{"cursor":(\{"partition":"([0-9]+)","offset":"[0-9a-f]+-[0-9a-f]+-([0-9]+)"[^}]*\}),"events":')
LONGEST_CURSOR = 300

numbers = count()


def serve(url: str, parent: Any) -> None:
    """Serve a broker with an additional route that stores the requested number of events, evenly in all partitions."""
    from nakadi.app.broker import open_broker  # noqa: PLC0415  # the load generators do without
    from nakadi.app.routes import make_application  # noqa: PLC0415
    from nakadi.app.settings import Settings  # noqa: PLC0415
    from nakadi.http.application import Application  # noqa: PLC0415
    from nakadi.http.message import Request, Response  # noqa: PLC0415
    from nakadi.http.parameters import FlagParameter, IntegerParameter, TextParameter  # noqa: PLC0415
    from nakadi.http.router import Route  # noqa: PLC0415
    from nakadi.http.server import tune_interpreter  # noqa: PLC0415
    from nakadi.local.serving import ServerThread  # noqa: PLC0415
    from nakadi.model.events import Record  # noqa: PLC0415

    raise_file_limit()
    broker = open_broker(Settings(registry=url, event_log=url))

    event_type, event_count, orders = (
        TextParameter("event_type"),
        IntegerParameter("events", 0),
        FlagParameter("orders"),
    )

    def fill(request: Request) -> Response:
        timeline = broker.event_types.get(event_type.read(request) or "").timeline
        events, make_event = event_count.read(request), an_order if orders.read(request) else an_event
        for first in range(0, events, 1000):
            records = [Record(make_event(number).encode()) for number in range(first, min(first + 1000, events))]
            run_blocking(
                broker.logs.for_storage(timeline.storage_id).append(
                    timeline.topic, dict.fromkeys(range(PARTITIONS), records)
                )
            )
        return Response()

    parameters = (event_type, event_count, orders)
    fill_route = Route(method="GET", template="/fill", handler=fill, operation="fill", parameters=parameters)
    tune_interpreter()
    with ServerThread(Application([*make_application(broker).router.routes, fill_route])) as serving:
        parent.send(serving.url)
        parent.poll(None)  # until the process prints something, or ends
    broker.close()


ORDER_SCHEMA = {
    "properties": {
        "order_number": {"type": "string"},
        "customer": {"properties": {"id": {"type": "integer"}}},
        "items": {"items": {"properties": {"sku": {"type": "string"}}}},
    }
}


def an_order(number: int) -> str:
    """An event of about a kilobyte with members of many kinds."""
    street = {"street": "Nonnendammallee 44", "city": "Berlin", "zip": "13629", "country": "DE"}
    line = {
        "sku": f"sku-{number % 9999:06}",
        "quantity": 2,
        "price": 19.95,
        "currency": "EUR",
        "name": "a blue shoe" * 3,
    }
    order = {
        "order_number": f"{number:012d}",
        "customer": {"id": number, "name": "Ann Example", "email": "ann@example.org", "address": street},
        "items": [line, line, line],
        "note": "please ring twice " * 8,
        "paid": True,
        "channels": ["shop", "app"],
    }
    return json.dumps(order, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    pid: int

    def fill(self, events: int, name: str = NAME, *, orders: bool = False) -> None:
        """Store this number of events in each partition of an event type."""
        target = f"{self.url}/fill?event_type={name}&events={events}&orders={orders}"
        httpx.get(target, timeout=120).raise_for_status()

    def subscribe(self, name: str = NAME, read_from: str = "begin", **fields: Any) -> str:
        """Create a subscription, and return its id."""
        body = {
            "owning_application": "bench",
            "consumer_group": f"group {next(numbers)}",
            "event_types": [name],
            "read_from": read_from,
            **fields,
        }
        return str(httpx.post(f"{self.url}/subscriptions", json=body).raise_for_status().json()["id"])


@contextmanager
def a_server(url: str, name: str = NAME) -> Iterator[Server]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(url, theirs))
    process.start()
    theirs.close()
    assert process.pid is not None
    try:
        server = Server(ours.recv(), process.pid)
        if name:
            create_event_type(server.url, name)
        yield server
    finally:
        ours.close()
        process.join(30)
        process.kill()


@contextmanager
def a_place(engine: str) -> Iterator[str]:
    """A place for all stores of a server."""
    with tempfile.TemporaryDirectory() as folder:
        yield "memory:" if engine == "memory" else f"sqlite:///{folder}/nakadi.db"


def create_event_type(url: str, name: str, schema: Mapping[str, Any] | None = None) -> None:
    statistic = {
        "messages_per_minute": 1,
        "message_size": 1,
        "read_parallelism": PARTITIONS,
        "write_parallelism": PARTITIONS,
    }
    definition = {
        "name": name,
        "owning_application": "bench",
        "category": "undefined",
        "schema": {"type": "json_schema", "schema": json.dumps(schema or {})},
        "default_statistic": statistic,
    }
    httpx.post(f"{url}/event-types", json=definition).raise_for_status()


@dataclass(slots=True)
class Consumer:
    """A stream and, if it commits, the connection for its commits: one request at a time, with all cursors since the
    last request (`newest`), or with one cursor after the other (`each`)."""

    server: Server
    partitions: Sequence[int]
    last: int
    commits: str = ""
    subscription: str = ""
    seen: dict[bytes, int] = field(default_factory=dict)
    committed: dict[bytes, int] = field(default_factory=dict)
    requests: int = 0
    _stream: socket.socket | None = None
    _committer: socket.socket | None = None
    _head: bytes = b""
    _rest: bytes = b""
    _waiting: dict[bytes, tuple[int, bytes]] = field(default_factory=dict)
    _queue: list[tuple[bytes, int, bytes]] = field(default_factory=list)
    _under_way: dict[bytes, int] = field(default_factory=dict)

    def open(self) -> None:
        """Return when the response head has arrived."""
        if not self.commits:
            cursors = [{"partition": str(each), "offset": "BEGIN"} for each in self.partitions]
            target = f"/event-types/{NAME}/events?batch_limit={BATCH}"
            self._stream = connect(self.server.url, target, f"X-nakadi-cursors: {json.dumps(cursors)}\r\n")
        else:
            body = {
                "batch_limit": BATCH,
                "max_uncommitted_events": WINDOW,
                "partitions": [{"event_type": NAME, "partition": str(each)} for each in self.partitions],
            }
            self._stream = send_post(self.server.url, f"/subscriptions/{self.subscription}/events", body)
            self._committer = connection_to(self.server.url)
        while b"\r\n\r\n" not in self._rest:
            self._rest += self._stream.recv(4096)
        assert self._rest.startswith(b"HTTP/1.1 200"), self._rest
        found = re.search(rb"x-nakadi-streamid: (\S+)", self._rest, re.IGNORECASE)
        stream_id = found[1].decode() if found else ""
        self._head = (
            f"POST /subscriptions/{self.subscription}/cursors HTTP/1.1\r\nHost: localhost\r\n"
            f"X-Nakadi-StreamId: {stream_id}\r\nContent-Type: application/json\r\nContent-Length: "
        ).encode()

    def watched_sockets(self) -> Iterator[tuple[socket.socket, Callable[[], None]]]:
        """The consumer's sockets, each with the function to call when it is readable."""
        assert self._stream is not None
        yield self._stream, self._read
        if self._committer is not None:
            yield self._committer, self._handle_commit_answer

    @property
    def done(self) -> bool:
        reached = self.committed if self.commits else self.seen
        return len(reached) == len(self.partitions) and all(each >= self.last for each in reached.values())

    def close(self) -> None:
        for each, _ in self.watched_sockets():
            each.close()

    def _read(self) -> None:
        assert self._stream is not None
        received = self._stream.recv(1 << 20)
        assert received, f"a stream ended at {self.seen}"
        data = self._rest + received
        place, end = data.find(b'{"cursor":'), 0
        while place >= 0:
            found = CURSOR.match(data, place)
            if found:
                end = found.end()
                self._note_event(found[2], int(found[3]), found[1])
            place = data.find(b'{"cursor":', max(end, place + 1))
        self._rest = data[max(end, len(data) - LONGEST_CURSOR) :]
        self._commit()

    def _note_event(self, partition: bytes, offset: int, cursor: bytes) -> None:
        self.seen[partition] = offset
        if self.commits == "newest":
            self._waiting[partition] = (offset, cursor)
        elif self.commits:
            self._queue.append((partition, offset, cursor))

    def _commit(self) -> None:
        if self._under_way or self._committer is None:
            return
        if self._queue:
            partition, offset, cursor = self._queue.pop(0)
            self._waiting[partition] = (offset, cursor)
        if self._waiting:
            body = b'{"items":[' + b",".join(cursor for _, cursor in self._waiting.values()) + b"]}"
            self._under_way = {partition: offset for partition, (offset, _) in self._waiting.items()}
            self._waiting.clear()
            self._committer.sendall(self._head + b"%d\r\n\r\n" % len(body) + body)

    def _handle_commit_answer(self) -> None:
        assert self._committer is not None
        answer = self._committer.recv(65536)
        assert answer.startswith(b"HTTP/1.1 204"), answer
        self.committed |= self._under_way
        self._under_way = {}
        self.requests += 1
        self._commit()


def connection_to(url: str) -> socket.socket:
    parts = urlsplit(url)
    client = socket.create_connection((parts.hostname, parts.port))
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def send_post(url: str, target: str, body: Mapping[str, Any]) -> socket.socket:
    """Open a socket and send a request on it."""
    client = connection_to(url)
    content = json.dumps(body).encode()
    head = f"POST {target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    client.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return client


def consume_all(consumers: Sequence[Consumer]) -> float:
    """The seconds from the first events until everything is consumed."""
    sockets = selectors.DefaultSelector()
    for each in consumers:
        each.open()
    for each in consumers:
        for client, action in each.watched_sockets():
            sockets.register(client, selectors.EVENT_READ, action)
    began = time.perf_counter()
    while not all(each.done for each in consumers):
        for key, _ in sockets.select(30):
            key.data()
    seconds = time.perf_counter() - began
    for each in consumers:
        each.close()
    return seconds

"""A broker that `compare.py` measures: what it creates there, the resources of its processes, and connections to it."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

JSON = {"content-type": "application/json"}
MAX_ATTEMPTS = 10
RETRY_PAUSE_SECONDS = 0.5
CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class BenchmarkFailed(Exception):
    """Raised if a broker fails to meet a row's needs."""


@dataclass(frozen=True, eq=False)
class ComparedBroker:
    """An address, and the processes behind it, with their children."""

    url: str
    pids: tuple[int, ...] = ()
    resources: list[str] = field(default_factory=list)
    """Paths of the created resources, in the order in which they can be deleted."""

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return parts.hostname or "127.0.0.1", parts.port or 80

    def create(self, definition: Mapping[str, Any]) -> str:
        """Create an event type with a new name, and return the name."""
        name = f"compare.{secrets.token_hex(6)}"
        httpx.post(f"{self.url}/event-types", json={**definition, "name": name}, timeout=60).raise_for_status()
        self.resources.append(f"/event-types/{name}")
        return name

    def subscribe(self, name: str) -> str:
        """Subscribe to an event type from its beginning, and return the subscription's path."""
        subscription = {
            "owning_application": "compare",
            "consumer_group": secrets.token_hex(6),
            "event_types": [name],
            "read_from": "begin",
        }
        answer = httpx.post(f"{self.url}/subscriptions", json=subscription, timeout=60).raise_for_status()
        path = f"/subscriptions/{answer.json()['id']}"
        self.resources.insert(0, path)
        return path

    def publish(self, name: str, bodies: Iterable[bytes], **headers: str) -> None:
        """Publish batches, one after the other. A rejected batch is tried again."""
        with httpx.Client(base_url=self.url, timeout=60, headers=JSON | headers) as client:
            for body in bodies:
                for _ in range(MAX_ATTEMPTS):
                    answer = client.post(f"/event-types/{name}/events", content=body)
                    if answer.status_code == httpx.codes.OK:
                        break
                    time.sleep(RETRY_PAUSE_SECONDS)
                else:
                    raise BenchmarkFailed(answer.text)

    def delete_all(self) -> None:
        for path in self.resources:
            with suppress(httpx.HTTPError):
                httpx.delete(f"{self.url}{path}", timeout=60)
        self.resources.clear()

    def processes(self) -> Sequence[int]:
        found = list(self.pids)
        for pid in found:  # each retry doubles the wait
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                found += map(int, children.read_text().split())
        return found

    def cpu_seconds(self) -> float:
        """The CPU seconds of the broker's processes so far, for all threads, with the nanosecond precision of Linux."""
        return sum(time.clock_gettime(~pid << 3 | 2) for pid in self.processes())

    def memory_bytes(self) -> int:
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.processes())
        return pages * os.sysconf("SC_PAGESIZE")


class Connection:
    """An HTTP connection that costs little beyond sending its bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self.reader, self._writer, self._host = reader, writer, host

    @classmethod
    async def open(cls, broker: ComparedBroker) -> Connection:
        reader, writer = await asyncio.open_connection(*broker.address, limit=1 << 24)
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(reader, writer, broker.address[0])

    def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
        return request_bytes(self._host, method, path, body, **headers)

    async def send(self, request: bytes) -> None:
        self._writer.write(request)
        await self._writer.drain()

    async def read_head(self) -> bytes:
        """Read the head of an answer, whose status must be a success."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        if not re.match(rb"HTTP/1.1 20\d ", head):
            raise BenchmarkFailed(head.decode("latin-1"))
        return head

    async def ask(self, request: bytes) -> None:
        """Send a request and read its whole answer."""
        await self.send(request)
        head = await self.read_head()
        if length := CONTENT_LENGTH.search(head):
            await self.reader.readexactly(int(length[1]))
        elif b"transfer-encoding: chunked" in head.lower():
            while size := int(await self.reader.readline(), 16):
                await self.reader.readexactly(size + 2)
            await self.reader.readline()

    def close(self) -> None:
        self._writer.close()


def request_bytes(host: str, method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    """The bytes of a request, which can be sent many times."""
    lines = {"Host": host, "Content-Type": "application/json", "Content-Length": str(len(body)), **headers}
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body


@contextmanager
def closing_connections(connections: Sequence[Connection]) -> Iterator[None]:
    try:
        yield
    finally:
        for each in connections:
            each.close()


class RequestLoop(asyncio.Protocol):
    """Sends the next request after each answer, until the time is over. It measures at least one request."""

    def __init__(
        self, requests: Sequence[bytes], first: int, begin: float, end: float, done: asyncio.Future[None]
    ) -> None:
        self._requests, self._next = requests, first
        self._begin, self._end, self._done = begin, end, done
        self._answer = b""
        self.sent = 0
        self.took: list[float] = []
        """Seconds of each request that was sent after `begin`."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, end, body = self._answer.partition(b"\r\n\r\n")
        if not end:
            return
        length = CONTENT_LENGTH.search(head)
        if not head.startswith(b"HTTP/1.1 200") or length is None:
            self._fail(BenchmarkFailed(self._answer.decode("latin-1")))
            return
        if len(body) < int(length[1]):
            return
        self._answer = b""
        now = time.perf_counter()
        if self._began > self._begin:
            self.took.append(now - self._began)
        if now < self._end or not self.took:
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.took:
            self._fail(exc or BenchmarkFailed("The broker has closed the connection."))
        elif not self._done.done():
            self._done.set_result(None)

    def _send(self) -> None:
        self._began = time.perf_counter()
        self._transport.write(self._requests[self._next % len(self._requests)])
        self._next += 1
        self.sent += 1

    def _fail(self, error: Exception) -> None:
        if not self._done.done():
            self._done.set_exception(error)
        self._transport.abort()

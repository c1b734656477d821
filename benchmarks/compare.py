"""Two brokers that speak this API, side by side: the same load, in turn, on the same machine.

    python benchmarks/compare.py URL URL [--pids PID,PID PID] [--rounds 3] [--seconds 3] [--only publish,idle]
                                 [--json FILE] [--anywhere]

Each round asks the first broker and then the second, so that both meet the machine as it is at that moment; the ratio
is formed in each round, and its median, least and greatest are shown. Above 1 the first broker is better, whatever the
figure. With the processes of each broker named, their CPU time and memory are shown as well. The brokers must be empty
enough that nothing else goes on in them; what is made there is removed at the end. Addresses have to be on loopback
unless `--anywhere` is given.
"""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import json
import os
import re
import resource
import secrets
import socket
import statistics
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import orjson

from benchmarks.publish import SCHEMA
from benchmarks.publish import an_event as an_order

BATCH = 100
CLIENTS = (1, 8, 64)
IDLE = 200
DELIVERIES_PER_SECOND = 50
MOST_ATTEMPTS = 3

HIGHER, LOWER = 1, -1

CURSOR = re.compile(rb'\{"cursor":(\{"partition":"[0-9]+","offset":"[^"]*"[^}]*\}),"events":')
NUMBER = re.compile(rb'"n":([0-9]+)')


@dataclass(frozen=True)
class Figure:
    """What was seen, and whether more of it is better."""

    value: float
    better: int


Figures = Mapping[str, Figure]


@dataclass(frozen=True)
class Broker:
    """One of the two, with the processes that belong to it."""

    url: str
    pids: tuple[int, ...] = ()
    made: list[str] = field(default_factory=list)

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return parts.hostname or "127.0.0.1", parts.port or 80

    def create(self) -> str:
        """A new event type with one partition, and its name."""
        name = f"compare.{secrets.token_hex(6)}"
        definition = {
            "name": name,
            "owning_application": "compare",
            "category": "business",
            "enrichment_strategies": ["metadata_enrichment"],
            "schema": {"type": "json_schema", "schema": json.dumps(SCHEMA)},
        }
        httpx.post(f"{self.url}/event-types", json=definition, timeout=60).raise_for_status()
        self.made.append(f"/event-types/{name}")
        return name

    def subscribe(self, name: str) -> str:
        wanted = {
            "owning_application": "compare",
            "consumer_group": secrets.token_hex(6),
            "event_types": [name],
            "read_from": "begin",
        }
        answer = httpx.post(f"{self.url}/subscriptions", json=wanted, timeout=60).raise_for_status()
        path = f"/subscriptions/{answer.json()['id']}"
        self.made.insert(0, path)
        return path

    def fill(self, name: str, events: int) -> None:
        with httpx.Client(base_url=self.url, timeout=60) as client:
            for first in range(0, events, 1000):
                body = batch(first, min(1000, events - first))
                headers = {"content-type": "application/json"}
                client.post(f"/event-types/{name}/events", content=body, headers=headers).raise_for_status()

    def cpu_seconds(self) -> float:
        """What its processes have used so far."""
        ticks = 0
        for pid in self.pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def memory(self) -> int:
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.pids)
        return pages * os.sysconf("SC_PAGESIZE")

    def clean(self) -> None:
        for path in self.made:
            with suppress(httpx.HTTPError):
                httpx.delete(f"{self.url}{path}", timeout=60)


def batch(first: int, events: int) -> bytes:
    return b"[" + b",".join(an_event(first + each) for each in range(events)) + b"]"


def an_event(number: int) -> bytes:
    """An order of about 0.7 KB, with metadata, in an event type that has a schema and enriches metadata."""
    return orjson.dumps({"n": number, **an_order(number)})


# A connection --------------------------------------------------------------------------------------------------------


class Connection:
    """An HTTP connection that pays for little else than its bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self.reader, self._writer, self._host = reader, writer, host

    @classmethod
    async def open(cls, broker: Broker) -> Connection:
        reader, writer = await asyncio.open_connection(*broker.address, limit=1 << 24)
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(reader, writer, broker.address[0])

    def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
        """The bytes of a request, which can be sent any number of times."""
        lines = {"Host": self._host, "Content-Type": "application/json", "Content-Length": str(len(body)), **headers}
        head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
        return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body

    async def send(self, request: bytes) -> None:
        self._writer.write(request)
        await self._writer.drain()

    async def head(self) -> bytes:
        """The head of an answer, whose status has to be one of success."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        assert re.match(rb"HTTP/1.1 20\d ", head), head
        return head

    async def ask(self, request: bytes) -> None:
        """Send a request and read its whole answer."""
        await self.send(request)
        head = (await self.head()).lower()
        length = re.search(rb"content-length: (\d+)", head)
        if length:
            await self.reader.readexactly(int(length[1]))
        elif b"transfer-encoding: chunked" in head:
            while size := int(await self.reader.readline(), 16):
                await self.reader.readexactly(size + 2)
            await self.reader.readline()

    def close(self) -> None:
        self._writer.close()


@contextmanager
def closing(connections: Sequence[Connection]) -> Iterator[None]:
    try:
        yield
    finally:
        for each in connections:
            each.close()


# What is measured ----------------------------------------------------------------------------------------------------


async def publish(broker: Broker, seconds: float) -> Figures:
    """Batches of 100 and single events from several numbers of clients, each with one request at a time."""
    figures: dict[str, Figure] = {}
    for events in (BATCH, 1):
        for clients in CLIENTS:
            figures |= await published(broker, seconds, events, clients)
    return figures


async def published(broker: Broker, seconds: float, events: int, clients: int) -> Figures:
    name = broker.create()
    # Made before the connections: a broker may close one that sends nothing for long, and a busy machine takes long.
    bodies = [[batch((20 * number + each) * events, events) for each in range(20)] for number in range(clients)]
    connections = [await Connection.open(broker) for _ in range(clients)]
    begin = time.perf_counter() + seconds / 4
    end = begin + seconds
    took: list[float] = []

    async def client(connection: Connection, bodies: Sequence[bytes]) -> int:
        requests = [connection.request("POST", f"/event-types/{name}/events", body) for body in bodies]
        sent = 0
        # At least one request is measured, however slow the machine is.
        while (now := time.perf_counter()) < end or not took:
            await connection.ask(requests[sent % len(requests)])
            sent += 1
            if now > begin:
                took.append(time.perf_counter() - now)
        return sent

    before = broker.cpu_seconds()
    with closing(connections):
        sent = sum(await asyncio.gather(*map(client, connections, bodies)))
    cpu, measured = broker.cpu_seconds() - before, time.perf_counter() - begin
    label = f"publish, {events} a batch, {clients} clients"
    figures = {f"{label}: events/s": Figure(len(took) * events / measured, HIGHER), **percentiles(label, took)}
    if broker.pids:
        figures[f"{label}: µs of CPU an event"] = Figure(1e6 * cpu / (sent * events), LOWER)
    return figures


async def stream(broker: Broker, seconds: float) -> Figures:
    """One low-level stream from the beginning, in batches of 100."""
    events = int(20_000 * seconds)
    name = broker.create()
    broker.fill(name, events)
    connection = await Connection.open(broker)
    with closing([connection]):
        path = f"/event-types/{name}/events?batch_limit={BATCH}&stream_limit={events}&batch_flush_timeout=1"
        began = time.perf_counter()
        await connection.send(connection.request("GET", path, X_Nakadi_Cursors='[{"partition":"0","offset":"BEGIN"}]'))
        await connection.head()
        await connection.reader.readexactly(1)
        first = time.perf_counter() - began
        seen, rest = 0, b""
        while seen < events:
            rest += await received(connection)
            numbers = [found for found in NUMBER.finditer(rest) if found.end() < len(rest)]
            seen += len(numbers)
            rest = rest[numbers[-1].end() :] if numbers else rest
        rate = events / (time.perf_counter() - began)
    return {
        "one low-level stream: events/s": Figure(rate, HIGHER),
        "one low-level stream: first byte, ms": Figure(1000 * first, LOWER),
    }


async def subscription(broker: Broker, seconds: float) -> Figures:
    """One stream of a subscription, and a commit for each batch of 100, one after the other."""
    events = int(5_000 * seconds) // BATCH * BATCH
    name = broker.create()
    broker.fill(name, events)
    path = broker.subscribe(name)
    consumer, committer = await Connection.open(broker), await Connection.open(broker)
    with closing([consumer, committer]):
        query = f"batch_limit={BATCH}&max_uncommitted_events=10000&batch_flush_timeout=1&stream_limit={events}"
        await consumer.send(consumer.request("GET", f"{path}/events?{query}"))
        found = re.search(rb"x-nakadi-streamid: (\S+)", await consumer.head(), re.IGNORECASE)
        assert found
        cursors: asyncio.Queue[bytes | None] = asyncio.Queue()
        took: list[float] = []

        async def commit() -> None:
            while (cursor := await cursors.get()) is not None:
                body = b'{"items":[' + cursor + b"]}"
                request = committer.request("POST", f"{path}/cursors", body, X_Nakadi_StreamId=found[1].decode())
                began = time.perf_counter()
                await committer.ask(request)
                took.append(time.perf_counter() - began)

        committing = asyncio.create_task(commit())
        began, seen, rest = time.perf_counter(), 0, b""
        while seen < events:
            rest += await received(consumer)
            end = 0
            for line in CURSOR.finditer(rest):
                cursors.put_nowait(line[1])
                seen, end = seen + BATCH, line.end()
            rest = rest[end:]
        cursors.put_nowait(None)
        await asyncio.wait_for(committing, 120)
        rate = events / (time.perf_counter() - began)
    label = "subscription, a commit a batch"
    return {f"{label}: events/s": Figure(rate, HIGHER), **percentiles(f"{label}, commit", took)}


async def idle(broker: Broker, _seconds: float) -> Figures:
    """Two hundred streams that nothing happens on, opened one after the other."""
    name = broker.create()
    took: list[float] = []
    connections: list[Connection] = []
    before = broker.memory()
    with closing(connections):
        for _ in range(IDLE):
            connections.append(await Connection.open(broker))
            began = time.perf_counter()
            await connections[-1].send(connections[-1].request("GET", f"/event-types/{name}/events"))
            await connections[-1].head()
            took.append(time.perf_counter() - began)
        grown = broker.memory() - before
    figures: dict[str, Figure] = dict(percentiles(f"{IDLE} idle streams, head of the answer", took))
    if broker.pids:
        figures["idle stream: KiB"] = Figure(max(grown, 1) / IDLE / 1024, LOWER)
    return figures


async def delivery(broker: Broker, seconds: float) -> Figures:
    """From publishing one event to its delivery on an open stream, at fifty a second."""
    name = broker.create()
    consumer, publisher = await Connection.open(broker), await Connection.open(broker)
    count = int(DELIVERIES_PER_SECOND * seconds)
    sent: dict[int, float] = {}
    took: list[float] = []
    with closing([consumer, publisher]):
        path = f"/event-types/{name}/events?batch_limit=1&batch_flush_timeout=1"
        await consumer.send(consumer.request("GET", path, X_Nakadi_Cursors='[{"partition":"0","offset":"BEGIN"}]'))
        await consumer.head()

        async def publish() -> None:
            began = time.perf_counter()
            for number in range(count):
                await asyncio.sleep(max(0.0, began + number / DELIVERIES_PER_SECOND - time.perf_counter()))
                request = publisher.request("POST", f"/event-types/{name}/events", b"[" + an_event(number) + b"]")
                sent[number] = time.perf_counter()
                await publisher.ask(request)

        publishing = asyncio.create_task(publish())
        rest = b""
        while len(took) < count:
            rest += await received(consumer)
            now, end = time.perf_counter(), 0
            for found in NUMBER.finditer(rest):
                if found.end() < len(rest):
                    took.append(now - sent[int(found[1])])
                    end = found.end()
            rest = rest[end:]
        await publishing
    return percentiles(f"delivery at {DELIVERIES_PER_SECOND}/s", took)


class EndedEarly(Exception):
    """Raised when a broker ends a stream that should have gone on."""


async def received(connection: Connection) -> bytes:
    """What has come; a broker that sends nothing for a minute is taken for one that never will."""
    data = await asyncio.wait_for(connection.reader.read(1 << 20), 60)
    if not data:
        raise EndedEarly
    return data


def percentiles(label: str, took: Sequence[float]) -> dict[str, Figure]:
    ordered = sorted(took)
    return {
        f"{label}: p50, ms": Figure(1000 * ordered[len(ordered) // 2], LOWER),
        f"{label}: p99, ms": Figure(1000 * ordered[len(ordered) * 99 // 100], LOWER),
    }


PARTS: Mapping[str, Callable[[Broker, float], Coroutine[Any, Any, Figures]]] = {
    "publish": publish,
    "stream": stream,
    "subscription": subscription,
    "idle": idle,
    "delivery": delivery,
}


# The comparison ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compared:
    name: str
    first: float
    second: float
    ratios: tuple[float, float, float]
    """Median, least and greatest of the rounds; above 1 the first broker is better."""

    def __str__(self) -> str:
        middle, least, most = self.ratios
        return (
            f"| {self.name} | {shown(self.first)} | {shown(self.second)} | {middle:.2f} ({least:.2f} to {most:.2f}) |"
        )


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def compared(name: str, rounds: Sequence[tuple[Figure, Figure]]) -> Compared:
    ratios = [(first.value / second.value) ** first.better for first, second in rounds]
    return Compared(
        name,
        statistics.median(first.value for first, _ in rounds),
        statistics.median(second.value for _, second in rounds),
        (statistics.median(ratios), min(ratios), max(ratios)),
    )


def compare(first: Broker, second: Broker, parts: Sequence[str], rounds: int, seconds: float) -> Iterator[Compared]:
    """The rows of the table, as they are found."""
    try:
        for part in parts:
            pairs = [(measured(first, part, seconds), measured(second, part, seconds)) for _ in range(rounds)]
            for name in pairs[0][0]:
                seen = [(ours[name], theirs[name]) for ours, theirs in pairs if name in ours and name in theirs]
                if seen:
                    yield compared(name, seen)
    finally:
        for each in (first, second):
            each.clean()


def measured(broker: Broker, part: str, seconds: float) -> Figures:
    """The figures of one part. It is measured again where the broker ends a stream early, which is said."""
    for _ in range(MOST_ATTEMPTS - 1):
        try:
            return asyncio.run(PARTS[part](broker, seconds))
        except EndedEarly:
            print(f"{broker.url} ended a stream early: {part} is measured again", file=sys.stderr)
    return asyncio.run(PARTS[part](broker, seconds))


def is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("urls", nargs=2, metavar="URL")
    parser.add_argument("--pids", nargs=2, default=["", ""], metavar="PID,PID", help="the processes of each broker")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--anywhere", action="store_true", help="also brokers that are not on this machine")
    options = parser.parse_args()
    parts = options.only.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    if not options.anywhere and not all(map(is_loopback, options.urls)):
        parser.error("this is a load test: name brokers on loopback, or say --anywhere")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    first, second = (
        Broker(url.rstrip("/"), tuple(int(each) for each in pids.split(",") if each))
        for url, pids in zip(options.urls, options.pids, strict=True)
    )
    print(f"| | {first.url} | {second.url} | ratio (of {options.rounds} rounds) |\n|---|---|---|---|")
    rows = []
    for row in compare(first, second, parts, options.rounds, options.seconds):
        print(row, flush=True)
        rows.append(row)
    if options.json:
        figures = {row.name: {"first": row.first, "second": row.second, "ratios": row.ratios} for row in rows}
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()

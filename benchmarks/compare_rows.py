"""The rows of `compare.py`: each is a load on a broker for several seconds."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import orjson

from benchmarks.compared_broker import (
    BenchmarkFailed,
    ComparedBroker,
    Connection,
    RequestLoop,
    closing_connections,
    request_bytes,
)
from benchmarks.event_shapes import SHAPES, Shape, make_shape, random_order, random_words

BATCH = 100
IDLE_STREAMS = 200
DELIVERY_RATES = (10, 50, 100, 1000)
DELIVERY_CONNECTIONS = 16
MIN_DELIVERY_SECONDS = 3.0
MIN_SAMPLES_OF_P99 = 100
BODIES = 16
"""The number of different bodies of a row, which clients send one after the other; smaller for long ones."""
MAX_BYTES_OF_BODIES = 20_000_000
RECEIVE_TIMEOUT_SECONDS = 60

HIGHER, LOWER = 1, -1

CURSOR = re.compile(rb'\{"cursor":(\{"partition":"[0-9]+","offset":"[^"]*"[^}]*\}),"events":')
NUMBER = re.compile(rb'"n":([0-9]+)')


@dataclass(frozen=True)
class Figure:
    """A measured value, and whether a higher one is better."""

    value: float
    better: int


Figures = Mapping[str, Figure]
Measure = Callable[[ComparedBroker, float], Coroutine[Any, Any, Figures]]


def percentiles(label: str, took: Sequence[float]) -> dict[str, Figure]:
    """The median, and the 99th percentile if there are enough values."""
    ordered = sorted(took)
    figures = {f"{label}: p50, ms": Figure(1000 * ordered[len(ordered) // 2], LOWER)}
    if len(ordered) >= MIN_SAMPLES_OF_P99:
        figures[f"{label}: p99, ms"] = Figure(1000 * ordered[len(ordered) * 99 // 100], LOWER)
    return figures


# Publishing


@dataclass(frozen=True)
class Load:
    """Batches of events of one shape from several clients; each client has one request at a time."""

    shape: str = "plain"
    events: int = BATCH
    clients: int = 8
    is_zipped: bool = False

    @property
    def name(self) -> str:
        zipped = ", gzip" if self.is_zipped else ""
        return f"publish {self.shape}, {self.events} a batch{zipped}, {self.clients} clients"


FURTHER_SHAPES: Mapping[str, Shape] = {"200 KB": make_shape(make_event=lambda: random_order(note=random_words(22_000)))}

LOADS: Mapping[str, Sequence[Load]] = {
    "shapes": [Load(each) for each in SHAPES],
    "batches": [Load(events=each) for each in (1, 2, 10, 1000)],
    "clients": [
        *(Load(events=BATCH, clients=each) for each in (1, 4, 64)),
        *(Load(events=1, clients=each) for each in (1, 4, 64)),
        *(Load("hash", clients=each) for each in (4, 64)),
        *(Load("pattern", clients=each) for each in (4, 64)),
    ],
    "sizes": [Load("100 bytes", 1), Load("10 KB", 1), Load("10 KB", 10), Load("200 KB", 1), Load("200 KB", 5)],
    "gzip": [Load(is_zipped=True), Load("10 KB", 10, is_zipped=True)],
}


def event_type_definition(event_shape: Shape) -> Mapping[str, Any]:
    """An event type for events of a shape, with eight partitions if the shape chooses between them."""
    event_type = {
        "owning_application": "compare",
        "category": "business",
        "enrichment_strategies": ["metadata_enrichment"],
        "partition_strategy": "random",
        "compatibility_mode": "none",
        **event_shape.event_type,
        "schema": {"type": "json_schema", "schema": json.dumps(event_shape.event_type["schema"])},
    }
    partitions = 1 if event_type["partition_strategy"] == "random" else 8
    event_type["default_statistic"] = {
        "messages_per_minute": 1,
        "message_size": 1,
        "read_parallelism": partitions,
        "write_parallelism": partitions,
    }
    return event_type


@lru_cache(maxsize=1)
def bodies_of(load: Load) -> Sequence[bytes]:
    """The bodies of a load, created once for all rounds and both brokers."""
    event_shape = (SHAPES | FURTHER_SHAPES)[load.shape]
    bodies: list[bytes] = []
    while len(bodies) < BODIES and sum(map(len, bodies)) < MAX_BYTES_OF_BODIES:
        body = event_shape.spell([event_shape.make_event() for _ in range(load.events)])
        bodies.append(gzip.compress(body, 6) if load.is_zipped else body)
    return bodies


async def measure_publishing(load: Load, broker: ComparedBroker, seconds: float) -> Figures:
    name = broker.create(event_type_definition((SHAPES | FURTHER_SHAPES)[load.shape]))
    headers = {"Content-Encoding": "gzip"} if load.is_zipped else {}
    broker.publish(name, bodies_of(load)[:1], **headers)
    path = f"/event-types/{name}/events"
    requests = [request_bytes(broker.address[0], "POST", path, body, **headers) for body in bodies_of(load)]
    before = broker.cpu_seconds()
    began = time.perf_counter()
    begin = began + seconds / 4
    loop = asyncio.get_running_loop()
    clients: list[RequestLoop] = []
    ends: list[asyncio.Future[None]] = []
    for number in range(load.clients):
        ends.append(loop.create_future())
        clients.append(RequestLoop(requests, number, begin, begin + seconds, ends[-1]))
        await loop.create_connection(partial(lambda each: each, clients[-1]), *broker.address)
    await asyncio.gather(*ends)
    measured, cpu = time.perf_counter() - begin, broker.cpu_seconds() - before
    took = [each for client in clients for each in client.took]
    figures = {
        f"{load.name}: events/s": Figure(len(took) * load.events / measured, HIGHER),
        **percentiles(load.name, took),
    }
    if broker.pids:
        sent = sum(client.sent for client in clients) * load.events
        figures[f"{load.name}: µs of CPU an event"] = Figure(1e6 * cpu / sent, LOWER)
    return figures


# Streams


def numbered_batch(first: int, events: int) -> bytes:
    return orjson.dumps([random_order(n=first + each) for each in range(events)])


def create_filled_event_type(broker: ComparedBroker, events: int) -> str:
    """Create an event type with this many events in its only partition, and return its name."""
    name = broker.create(event_type_definition(SHAPES["plain"]))
    broker.publish(name, (numbered_batch(first, min(1000, events - first)) for first in range(0, events, 1000)))
    return name


async def receive(connection: Connection) -> bytes:
    """Receive some bytes. If nothing arrives for a minute, the broker has failed."""
    data = await asyncio.wait_for(connection.reader.read(1 << 20), RECEIVE_TIMEOUT_SECONDS)
    if not data:
        raise BenchmarkFailed("The broker has ended a stream early.")
    return data


async def receive_numbers(connection: Connection) -> AsyncIterator[Sequence[int]]:
    """Yield the numbers of events as they arrive."""
    rest = b""
    while True:
        rest += await receive(connection)
        found = [each for each in NUMBER.finditer(rest) if each.end() < len(rest)]
        rest = rest[found[-1].end() :] if found else rest
        yield [int(each[1]) for each in found]


FROM_BEGIN = '[{"partition":"0","offset":"BEGIN"}]'


async def measure_low_level_streams(streams: int, broker: ComparedBroker, seconds: float) -> Figures:
    """Read low-level streams from the beginning, in batches of 100."""
    events = int(20_000 * seconds)
    name = create_filled_event_type(broker, events)
    connections = [await Connection.open(broker) for _ in range(streams)]
    path = f"/event-types/{name}/events?batch_limit={BATCH}&stream_limit={events}&batch_flush_timeout=1"
    first_bytes: list[float] = []

    async def follow(connection: Connection) -> None:
        await connection.send(connection.request("GET", path, X_Nakadi_Cursors=FROM_BEGIN))
        await connection.read_head()
        await connection.reader.readexactly(1)
        first_bytes.append(time.perf_counter() - began)
        seen = 0
        async for numbers in receive_numbers(connection):
            seen += len(numbers)
            if seen >= events:
                return

    with closing_connections(connections):
        began = time.perf_counter()
        await asyncio.gather(*map(follow, connections))
        rate = streams * events / (time.perf_counter() - began)
    label = "one low-level stream" if streams == 1 else f"{streams} low-level streams"
    return {
        f"{label}: events/s": Figure(rate, HIGHER),
        f"{label}: first byte, ms": Figure(1000 * max(first_bytes), LOWER),
    }


async def measure_subscription(broker: ComparedBroker, seconds: float) -> Figures:
    """Read one subscription stream, and commit each batch of 100, one after the other."""
    events = max(int(20_000 * seconds) // BATCH, 1) * BATCH
    name = create_filled_event_type(broker, events)
    path = broker.subscribe(name)
    consumer, committer = await Connection.open(broker), await Connection.open(broker)
    with closing_connections([consumer, committer]):
        query = f"batch_limit={BATCH}&max_uncommitted_events=10000&batch_flush_timeout=1&stream_limit={events}"
        await consumer.send(consumer.request("GET", f"{path}/events?{query}"))
        stream_id = re.search(rb"x-nakadi-streamid: (\S+)", await consumer.read_head(), re.IGNORECASE)
        assert stream_id
        cursors: asyncio.Queue[bytes | None] = asyncio.Queue()
        took: list[float] = []

        async def commit() -> None:
            while (cursor := await cursors.get()) is not None:
                body = b'{"items":[' + cursor + b"]}"
                request = committer.request("POST", f"{path}/cursors", body, X_Nakadi_StreamId=stream_id[1].decode())
                began = time.perf_counter()
                await committer.ask(request)
                took.append(time.perf_counter() - began)

        committing = asyncio.create_task(commit())
        began, seen, rest = time.perf_counter(), 0, b""
        while seen < events:
            rest += await receive(consumer)
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


async def measure_idle_streams(broker: ComparedBroker, _seconds: float) -> Figures:
    """Open two hundred idle streams, one after the other."""
    name = broker.create(event_type_definition(SHAPES["plain"]))
    took: list[float] = []
    connections: list[Connection] = []
    before = broker.memory_bytes()
    with closing_connections(connections):
        for _ in range(IDLE_STREAMS):
            connections.append(await Connection.open(broker))
            began = time.perf_counter()
            await connections[-1].send(connections[-1].request("GET", f"/event-types/{name}/events"))
            await connections[-1].read_head()
            took.append(time.perf_counter() - began)
        grown = broker.memory_bytes() - before
    figures: dict[str, Figure] = dict(percentiles(f"{IDLE_STREAMS} idle streams, head of the answer", took))
    if broker.pids:
        figures["idle stream: KiB"] = Figure(max(grown, 1) / IDLE_STREAMS / 1024, LOWER)
    return figures


async def measure_delivery(rate: int, broker: ComparedBroker, seconds: float) -> Figures:
    """Measure the time from publishing an event until its delivery on an open stream, at this rate."""
    name = broker.create(event_type_definition(SHAPES["plain"]))
    count = int(rate * max(seconds, MIN_DELIVERY_SECONDS))
    consumer = await Connection.open(broker)
    publishers = [await Connection.open(broker) for _ in range(min(rate, DELIVERY_CONNECTIONS))]
    path = f"/event-types/{name}/events"
    requests = [publishers[0].request("POST", path, numbered_batch(number, 1)) for number in range(count)]
    due = iter(range(count))
    sent: dict[int, float] = {}
    took: list[float] = []

    async def publish_in_turn(publisher: Connection) -> None:
        # An event that is due while all publishers wait for answers is sent, and measured, as soon as one is free.
        for number in due:
            await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
            sent[number] = time.perf_counter()
            await publisher.ask(requests[number])

    with closing_connections([consumer, *publishers]):
        query = "?batch_limit=1&batch_flush_timeout=1"
        await consumer.send(consumer.request("GET", path + query, X_Nakadi_Cursors=FROM_BEGIN))
        await consumer.read_head()
        began = time.perf_counter()
        publishing = asyncio.gather(*map(publish_in_turn, publishers))
        async for numbers in receive_numbers(consumer):
            now = time.perf_counter()
            took += [now - sent[number] for number in numbers]
            if len(took) >= count:
                break
        await publishing
    return percentiles(f"delivery at {rate}/s", took)


PARTS: Mapping[str, Mapping[str, Measure]] = {
    **{part: {load.name: partial(measure_publishing, load) for load in loads} for part, loads in LOADS.items()},
    "delivery": {f"delivery at {rate}/s": partial(measure_delivery, rate) for rate in DELIVERY_RATES},
    "stream": {
        "one low-level stream": partial(measure_low_level_streams, 1),
        "four low-level streams": partial(measure_low_level_streams, 4),
    },
    "subscription": {"subscription, a commit a batch": measure_subscription},
    "idle": {"idle streams": measure_idle_streams},
}

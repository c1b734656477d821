"""How fast is the client for Python, and what does it cost, compared with raw httpx, pynakadi, and Kafka clients?

    python benchmarks/client.py [--events N] [--rounds N] [--size N ...] [--kafka]

pynakadi is compared if it is installed. `--kafka` starts a Kafka on this machine, and compares confluent-kafka and
aiokafka, if they are installed, with the client's figures of the same run.

A broker with SQLite runs in its own process; each way of publishing or consuming has its own process too, and the ways
alternate. CPU time covers all threads of the client's process. On a busy machine, rates only show how much of the
machine was free. The figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# Load asyncio's part of anyio here: each process pays this once, so it is not a cost of an event.
import anyio._backends._asyncio  # noqa: F401
import httpx
import msgspec

from nakadi_client import Consumer, Producer, StreamOptions, aio
from nakadi_client.lines import LineSplitter

BATCH = 500
WINDOW = 50_000
PARTITIONS = 4
# A loop of single posts is a hundred times slower: it is measured with fewer events.
PART_OF_LOOP = 200


class Clock:
    """A clock that starts before a way is set up, because creating an httpx client takes 20 ms to read certificates."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._began, self._cpu = time.perf_counter(), time.process_time()

    def seconds(self) -> tuple[float, float]:
        return time.perf_counter() - self._began, time.process_time() - self._cpu


Way = Callable[[str, int, int, Clock], int]


def events(count: int, size: int) -> Iterator[dict[str, Any]]:
    """Events of about this many bytes, without metadata."""
    text = "x" * (size - 30)
    return ({"n": n, "order": "A-1", "text": text} for n in range(count))


def produce(url: str, count: int, size: int, clock: Clock) -> int:
    with Producer(url, "plain", metadata=None) as producer:
        clock.begin()
        for event in events(count, size):
            producer.send(event)
    return count


def produce_with_metadata(url: str, count: int, size: int, clock: Clock) -> int:
    with Producer(url, "business") as producer:
        clock.begin()
        for event in events(count, size):
            producer.send(event)
    return count


def produce_in_loop(url: str, count: int, size: int, clock: Clock) -> int:
    async def run() -> None:
        async with aio.Producer(url, "plain", metadata=None) as producer:
            clock.begin()
            for event in events(count, size):
                await producer.send(event)

    asyncio.run(run())
    return count


def post_one_by_one(url: str, count: int, size: int, clock: Clock) -> int:
    with httpx.Client(base_url=url) as client:
        clock.begin()
        for event in events(count // PART_OF_LOOP, size):
            client.post("/event-types/plain/events", json=[event]).raise_for_status()
    return count // PART_OF_LOOP


def post_batches(
    url: str, count: int, size: int, clock: Clock, *, event_type: str = "plain", metadata: bool = False
) -> int:
    batch: list[Any] = []
    with httpx.Client(base_url=url) as client:
        clock.begin()
        for event in events(count, size):
            if metadata:
                event["metadata"] = {"eid": str(uuid.uuid4()), "occurred_at": datetime.now(UTC).isoformat()}
            batch.append(event)
            if len(batch) == BATCH:
                client.post(f"/event-types/{event_type}/events", json=batch).raise_for_status()
                batch = []
    return count


def pynakadi_batches(url: str, count: int, size: int, clock: Clock) -> int:
    from pyNakadi import NakadiClient  # noqa: PLC0415  # it is not installed everywhere

    client = NakadiClient("token", url)
    batch: list[Any] = []
    clock.begin()
    for event in events(count, size):
        batch.append(event)
        if len(batch) == BATCH:
            client.post_events("plain", batch)
            batch = []
    return count


def consume(url: str, count: int, _size: int, clock: Clock) -> int:
    seen = 0
    with Consumer(
        url, create_subscription(url), options=StreamOptions(batch_limit=BATCH, max_uncommitted_events=WINDOW)
    ) as consumer:
        clock.begin()
        for batch in consumer:
            seen += len(batch.events)
            if seen >= count:
                batch.done()
                break
    return seen


def consume_in_loop(url: str, count: int, _size: int, clock: Clock) -> int:
    async def run() -> int:
        seen = 0
        async with aio.Consumer(
            url, create_subscription(url), options=StreamOptions(batch_limit=BATCH, max_uncommitted_events=WINDOW)
        ) as consumer:
            clock.begin()
            async for batch in consumer:
                seen += len(batch.events)
                if seen >= count:
                    batch.done()
                    break
        return seen

    return asyncio.run(run())


def read_lines(url: str, count: int, _size: int, clock: Clock) -> int:
    """Read a low-level stream line by line with httpx and json, without commits."""
    cursors = json.dumps([{"partition": str(each), "offset": "BEGIN"} for each in range(PARTITIONS)])
    parameters = {"batch_limit": BATCH, "stream_limit": count, "batch_flush_timeout": 1}
    seen = 0
    headers = {"X-Nakadi-Cursors": cursors, "Accept-Encoding": "identity"}
    with httpx.Client(base_url=url, timeout=60, headers=headers) as client:
        clock.begin()
        with client.stream("GET", "/event-types/read/events", params=parameters) as response:
            for line in response.iter_lines():
                seen += len(json.loads(line).get("events", ()))
                if seen >= count:
                    break
    return seen


def read_subscription(url: str, count: int, _size: int, clock: Clock) -> int:
    """Read the consumer's stream line by line with httpx and json, without commits."""
    parameters = {"batch_limit": BATCH, "max_uncommitted_events": count + BATCH, "batch_flush_timeout": 1}
    subscription, seen = create_subscription(url), 0
    with httpx.Client(base_url=url, timeout=60, headers={"Accept-Encoding": "identity"}) as client:
        clock.begin()
        with client.stream("GET", f"/subscriptions/{subscription}/events", params=parameters) as response:
            for line in response.iter_lines():
                seen += len(json.loads(line).get("events", ()))
                if seen >= count:
                    break
    return seen


def read_and_commit(url: str, count: int, _size: int, clock: Clock) -> int:
    """Read a subscription's stream with httpx and json, and commit after each batch."""
    subscription = create_subscription(url)
    parameters = {"batch_limit": BATCH, "max_uncommitted_events": WINDOW, "batch_flush_timeout": 1}
    seen = 0
    with httpx.Client(base_url=url, timeout=60, headers={"Accept-Encoding": "identity"}) as client:
        clock.begin()
        with client.stream("GET", f"/subscriptions/{subscription}/events", params=parameters) as response:
            stream = {"X-Nakadi-StreamId": response.headers["X-Nakadi-StreamId"]}
            splitter = LineSplitter()
            for chunk in response.iter_bytes():
                for line in splitter.feed(chunk):
                    batch = json.loads(line)
                    if not batch.get("events"):
                        continue
                    seen += len(batch["events"])
                    commit = {"items": [batch["cursor"]]}
                    client.post(f"/subscriptions/{subscription}/cursors", json=commit, headers=stream)
                if seen >= count:
                    break
    return seen


def create_subscription(url: str) -> str:
    """Create a subscription that begins at the first event."""
    body = {
        "owning_application": "a",
        "event_types": ["read"],
        "read_from": "begin",
        "consumer_group": uuid.uuid4().hex,
    }
    return str(httpx.post(f"{url}/subscriptions", json=body).raise_for_status().json()["id"])


PRODUCING: Mapping[str, Way] = {
    "Producer, one by one": produce,
    "aio.Producer, one by one": produce_in_loop,
    "httpx, a post for each event": post_one_by_one,
    "httpx, batches of 500": post_batches,
    "Producer, with metadata": produce_with_metadata,
    "httpx, batches with metadata": partial(post_batches, event_type="business", metadata=True),
    **({"pynakadi, batches of 500": pynakadi_batches} if find_spec("pyNakadi") else {}),
}
CONSUMING: Mapping[str, Way] = {
    "Consumer, a commit a batch": consume,
    "aio.Consumer, a commit a batch": consume_in_loop,
    "httpx, lines, no commits": read_subscription,
    "httpx, lines, a commit a batch": read_and_commit,
    "httpx, a low-level stream": read_lines,
}


def produce_confluent(servers: str, count: int, size: int, clock: Clock) -> int:
    from confluent_kafka import Producer as KafkaProducer  # noqa: PLC0415  # it is not installed everywhere

    producer = KafkaProducer({"bootstrap.servers": servers, "linger.ms": 10, "acks": "all"})
    producer.list_topics("plain", timeout=10)
    clock.begin()
    for event in events(count, size):
        while True:
            try:
                producer.produce("plain", msgspec.json.encode(event))
                break
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    producer.flush()
    return count


def produce_aiokafka(servers: str, count: int, size: int, clock: Clock) -> int:
    from aiokafka import AIOKafkaProducer  # noqa: PLC0415  # it is not installed everywhere

    async def run() -> None:
        async with AIOKafkaProducer(bootstrap_servers=servers, linger_ms=10, acks="all") as producer:
            clock.begin()
            for event in events(count, size):
                await producer.send("plain", msgspec.json.encode(event))
            await producer.flush()

    asyncio.run(run())
    return count


def consume_confluent(servers: str, count: int, _size: int, clock: Clock) -> int:
    from confluent_kafka import Consumer as KafkaConsumer  # noqa: PLC0415  # it is not installed everywhere

    group = {"group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = KafkaConsumer({"bootstrap.servers": servers, **group})
    consumer.subscribe(["read"])
    found = consumer.consume(1, 30)
    clock.begin()
    seen = 0
    while True:
        for message in found:
            msgspec.json.decode(message.value())
        seen += len(found)
        if found:
            consumer.commit(asynchronous=seen < count)
        if seen >= count:
            break
        found = consumer.consume(BATCH, 1)
    return seen


def consume_aiokafka(servers: str, count: int, _size: int, clock: Clock) -> int:
    from aiokafka import AIOKafkaConsumer  # noqa: PLC0415  # it is not installed everywhere

    async def run() -> int:
        seen = 0
        options = {"group_id": uuid.uuid4().hex, "auto_offset_reset": "earliest", "enable_auto_commit": False}
        async with AIOKafkaConsumer("read", bootstrap_servers=servers, **options) as consumer:
            clock.begin()
            while seen < count:
                for messages in (await consumer.getmany(max_records=BATCH, timeout_ms=1_000)).values():
                    for message in messages:
                        msgspec.json.decode(message.value)
                    seen += len(messages)
                await consumer.commit()
        return seen

    return asyncio.run(run())


KAFKA_PRODUCING: Mapping[str, Way] = {
    "confluent-kafka, one by one": produce_confluent,
    "aiokafka, one by one": produce_aiokafka,
}
KAFKA_CONSUMING: Mapping[str, Way] = {
    "confluent-kafka, a commit a batch": consume_confluent,
    "aiokafka, a commit a batch": consume_aiokafka,
}


def compare_kafka(count: int, size: int, rounds: int) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic  # noqa: PLC0415  # it is not installed everywhere

    from infra.laptop import kafka_local  # noqa: PLC0415  # it needs a Java
    from infra.laptop.processes import stop_process  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        server = kafka_local.start_reliably(folder)
        try:
            topics = [NewTopic(name, PARTITIONS, 1) for name in ("plain", "read")]
            admin = AdminClient({"bootstrap.servers": server.address})
            for created in admin.create_topics(topics).values():
                created.result()
            compare(KAFKA_PRODUCING, server.address, count, size, rounds)
            fill_topic(server.address, count, size)
            compare(KAFKA_CONSUMING, server.address, count, size, rounds)
        finally:
            stop_process(server.process)


def fill_topic(servers: str, count: int, size: int) -> None:
    from confluent_kafka import Producer as KafkaProducer  # noqa: PLC0415  # it is not installed everywhere

    producer = KafkaProducer({"bootstrap.servers": servers, "queue.buffering.max.messages": count + 1})
    for event in events(count, size):
        producer.produce("read", msgspec.json.encode(event))
    producer.flush()


def serve(port: Any, folder: str) -> None:
    from nakadi.local import Broker  # noqa: PLC0415  # the clients do without

    data = f"sqlite:///{folder}/nakadi.db"
    with Broker(registry=data, event_log=data) as broker:
        port.send(broker.url)
        with suppress(EOFError):
            port.recv()


@contextmanager
def serve_broker() -> Iterator[str]:
    ours, theirs = multiprocessing.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, folder))
        process.start()
        try:
            yield ours.recv()
        finally:
            ours.send(None)
            process.join()


def create(url: str, name: str, category: str) -> None:
    enrichment = {} if category == "undefined" else {"enrichment_strategies": ["metadata_enrichment"]}
    statistic = {"messages_per_minute": 1, "message_size": 1} | dict.fromkeys(
        ("read_parallelism", "write_parallelism"), PARTITIONS
    )
    document = {"name": name, "category": category, "owning_application": "a", "default_statistic": statistic}
    document |= {"schema": {"type": "json_schema", "schema": "{}"}, "compatibility_mode": "none", **enrichment}
    httpx.post(f"{url}/event-types", json=document).raise_for_status()


def work(way: Way, url: str, count: int, size: int, result: Any) -> None:
    clock = Clock()
    done = way(url, count, size, clock)
    result.send((done, *clock.seconds()))


def measure(way: Way, url: str, count: int, size: int) -> tuple[float, float]:
    """Events per second, and µs of CPU per event, in a process of its own."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=work, args=(way, url, count, size, theirs))
    process.start()
    done, seconds, cpu = ours.recv()
    process.join()
    return done / seconds, cpu / done * 1e6


def compare(ways: Mapping[str, Way], url: str, count: int, size: int, rounds: int) -> None:
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            figures[name].append(measure(way, url, count, size))
    print(f"\n{count:,} events of {size:,} bytes, medians of {rounds} alternating rounds")
    for name, found in figures.items():
        rate, cpu = (statistics.median(column) for column in zip(*found, strict=True))
        print(f"  {name:36} {rate:>10,.0f} events/s {cpu:>8.2f} µs of CPU an event")


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, nargs="*", default=[100, 1_000], help="bytes of an event")
    parser.add_argument("--kafka", action="store_true", help="compare clients of Kafka as well")
    chosen = parser.parse_args(arguments or None)
    for size in chosen.size:
        with serve_broker() as url:
            for name, category in (("plain", "undefined"), ("business", "business"), ("read", "undefined")):
                create(url, name, category)
            compare(PRODUCING, url, chosen.events, size, chosen.rounds)
            post_batches(url, chosen.events, size, Clock(), event_type="read")
            compare(CONSUMING, url, chosen.events, size, chosen.rounds)
        if chosen.kafka:
            compare_kafka(chosen.events, size, chosen.rounds)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()

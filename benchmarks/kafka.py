"""What does a log in Kafka cost? Publishing and streaming over HTTP, compared with the client library's own loops.

    python benchmarks/kafka.py [publish] [workers] [stream] [--quick] [--json FILE]

Everything uses the same Kafka server: its own, which `make test-engines` fetches, or the one at KAFKA=host:9092. The
loops write and read the bytes that the broker stores, without HTTP and without parsing them. Publishing is also
compared with the embedded engine, in alternating rounds, by the CPU time of the broker's process. `workers` publishes
to a broker with two worker processes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from uuid import uuid4

import httpx
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import workers
from benchmarks.publish import Load, RunningServer, a_request, a_server, publish_load, register, serve
from benchmarks.stream import read_all
from infra.laptop import kafka_local
from infra.laptop.processes import stop_process
from nakadi.app.broker import open_broker
from nakadi.app.engines import open_event_log
from nakadi.app.routes import make_application
from nakadi.app.settings import Settings
from nakadi.engines.kafka.writing import ZSTD_LEVEL
from nakadi.ports.clock import SystemClock

STRATEGY = "random"
CLIENTS = 64
ROUNDS = 3
BATCHES = (1, 100)
DIFFERENT_EVENTS = 5000

Figures = dict[str, float]


@contextmanager
def a_kafka() -> Iterator[str]:
    """The address of a Kafka server."""
    if own := os.environ.get("KAFKA"):
        yield own
        return
    with tempfile.TemporaryDirectory() as folder:
        server = kafka_local.start(folder)
        try:
            kafka_local.wait_until_ready(server)
            yield server.address
        finally:
            stop_process(server.process)


def serve_broker(log: str, listening: socket.socket, folder: str) -> None:
    registry = f"sqlite:///{folder}/{uuid4().hex}.db"
    broker = open_broker(Settings(registry=registry, event_log=log or registry))
    register(broker, STRATEGY)
    serve(listening, make_application(broker))


def create_topic(servers: str) -> str:
    name = uuid4().hex
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(name, 1, 1, config={"max.message.bytes": "8388608"})])[name].result(30)
    return name


def native_publish(servers: str, values: Sequence[bytes], batch: int, seconds: float) -> float:
    """Events per second of the library's own producer: as fast as possible, or with one pending event per client.

    It compresses like the broker, and different events: a repeated event costs next to nothing to compress.
    """
    settings = {
        "acks": "all",
        "enable.idempotence": True,
        "compression.type": "zstd",
        "compression.level": ZSTD_LEVEL,
        "linger.ms": 5 if batch > 1 else 0,
    }
    producer = Producer({"bootstrap.servers": servers, **settings})
    topic, acknowledged, sent = create_topic(servers), 0, 0

    def count_delivery(error: object, _message: object) -> None:
        nonlocal acknowledged
        assert error is None, error
        acknowledged += 1

    most = 50_000 if batch > 1 else CLIENTS
    began = time.perf_counter()
    while time.perf_counter() < began + seconds:
        while sent - acknowledged >= most:
            producer.poll(0.001)
        producer.produce(topic, values[sent % len(values)], on_delivery=count_delivery)
        sent += 1
        producer.poll(0)
    producer.flush(60)
    return acknowledged / (time.perf_counter() - began)


def native_at_pace(servers: str, values: Sequence[bytes], batch: int, pace: float, seconds: float) -> float:
    """The 99th percentile in milliseconds, from when a batch is due until its last event is acknowledged, if the
    library's own producer sends a batch every `pace` seconds. It collects events for a millisecond: the server could
    not handle a request for each event.
    """
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "enable.idempotence": True, "linger.ms": 1})
    topic, took = create_topic(servers), []
    producer.produce(topic, values[0])
    producer.flush(60)
    begin = time.perf_counter()
    for number in range(int(seconds / pace)):
        due = begin + number * pace
        while (wait := due - time.perf_counter()) > 0:
            producer.poll(wait)

        def note_delay(error: object, _message: object, due: float = due) -> None:
            assert error is None, error
            took.append(time.perf_counter() - due)

        for left in range(batch, 0, -1):
            if left == 1:
                producer.produce(topic, values[left % len(values)], on_delivery=note_delay)
            else:
                producer.produce(topic, values[left % len(values)])
    producer.flush(60)
    return sorted(took)[len(took) * 99 // 100] * 1000


def over_http(server: RunningServer, batch: int, seconds: float, pace: float = 0.0) -> tuple[float, float, float]:
    """Requests per second, the 99th percentile in milliseconds, and microseconds of CPU per event."""
    load = Load(CLIENTS, [a_request(STRATEGY, batch, number * batch) for number in range(50)], seconds, pace)
    before = server.cpu_seconds()
    asyncio.run(publish_load(server.port, load))
    cpu = (server.cpu_seconds() - before) / load.sent / batch * 1e6
    took = sorted(load.took)
    return len(took) / seconds, took[len(took) * 99 // 100] * 1000, cpu


def measure_publishing(servers: str, seconds: float) -> Figures:
    figures: Figures = {}
    in_kafka = f"kafka://{servers}?prefix={uuid4().hex[:8]}-"
    with (
        tempfile.TemporaryDirectory() as folder,
        a_server(partial(serve_broker, in_kafka), folder) as kafka,
        a_server(partial(serve_broker, ""), folder) as embedded,
    ):
        for batch in BATCHES:
            values = stored_events(kafka.port, in_kafka)
            rounds = [
                (
                    over_http(kafka, batch, seconds),
                    over_http(embedded, batch, seconds),
                    native_publish(servers, values, batch, seconds),
                )
                for _ in range(ROUNDS)
            ]
            rate = statistics.median(mine[0] for mine, _, _ in rounds)
            pace = 2 / rate
            paced = [
                (
                    over_http(kafka, batch, seconds, CLIENTS * pace)[1],
                    native_at_pace(servers, values, batch, pace, seconds),
                )
                for _ in range(ROUNDS)
            ]
            figures |= {
                f"publish_{batch}_requests_s": rate,
                f"publish_{batch}_events_s": rate * batch,
                f"publish_{batch}_of_native": statistics.median(mine[0] * batch / own for mine, _, own in rounds),
                f"publish_{batch}_native_events_s": statistics.median(own for _, _, own in rounds),
                f"publish_{batch}_cpu_us": statistics.median(mine[2] for mine, _, _ in rounds),
                f"publish_{batch}_cpu_of_embedded": statistics.median(mine[2] / other[2] for mine, other, _ in rounds),
                f"publish_{batch}_p99_at_half_load_ms": statistics.median(mine for mine, _ in paced),
                f"publish_{batch}_p99_added_ms": statistics.median(mine - own for mine, own in paced),
            }
    return figures


def measure_workers(servers: str, seconds: float) -> Figures:
    """Measure publishing with two workers and 100 events per batch. The machine's cores are the limit, since Kafka and
    the clients also run on them. The library's own producer runs in one process, as its users run it.
    """
    in_kafka = f"kafka://{servers}?prefix={uuid4().hex[:8]}-"
    batch = max(BATCHES)
    with workers.run_broker(2, in_kafka) as broker:
        values = stored_events(broker.port, in_kafka)
        requests = [a_request(STRATEGY, batch, number * batch) for number in range(50)]
        rounds = [
            (
                workers.measure(broker, Load(CLIENTS, requests, seconds)),
                native_publish(servers, values, batch, seconds),
            )
            for _ in range(ROUNDS)
        ]
    name = f"publish_{batch}_by_2_workers"
    return {
        f"{name}_events_s": statistics.median(mine.rate * batch for mine, _ in rounds),
        f"{name}_of_native": statistics.median(mine.rate * batch / own for mine, own in rounds),
        f"{name}_cpu_us": statistics.median((mine.supervisor + mine.others) / batch for mine, _ in rounds),
    }


def stored_events(port: int, url: str) -> Sequence[bytes]:
    """The bytes of different events in the broker's log."""
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        for first in range(0, DIFFERENT_EVENTS, 1000):
            body = a_request(STRATEGY, 1000, first).partition(b"\r\n\r\n")[2]
            client.post(f"/event-types/{STRATEGY}/events", content=body).raise_for_status()
        topic = client.get(f"/event-types/{STRATEGY}/timelines").json()[0]["topic"]
    values: list[bytes] = []
    with closing(open_event_log(url, SystemClock())) as log:
        place = log.bounds(topic, [0])[0].oldest
        while len(values) < DIFFERENT_EVENTS:
            found = log.read(topic, 0, place)
            values += [event.record.value for event in found.events if event.record.value is not None]
            place = found.next_offset
    return values


def measure_streaming(servers: str, events: int) -> Figures:
    """Read old events from the beginning: by a client over HTTP, by the log alone, and by the library's own
    consumer.
    """
    url = f"kafka://{servers}?prefix={uuid4().hex[:8]}-"
    with tempfile.TemporaryDirectory() as folder, a_server(partial(serve_broker, url), folder) as server:
        base = f"http://127.0.0.1:{server.port}"
        with httpx.Client(base_url=base, timeout=60) as client:
            for first in range(0, events, 1000):
                body = a_request(STRATEGY, 1000, first).partition(b"\r\n\r\n")[2]
                client.post(f"/event-types/{STRATEGY}/events", content=body).raise_for_status()
            topic = client.get(f"/event-types/{STRATEGY}/timelines").json()[0]["topic"]
        name = url.partition("prefix=")[2] + topic
        target = f"/event-types/{STRATEGY}/events?batch_limit=100&stream_limit={events}"
        cursors = 'X-Nakadi-Cursors: [{"partition":"0","offset":"BEGIN"}]\r\n'
        rounds = []
        for _ in range(ROUNDS):
            native = native_consume(servers, name, events)
            seconds, size = read_all(base, [target], cursors)
            rounds.append(
                (
                    native,
                    size / (size_of_events(servers, name, events) / events) / seconds,
                    read_from_log(url, topic, events),
                )
            )
    return {
        "stream_native_events_s": statistics.median(native for native, _, _ in rounds),
        "stream_http_events_s": statistics.median(http for _, http, _ in rounds),
        "stream_http_of_native": statistics.median(http / native for native, http, _ in rounds),
        "stream_log_events_s": statistics.median(log for _, _, log in rounds),
        "stream_log_of_native": statistics.median(log / native for native, _, log in rounds),
    }


def native_consume(servers: str, topic: str, events: int) -> float:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    got, began = 0, 0.0
    while got < events:
        messages = consumer.consume(1000, 0.05)
        if messages and not began:
            began = time.perf_counter()
        for message in messages:
            got += message.value() is not None
    rate = events / (time.perf_counter() - began)
    consumer.close()
    return rate


def size_of_events(servers: str, topic: str, events: int) -> int:
    """The total size of all values in bytes."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    sizes: list[int] = []
    while len(sizes) < events:
        sizes += [len(message.value()) for message in consumer.consume(1000, 0.05)]
    consumer.close()
    return sum(sizes[:events])


def read_from_log(url: str, topic: str, events: int) -> float:
    with closing(open_event_log(url, SystemClock())) as log:
        place, began = log.read(topic, 0, 0).next_offset, time.perf_counter()
        first = place
        while place < events:
            place = log.read(topic, 0, place).next_offset
        return (events - first) / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=["publish", "workers", "stream", []], help="all of it unless told")
    parser.add_argument("--quick", action="store_true", help="a fifth of the time, for a first look")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    figures: Figures = {}
    with a_kafka() as servers:
        if "publish" in (options.what or ["publish"]):
            figures |= measure_publishing(servers, 1.0 if options.quick else 5.0)
        if "workers" in (options.what or ["workers"]):
            figures |= measure_workers(servers, 1.0 if options.quick else 5.0)
        if "stream" in (options.what or ["stream"]):
            figures |= measure_streaming(servers, 20_000 if options.quick else 100_000)
    for name, value in figures.items():
        print(f"{name:36}{value:12.2f}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()

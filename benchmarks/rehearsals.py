"""How much does a rehearsal cost, against reading the same events once?

    python benchmarks/rehearsals.py [--events 1000000] [--rounds 3]

A reading is one stream from the beginning to one client, which parses what it reads, as consumers do. The script
compares CPU time in alternating rounds, with system time and all threads: on a busy machine, rates only say how much of
it was left. It counts the broker's process, and that of the client. The events are orders of 700 bytes with metadata,
in SQLite.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import orjson

from benchmarks.event_shapes import ORDER, order
from benchmarks.stream import BEGIN, cpu_of

NAME = "bench.rehearsal"
BATCH = 1000
SCHEMA = {"type": "object", "properties": ORDER, "required": ["order_number", "customer", "lines"]}


def serve(ready: Any, stop: Any) -> None:
    from nakadi.app.broker import open_broker  # noqa: PLC0415  # the reader does without
    from nakadi.app.routes import make_application  # noqa: PLC0415
    from nakadi.app.settings import Settings  # noqa: PLC0415
    from nakadi.http.server import tune_interpreter  # noqa: PLC0415
    from nakadi.local.serving import ServerThread  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/nakadi.db"
        broker = open_broker(Settings(registry=url, event_log=url))
        tune_interpreter()
        with ServerThread(make_application(broker)) as serving:
            ready.send(serving.url)
            stop.wait()
        broker.close()


@contextmanager
def serving() -> Iterator[tuple[httpx.Client, int]]:
    """A client of a broker in a process of its own, and the id of that process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    stop = context.Event()
    process = context.Process(target=serve, args=(theirs, stop))
    process.start()
    assert process.pid is not None
    try:
        with httpx.Client(base_url=ours.recv(), timeout=60) as client:
            yield client, process.pid
    finally:
        stop.set()
        process.join(30)
        process.kill()


def fill(client: httpx.Client, events: int) -> None:
    client.post(
        "/event-types",
        json={
            "name": NAME,
            "owning_application": "bench",
            "category": "business",
            "enrichment_strategies": ["metadata_enrichment"],
            "schema": {"type": "json_schema", "schema": json.dumps(SCHEMA)},
        },
    ).raise_for_status()
    bodies = [orjson.dumps([order() for _ in range(BATCH)]) for _ in range(20)]
    headers = {"content-type": "application/json"}
    for number in range(events // BATCH):
        path = f"/event-types/{NAME}/events"
        client.post(path, content=bodies[number % len(bodies)], headers=headers).raise_for_status()


def read(client: httpx.Client, events: int) -> None:
    target = f"/event-types/{NAME}/events?batch_limit={BATCH}&stream_limit={events}"
    count = 0
    with client.stream("GET", target, headers={"X-Nakadi-Cursors": BEGIN, "Accept-Encoding": "identity"}) as answer:
        rest = b""
        for piece in answer.iter_raw(1_000_000):
            *lines, rest = (rest + piece).split(b"\n")
            count += sum(len(orjson.loads(line).get("events", ())) for line in lines)
    assert count == events, count


def rehearse(client: httpx.Client, events: int, schema: Any = SCHEMA) -> dict[str, Any]:
    request = {"schema": {"type": "json_schema", "schema": json.dumps(schema)}, "events": events}
    answer = client.post(f"/event-types/{NAME}/schemas/rehearsals", json=request | {"compatibility_mode": "none"})
    found: dict[str, Any] = answer.raise_for_status().json()
    while found["state"] == "running":
        time.sleep(0.5)
        found = client.get(answer.headers["location"]).json()
    assert found["events_seen"] == events, found
    return found


def failing(percent: int) -> dict[str, Any]:
    """The schema, which about so many events do not fit."""
    lines = {
        **ORDER["lines"]["items"]["properties"],
        "price": {"type": "number", "maximum": 99.99 * (1 - percent / 300)},
    }
    return SCHEMA | {"properties": ORDER | {"lines": {"type": "array", "items": {"properties": lines}}}}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    events = options.events
    ways: dict[str, Callable[[httpx.Client], object]] = {
        "read": lambda client: read(client, events),
        "rehearse": lambda client: rehearse(client, events),
        "rehearse, 1 % fail": lambda client: rehearse(client, events, failing(1)),
    }
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    with serving() as (client, process):
        fill(client, events)
        for _ in range(options.rounds):
            for name, way in ways.items():
                before, own = cpu_of(process), time.process_time()
                began = time.perf_counter()
                way(client)
                spent = (cpu_of(process) - before, time.process_time() - own)
                seen[name].append((spent[0] / events * 1e6, spent[1] / events * 1e6))
                print(f"{name}: {seen[name][-1]} µs, {time.perf_counter() - began:.1f} s", flush=True)
    print("| | broker, µs an event | with its client | of a reading: broker, with its client |")
    print("|---|---|---|---|")
    for name, costs in seen.items():
        broker, both = (statistics.median(figures) for figures in ([a for a, _ in costs], [a + b for a, b in costs]))
        pairs = list(zip(costs, seen["read"], strict=True))
        alone = statistics.median(cost[0] / reading[0] for cost, reading in pairs)
        together = statistics.median(sum(cost) / sum(reading) for cost, reading in pairs)
        print(f"| {name} | {broker:.2f} | {both:.2f} | {alone:.2f}, {together:.2f} |")


if __name__ == "__main__":
    main()

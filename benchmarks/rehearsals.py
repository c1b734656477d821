"""How much does a rehearsal cost, against reading the same events once?

    python benchmarks/rehearsals.py [--events 1000000] [--rounds 3] [--archive]
    python benchmarks/rehearsals.py --shapes [NAME] [--events 50000]

A reading is one stream from the beginning to one client, which parses what it reads, as consumers do. The script
compares CPU time in alternating rounds, with system time and all threads: on a busy machine, rates only show how much
of the machine was free. The CPU time includes the processes of the broker and of the client. The events are orders of
700 bytes with metadata, in SQLite; with `--archive`, the older half of them is in the archive. `--shapes` compares
events of every shape in `event_shapes.py`, or of those with NAME in their name, each with the schema under which it was
published.

The script publishes a thousand events, and then appends copies of their stored form to the log. This way, ten million
events take only minutes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
import orjson
from msgspec import Struct

from benchmarks.event_shapes import ORDER, SHAPES, Shape, random_order, register
from benchmarks.stream import BEGIN, cpu_of

NAME = "bench.rehearsal"
BATCH = 1000
SCHEMA = {"type": "object", "properties": ORDER, "required": ["order_number", "customer", "lines"]}
ONE_PARTITION = {"messages_per_minute": 1, "message_size": 1, "read_parallelism": 1, "write_parallelism": 1}


class Load(Struct, frozen=True):
    """The content of the broker: events of each of these shapes, by the name of their event type."""

    shapes: Mapping[str, Shape]
    events: int
    archived: bool = False


class Cost(Struct, frozen=True):
    """The CPU time of an event, in microseconds."""

    broker: float
    client: float

    @property
    def together(self) -> float:
        return self.broker + self.client


Way = Callable[[httpx.Client], object]


def serve(load: Load, ready: Any, stop: Any) -> None:
    from nakadi.app.broker import open_broker  # noqa: PLC0415  # the reader does without
    from nakadi.app.routes import make_application  # noqa: PLC0415
    from nakadi.app.settings import Settings  # noqa: PLC0415
    from nakadi.http.server import tune_interpreter  # noqa: PLC0415
    from nakadi.local.serving import ServerThread  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/nakadi.db"
        settings = Settings(registry=url, event_log=url)
        if load.archived:
            settings = Settings(
                registry=url,
                event_log=url,
                archive=f"{folder}/archive",
                archive_after_seconds=10**6,
                hot_retention_ms=0,
            )
        broker = open_broker(settings)
        for name, each in load.shapes.items():
            create_filled_event_type(broker, name, each, load)
        tune_interpreter()
        with ServerThread(make_application(broker)) as serving:
            ready.send(serving.url)
            stop.wait()
        broker.close()


def create_filled_event_type(broker: Any, name: str, each: Shape, load: Load) -> None:
    from nakadi.common.waiting import run_blocking  # noqa: PLC0415  # the reader does without
    from nakadi.model.authorization import UNAUTHENTICATED  # noqa: PLC0415
    from nakadi.model.events import RecordLines  # noqa: PLC0415
    from nakadi.publishing.batch import BatchStatus  # noqa: PLC0415

    register(broker, name, each)
    body = each.spell([each.make_event() for _ in range(BATCH)])
    outcome = broker.publisher.publish(name, body, UNAUTHENTICATED, flow_id="benchmark")
    assert outcome.status is BatchStatus.STORED, outcome.items[0]
    timeline = broker.event_types.get(name).timeline
    log = broker.logs.for_storage(timeline.storage_id)
    values: list[bytes] = []
    while len(values) < BATCH:
        found = log.read(timeline.topic, 0, len(values), limit=BATCH)
        values += [each.record.value for each in found.events]
    lines = RecordLines(b"\n".join(values), BATCH)
    for batch in range(1, load.events // BATCH):
        run_blocking(log.append(timeline.topic, {0: lines}))
        if load.archived and batch == load.events // BATCH // 2:
            log.archive()


@contextmanager
def run_broker_with_load(load: Load) -> Iterator[tuple[httpx.Client, int]]:
    """A client of a broker in its own process, and the id of that process."""
    # The process is forked, because functions that make events cannot be pickled. No threads run here yet.
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    stop = context.Event()
    process = context.Process(target=serve, args=(load, theirs, stop))
    process.start()
    assert process.pid is not None
    try:
        with httpx.Client(base_url=ours.recv(), timeout=60) as client:
            yield client, process.pid
    finally:
        stop.set()
        process.join(30)
        process.kill()


def read(client: httpx.Client, events: int, name: str = NAME) -> None:
    target = f"/event-types/{name}/events?batch_limit={BATCH}&stream_limit={events}"
    count = 0
    with client.stream("GET", target, headers={"X-Nakadi-Cursors": BEGIN, "Accept-Encoding": "identity"}) as answer:
        rest = b""
        for piece in answer.iter_raw(1_000_000):
            *lines, rest = (rest + piece).split(b"\n")
            count += sum(len(orjson.loads(line).get("events", ())) for line in lines)
    assert count == events, count


def rehearse(client: httpx.Client, events: int, draft: Mapping[str, Any], name: str = NAME) -> dict[str, Any]:
    answer = client.post(f"/event-types/{name}/schemas/rehearsals", json={**draft, "events": events})
    found: dict[str, Any] = answer.raise_for_status().json()
    while found["state"] == "running":
        time.sleep(0.5)
        found = client.get(answer.headers["location"]).json()
    assert found["events_seen"] == events, found
    return found


def draft_of(schema: Any, **changes: Any) -> dict[str, Any]:
    return {"schema": {"type": "json_schema", "schema": json.dumps(schema)}, "compatibility_mode": "none", **changes}


def with_greatest_price(percent: int) -> dict[str, Any]:
    """The schema of orders, with a maximum price that about `percent` percent of the events exceed."""
    line = ORDER["lines"]["items"]
    price = {"type": "number", "maximum": 99.99 * (1 - percent / 300)}
    lines = {"type": "array", "items": {**line, "properties": {**line["properties"], "price": price}}}
    return SCHEMA | {"properties": ORDER | {"lines": lines}}


def measure(client: httpx.Client, process: int, events: int, ways: Mapping[str, Way], rounds: int) -> list[Cost]:
    """The median cost of each way over the rounds."""
    seen: dict[str, list[Cost]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            before, own, began = cpu_of(process), time.process_time(), time.perf_counter()
            way(client)
            spent = Cost(
                (cpu_of(process) - before) / events * 1e6,
                (time.process_time() - own) / events * 1e6,
            )
            seen[name].append(spent)
            print(
                f"{name}: {spent.broker:.2f} + {spent.client:.2f} µs, {time.perf_counter() - began:.1f} s", flush=True
            )
    return [
        Cost(statistics.median(each.broker for each in costs), statistics.median(each.client for each in costs))
        for costs in seen.values()
    ]


def make_reading_way(events: int, name: str = NAME) -> Way:
    return lambda client: read(client, events, name)


def make_rehearsal_way(events: int, draft: Mapping[str, Any], name: str = NAME) -> Way:
    return lambda client: rehearse(client, events, draft, name)


def compare_orders(options: argparse.Namespace) -> None:
    events = options.events
    ways: dict[str, Way] = {
        "read": make_reading_way(events),
        "rehearse": make_rehearsal_way(events, draft_of(SCHEMA)),
        "rehearse, a greatest price": make_rehearsal_way(events, draft_of(with_greatest_price(0))),
        "rehearse, 1 % exceed it": make_rehearsal_way(events, draft_of(with_greatest_price(1))),
    }
    orders = Shape({"schema": SCHEMA, "default_statistic": ONE_PARTITION}, random_order)
    with run_broker_with_load(Load({NAME: orders}, events, options.archive)) as (client, process):
        costs = measure(client, process, events, ways, options.rounds)
    print("| | broker, µs an event | with its client | of a reading: broker, with its client |")
    print("|---|---|---|---|")
    reading = costs[0]
    for name, cost in zip(ways, costs, strict=True):
        of_reading = f"{cost.broker / reading.broker:.2f}, {cost.together / reading.together:.2f}"
        print(f"| {name} | {cost.broker:.2f} | {cost.together:.2f} | {of_reading} |")


def compare_shapes(options: argparse.Namespace) -> None:
    # How events are distributed does not matter here.
    plain = {"partition_strategy": "random", "partition_key_fields": [], "default_statistic": ONE_PARTITION}
    shapes = {
        name: Shape({**each.event_type, **plain}, each.make_event, each.spell)
        for name, each in SHAPES.items()
        if options.shapes in name
    }
    names = {f"bench-{number}": title for number, title in enumerate(shapes)}
    load = Load({name: shapes[title] for name, title in names.items()}, options.events, options.archive)
    ratios = []
    with run_broker_with_load(load) as (client, process):
        for name, title in names.items():
            said = shapes[title].event_type
            draft = draft_of(said["schema"], compatibility_mode=said.get("compatibility_mode", "none"))
            ways = {
                "read": make_reading_way(options.events, name),
                "rehearse": make_rehearsal_way(options.events, draft, name),
            }
            reading, rehearsal = measure(client, process, options.events, ways, options.rounds)
            ratios.append(rehearsal.broker / reading.broker)
            print(f"| {title} | {reading.broker:.2f} | {rehearsal.broker:.2f} | {ratios[-1]:.2f} |", flush=True)
    print(f"of a reading by the broker: median {statistics.median(ratios):.2f}, most {max(ratios):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--archive", action="store_true", help="with the older half of the events in the archive")
    parser.add_argument("--shapes", nargs="?", const="", help="events of every shape, or of those with this name")
    options = parser.parse_args()
    (compare_orders if options.shapes is None else compare_shapes)(options)


if __name__ == "__main__":
    main()

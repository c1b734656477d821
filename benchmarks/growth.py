"""Does the embedded event log stay as fast as it began, and how much does a durable append cost?

    python benchmarks/growth.py [--most 10000000] [--seconds 150] [--folder FOLDER]

Two questions, each compared with measurements of the same run:
- *Growth*: appending to, reading from and finding a moment in one topic of 10^4, 10^6 and 10^7 events, as costs per
  event and as ratios to those at 10^4. Filling stops when the time is over; then the largest size is left out.
- *Appends*: single events with 1, 8 and 64 threads, against bare SQLite that inserts and commits one event at a time.
"""

import argparse
import random
import shutil
import sqlite3
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import orjson

from nakadi.common.waiting import run_blocking
from nakadi.engines.sqlite.event_log import SqliteLog
from nakadi.model.events import Record
from nakadi.ports.clock import SystemClock

SIZES = (10_000, 1_000_000, 10_000_000)
TOPIC = "growth"
BATCH = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=SIZES[-1])
    parser.add_argument("--seconds", type=float, default=150.0, help="the longest time for filling")
    parser.add_argument("--folder", type=Path, default=None)
    arguments = parser.parse_args()
    events = [Record(an_event(number)) for number in range(2_000)]
    print(f"events of about {statistics.mean(len(event.value or b'') for event in events):.0f} bytes")
    with a_folder(arguments.folder) as folder:
        measure_appends(folder, events)
    with a_folder(arguments.folder) as folder:
        measure_growth(folder, events, arguments.most, arguments.seconds)


def an_event(number: int) -> bytes:
    """An event about as large and varied as the events that services publish."""
    return orjson.dumps(
        {
            "metadata": {
                "eid": f"{random.getrandbits(128):032x}",
                "occurred_at": "2026-11-21T12:00:00.123456Z",
                "event_type": "shop.order-placed",
                "partition": "0",
                "flow_id": f"{random.getrandbits(96):024x}",
            },
            "order_number": f"{number:012d}",
            "customer": {"id": random.getrandbits(32), "segment": random.choice(["new", "loyal", "returning"])},
            "items": [
                {"sku": f"SKU-{random.randrange(100_000)}", "price": round(random.random() * 100, 2), "amount": 1}
                for _ in range(8)
            ],
        }
    )


def measure_appends(folder: Path, events: list[Record]) -> None:
    floor = measure_bare_inserts(folder / "bare.db", events)
    print(f"\nbare SQLite, insert and commit per event: {floor:,.0f} events/s")
    log = SqliteLog(folder / "appends.db", SystemClock())
    log.create_topic(TOPIC, 8)
    for threads in (1, 8, 64):
        rate, delays = measure_append_rate(log, events, threads)
        print(
            f"single-event appends, {threads:2} threads: {rate:8,.0f} events/s, {rate / floor:5.1f} x bare,"
            f" p50 {delays[len(delays) // 2] * 1000:.2f} ms, p99 {delays[len(delays) * 99 // 100] * 1000:.2f} ms"
        )
    log.close()


def measure_bare_inserts(path: Path, events: list[Record], seconds: float = 2.0) -> float:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL").close()
    connection.execute("PRAGMA synchronous = FULL").close()
    connection.execute("CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY, body BLOB)")
    begun, count = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        connection.execute("INSERT INTO events (body) VALUES (?)", (events[count % len(events)].value,))
        count += 1
    rate = count / (time.perf_counter() - begun)
    connection.close()
    return rate


def measure_append_rate(
    log: SqliteLog, events: list[Record], threads: int, seconds: float = 3.0
) -> tuple[float, list[float]]:
    delays: list[list[float]] = [[] for _ in range(threads)]
    end = time.perf_counter() + seconds

    def publish(thread: int) -> None:
        while (begun := time.perf_counter()) < end:
            run_blocking(log.append(TOPIC, {thread % 8: [events[len(delays[thread]) % len(events)]]}))
            delays[thread].append(time.perf_counter() - begun)

    took = run_in_threads(publish, threads)
    flat = sorted(delay for each in delays for delay in each)
    return len(flat) / took, flat


def measure_growth(folder: Path, events: list[Record], most: int, seconds: float) -> None:
    log = SqliteLog(folder / "growth.db", SystemClock())
    log.create_topic(TOPIC, 1)
    began, end = log_clock_now(), time.perf_counter() + seconds
    first: dict[str, float] = {}
    for size in [size for size in SIZES if size <= most]:
        fill_log(log, events, size, end)
        there = log.bounds(TOPIC, [0])[0].next_offset
        if there < size:
            print(f"\n{there:,} of {size:,} events when the time was over")
        costs = costs_now(folder, log, events, began)
        first = first or costs
        megabytes = (folder / "growth.db").stat().st_size / 1e6
        print(f"\n{there:,} events, {megabytes:,.0f} MB on disk")
        for name, cost in costs.items():
            print(f"  {name:36} {cost * 1e6:9.2f} us   {cost / first[name]:5.2f} x")
        if there < size:
            break
    log.close()


def log_clock_now() -> float:
    return SystemClock().now().timestamp()


def fill_log(log: SqliteLog, events: list[Record], size: int, end: float) -> None:
    missing = size - log.bounds(TOPIC, [0])[0].next_offset
    turns: Iterator[int] = iter(range(0, missing, BATCH))
    lock = threading.Lock()

    def publish(_: int) -> None:
        while time.perf_counter() < end:
            with lock:
                turn = next(turns, None)
            if turn is None:
                return
            place = turn % (len(events) - BATCH)
            run_blocking(log.append(TOPIC, {0: events[place : place + BATCH]}))

    run_in_threads(publish, 8)


def costs_now(folder: Path, log: SqliteLog, events: list[Record], began: float) -> dict[str, float]:
    """The seconds per event or call at the current size."""
    bounds = log.bounds(TOPIC, [0])[0]
    starts = [random.randrange(bounds.next_offset - 500) for _ in range(300)]
    span = SystemClock().now().timestamp() - began
    now = SystemClock().now()
    moments = [now - timedelta(seconds=random.random() * span) for _ in range(300)]
    return {
        "bare insert and commit": 1 / measure_bare_inserts(folder / "bare.db", events, seconds=0.5),
        "append one event": lower_quartile(lambda index: run_blocking(log.append(TOPIC, {0: [events[index]]})), 500),
        "append 100, per event": lower_quartile(
            lambda index: run_blocking(log.append(TOPIC, {0: events[index : index + 100]})), 300
        )
        / 100,
        "read 100 somewhere, per event": lower_quartile(lambda i: log.read(TOPIC, 0, starts[i], limit=100), 300) / 100,
        "read 500 somewhere, per event": lower_quartile(lambda i: log.read(TOPIC, 0, starts[i], limit=500), 300) / 500,
        "find a moment": lower_quartile(lambda index: log.first_offset_since(TOPIC, 0, moments[index]), 300),
        "tell the bounds": lower_quartile(lambda _: log.bounds(TOPIC, [0]), 300),
    }


def lower_quartile(work: Callable[[int], object], times: int) -> float:
    """The lower quartile: on a shared machine, other work slows the upper half."""
    taken = []
    for index in range(times):
        begun = time.perf_counter()
        work(index)
        taken.append(time.perf_counter() - begun)
    return statistics.quantiles(taken, n=4)[0]


def run_in_threads(work: Callable[[int], None], count: int) -> float:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begun


@contextmanager
def a_folder(parent: Path | None) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir=parent, prefix="growth-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()

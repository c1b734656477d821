"""What does deduplication cost on the embedded engine? Compares an event type that deduplicates with one that does not.

    python benchmarks/deduplication.py [--ids 1000000] [--bytes 100 1000] [--seconds S] [--rounds N]

A broker on SQLite runs in its own process, and gets batches of 100 new events over loopback, for both event types in
alternating rounds. The script compares the broker's CPU time per event and the rate that the clients see. If the
machine does other work, only CPU time is meaningful. Before the broker starts, `--ids` ids are already stored; the
script prints the cost of the first append after the start.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sqlite3
import statistics
import tempfile
import time
import uuid
from array import array
from collections.abc import Sequence
from contextlib import closing
from hashlib import blake2b
from pathlib import Path
from typing import Any

import httpx

from benchmarks.publish import Load, RunningServer, a_server, publish_load, serve
from nakadi.app.broker import open_broker
from nakadi.app.routes import make_application
from nakadi.app.settings import Settings
from nakadi.engines.sqlite.event_log import SqliteLog
from nakadi.http.message import Request
from nakadi.ports.clock import SystemClock

BATCH = 100
CLIENTS = 8
WINDOW_SECONDS = 24 * 3600


def event_type_definition(name: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    deduplication = {"deduplication": {"window_seconds": WINDOW_SECONDS}} if name == "once" else {}
    return {
        "name": name,
        "owning_application": "bench",
        "category": "business",
        "enrichment_strategies": ["metadata_enrichment"],
        "schema": {"type": "json_schema", "schema": json.dumps(schema)},
        **deduplication,
    }


class NewEvents(Sequence[bytes]):
    """Requests whose events have new ids."""

    def __init__(self, name: str, size: int) -> None:
        self._parts = (
            b'{"metadata":{"occurred_at":"2026-11-21T12:00:00.123Z","eid":"',
            b'"},"text":"' + b"x" * size + b'"}',
        )
        length = BATCH * (sum(map(len, self._parts)) + 36) + BATCH + 1
        self._head = (
            f"POST /event-types/{name}/events HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        ).encode()

    def __len__(self) -> int:
        return 1

    def __getitem__(self, _index: Any) -> Any:
        before, behind = self._parts
        events = [before + str(uuid.uuid4()).encode() + behind for _ in range(BATCH)]
        return self._head + b"[" + b",".join(events) + b"]"


def remember_ids(path: Path, number: int) -> None:
    """Write rows of ids into a data file, as appends of 100 events each do."""
    SqliteLog(path, SystemClock()).close()
    now = time.time_ns() // 1000
    scope = blake2b(b"another event type", digest_size=16).digest()
    places = array("I", bytes(4 * BATCH)).tobytes() + array("Q", bytes(8 * BATCH)).tobytes()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(
            "INSERT INTO eids (scope, stored_at, expires_at, timeline, count, body) VALUES (?, ?, ?, 1, ?, ?)",
            (
                (scope, now, now + WINDOW_SECONDS * 1_000_000, BATCH, os.urandom(16 * BATCH) + places)
                for _ in range(number // BATCH)
            ),
        )


def serve_broker(listening: Any, folder: str) -> None:
    url = f"sqlite:///{folder}/nakadi.db"
    broker = open_broker(Settings(registry=url, event_log=url))
    application = make_application(broker)
    for name in ("plain", "once"):
        body, headers = json.dumps(event_type_definition(name)).encode(), {"content-type": "application/json"}
        path = "/event-types"
        application.answer(Request(method="POST", path=path, target=path, headers=headers, body=body))
    serve(listening, application)


def measure(server: RunningServer, name: str, size: int, seconds: float) -> tuple[float, float]:
    """Microseconds of CPU per event, and events per second."""
    before = server.cpu_seconds()
    load = Load(CLIENTS, NewEvents(name, size), seconds)
    asyncio.run(publish_load(server.port, load))
    return (server.cpu_seconds() - before) / load.sent / BATCH * 1e6, len(load.took) * BATCH / load.seconds


def time_first_append(server: RunningServer) -> float:
    request = NewEvents("once", 100)[0]
    body = request[request.index(b"\r\n\r\n") + 4 :]
    began = time.perf_counter()
    answer = httpx.post(
        f"http://127.0.0.1:{server.port}/event-types/once/events",
        content=body,
        headers={"content-type": "application/json"},
        timeout=300,
    )
    assert answer.status_code == 200, answer.text
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ids", type=int, nargs="+", default=[0, 1_000_000])
    parser.add_argument("--bytes", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print("| ids | bytes | µs of CPU without | with | ratio | lowest of a round | events/s without | with | ratio |")
    print("|---|---|---|---|---|---|---|---|---|")
    for ids in options.ids:
        with tempfile.TemporaryDirectory() as folder:
            remember_ids(Path(folder) / "nakadi.db", ids)
            with a_server(serve_broker, folder) as server:
                measure(server, "plain", 100, 0.1)  # until the broker has started
                first = time_first_append(server)
                for size in options.bytes:
                    print_rounds(server, ids, size, options.seconds, options.rounds)
        print(f"first append with {ids:,} ids: {first * 1e3:,.0f} ms", flush=True)


def print_rounds(server: RunningServer, ids: int, size: int, seconds: float, rounds: int) -> None:
    for name in ("plain", "once"):
        measure(server, name, size, 0.3)
    seen = [(measure(server, "plain", size, seconds), measure(server, "once", size, seconds)) for _ in range(rounds)]
    cpu_without, rate_without, cpu_with, rate_with = (
        statistics.median(each[index][what] for each in seen) for index in (0, 1) for what in (0, 1)
    )
    lowest = min(without[0] / once[0] for without, once in seen)
    print(
        f"| {ids:,} | {size} | {cpu_without:.1f} | {cpu_with:.1f} | {cpu_without / cpu_with:.0%} | {lowest:.0%}"
        f" | {rate_without:,.0f} | {rate_with:,.0f} | {rate_with / rate_without:.0%} |",
        flush=True,
    )


if __name__ == "__main__":
    main()

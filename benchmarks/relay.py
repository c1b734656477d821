"""How fast does the relay publish an outbox, compared with the least necessary work?

    python benchmarks/relay.py [--rows N] [--bytes B] [--workers 1 2 4] [--rounds N]

PostgreSQL and a broker on SQLite run in separate processes; the event type deduplicates. The floor copies the same
rows out of the table (`COPY`), publishes them in batches of 500, one after the other, and deletes nothing.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from contextlib import ExitStack

import httpx
import psycopg

from benchmarks.deduplication import serve_broker
from benchmarks.publish import RunningServer, a_server
from nakadi_client.connections import Api, Connection, Request, path
from nakadi_relay import Relay, outbox_schema
from tests.support.postgres import PostgresServer, running_server

KEYS = 1_000
BATCH = 500


def fill_outbox(database: psycopg.Connection, rows: int, size: int) -> None:
    database.execute("TRUNCATE nakadi_outbox")
    database.execute(
        """INSERT INTO nakadi_outbox (event_type, key, event)
        SELECT 'once', 'key-' || n %% %s, jsonb_build_object('text', repeat('x', %s))
        FROM generate_series(1, %s) AS n""",
        [KEYS, size, rows],
    )
    database.execute("ANALYZE nakadi_outbox")


def publish_copied_rows(dsn: str, url: str) -> None:
    """Measure the floor: copy rows, and publish them."""
    query = """COPY (SELECT jsonb_build_object('metadata', jsonb_build_object('eid', eid, 'occurred_at',
        to_char(written_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))) || event
        FROM nakadi_outbox ORDER BY id) TO STDOUT"""
    api = Api(Connection(url))
    with psycopg.connect(dsn) as database, database.cursor() as cursor, cursor.copy(query) as copy:
        batch: list[bytes] = []
        for line in copy:
            batch.append(bytes(line).rstrip(b"\n"))
            if len(batch) == BATCH:
                publish(api, batch)
                batch = []
        if batch:
            publish(api, batch)
    api.close()


def publish(api: Api, events: list[bytes]) -> None:
    body = b"[" + b",".join(events) + b"]"
    where = path("event-types", "once", "events")
    answer = api.send(Request("POST", where, body, {"Content-Type": "application/json"}))
    assert getattr(answer, "status", None) == 200, answer


def relay_rows(workers: int, rows: int, dsn: str, url: str) -> None:
    with Relay(dsn, url, workers=workers) as relay:
        running = threading.Thread(target=relay.run)
        running.start()
        while relay.status.published < rows:
            time.sleep(0.01)
        relay.stop()
        running.join()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        broker = stack.enter_context(a_server(serve_broker, folder))
        servers = running_server()
        server = next(servers)
        stack.callback(server.close)
        database = stack.enter_context(psycopg.connect(server.dsn, autocommit=True))
        database.execute(outbox_schema())
        compare(server, database, broker, options)


def compare(
    server: PostgresServer, database: psycopg.Connection, broker: RunningServer, options: argparse.Namespace
) -> None:
    url = f"http://127.0.0.1:{broker.port}"
    wait_until_it_answers(url)
    ways = [0, *options.workers]
    seen: dict[int, list[tuple[float, float, float]]] = {workers: [] for workers in ways}
    for number in range(options.rounds + 1):
        rows = options.rows if number else 1_000  # the first round warms up
        for workers in ways:
            fill_outbox(database, rows, options.bytes)
            broker_before, own_before, began = broker.cpu_seconds(), time.process_time(), time.perf_counter()
            if workers:
                relay_rows(workers, rows, server.dsn, url)
            else:
                publish_copied_rows(server.dsn, url)
            figures = (
                time.perf_counter() - began,
                time.process_time() - own_before,
                broker.cpu_seconds() - broker_before,
            )
            if number:
                seen[workers].append(figures)
    print("| | events/s | of the floor | µs of CPU an event: relay | broker |\n|---|---|---|---|---|")
    floor = statistics.median(each[0] for each in seen[0])
    for workers, rounds in seen.items():
        seconds, own, brokers = (statistics.median(each[what] for each in rounds) for what in range(3))
        print(
            f"| {f'{workers} workers' if workers else 'floor'} | {options.rows / seconds:,.0f} | {floor / seconds:.0%}"
            f" | {own / options.rows * 1e6:.0f} | {brokers / options.rows * 1e6:.0f} |",
            flush=True,
        )


def wait_until_it_answers(url: str) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            assert httpx.get(f"{url}/event-types/once").status_code == 200
        except (httpx.HTTPError, AssertionError):
            assert time.monotonic() < end
            time.sleep(0.05)
        else:
            return


if __name__ == "__main__":
    main()

"""The parts of the example shop are killed at random."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psycopg
import pytest

from infra.laptop.kinesis_local import free_port
from nakadi_relay import outbox_schema
from tests.support.environment import plain_environment
from tests.support.everything import choose_by_suite
from tests.support.pages import ROOT
from tests.support.patience import until
from tests.support.postgres import PostgresServer, running_server

SHOP = ROOT / "docs/examples/shop"
ORDERS = choose_by_suite(800, 30_000)
# After each kill, one or two processes have to start.
PATIENCE = 180
DEFINITION = {
    "name": "order.placed",
    "owning_application": "shop",
    "category": "business",
    "enrichment_strategies": ["metadata_enrichment"],
    "partition_strategy": "hash",
    "partition_key_fields": ["customer"],
    "default_statistic": {"messages_per_minute": 1, "message_size": 1, "read_parallelism": 3, "write_parallelism": 3},
    "deduplication": {"window_seconds": 3600},
    "schema": {
        "type": "json_schema",
        "schema": json.dumps({"properties": {each: {} for each in ("order_number", "customer", "amount")}}),
    },
}


class RestartedProcess:
    """A process that the test restarts whenever it has ended, as a supervisor does."""

    def __init__(self, *command: str, log: Path) -> None:
        self._command = command
        self._log = log
        self.start()

    def start(self) -> None:
        path = f"{ROOT}/layers/nakadi/python:{ROOT}"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *self._command],
                cwd=ROOT,
                env=plain_environment(PYTHONPATH=path),
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def keep_up(self) -> None:
        if self._process.poll() is not None:
            self.start()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)


@pytest.fixture
def database() -> Iterator[PostgresServer]:
    yield from running_server()


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., RestartedProcess]]:
    """A function that starts a part of the shop; the part ends with the test."""
    parts: list[RestartedProcess] = []

    def start_part(name: str, *command: str) -> RestartedProcess:
        parts.append(RestartedProcess(*command, log=tmp_path / f"{name}.log"))
        return parts[-1]

    yield start_part
    for part in reversed(parts):
        part.stop()


def is_healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=PATIENCE).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.mark.long("tests/relay/test_relay_kills.py::test_nothing_is_lost_when_relays_are_killed")
def test_the_books_balance_whatever_is_killed(database, start, tmp_path):
    """Each order is once in the log and once in the books, and the orders of each customer keep their order."""
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(outbox_schema())
    port = str(free_port())
    url = f"http://127.0.0.1:{port}"
    broker = start("broker", "-m", "nakadi.local", "--port", port, "--data", str(tmp_path / "data"))
    until(lambda: is_healthy(url), PATIENCE)
    assert httpx.post(f"{url}/event-types", json=DEFINITION, timeout=PATIENCE).status_code == 201
    wanted = {"owning_application": "books", "event_types": ["order.placed"], "read_from": "begin"}
    subscription = httpx.post(f"{url}/subscriptions", json=wanted, timeout=PATIENCE).json()["id"]
    parts = [
        broker,
        start("orders", str(SHOP / "orders.py"), database.dsn, str(ORDERS)),
        start("relay", "-m", "nakadi_cli", "relay", "postgres", "--dsn", database.dsn, "--url", url),
        start("books", str(SHOP / "books.py"), database.dsn, url, subscription),
    ]

    draw = random.Random(2)
    for _ in range(choose_by_suite(5, 300)):
        before = count(database, "entries")
        # Before the next kill, every part works again.
        until(lambda: keep_up(parts) and (count(database, "entries") > before or before == ORDERS), PATIENCE)  # noqa: B023
        victim = draw.choice([*parts, database])
        if victim is database:
            database.stop()
            database.start()
        else:
            victim.kill()
    # After the last kill, the outbox may have rows that are already in the log, and the broker may still be starting.
    until(lambda: keep_up(parts) and is_healthy(url) and count(database, "entries") == ORDERS, PATIENCE)
    until(lambda: keep_up(parts) and count(database, "nakadi_outbox") == 0, PATIENCE)

    with psycopg.connect(database.dsn) as connection:
        placed = connection.execute("SELECT number, customer, amount FROM orders ORDER BY number").fetchall()
        entered = connection.execute("SELECT order_number, customer, amount FROM entries ORDER BY entered").fetchall()
    assert len(placed) == ORDERS
    assert sorted(entered) == placed
    for customer in {each[1] for each in placed}:
        numbers = [number for number, name, _ in entered if name == customer]
        assert numbers == sorted(numbers)
    partitions = httpx.get(f"{url}/event-types/order.placed/partitions", timeout=PATIENCE).json()
    assert sum(int(each["newest_available_offset"].rpartition("-")[2]) + 1 for each in partitions) == ORDERS


def keep_up(parts: list[RestartedProcess]) -> bool:
    for part in parts:
        part.keep_up()
    return True


def count(database: PostgresServer, table: str) -> int:
    try:
        with psycopg.connect(database.dsn) as connection:
            [number] = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    except psycopg.errors.UndefinedTable:
        return 0
    return number

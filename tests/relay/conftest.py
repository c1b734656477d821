"""A database with an outbox, and a broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count

import httpx
import psycopg
import pytest

from nakadi.local import Broker
from nakadi_relay import OutboxNames, outbox_schema
from tests.support.patience import PATIENCE
from tests.support.postgres import PostgresServer, running_server

_numbers = count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    yield from running_server()


@pytest.fixture
def table() -> str:
    return f"outbox_{next(_numbers)}"


@pytest.fixture
def database(server, table) -> Iterator[psycopg.Connection]:
    """A connection to the database, with an empty outbox."""
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(outbox_schema(OutboxNames(table)))
        yield connection


@pytest.fixture
def insert_events(database, table):
    """A function that writes rows into the outbox, such as `write("order.placed", [{"n": 1}], key="A")`."""

    def insert(event_type: str, events: list[object], key: str | None = None) -> None:
        for event in events:
            database.execute(
                f"INSERT INTO {table} (event_type, key, event) VALUES (%s, %s, %s)",
                [event_type, key, json.dumps(event)],
            )

    return insert


@pytest.fixture
def count_waiting_rows(database, table):
    def count_rows() -> int:
        return database.execute(f"SELECT count(*) FROM {table} WHERE published_at IS NULL").fetchone()[0]

    return count_rows


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def api(broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=broker.url, timeout=PATIENCE) as client:
        yield client


@pytest.fixture
def event_type(api):
    """A function that creates an event type for numbered events, and returns its name."""

    def create(name: str = "order.placed", **changes: object) -> str:
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        definition = {
            "name": name,
            "owning_application": "shop",
            "category": "undefined",
            "schema": {"type": "json_schema", "schema": json.dumps(schema)},
        }
        assert api.post("/event-types", json=definition | changes).status_code == 201
        return name

    return create


@pytest.fixture
def read_stored_events(api):
    """A function that reads this number of events of an event type, in the order of its only partition."""

    def read(name: str, number: int) -> list[dict[str, object]]:
        cursors = json.dumps([{"partition": "0", "offset": "BEGIN"}])
        # On a busy machine, thousands of events may take a minute.
        limits = {"batch_limit": 1, "stream_limit": number, "stream_timeout": 300, "batch_flush_timeout": 1}
        if not number:
            return []
        answer = api.get(
            f"/event-types/{name}/events", params=limits, headers={"X-Nakadi-Cursors": cursors}, timeout=PATIENCE
        )
        return [event for line in answer.content.split(b"\n") if line for event in json.loads(line).get("events", [])]

    return read

"""The connections of relays to the database and to the broker are cut, and the database restarts."""

import itertools
import json
import random
import threading
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from nakadi_client import Connection
from nakadi_relay import OutboxNames, Relay, outbox_schema
from nakadi_relay.outbox import Outbox
from tests.relay.network import StallingNetwork
from tests.support.everything import SEED, choose_by_suite
from tests.support.patience import until
from tests.support.postgres import PostgresServer, running_server

KEYS = 8
TYPES = ("order.placed", "order.paid")


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    yield from running_server()


@pytest.fixture
def networks(own_server, broker) -> Iterator[tuple[StallingNetwork, StallingNetwork]]:
    """The networks to the database and to the broker."""
    host, port = broker.url.removeprefix("http://").split(":")
    with StallingNetwork(own_server.socket) as to_database, StallingNetwork((host, int(port))) as to_broker:
        yield to_database, to_broker


def test_nothing_is_lost_when_networks_are_cut(own_server, networks, api, event_type, read_stored_events):
    """Connections break at any moment, some after falling silent: each event is in the log once, in order."""
    to_database, to_broker = networks
    for name in TYPES:
        event_type(
            name,
            category="business",
            enrichment_strategies=["metadata_enrichment"],
            deduplication={"window_seconds": 3600},
        )
    with psycopg.connect(own_server.dsn, autocommit=True) as connection:
        connection.execute(outbox_schema())
    print(f"SEED={SEED}")
    draw, done, written = random.Random(SEED), threading.Event(), list[int]()
    writer = threading.Thread(target=write_until, args=(own_server, done, written))
    dsn = f"host=127.0.0.1 port={to_database.port} user=tests dbname=postgres"
    broker_url = Connection(f"http://127.0.0.1:{to_broker.port}", timeout=2)
    with Relay(dsn, broker_url) as relay:
        running = threading.Thread(target=relay.run)
        running.start()
        writer.start()
        try:
            for number in range(choose_by_suite(12, 300)):
                before = relay.status.published
                # Each fault occurs after the relay has recovered from the previous one.
                until(lambda: relay.status.published > before, 120)  # noqa: B023
                done.wait(draw.random() / 20)
                if number % 6 == 5:
                    own_server.stop()
                    own_server.start()
                else:
                    network = draw.choice(networks)
                    network.is_silent = draw.random() < 0.5
                    done.wait(draw.random() / 5)
                    network.cut()
        finally:
            done.set()
            writer.join()
        with psycopg.connect(own_server.dsn, autocommit=True) as connection:
            until(lambda: connection.execute("SELECT count(*) FROM nakadi_outbox").fetchone() == (0,), 120)
            # Compare with the rows in the table: the last one may be there although its connection broke before the
            # writer knew.
            committed = [number for (number,) in connection.execute("SELECT n FROM written ORDER BY n")]
        assert set(written) <= set(committed)
        relay.stop()
        running.join(60)
        assert not running.is_alive()

    for index, name in enumerate(TYPES):
        expected = [number for number in committed if number % len(TYPES) == index]
        [partition] = api.get(f"/event-types/{name}/partitions").json()
        count = int(partition["newest_available_offset"].rpartition("-")[2]) + 1
        numbers = [event["n"] for event in read_stored_events(name, count)]
        assert sorted(numbers) == expected
        for key in range(KEYS):
            of_key = [number for number in numbers if number % KEYS == key]
            assert of_key == sorted(of_key)


def write_until(server: PostgresServer, done: threading.Event, written: list[int]) -> None:
    """Write one row after the other over connections that break. A row may be stored although its commit failed."""
    numbers = itertools.count()
    number = next(numbers)
    while not done.is_set():
        try:
            with psycopg.connect(server.dsn, autocommit=True) as connection:
                [last] = connection.execute("SELECT coalesce(max(n), -1) FROM written").fetchone()
                if last == number:
                    written.append(number)
                    number = next(numbers)
                while not done.wait(0.002):
                    write(connection, number)
                    written.append(number)
                    number = next(numbers)
        except psycopg.errors.UndefinedTable:
            with psycopg.connect(server.dsn, autocommit=True) as connection:
                connection.execute("CREATE TABLE written (n int)")
        except psycopg.Error:
            done.wait(0.05)


def write(connection: psycopg.Connection, number: int) -> None:
    with connection.transaction():
        connection.execute("INSERT INTO written VALUES (%s)", [number])
        connection.execute(
            "INSERT INTO nakadi_outbox (event_type, key, event) VALUES (%s, %s, %s)",
            [TYPES[number % len(TYPES)], str(number % KEYS), json.dumps({"n": number})],
        )


def test_both_sides_notice_a_connection_that_died(server, database, table):  # noqa: ARG001  # it makes the table
    """A relay does not wait for a dead database for hours, and a dead relay does not hold its keys for hours."""
    with closing(Outbox(server.dsn, OutboxNames(table))) as outbox:
        parameters = outbox._connection.info.get_parameters()
        query = "SELECT count(*) FROM pg_settings WHERE name LIKE 'tcp_keepalives%' AND source = 'session'"
        assert outbox._connection.execute(query).fetchone() == (3,)
    assert (parameters["keepalives_idle"], parameters["connect_timeout"]) == ("30", "10")
    with closing(Outbox(f"{server.dsn} connect_timeout=3", OutboxNames(table))) as outbox:
        assert outbox._connection.info.get_parameters()["connect_timeout"] == "3"

"""Relays that the command line starts are killed."""

import itertools
import json
import random
import subprocess
import sys
import threading

import psycopg

from tests.support.environment import plain_environment
from tests.support.everything import choose_by_suite
from tests.support.pages import ROOT
from tests.support.patience import until

KEYS = 8


def start_relay(*arguments: str, **variables: str) -> subprocess.Popen[bytes]:
    environment = plain_environment(PYTHONPATH=f"{ROOT}/layers/nakadi/python:{ROOT}", **variables)
    return subprocess.Popen(
        [sys.executable, "-m", "nakadi_cli", "relay", *arguments],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def test_nothing_is_lost_when_relays_are_killed(
    server, database, table, broker, api, event_type, count_waiting_rows, read_stored_events
):
    """However often relays are killed, each event is published, and the first copies of a key's events are in their
    order.
    """
    name, draw, kills = event_type(), random.Random(27), choose_by_suite(5, 200)
    database.execute(f"ALTER TABLE {table} ADD COLUMN ignored int")  # the application may add columns to the table
    done = threading.Event()
    written: list[int] = []

    def keep_writing() -> None:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            for number in itertools.count():
                event = json.dumps({"n": number})
                connection.execute(
                    f"INSERT INTO {table} (event_type, key, event) VALUES (%s, %s, %s)",
                    [name, str(number % KEYS), event],
                )
                written.append(number)
                if done.wait(0.002):
                    return

    writer = threading.Thread(target=keep_writing)
    writer.start()
    options = ("postgres", "--table", table, "--workers", "2", "--url", broker.url)
    try:
        for _ in range(kills):
            relay = start_relay(*options, NAKADI_RELAY_DSN=server.dsn)
            before = len(written)
            # When the outbox is nearly empty, the relay is at work, so the next kill interrupts it.
            until(lambda: count_waiting_rows() < 20 and len(written) > before + 20)  # noqa: B023
            done.wait(draw.random() / 20)
            relay.kill()
            relay.wait()
    finally:
        done.set()
        writer.join()
    last = start_relay(*options, NAKADI_RELAY_DSN=server.dsn)
    until(lambda: count_waiting_rows() == 0)
    last.terminate()
    assert last.wait(60) == 0

    # Events published right before a kill are published again, so count how many events the log has.
    numbers = [event["n"] for event in read_stored_events(name, count_stored(api, name))]
    first_copies = list(dict.fromkeys(numbers))
    assert sorted(first_copies) == written
    for key in range(KEYS):
        of_key = [number for number in first_copies if number % KEYS == key]
        assert of_key == sorted(of_key)


def count_stored(api, name: str) -> int:
    [partition] = api.get(f"/event-types/{name}/partitions").json()
    return int(partition["newest_available_offset"].rpartition("-")[2]) + 1

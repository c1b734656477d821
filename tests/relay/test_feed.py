"""Feeds, which turn the rows of a table and their changes into events."""

import json
import random
import threading
from typing import NamedTuple

import psycopg
import pytest

from nakadi_relay import Feed, FeedUnusable, Relay
from nakadi_relay.pgoutput import position_from_text
from tests.support.everything import choose_by_suite
from tests.support.patience import until

TYPE = "customer.changed"


@pytest.fixture
def customers(database, table):
    """The name of a table to follow, which has columns of many types."""
    name = f"customer_{table}"
    database.execute(
        f"""CREATE TABLE {name} (
            region text, id int, name text, "odd ""name" numeric, tags text[], born date, seen timestamptz, active bool,
            note jsonb, length int GENERATED ALWAYS AS (char_length(name)) STORED, PRIMARY KEY (region, id))"""
    )
    database.execute(f"ALTER TABLE {name} REPLICA IDENTITY FULL")
    return name


@pytest.fixture
def followed_table(server, database, customers, table):
    """`followed_table()` starts a feed that follows the table, after ending any that runs."""
    running: list[tuple[Feed, threading.Thread]] = []

    def stop() -> None:
        while running:
            feed, thread = running.pop()
            feed.stop()
            thread.join(60)
            assert not thread.is_alive()

    def start() -> Feed:
        stop()
        feed = Feed(server.dsn, customers, TYPE, table=table)
        thread = threading.Thread(target=feed.run)
        thread.start()
        running.append((feed, thread))
        # From here on, the feed reports changes.
        until(lambda: database.execute(f"SELECT count(*) FROM {table}_feeds").fetchone() == (1,))
        return feed

    yield start
    stop()
    Feed(server.dsn, customers, TYPE, table=table).drop()


@pytest.fixture
def events(database, table):
    """A function that reads the events in the outbox, in the order in which they were written."""

    def read() -> list[dict]:
        found = database.execute(f"SELECT event FROM {table} WHERE event_type = %s ORDER BY id", [TYPE])
        return [event for (event,) in found]

    return read


def insert(database, customers, number, name="ann", region="eu"):
    database.execute(
        f"""INSERT INTO {customers} (region, id, name, "odd ""name", tags, born, seen, active, note) VALUES
        (%s, %s, %s, 1.10, '{{a,"b c"}}', '2001-02-03', '2026-11-21 12:00+00', true, '{{"x": [1, null]}}')""",
        [region, number, name],
    )


class WrittenLog:
    """A database whose log ends with a commit that is written, and flushed only after the slot was read."""

    def __init__(self) -> None:
        self.flushed = "0/100"
        self.commit = "0/180"
        self.slot = "0/0"

    def execute(self, query, values=()):
        if "pg_logical_slot_peek" in query:
            assert position_from_text(self.flushed) < position_from_text(self.commit)
            self.flushed = "0/200"
            return []
        if "pg_replication_slot_advance" in query:
            self.slot = min(values[0], self.flushed, key=position_from_text)
            return None
        return WrittenLogRow(self.flushed if "pg_current_wal_flush_lsn" in query else "0/200")


class WrittenLogRow(NamedTuple):
    value: str

    def fetchone(self):
        return (self.value,)


def test_a_commit_that_is_written_and_not_flushed_is_not_skipped():
    """The slot does not advance beyond a commit that PostgreSQL has written but did not decode yet."""
    log = WrittenLog()
    feed = Feed("dbname=any", "customer", TYPE)
    assert feed._write_next(log, None, None) is None
    assert position_from_text(log.slot) < position_from_text(log.commit)


def test_first_rows_and_changes_are_spelled_alike(database, customers, followed_table, events):
    """An existing row and an inserted one both become events of the category `data`, without computed columns."""
    insert(database, customers, 1)
    followed_table()
    until(lambda: len(events()) == 1)
    insert(database, customers, 2)
    until(lambda: len(events()) == 2)

    first, second = events()
    assert (first["data_op"], second["data_op"]) == ("S", "C")
    assert first["data_type"] == second["data_type"] == f"public.{customers}"
    assert first["data"] == {
        "region": "eu",
        "id": 1,
        "name": "ann",
        'odd "name': 1.1,
        "tags": ["a", "b c"],
        "born": "2001-02-03",
        "seen": "2026-11-21T12:00:00+00:00",
        "active": True,
        "note": {"x": [1, None]},
    }
    assert second["data"] == first["data"] | {"id": 2}
    assert first["metadata"]["occurred_at"].endswith("Z")


def test_updates_and_deletions_are_events(database, customers, followed_table, events):
    """The event of an update has the new row, including large values that the update did not change; that of a
    deletion has the deleted row.
    """
    large = "x" * 100_000
    followed_table()
    insert(database, customers, 1, name=large)
    database.execute(f"UPDATE {customers} SET active = NULL, note = '[]' WHERE id = 1")
    database.execute(f"DELETE FROM {customers}")
    until(lambda: len(events()) == 3)

    created, updated, deleted = events()
    assert [each["data_op"] for each in (created, updated, deleted)] == ["C", "U", "D"]
    assert updated["data"] == created["data"] | {"active": None, "note": []}
    assert deleted["data"] == updated["data"]
    assert updated["data"]["name"] == large


def test_rows_of_one_primary_key_have_one_key(database, customers, followed_table, events, table):
    """The key of an event is the row's primary key, whatever its columns."""
    followed_table()
    insert(database, customers, 1, region="a,1")
    insert(database, customers, 1, region="a")
    database.execute(f"UPDATE {customers} SET name = 'bob'")
    until(lambda: len(events()) == 4)
    keys = [key for (key,) in database.execute(f"SELECT key FROM {table} ORDER BY id")]
    assert set(keys) == {'["a,1", 1]', '["a", 1]'}


def test_what_is_rolled_back_is_no_event(database, customers, followed_table, events):
    """Only committed changes become events."""
    followed_table()
    with database.transaction(force_rollback=True):
        insert(database, customers, 1)
    insert(database, customers, 2)
    until(events)
    assert [each["data"]["id"] for each in events()] == [2]


def fold_events(events) -> dict[tuple[str, int], dict]:
    """Reconstruct the content of the table from its events."""
    rows: dict[tuple[str, int], dict] = {}
    for event in events:
        data = event["data"]
        key = (data["region"], data["id"])
        # This would fail if an event came twice: a created row did not exist before, and a changed row did.
        assert (key in rows) == (event["data_op"] in "UD"), event
        if event["data_op"] == "D":
            del rows[key]
        else:
            rows[key] = data
    return rows


def test_nothing_is_missing_or_twice_at_the_seam(server, database, customers, followed_table, events):
    """While others write, the first rows and the changes together yield the table, however often the feed restarts."""
    done, draw = threading.Event(), random.Random(11)

    def keep_changing(region: str) -> None:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            number = 0
            while not done.is_set():
                # Transactions that overlap the snapshot, and some that take long.
                with connection.transaction():
                    insert(connection, customers, number, region=region)
                    if number % 3 == 0:
                        done.wait(0.01)
                    if number > 5:
                        of_region = "WHERE region = %s AND id = %s"
                        connection.execute(
                            f"UPDATE {customers} SET name = name || '!' {of_region}", [region, number - 5]
                        )
                        connection.execute(f"DELETE FROM {customers} {of_region}", [region, number - 6])
                number += 1

    writers = [threading.Thread(target=keep_changing, args=(region,)) for region in ("eu", "us", "asia")]
    for writer in writers:
        writer.start()
    until(lambda: database.execute(f"SELECT count(*) > 15 FROM {customers}").fetchone() == (True,))
    for _ in range(choose_by_suite(3, 30)):
        followed_table()
        before = len(events())
        until(lambda: len(events()) > before + 20)  # noqa: B023
        done.wait(draw.random() / 10)
    done.set()
    for writer in writers:
        writer.join()
    rows = {
        (region, number): name for region, number, name in database.execute(f"SELECT region, id, name FROM {customers}")
    }
    until(lambda: {key: row["name"] for key, row in fold_events(events()).items()} == rows)


def test_what_commits_amid_the_first_rows_is_a_change(database, customers, followed_table, events, monkeypatch):
    """The first rows belong to the exported snapshot, even if transactions commit before they are read."""
    prepare_values, number = Feed._values, iter([1])

    def insert_first(feed, table):
        for each in number:
            insert(database, customers, each)
        return prepare_values(feed, table)

    monkeypatch.setattr(Feed, "_values", insert_first)
    followed_table()
    insert(database, customers, 2)
    until(lambda: len(events()) == 2)
    assert [(each["data_op"], each["data"]["id"]) for each in events()] == [("C", 1), ("C", 2)]


def test_what_the_slot_delivers_again_is_passed_over(database, customers, followed_table, events, monkeypatch):
    """A feed that is killed between writing events and advancing the slot writes no event twice."""
    advance, failures = Feed._advance, []

    def fail_after_events(feed, connection, position):
        if events() and not failures:
            failures.append(position)
            raise psycopg.OperationalError("the server went away")
        advance(feed, connection, position)

    monkeypatch.setattr(Feed, "_advance", fail_after_events)
    followed_table()
    insert(database, customers, 1)
    until(lambda: failures)
    insert(database, customers, 2)
    until(lambda: len(events()) >= 2)
    assert [each["data"]["id"] for each in events()] == [1, 2]


def test_a_second_feed_waits_for_the_first(server, database, customers, followed_table, events, table):
    """Only one process reads a slot; when it ends, another one takes over."""
    followed_table()
    insert(database, customers, 1)
    until(lambda: len(events()) == 1)
    second = Feed(server.dsn, customers, TYPE, table=table)
    thread = threading.Thread(target=second.run)
    thread.start()
    insert(database, customers, 2)
    until(lambda: len(events()) == 2)
    followed_table()  # this ends the first feed; the new one takes the slot before or after the second
    insert(database, customers, 3)
    until(lambda: len(events()) == 3)
    second.stop()
    thread.join(60)
    assert [each["data"]["id"] for each in events()] == [1, 2, 3]


def test_tables_that_cannot_be_followed_are_named(server, database, table):
    """A feed names the change that the table needs, and does not begin."""
    database.execute(f"CREATE TABLE plain_{table} (id int PRIMARY KEY)")
    database.execute(f"CREATE TABLE keyless_{table} (id int)")
    for name, reason in {
        "no_such": "There is no table public.no_such",
        f"keyless_{table}": "no primary key",
        f"plain_{table}": "REPLICA IDENTITY FULL",
    }.items():
        with pytest.raises(FeedUnusable, match=reason):
            Feed(server.dsn, name, TYPE, table=table).run()
    assert database.execute("SELECT count(*) FROM pg_publication WHERE pubname LIKE 'nakadi%%'").fetchone() == (0,)


def test_changes_arrive_at_the_broker(
    server, database, customers, followed_table, table, broker, api, read_stored_events
):
    """Through the outbox, changes become events of an event type of the category `data`."""
    schema = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
    definition = {
        "name": TYPE,
        "owning_application": "shop",
        "category": "data",
        "enrichment_strategies": ["metadata_enrichment"],
        "schema": {"type": "json_schema", "schema": json.dumps(schema)},
    }
    assert api.post("/event-types", json=definition).status_code == 201
    insert(database, customers, 1)
    followed_table()
    database.execute(f"UPDATE {customers} SET name = 'bob'")
    with Relay(server.dsn, broker.url, table=table) as relay:
        until(lambda: relay.run_once().published == 2)
    assert [(each["data_op"], each["data"]["name"]) for each in read_stored_events(TYPE, 2)] == [
        ("S", "ann"),
        ("U", "bob"),
    ]

"""`nakadi relay`."""

from __future__ import annotations

import psycopg
import pytest

from tests.support.api import create_event_type
from tests.support.postgres import running_server

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.fixture(scope="module")
def server():
    yield from running_server()


@pytest.fixture
def database(run, server, monkeypatch):
    """A database with an empty outbox, which the environment names."""
    monkeypatch.setenv("NAKADI_RELAY_DSN", server.dsn)
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(
            "DROP TABLE IF EXISTS nakadi_outbox, nakadi_outbox_slots, nakadi_outbox_refused, nakadi_outbox_feeds"
        )
        connection.execute(run("relay", "schema").out)
        yield connection


def insert(database, event_type: str, key: str, event: str) -> None:
    database.execute("INSERT INTO nakadi_outbox (event_type, key, event) VALUES (%s, %s, %s)", [event_type, key, event])


def test_rows_are_published_once(run, api, database):
    """`--once` publishes the waiting rows. Refused rows are listed, and can be retried or skipped."""
    name = create_event_type(api, schema=SCHEMA)["name"]
    insert(database, name, "A", '{"n": 1}')
    insert(database, name, "A", '{"n": "two"}')
    insert(database, name, "A", '{"n": 3}')

    done = run("relay", "postgres", "--once")
    assert done.code == 1
    assert "Published 1 event, and 1 were refused." in done.err

    [refused] = run("relay", "refused", "-o", "json").json
    assert (refused["event_type"], refused["key"]) == (name, "A")
    assert "found: String" in refused["reason"]
    assert run("relay", "refused").out.split()[:2] == ["ID", "EVENT"]

    assert run("relay", "retry", str(refused["id"])).code == 0
    assert run("relay", "refused", "-o", "json").json == []
    assert run("relay", "postgres", "--once").code == 1
    assert run("relay", "skip", str(refused["id"])).code == 0
    assert run("relay", "skip", str(refused["id"])).code == 5
    done = run("relay", "postgres", "--once")
    assert (done.code, "Published 1 event" in done.err) == (0, True)


def test_a_table_that_is_missing_is_named(run, server):
    """An error of the database ends the command with a sentence and exit code 1."""
    done = run("relay", "refused", "--dsn", server.dsn, "--table", "no_such")
    assert done.code == 1
    assert "no_such_refused" in done.err


@pytest.mark.parametrize("options", [["--dsn", "postgresql//u:secret@h"], ["--table", "a;b"], []])
def test_what_names_no_outbox_is_refused(run, server, options):
    """An invalid DSN or table gives exit code 2, and no password is shown."""
    dsn = ["--dsn", server.dsn] if options and "--dsn" not in options else []
    done = run("relay", "refused", *dsn, *options)
    assert done.code == 2
    assert "secret" not in done.err


def test_a_database_that_does_not_answer_is_named(run):
    """If the database does not answer, the command says so."""
    done = run("relay", "refused", "--dsn", "host=127.0.0.1 port=1 user=x password=secret connect_timeout=5")
    assert done.code == 1
    assert "The database" in done.err
    assert "secret" not in done.err


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--changes", "no_such", "--event-type", "x"], "no table public.no_such"),
        (["--changes", "no_such"], "belong together"),
        (["--event-type", "x"], "belong together"),
        (["--changes", "no_such", "--event-type", "x", "--once"], "belong together"),
    ],
)
def test_a_table_that_cannot_be_followed_ends_the_command(run, options, reason):
    """If a table does not meet the feed's requirements, the command names them, and ends with exit code 2."""
    done = run("relay", "postgres", *options)
    assert done.code == 2
    assert reason in done.err

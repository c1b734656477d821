"""Commits are copied into the data file while appends continue, and SQLite's log stays short."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nakadi.common.waiting import run_blocking
from nakadi.engines.sqlite import checkpoints
from nakadi.engines.sqlite.checkpoints import PAGE_BYTES, copy_log
from nakadi.engines.sqlite.event_log import SqliteLog
from nakadi.engines.sqlite.file import SqliteFile
from tests.support.clock import HandMovedClock
from tests.support.engines import a_record
from tests.support.patience import until

LARGE = a_record("x" * 10_000)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "nakadi.db"


@pytest.fixture
def file(path):
    with closing(SqliteFile(path)) as opened, opened.write_connection() as connection:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("CREATE TABLE numbers (number INTEGER)")
        yield opened


def write(file: SqliteFile, times: int) -> None:
    for number in range(times):
        with file.write_transaction() as connection:
            connection.execute("INSERT INTO numbers VALUES (?)", (number,))


def copy(file: SqliteFile) -> bool:
    with closing(file.open_write_connection()) as connection:
        return copy_log(connection)


def log_bytes(path) -> int:
    return path.with_name(f"{path.name}-wal").stat().st_size


def test_the_next_commit_begins_a_new_log(path, file):
    """After everything is copied, SQLite overwrites its log from the beginning, so the log does not grow."""
    write(file, 50)
    assert copy(file)
    size = log_bytes(path)
    for _ in range(5):
        write(file, 30)
        assert copy(file)
    assert log_bytes(path) == size


def test_commits_of_the_meantime_are_copied_too(path, file):
    """Other connections write during the long part of a copy. The short part at its end copies their commits as
    well."""

    class ConnectionWithOtherWriters:
        """A connection that lets others write between the two parts of a copy."""

        def __init__(self, connection: sqlite3.Connection) -> None:
            self.connection = connection

        def execute(self, statement: str) -> Any:
            row = self.connection.execute(statement).fetchone()
            if "PASSIVE" in statement:
                write(file, 30)
            return SimpleNamespace(fetchone=lambda: row, close=lambda: None)

    write(file, 50)
    with closing(file.open_write_connection()) as connection:
        assert copy_log(cast(sqlite3.Connection, ConnectionWithOtherWriters(connection)))
    size = log_bytes(path)
    write(file, 80)
    assert log_bytes(path) == size


def test_a_reader_delays_the_end(file):
    """While a reader needs an older state, part of the log is not copied; others write, and a later copy includes the
    rest."""
    write(file, 5)
    with file.read_connection() as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM numbers").fetchone() == (5,)
        write(file, 5)
        assert not copy(file)
        write(file, 5)
        assert reader.execute("SELECT count(*) FROM numbers").fetchone() == (5,)
        reader.execute("COMMIT")
    assert copy(file)
    with file.read_connection() as reader:
        assert reader.execute("SELECT count(*) FROM numbers").fetchone() == (15,)


def test_appends_have_the_log_copied(path, monkeypatch):
    """After a number of appends, the log is copied into the data file, long before SQLite itself would copy it."""
    monkeypatch.setattr(checkpoints, "BYTES_BETWEEN_CHECKPOINTS", 50 * PAGE_BYTES)
    with closing(SqliteLog(path, HandMovedClock())) as log:
        log.create_topic("t", 1)
        before = path.stat().st_size
        for _ in range(20):
            run_blocking(log.append("t", {0: [LARGE]}))
        until(lambda: path.stat().st_size > before)


def test_a_failed_copy_is_logged_and_repeated(path, monkeypatch, caplog):
    """If a copy fails, appends succeed, the failure is logged, and the next copy is made when it is due."""
    monkeypatch.setattr(checkpoints, "BYTES_BETWEEN_CHECKPOINTS", 50 * PAGE_BYTES)
    copies: list[sqlite3.Connection] = []

    def failing_copy(connection: sqlite3.Connection) -> bool:
        copies.append(connection)
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(checkpoints, "copy_log", failing_copy)
    with closing(SqliteLog(path, HandMovedClock())) as log:
        log.create_topic("t", 1)

        def append_and_see_second_copy() -> bool:
            run_blocking(log.append("t", {0: [LARGE]}))
            return len(copies) >= 2

        until(append_and_see_second_copy)
    assert "could not be copied" in caplog.text

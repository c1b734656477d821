"""Letting go of events in steps of a few milliseconds, so that no append waits long.

A step is a transaction of the writer. Whatever is interrupted between two steps is finished by a later round.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from nakadi.chores import attempted
from nakadi.eventlogs.sqlite_rows import ROW
from nakadi.eventlogs.sqlite_writing import Writer
from nakadi.model.outcomes import Unavailable
from nakadi.ports import UnknownTopic
from nakadi.sqlite_file import SqliteFile

T = TypeVar("T")

STEP_ROWS = 300
STEP_BYTES = 500_000

LAST = "(SELECT id FROM frames WHERE log = :log ORDER BY first DESC LIMIT 1)"
"""A log's last row says which offset comes next, so it stays, if need be without its events."""

REMOVE = """
    DELETE FROM frames WHERE id IN (
        SELECT id FROM (
            SELECT id, sum(size) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes FROM (
                SELECT id, size FROM frames
                WHERE log = :log AND first < :before AND first + count <= :before AND id <> :spared
                ORDER BY first LIMIT :rows))
        WHERE coalesce(bytes, 0) < :bytes)
"""

EVERYTHING = (1 << 63) - 1


class Cleaner:
    """Trims logs, and removes what is left of deleted topics in a thread of its own."""

    def __init__(self, file: SqliteFile, writer: Writer) -> None:
        self._file = file
        self._writer = writer
        self._closing = threading.Event()
        self._rubbish = threading.Event()
        self._thread = threading.Thread(target=self._sweep, name="event-log-cleaner", daemon=True)
        self._rubbish.set()
        self._thread.start()

    def trim(self, topic: str, partition: int, boundary: int) -> None:
        """Let go of the events before this offset; the first step does so for readers, the others for the file."""
        log = self._writer.run(lambda connection: _moved(connection, topic, partition, boundary))
        self.in_steps(partial(_removed, log))

    def delete(self, topic: str) -> None:
        self._writer.run(lambda connection: _forgotten(connection, topic))
        self._rubbish.set()

    def in_steps(self, step: Callable[[sqlite3.Connection], bool]) -> None:
        """Repeat a step while it says that there is more to do."""
        while self.step(step):
            pass

    def step(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Have the writer do this, and rest as long as it took: half of the writer's time is for the appends."""
        begun = time.monotonic()
        result = self._writer.run(work)
        if self._closing.wait(time.monotonic() - begun):
            raise Unavailable("The event log is being closed.")
        return result

    def stop(self) -> None:
        """End what is under way after its current step. The writer must still be there."""
        self._closing.set()
        self._rubbish.set()
        self._thread.join()

    def _sweep(self) -> None:
        while True:
            self._rubbish.wait()
            self._rubbish.clear()
            if self._closing.is_set():
                return
            attempted("removal of deleted topics", "the event log", self._sweep_once)

    def _sweep_once(self) -> None:
        """What fails is tried again after the next deletion, or the next start: nothing hangs on it."""
        with self._unless_closing():
            for log in self._logs_without_topic():
                attempted("removal of a deleted topic", f"log {log}", partial(self._remove_log, log))

    def _remove_log(self, log: int) -> None:
        with self._unless_closing():
            self.in_steps(partial(_swept, log))

    @contextmanager
    def _unless_closing(self) -> Iterator[None]:
        try:
            yield
        except Unavailable:
            if not self._closing.is_set():
                raise

    def _logs_without_topic(self) -> Sequence[int]:
        with self._file.lent() as connection:
            return [log for (log,) in connection.execute("SELECT id FROM logs WHERE topic IS NULL").fetchall()]


def _moved(connection: sqlite3.Connection, topic: str, partition: int, boundary: int) -> int:
    moved = connection.execute(
        "UPDATE logs SET oldest = max(oldest, ?) WHERE partition = ? AND topic = (SELECT id FROM topics WHERE name = ?)"
        " RETURNING id",
        (boundary, partition, topic),
    ).fetchall()
    if not moved:
        raise UnknownTopic(f"{topic} is unknown, or has no partition {partition}")
    return int(moved[0][0])


def _removed(log: int, connection: sqlite3.Connection) -> bool:
    """Remove some of the rows that nobody can read any more, and say whether there may be others."""
    (oldest, spared) = connection.execute(f"SELECT oldest, {LAST} FROM logs WHERE id = :log", {"log": log}).fetchone()  # noqa: S608  # a constant
    if spared is None:
        return False
    if _remove(connection, log, oldest, spared):
        return True
    first, count, stored_at, size = connection.execute(
        "SELECT first, count, stored_at, size FROM frames WHERE id = ?", (spared,)
    ).fetchone()
    if size and first + count <= oldest:
        empty = ROW.pack(first, count, stored_at, 0)
        connection.execute("UPDATE frames SET size = 0, body = ? WHERE id = ?", (empty, spared))
    return False


def _swept(log: int, connection: sqlite3.Connection) -> bool:
    """The file's last row stays for now: its number must not be given to another, which would go unnoticed."""
    (newest,) = connection.execute("SELECT coalesce(max(id), 0) FROM frames").fetchone()
    if _remove(connection, log, EVERYTHING, newest):
        return True
    connection.execute("DELETE FROM logs WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM frames WHERE log = ?1)", (log,))
    return False


def _remove(connection: sqlite3.Connection, log: int, before: int, spared: int) -> bool:
    limits = {"log": log, "before": before, "spared": spared, "rows": STEP_ROWS, "bytes": STEP_BYTES}
    return connection.execute(REMOVE, limits).rowcount > 0


def _forgotten(connection: sqlite3.Connection, topic: str) -> None:
    connection.execute("UPDATE logs SET topic = NULL WHERE topic = (SELECT id FROM topics WHERE name = ?)", (topic,))
    connection.execute("DELETE FROM topics WHERE name = ?", (topic,))

"""Wipes a data file: afterwards, no byte of previously deleted rows is left in the file or in SQLite's log.

    request_wipe(path)
    done = DataFileWiper(path).run(patience_seconds=5.0)

SQLite leaves copies of a deleted row in three places: in pages that are no longer used, in the free space of pages
that are in use (a row leaves one there whenever its page is merged or split), and in the log. So a wipe rewrites every
row with events, fills the free pages with zeros, and truncates the log.

Any process may do it, whether the broker is running or not. A request is a note in the data file, which stays until the
wipe is complete: if the process that wipes is killed, or readers prevent the truncation of the log, the broker tries to
complete the wipe every few seconds. All of this happens in steps of a few milliseconds with pauses of the same length,
so that no append waits for long. `VACUUM` would make all appends wait until the whole file is written.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from enum import StrEnum
from pathlib import Path
from uuid import uuid4

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from nakadi.common.converting import Converter
from nakadi.engines.sqlite.file import (
    WRITE_TIMEOUT_SECONDS,
    begin_write_transaction,
    connect,
    roll_back,
)
from nakadi.model.outcomes import Unavailable

TABLES_WITH_EVENTS = ("frames", "parked")

MAX_ROWS_PER_STEP = 2000
MAX_BYTES_PER_STEP = 500_000
MAX_FREE_PAGES_PER_STEP = 128

# A page with rows of two steps keeps its free space, so each step repeats the last rows of the previous step, at most
# half of them: enough to cover this many pages. SQLite merges and splits three neighbouring pages at a time. Of a
# longer row, a page holds only the beginning, which has at least this number of bytes.
REPEATED_PAGES = 6
MIN_LOCAL_BYTES = 400

CLAIM_SECONDS = 30.0
"""How long after its last step a process has the only right to continue a wipe. After that, another process may
continue it.
"""

LOG_LOCK_TIMEOUT_MS = 20
"""How long an attempt to truncate the log waits for readers. Appends wait meanwhile, too."""
SECONDS_BETWEEN_ATTEMPTS = 0.1
LOG_PATIENCE_SECONDS = 3.0
"""How long a job tries to truncate the log before it leaves that to the broker."""
BROKER_PATIENCE_SECONDS = 1.0
"""How long a broker tries to truncate the log, each time that it looks for a wipe. It does not try all the time,
because appends wait during each attempt."""

NOTE = "kind = 'data-file' AND key = 'wipe'"
PUT_NOTE = """
    INSERT INTO documents (kind, key, revision, entry) VALUES ('data-file', 'wipe', 1, ?1)
    ON CONFLICT (kind, key) DO UPDATE SET revision = revision + 1, entry = ?1
"""


class WipeStage(StrEnum):
    """The progress of a wipe, in its note. When the wipe is complete, the note is removed."""

    REQUESTED = "requested"
    REWRITTEN = "rewritten"
    """The data file is clean; the log is still to be truncated."""


class WipeNote(Struct, frozen=True):
    """`owner` is the process that works on the wipe until `claimed_until`, in seconds of the system's clock."""

    stage: WipeStage = WipeStage.REQUESTED
    owner: str = ""
    claimed_until: float = 0.0


_NOTES = Converter(WipeNote)


class _ClaimLost(Exception):
    """Raised in a step if another process has taken over the wipe, or a new request requires that it begins again."""


def request_wipe(path: Path) -> None:
    """Leave a note in the data file: wipe all data deleted until now."""
    with _open_connection(path) as connection, _transaction(connection):
        connection.execute(PUT_NOTE, (msgspec.json.encode(WipeNote()).decode(),))


class DataFileWiper:
    """Runs the requested wipe, or continues one that another process has begun but not completed."""

    def __init__(
        self, path: Path, *, now: Callable[[], float] = time.time, is_stopping: Callable[[], bool] = lambda: False
    ) -> None:
        self._path = path
        self._now = now
        self._is_stopping = is_stopping
        self._owner = uuid4().hex

    def run(self, patience_seconds: float) -> bool:
        """Wipe, and return whether every requested wipe is done. Returns False if readers of old states prevent the
        truncation of the log for longer than `patience_seconds`, or another process is working on the wipe.
        """
        with _open_connection(self._path) as connection:
            claimed = self._claim(connection)
            if claimed is None:
                return _read_note(connection) is None
            revision, note = claimed
            try:
                if note.stage is WipeStage.REQUESTED:
                    self._clean_pages(connection, revision)
                return self._truncate_log_in_time(connection, revision, patience_seconds)
            except _ClaimLost:
                return False
            finally:
                self._release_claim(connection, revision)

    def _claim(self, connection: sqlite3.Connection) -> tuple[int, WipeNote] | None:
        found = _read_note(connection)
        if found is None:  # read without a turn to write, as the broker does so every few seconds
            return None
        with _transaction(connection):
            found = _read_note(connection)
            if found is None or found[1].claimed_until > self._now():
                return None
            _write_note(connection, found[0], self._with_owner(found[1]))
        return found

    def _with_owner(self, note: WipeNote) -> WipeNote:
        return replace(note, owner=self._owner, claimed_until=self._now() + CLAIM_SECONDS)

    def _release_claim(self, connection: sqlite3.Connection, revision: int) -> None:
        with _transaction(connection):
            found = _read_note(connection)
            if found is not None and found[0] == revision and found[1].owner == self._owner:
                _write_note(connection, revision, replace(found[1], claimed_until=0.0))

    @contextmanager
    def _claimed_transaction(self, connection: sqlite3.Connection, revision: int) -> Iterator[None]:
        """A transaction in which this process is the only one that wipes, followed by a pause of the same length."""
        if self._is_stopping():
            raise _ClaimLost
        began = time.monotonic()
        with _transaction(connection):
            # The note is checked in the transaction. If this process was paused for so long that another one has taken
            # over, it changes nothing.
            found = _read_note(connection)
            if found is None or found[0] != revision or found[1].owner != self._owner:
                raise _ClaimLost
            _write_note(connection, revision, self._with_owner(found[1]))
            yield
        time.sleep(time.monotonic() - began)

    # The pages

    def _clean_pages(self, connection: sqlite3.Connection, revision: int) -> None:
        for table in TABLES_WITH_EVENTS:
            self._rewrite_rows(connection, revision, table)
        self._fill_free_pages(connection, revision)
        with self._claimed_transaction(connection, revision):
            _write_note(connection, revision, self._with_owner(WipeNote(WipeStage.REWRITTEN)))

    def _rewrite_rows(self, connection: sqlite3.Connection, revision: int, table: str) -> None:
        """Delete rows and insert them again, with the same numbers: pages that become empty are zeroed at once.

        Rows that are appended meanwhile need not be visited, but may be.
        """
        (page_size,) = connection.execute("PRAGMA page_size").fetchone()
        names = [name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,)).fetchall()]
        # The column `id`, which one of the tables has, is its `rowid` under another name.
        columns = ", ".join(["rowid", *(name for name in names if name != "id")])
        place = 0
        while True:
            with self._claimed_transaction(connection, revision):
                rows, is_last = _some_rows(connection, table, columns, place)
                if rows:
                    connection.execute(
                        f"DELETE FROM {table} WHERE rowid BETWEEN ? AND ?",  # noqa: S608  # names above
                        (rows[0][0], rows[-1][0]),
                    )
                    marks = ", ".join("?" * len(rows[0]))
                    connection.executemany(f"INSERT INTO {table} ({columns}) VALUES ({marks})", rows)  # noqa: S608  # as above
            if is_last:
                return
            place = _first_repeated_row(rows, REPEATED_PAGES * page_size)

    def _fill_free_pages(self, connection: sqlite3.Connection, revision: int) -> None:
        """Fill all free pages with zeros, by using all of them at the same time, and free them again."""
        (page_size,) = connection.execute("PRAGMA page_size").fetchone()
        with self._claimed_transaction(connection, revision):
            # If the process was killed during an earlier wiping, the table still exists.
            connection.execute("CREATE TABLE IF NOT EXISTS blanks (content BLOB NOT NULL)")
        is_filled = False
        while not is_filled:
            with self._claimed_transaction(connection, revision):
                (free,) = connection.execute("PRAGMA freelist_count").fetchone()
                # Once no free page is left, every page that was free at the beginning has been overwritten.
                is_filled = free == 0
                if free:
                    size = min(free, MAX_FREE_PAGES_PER_STEP) * (page_size - 4)
                    connection.execute("INSERT INTO blanks VALUES (zeroblob(?))", (size,))
        is_empty = False
        while not is_empty:
            with self._claimed_transaction(connection, revision):
                removed = connection.execute("DELETE FROM blanks WHERE rowid = (SELECT min(rowid) FROM blanks)")
                is_empty = removed.rowcount == 0
        with self._claimed_transaction(connection, revision):
            connection.execute("DROP TABLE blanks")

    # The log

    def _truncate_log_in_time(self, connection: sqlite3.Connection, revision: int, patience_seconds: float) -> bool:
        end = time.monotonic() + patience_seconds
        while not _truncate_log(connection):
            if time.monotonic() >= end or self._is_stopping():
                return False
            time.sleep(SECONDS_BETWEEN_ATTEMPTS)
        with _transaction(connection):
            # The note of a request that arrived meanwhile has another revision, and stays.
            connection.execute(f"DELETE FROM documents WHERE {NOTE} AND revision = ?", (revision,))  # noqa: S608  # a constant
        return _read_note(connection) is None


def _some_rows(
    connection: sqlite3.Connection, table: str, columns: str, place: int
) -> tuple[Sequence[tuple[int, ...]], bool]:
    """The rows from a place on, as many as a step rewrites, and whether they are the last ones."""
    rows: list[tuple[int, ...]] = []
    size = 0
    statement = f"SELECT {columns} FROM {table} WHERE rowid >= ? ORDER BY rowid"  # noqa: S608  # names above
    with closing(connection.execute(statement, (place,))) as cursor:
        for row in cursor:
            rows.append(row)
            size += _size_bytes(row)
            # A step needs two rows at least: a step with only one would repeat that row forever.
            if (len(rows) >= MAX_ROWS_PER_STEP or size >= MAX_BYTES_PER_STEP) and len(rows) > 1:
                return rows, False
    return rows, True


def _first_repeated_row(rows: Sequence[tuple[int, ...]], local_bytes: int) -> int:
    """The number of the row with which the next step begins, so that it repeats rows of about this number of bytes in
    pages.
    """
    repeated = 0
    for place in range(len(rows) - 1, len(rows) // 2, -1):
        repeated += min(_size_bytes(rows[place]), MIN_LOCAL_BYTES)
        if repeated >= local_bytes:
            return rows[place][0]
    return rows[len(rows) // 2][0]


def _size_bytes(row: Sequence[object]) -> int:
    return sum(len(value) for value in row if isinstance(value, bytes | str))


def _truncate_log(connection: sqlite3.Connection) -> bool:
    # First copy most pages while others write; they wait only while the other pages are copied.
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    connection.execute(f"PRAGMA busy_timeout = {LOG_LOCK_TIMEOUT_MS}").close()
    is_blocked, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not is_blocked


def _read_note(connection: sqlite3.Connection) -> tuple[int, WipeNote] | None:
    found = connection.execute(f"SELECT revision, entry FROM documents WHERE {NOTE}").fetchone()  # noqa: S608  # a constant
    return None if found is None else (int(found[0]), _NOTES.from_builtins(msgspec.json.decode(found[1])))


def _write_note(connection: sqlite3.Connection, revision: int, note: WipeNote) -> None:
    connection.execute(
        f"UPDATE documents SET entry = ? WHERE {NOTE} AND revision = ?",  # noqa: S608  # a constant
        (msgspec.json.encode(note).decode(), revision),
    )


@contextmanager
def _open_connection(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection whose deletions zero the freed bytes."""
    try:
        with closing(connect(path, timeout_seconds=0)) as connection:
            connection.execute("PRAGMA secure_delete = ON").close()
            yield connection
    except sqlite3.Error as error:
        raise Unavailable(f"{path}: {error}") from error


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    begin_write_transaction(connection, WRITE_TIMEOUT_SECONDS)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise

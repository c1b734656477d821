"""One SQLite file: checks that the file belongs to the broker, and lends connections to it.

The registry, the event log and the coordination of the embedded engine share one file. Their tables are declared
together here, because the version stamped into a file is the version of all of them.
"""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from nakadi.model.outcomes import Unavailable

SqlValue = str | int | float | bytes | None
"""A value of a column."""

SCHEME = "sqlite:///"
APPLICATION_ID = 0x4E4B4449  # "NKDI"
FILE_VERSION = 6

WRITE_TIMEOUT_SECONDS = 5.0
"""For how many seconds a writer waits for its turn before it gives up."""

MAX_IDLE_CONNECTIONS = 16
"""How many connections are kept for later reads and writes."""

CREATE_TABLES = (
    """CREATE TABLE documents (
        kind TEXT NOT NULL, key TEXT NOT NULL, revision INTEGER NOT NULL, entry TEXT NOT NULL,
        PRIMARY KEY (kind, key)) WITHOUT ROWID""",
    "CREATE TABLE topics (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, sealed INTEGER NOT NULL)",
    # A log is a topic's partition. A log whose topic was deleted has frames that must still be removed.
    """CREATE TABLE logs (
        id INTEGER PRIMARY KEY AUTOINCREMENT, topic INTEGER, partition INTEGER NOT NULL,
        oldest INTEGER NOT NULL DEFAULT 0, compacted INTEGER NOT NULL DEFAULT 0, tombstone_at INTEGER)""",
    "CREATE UNIQUE INDEX logs_by_topic ON logs (topic, partition)",
    # Rows are added at the end of the table, for any partition: a commit changes few pages.
    """CREATE TABLE frames (
        id INTEGER PRIMARY KEY, log INTEGER NOT NULL, first INTEGER NOT NULL, count INTEGER NOT NULL,
        stored_at INTEGER NOT NULL, size INTEGER NOT NULL, body BLOB NOT NULL)""",
    # This index answers every question about places and times without reading the bodies.
    "CREATE INDEX frames_by_log ON frames (log, first, count, stored_at, size)",
    """CREATE TABLE assignments (
        subscription TEXT PRIMARY KEY, revision INTEGER NOT NULL, body TEXT NOT NULL) WITHOUT ROWID""",
    """CREATE TABLE offsets (
        subscription TEXT NOT NULL, event_type TEXT NOT NULL, partition TEXT NOT NULL, timeline INTEGER NOT NULL,
        position INTEGER NOT NULL, owner TEXT, since INTEGER NOT NULL,
        PRIMARY KEY (subscription, event_type, partition)) WITHOUT ROWID""",
    "CREATE TABLE leases (holder TEXT PRIMARY KEY, until INTEGER NOT NULL) WITHOUT ROWID",
    # The latest changes of subscriptions, with their place in the order of changes, by which processes notice each
    # other's changes.
    """CREATE TABLE coordination_news (
        subscription TEXT NOT NULL, changed TEXT NOT NULL, number INTEGER NOT NULL,
        PRIMARY KEY (subscription, changed)) WITHOUT ROWID""",
    "CREATE INDEX coordination_news_by_number ON coordination_news (number)",
)

TABLES_ADDED_BY_VERSION = {
    # The index of the archive, and its identity, a name that no other index has.
    2: (
        "CREATE TABLE log_index (identity TEXT NOT NULL)",
        "INSERT INTO log_index VALUES (lower(hex(randomblob(8))))",
        "CREATE TABLE log_index_topics (topic TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID",
        """CREATE TABLE log_index_heads (
            topic TEXT NOT NULL, partition INTEGER NOT NULL, revision INTEGER NOT NULL, body TEXT NOT NULL,
            PRIMARY KEY (topic, partition)) WITHOUT ROWID""",
        """CREATE TABLE log_index_segments (
            topic TEXT NOT NULL, partition INTEGER NOT NULL, first INTEGER NOT NULL, body TEXT NOT NULL, archived TEXT,
            PRIMARY KEY (topic, partition, first)) WITHOUT ROWID""",
        """CREATE TABLE log_index_claims (
            name TEXT PRIMARY KEY, owner TEXT NOT NULL, until REAL NOT NULL) WITHOUT ROWID""",
        """CREATE TABLE log_index_progress (
            stream TEXT NOT NULL, shard TEXT NOT NULL, sequence TEXT NOT NULL,
            PRIMARY KEY (stream, shard)) WITHOUT ROWID""",
    ),
    # Parked events of subscriptions.
    3: (
        """CREATE TABLE parked (
            subscription TEXT NOT NULL, event_type TEXT NOT NULL, partition TEXT NOT NULL, timeline INTEGER NOT NULL,
            position INTEGER NOT NULL, key TEXT NOT NULL, fails INTEGER NOT NULL, stored_at INTEGER NOT NULL,
            parked_at INTEGER NOT NULL, replay TEXT, owner_type TEXT, owner_value TEXT, value BLOB NOT NULL)""",
        "CREATE UNIQUE INDEX parked_by_place ON parked (subscription, event_type, partition, timeline, position)",
    ),
    # Ids of events. `eids` explains the search for them.
    4: (
        """CREATE TABLE eids (
            id INTEGER PRIMARY KEY, scope BLOB NOT NULL, stored_at INTEGER NOT NULL, expires_at INTEGER NOT NULL,
            timeline INTEGER NOT NULL, count INTEGER NOT NULL, body BLOB NOT NULL)""",
        # The ids of events in other logs.
        """CREATE TABLE eid_claims (
            key BLOB PRIMARY KEY, expires_at INTEGER NOT NULL, body BLOB NOT NULL) WITHOUT ROWID""",
        "CREATE INDEX eid_claims_by_expiry ON eid_claims (expires_at)",
    ),
    # The events consumed after an offset. Few subscriptions have such events, so commits of the others do not include
    # them.
    5: (
        """CREATE TABLE done_ahead (
            subscription TEXT NOT NULL, event_type TEXT NOT NULL, partition TEXT NOT NULL, ranges TEXT NOT NULL,
            PRIMARY KEY (subscription, event_type, partition)) WITHOUT ROWID""",
    ),
    # The index of ids of events for which memory has no room.
    6: (
        "CREATE TABLE old_eids (eid BLOB NOT NULL, row INTEGER NOT NULL, PRIMARY KEY (eid, row)) WITHOUT ROWID",
        "CREATE TABLE old_eid_rows (last INTEGER NOT NULL)",
    ),
}
"""The tables that each version added to the one before it."""

TABLE_NAMES = (
    *("documents", "topics", "logs", "frames", "assignments", "offsets", "leases", "coordination_news"),
    *("log_index", "log_index_topics", "log_index_heads", "log_index_segments"),
    *("log_index_claims", "log_index_progress", "parked", "eids", "eid_claims", "done_ahead"),
    *("old_eids", "old_eid_rows"),
)

CONNECTION_PRAGMAS = (
    "PRAGMA synchronous = FULL",  # in WAL mode, a commit then returns when the log is on the disk
    # Deleted rows are zeroed in pages that are written anyway; `wiping` removes the remains elsewhere.
    "PRAGMA secure_delete = FAST",
    "PRAGMA cache_size = -4000",
    "PRAGMA wal_autocheckpoint = 4000",
    "PRAGMA journal_size_limit = 67108864",
)


class BadDataFile(Exception):
    """Raised at the start of a process if the data file cannot be used; the message is a sentence for the operator."""


def path_in_url(url: str) -> Path:
    """The path in `sqlite:///relative/path` or `sqlite:////absolute/path`."""
    path = url.removeprefix(SCHEME)
    if path == url or not path:
        raise BadDataFile(f"{url!r} does not say where the data file is: write {SCHEME}folder/file.db.")
    return Path(path)


class _ConnectionPool:
    def __init__(self, path: Path, timeout: float) -> None:
        self._path = path
        self._timeout = timeout
        self._lock = threading.Lock()
        self._idle: list[sqlite3.Connection] = []
        self._closed = False

    @contextmanager
    def read_connection(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            if self._closed:
                raise Unavailable(f"{self._path} is closed.")
            connection = self._idle.pop() if self._idle else None
        connection = connection or connect(self._path, self._timeout)
        try:
            yield connection
        finally:
            self.return_connection(connection)

    def return_connection(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < MAX_IDLE_CONNECTIONS:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


class SqliteFile:
    """An open data file; any number of threads and processes may have it open.

    Readers are delayed only while SQLite recovers the file after a crash. Writers wait for a turn, which
    `begin_write_transaction` does better than SQLite.
    """

    def __init__(self, path: Path, *, patience: float = WRITE_TIMEOUT_SECONDS) -> None:
        self._path = path
        self._patience = patience
        self._readers = _ConnectionPool(path, timeout=patience)
        self._writers = _ConnectionPool(path, timeout=0)
        self._readers.return_connection(open_connection(path, patience))

    @contextmanager
    def read_connection(self) -> Iterator[sqlite3.Connection]:
        """A connection for reading that only this thread uses; errors of SQLite become `Unavailable`."""
        with self.translate_errors(), self._readers.read_connection() as connection:
            yield connection

    @contextmanager
    def write_transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction that is durable when the block is left, and undone when it raises."""
        with self.write_connection() as connection, self.transaction(connection):
            yield connection

    @contextmanager
    def write_connection(self) -> Iterator[sqlite3.Connection]:
        """A connection to pass to `execute_in_turn` and `transaction`."""
        with self.translate_errors(), self._writers.read_connection() as connection:
            yield connection

    def open_write_connection(self) -> sqlite3.Connection:
        """A connection like those of `write_connection`, which the caller may keep, and has to close."""
        return connect(self._path, timeout_seconds=0)

    def execute_in_turn(
        self, connection: sqlite3.Connection, statement: str, values: Sequence[SqlValue]
    ) -> sqlite3.Cursor:
        """Execute a statement that is a transaction in itself. If it returns rows, the transaction ends when all rows
        are fetched.
        """
        return _execute_in_turn(connection, statement, values, self._patience)

    @contextmanager
    def transaction(self, connection: sqlite3.Connection) -> Iterator[None]:
        """A transaction that is durable when the block is left, and undone when it raises."""
        begin_write_transaction(connection, self._patience)
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            roll_back(connection)
            raise

    def close(self) -> None:
        self._readers.close()
        self._writers.close()

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """A context in which errors of SQLite become `Unavailable`."""
        try:
            yield
        except sqlite3.Error as error:
            raise Unavailable(f"{self._path}: {error}") from error


def begin_write_transaction(connection: sqlite3.Connection, timeout_seconds: float) -> None:
    """Begin a transaction that may write. Waits at most this number of seconds for its turn."""
    _execute_in_turn(connection, "BEGIN IMMEDIATE", (), timeout_seconds)


def _execute_in_turn(
    connection: sqlite3.Connection, statement: str, values: Sequence[SqlValue], timeout_seconds: float
) -> sqlite3.Cursor:
    """Execute a statement that needs the write lock. It is retried while another writer holds the lock.

    SQLite's own waiting sleeps longer and longer, up to a tenth of a second; a transaction here takes about a
    millisecond, so frequent attempts give all writers a turn.
    """
    end = time.monotonic() + timeout_seconds
    while True:
        try:
            return connection.execute(statement, values)
        except sqlite3.OperationalError as error:
            if not _is_busy(error) or time.monotonic() >= end:
                raise
        time.sleep(random.uniform(0.0002, 0.001))  # noqa: S311  # not a secret


def roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _is_busy(error: sqlite3.Error) -> bool:
    return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def connect(path: Path, timeout_seconds: float) -> sqlite3.Connection:
    """A connection to a file that `open_connection` has checked."""
    connection = sqlite3.connect(path, timeout=timeout_seconds, isolation_level=None, check_same_thread=False)
    try:
        for setting in CONNECTION_PRAGMAS:
            connection.execute(setting).close()
    except BaseException:
        connection.close()
        raise
    return connection


def open_connection(path: Path, timeout_seconds: float) -> sqlite3.Connection:
    """The first connection to a file, which is checked, and created if it is missing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _refuse_short_file(path)
        connection = connect(path, timeout_seconds=timeout_seconds)
        try:
            _prepare_file(connection, path, timeout_seconds)
        except BaseException:
            connection.close()
            raise
    except sqlite3.OperationalError as error:
        raise cannot_be_opened_error(path, error) from error
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_NOTADB:
            raise not_a_data_file_error(path) from error
        raise BadDataFile(f"The data file {path} cannot be used, it is damaged: {error}.") from error
    except OSError as error:
        raise BadDataFile(f"The data file {path} cannot be opened: {error.strerror or error}.") from error
    return connection


def _refuse_short_file(path: Path) -> None:
    """Refuse files that are so short that SQLite would take them for empty ones and overwrite them; it detects longer
    damaged files itself.

    The file must not be opened here: closing it again would release the locks of every connection of this process, and
    another process could then remove the log that they use.
    """
    if path.exists() and 0 < path.stat().st_size < 100:
        raise not_a_data_file_error(path)


def cannot_be_opened_error(path: Path, error: sqlite3.OperationalError) -> BadDataFile:
    is_full = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL
    return BadDataFile(f"The data file {path} cannot be opened: {error}.{' Make room on its disk.' if is_full else ''}")


def not_a_data_file_error(path: Path) -> BadDataFile:
    return BadDataFile(f"{path} is not a data file of this broker, or it is damaged.")


def _prepare_file(connection: sqlite3.Connection, path: Path, timeout_seconds: float) -> None:
    read_file_version(connection, path)
    _execute_when_not_busy(connection, "PRAGMA journal_mode = WAL", timeout_seconds)
    begin_write_transaction(connection, timeout_seconds)
    try:
        _migrate(connection, read_file_version(connection, path))
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise
    for table in TABLE_NAMES:
        connection.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone()  # noqa: S608  # the names above
    _require_null_safe_sqlite(connection)


def _execute_when_not_busy(connection: sqlite3.Connection, statement: str, timeout_seconds: float) -> None:
    """Execute a statement that needs exclusive access, such as a change of the journal mode. SQLite's own timeouts do
    not apply to such statements.
    """
    end = time.monotonic() + timeout_seconds
    while True:
        try:
            connection.execute(statement).close()
        except sqlite3.OperationalError as error:
            if not _is_busy(error) or time.monotonic() >= end:
                raise
        else:
            return
        time.sleep(0.005)


def read_file_version(connection: sqlite3.Connection, path: Path) -> int:
    """The version of the file, 0 for an empty one."""
    application, version, tables = connection.execute(
        "SELECT (SELECT application_id FROM pragma_application_id), (SELECT user_version FROM pragma_user_version),"
        " (SELECT count(*) FROM sqlite_master)"
    ).fetchone()
    if application == 0 and version == 0 and tables == 0:
        return 0
    if application != APPLICATION_ID:
        raise BadDataFile(f"{path} is the data file of another program.")
    if version > FILE_VERSION:
        raise BadDataFile(
            f"{path} was written by a newer version of this broker (format {version}, this one knows {FILE_VERSION})."
        )
    return int(version)


def _migrate(connection: sqlite3.Connection, version: int) -> None:
    """Create the tables that the file does not have yet, and record the new version."""
    if version == FILE_VERSION:
        return
    if version == 0:
        for table in CREATE_TABLES:
            connection.execute(table)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    for number in range(max(version, 1) + 1, FILE_VERSION + 1):
        for table in TABLES_ADDED_BY_VERSION[number]:
            connection.execute(table)
    connection.execute(f"PRAGMA user_version = {FILE_VERSION}")


def _require_null_safe_sqlite(connection: sqlite3.Connection) -> None:
    """Raise for old versions of SQLite, which end joined frames at a zero byte."""
    statement = "SELECT CAST(group_concat(value, '') AS BLOB) FROM (SELECT x'004101' AS value UNION ALL SELECT x'00')"
    if connection.execute(statement).fetchone()[0] != b"\x00A\x01\x00":
        raise BadDataFile(f"The SQLite library of this Python, {sqlite3.sqlite_version}, is too old: 3.38 is needed.")

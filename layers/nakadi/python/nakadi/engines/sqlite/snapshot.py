"""A data file as it is at one moment, while brokers continue to use it.

    with open_snapshot(path) as snapshot:
        snapshot.copy_to(copy)
        keys = snapshot.archive_keys()

A snapshot is a read transaction: SQLite shows it everything that was committed before, and nothing later. No reader or
writer waits for a snapshot, but SQLite's log grows until the snapshot is closed.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

import orjson

from nakadi.engines.sqlite.file import FILE_VERSION, BadDataFile, read_file_version
from nakadi.engines.sqlite.mark import DataFileMark, check_against_mark, mark_of, open_read_only
from nakadi.engines.sqlite.registry import SELECT_REFERENCED_OBJECTS

OLDEST_VERSION_WITH_LOG_INDEX = 2

# How many pages are copied in a step. Ctrl-C is noticed between two steps.
PAGES_PER_STEP = 2000


class Snapshot:
    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection

    def mark(self, now: datetime) -> DataFileMark:
        """The mark for a copy."""
        return mark_of(self._connection, now)

    def archive_keys(self) -> Collection[str]:
        """The keys of the archive objects that the data file refers to."""
        (found,) = self._connection.execute(SELECT_REFERENCED_OBJECTS).fetchone()
        return frozenset(orjson.loads(found))

    def copy_to(self, copy: Path) -> None:
        """Copy the data file page by page, and check the copy's structure. Only the owner may read the copy.

        Raises `BadDataFile` if the data file is damaged.
        """
        os.close(os.open(copy, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with closing(sqlite3.connect(copy, isolation_level=None)) as target:
            for setting in ("journal_mode = OFF", "synchronous = OFF"):  # an incomplete copy is useless
                target.execute(f"PRAGMA {setting}").close()
            self._connection.backup(target, pages=PAGES_PER_STEP)
        address = f"file:{quote(str(copy.absolute()))}?mode=ro&immutable=1"
        with closing(sqlite3.connect(address, uri=True)) as copied:
            (found,) = copied.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise BadDataFile(f"The data file {self._path} is damaged: {' '.join(str(found).split())}.")


@contextmanager
def open_snapshot(path: Path) -> Iterator[Snapshot]:
    """Open a snapshot of a data file that keeps all promises of its mark; raises `BadDataFile`."""
    if not path.exists():
        raise BadDataFile(f"There is no data file {path}.")
    check_against_mark(path, accept_loss=False)
    try:
        with contextlib.closing(open_read_only(path)) as connection:
            connection.isolation_level = None
            version = read_file_version(connection, path)
            if version < OLDEST_VERSION_WITH_LOG_INDEX:
                raise BadDataFile(
                    f"{path} has format {version}, and this version copies formats from {OLDEST_VERSION_WITH_LOG_INDEX}"
                    f" to {FILE_VERSION}: start its broker once, which brings the file up to date."
                )
            connection.execute("BEGIN").close()
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            yield Snapshot(path, connection)
    except sqlite3.Error as error:
        raise BadDataFile(f"The data file {path} cannot be copied: {error}.") from error

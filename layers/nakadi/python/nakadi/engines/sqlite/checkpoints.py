"""Copies commits from SQLite's log to their places in the data file, in a separate thread, so that no append waits for
that.

SQLite itself copies within the commit that makes its log 4,000 pages long. With batches of a hundred events, that was
one commit in 480: it took 12 ms of CPU, and wrote up to 16 MB to the disk, while all appends waited. With this thread,
other commits continue meanwhile. They wait only at the end, while the few pages that they have added are copied. If the
copy does not finish in time, for example because of a reader, SQLite copies within a commit as described.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from contextlib import closing

from nakadi.engines.sqlite.file import SqliteFile

log = logging.getLogger(__name__)

PAGE_BYTES = 4096

BYTES_BETWEEN_CHECKPOINTS = 3_000 * PAGE_BYTES
"""How many bytes are committed between two copies: about three quarters of the size at which SQLite itself copies."""

OTHER_PAGES_OF_COMMIT = 4
"""The pages that a commit writes beside those that its rows fill: pages of indexes, and the last page, which is partly
empty.
"""

WAIT_FOR_TURN_MS = 20
"""How long the last step waits for its turn to write, and for readers of older states. Appends wait for the latter."""


class Checkpointer:
    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._bytes = 0
        self._copying: threading.Thread | None = None

    def note_commit(self, row_bytes: int) -> None:
        """Count a commit whose rows have this number of bytes, and start a copy if one is due. Only one thread calls
        this.
        """
        self._bytes += row_bytes + OTHER_PAGES_OF_COMMIT * PAGE_BYTES
        if self._bytes < BYTES_BETWEEN_CHECKPOINTS or (self._copying is not None and self._copying.is_alive()):
            return
        self._bytes = 0
        copying = threading.Thread(target=self._copy, name="event-log-checkpoint", daemon=True)
        try:
            copying.start()
        except RuntimeError:  # there are too many threads, but the writing thread must continue
            log.warning("The log of the data file is not copied into it for now", exc_info=True)
        else:
            self._copying = copying

    def close(self) -> None:
        """Wait for the end of a copy in progress."""
        if self._copying is not None:
            self._copying.join()

    def _copy(self) -> None:
        try:
            with closing(self._file.open_write_connection()) as connection:
                copy_log(connection)
        except sqlite3.Error:  # SQLite itself soon copies within a commit, which reports a failure
            log.warning("The log of the data file could not be copied into it", exc_info=True)


def copy_log(connection: sqlite3.Connection) -> bool:
    """Copy all commits in the log, and return whether none is left to copy; then the next commit begins the log
    anew.
    """
    # First copy most pages while others write; they wait only while the other pages are copied.
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    connection.execute(f"PRAGMA busy_timeout = {WAIT_FOR_TURN_MS}").close()
    is_blocked, pages, copied = connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
    return not is_blocked and pages == copied

"""Noticing what other processes change in the same file.

Every change leaves its number, which is greater than all before, in its subscription's row. Whoever looks asks for the
rows with greater numbers than it has seen: one statement, however many subscriptions there are.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable

from nakadi.model.coordination import Changed
from nakadi.model.outcomes import Unavailable
from nakadi.sqlite_file import SqliteFile

_log = logging.getLogger(__name__)

PAUSE = 0.05
"""Seconds between two looks. A look is one statement that reads a counter in shared memory."""

NEWEST = "SELECT coalesce(max(number), 0) FROM coordination_news"

NOTE = f"""
    INSERT INTO coordination_news (subscription, changed, number) VALUES (?1, ?2, ({NEWEST}) + 1)
    ON CONFLICT (subscription, changed) DO UPDATE SET number = excluded.number
    RETURNING number
"""  # noqa: S608  # nothing but the constant above

SINCE = "SELECT subscription, changed, number FROM coordination_news WHERE number > ? ORDER BY number"

# What is left of deleted subscriptions, once everybody has had the time to read it.
OLD_NEWS = """
    DELETE FROM coordination_news
    WHERE number < ? - 100000 AND subscription NOT IN (SELECT subscription FROM assignments)
"""


class News:
    """Looks at the file while somebody in this process is interested, and not at all otherwise."""

    def __init__(self, file: SqliteFile, tell: Callable[[str, Changed], None]) -> None:
        self._file = file
        self._tell = tell
        self._lock = threading.Lock()
        self._interested = 0
        self._somebody = threading.Event()
        self._closed = threading.Event()
        self._last = 0
        self._own: set[int] = set()
        self._thread: threading.Thread | None = None

    def note(self, connection: sqlite3.Connection, subscription: str, changed: Changed) -> int:
        """Leave the news in the file; its number."""
        (number,) = connection.execute(NOTE, (subscription, changed.value)).fetchone()
        if number % 10_000 == 0:
            connection.execute(OLD_NEWS, (number,))
        return int(number)

    def told(self, number: int) -> None:
        """This process tells this one itself."""
        with self._lock:
            if self._interested:
                self._own.add(number)

    def attend(self) -> None:
        """From now on, tell what others change."""
        with self._lock:
            if self._closed.is_set():
                raise Unavailable("The coordination is closed.")
            if self._interested == 0:
                with self._file.lent() as connection:
                    self._last = connection.execute(NEWEST).fetchone()[0]
                self._own.clear()
            self._interested += 1
            self._somebody.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="coordination-news", daemon=True)
                self._thread.start()

    def leave(self) -> None:
        with self._lock:
            self._interested -= 1
            if self._interested == 0:
                self._somebody.clear()

    def close(self) -> None:
        with self._lock:
            self._closed.set()
        self._somebody.set()
        if self._thread is not None:
            self._thread.join()

    def _look(self) -> None:
        version = -1
        try:
            with self._file.lent() as connection:
                while not self._closed.wait(PAUSE):
                    self._somebody.wait()
                    version = self._look_once(connection, version)
        except Unavailable:
            return  # it was closed before the thread began

    def _look_once(self, connection: sqlite3.Connection, version: int) -> int:
        try:
            (now,) = connection.execute("PRAGMA data_version").fetchone()
            if now != version:
                self._tell_since(connection)
        except sqlite3.Error:
            return version  # the next look is soon
        except Exception:  # noqa: BLE001  # whoever waits for news would wait for ever
            _log.exception("Looking for changes of other processes failed, tried again")
            return version
        return int(now)

    def _tell_since(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            found = connection.execute(SINCE, (self._last,)).fetchall()
            self._last = max((number for _, _, number in found), default=self._last)
            others = [(subscription, changed) for subscription, changed, number in found if number not in self._own]
            self._own = {number for number in self._own if number > self._last}
        for subscription, changed in others:
            self._tell(subscription, Changed(changed))

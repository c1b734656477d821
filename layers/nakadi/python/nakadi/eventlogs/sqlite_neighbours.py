"""Noticing what other processes append to the same file."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable

import orjson

from nakadi.eventlogs.sqlite_writing import Arrival
from nakadi.model.outcomes import Unavailable
from nakadi.sqlite_file import SqliteFile

_log = logging.getLogger(__name__)

PAUSE = 0.04
"""Seconds between two looks. A look is one statement that reads a counter in shared memory."""

NEWEST = "SELECT coalesce(max(id), 0) FROM frames"

ARRIVED = """
    SELECT max(arrived.last), json_group_array(json_array(topics.name, logs.partition, logs.id, arrived.next))
    FROM (SELECT log, max(id) AS last, max(first + count) AS next FROM frames WHERE id > ? GROUP BY log) AS arrived
    JOIN logs ON logs.id = arrived.log JOIN topics ON topics.id = logs.topic
"""


class Neighbours:
    """Looks at the file while somebody in this process is interested, and not at all otherwise."""

    def __init__(self, file: SqliteFile, announce: Callable[[str, int], None]) -> None:
        self._file = file
        self._announce = announce
        self._lock = threading.Lock()
        self._interested = 0
        self._somebody = threading.Event()
        self._closed = threading.Event()
        self._last = 0
        self._known: dict[int, int] = {}
        self._thread = threading.Thread(target=self._look, name="event-log-neighbours", daemon=True)
        self._thread.start()

    def attend(self) -> None:
        """From now on, tell what others append."""
        with self._lock:
            if self._closed.is_set():
                raise Unavailable("The event log is closed.")
            if self._interested == 0:
                with self._file.lent() as connection:
                    self._last = connection.execute(NEWEST).fetchone()[0]
            self._interested += 1
            self._somebody.set()

    def leave(self) -> None:
        with self._lock:
            self._interested -= 1
            if self._interested == 0:
                self._somebody.clear()

    def told(self, arrivals: Iterable[Arrival]) -> None:
        """This process announced these itself."""
        for arrival in arrivals:
            self._known[arrival.log] = arrival.next

    def close(self) -> None:
        with self._lock:
            self._closed.set()
        self._somebody.set()
        self._thread.join()

    def _look(self) -> None:
        version = -1
        with self._file.lent() as connection:
            while not self._closed.wait(PAUSE):
                self._somebody.wait()
                version = self._look_once(connection, version)

    def _look_once(self, connection: sqlite3.Connection, version: int) -> int:
        try:
            (now,) = connection.execute("PRAGMA data_version").fetchone()
            if now != version:
                self._tell(connection)
        except (sqlite3.Error, Unavailable):
            return version  # the next look is soon
        except Exception:  # noqa: BLE001  # whoever waits for events would wait for ever
            _log.exception("Looking for events of other processes failed, tried again in %s s", PAUSE)
            return version
        return int(now)

    def _tell(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            last, found = connection.execute(ARRIVED, (self._last,)).fetchone()
            self._last = last or self._last
        for topic, partition, log, following in orjson.loads(found):
            if following > self._known.get(log, 0):
                self._known[log] = following
                self._announce(topic, partition)

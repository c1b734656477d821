"""Noticing what other processes change in the same file: appended events, and changes of subscriptions."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable

import orjson

from nakadi.engines.common.listeners import ChangePoller
from nakadi.engines.sqlite.file import SqliteFile
from nakadi.engines.sqlite.writing import CommittedAppend
from nakadi.model.outcomes import Unavailable
from nakadi.model.subscription import SubscriptionChange

# Events ---------------------------------------------------------------------------------------------------------------


_log = logging.getLogger(__name__)

LOOK_EVERY_SECONDS = 0.04
"""Seconds between two looks. A look is one statement that reads a counter in shared memory."""

NEWEST_ROWS = "SELECT coalesce(max(id), 0) FROM frames"

ARRIVED = """
    SELECT max(arrived.last), json_group_array(json_array(topics.name, logs.partition, logs.id, arrived.next))
    FROM (SELECT log, max(id) AS last, max(first + count) AS next FROM frames WHERE id > ? GROUP BY log) AS arrived
    JOIN logs ON logs.id = arrived.log JOIN topics ON topics.id = logs.topic
"""


class AppendsByOthers(ChangePoller):
    """Polls the file while this process has watchers, and not at all otherwise."""

    def __init__(self, file: SqliteFile, announce: Callable[[str, int], None]) -> None:
        super().__init__("The event log", thread_name="event-log-neighbours")
        self._file = file
        self._announce = announce
        self._last = 0
        self._known: dict[int, int] = {}

    def note_own(self, arrivals: Iterable[CommittedAppend]) -> None:
        """This process announced these itself."""
        for arrival in arrivals:
            self._known[arrival.log] = arrival.next

    def _begin(self) -> None:
        with self._file.lent() as connection:
            self._last = connection.execute(NEWEST_ROWS).fetchone()[0]

    def _poll(self) -> None:
        version = -1
        with self._file.lent() as connection:
            while not self._closed.wait(LOOK_EVERY_SECONDS):
                self._wanted.wait()
                version = self._look_once(connection, version)

    def _look_once(self, connection: sqlite3.Connection, version: int) -> int:
        try:
            (now,) = connection.execute("PRAGMA data_version").fetchone()
            if now != version:
                self._report(connection)
        except (sqlite3.Error, Unavailable):
            return version  # the next look is soon
        except Exception:  # noqa: BLE001  # waiting readers would wait for ever
            _log.exception("Looking for events of other processes failed, tried again in %s s", LOOK_EVERY_SECONDS)
            return version
        return int(now)

    def _report(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            last, found = connection.execute(ARRIVED, (self._last,)).fetchone()
            self._last = last or self._last
        for topic, partition, log, following in orjson.loads(found):
            if following > self._known.get(log, 0):
                self._known[log] = following
                self._announce(topic, partition)


# Subscriptions --------------------------------------------------------------------------------------------------------


SECONDS_BETWEEN_LOOKS = 0.05
"""Seconds between two looks. A look is one statement that reads a counter in shared memory."""

NEWEST_NOTE = "SELECT coalesce(max(number), 0) FROM coordination_news"

NOTE = f"""
    INSERT INTO coordination_news (subscription, changed, number) VALUES (?1, ?2, ({NEWEST_NOTE}) + 1)
    ON CONFLICT (subscription, changed) DO UPDATE SET number = excluded.number
    RETURNING number
"""  # noqa: S608  # nothing but the constant above

SINCE = "SELECT subscription, changed, number FROM coordination_news WHERE number > ? ORDER BY number"

# Rows of deleted subscriptions, after all processes had the time to read them.
OLD_NEWS = """
    DELETE FROM coordination_news
    WHERE number < ? - 100000 AND subscription NOT IN (SELECT subscription FROM assignments)
"""


class FileChangePoller(ChangePoller):
    """Polls the file while this process has watchers, and not at all otherwise."""

    def __init__(self, file: SqliteFile, tell: Callable[[str, SubscriptionChange], None]) -> None:
        super().__init__("The coordination", thread_name="coordination-news")
        self._file = file
        self._report = tell
        self._last = 0
        self._own: set[int] = set()

    def note(self, connection: sqlite3.Connection, subscription: str, changed: SubscriptionChange) -> int:
        """Leave the news in the file; its number."""
        (number,) = connection.execute(NOTE, (subscription, changed.value)).fetchone()
        if number % 10_000 == 0:
            connection.execute(OLD_NEWS, (number,))
        return int(number)

    def note_own(self, number: int) -> None:
        """This process tells this one itself."""
        with self._lock:
            if self._watchers:
                self._own.add(number)

    def _begin(self) -> None:
        with self._file.lent() as connection:
            self._last = connection.execute(NEWEST_NOTE).fetchone()[0]
        self._own.clear()

    def _poll(self) -> None:
        version = -1
        try:
            with self._file.lent() as connection:
                while not self._closed.wait(SECONDS_BETWEEN_LOOKS):
                    self._wanted.wait()
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
        except Exception:  # noqa: BLE001  # waiting streams would wait for ever
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
            self._report(subscription, SubscriptionChange(changed))

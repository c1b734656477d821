"""Notices changes by other processes in the same file: appended events, and changes of subscriptions."""

from __future__ import annotations

import logging
import os
import select
import sqlite3
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Protocol

import orjson

from nakadi.engines.common.callbacks import ChangePoller
from nakadi.engines.sqlite.file import SqliteFile
from nakadi.engines.sqlite.writing import CommittedAppend
from nakadi.model.outcomes import Unavailable
from nakadi.model.subscription import SubscriptionChange

_log = logging.getLogger(__name__)

APPEND_CHECK_INTERVAL_SECONDS = 0.04
"""The time between two checks. A check is one statement that reads a counter in shared memory."""

MAX_KNOWN_LOGS = 10_000
"""For how many logs this process remembers up to which offset it has informed readers."""

SELECT_NEWEST_FRAME_ID = "SELECT coalesce(max(id), 0) FROM frames"

SELECT_APPENDED_PARTITIONS = """
    SELECT max(arrived.last), json_group_array(json_array(topics.name, logs.partition, logs.id, arrived.next))
    FROM (SELECT log, max(id) AS last, max(first + count) AS next FROM frames WHERE id > ? GROUP BY log) AS arrived
    JOIN logs ON logs.id = arrived.log JOIN topics ON topics.id = logs.topic
"""


class AppendReporter(Protocol):
    """Reports the appends of other processes while there are watchers in this process."""

    def add_watcher(self) -> None:
        """Begin to report appends by other processes, if that has not begun."""

    def remove_watcher(self) -> None:
        """Undo one call of `add_watcher`."""

    def close(self) -> None: ...


class AppendPoller(ChangePoller):
    """Polls the file only while this process has watchers."""

    def __init__(self, file: SqliteFile, announce: Callable[[str, int], None]) -> None:
        super().__init__("The event log", thread_name="event-log-neighbours")
        self._file = file
        self._announce = announce
        self._last = 0
        self._known: dict[int, int] = {}

    def remember_own_appends(self, arrivals: Iterable[CommittedAppend]) -> None:
        """Note appends that this process has announced itself."""
        # The writing thread calls this while another thread polls. If the poller finds appends before they are noted
        # here, they are announced twice, which costs readers a needless read.
        if len(self._known) > MAX_KNOWN_LOGS:
            # Most of these logs belong to deleted topics. Appends to the others may be announced twice, as above.
            self._known.clear()
        for arrival in arrivals:
            self._known[arrival.log_id] = arrival.next_offset

    def _skip_past_changes(self) -> None:
        with self._file.read_connection() as connection:
            self._last = connection.execute(SELECT_NEWEST_FRAME_ID).fetchone()[0]

    def _poll(self) -> None:
        version = -1
        with self._file.read_connection() as connection:
            while not self._closed.wait(APPEND_CHECK_INTERVAL_SECONDS):
                self._wanted.wait()
                version = self._announce_if_file_changed(connection, version)

    def _announce_if_file_changed(self, connection: sqlite3.Connection, version: int) -> int:
        try:
            (now,) = connection.execute("PRAGMA data_version").fetchone()
            if now != version:
                self._announce_new_appends(connection)
        except (sqlite3.Error, Unavailable):
            return version  # the next check comes soon
        except Exception:  # noqa: BLE001  # waiting readers would wait forever
            _log.exception(
                "Looking for events of other processes failed, trying again in %s s", APPEND_CHECK_INTERVAL_SECONDS
            )
            return version
        return int(now)

    def _announce_new_appends(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            last, found = connection.execute(SELECT_APPENDED_PARTITIONS, (self._last,)).fetchone()
            self._last = last or self._last
        for topic, partition, log, following in orjson.loads(found):
            if following > self._known.get(log, 0):
                self._known[log] = following
                self._announce(topic, partition)


COORDINATION_CHECK_INTERVAL_SECONDS = 0.05
"""The time between two checks. A check is one statement that reads a counter in shared memory."""

SELECT_NEWEST_CHANGE_NUMBER = "SELECT coalesce(max(number), 0) FROM coordination_news"

INSERT_CHANGE = f"""
    INSERT INTO coordination_news (subscription, changed, number) VALUES (?1, ?2, ({SELECT_NEWEST_CHANGE_NUMBER}) + 1)
    ON CONFLICT (subscription, changed) DO UPDATE SET number = excluded.number
    RETURNING number
"""  # noqa: S608  # only the constant above

# A trigger for a connection that changes offsets only by commits, so that each commit is noted within the same
# statement.
CREATE_TRIGGER_INSERTING_CHANGES = f"""
    CREATE TEMP TRIGGER note_each_commit BEFORE UPDATE ON main.offsets BEGIN
        INSERT INTO coordination_news (subscription, changed, number)
        VALUES (new.subscription, '{SubscriptionChange.OFFSETS.value}', ({SELECT_NEWEST_CHANGE_NUMBER}) + 1)
        ON CONFLICT (subscription, changed) DO UPDATE SET number = excluded.number;
    END
"""  # noqa: S608  # only constants

SELECT_CHANGES_SINCE = "SELECT subscription, changed, number FROM coordination_news WHERE number > ? ORDER BY number"

DELETE_OLD_CHANGES = f"""
    DELETE FROM coordination_news
    WHERE number < ({SELECT_NEWEST_CHANGE_NUMBER}) - 100000
        AND subscription NOT IN (SELECT subscription FROM assignments)
"""  # noqa: S608  # nothing but the constant above


REPORT_FORMAT = struct.Struct("<QB55p")
"""A number, the index of a change in `CHANGE_KINDS`, and a subscription. It has 64 bytes, so that a pipe has room only
for whole reports, and writes of several processes are not mixed."""

MAX_REPORTS_AT_ONCE = 1024
MAX_SUBSCRIPTION_NAME_BYTES = 54
CHANGE_KINDS = tuple(SubscriptionChange)


class ChangePipes:
    """Pipes through which the processes of a broker report changes of subscriptions to each other, at once.

    Each process reads one pipe, and writes to the pipes of the others. Nothing depends on the pipes: if one has no room
    for a report, the change is found in the file a moment later.
    """

    def __init__(self, own_read_end: int | None, others: Sequence[int]) -> None:
        self.own_read_end = own_read_end
        self._others = others

    def report_change(self, number: int, subscription: str, change: SubscriptionChange) -> None:
        name = subscription.encode()
        if len(name) <= MAX_SUBSCRIPTION_NAME_BYTES:
            message = REPORT_FORMAT.pack(number, CHANGE_KINDS.index(change), name)
            for each in self._others:
                with suppress(OSError):
                    os.write(each, message)

    def read_reports(self) -> Sequence[tuple[int, str, SubscriptionChange]]:
        if self.own_read_end is None:
            return ()
        try:
            data = os.read(self.own_read_end, REPORT_FORMAT.size * MAX_REPORTS_AT_ONCE)
        except BlockingIOError:
            return ()
        return [(number, name.decode(), CHANGE_KINDS[kind]) for number, kind, name in REPORT_FORMAT.iter_unpack(data)]

    @staticmethod
    def new_nonblocking_pipe() -> tuple[int, int]:
        """A pipe: the end to read from, then the end to write to. No operation on either end waits."""
        ends = os.pipe()
        for each in ends:
            os.set_blocking(each, False)
        return ends


NO_PIPES = ChangePipes(None, ())


class FileChangePoller(ChangePoller):
    """Polls the file while this process has watchers, and not at all otherwise.

    Changes by other processes of this broker also arrive through `pipes`, before the next poll.
    """

    def __init__(
        self, file: SqliteFile, tell: Callable[[str, SubscriptionChange], None], pipes: ChangePipes = NO_PIPES
    ) -> None:
        super().__init__("The coordination", thread_name="coordination-news")
        self._file = file
        self._report = tell
        self._pipes = pipes
        self._last = 0
        # Numbers of changes that were already reported to listeners, and that the next check of the file will find.
        self._known: set[int] = set()

    def insert_change(self, connection: sqlite3.Connection, subscription: str, change: SubscriptionChange) -> int:
        """Record a change in the file, and return its number."""
        (number,) = connection.execute(INSERT_CHANGE, (subscription, change.value)).fetchone()
        return int(number)

    def delete_old_changes(self, connection: sqlite3.Connection) -> None:
        """Remove the changes of deleted subscriptions, once all processes have had time to read them."""
        connection.execute(DELETE_OLD_CHANGES)

    def report_own_changes(self, numbers: Sequence[int], subscription: str, change: SubscriptionChange) -> None:
        """Report stored changes of this process to the other processes; the caller informs the listeners of this
        process.

        A check of the file between the change and this call also finds and reports the change. Then listeners are
        called twice, and read once more than necessary.
        """
        with self._lock:
            # Without watchers, nothing polls, so the set would only grow. The first watcher skips existing changes.
            if self._watchers:
                self._known.update(numbers)
        # One report with the largest number suffices, because the file keeps only the last change of each kind and
        # subscription.
        self._pipes.report_change(max(numbers), subscription, change)

    def _skip_past_changes(self) -> None:
        # Drop reports that arrived before the file is read. Reports that arrive from now on are kept.
        while self._pipes.read_reports():
            pass
        with self._file.read_connection() as connection:
            self._last = connection.execute(SELECT_NEWEST_CHANGE_NUMBER).fetchone()[0]
        self._known.clear()

    def _poll(self) -> None:
        version = -1
        try:
            with self._file.read_connection() as connection:
                while not self._closed.is_set():
                    self._wanted.wait()
                    self._forward_reports_for(COORDINATION_CHECK_INTERVAL_SECONDS)
                    version = self._report_if_file_changed(connection, version)
        except Unavailable:
            return  # the file was closed before the thread began

    def _forward_reports_for(self, seconds: float) -> None:
        """Pass on reports by other processes for the given time."""
        if self._pipes.own_read_end is None:
            self._closed.wait(seconds)
            return
        arriving = select.poll()
        arriving.register(self._pipes.own_read_end, select.POLLIN)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not self._closed.is_set():
            if not arriving.poll(left * 1000):
                return
            reports = self._pipes.read_reports()
            with self._lock:
                self._known.update(number for number, _, _ in reports)
            for subscription, changed in dict.fromkeys((name, changed) for _, name, changed in reports):
                self._report(subscription, changed)

    def _report_if_file_changed(self, connection: sqlite3.Connection, version: int) -> int:
        try:
            (now,) = connection.execute("PRAGMA data_version").fetchone()
            if now != version:
                self._report_changes_since_last(connection)
        except sqlite3.Error:
            return version  # the next check comes soon
        except Exception:  # noqa: BLE001  # waiting streams would wait forever
            _log.exception("Looking for changes of other processes failed, trying again")
            return version
        return int(now)

    def _report_changes_since_last(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            found = connection.execute(SELECT_CHANGES_SINCE, (self._last,)).fetchall()
            newest = max((number for _, _, number in found), default=self._last)
            there = {number for _, _, number in found}.union(
                each for each in self._known if self._last < each <= newest
            )
            # Numbers have no gaps. A missing number belongs to a change by another process that a later change of the
            # same kind has replaced in the file. Then every change found here must be reported, even one that this
            # process made.
            is_one_hidden = len(there) < newest - self._last
            news = [
                (subscription, changed)
                for subscription, changed, number in found
                if is_one_hidden or number not in self._known
            ]
            self._last = newest
            self._known = {number for number in self._known if number > newest}
        for subscription, changed in news:
            self._report(subscription, SubscriptionChange(changed))

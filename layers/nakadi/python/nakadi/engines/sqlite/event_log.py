"""The event log in a SQLite file: for one machine, and for as many processes on it as you like.

A topic's partition is a *log* of rows, each a frame of events that were appended together. All writing of a process is
done by one thread (`writing`), or by another process that commits for several (`sharing`), and reading by the calling
threads (`reading`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from queue import SimpleQueue
from socket import socket
from typing import Protocol

from nakadi.common.metrics import Metrics
from nakadi.engines.common.listeners import PartitionListeners
from nakadi.engines.sqlite.changes import AppendsOfOtherProcesses
from nakadi.engines.sqlite.file import WRITE_PATIENCE_SECONDS, SqliteFile
from nakadi.engines.sqlite.maintenance import Cleaner, PartitionCompaction
from nakadi.engines.sqlite.reading import bounds_of, offset_at, slice_of
from nakadi.engines.sqlite.writing import CommittedAppend, LogWriter, SqliteWriter
from nakadi.model.events import AppendResult, EventSlice, OffsetBounds, Record, Stored, microseconds_since_epoch
from nakadi.ports.clock import Clock
from nakadi.ports.event_log import AppendCallback, OffsetUnavailable, UnknownTopic

STORED_FATE = Stored()


class AppendReporter(Protocol):
    """What reports the appends of other processes while somewhere in this one is interest in them."""

    def attend(self) -> None:
        """Begin to report what other processes append, if that has not begun."""

    def leave(self) -> None:
        """The opposite of `attend`, to be called as often."""

    def close(self) -> None: ...


class SqliteLog:
    """`committer` is the connection to another process that commits for this one."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        metrics: Metrics | None = None,
        *,
        patience: float = WRITE_PATIENCE_SECONDS,
        committer: socket | None = None,
    ) -> None:
        self._file = SqliteFile(path, patience=patience)
        self._announcements = PartitionListeners()
        self._writer: SqliteWriter
        self._appends_by_others: AppendReporter
        if committer is None:
            self._appends_by_others = polled = AppendsOfOtherProcesses(self._file, self._announcements.announce)

            def note_stored(arrivals: Sequence[CommittedAppend]) -> None:
                polled.note_own(arrivals)
                for arrival in arrivals:
                    self._announcements.announce(arrival.topic, arrival.partition)

            self._writer = LogWriter(self._file, clock, note_stored, metrics or Metrics())
        else:
            from nakadi.engines.sqlite.sharing import RemoteWriter  # noqa: PLC0415  # only processes that share a file

            self._writer = self._appends_by_others = RemoteWriter(committer, self._file, self._announcements.announce)
        self._cleaner = Cleaner(self._file, self._writer)

    def create_topic(self, topic: str, partitions: int) -> None:
        self._writer.run(lambda connection: _insert_topic(connection, topic, partitions))

    def add_partitions(self, topic: str, partitions: int) -> None:
        self._writer.run(
            lambda connection: _add_missing_partitions(connection, _partition_count(connection, topic), partitions)
        )

    def seal_topic(self, topic: str) -> None:
        self._writer.run(lambda connection: _seal_topic_row(connection, topic))

    def delete_topic(self, topic: str) -> None:
        self._cleaner.delete(topic)

    def append(self, topic: str, batches: Mapping[int, Sequence[Record]]) -> Mapping[int, AppendResult]:
        waiting: SimpleQueue[Exception | None] = SimpleQueue()
        self._writer.append(topic, batches, waiting.put)
        error = waiting.get()
        if error is not None:
            raise error
        return dict.fromkeys(batches, STORED_FATE)

    def begin_append(self, topic: str, batches: Mapping[int, Sequence[Record]], done: AppendCallback) -> None:
        def pass_on(error: Exception | None) -> None:
            done(dict.fromkeys(batches, STORED_FATE) if error is None else error)

        try:
            self._writer.append(topic, batches, pass_on)
        except Exception as error:  # noqa: BLE001  # it is for the one who is called
            done(error)

    def read(
        self,
        topic: str,
        partition: int,
        start: int,
        *,
        limit: int = 1000,
        max_bytes: int = 4_000_000,
        wait: float = 0.0,
    ) -> EventSlice:
        def look() -> EventSlice:
            with self._file.lent() as connection:
                return slice_of(connection, topic, partition, start, limit, max_bytes)

        found = look()
        if found.events or wait <= 0:
            return found
        self._appends_by_others.attend()
        try:
            return self._announcements.wait_for_events(topic, partition, look, wait)
        finally:
            self._appends_by_others.leave()

    def bounds(self, topic: str, partitions: Sequence[int]) -> Mapping[int, OffsetBounds]:
        with self._file.lent() as connection:
            return bounds_of(connection, topic, partitions)

    def offset_at(self, topic: str, partition: int, moment: datetime) -> int:
        while True:
            with self._file.lent() as connection:
                frame = offset_at(connection, topic, partition, moment)
                try:
                    found = slice_of(connection, topic, partition, frame, limit=1, max_bytes=1)
                except OffsetUnavailable:
                    continue  # the frame was trimmed since, and the next look finds a later one
            return found.events[0].offset if found.events else found.next_offset

    def trim(self, topic: str, partition: int, before: datetime) -> None:
        self._cleaner.trim(topic, partition, self.offset_at(topic, partition, before))

    def compact(self, topic: str, partition: int, *, upto: datetime, tombstones_before: datetime) -> None:
        with self._file.lent() as connection:
            end = offset_at(connection, topic, partition, upto)
        PartitionCompaction(self._file, self._cleaner, topic, partition).run(
            end, microseconds_since_epoch(tombstones_before)
        )

    def watch(self, changed: Callable[[str, int], None]) -> Callable[[], None]:
        self._appends_by_others.attend()
        end = self._announcements.watch(changed)

        def ended() -> None:
            end()
            self._appends_by_others.leave()

        return ended

    def close(self) -> None:
        """Stop cleaning, write what waits to be written, and let those who wait know."""
        self._cleaner.stop()
        self._writer.close()
        self._appends_by_others.close()
        self._file.close()
        self._announcements.wake_all()


def _insert_topic(connection: sqlite3.Connection, topic: str, partitions: int) -> None:
    created = connection.execute("INSERT OR IGNORE INTO topics (name, sealed) VALUES (?, 0) RETURNING id", (topic,))
    for (number,) in created.fetchall():
        _add_missing_partitions(connection, number, partitions)


def _add_missing_partitions(connection: sqlite3.Connection, topic: int, partitions: int) -> None:
    connection.executemany(
        "INSERT OR IGNORE INTO logs (topic, partition) VALUES (?, ?)", [(topic, number) for number in range(partitions)]
    )


def _seal_topic_row(connection: sqlite3.Connection, topic: str) -> None:
    connection.execute("UPDATE topics SET sealed = 1 WHERE id = ?", (_partition_count(connection, topic),))


def _partition_count(connection: sqlite3.Connection, topic: str) -> int:
    found = connection.execute("SELECT id FROM topics WHERE name = ?", (topic,)).fetchone()
    if found is None:
        raise UnknownTopic(topic)
    return int(found[0])

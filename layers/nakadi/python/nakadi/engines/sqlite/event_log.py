"""The event log in a SQLite file: for one machine, and for any number of processes on it.

A topic's partition is a *log* of rows, each a frame of events that were appended together. All writing of a process is
done by one thread (`writing`), or by another process that commits for several (`sharing`), and the calling threads read
(`reading`). Events are removed by age, with their topic, or by compaction, in steps of a few milliseconds, so that no
append waits long.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from socket import socket
from typing import TypeVar

from msgspec import Struct

from nakadi.common.chores import run_and_log_failure
from nakadi.common.metrics import Metrics
from nakadi.common.waiting import Callback
from nakadi.engines.common import frames
from nakadi.engines.common.callbacks import PartitionListeners
from nakadi.engines.common.duplicates import PlacesByPartition, fates_with_duplicates
from nakadi.engines.sqlite.changes import AppendPoller, AppendReporter
from nakadi.engines.sqlite.eids import oldest_eid_row, prune_expired_eids
from nakadi.engines.sqlite.file import WRITE_TIMEOUT_SECONDS, SqliteFile
from nakadi.engines.sqlite.reading import (
    ROW_HEAD_FORMAT,
    FrameRow,
    first_offset_since,
    keys_and_tombstones_of_row,
    read_bounds,
    read_end_and_rows,
    read_slice,
    records_of_row,
)
from nakadi.engines.sqlite.writing import (
    CommittedAppend,
    LogWriter,
    SqliteWriter,
    add_missing_partitions,
    insert_topic,
    seal_topic_row,
    topic_id,
)
from nakadi.model.events import AppendResult, AppendStored, EventSlice, OffsetBounds, Record, microseconds_since_epoch
from nakadi.model.outcomes import Unavailable
from nakadi.ports.clock import Clock
from nakadi.ports.deduplication import EventIds
from nakadi.ports.event_log import OffsetUnavailable, UnknownTopic

STORED_RESULT = AppendStored()


class SqliteLog:
    """The event log in a SQLite file. `committer` is the connection to another process that commits for this one; None
    if this process commits itself.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock,
        metrics: Metrics | None = None,
        *,
        patience: float = WRITE_TIMEOUT_SECONDS,
        committer: socket | None = None,
    ) -> None:
        self._file = SqliteFile(path, patience=patience)
        self._announcements = PartitionListeners()
        self._writer: SqliteWriter
        self._appends_by_others: AppendReporter
        if committer is None:
            self._appends_by_others = polled = AppendPoller(self._file, self._announcements.announce_events)

            def note_stored(arrivals: Sequence[CommittedAppend]) -> None:
                polled.remember_own_appends(arrivals)
                for arrival in arrivals:
                    self._announcements.announce_events(arrival.topic, arrival.partition)

            self._writer = LogWriter(self._file, clock, note_stored, metrics or Metrics())
        else:
            from nakadi.engines.sqlite.sharing import RemoteWriter  # noqa: PLC0415  # only processes that share a file

            self._writer = self._appends_by_others = RemoteWriter(
                committer, self._file, self._announcements.announce_events
            )
        self._cleaner = LogCleaner(self._file, self._writer, clock)

    def create_topic(self, topic: str, partitions: int) -> None:
        self._writer.run(lambda connection: insert_topic(connection, topic, partitions))

    def add_partitions(self, topic: str, partitions: int) -> None:
        self._writer.run(lambda connection: add_missing_partitions(connection, topic_id(connection, topic), partitions))

    def seal_topic(self, topic: str) -> None:
        self._writer.run(lambda connection: seal_topic_row(connection, topic))

    def delete_topic(self, topic: str) -> None:
        self._cleaner.delete_topic(topic)

    async def append(self, topic: str, batches: Mapping[int, Sequence[Record]]) -> Mapping[int, AppendResult]:
        return await self._append(topic, batches, None)

    async def append_once(
        self, topic: str, batches: Mapping[int, Sequence[Record]], ids: EventIds
    ) -> Mapping[int, AppendResult]:
        return await self._append(topic, batches, ids)

    async def _append(
        self, topic: str, batches: Mapping[int, Sequence[Record]], ids: EventIds | None
    ) -> Mapping[int, AppendResult]:
        return _fates(batches, await Callback(partial(self._writer.append, topic, batches, ids=ids)))

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
        def read_now() -> EventSlice:
            with self._file.read_connection() as connection:
                return read_slice(connection, topic, partition, start, limit, max_bytes)

        found = read_now()
        if found.events or wait <= 0:
            return found
        self._appends_by_others.add_watcher()
        try:
            return self._announcements.wait_for_events(topic, partition, read_now, wait)
        finally:
            self._appends_by_others.remove_watcher()

    def bounds(self, topic: str, partitions: Sequence[int]) -> Mapping[int, OffsetBounds]:
        with self._file.read_connection() as connection:
            return read_bounds(connection, topic, partitions)

    def first_offset_since(self, topic: str, partition: int, moment: datetime) -> int:
        while True:
            with self._file.read_connection() as connection:
                frame = first_offset_since(connection, topic, partition, moment)
                try:
                    found = read_slice(connection, topic, partition, frame, limit=1, max_bytes=1)
                except OffsetUnavailable:
                    continue  # the frame was trimmed meanwhile; the next attempt finds a later one
            return found.events[0].offset if found.events else found.next_offset

    def trim(self, topic: str, partition: int, stored_before: datetime) -> None:
        self._cleaner.trim(topic, partition, self.first_offset_since(topic, partition, stored_before))

    def compact(self, topic: str, partition: int, *, stored_before: datetime, tombstones_before: datetime) -> None:
        with self._file.read_connection() as connection:
            end = first_offset_since(connection, topic, partition, stored_before)
        PartitionCompaction(self._file, self._cleaner, topic, partition).run(
            end, microseconds_since_epoch(tombstones_before)
        )

    def add_change_listener(self, on_change: Callable[[str, int], None]) -> Callable[[], None]:
        self._appends_by_others.add_watcher()
        end = self._announcements.add_change_listener(on_change)

        def end_listening() -> None:
            end()
            self._appends_by_others.remove_watcher()

        return end_listening

    def close(self) -> None:
        """Stop the cleaner, write waiting events, and wake the threads that wait for events."""
        self._cleaner.stop()
        self._writer.close()
        self._appends_by_others.close()
        self._file.close()
        self._announcements.wake_waiting_readers()


def _fates(batches: Mapping[int, Sequence[Record]], duplicates: PlacesByPartition) -> Mapping[int, AppendResult]:
    return fates_with_duplicates(batches, duplicates) if duplicates else dict.fromkeys(batches, STORED_RESULT)


T = TypeVar("T")

MAX_ROWS_PER_STEP = 300
MAX_BYTES_PER_STEP = 500_000

SELECT_LAST_FRAME_ID = "(SELECT id FROM frames WHERE log = :log ORDER BY first DESC LIMIT 1)"
"""The last row of a log says which offset comes next, so that row stays, even if its events are removed."""

DELETE_SOME_FRAMES = """
    DELETE FROM frames WHERE id IN (
        SELECT id FROM (
            SELECT id, sum(size) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes FROM (
                SELECT id, size FROM frames
                WHERE log = :log AND first < :before AND first + count <= :before AND id <> :spared
                ORDER BY first LIMIT :rows))
        WHERE coalesce(bytes, 0) < :bytes)
"""

EID_PRUNING_INTERVAL_SECONDS = 60.0

OFFSET_AFTER_ALL = (1 << 63) - 1


class LogCleaner:
    """Trims logs, and removes what remains of deleted topics, and old ids of events. The remains of topics are removed
    in a separate thread.
    """

    def __init__(self, file: SqliteFile, writer: SqliteWriter, clock: Clock) -> None:
        self._file = file
        self._writer = writer
        self._clock = clock
        self._closing = threading.Event()
        self._has_deleted_topics = threading.Event()
        self._thread = threading.Thread(target=self._remove_topics_until_closed, name="event-log-cleaner", daemon=True)
        self._has_deleted_topics.set()
        self._thread.start()

    def trim(self, topic: str, partition: int, oldest_offset: int) -> None:
        """Remove the events before this offset: the first step hides them from readers, and the other steps remove them
        from the file.

        Housekeeping trims each partition every minute, and usually finds nothing to trim: then it writes nothing.
        """
        with self._file.read_connection() as connection:
            if _is_trimmed(connection, topic, partition, oldest_offset):
                return
        log = self._writer.run(lambda connection: _raise_oldest_offset(connection, topic, partition, oldest_offset))
        self.run_steps_until_done(partial(_remove_some_trimmed_rows, log))

    def delete_topic(self, topic: str) -> None:
        self._writer.run(lambda connection: _delete_topic_row(connection, topic))
        self._has_deleted_topics.set()

    def run_steps_until_done(self, step: Callable[[sqlite3.Connection], bool]) -> None:
        """Repeat a step while it reports that there is more to do."""
        while self.run_step(step):
            pass

    def run_step(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Let the writer run a step, then pause for as long as it took: half of the writer's time is for appends."""
        begun = time.monotonic()
        result = self._writer.run(work)
        if self._closing.wait(time.monotonic() - begun):
            raise Unavailable("The event log is being closed.")
        return result

    def stop(self) -> None:
        """End the work in progress after its current step. The writer must still be running."""
        self._closing.set()
        self._has_deleted_topics.set()
        self._thread.join()

    def _remove_topics_until_closed(self) -> None:
        while True:
            self._has_deleted_topics.wait(EID_PRUNING_INTERVAL_SECONDS)
            self._has_deleted_topics.clear()
            if self._closing.is_set():
                return
            run_and_log_failure("removal of deleted topics", "the event log", self._remove_deleted_topics)
            run_and_log_failure("removal of expired eids", "the event log", self.prune_eids)

    def prune_eids(self) -> None:
        """Remove the ids of events whose windows have passed."""
        with self._file.read_connection() as connection:
            oldest = oldest_eid_row(connection)
        if oldest is not None and oldest[1] <= (now := microseconds_since_epoch(self._clock.now())):
            self.run_steps_until_done(partial(prune_expired_eids, now=now))

    def _remove_deleted_topics(self) -> None:
        """Remove deleted topics. A failed removal is retried after the next deletion, or at the next start, because
        nothing depends on it.
        """
        with self._ignoring_errors_when_closing():
            for log in self._read_logs_without_topic():
                run_and_log_failure("removal of a deleted topic", f"log {log}", partial(self._remove_log, log))

    def _remove_log(self, log: int) -> None:
        with self._ignoring_errors_when_closing():
            self.run_steps_until_done(partial(_remove_orphaned_rows, log))

    @contextmanager
    def _ignoring_errors_when_closing(self) -> Iterator[None]:
        try:
            yield
        except Unavailable:
            if not self._closing.is_set():
                raise

    def _read_logs_without_topic(self) -> Sequence[int]:
        with self._file.read_connection() as connection:
            return [log for (log,) in connection.execute("SELECT id FROM logs WHERE topic IS NULL").fetchall()]


# The inner query finds a row that an earlier trim did not remove, because the process was killed. The last row of a log
# stays, without its events.
SELECT_IS_TRIMMED = """
    SELECT logs.oldest >= :oldest AND NOT EXISTS (
        SELECT 1 FROM (SELECT first, count, size FROM frames WHERE log = logs.id ORDER BY first LIMIT 1)
        WHERE first + count <= logs.oldest
            AND (size > 0 OR first < (SELECT max(first) FROM frames WHERE log = logs.id)))
    FROM topics JOIN logs ON logs.topic = topics.id AND logs.partition = :partition WHERE topics.name = :topic
"""


def _is_trimmed(connection: sqlite3.Connection, topic: str, partition: int, oldest_offset: int) -> bool:
    """Whether the partition exists, and has no event left before this offset."""
    found = connection.execute(
        SELECT_IS_TRIMMED, {"topic": topic, "partition": partition, "oldest": oldest_offset}
    ).fetchone()
    return bool(found and found[0])


def _raise_oldest_offset(connection: sqlite3.Connection, topic: str, partition: int, oldest_offset: int) -> int:
    moved = connection.execute(
        "UPDATE logs SET oldest = max(oldest, ?) WHERE partition = ? AND topic = (SELECT id FROM topics WHERE name = ?)"
        " RETURNING id",
        (oldest_offset, partition, topic),
    ).fetchall()
    if not moved:
        raise UnknownTopic(f"{topic} is unknown, or has no partition {partition}")
    return int(moved[0][0])


def _remove_some_trimmed_rows(log: int, connection: sqlite3.Connection) -> bool:
    """Remove some of the rows that can no longer be read, and return whether there may be others."""
    (oldest, spared) = connection.execute(
        f"SELECT oldest, {SELECT_LAST_FRAME_ID} FROM logs WHERE id = :log",  # noqa: S608  # a constant
        {"log": log},
    ).fetchone()
    if spared is None:
        return False
    if _delete_frames_before(connection, log, oldest, spared):
        return True
    first, count, stored_at, size = connection.execute(
        "SELECT first, count, stored_at, size FROM frames WHERE id = ?", (spared,)
    ).fetchone()
    if size and first + count <= oldest:
        empty = ROW_HEAD_FORMAT.pack(first, count, stored_at, 0)
        connection.execute("UPDATE frames SET size = 0, body = ? WHERE id = ?", (empty, spared))
    return False


def _remove_orphaned_rows(log: int, connection: sqlite3.Connection) -> bool:
    """Remove some rows without a topic. The last row of the file stays for now: if its number were given to another
    row, pollers would not notice that row."""
    (newest,) = connection.execute("SELECT coalesce(max(id), 0) FROM frames").fetchone()
    if _delete_frames_before(connection, log, OFFSET_AFTER_ALL, newest):
        return True
    connection.execute("DELETE FROM logs WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM frames WHERE log = ?1)", (log,))
    return False


def _delete_frames_before(connection: sqlite3.Connection, log: int, before: int, spared: int) -> bool:
    limits = {"log": log, "before": before, "spared": spared, "rows": MAX_ROWS_PER_STEP, "bytes": MAX_BYTES_PER_STEP}
    return connection.execute(DELETE_SOME_FRAMES, limits).rowcount > 0


def _delete_topic_row(connection: sqlite3.Connection, topic: str) -> None:
    connection.execute("UPDATE logs SET topic = NULL WHERE topic = (SELECT id FROM topics WHERE name = ?)", (topic,))
    connection.execute("DELETE FROM topics WHERE name = ?", (topic,))


MAX_KEYS_AT_ONCE = 200_000

SELECT_COMPACTION_STATE = """
    SELECT logs.id, logs.oldest, logs.compacted, logs.tombstone_at,
        coalesce((SELECT first + count FROM frames WHERE log = logs.id ORDER BY first DESC LIMIT 1), 0)
    FROM topics JOIN logs ON logs.topic = topics.id AND logs.partition = ? WHERE topics.name = ?
"""


class CompactionState(Struct, frozen=True):
    """How far a partition is compacted. `compacted_until`: the offset up to which every key occurs once.
    `oldest_tombstone_at`: when the oldest tombstone before that offset was stored."""

    log_id: int
    oldest_offset: int
    compacted_until: int
    oldest_tombstone_at: int | None
    next_offset: int

    def needs_compaction(self, end: int, tombstones_before: int) -> bool:
        expired = self.oldest_tombstone_at is not None and self.oldest_tombstone_at < tombstones_before
        return expired or end > max(self.compacted_until, self.oldest_offset)


class CompactedRow(Struct, frozen=True):
    """The result of compacting a row: which events stay, whether any is removed, and whether a tombstone stays."""

    row: FrameRow
    kept_events: list[bool]
    is_changed: bool
    keeps_tombstone: bool


class KeepRule(Struct, frozen=True):
    """Which events of a partition stay. The newest event, at the offset `last_offset`, always stays."""

    newest_offset_by_key: Mapping[str, int]
    last_offset: int
    tombstones_before: int

    def keeps_event(self, offset: int, key: str | None, stored_at: int, *, tombstone: bool) -> bool:
        if key is None or offset == self.last_offset:
            return True
        return self.newest_offset_by_key.get(key, offset) <= offset and not (
            tombstone and stored_at < self.tombstones_before
        )

    def apply_to_row(self, row: FrameRow) -> CompactedRow:
        stays = []
        changes = keeps_tombstone = False
        for offset, entry in enumerate(keys_and_tombstones_of_row(row), row.first_offset):
            spared = entry is not None and self.keeps_event(offset, entry[0], row.stored_at, tombstone=entry[1])
            stays.append(spared)
            changes |= entry is not None and not spared
            # If the newest event is a tombstone, it must be checked again once it is no longer the newest.
            keeps_tombstone |= (
                entry is not None and entry[1] and spared and entry[0] is not None and offset != self.last_offset
            )
        return CompactedRow(row, stays, changes, keeps_tombstone)


class PartitionCompaction:
    def __init__(self, file: SqliteFile, cleaner: LogCleaner, topic: str, partition: int) -> None:
        self._file = file
        self._cleaner = cleaner
        self._topic = topic
        self._partition = partition

    def run(self, end_offset: int, tombstones_before: int) -> None:
        state = self._read_state()
        if not state.needs_compaction(end_offset, tombstones_before):
            return
        end = max(state.compacted_until, state.oldest_offset)
        while True:
            newest, end = self._read_newest_offsets_by_key(end, end_offset)
            tombstone_at = self._compact_rows_before(
                state, KeepRule(newest, state.next_offset - 1, tombstones_before), end
            )
            if end >= state.compacted_until:
                self._cleaner.run_step(partial(_write_compacted_until, state.log_id, end, tombstone_at))
            if end >= end_offset:
                return

    def _read_state(self) -> CompactionState:
        with self._file.read_connection() as connection:
            found = connection.execute(SELECT_COMPACTION_STATE, (self._partition, self._topic)).fetchone()
        if found is None:
            raise UnknownTopic(f"{self._topic} is unknown, or has no partition {self._partition}")
        return CompactionState(*found)

    def _read_newest_offsets_by_key(self, start: int, end: int) -> tuple[dict[str, int], int]:
        newest: dict[str, int] = {}
        for rows in self._read_rows_between(start, end):
            for row in rows:
                for offset, entry in enumerate(keys_and_tombstones_of_row(row), row.first_offset):
                    if entry is not None and entry[0] is not None:
                        newest[entry[0]] = offset
            if len(newest) >= MAX_KEYS_AT_ONCE:
                return newest, rows[-1].end_offset
        return newest, end

    def _compact_rows_before(self, state: CompactionState, rule: KeepRule, end: int) -> int | None:
        """Remove obsolete events before `end`, and return when the oldest remaining tombstone was stored."""
        tombstone_at: int | None = None
        for rows in self._read_rows_between(state.oldest_offset, end):
            verdicts = [rule.apply_to_row(row) for row in rows]
            changes = [verdict for verdict in verdicts if verdict.is_changed]
            if changes:
                self._cleaner.run_step(partial(_rewrite_rows, state.log_id, changes))
            if tombstone_at is None:
                tombstone_at = next((each.row.stored_at for each in verdicts if each.keeps_tombstone), None)
        return tombstone_at

    def _read_rows_between(self, start: int, end: int) -> Iterator[list[FrameRow]]:
        place = start
        while place < end:
            try:
                with self._file.read_connection() as connection:
                    _, rows = read_end_and_rows(
                        connection,
                        self._topic,
                        self._partition,
                        place,
                        limit=MAX_ROWS_PER_STEP,
                        max_bytes=MAX_BYTES_PER_STEP,
                    )
            except OffsetUnavailable:
                place = max(place + 1, self._read_state().oldest_offset)  # trimmed meanwhile
                continue
            rows = [row for row in rows if row.first_offset < end]
            if not rows:
                return
            yield rows
            place = rows[-1].end_offset


def _rewrite_rows(log: int, changes: Sequence[CompactedRow], connection: sqlite3.Connection) -> None:
    """Rewrite those rows that have not changed since they were read: another process may be compacting too."""
    for verdict in changes:
        row = verdict.row
        if not any(verdict.kept_events):
            connection.execute(
                "DELETE FROM frames WHERE log = ? AND first = ? AND body = ?",
                (log, row.first_offset, row.stored_body()),
            )
            continue
        records = [
            record if stays else None for record, stays in zip(records_of_row(row), verdict.kept_events, strict=True)
        ]
        frame = frames.encode(records)
        size = frames.records_size_bytes([record for record in records if record is not None])
        connection.execute(
            "UPDATE frames SET size = ?, body = ? WHERE log = ? AND first = ? AND body = ?",
            (size, row.stored_body(frame), log, row.first_offset, row.stored_body()),
        )


def _write_compacted_until(log: int, end: int, tombstone_at: int | None, connection: sqlite3.Connection) -> None:
    connection.execute(
        "UPDATE logs SET compacted = max(compacted, ?), tombstone_at = ? WHERE id = ?", (end, tombstone_at, log)
    )

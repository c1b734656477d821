"""One thread writes: appends that wait at the same time share a commit, and steps of maintenance take turns with
commits.

Every call into SQLite releases the interpreter's lock, and in a busy process, getting it back takes a while. So a
commit is a single call, an insertion that is a transaction in itself, unless it has more than sixteen rows, or the ends
of its partitions have to be read first.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any, Generic, Protocol, TypeVar, cast

import orjson
from msgspec import Struct

from nakadi.common.metrics import Metrics
from nakadi.engines.common import frames
from nakadi.engines.common.duplicates import PlacesByPartition, without_indices
from nakadi.engines.sqlite.checkpoints import Checkpointer
from nakadi.engines.sqlite.commit_health import CommitHealth
from nakadi.engines.sqlite.eids import FRAMES_AND_EIDS_VIEW, EidMemory, EidRowValues, NewEids
from nakadi.engines.sqlite.file import SqliteFile, SqlValue
from nakadi.engines.sqlite.reading import (
    MAX_RECORD_BYTES_TO_JOIN,
    ROW_HEAD_FORMAT,
    Chunk,
    ChunkedRecords,
    merge_small_chunks,
    split_into_chunks,
)
from nakadi.model.events import Record, RecordLines, TopicPartition, microseconds_since_epoch
from nakadi.model.outcomes import Unavailable
from nakadi.ports.clock import Clock
from nakadi.ports.deduplication import EventIds
from nakadi.ports.event_log import SealedTopic, UnknownTopic

log = logging.getLogger(__name__)

T = TypeVar("T")
OnAppendDone = Callable[[Exception | PlacesByPartition], None]
"""Called with the events that were left out as duplicates, or with the reason why nothing is stored."""
FrameRowValues = tuple[int, int, int, int, int, bytes]

NO_DUPLICATES: PlacesByPartition = {}

MAX_WAITING_APPENDS = 20_000
MAX_WAITING_BYTES = 128_000_000
MAX_COMMIT_BYTES = 16_000_000

SELECT_PARTITION_ENDS = """
    SELECT json_group_array(json_array(
        wanted.key, logs.id, topics.sealed, newest.first + newest.count, newest.stored_at))
    FROM json_each(?) AS wanted
    JOIN topics ON topics.name = json_extract(wanted.value, '$[0]')
    JOIN logs ON logs.topic = topics.id AND logs.partition = json_extract(wanted.value, '$[1]')
    LEFT JOIN frames AS newest
        ON newest.log = logs.id AND newest.first = (SELECT max(first) FROM frames WHERE log = logs.id)
"""

FRAMES = "frames (log, first, count, stored_at, size, body)"
FRAMES_AND_EIDS = f"{FRAMES_AND_EIDS_VIEW} (eid_row, a, b, c, d, e, f)"
"""A view into which rows of both tables are inserted, so that one statement suffices; rows of frames have no number in
front.
"""
ROWS_PER_INSERT = 16
"""The largest number of rows in a statement. SQLite keeps each statement prepared, so there must not be many of
them."""

MAX_KNOWN_ENDS = 10_000
"""How many partitions' ends are remembered."""


class CommittedAppend(Struct, frozen=True):
    topic: str
    partition: int
    log_id: int
    next_offset: int


class _PartitionEnd(Struct):
    log_id: int
    sealed: bool
    next_offset: int
    last_stored_at: int


class _PendingAppend:
    """An append that waits for the writer, which calls `done` with its outcome."""

    def __init__(
        self, topic: str, batches: Mapping[int, Sequence[Record]], done: OnAppendDone, ids: EventIds | None
    ) -> None:
        self.topic = topic
        self.ids = ids
        self.done = done
        self.partitions = [(topic, partition) for partition in batches]
        # The records are checked before the writer gets them, because a bad record must not fail the commit of the
        # others.
        self.chunks = {(topic, partition): chunks_of(records) for partition, records in batches.items()}
        self.size = sum(chunk.size for chunks in self.chunks.values() for chunk in chunks)

    def finish(self, outcome: Exception | PlacesByPartition) -> None:
        try:
            self.done(outcome)
        except Exception:
            # The error must not end the thread for which all other appends wait.
            log.exception("Passing on the outcome of an append to %s failed", self.topic)

    def refusal_error(self, ends: Mapping[TopicPartition, _PartitionEnd]) -> Exception | None:
        for partition in self.partitions:
            if partition not in ends:
                return UnknownTopic(f"{self.topic} is unknown, or has no partition {partition[1]}")
            if ends[partition].sealed:
                return SealedTopic(self.topic)
        return None


def chunks_of(records: Sequence[Record]) -> Sequence[Chunk]:
    if isinstance(records, ChunkedRecords):
        return records.chunks
    if isinstance(records, RecordLines) and (size := len(records.text) + 1) <= MAX_RECORD_BYTES_TO_JOIN:
        return [Chunk(records, records.number, size)]
    if len(records) == 1 and (size := len(records[0].value or b"") + 1) <= MAX_RECORD_BYTES_TO_JOIN:
        # The result is that of `chunks_of`. For a single event, fewer calls matter.
        frames.check_no_line_breaks(records)
        return [Chunk(records, 1, size)]
    return list(split_into_chunks(records))


class _WriterTask(Generic[T]):
    def __init__(self, work: Callable[[sqlite3.Connection], T]) -> None:
        self._work = work
        # This lock is held until the writer releases it. It works like an `Event`, but without a condition and a second
        # lock.
        self._done = threading.Lock()
        self._done.acquire()
        self._result: T | None = None
        self._error: BaseException | None = None

    def run_in_transaction(self, file: SqliteFile) -> None:
        try:
            with file.write_transaction() as connection:
                self._result = self._work(connection)
        except BaseException as error:  # noqa: BLE001  # it is raised in the waiting thread
            self._error = error
        self._done.release()

    def outcome(self) -> T:
        self._done.acquire()
        if self._error is not None:
            raise self._error
        return cast(T, self._result)


class SqliteWriter(Protocol):
    """Writes the events of a process, and runs the small steps of maintenance."""

    def append(
        self, topic: str, batches: Mapping[int, Sequence[Record]], done: OnAppendDone, ids: EventIds | None = None
    ) -> None:
        """Begin to store records, and return. `done` is called when they are durable, or with the reason why they are
        not.

        With `ids`, records whose ids are known are left out.
        """

    def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run work in a separate transaction. The work delays every append, so it must take only milliseconds."""

    def close(self) -> None:
        """Do the work that waits, then stop."""


class LogWriter:
    def __init__(
        self, file: SqliteFile, clock: Clock, stored: Callable[[Sequence[CommittedAppend]], None], metrics: Metrics
    ) -> None:
        self._file = file
        self._clock = clock
        self._stored = stored
        self._metrics = metrics
        self._changed = threading.Condition()
        self._appends: deque[_PendingAppend] = deque()
        # Records with ids wait here until the ids of the file have been read, which may take seconds.
        self._appends_with_ids: deque[_PendingAppend] = deque()
        self._has_read_eids = False
        self._steps: deque[_WriterTask[Any]] = deque()
        self._ends = PartitionEnds()
        self._eids = EidMemory()
        self._checkpointer = Checkpointer(file)
        self._health = CommitHealth(clock, metrics)
        self._waiting_bytes = 0
        self._closing = False
        # Other threads read these lengths without the lock: each read is one step, and the value may change a moment
        # later in any case.
        metrics.log_appends_waiting.add_source(lambda: {(): len(self._appends) + len(self._appends_with_ids)})
        metrics.log_bytes_waiting.add_source(lambda: {(): self._waiting_bytes})
        self._thread = threading.Thread(target=self._write_until_closed, name="event-log-writer", daemon=True)
        self._thread.start()

    def append(
        self, topic: str, batches: Mapping[int, Sequence[Record]], done: OnAppendDone, ids: EventIds | None = None
    ) -> None:
        # This thread creates the chunks before it takes the lock, so that others can append meanwhile.
        append = _PendingAppend(topic, batches, done, ids)
        with self._changed:
            # The writer's last check takes the same lock, so nothing gets into the queue after the writer has found it
            # empty and ended.
            self._refuse_if_closing()
            queue = self._appends if ids is None or self._has_read_eids else self._appends_with_ids
            if len(queue) >= MAX_WAITING_APPENDS or self._waiting_bytes > MAX_WAITING_BYTES:
                raise Unavailable("Too many events wait to be written.")
            self._waiting_bytes += append.size
            queue.append(append)
            self._changed.notify()

    def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        step = _WriterTask(work)
        with self._changed:
            self._refuse_if_closing()
            self._steps.append(step)
            self._changed.notify()
        return step.outcome()

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        self._checkpointer.close()

    def _refuse_if_closing(self) -> None:
        if self._closing:
            raise Unavailable("The event log is closed.")

    def _write_until_closed(self) -> None:
        while (turns := self._pop_next_work()) is not None:
            appends, steps = turns
            if appends:
                self._commit_appends(appends)
            for step in steps:
                step.run_in_transaction(self._file)
                # A step may have changed the ends through the appending connection itself. The version of the file does
                # not show that, because it changes only with commits of other connections.
                self._ends.forget_all()
            if not self._has_read_eids:
                self._read_some_eids()
            if self._eids.has_to_make_room:
                self._make_room_for_eids()
            # Drop the references, so that a large batch does not stay in memory until the next one arrives.
            del turns, appends, steps

    def _pop_next_work(self) -> tuple[list[_PendingAppend], list[_WriterTask[Any]]] | None:
        """The appends that fit into a commit, and one step; None when no more work will come."""
        with self._changed:
            while not self._appends and not self._steps and not self._appends_with_ids:
                # This is checked only when nothing waits, so that appends accepted before the end are still written.
                if self._closing:
                    return None
                if not self._has_read_eids or self._eids.has_to_make_room:
                    break
                self._changed.wait()
            appends: list[_PendingAppend] = []
            size = 0
            while self._appends and (size < MAX_COMMIT_BYTES):
                appends.append(self._appends.popleft())
                size += appends[-1].size
            self._waiting_bytes -= size
            # Take only one step, so that appends which arrive during a long clean-up wait for one step of it, not for
            # all.
            return appends, [self._steps.popleft()] if self._steps else []

    def _read_some_eids(self) -> None:
        """Read ids in pieces, between the appends that do not need them."""
        try:
            with self._file.write_connection() as connection:
                is_done = self._eids.load_some(connection)
        except Exception:  # an append that needs the ids reads them again, and reports the error
            log.warning("The ids of events could not be read", exc_info=True)
            self._eids.forget_all()
            is_done = True
        if is_done:
            with self._changed:
                self._has_read_eids = True
                self._appends.extend(self._appends_with_ids)
                self._appends_with_ids.clear()

    def _make_room_for_eids(self) -> None:
        """Move some older ids from memory to the index in the file."""
        try:
            while True:
                with self._file.write_transaction() as connection:
                    indexed = self._eids.index_oldest_rows(connection)
                self._eids.forget_indexed_rows(indexed)
                if not self._eids.is_far_behind:
                    return
        except Exception:
            log.warning("Older ids of events could not be indexed", exc_info=True)
            self._eids.stop_making_room()

    def _commit_appends(self, appends: Sequence[_PendingAppend]) -> None:
        began = self._clock.monotonic()
        try:
            outcomes, arrivals, row_bytes = _store_appends(
                self._file, self._ends, self._eids, appends, microseconds_since_epoch(self._clock.now())
            )
        except Exception as error:  # noqa: BLE001  # the error belongs to the waiting callers
            # The remembered ends were advanced for rows that were not stored.
            self._ends.forget_all()
            self._eids.forget_all()
            self._health.note_failure(began)
            for append in appends:
                append.finish(error)
            return
        self._health.note_success(began)
        self._metrics.log_commit_appends.observe(len(appends))
        # Called after the commit, so that woken readers find the events, and so that neither these nor the waiting
        # publishers delay other writers of the file.
        self._stored(arrivals)
        for append, outcome in zip(appends, outcomes, strict=True):
            append.finish(outcome)
        self._checkpointer.note_commit(row_bytes)


class PartitionEnds:
    """The ends of partitions, as the writing connection sees them.

    Cached ends are valid while no other connection has changed the file: `PRAGMA data_version` says whether another
    connection has, and is exact within a transaction that may write. After this connection has changed anything by
    other means than appends, or a transaction has failed, `forget_all` must be called.
    """

    def __init__(self) -> None:
        self._ends: dict[TopicPartition, _PartitionEnd] = {}
        self._connection: sqlite3.Connection | None = None
        self.version = 0

    def forget_all(self) -> None:
        self._ends.clear()

    def known_ends(
        self, connection: sqlite3.Connection, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, _PartitionEnd] | None:
        """The ends of these partitions at `version`; None unless all are known and none is sealed."""
        ends = self._ends
        if connection is self._connection and all(
            partition in ends and not ends[partition].sealed for partition in partitions
        ):
            return ends
        return None

    def read_ends(
        self, connection: sqlite3.Connection, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, _PartitionEnd]:
        """The ends of these partitions, and perhaps of others; unknown partitions are missing."""
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        if version != self.version or connection is not self._connection or len(self._ends) > MAX_KNOWN_ENDS:
            self._ends.clear()
            self._connection, self.version = connection, version
        missing = [partition for partition in partitions if partition not in self._ends]
        if missing:
            (found,) = connection.execute(SELECT_PARTITION_ENDS, (orjson.dumps(missing).decode(),)).fetchone()
            for index, log, sealed, following, stored_at in orjson.loads(found):
                self._ends[missing[index]] = _PartitionEnd(log, bool(sealed), following or 0, stored_at or 0)
        return self._ends


def _store_appends(
    file: SqliteFile, partition_ends: PartitionEnds, eids: EidMemory, appends: Sequence[_PendingAppend], now: int
) -> tuple[list[Exception | PlacesByPartition], list[CommittedAppend], int]:
    """The outcome of each append, the ends of the partitions that have grown, and the bytes of all rows of events."""
    partitions = list(dict.fromkeys([partition for append in appends for partition in append.partitions]))
    has_ids = any(append.ids for append in appends)
    with file.write_connection() as connection:
        if has_ids:
            eids.load(connection)
        version, ends = partition_ends.version, partition_ends.known_ends(connection, partitions)
        new_eids = None if ends is None else _collect_new_eids(eids, connection, version, appends, ends, now)
        if ends is not None and new_eids is not None:
            # One statement inserts everything, and checks the version when it has the turn to write. So nothing is
            # stored unless the remembered ends are still true.
            rows = _frame_rows_of_appends([append.chunks for append in appends], ends, now)
            eid_rows = new_eids.rows()
            if _insert_unless_file_changed(file, connection, rows, eid_rows, version):
                eids.note_stored(connection, eid_rows)
                return [NO_DUPLICATES] * len(appends), _committed_appends(partitions, ends), _bytes_of_rows(rows)
            # The remembered ends were advanced, but nothing is stored.
            partition_ends.forget_all()
        with file.transaction(connection):
            ends = partition_ends.read_ends(connection, partitions)
            outcomes = [append.refusal_error(ends) or NO_DUPLICATES for append in appends]
            accepted = [index for index, outcome in enumerate(outcomes) if not isinstance(outcome, Exception)]
            chunks: dict[int, Mapping[TopicPartition, Sequence[Chunk]]] = {
                index: appends[index].chunks for index in accepted
            }
            next_offsets = {partition: ends[partition].next_offset for partition in partitions if partition in ends}
            if has_ids:
                eids.catch_up(connection, partition_ends.version)
            for index in accepted:
                append = appends[index]
                if append.ids is not None:
                    outcomes[index] = duplicates = _remember_eids(
                        connection, eids, append, append.ids, next_offsets, now
                    )
                    chunks[index] = _chunks_without_duplicates(append, duplicates)
                else:
                    _move_on(next_offsets, append)
            rows = _frame_rows_of_appends(chunks.values(), ends, now)
            _insert_frames(connection, rows)
    grown = dict.fromkeys(partition for index in accepted for partition in appends[index].partitions)
    return outcomes, _committed_appends(grown, ends), _bytes_of_rows(rows)


def _bytes_of_rows(rows: Sequence[FrameRowValues]) -> int:
    return sum(len(body) for *_, body in rows)


def _collect_new_eids(
    eids: EidMemory,
    connection: sqlite3.Connection,
    version: int,
    appends: Sequence[_PendingAppend],
    ends: Mapping[TopicPartition, _PartitionEnd],
    now: int,
) -> NewEids | None:
    """The ids of these appends, if all of them are certainly new; otherwise None."""
    if not any(append.ids for append in appends):
        return NewEids(eids, connection, 0, now)
    new = eids.begin_new_eids(connection, version, now)
    next_offsets = {partition: ends[partition].next_offset for append in appends for partition in append.partitions}
    for append in appends:
        if append.ids is None:
            _move_on(next_offsets, append)
        elif new is not None:
            own = {number: next_offsets[append.topic, number] for _, number in append.partitions}
            new = new if new.add(append.ids, own) else None
            next_offsets.update({(append.topic, number): offset for number, offset in own.items()})
    return new


def _move_on(next_offsets: dict[TopicPartition, int], append: _PendingAppend) -> None:
    for partition, some in append.chunks.items():
        next_offsets[partition] += sum(chunk.count for chunk in some)


def _remember_eids(
    connection: sqlite3.Connection,
    eids: EidMemory,
    append: _PendingAppend,
    ids: EventIds,
    next_offsets: dict[TopicPartition, int],
    now: int,
) -> PlacesByPartition:
    """Remember the ids of an append, and return its duplicates. The other events advance `next_offsets`."""
    own = {number: next_offsets[append.topic, number] for _, number in append.partitions}
    duplicates = eids.remember(connection, ids, own, now)
    next_offsets.update({(append.topic, number): offset for number, offset in own.items()})
    return duplicates


def _chunks_without_duplicates(
    append: _PendingAppend, duplicates: PlacesByPartition
) -> Mapping[TopicPartition, Sequence[Chunk]]:
    chunks = dict(append.chunks)
    for number, places in duplicates.items():
        partition = append.topic, number
        chunks[partition] = chunks_of(without_indices(ChunkedRecords(chunks[partition]), places))
    return chunks


def _committed_appends(
    partitions: Iterable[TopicPartition], ends: Mapping[TopicPartition, _PartitionEnd]
) -> list[CommittedAppend]:
    return [
        CommittedAppend(*partition, ends[partition].log_id, ends[partition].next_offset) for partition in partitions
    ]


def _frame_rows_of_appends(
    chunks_of_appends: Iterable[Mapping[TopicPartition, Sequence[Chunk]]],
    ends: Mapping[TopicPartition, _PartitionEnd],
    now: int,
) -> list[FrameRowValues]:
    """The rows of appends, which advance the ends of their partitions."""
    by_partition: dict[TopicPartition, list[Chunk]] = {}
    for chunks_of_append in chunks_of_appends:
        for partition, chunks in chunks_of_append.items():
            by_partition.setdefault(partition, []).extend(chunks)
    return [row for partition, chunks in by_partition.items() for row in _frame_rows(ends[partition], chunks, now)]


def _frame_rows(end: _PartitionEnd, chunks: Sequence[Chunk], now: int) -> Iterator[FrameRowValues]:
    end.last_stored_at = max(end.last_stored_at, now)
    for chunk in merge_small_chunks(chunks):
        count, frame = chunk.count, chunk.frame or frames.encode(chunk.records)
        body = ROW_HEAD_FORMAT.pack(end.next_offset, count, end.last_stored_at, len(frame)) + frame
        yield end.log_id, end.next_offset, count, end.last_stored_at, chunk.size, body
        end.next_offset += count


def _insert_frames(connection: sqlite3.Connection, rows: Sequence[FrameRowValues]) -> None:
    _insert_rows(connection, FRAMES, rows)


def _insert_unless_file_changed(
    file: SqliteFile,
    connection: sqlite3.Connection,
    frame_rows: Sequence[FrameRowValues],
    eid_rows: Sequence[EidRowValues],
    version: int,
) -> bool:
    """Insert rows, unless another connection has changed the file since this version; return whether they were
    inserted.
    """
    if not frame_rows:
        return False
    into, rows = FRAMES, cast(Sequence[Sequence[SqlValue]], frame_rows)
    if eid_rows:
        into, rows = FRAMES_AND_EIDS, [*eid_rows, *((None, *row) for row in frame_rows)]
    first, rest = rows[:ROWS_PER_INSERT], rows[ROWS_PER_INSERT:]
    statement, values = _insert_statement(into, len(first), only_at_version=True), [*_flat_values(first), version]
    if not rest:
        return bool(file.execute_in_turn(connection, statement, values).fetchall())
    with file.transaction(connection):
        if not connection.execute(statement, values).fetchall():
            return False
        _insert_rows(connection, into, rest)
    return True


def _insert_rows(connection: sqlite3.Connection, into: str, rows: Sequence[Sequence[SqlValue]]) -> None:
    for start in range(0, len(rows), ROWS_PER_INSERT):
        some = rows[start : start + ROWS_PER_INSERT]
        connection.execute(_insert_statement(into, len(some)), _flat_values(some))


def _flat_values(rows: Sequence[Sequence[SqlValue]]) -> list[SqlValue]:
    return list(chain.from_iterable(rows))


@cache
def _insert_statement(into: str, row_count: int, *, only_at_version: bool = False) -> str:
    """A statement that inserts rows. With `only_at_version`, it inserts all rows and returns a row, or inserts none if
    the file has changed since the version in the last value.
    """
    row = f"({', '.join('?' * (into.count(',') + 1))})"
    values = f"VALUES {', '.join([row] * row_count)}"
    if only_at_version:
        # The version is checked when the statement has the turn to write, so nothing can change between the check and
        # the insertion.
        values = f"SELECT * FROM ({values}) WHERE (SELECT data_version FROM pragma_data_version) = ? RETURNING 1"  # noqa: S608
    return f"INSERT INTO {into} {values}"


def insert_topic(connection: sqlite3.Connection, topic: str, partitions: int) -> None:
    created = connection.execute("INSERT OR IGNORE INTO topics (name, sealed) VALUES (?, 0) RETURNING id", (topic,))
    for (number,) in created.fetchall():
        add_missing_partitions(connection, number, partitions)


def add_missing_partitions(connection: sqlite3.Connection, topic: int, partitions: int) -> None:
    connection.executemany(
        "INSERT OR IGNORE INTO logs (topic, partition) VALUES (?, ?)", [(topic, number) for number in range(partitions)]
    )


def seal_topic_row(connection: sqlite3.Connection, topic: str) -> None:
    connection.execute("UPDATE topics SET sealed = 1 WHERE id = ?", (topic_id(connection, topic),))


def topic_id(connection: sqlite3.Connection, topic: str) -> int:
    found = connection.execute("SELECT id FROM topics WHERE name = ?", (topic,)).fetchone()
    if found is None:
        raise UnknownTopic(topic)
    return int(found[0])

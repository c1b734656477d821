"""Changes of a SQLite file that share a transaction if they arrive together, as commits of cursors do.

Changes to the file wait in one queue, in order of arrival. A thread that waits for its own change may make the changes
of others with it; a dedicated thread makes changes for which nothing waits. Commits that come one after the other are
one statement, which is a transaction by itself: each additional statement would release the interpreter's lock and wait
for it again, and each transaction waits for the disk.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache
from queue import SimpleQueue
from typing import Generic, TypeVar, cast

from nakadi.engines.common.assignments import PositionsByPartition, commit_result
from nakadi.engines.sqlite.changes import CREATE_TRIGGER_INSERTING_CHANGES, FileChangePoller
from nakadi.engines.sqlite.file import SqliteFile, SqlValue, roll_back
from nakadi.model.event_type import Position
from nakadi.model.events import datetime_from_microseconds, microseconds_since_epoch
from nakadi.model.outcomes import Unavailable
from nakadi.model.subscription import CommitResult, CommittedOffset, EventTypePartition, SubscriptionChange

log = logging.getLogger(__name__)

T = TypeVar("T")
TransactionStep = Callable[[sqlite3.Connection], T]

MAX_CHANGES_PER_TRANSACTION = 500
MAX_ROWS_PER_STATEMENT = 16
"""SQLite keeps a statement prepared for each number of rows, so there must not be many of them."""

SELECT_OFFSETS = "SELECT event_type, partition, timeline, position, owner, since FROM offsets WHERE subscription = ?"

SELECT_OFFSET = SELECT_OFFSETS + " AND event_type = ? AND partition = ?"

# Moves an offset only forward, and only for its owner; nothing is read unless the update fails.
COMMIT_OFFSET = """
    UPDATE offsets SET timeline = ?1, position = ?2, since = ?3
    WHERE subscription = ?4 AND event_type = ?5 AND partition = ?6 AND owner = ?7 AND (timeline, position) < (?1, ?2)
"""


class Change:
    """A change of the file that waits for its turn.

    Only the thread that makes the change modifies this object; other threads read nothing but `is_made` until that is
    set. `is_made` is set last, when the outcome is complete, and never reset. So it is read without a lock: a thread
    that reads it a moment too early waits for its turn, and sees it then.
    """

    def __init__(self) -> None:
        self.is_made = False
        self._error: BaseException | None = None

    def set_error(self, error: BaseException) -> None:
        self._error = error

    def report_finished(self) -> None:
        """Called once, by the thread that made the change or failed to make it, while it holds no lock."""


class Transaction(Change, Generic[T]):
    """A piece of work in a transaction. The work may raise only before it has changed anything. `finished` is as for
    `Commit`.
    """

    def __init__(self, work: TransactionStep[T], finished: Callable[[Transaction[T]], None] | None = None) -> None:
        super().__init__()
        self._work = work
        self._finished = finished
        self._result: T | None = None

    def run_work(self, connection: sqlite3.Connection) -> None:
        try:
            self._result = self._work(connection)
        except sqlite3.Error:
            # The error may have ended the transaction, including the changes of earlier pieces, so all of them fail.
            raise
        except Exception as error:  # noqa: BLE001  # it is raised in the waiting thread
            self._error = error

    def report_finished(self) -> None:
        if self._finished is not None:
            self._finished(self)

    def outcome(self) -> T:
        if self._error is not None:
            raise self._error
        return cast(T, self._result)


OffsetRowKey = tuple[str, str, str]


class Commit(Change):
    """Positions that a session commits. `finished` is called with the commit, if no thread waits for it.

    `numbers` are the numbers of its changes in the order of all changes of subscriptions.
    """

    def __init__(
        self,
        subscription: str,
        session: str,
        positions: PositionsByPartition,
        now: datetime,
        finished: Callable[[Commit], None] | None = None,
    ) -> None:
        super().__init__()
        self.subscription = subscription
        self.session = session
        self.positions = positions
        self.numbers: list[int] = []
        self._since = microseconds_since_epoch(now)
        self._finished = finished
        self._verdicts: dict[EventTypePartition, CommitResult] = {}
        self._left = {(subscription, partition.event_type, partition.partition): partition for partition in positions}

    @property
    def remaining_rows(self) -> Mapping[OffsetRowKey, EventTypePartition]:
        """The partitions that have no result yet, by the keys of their rows in the table."""
        return self._left

    def statement_values(self) -> list[SqlValue]:
        """The values of the commit's partitions, row by row, for a statement that commits several."""
        values: list[SqlValue] = []
        for row, partition in self._left.items():
            at = self.positions[partition]
            values += (*row, self.session, at.timeline, at.offset, self._since)
        return values

    def mark_committed(self, row: OffsetRowKey, number: int) -> None:
        self._verdicts[self._left.pop(row)] = CommitResult.COMMITTED
        self.numbers.append(number)

    def judge_remaining_rows(self, connection: sqlite3.Connection, changes: FileChangePoller) -> None:
        """Determine the results of the remaining partitions one by one, within a transaction, so that none of them can
        change meanwhile.
        """
        moved = False
        for row, partition in self._left.items():
            at = self.positions[partition]
            self._verdicts[partition] = found = commit_partition(connection, row, self.session, at, self._since)
            moved |= found is CommitResult.COMMITTED
        if moved:
            self.numbers.append(changes.insert_change(connection, self.subscription, SubscriptionChange.OFFSETS))

    def report_finished(self) -> None:
        if self._finished is not None:
            self._finished(self)

    def outcome(self) -> Mapping[EventTypePartition, CommitResult]:
        if self._error is not None:
            raise self._error
        return {partition: self._verdicts[partition] for partition in self.positions}


class SharedTransactions:
    """The queue of changes to a file, and the transactions that make them. `changes` records committed changes in the
    file.
    """

    def __init__(self, file: SqliteFile, changes: FileChangePoller) -> None:
        self._file = file
        self._changes = changes
        # A deque needs no lock: any thread adds at its end in one step, and only the thread that has `_turn` takes from
        # its front. So no other thread can take the change at the front first.
        self._waiting: deque[Change] = deque()
        self._turn = threading.Lock()
        # The connection whose trigger notes the changes by commits. It is opened for the first commit.
        self._connection: sqlite3.Connection | None = None
        self._beginning = threading.Lock()
        self._closed = self._is_over = False
        self._thread: threading.Thread | None = None
        self._wishes: SimpleQueue[None] = SimpleQueue()
        self._is_awake = False

    def run(self, work: TransactionStep[T]) -> T:
        """Do work in a transaction, perhaps together with other threads' work, and return when it is durable."""
        transaction = Transaction(work)
        self.make_and_wait(transaction)
        return transaction.outcome()

    def make_and_wait(self, change: Change) -> None:
        # The change is queued before the lock is taken, because the thread that holds the lock may also make this
        # change.
        self._waiting.append(change)
        # The thread that gets the lock makes queued changes; other threads then find their changes made. More rounds
        # may be needed, because earlier changes in the queue come first, and each round makes a limited number.
        while not change.is_made:
            self._make_next_changes(change)

    def begin_change(self, change: Change) -> None:
        """Queue a change, and return without waiting for it. Another thread makes it, and calls its
        `report_finished`.
        """
        with self._beginning:
            # `close` takes the same lock, so changes that are queued before the thread is told to end are still made.
            if self._closed:
                raise Unavailable("The coordination is closed.")
            self._waiting.append(change)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._make_changes_until_closed, name="coordination-writer", daemon=True
                )
                self._thread.start()
        # The writing thread clears the flag before it reads the queue, so a change that is queued while the flag is set
        # will be made. If two threads find the flag clear, they wake the writing thread twice, and it finds nothing the
        # second time.
        if not self._is_awake:
            self._is_awake = True
            self._wishes.put(None)

    def close(self) -> None:
        with self._beginning:
            self._closed = True
        if self._thread is not None:
            self._wishes.put(None)
            self._thread.join()
        # A thread that waits for its own change may still have the turn, or take it later: the connection for commits
        # is closed in a turn, and is not opened again.
        with self._turn:
            self._is_over = True
            if self._connection is not None:
                self._connection.close()

    def _make_changes_until_closed(self) -> None:
        while True:
            self._wishes.get()
            self._is_awake = False
            # This is read before the queue: once it is set, no more changes are queued.
            closed = self._closed
            while self._waiting:
                self._make_next_changes()
            if closed:
                return

    def _make_next_changes(self, wanted: Change | None = None) -> None:
        """Make the first waiting changes that can be made together, unless the change `wanted` has been made by now."""
        with self._turn:
            # Checked again, now that no other thread makes changes: the change may have been made while this thread
            # waited. Otherwise it is in the queue, because changes are taken from there only in a turn.
            if not self._waiting or (wanted is not None and wanted.is_made):
                return
            changes = self._pop_changes_made_together()
            try:
                if isinstance(changes[0], Commit):
                    self._make_commits(cast(Sequence[Commit], changes))
                else:
                    self._run_transactions(cast(Sequence[Transaction[object]], changes))
            except BaseException as error:  # noqa: BLE001  # it is raised by those who wait
                for change in changes:
                    change.set_error(error)
            finally:
                # `is_made` is set last, when each change has its outcome, because a thread that sees it may continue at
                # once.
                for change in changes:
                    change.is_made = True
        # The functions are called without the lock, because they may also make changes.
        for change in changes:
            try:
                change.report_finished()
            except Exception:
                # The error must not end the thread for which all others wait.
                log.exception("Passing on the outcome of a change of subscriptions failed")

    def _pop_changes_made_together(self) -> list[Change]:
        waiting = self._waiting
        changes = [waiting.popleft()]
        first = changes[0]
        if not isinstance(first, Commit):
            while len(changes) < MAX_CHANGES_PER_TRANSACTION and waiting and not isinstance(waiting[0], Commit):
                changes.append(waiting.popleft())
            return changes
        rows = set(first.remaining_rows)
        while waiting and isinstance(following := waiting[0], Commit):
            # Two commits of one partition are not in one statement, so that they get their results in order.
            if len(rows) + len(following.remaining_rows) > MAX_ROWS_PER_STATEMENT or not rows.isdisjoint(
                following.remaining_rows
            ):
                break
            rows.update(following.remaining_rows)
            changes.append(waiting.popleft())
        return changes

    def _run_transactions(self, transactions: Sequence[Transaction[object]]) -> None:
        with self._file.write_transaction() as connection:
            for each in transactions:
                each.run_work(connection)

    def _make_commits(self, commits: Sequence[Commit]) -> None:
        # A commit whose cursors are all outdated has no rows.
        if 0 < sum(len(each.remaining_rows) for each in commits) <= MAX_ROWS_PER_STATEMENT:
            self._commit_in_one_statement(commits)
        # The commits that moved are durable. A transaction determines why the others did not. Another process may have
        # changed their offsets since the statement; then the results are those for the changed offsets.
        rest = [each for each in commits if each.remaining_rows]
        if rest:
            try:
                with self._file.write_transaction() as connection:
                    for each in rest:
                        each.judge_remaining_rows(connection, self._changes)
            except BaseException as error:  # noqa: BLE001  # the error belongs to these: the others are committed
                for each in rest:
                    each.set_error(error)

    def _commit_in_one_statement(self, commits: Sequence[Commit]) -> None:
        by_row = {row: each for each in commits for row in each.remaining_rows}
        values = [value for each in commits for value in each.statement_values()]
        if self._is_over:
            raise Unavailable("The coordination is closed.")
        with self._file.translate_errors():
            if self._connection is None:
                self._connection = self._file.open_write_connection()
                self._connection.execute(CREATE_TRIGGER_INSERTING_CHANGES).close()
            try:
                statement = _offset_commit_statement(len(by_row))
                found = self._file.execute_in_turn(self._connection, statement, values).fetchall()
            except BaseException:
                roll_back(self._connection)
                raise
        for *row, number in found:
            by_row[tuple(row)].mark_committed(tuple(row), number)


@cache
def _offset_commit_statement(rows: int) -> str:
    """A statement that commits this number of partitions, and returns those that it has moved, each with its number."""
    values = ", ".join(["(?, ?, ?, ?, ?, ?, ?)"] * rows)
    return f"""
        WITH wanted (subscription, event_type, partition, owner, timeline, position, since) AS (VALUES {values})
        UPDATE offsets SET timeline = wanted.timeline, position = wanted.position, since = wanted.since FROM wanted
        WHERE offsets.subscription = wanted.subscription AND offsets.event_type = wanted.event_type
            AND offsets.partition = wanted.partition AND offsets.owner = wanted.owner
            AND (offsets.timeline, offsets.position) < (wanted.timeline, wanted.position)
        RETURNING subscription, event_type, partition, (
            SELECT number FROM coordination_news AS news
            WHERE news.subscription = offsets.subscription AND news.changed = '{SubscriptionChange.OFFSETS.value}')
    """  # noqa: S608  # question marks, and a constant


def commit_partition(
    connection: sqlite3.Connection, row: OffsetRowKey, session: str, position: Position, since: int
) -> CommitResult:
    written = connection.execute(COMMIT_OFFSET, (position.timeline, position.offset, since, *row, session))
    if written.rowcount:
        return CommitResult.COMMITTED
    found = connection.execute(SELECT_OFFSET, row).fetchone()
    return commit_result(None if found is None else offset_from_row(found), session, position)


def offset_from_row(row: tuple[str, str, int, int, str | None, int]) -> CommittedOffset:
    _, _, timeline, position, owner, since = row
    return CommittedOffset(Position(timeline, position), owner, datetime_from_microseconds(since))

"""Coordination and parked events in a SQLite file, for as many processes on one machine as needed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
from msgspec.structs import replace

from nakadi.common.waiting import Callback, Done, Wait
from nakadi.engines.common.assignment_json import assignment_from_json, assignment_json
from nakadi.engines.common.assignments import (
    PositionsByPartition,
    commit_report,
    offset_after_change,
    owner_sessions_of_changed_offsets,
    parking_result,
    partition_to_park_in,
    partitions_consumed_again,
    with_next_revision,
)
from nakadi.engines.common.callbacks import SubscriptionListener, SubscriptionListeners, callable_once
from nakadi.engines.sqlite.changes import NO_PIPES, ChangePipes, FileChangePoller
from nakadi.engines.sqlite.file import SqliteFile
from nakadi.engines.sqlite.shared_transactions import (
    SELECT_OFFSET,
    SELECT_OFFSETS,
    Commit,
    OffsetRowKey,
    SharedTransactions,
    Transaction,
    commit_partition,
    offset_from_row,
)
from nakadi.model.authorization import Attribute
from nakadi.model.event_type import Position
from nakadi.model.events import datetime_from_microseconds, microseconds_since_epoch
from nakadi.model.subscription import (
    EMPTY_ASSIGNMENT,
    Assignment,
    CommitResult,
    CommittedOffset,
    EventTypePartition,
    OffsetRange,
    ParkedEvent,
    ParkedEventInfo,
    SubscriptionChange,
    joined_ranges,
)
from nakadi.ports.coordination import AssignmentChanged, CommitResultByPartition, DoneAheadByPartition

EXPIRED_LEASE_RETENTION = timedelta(days=1)

SELECT_ASSIGNMENT = "SELECT body, revision FROM assignments WHERE subscription = ?"

PUT_ASSIGNMENT = """
    INSERT INTO assignments (subscription, revision, body) VALUES (?1, ?2, ?3)
    ON CONFLICT (subscription) DO UPDATE SET revision = ?2, body = ?3
"""

PUT_OFFSET = """
    INSERT INTO offsets (subscription, event_type, partition, timeline, position, owner, since)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
    ON CONFLICT (subscription, event_type, partition)
    DO UPDATE SET timeline = ?4, position = ?5, owner = ?6, since = ?7
"""

SELECT_DONE_AHEAD = "SELECT event_type, partition, ranges FROM done_ahead WHERE subscription = ?"

PUT_DONE_AHEAD = """
    INSERT INTO done_ahead (subscription, event_type, partition, ranges) VALUES (?1, ?2, ?3, ?4)
    ON CONFLICT (subscription, event_type, partition) DO UPDATE SET ranges = ?4
"""

REMOVE_DONE_AHEAD = "DELETE FROM done_ahead WHERE subscription = ? AND event_type = ? AND partition = ?"

RENEW_LEASE = "INSERT INTO leases (holder, until) VALUES (?1, ?2) ON CONFLICT (holder) DO UPDATE SET until = ?2"


class _CommitWait(Wait[Commit]):
    """Waits for a commit, which has its turn among other changes."""

    __slots__ = ("_changing", "_content")

    def __init__(
        self,
        changing: SharedTransactions,
        subscription: str,
        session: str,
        positions: PositionsByPartition,
        now: datetime,
    ) -> None:
        self._changing = changing
        self._content = subscription, session, positions, now

    def begin(self, done: Done[Commit]) -> None:
        # The thread that made the commit calls `done` without holding a lock, so `done` may begin the next commit.
        try:
            self._changing.begin_change(Commit(*self._content, done))
        except Exception as error:  # noqa: BLE001  # the error belongs to the callback
            done(error)

    def run(self) -> Commit:
        # This thread may make the commit itself, and others with it.
        commit = Commit(*self._content)
        self._changing.make_and_wait(commit)
        return commit


class SqliteCoordination:
    """Coordination in a SQLite file. `pipes` lead to the other processes of a broker with several processes.

    Any thread may call any method. A read borrows a connection, and sees the file at one moment. Changes to the file
    wait in the queue of `SharedTransactions`, and across all threads and processes, one transaction at a time has the
    turn to write. So the values that a transaction has read are still true when it writes. A transaction checks again
    what was read before it: the revision of an assignment, the owner and the position of an offset.

    Listeners are called after a transaction and outside it. So two changes may be reported in the reverse order. This
    is harmless: a report names the value to read again, or a session's latest commit, which only grows.
    """

    def __init__(self, path: Path, pipes: ChangePipes = NO_PIPES) -> None:
        self._file = SqliteFile(path)
        self._listeners = SubscriptionListeners()
        self._changes = FileChangePoller(self._file, self._listeners.notify_listeners, pipes)
        self._changing = SharedTransactions(self._file, self._changes)

    def assignment(self, subscription: str) -> Assignment:
        # The assignment may be outdated when it is used: callers pass it to `replace_assignment`, which compares its
        # revision.
        with self._file.read_connection() as connection:
            return _read_assignment(connection, subscription)

    def replace_assignment(
        self,
        subscription: str,
        old: Assignment,
        new: Assignment,
        now: datetime,
        positions: PositionsByPartition | None = None,
    ) -> Assignment:
        at = positions or {}
        touched = owner_sessions_of_changed_offsets(old, new, at)
        consumed_again = partitions_consumed_again(new, at)
        stored = with_next_revision(old, new)

        def work(connection: sqlite3.Connection) -> int:
            # The check is in the transaction, which has the turn to write, so no other process changes the assignment
            # before this one has. The check comes before any change, because others share the transaction, and their
            # changes must be stored.
            if _read_assignment(connection, subscription).revision != old.revision:
                raise AssignmentChanged(subscription)
            connection.execute(PUT_ASSIGNMENT, (subscription, stored.revision, assignment_json(stored)))
            for partition, owner in touched.items():
                before = _read_offset(connection, subscription, partition)
                _put_offset(
                    connection, subscription, partition, offset_after_change(before, owner, at.get(partition), now)
                )
            for partition in consumed_again:
                connection.execute(REMOVE_DONE_AHEAD, (subscription, *_names_of(partition)))
            # The change is noted in the same transaction, so that other processes find it even if this one dies before
            # it reports the change.
            return self._changes.insert_change(connection, subscription, SubscriptionChange.ASSIGNMENT)

        # The change is reported after the transaction, so that listeners that read when they are called find it.
        self._report_change(self._changing.run(work), subscription, SubscriptionChange.ASSIGNMENT)
        return stored

    def committed_offsets(self, subscription: str) -> Mapping[EventTypePartition, CommittedOffset]:
        # One statement reads the file at one moment. The assignment is read separately: readers read the assignment
        # first, and recognize a newer offset by its owner.
        with self._file.read_connection() as connection:
            rows = connection.execute(SELECT_OFFSETS, (subscription,)).fetchall()
            # The events done ahead are read a moment later, which does no harm: commits only add to them, and a reset
            # removes them only while there is no stream.
            ahead = _read_done_ahead(connection, subscription)
        found = {EventTypePartition(*row[:2]): offset_from_row(row) for row in rows}
        for partition, ranges in ahead.items():
            if partition in found:
                found[partition] = replace(found[partition], done_ahead=ranges)
        return found

    async def commit(
        self,
        subscription: str,
        session: str,
        positions: PositionsByPartition,
        now: datetime,
        done_ahead: DoneAheadByPartition | None = None,
    ) -> CommitResultByPartition:
        if done_ahead:
            return await self._commit_with_done_ahead(subscription, session, positions, now, done_ahead)
        return self._report_commit(await _CommitWait(self._changing, subscription, session, positions, now))

    async def _commit_with_done_ahead(
        self,
        subscription: str,
        session: str,
        positions: PositionsByPartition,
        now: datetime,
        done_ahead: DoneAheadByPartition,
    ) -> CommitResultByPartition:
        since = microseconds_since_epoch(now)

        def work(connection: sqlite3.Connection) -> tuple[CommitResultByPartition, int | None]:
            results: dict[EventTypePartition, CommitResult] = {}
            for partition, position in positions.items():
                row = (subscription, *_names_of(partition))
                results[partition] = found = commit_partition(connection, row, session, position, since)
                # This is in the same transaction, so that nothing is added to an offset that another session has
                # meanwhile.
                if found is not CommitResult.NOT_OWNED and partition in done_ahead:
                    _add_done_ahead(connection, row, done_ahead[partition])
            if CommitResult.COMMITTED not in results.values():
                return results, None
            return results, self._changes.insert_change(connection, subscription, SubscriptionChange.OFFSETS)

        def begin(done: Done[Transaction[tuple[CommitResultByPartition, int | None]]]) -> None:
            self._changing.begin_change(Transaction(work, done))

        results, number = (await Callback(begin)).outcome()
        self._report_results(subscription, session, positions, results, [] if number is None else [number])
        return results

    def _report_commit(self, commit: Commit) -> CommitResultByPartition:
        results = commit.outcome()
        self._report_results(commit.subscription, commit.session, commit.positions, results, commit.numbers)
        return results

    def _report_results(
        self,
        subscription: str,
        session: str,
        positions: PositionsByPartition,
        results: CommitResultByPartition,
        numbers: Sequence[int],
    ) -> None:
        committed = commit_report(session, positions, results)
        if committed is not None:
            # The change is reported to other processes first, because their listeners need longer. If a poller of this
            # process finds the numbers before they are noted, it reports them again, and listeners read needlessly.
            self._changes.report_own_changes(numbers, subscription, SubscriptionChange.OFFSETS)
            self._listeners.notify_listeners(subscription, committed)

    def park_events(
        self,
        subscription: str,
        session: str,
        events: Sequence[ParkedEvent],
        now: datetime,
        commit_to: Position | None = None,
    ) -> CommitResult:
        partition = partition_to_park_in(events)

        def work(connection: sqlite3.Connection) -> tuple[CommitResult, int | None]:
            # The owner is checked in this transaction: the partition may now belong to another session, which parks or
            # sends the events itself.
            found = parking_result(_read_offset(connection, subscription, partition), session, commit_to)
            if found is not CommitResult.COMMITTED:
                return found, None
            # The events are stored in one transaction with the offset, so that no event is both parked and sent again,
            # and none is skipped without being parked.
            put_parked_events(connection, subscription, events)
            if commit_to is not None:
                _put_offset(connection, subscription, partition, CommittedOffset(commit_to, session, now))
            return found, self._changes.insert_change(connection, subscription, SubscriptionChange.OFFSETS)

        found, number = self._changing.run(work)
        if number is not None:
            self._report_change(number, subscription, SubscriptionChange.OFFSETS)
        return found

    def list_parked_events(
        self,
        subscription: str,
        *,
        partition: EventTypePartition | None = None,
        after: tuple[EventTypePartition, Position] | None = None,
        limit: int = 1000,
    ) -> Sequence[ParkedEventInfo]:
        with self._file.read_connection() as connection:
            return list_parked_events(connection, subscription, partition, after, limit)

    def parked_event_value(self, subscription: str, partition: EventTypePartition, position: Position) -> bytes | None:
        # The event was listed a moment ago, and may have been removed since: then there is no value, as for an event
        # that was never parked.
        with self._file.read_connection() as connection:
            return parked_event_value(connection, subscription, partition, position)

    def remove_parked_events(
        self, subscription: str, partition: EventTypePartition, positions: Collection[Position]
    ) -> None:
        self._changing.run(lambda connection: remove_parked_events(connection, subscription, partition, positions))

    def remove_subscription_state(self, subscription: str) -> None:
        # Everything is removed in one transaction. A later commit finds no offset, and is refused. A session that joins
        # later writes a new assignment, and removes it when it finds that its subscription was deleted.
        def work(connection: sqlite3.Connection) -> int:
            connection.execute("DELETE FROM assignments WHERE subscription = ?", (subscription,))
            connection.execute("DELETE FROM offsets WHERE subscription = ?", (subscription,))
            connection.execute("DELETE FROM parked WHERE subscription = ?", (subscription,))
            connection.execute("DELETE FROM done_ahead WHERE subscription = ?", (subscription,))
            return self._changes.insert_change(connection, subscription, SubscriptionChange.ASSIGNMENT)

        self._report_change(self._changing.run(work), subscription, SubscriptionChange.ASSIGNMENT)

    def renew_lease(self, holder: str, until: datetime) -> None:
        # A process renews its lease in one thread at a time, so that no earlier time is written over a later one.
        def work(connection: sqlite3.Connection) -> None:
            connection.execute(
                "DELETE FROM leases WHERE until < ?", (microseconds_since_epoch(until - EXPIRED_LEASE_RETENTION),)
            )
            connection.execute(RENEW_LEASE, (holder, microseconds_since_epoch(until)))
            self._changes.delete_old_changes(connection)

        self._changing.run(work)

    def release_lease(self, holder: str) -> None:
        # A process renews and releases its lease under one lock, so no renewal in progress writes the lease again.
        self._changing.run(lambda connection: connection.execute("DELETE FROM leases WHERE holder = ?", (holder,)))

    def lease_expiries(self) -> Mapping[str, datetime]:
        with self._file.read_connection() as connection:
            rows = connection.execute("SELECT holder, until FROM leases").fetchall()
        return {holder: datetime_from_microseconds(until) for holder, until in rows}

    def add_change_listener(self, subscription: str, on_change: SubscriptionListener) -> Callable[[], None]:
        # Begin to poll before the caller reads, so that every later change by another process is noticed.
        self._changes.add_watcher()
        end = self._listeners.add_listener(subscription, on_change)

        def end_both() -> None:
            end()
            self._changes.remove_watcher()

        return callable_once(end_both)

    def close(self) -> None:
        # The queue is closed first, and emptied while the file is still open. A thread that reads meanwhile can finish,
        # because its connection is closed only when the thread returns it.
        self._changing.close()
        self._changes.close()
        self._file.close()

    def _report_change(self, number: int, subscription: str, change: SubscriptionChange) -> None:
        """Report a stored change, first to the other processes, whose listeners need longer."""
        self._changes.report_own_changes([number], subscription, change)
        self._listeners.notify_listeners(subscription, change)


def _read_assignment(connection: sqlite3.Connection, subscription: str) -> Assignment:
    found = connection.execute(SELECT_ASSIGNMENT, (subscription,)).fetchone()
    return EMPTY_ASSIGNMENT if found is None else assignment_from_json(*found)


def _read_offset(
    connection: sqlite3.Connection, subscription: str, partition: EventTypePartition
) -> CommittedOffset | None:
    row = connection.execute(SELECT_OFFSET, (subscription, partition.event_type, partition.partition)).fetchone()
    return None if row is None else offset_from_row(row)


def _names_of(partition: EventTypePartition) -> tuple[str, str]:
    return partition.event_type, partition.partition


_ranges = msgspec.json.Decoder(tuple[OffsetRange, ...])


def _read_done_ahead(
    connection: sqlite3.Connection, subscription: str
) -> Mapping[EventTypePartition, tuple[OffsetRange, ...]]:
    rows = connection.execute(SELECT_DONE_AHEAD, (subscription,)).fetchall()
    return {EventTypePartition(*names): _ranges.decode(ranges) for *names, ranges in rows}


def _add_done_ahead(connection: sqlite3.Connection, row: OffsetRowKey, added: Sequence[OffsetRange]) -> None:
    found = connection.execute(SELECT_DONE_AHEAD + " AND event_type = ? AND partition = ?", row).fetchone()
    before = () if found is None else _ranges.decode(found[2])
    position = offset_from_row(connection.execute(SELECT_OFFSET, row).fetchone()).position
    ranges = joined_ranges((*before, *added), position)
    connection.execute(PUT_DONE_AHEAD, (*row, msgspec.json.encode(ranges).decode()))


def _put_offset(
    connection: sqlite3.Connection, subscription: str, partition: EventTypePartition, offset: CommittedOffset
) -> None:
    at = offset.position
    connection.execute(
        PUT_OFFSET,
        (
            subscription,
            partition.event_type,
            partition.partition,
            at.timeline,
            at.offset,
            offset.owner,
            microseconds_since_epoch(offset.changed_at),
        ),
    )


ParkedEventPosition = tuple[EventTypePartition, Position]

PUT_PARKED_EVENTS = """
    INSERT OR REPLACE INTO parked (subscription, event_type, partition, timeline, position, key, fails, stored_at,
        parked_at, replay, owner_type, owner_value, value)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""

SELECT_PARKED_EVENTS = """
    SELECT event_type, partition, timeline, position, key, fails, stored_at, parked_at, replay, owner_type, owner_value
    FROM parked WHERE subscription = ? AND (event_type, partition, timeline, position) > (?, ?, ?, ?)
"""
PARTITION_CONDITION = " AND event_type = ? AND partition = ?"
IN_PARTITION_ORDER = " ORDER BY event_type, partition, timeline, position LIMIT ?"

SELECT_PARKED_VALUE = """
    SELECT value FROM parked
    WHERE subscription = ? AND event_type = ? AND partition = ? AND timeline = ? AND position = ?
"""
DELETE_PARKED_EVENT = """
    DELETE FROM parked
    WHERE subscription = ? AND event_type = ? AND partition = ? AND timeline = ? AND position = ?
"""

BEFORE_ALL_PARKED_EVENTS = ("", "", 0, 0)


def put_parked_events(connection: sqlite3.Connection, subscription: str, events: Iterable[ParkedEvent]) -> None:
    connection.executemany(
        PUT_PARKED_EVENTS,
        [(*_parked_event_key(subscription, each), *_parked_event_row(each.parked), each.value) for each in events],
    )


def list_parked_events(
    connection: sqlite3.Connection,
    subscription: str,
    partition: EventTypePartition | None,
    after: ParkedEventPosition | None,
    limit: int,
) -> Sequence[ParkedEventInfo]:
    begin = (
        BEFORE_ALL_PARKED_EVENTS
        if after is None
        else (after[0].event_type, after[0].partition, after[1].timeline, after[1].offset)
    )
    within = () if partition is None else (partition.event_type, partition.partition)
    statement = SELECT_PARKED_EVENTS + (PARTITION_CONDITION if within else "") + IN_PARTITION_ORDER
    return [
        _parked_event_from_row(row) for row in connection.execute(statement, (subscription, *begin, *within, limit))
    ]


def parked_event_value(
    connection: sqlite3.Connection, subscription: str, partition: EventTypePartition, position: Position
) -> bytes | None:
    row = connection.execute(SELECT_PARKED_VALUE, _key_of_position(subscription, partition, position)).fetchone()
    return None if row is None else row[0]


def remove_parked_events(
    connection: sqlite3.Connection, subscription: str, partition: EventTypePartition, positions: Collection[Position]
) -> None:
    connection.executemany(DELETE_PARKED_EVENT, [_key_of_position(subscription, partition, each) for each in positions])


def _parked_event_key(subscription: str, event: ParkedEvent) -> tuple[object, ...]:
    return _key_of_position(subscription, event.parked.partition, event.parked.position)


def _key_of_position(subscription: str, partition: EventTypePartition, position: Position) -> tuple[object, ...]:
    return subscription, partition.event_type, partition.partition, position.timeline, position.offset


def _parked_event_row(parked: ParkedEventInfo) -> tuple[object, ...]:
    owner = (None, None) if parked.owner is None else (parked.owner.data_type, parked.owner.value)
    moments = (microseconds_since_epoch(parked.stored_at), microseconds_since_epoch(parked.parked_at))
    return parked.key, parked.failed_streams, *moments, parked.replay, *owner


def _parked_event_from_row(
    row: tuple[str, str, int, int, str, int, int, int, str | None, str | None, str | None],
) -> ParkedEventInfo:
    event_type, partition, timeline, position, key, fails, stored_at, parked_at, replay, owner_type, owner_value = row
    return ParkedEventInfo(
        partition=EventTypePartition(event_type, partition),
        position=Position(timeline, position),
        key=key,
        failed_streams=fails,
        stored_at=datetime_from_microseconds(stored_at),
        parked_at=datetime_from_microseconds(parked_at),
        replay=replay,
        owner=None if owner_type is None or owner_value is None else Attribute(owner_type, owner_value),
    )

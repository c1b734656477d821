"""Coordination in DynamoDB, for any number of processes.

An offset's item has its owner, and the transaction that changes the assignment also changes the owners. So a commit is
one update, with a condition that fails for a former owner.

The description of a parked event is an item, which includes the value if that is small. A larger value is stored in
pieces under other keys, so that listing parked events does not read their contents.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property, partial
from uuid import uuid4

from pynamodb.exceptions import PutError, UpdateError
from pynamodb.expressions.update import Action
from pynamodb.transactions import TransactWrite

from nakadi.common.waiting import CallThreads, ThreadCall
from nakadi.engines.common.assignments import (
    PositionsByPartition,
    commit_result,
    owner_sessions_of_changed_offsets,
    partitions_consumed_again,
    with_next_revision,
)
from nakadi.engines.common.callbacks import SubscriptionListener, SubscriptionListeners, callable_once
from nakadi.engines.dynamodb import coordination_table
from nakadi.engines.dynamodb.client import CallRetryPolicy, is_condition_failure
from nakadi.engines.dynamodb.coordination_changes import TableChangePoller, in_same_report_interval
from nakadi.engines.dynamodb.coordination_table import (
    ASSIGNMENT_SORT_KEY,
    LEASES_KEY,
    MAX_COMMIT_ATTEMPTS,
    OFFSET_SORT_KEY_PREFIX,
    CoordinationItem,
    CoordinationTable,
    assignment_attributes,
    assignment_change_actions,
    assignment_from_item,
    commit_actions,
    commit_condition,
    done_ahead_action,
    offset_from_item,
    offset_sort_key,
    partition_in_sort_key,
    subscription_key,
)
from nakadi.engines.dynamodb.parked_events import ParkedEventItems
from nakadi.engines.dynamodb.table_address import TableAddress
from nakadi.model.event_type import Position
from nakadi.model.events import datetime_from_microseconds, microseconds_since_epoch
from nakadi.model.outcomes import Unavailable
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

Item = CoordinationItem

# The number of partitions of one commit that are written at the same time.
COMMIT_THREADS = 8

# A report of a change is attempted only twice, because the committer waits for it.
REPORT_RETRY_PAUSES_SECONDS = (0.1,)


class DynamoDbCoordination:
    """Every change is a conditional write, which DynamoDB checks and executes in one step. So nothing is locked here,
    and no thread or process waits for another: if two of them start from the same state, one write is rejected, and
    that process reads the state again.

    A write whose answer is lost may have taken effect, and is repeated. Each write is safe to repeat: DynamoDB
    recognizes a transaction by its token, a commit finds its own token in the item, a lease has the time of its
    request, and putting or removing an item twice has the same effect as once.
    """

    def __init__(self, address: TableAddress, attempts: CallRetryPolicy | None = None) -> None:
        self._table = CoordinationTable(address, attempts or CallRetryPolicy())
        self._listeners = SubscriptionListeners()
        self._change_poller = TableChangePoller(
            self._table.items, CallRetryPolicy(pauses=REPORT_RETRY_PAUSES_SECONDS), self._listeners.notify_listeners
        )
        self._parked_events = ParkedEventItems(self._table)

    # The assignment

    def assignment(self, subscription: str) -> Assignment:
        found = self._table.find_item(subscription_key(subscription), ASSIGNMENT_SORT_KEY)
        return EMPTY_ASSIGNMENT if found is None else assignment_from_item(found)

    def replace_assignment(
        self,
        subscription: str,
        old: Assignment,
        new: Assignment,
        now: datetime,
        positions: PositionsByPartition | None = None,
    ) -> Assignment:
        self._table.check_open()
        at = positions or {}
        touched = owner_sessions_of_changed_offsets(old, new, at)
        consumed_again = partitions_consumed_again(new, at)
        stored = with_next_revision(old, new)
        items, own = self._table.items, subscription_key(subscription)
        # DynamoDB compares the revision in the write itself: of two processes that start from the same revision, one is
        # refused.
        unchanged = Item.revision == old.revision if old.revision else Item.partition_key.does_not_exist()
        assignment = items(own, ASSIGNMENT_SORT_KEY, **assignment_attributes(stored))

        def add(transaction: TransactWrite) -> None:
            transaction.save(assignment, unchanged)
            for partition, owner in touched.items():
                changes = assignment_change_actions(
                    owner, at.get(partition), now, is_consumed_again=partition in consumed_again
                )
                transaction.update(items(own, offset_sort_key(partition)), changes)

        with self._report_change_if_in_doubt(subscription, SubscriptionChange.ASSIGNMENT):
            if not self._table.transact(add):
                raise AssignmentChanged(subscription)
        self._report_change(subscription, SubscriptionChange.ASSIGNMENT)
        return stored

    def remove_subscription_state(self, subscription: str) -> None:
        """Remove the assignment first: offsets without an assignment are harmless.

        A commit before the offset's removal moves an offset that is about to be removed. A later commit is refused,
        because an update that requires an owner creates no item.
        """
        key = subscription_key(subscription)
        self._table.remove_items(key, [ASSIGNMENT_SORT_KEY])
        self._table.remove_items(key, [each.sort_key for each in self._table.list_items(key)])
        self._parked_events.remove_all(subscription)
        self._report_change(subscription, SubscriptionChange.ASSIGNMENT)

    # Offsets

    def committed_offsets(self, subscription: str) -> Mapping[EventTypePartition, CommittedOffset]:
        # The offsets may be from different moments: while one page is read, offsets on others may change. Readers have
        # already read the assignment, and recognize a newer offset by its owner.
        found = self._table.list_items(subscription_key(subscription), Item.sort_key.startswith(OFFSET_SORT_KEY_PREFIX))
        return {partition_in_sort_key(each.sort_key): offset_from_item(each) for each in found}

    async def commit(
        self,
        subscription: str,
        session: str,
        positions: PositionsByPartition,
        now: datetime,
        done_ahead: DoneAheadByPartition | None = None,
    ) -> CommitResultByPartition:
        return await ThreadCall(
            self._commit_threads, partial(self._commit, subscription, session, positions, now, done_ahead or {})
        )

    def _commit(
        self,
        subscription: str,
        session: str,
        positions: PositionsByPartition,
        now: datetime,
        done_ahead: DoneAheadByPartition,
    ) -> CommitResultByPartition:
        """Commit each partition in a separate update: a transaction would cost twice as much, and one refused partition
        would stop all others.
        """
        self._table.check_open()

        def commit_one(item: tuple[EventTypePartition, Position]) -> tuple[CommitResult, bool] | Unavailable:
            try:
                return self._commit_partition(subscription, session, *item, now, done_ahead.get(item[0], ()))
            except Unavailable as error:
                return error

        # The order does not matter, because partitions are independent.
        one_by_one = map if len(positions) < 2 else self._partition_threads.map
        outcomes = list(one_by_one(commit_one, positions.items()))
        made = [each for each in outcomes if not isinstance(each, Unavailable)]
        failed = [each for each in outcomes if isinstance(each, Unavailable)]
        # A failed write may have taken effect. A repeated commit then finds its position outdated and reports nothing,
        # so the change is reported here.
        if failed or any(found is CommitResult.COMMITTED for found, _ in made):
            self._report_change(
                subscription, SubscriptionChange.OFFSETS, only_local=not failed and not any(new for _, new in made)
            )
        if failed:
            raise failed[0]
        return {partition: found for partition, (found, _) in zip(positions, made, strict=True)}

    def _commit_partition(
        self,
        subscription: str,
        session: str,
        partition: EventTypePartition,
        position: Position,
        now: datetime,
        added: Sequence[OffsetRange],
    ) -> tuple[CommitResult, bool]:
        """Commit a partition. Return the result, and whether the move must be reported to other processes."""
        item = self._table.items(subscription_key(subscription), offset_sort_key(partition))
        changed_at, token = microseconds_since_epoch(now), uuid4().hex[:12]
        ahead = self._actions_to_add_done_ahead(item, position, added) if added else []

        def attempt(in_doubt: bool) -> CommitResult | None:
            try:
                item.update(
                    [*commit_actions(position, changed_at), *ahead, Item.token.set(token)],
                    commit_condition(session, position),
                )
            except UpdateError as error:
                if not is_condition_failure(error):
                    raise
                item.previously_changed_at = None
                return self._why_commit_was_refused(item, session, position, token if in_doubt else None)
            return CommitResult.COMMITTED

        # The reason for a refusal may have disappeared by the time of this read, for example when the partition was
        # handed over and back. Then the commit is repeated, because its result must have been true at some moment
        # during this call.
        for _ in range(MAX_COMMIT_ATTEMPTS):
            found = self._table.attempts.call_with_retries(attempt)
            if found is CommitResult.OUTDATED and ahead and not self._write_done_ahead(item, session, ahead):
                continue
            if found is not None:
                return found, item.previously_changed_at is None or not in_same_report_interval(
                    int(item.previously_changed_at), changed_at
                )
        raise Unavailable("The owner of a partition changes all the time")

    def _actions_to_add_done_ahead(
        self, item: CoordinationItem, position: Position, added: Sequence[OffsetRange]
    ) -> list[Action]:
        """The update that adds these ranges to the events done ahead. The value stays right until it is written,
        because only the owner of the offset changes it.
        """
        found = self._table.find_item(item.partition_key, item.sort_key)
        if found is None:
            return []
        offset = offset_from_item(found)
        return [done_ahead_action(joined_ranges((*offset.done_ahead, *added), max(offset.position, position)))]

    def _write_done_ahead(self, item: CoordinationItem, session: str, actions: list[Action]) -> bool:
        """Write the events done ahead if the offset is already at or beyond the committed position. Return False if the
        offset no longer belongs to the session."""

        def attempt(_: bool) -> bool:
            try:
                item.update(actions, Item.owner == session)
            except UpdateError as error:
                if not is_condition_failure(error):
                    raise
                return False
            return True

        return self._table.attempts.call_with_retries(attempt)

    def _why_commit_was_refused(
        self, item: CoordinationItem, session: str, position: Position, token: str | None
    ) -> CommitResult | None:
        """Why a commit was refused; None if it would succeed now.

        A `token` is passed if an earlier attempt may have taken effect: if the item has this token, it did. Raises
        `Unavailable` if that cannot be known, because another process has committed since.
        """
        found = self._table.find_item(item.partition_key, item.sort_key)
        offset = None if found is None else offset_from_item(found)
        if token and found and found.token == token:
            return CommitResult.COMMITTED
        if token and offset and offset.owner != session and offset.position > position:
            raise Unavailable("It is not known whether a position was committed")
        judged = commit_result(offset, session, position)
        return None if judged is CommitResult.COMMITTED else judged

    # Parked events

    def park_events(
        self,
        subscription: str,
        session: str,
        events: Sequence[ParkedEvent],
        now: datetime,
        commit_to: Position | None = None,
    ) -> CommitResult:
        self._table.check_open()
        with self._report_change_if_in_doubt(subscription, SubscriptionChange.OFFSETS):
            found = self._parked_events.park_events(subscription, session, events, now, commit_to)
        if found is CommitResult.COMMITTED:
            self._report_change(subscription, SubscriptionChange.OFFSETS)
        return found

    def list_parked_events(
        self,
        subscription: str,
        *,
        partition: EventTypePartition | None = None,
        after: tuple[EventTypePartition, Position] | None = None,
        limit: int = 1000,
    ) -> Sequence[ParkedEventInfo]:
        return self._parked_events.list_events(subscription, partition, after, limit)

    def parked_event_value(self, subscription: str, partition: EventTypePartition, position: Position) -> bytes | None:
        return self._parked_events.read_value(subscription, partition, position)

    def remove_parked_events(
        self, subscription: str, partition: EventTypePartition, positions: Collection[Position]
    ) -> None:
        self._parked_events.remove_events(subscription, partition, positions)

    # Leases

    def renew_lease(self, holder: str, until: datetime) -> None:
        """Renew a lease. A request that arrives after a later one changes nothing."""
        self._table.check_open()
        requested_at = time.monotonic_ns()
        item = self._table.items(LEASES_KEY, holder, **coordination_table.lease_attributes(until, requested_at))

        def attempt(_: bool) -> None:
            try:
                item.save(Item.partition_key.does_not_exist() | (Item.requested_at <= requested_at))
            except PutError as error:
                if not is_condition_failure(error):
                    raise

        self._table.attempts.call_with_retries(attempt)

    def release_lease(self, holder: str) -> None:
        self._table.remove_items(LEASES_KEY, [holder])

    def lease_expiries(self) -> Mapping[str, datetime]:
        return {
            each.sort_key: datetime_from_microseconds(int(each.leased_until))
            for each in self._table.list_items(LEASES_KEY)
        }

    # Changes

    def add_change_listener(self, subscription: str, on_change: SubscriptionListener) -> Callable[[], None]:
        # Begin to poll before the caller reads, so that every later change by another process is noticed.
        self._change_poller.add_watcher()
        end = self._listeners.add_listener(subscription, on_change)

        def end_both() -> None:
            end()
            self._change_poller.remove_watcher()

        return callable_once(end_both)

    def _report_change(self, subscription: str, changed: SubscriptionChange, *, only_local: bool = False) -> None:
        self._listeners.notify_listeners(subscription, changed)
        if not only_local:
            self._change_poller.report_change(subscription, changed)

    @contextmanager
    def _report_change_if_in_doubt(self, subscription: str, changed: SubscriptionChange) -> Iterator[None]:
        """Report a change even if the write fails with `Unavailable`: it may have taken effect, and a repeated call
        would then report nothing.
        """
        try:
            yield
        except Unavailable:
            self._report_change(subscription, changed)
            raise

    def close(self) -> None:
        # First refuse calls, so that later calls raise in any thread. Then wait for commits that have begun, and close
        # their clients last.
        self._table.refuse_calls()
        self._change_poller.close()
        if "_commit_threads" in vars(self):
            self._commit_threads.close()
        if "_threads" in vars(self):
            self._partition_threads.shutdown()
        self._table.close()

    @cached_property
    def _partition_threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(COMMIT_THREADS, "coordination-commits")

    @cached_property
    def _commit_threads(self) -> CallThreads:
        return CallThreads("coordination-commit")

"""Coordination in memory: dictionaries under a lock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime

from msgspec import Struct, field
from msgspec.structs import replace

from nakadi.engines.common.assignments import (
    PositionsByPartition,
    commit_report,
    commit_result,
    offset_after_change,
    offset_after_commit,
    owner_sessions_of_changed_offsets,
    parking_result,
    partition_to_park_in,
    partitions_consumed_again,
    with_next_revision,
)
from nakadi.engines.common.callbacks import SubscriptionListener, SubscriptionListeners
from nakadi.model.event_type import Position
from nakadi.model.outcomes import Unavailable
from nakadi.model.subscription import (
    EMPTY_ASSIGNMENT,
    Assignment,
    CommitResult,
    CommittedOffset,
    EventTypePartition,
    ParkedEvent,
    ParkedEventInfo,
    SubscriptionChange,
)
from nakadi.ports.coordination import AssignmentChanged, CommitResultByPartition, DoneAheadByPartition


class _SubscriptionState(Struct):
    assignment: Assignment = EMPTY_ASSIGNMENT
    offsets: dict[EventTypePartition, CommittedOffset] = field(default_factory=dict)
    parked_events: dict[tuple[EventTypePartition, Position], ParkedEvent] = field(default_factory=dict)


class MemoryCoordination:
    """Coordination in memory, which ends with the process.

    The lock replaces a transaction: a value that is read while the lock is held stays true until it is released.
    Listeners are called without the lock, because they may read the new state at once. So two changes may be reported
    in reverse order. This is harmless: a report names the value to read again, or a session's latest commit, which only
    grows.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, _SubscriptionState] = {}
        self._leases: dict[str, datetime] = {}
        self._listeners = SubscriptionListeners()
        self._closed = False

    def assignment(self, subscription: str) -> Assignment:
        with self._lock_while_open():
            return self._state_of(subscription).assignment

    def replace_assignment(
        self,
        subscription: str,
        old: Assignment,
        new: Assignment,
        now: datetime,
        positions: PositionsByPartition | None = None,
    ) -> Assignment:
        positions = positions or {}
        touched = owner_sessions_of_changed_offsets(old, new, positions)
        consumed_again = partitions_consumed_again(new, positions)
        with self._lock_while_open():
            kept = self._state_of(subscription)
            # Two sessions that rebalance at the same time have read the same revision: the session that writes second
            # is refused, and reads again.
            if kept.assignment.revision != old.revision:
                raise AssignmentChanged(subscription)
            kept.assignment = with_next_revision(old, new)
            for partition, owner in touched.items():
                before = kept.offsets.get(partition)
                after = offset_after_change(before, owner, positions.get(partition), now)
                if before is not None and partition not in consumed_again:
                    after = replace(after, done_ahead=before.done_ahead)
                kept.offsets[partition] = after
            self._kept[subscription] = kept
            stored = kept.assignment
        self._listeners.notify_listeners(subscription, SubscriptionChange.ASSIGNMENT)
        return stored

    def committed_offsets(self, subscription: str) -> Mapping[EventTypePartition, CommittedOffset]:
        with self._lock_while_open():
            return dict(self._state_of(subscription).offsets)

    async def commit(
        self,
        subscription: str,
        session: str,
        positions: PositionsByPartition,
        now: datetime,
        done_ahead: DoneAheadByPartition | None = None,
    ) -> CommitResultByPartition:
        with self._lock_while_open():
            offsets = self._state_of(subscription).offsets
            # The owner and the position are compared in the step that moves the offset: a session cannot commit a
            # partition that was handed over meanwhile, and an offset never goes back.
            verdicts = {
                partition: commit_result(offsets.get(partition), session, at) for partition, at in positions.items()
            }
            for partition, found in verdicts.items():
                if found is not CommitResult.NOT_OWNED:
                    ahead = () if done_ahead is None else done_ahead.get(partition, ())
                    offsets[partition] = offset_after_commit(offsets[partition], positions[partition], now, ahead)
        if committed := commit_report(session, positions, verdicts):
            self._listeners.notify_listeners(subscription, committed)
        return verdicts

    def park_events(
        self,
        subscription: str,
        session: str,
        events: Sequence[ParkedEvent],
        now: datetime,
        commit_to: Position | None = None,
    ) -> CommitResult:
        partition = partition_to_park_in(events)
        with self._lock_while_open():
            kept = self._state_of(subscription)
            found = parking_result(kept.offsets.get(partition), session, commit_to)
            if found is CommitResult.COMMITTED:
                kept.parked_events.update({(partition, each.parked.position): each for each in events})
                if commit_to is not None:
                    kept.offsets[partition] = replace(kept.offsets[partition], position=commit_to, changed_at=now)
        if found is CommitResult.COMMITTED:
            self._listeners.notify_listeners(subscription, SubscriptionChange.OFFSETS)
        return found

    def list_parked_events(
        self,
        subscription: str,
        *,
        partition: EventTypePartition | None = None,
        after: tuple[EventTypePartition, Position] | None = None,
        limit: int = 1000,
    ) -> Sequence[ParkedEventInfo]:
        with self._lock_while_open():
            lot = self._state_of(subscription).parked_events
            wanted = sorted(
                each for each in lot if (partition is None or each[0] == partition) and (after is None or each > after)
            )
            return [lot[each].parked for each in wanted[:limit]]

    def parked_event_value(self, subscription: str, partition: EventTypePartition, position: Position) -> bytes | None:
        with self._lock_while_open():
            found = self._state_of(subscription).parked_events.get((partition, position))
        return None if found is None else found.value

    def remove_parked_events(
        self, subscription: str, partition: EventTypePartition, positions: Collection[Position]
    ) -> None:
        with self._lock_while_open():
            lot = self._state_of(subscription).parked_events
            for position in positions:
                # If another thread has already removed the event, the result is the same.
                lot.pop((partition, position), None)

    def remove_subscription_state(self, subscription: str) -> None:
        with self._lock_while_open():
            # A later commit finds no offset, and a session that joins later begins a new state, which it removes when
            # it finds that its subscription was deleted.
            self._kept.pop(subscription, None)
        self._listeners.notify_listeners(subscription, SubscriptionChange.ASSIGNMENT)

    def renew_lease(self, holder: str, until: datetime) -> None:
        with self._lock_while_open():
            self._leases[holder] = until

    def release_lease(self, holder: str) -> None:
        with self._lock_while_open():
            self._leases.pop(holder, None)

    def lease_expiries(self) -> Mapping[str, datetime]:
        with self._lock_while_open():
            return dict(self._leases)

    def add_change_listener(self, subscription: str, on_change: SubscriptionListener) -> Callable[[], None]:
        with self._lock_while_open():
            return self._listeners.add_listener(subscription, on_change)

    def close(self) -> None:
        with self._lock:
            self._closed = True

    def _state_of(self, subscription: str) -> _SubscriptionState:
        return self._kept.get(subscription) or _SubscriptionState()

    @contextmanager
    def _lock_while_open(self) -> Iterator[None]:
        with self._lock:
            if self._closed:
                raise Unavailable("The coordination is closed.")
            yield

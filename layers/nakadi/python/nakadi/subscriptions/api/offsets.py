"""Offsets that no commit sets: a subscription's first offsets, those of partitions added later, and those that clients
set.

Clients request resets, and redrives of parked events. Both are possible only while no stream is open. Either request is
recorded in the assignment as a reset with a task: what to do once no stream is open. The reset ends open streams and
prevents new ones. Once the last session has ended, any process may carry out the task, and several may try at once:
each step is written only over the assignment on which it was decided, and the last step removes the reset, so the other
processes find it done.

So a reset does not depend on its request: the process whose stream ended last carries it out, or else the next process
that opens a stream, repeats the request, or runs housekeeping.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta
from math import inf
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import replace

from nakadi.event_types.cursors import CursorError
from nakadi.event_types.repository import EventTypes
from nakadi.event_types.snapshot import CursorResolver
from nakadi.model.event_type import Cursor, EventType, Position
from nakadi.model.outcomes import Conflict, Fault, StillRunning, TryLater
from nakadi.model.subscription import (
    Assignment,
    EventTypePartition,
    PartitionAssignment,
    ReadFrom,
    Redrive,
    Reset,
    ResetTask,
    SetOffsets,
    Subscription,
)
from nakadi.ports.clock import Clock
from nakadi.ports.coordination import MAX_PARTITIONS_PER_WRITE, AssignmentChanged, Coordination
from nakadi.subscriptions.api import assignments
from nakadi.subscriptions.api.lease_watch import CLOCK_MARGIN, LeaseWatch, sessions_without_lease

log = logging.getLogger(__name__)

Positions = Mapping[EventTypePartition, Position]


# How often a write of the assignment is attempted: far more often than there can be simultaneous writers.
ASSIGNMENT_WRITE_ATTEMPTS = 100

SUBSCRIPTION_BUSY_MESSAGE = "Subscription is being changed by others, please repeat request"


class OffsetInitialisation(Struct, frozen=True, kw_only=True):
    event_types: EventTypes
    cursor_resolver: CursorResolver
    coordination: Coordination
    clock: Clock

    def ensure_initialised(self, subscription: Subscription) -> Assignment:
        """The assignment, with an offset for every partition. Existing offsets stay.

        Raises `NotFound` if the subscription was never streamed and one of its event types no longer exists.
        """
        assignment = self.coordination.assignment(subscription.id)
        if assignment.initialised:
            return assignment
        event_types = [self.event_types.get(name) for name in subscription.event_types]
        return self._add_entries_until(
            subscription.id, self.first_positions(subscription, event_types), lambda assignment: assignment.initialised
        )

    def ensure_entries_for_event_type(
        self, subscription: Subscription, event_type: EventType
    ) -> tuple[Assignment, bool]:
        """The assignment with entries for partitions that were added to the event type, and whether there were any.

        Added partitions are read from their beginning, whatever `read_from` says.
        """
        before = self.ensure_initialised(subscription)
        positions = {
            EventTypePartition(event_type.name, partition): Position(event_type.timeline.order, -1)
            for partition in event_type.partitions
        }
        if _has_entries_for(before, positions):
            return before, False
        return self.ensure_entries_for_partitions(subscription, positions), True

    def ensure_entries_for_partitions(self, subscription: Subscription, positions: Positions) -> Assignment:
        """Add entries for these partitions at these positions, except for partitions that have entries already."""
        self.ensure_initialised(subscription)
        return self._add_entries_until(subscription.id, positions, lambda found: _has_entries_for(found, positions))

    def first_positions(self, subscription: Subscription, event_types: Iterable[EventType]) -> Positions:
        return {
            EventTypePartition(each.name, partition): position
            for each in event_types
            for partition, position in self._first_positions_of(subscription, each).items()
        }

    def _first_positions_of(self, subscription: Subscription, event_type: EventType) -> Mapping[str, Position]:
        match subscription.read_from:
            case ReadFrom.END:
                return self.cursor_resolver.end_positions(event_type)
            case ReadFrom.BEGIN:
                return self.cursor_resolver.positions_before_oldest(event_type)
            case ReadFrom.CURSORS:
                return self._positions_from_initial_cursors(subscription, event_type)

    def _positions_from_initial_cursors(
        self, subscription: Subscription, event_type: EventType
    ) -> Mapping[str, Position]:
        """The positions that the subscription's initial cursors name. If a cursor's timeline or events no longer exist,
        reading begins at the oldest event. Partitions that were added since then are read from their beginning.
        """
        view = self.cursor_resolver.take_snapshot(event_type)
        beginning = view.positions_before_oldest()
        positions = dict.fromkeys(event_type.partitions, Position(event_type.timeline.order, -1))
        for each in subscription.initial_cursors:
            if each.event_type == event_type.name and each.partition in positions:
                try:
                    positions[each.partition] = view.resolve(Cursor(each.partition, each.offset))
                except CursorError:
                    positions[each.partition] = beginning[each.partition]
        return positions

    def _add_entries_until(
        self, subscription_id: str, positions: Positions, done: Callable[[Assignment], bool]
    ) -> Assignment:
        """Add missing entries, as many at a time as fit into one write. If another process writes meanwhile, the write
        fails, and the missing entries are determined again.
        """
        for _ in range(ASSIGNMENT_WRITE_ATTEMPTS):
            old = self.coordination.assignment(subscription_id)
            if done(old):
                return old
            new, added = with_next_missing_entries(old, positions)
            try:
                self.coordination.replace_assignment(subscription_id, old, new, self.clock.now(), added)
            except AssignmentChanged:
                continue
        raise TryLater(SUBSCRIPTION_BUSY_MESSAGE)


def with_next_missing_entries(assignment: Assignment, positions: Positions) -> tuple[Assignment, Positions]:
    """The assignment with entries for partitions that had none, as many as one write may add; and the positions of
    these partitions.

    The last of these entries completes the initialisation of the subscription.
    """
    there = {entry.partition for entry in assignment.entries}
    missing = sorted((partition for partition in positions if partition not in there), key=_by_event_type_and_number)
    added: Sequence[EventTypePartition] = missing[:MAX_PARTITIONS_PER_WRITE]
    entries = (*assignment.entries, *(PartitionAssignment(partition) for partition in added))
    complete = len(added) == len(missing)
    new = replace(assignment, entries=entries, initialised=assignment.initialised or complete)
    return new, {partition: positions[partition] for partition in added}


def _by_event_type_and_number(partition: EventTypePartition) -> tuple[str, int]:
    return partition.event_type, int(partition.partition)


def _has_entries_for(assignment: Assignment, positions: Positions) -> bool:
    return positions.keys() <= {entry.partition for entry in assignment.entries}


PartitionChangeByPartition = Mapping[EventTypePartition, tuple[PartitionAssignment | None, Position]]
"""For each partition, its new position, and its new entry; the entry is None if it is the old one without a reader."""

RESET_RUNNING_MESSAGE = "Cursors reset is already in progress for provided subscription"
STREAMS_NOT_ENDED_MESSAGE = (
    "Streams have not ended yet: the request is carried out when they have, repeat it to learn the outcome"
)

# How much longer a reset may take than the longest time for which a stream may wait for commits.
STREAM_END_MARGIN_SECONDS = 1.0

# How often a waiting request looks for sessions whose process has died. Other ends of sessions are reported at once.
DEAD_SESSION_CHECK_INTERVAL_SECONDS = 0.5

RESET_OUTCOME_RETENTION = timedelta(minutes=1)
"""How long the outcome of an ended reset is kept, for clients that got an answer before the end and repeat the
request.
"""


class ResetExecution(Struct, frozen=True, kw_only=True):
    """The steps of a reset. Any process may carry them out, not only the one that received the request."""

    coordination: Coordination
    leases: LeaseWatch
    clock: Clock
    plan_replays: Callable[[str, Redrive], PartitionChangeByPartition]
    """Returns what a redrive changes; called while no stream is open. Raises `Conflict` if the redrive is
    impossible.
    """

    def try_to_execute(self, subscription_id: str) -> Assignment:
        """Carry out the pending reset, if there is one and no session is left. Return the resulting assignment.

        Also removes sessions whose process has died.
        """
        found = self._remove_dead_sessions(subscription_id)
        reset = found.reset
        if reset is None or reset.task is None or found.sessions:
            return found
        if isinstance(reset.task, Redrive):
            return self._carry_out_redrive(subscription_id, found, reset, reset.task)
        self._write_reset(
            subscription_id, reset, {partition: (None, position) for partition, position in reset.task.positions}
        )
        return self.coordination.assignment(subscription_id)

    def abandon_reset(self, subscription_id: str, reset_id: str, failure: str) -> Assignment:
        log.warning("The reset %s of %s is given up: %s", reset_id, subscription_id, failure)
        now = self.clock.now()
        return self.change_assignment(
            subscription_id, lambda old: assignments.with_reset_ended(old, reset_id, now, failure)
        )

    def change_assignment(self, subscription_id: str, step: Callable[[Assignment], Assignment]) -> Assignment:
        for _ in range(ASSIGNMENT_WRITE_ATTEMPTS):
            old = self.coordination.assignment(subscription_id)
            new = step(old)
            if new == old:
                return old
            try:
                return self.coordination.replace_assignment(subscription_id, old, new, self.clock.now())
            except AssignmentChanged:
                # The store wrote nothing, because another process was faster: decide again on its result.
                continue
        raise TryLater(SUBSCRIPTION_BUSY_MESSAGE)

    def _remove_dead_sessions(self, subscription_id: str) -> Assignment:
        # Sessions are read before leases: each session had a lease when it joined, so no new session looks dead.
        found = self.coordination.assignment(subscription_id)
        gone = sessions_without_lease(found.sessions, self.leases.live_holders()) if found.sessions else frozenset()
        return (
            self.change_assignment(subscription_id, lambda old: assignments.without_sessions(old, gone))
            if gone
            else found
        )

    def _carry_out_redrive(self, subscription_id: str, found: Assignment, reset: Reset, task: Redrive) -> Assignment:
        """Carry out a redrive. It removes parked events in other writes than that of the assignment, so a second
        process that carried it out a moment later could remove events that a stream has parked since. So only the
        process that claims the reset carries it out; if that process dies, the reset is given up when its time ends.
        """
        now = self.clock.now()
        if reset.is_claimed:
            if assignments.is_being_reset(found, now):
                return found
            return self.abandon_reset(subscription_id, reset.id, assignments.RESET_TIMED_OUT_MESSAGE)
        reset = replace(reset, is_claimed=True)
        try:
            self.coordination.replace_assignment(subscription_id, found, replace(found, reset=reset), now)
        except AssignmentChanged:
            # Perhaps another process has claimed the reset. If something else has changed, the next process that reads
            # the assignment tries again.
            return self.coordination.assignment(subscription_id)
        try:
            self._write_reset(subscription_id, reset, self.plan_replays(subscription_id, task))
        except Conflict as error:
            return self.abandon_reset(subscription_id, reset.id, error.detail)
        except BaseException:
            # The claim keeps all other processes away, so the reset is given up at once, if the store still answers.
            with suppress(Fault, TryLater):
                self.abandon_reset(subscription_id, reset.id, assignments.RESET_TIMED_OUT_MESSAGE)
            raise
        return self.coordination.assignment(subscription_id)

    def _write_reset(self, subscription_id: str, reset: Reset, changes: PartitionChangeByPartition) -> None:
        """Write as many partitions at a time as fit into one write. If this process dies in between, another one starts
        over. This is harmless: while the reset is pending, no session can move the offsets that are already written.
        """
        rest = sorted(changes)
        while True:
            part, rest = rest[:MAX_PARTITIONS_PER_WRITE], rest[MAX_PARTITIONS_PER_WRITE:]
            if not self._write_part(
                subscription_id, reset, {partition: changes[partition] for partition in part}, is_last=not rest
            ):
                return
            if not rest:
                break
        log.info("The reset %s of %s is executed: %s partitions", reset.id, subscription_id, len(changes))

    def _write_part(
        self, subscription_id: str, reset: Reset, part: PartitionChangeByPartition, *, is_last: bool
    ) -> bool:
        """Write a part of a reset. Return False if the reset is no longer pending, because another process has carried
        it out or given it up.
        """
        positions = {partition: position for partition, (_, position) in part.items()}
        for _ in range(ASSIGNMENT_WRITE_ATTEMPTS):
            old = self.coordination.assignment(subscription_id)
            # No session can have joined meanwhile: joining would end the reset or, in a process of an older version,
            # lose its task.
            if old.reset != reset:
                return False
            new, now = _with_reset_entries(old, part), self.clock.now()
            if is_last:
                new = assignments.with_reset_ended(new, reset.id, now)
            try:
                self.coordination.replace_assignment(subscription_id, old, new, now, positions)
            except AssignmentChanged:
                continue
            return True
        raise TryLater(SUBSCRIPTION_BUSY_MESSAGE)


class ResetRequests(Struct, frozen=True, kw_only=True):
    """The steps of a request for a reset: record the reset, and wait for its end. Without `max_wait_seconds`, a request
    may wait as long as the longest commit timeout.
    """

    execution: ResetExecution
    max_commit_timeout: float
    max_wait_seconds: float | None = None

    def reset_offsets(self, subscription_id: str, positions: Positions) -> None:
        self.request_and_wait(subscription_id, SetOffsets(tuple(sorted(positions.items()))))

    def request_and_wait(self, subscription_id: str, task: ResetTask) -> None:
        """Reset a subscription once its streams have ended. A request with the same task as a pending reset waits for
        that reset. A request that repeats one which was answered before the reset's end gets the outcome of that reset.

        Raises `Conflict` while a reset with another task is pending, and `StillRunning` if the caller may not wait
        longer.
        """
        reset_id = self.request_reset(subscription_id, task)
        self._wait_for_resets({subscription_id: reset_id})
        self._raise_if_reset_failed(subscription_id, reset_id)

    def close_streams(self, subscription_ids: Sequence[str]) -> None:
        """Make the streams of several subscriptions end, as for a reset of offsets."""
        with_requested_reset = {}
        for each in subscription_ids:
            # If a reset with another task is pending, it ends the streams.
            with suppress(Conflict):
                with_requested_reset[each] = self.request_reset(each, SetOffsets())
        self.wait_for_running_resets(subscription_ids)
        for subscription_id, reset_id in with_requested_reset.items():
            self._raise_if_reset_failed(subscription_id, reset_id)

    def wait_for_running_resets(self, subscription_ids: Sequence[str]) -> None:
        """Wait for the end of all resets of these subscriptions that are pending now. Raises `StillRunning` if the
        caller may not wait any longer.
        """
        found = {each: self.execution.coordination.assignment(each).reset for each in subscription_ids}
        self._wait_for_resets(
            {subscription_id: reset.id for subscription_id, reset in found.items() if reset is not None}
        )

    def request_reset(self, subscription_id: str, task: ResetTask) -> str:
        """Request that a task is carried out when the streams have ended. Return the id of the reset for the task: a
        new one, a pending one, or one that has just ended.
        """
        now = self.execution.clock.now()
        expires_at = now + timedelta(seconds=self._longest_stream_end_seconds() + STREAM_END_MARGIN_SECONDS)
        new = Reset(str(uuid4()), expires_at, now, task)
        found = self.execution.change_assignment(
            subscription_id, lambda assignment: with_requested_reset(assignment, new, now)
        )
        standing = found.reset or found.ended_reset
        assert standing is not None
        return standing.id

    def _wait_for_resets(self, resets: Mapping[str, str]) -> None:
        """Return when none of these resets is pending: each was carried out or given up."""
        news = threading.Event()
        clock, coordination = self.execution.clock, self.execution.coordination
        end = clock.monotonic() + min(self._longest_stream_end_seconds(), self._max_wait_seconds())
        with ExitStack() as watches:
            for each in resets:
                watches.callback(coordination.add_change_listener(each, lambda _: news.set()))
            while standing := {
                each: found for each in resets if (found := self._assignment_if_not_ended(each, resets[each]))
            }:
                if clock.monotonic() >= end:
                    return self._abandon_or_leave_running(standing)
                news.wait(DEAD_SESSION_CHECK_INTERVAL_SECONDS)
                news.clear()
        return None

    def _assignment_if_not_ended(self, subscription_id: str, reset_id: str) -> Assignment | None:
        found = self.execution.try_to_execute(subscription_id)
        return found if found.reset is not None and found.reset.id == reset_id else None

    def _abandon_or_leave_running(self, standing: Mapping[str, Assignment]) -> None:
        """Give up the pending resets if the request has waited as long as streams may take to end. A request that may
        not wait that long leaves a reset to other processes, unless the reset's time has ended.
        """
        now = self.execution.clock.now()
        goes_on = False
        for subscription_id, found in standing.items():
            assert found.reset is not None
            if self._max_wait_seconds() < self._longest_stream_end_seconds() and assignments.is_being_reset(found, now):
                goes_on = True
            else:
                self.execution.abandon_reset(subscription_id, found.reset.id, assignments.RESET_TIMED_OUT_MESSAGE)
        if goes_on:
            raise StillRunning(STREAMS_NOT_ENDED_MESSAGE)

    def _raise_if_reset_failed(self, subscription_id: str, reset_id: str) -> None:
        """Raise if the reset failed. From now on, a request with the same task begins another reset."""
        ended = self.execution.coordination.assignment(subscription_id).ended_reset
        if ended is None or ended.id != reset_id:
            # The reset's time has ended and another reset followed, or the subscription was deleted.
            raise TryLater(assignments.RESET_TIMED_OUT_MESSAGE)
        # This records that the client knows the outcome. If the write fails, a repeated request only gets the same
        # outcome again.
        with suppress(Fault, TryLater):
            self.execution.change_assignment(
                subscription_id, lambda assignment: without_reported_task(assignment, reset_id)
            )
        if ended.failure:
            raise (
                TryLater(ended.failure)
                if ended.failure == assignments.RESET_TIMED_OUT_MESSAGE
                else Conflict(ended.failure)
            )

    def _longest_stream_end_seconds(self) -> float:
        return self.max_commit_timeout + STREAM_END_MARGIN_SECONDS

    def _max_wait_seconds(self) -> float:
        return inf if self.max_wait_seconds is None else self.max_wait_seconds


def with_requested_reset(assignment: Assignment, reset: Reset, now: datetime) -> Assignment:
    """Add a reset for a task, unless one for the same task is pending, or has just ended and its client does not know
    the outcome.

    Raises `Conflict` while a reset with another task is pending.
    """
    if assignments.is_being_reset(assignment, now):
        if assignment.reset is not None and assignment.reset.task == reset.task:
            return assignment
        raise Conflict(RESET_RUNNING_MESSAGE)
    ended = assignment.ended_reset
    if assignment.reset is not None or ended is None or ended.task != reset.task:
        return replace(assignment, reset=reset)
    # If the reset ended in the future, a clock was set back since, and the outcome is not recent.
    is_recent = ended.ended_at - CLOCK_MARGIN <= now < ended.ended_at + RESET_OUTCOME_RETENTION
    return assignment if is_recent else replace(assignment, reset=reset)


def without_reported_task(assignment: Assignment, reset_id: str) -> Assignment:
    """The assignment without the task of an ended reset, so that a later request for the same task begins another
    reset."""
    ended = assignment.ended_reset
    if ended is None or ended.id != reset_id or ended.task is None:
        return assignment
    return replace(assignment, ended_reset=replace(ended, task=None))


def _with_reset_entries(assignment: Assignment, changes: PartitionChangeByPartition) -> Assignment:
    """The assignment with these partitions at their new positions, without owners and without recorded failures."""
    entries = []
    for each in assignment.entries:
        if each.partition in changes:
            new = changes[each.partition][0] or replace(each, replay=None)
            entries.append(replace(new, owner=None, next_owner=None, failed_streams=0, search_end=None))
    standing = tuple(each for each in assignment.standstills if each.partition not in changes)
    return assignments.with_entries(replace(assignment, standstills=standing), entries)

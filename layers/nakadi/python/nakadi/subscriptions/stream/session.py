"""The session of a subscription's stream: which events it sends, which partitions it hands over, and when it ends.

A session never waits, and uses no clock and no store: facts come in as method calls, and each call returns the
resulting actions. Those actions that are calls are carried out in order, and the outcome of each is another fact.

A session is *streaming* until something ends it in an orderly way. Then it is *closing*: silent, but still open for
commits of sent events, for at most one commit timeout. Finally `end` is set, and only the session's departure remains
to be recorded. A client that leaves commits nothing further, so its session ends without a wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from operator import attrgetter

from nakadi.common.states import following_state
from nakadi.model.event_type import Position
from nakadi.model.subscription import Assignment, CommittedOffset, EventTypePartition, PartitionAssignment, Standstill
from nakadi.streaming.chunks import EventRun
from nakadi.subscriptions.api.fields import RetryPolicy, failed_partitions_text
from nakadi.subscriptions.stream.actions import (
    AutoCommit,
    ClosePartition,
    CountConsumed,
    DepartureRecord,
    EndReplay,
    FailureCountChange,
    GrantExtension,
    HandOverPartitions,
    OpenPartition,
    ParkEvents,
    ReloadParkedKeys,
    SendKeepAlive,
    SessionAction,
    SessionContext,
    SessionEnd,
    SessionProgress,
    SharedState,
    SubscriptionStreamLimits,
)
from nakadi.subscriptions.stream.parking import parking_calls
from nakadi.subscriptions.stream.partition_progress import PartitionProgress, SessionTotals
from nakadi.subscriptions.stream.send_schedule import MAX_BUFFERED_BYTES, SendSchedule
from nakadi.subscriptions.stream.session_states import OVER, TRANSITIONS, SessionFact, SessionState
from nakadi.subscriptions.stream.stream_memory import MemoryShare

AUTO_COMMIT_INTERVAL_SECONDS = 5.0

_REPLAY_OF = attrgetter("replay")
_RELEASE_BY_OF = attrgetter("release_by")
_SKIPPED_OF = attrgetter("skipped")


class SubscriptionSession:
    """`id` is the session's id in the assignment, which already contains the session."""

    def __init__(
        self,
        session_id: str,
        limits: SubscriptionStreamLimits,
        now: float,
        context: SessionContext,
        policy: RetryPolicy | None = None,
    ) -> None:
        self.id = session_id
        self.state = SessionState.STREAMING
        # Why it closes, or has ended.
        self.reason: SessionEnd | None = None
        self._limits = limits
        self._context = context
        self._policy = policy
        self._partitions: dict[EventTypePartition, PartitionProgress] = {}
        # The last state passed to `handle_state`, and this session's entries in it.
        self._assignment: Assignment | None = None
        self._offsets: Mapping[EventTypePartition, CommittedOffset] = {}
        self._entries: dict[EventTypePartition, PartitionAssignment] = {}
        self._totals = SessionTotals()
        self._schedule = SendSchedule(self._partitions, self._totals, limits, context, now, policy)
        self._ends_at = now + limits.stream_seconds
        self._closed_by = inf
        self._auto_commit_at = now + AUTO_COMMIT_INTERVAL_SECONDS
        self._idle_since: float | None = now
        self._committed_events = 0
        self._stop: SessionEnd | None = None
        self._openings = 0
        # An assignment with an earlier revision was read before this session's last write.
        self._revision = 0
        self._seen = 0
        self._extensions_granted = 0
        self._memory = None if context.memory is None else MemoryShare(context.memory)

    @property
    def end(self) -> SessionEnd | None:
        """Why the stream has ended; None until then."""
        return self.reason if self.state in OVER else None

    @property
    def is_awaited(self) -> bool:
        """Whether another session waits for a partition of this one."""
        return any(map(_RELEASE_BY_OF, self._partitions.values()))

    # Facts

    def handle_state(self, shared: SharedState, now: float) -> list[SessionAction]:
        """Take a new assignment and new offsets: a session has joined or left, or an offset has moved."""
        if self._is_over(now):
            return []
        own = shared.assignment.session(self.id)
        if own is None:
            return self._end_now(SessionEnd.REMOVED)
        if shared.assignment.revision < self._revision:
            return []
        self._seen = shared.assignment.revision
        changed = self._take_changed_entries(shared)
        actions: list[SessionAction] = [
            self._close_partition(partition) for partition in self._partitions.keys() - self._entries.keys()
        ]
        for entry in changed:
            offset = shared.offsets.get(entry.partition)
            # An offset of another session is newer than the assignment: the next read has both.
            if offset is not None and offset.owner == self.id:
                actions += self._update_partition(entry, offset, now)
        actions += self._reload_parked_keys(shared.assignment.revision)
        self._update_idle_since(shared.assignment, now)
        if self._policy and any(isinstance(each, OpenPartition) for each in actions):
            self._schedule.pending_info = failed_partitions_text(self._entries.values())
        if own.is_leaving:
            # A request to leave is handled after the offsets, so that events that were committed before it do not count
            # as failed.
            return [*actions, *self._release_now(SessionEnd.LEFT)]
        if shared.is_being_reset:
            actions += self._begin_closing(SessionEnd.RESET, now, "Resetting subscription cursors")
        if own.extensions_requested > self._extensions_granted:
            actions.append(self._grant_extension(own.extensions_requested, now))
        return [*actions, *self._next_actions(now)]

    def handle_opening(
        self, opening: OpenPartition, start: Position, lost_events: int, now: float, keys: frozenset[str] = frozenset()
    ) -> list[SessionAction]:
        """Record that reading of a partition begins after `start`, and that `lost_events` events before it no longer
        exist. Events with these `keys` must be parked.
        """
        if self._is_over(now) or not self.expects_opening(opening):
            return []
        partition = self._partitions[opening.partition]
        partition.set_parked_keys(keys)
        partition.begin_reading(start, lost_events, self._context.measure_distance)
        return self._next_actions(now)

    def handle_parking_end(self, call: ParkEvents, now: float) -> list[SessionAction]:
        """Record that events were parked, so that events after them may be sent."""
        partition = self._partitions.get(call.partition)
        if partition is not None and partition.opening_number == call.opening_number:
            partition.end_parking()
        return [] if self._is_over(now) else self._next_actions(now)

    def handle_parked_keys(self, call: ReloadParkedKeys, keys: frozenset[str]) -> list[SessionAction]:
        """Record that these keys are parked. The keys of events that were parked since the call began are parked
        too.
        """
        partition = self._partitions.get(call.partition)
        if partition is not None and partition.opening_number == call.opening_number:
            partition.set_parked_keys(keys)
        return []

    def end_hand_over(self, partitions: Iterable[EventTypePartition], revision: int, now: float) -> list[SessionAction]:
        """Record that partitions were handed over, or that no session waited for them any longer. `revision` is the
        revision of the assignment after that.
        """
        self._revision = max(self._revision, revision)
        for partition in partitions:
            if partition in self._partitions:
                # If an assignment that was read since then shows the partition as ours, it was not handed over.
                self._partitions[partition].end_hand_over(still_ours=self._seen >= revision)
        return [] if self._is_over(now) else self._next_actions(now)

    def handle_events(self, partition: EventTypePartition, run: EventRun, now: float) -> list[SessionAction]:
        """Take events of a partition, which were read in order and without gaps."""
        progress = self._partitions.get(partition)
        if self._is_over(now) or not self._is_streaming or progress is None or not progress.is_open:
            return []
        context = self._context
        check_each = (
            context.filters_events
            or context.reading_rules.skips_misplaced_events
            or partition.event_type == context.attached_event_type
        )
        to_be_parked = progress.receive_run(run, context.is_deliverable, check_each=check_each)
        actions: list[SessionAction] = list(parking_calls(progress, to_be_parked)) if to_be_parked else []
        actions += self._schedule.due_actions(progress, now)
        if self._totals.buffered_bytes > MAX_BUFFERED_BYTES:
            actions += self._schedule.batches_to_free_memory(now)
        return actions

    def handle_unreadable_events(self, partition: EventTypePartition, why: str) -> list[SessionAction]:
        """Record that the next events of a partition cannot be read now. The stream continues with its other
        partitions.
        """
        progress = self._partitions.get(partition)
        if not self._is_streaming or progress is None:
            return []
        return [SendKeepAlive(partition, progress.sent, why, is_unreadable=True)]

    def tick(self, now: float) -> list[SessionAction]:
        """Do what is due at `now`."""
        if self._is_over(now):
            return []
        actions = self._timeout_actions(now)
        actions += self._auto_commit_actions(now)
        return [*actions, *self._next_actions(now)]

    def handle_failed_event(self, partition: EventTypePartition, position: Position, now: float) -> list[SessionAction]:
        """Record that a sink fails to process the event after the committed position, so that the next stream gives up
        the event, according to the policy.
        """
        progress = self._partitions.get(partition)
        if self._is_over(now) or self._policy is None or progress is None:
            return []
        progress.failed_streams, progress.search_end = self._policy.max_failed_streams, position
        return self._end_now(SessionEnd.EVENT_FAILED)

    def handle_block(self) -> list[SessionAction]:
        """Record that an administrator has blocked the client or its event types; the next tick ends the stream."""
        self._stop = SessionEnd.BLOCKED
        return []

    def handle_refusal(self, _error: Exception) -> list[SessionAction]:
        """End, because the client may no longer read, or the stream cannot continue. Subscription streams have no line
        in which to give the reason.
        """
        return self._end_now(SessionEnd.REFUSED)

    def handle_shutdown(self) -> list[SessionAction]:
        """End, because the process is about to end."""
        return self._end_now(SessionEnd.DRAINED)

    def handle_disconnect(self, now: float) -> list[SessionAction]:
        """Record that the client has disconnected. It may still commit events, unless it chose that the stream ends
        with its connection.
        """
        if self._is_over(now):
            return []
        if self._limits.releases_on_disconnect:
            return self._release_now(SessionEnd.RELEASED)
        return self._begin_closing(SessionEnd.GONE, now)

    # Queries by the driver

    def expects_opening(self, opening: OpenPartition) -> bool:
        """Whether this is the latest opening of the partition, and its outcome is still awaited."""
        partition = self._partitions.get(opening.partition)
        if partition is None or partition.is_open or not self._is_streaming:
            return False
        return partition.opening_number == opening.opening_number

    def wants_events(self, partition: EventTypePartition) -> bool:
        """Whether the session can take more events of a partition."""
        progress = self._partitions.get(partition)
        if not self._is_streaming or progress is None or not progress.may_send:
            return False
        if self._memory is not None and not self._may_hold_more(progress, self._memory):
            return False
        return progress.count < min(self._limits.batch_limit, self._schedule.events_allowed_now())

    def release_memory(self) -> None:
        """Record that the stream has ended and holds no events."""
        if self._memory is not None:
            self._memory.update(0)

    def next_tick_at(self) -> float:
        """The time at which `tick` next has something to do, unless another fact comes before."""
        partitions = self._partitions.values()
        if self._stop is not None or any(map(_wants_replay_commit, filter(_REPLAY_OF, partitions))):
            return -inf
        skipping = filter(_SKIPPED_OF, partitions)
        auto = self._auto_commit_at if any(map(PartitionProgress.committable_position, skipping)) else inf
        if not self._is_streaming:
            return min(self._closed_by, auto)
        if self._limits.keep_alive_limit and self._schedule.is_keep_alive_limit_reached():
            return -inf
        commit_by = self._schedule.commit_by if self._totals.uncommitted else inf
        releases: Iterable[float] = filter(None, map(_RELEASE_BY_OF, partitions))
        idle = inf if self._idle_since is None else self._idle_deadline()
        return min(commit_by, auto, self._ends_at, idle, self._schedule.next_flush_at(), *releases)

    def progress(self) -> SessionProgress:
        """The client's progress. May be called from any thread, because it copies the partitions first, and otherwise
        reads only counters.
        """
        partitions = tuple(self._partitions.values())
        oldest = min([found for each in partitions if (found := each.oldest_stored_at()) is not None], default=None)
        return SessionProgress(len(partitions), self._totals.uncommitted, oldest)

    def departure_record(self) -> DepartureRecord:
        """The records to write when the session leaves the assignment."""
        if self.end in (SessionEnd.REMOVED, SessionEnd.LEASE_LOST):
            return DepartureRecord()
        partitions = self._partitions.values()
        graceful = self.state is SessionState.ENDED
        has_failed = graceful and self._totals.uncommitted > 0
        return DepartureRecord(
            tuple(_failures_at_the_end(each, graceful) for each in partitions) if self._policy is not None else (),
            self._committable_positions(partitions),
            has_timed_out=has_failed and self.end not in (SessionEnd.LEFT, SessionEnd.RELEASED),
            standstills=tuple(_standstill_at_the_end(each) for each in partitions) if graceful else (),
        )

    def _may_hold_more(self, progress: PartitionProgress, memory: MemoryShare) -> bool:
        """Whether there is room for more events. A partition that holds no events gets one read, whatever other streams
        hold: otherwise it would wait for these streams, although only a commit of its own stream causes another check.
        """
        memory.update(self._totals.buffered_bytes + self._totals.unsure_bytes)
        return memory.has_room or not (progress.size or progress.unsure_size)

    # The assignment

    def _take_changed_entries(self, shared: SharedState) -> Sequence[PartitionAssignment]:
        """The entries of this session that have changed, or whose offsets have changed.

        A commit usually changes one of many. Assignments are immutable, so if the object is the same, no entry has
        changed.
        """
        offsets, before = shared.offsets, self._offsets
        is_same = shared.assignment is self._assignment
        self._assignment, self._offsets = shared.assignment, offsets
        if is_same:
            # Offsets are compared as objects. An equal offset in another object is only checked again, which does no
            # harm.
            return [entry for each, entry in self._entries.items() if offsets.get(each) is not before.get(each)]
        self._entries = {entry.partition: entry for entry in shared.assignment.entries if entry.owner == self.id}
        return tuple(self._entries.values())

    def _update_partition(
        self, entry: PartitionAssignment, offset: CommittedOffset, now: float
    ) -> Iterator[SessionAction]:
        """Take an entry of this session, whose partition is committed up to this offset."""
        partition, stored = self._partitions.get(entry.partition), offset.position
        if partition is None or stored < partition.stored:
            if partition is not None:
                partition.remove_from_totals()
            counts, totals = self._policy is not None, self._totals
            partition = PartitionProgress(
                entry, stored, now, counts=counts, totals=totals, done_ahead=offset.done_ahead
            )
            self._partitions[entry.partition] = partition
            yield from self._open_or_search(partition)
        elif stored > partition.stored:
            yield from self._advance_committed(partition, stored, now)
        if entry.next_owner is None:
            partition.note_no_waiting_session()
        else:
            partition.note_waiting_session(now + self._limits.commit_seconds)

    def _open_or_search(self, partition: PartitionProgress) -> Iterator[SessionAction]:
        if not self._is_streaming:
            return
        if self._policy and partition.failed_streams >= self._policy.max_failed_streams and not partition.is_searching:
            end = Position(partition.stored.timeline, partition.stored.offset + self._limits.batch_limit)
            yield self._reset_failures(partition, end)
        elif partition.search_end is not None and partition.stored >= partition.search_end:
            yield self._reset_failures(partition, None)
        yield from self._finish_replay(partition)
        yield self._reopen(partition)

    def _reopen(self, partition: PartitionProgress) -> SessionAction:
        self._openings += 1
        partition.opening_number = self._openings
        partition.keys_read_at = self._seen
        return OpenPartition(partition.partition, partition.stored, self._openings, partition.replay)

    def _finish_replay(self, partition: PartitionProgress) -> Iterator[SessionAction]:
        """The call that ends a replay once all its events are consumed."""
        if partition.replay is not None and partition.stored >= partition.replay.last_position:
            yield EndReplay(partition.partition, partition.replay)
            partition.replay = None

    def _reload_parked_keys(self, revision: int) -> Iterator[SessionAction]:
        """Read the parked keys again if the assignment has changed, because removing parked events changes it."""
        for partition in self._partitions.values():
            if partition.parked_keys and partition.keys_read_at < revision and self._is_streaming:
                partition.keys_read_at = revision
                yield ReloadParkedKeys(partition.partition, partition.replay, partition.opening_number)

    def _reset_failures(self, partition: PartitionProgress, search_end: Position | None) -> SessionAction:
        partition.failed_streams, partition.search_end = 0, search_end
        return FailureCountChange(partition.partition, 0, search_end)

    def _advance_committed(self, partition: PartitionProgress, stored: Position, now: float) -> Iterator[SessionAction]:
        dropped = partition.dropping
        events, consumed = partition.advance_committed(stored, self._context.measure_distance)
        self._committed_events += events
        if consumed and self._context.has_objective():
            yield CountConsumed(tuple(consumed))
        self._schedule.restart_commit_timeout(now)
        yield from self._finish_replay(partition)
        if (stored > partition.taken or self._has_parked_failed_event(partition, dropped)) and self._is_streaming:
            partition.prepare_reopening()
            yield self._reopen(partition)
        found_all = partition.search_end is not None and stored >= partition.search_end
        if partition.failed_streams or found_all:
            yield self._reset_failures(partition, None if found_all else partition.search_end)

    def _has_parked_failed_event(self, partition: PartitionProgress, dropped: Position | None) -> bool:
        """Whether a failed event has been parked, so that later ones of its key have to be read again."""
        return (
            self._policy is not None and self._policy.parks_keys and dropped is not None and partition.dropping is None
        )

    def _close_partition(self, partition: EventTypePartition) -> SessionAction:
        self._partitions.pop(partition).remove_from_totals()
        return ClosePartition(partition)

    def _update_idle_since(self, assignment: Assignment, now: float) -> None:
        if any(self.id in (entry.owner, entry.next_owner) for entry in assignment.entries):
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now

    def _idle_deadline(self) -> float:
        return inf if self._idle_since is None else self._idle_since + 2 * self._limits.commit_seconds

    # Time

    def _timeout_actions(self, now: float) -> list[SessionAction]:
        """The actions that follow if one of the stream's timeouts has passed."""
        if self._stop is not None:
            return self._begin_closing(self._stop, now, "Consumption is blocked")
        if not self._is_streaming:
            return []
        if self._totals.uncommitted and now >= self._schedule.commit_by:
            return self._begin_closing(SessionEnd.COMMIT_TIMEOUT, now, "Commit timeout reached")
        if now >= self._ends_at:
            flushed = [each for partition in self._partitions.values() for each in self._schedule.flush(partition, now)]
            return [*flushed, *self._begin_closing(SessionEnd.TIMEOUT, now, "Stream timeout reached")]
        if any(each.release_by is not None and now >= each.release_by for each in self._partitions.values()):
            return self._begin_closing(SessionEnd.RELEASE_TIMEOUT, now)
        return self._begin_closing(SessionEnd.IDLE, now) if now >= self._idle_deadline() else []

    def _auto_commit_actions(self, now: float) -> list[SessionAction]:
        # When all events of a replay are consumed, the replay's end is committed at once rather than at the next
        # interval.
        ready = [each for each in self._partitions.values() if _wants_replay_commit(each)]
        if now < self._auto_commit_at and not ready:
            return []
        for each in ready:
            each.replay_commit_requested = True
        self._auto_commit_at = now + AUTO_COMMIT_INTERVAL_SECONDS
        positions = self._committable_positions(self._partitions.values())
        return [AutoCommit(positions)] if positions else []

    def _committable_positions(self, partitions: Iterable[PartitionProgress]) -> dict[EventTypePartition, Position]:
        found = ((each.partition, each.committable_position()) for each in partitions)
        return {partition: position for partition, position in found if position is not None}

    # Continuing

    def _next_actions(self, now: float) -> list[SessionAction]:
        """The actions that follow from any change."""
        actions: list[SessionAction] = []
        if self._is_streaming and 0 < self._limits.stream_limit <= self._committed_events:
            info = f"Stream limit in events reached: {self._committed_events}"
            actions += self._begin_closing(SessionEnd.LIMIT, now, info)
        actions += self._hand_over_actions()
        if self._is_streaming:
            actions += self._schedule.all_due_actions(now)
        if self._is_streaming and self._schedule.is_keep_alive_limit_reached():
            actions += self._begin_closing(SessionEnd.KEEP_ALIVES, now)
        if self._is_streaming and not actions:
            actions += self._schedule.keep_alive_after_silence(now)
        if self.state is SessionState.CLOSING:
            self._end_if_committed(now)
        return actions

    def _hand_over_actions(self) -> Iterator[SessionAction]:
        """Hand over the partitions that other sessions wait for and that have no outstanding events."""
        drained = [each for each in self._partitions.values() if each.is_drained]
        if drained:
            for each in drained:
                each.begin_hand_over()
            yield HandOverPartitions(
                frozenset(each.partition for each in drained), self._committable_positions(drained)
            )

    def _begin_closing(self, end: SessionEnd, now: float, info: str = "") -> list[SessionAction]:
        """Send nothing more, and wait until the client commits the events that it received."""
        if not self._is_streaming:
            return []
        self._enter_state_after(SessionFact.CLOSED, end)
        # From here on, no commit postpones the end: other sessions wait for the partitions, or a request waits for its
        # reset.
        self._closed_by = self._schedule.commit_by
        some = next(iter(self._partitions.values()), None)
        actions: list[SessionAction] = []
        if info and some is not None:
            actions.append(SendKeepAlive(some.partition, some.sent, self._schedule.take_line_info(info)))
        for each in self._partitions.values():
            each.discard_waiting()
        self._end_if_committed(now)
        return actions

    def _release_now(self, end: SessionEnd) -> list[SessionAction]:
        """End without waiting for commits, like a session whose time to commit has ended: so uncommitted events count
        as failed, however a client leaves.
        """
        self._enter_state_after(SessionFact.LEFT, end)
        return []

    def _grant_extension(self, number: int, now: float) -> SessionAction:
        """Restart the client's time to commit. The end of a closing session is not postponed, because other sessions
        rely on it.
        """
        self._extensions_granted = number
        self._schedule.restart_commit_timeout(now)
        return GrantExtension(number, self._schedule.commit_by if self._is_streaming else self._closed_by)

    def _end_if_committed(self, now: float) -> None:
        if not self._totals.uncommitted or now >= self._closed_by:
            self._enter_state_after(SessionFact.SETTLED)

    def _end_now(self, end: SessionEnd) -> list[SessionAction]:
        if self.state not in OVER:
            self._enter_state_after(SessionFact.CUT, end)
        return []

    def _is_over(self, now: float) -> bool:
        if self.state not in OVER and now >= self._context.lease.valid_until:
            self._enter_state_after(SessionFact.CUT, SessionEnd.LEASE_LOST)
        return self.state in OVER

    @property
    def _is_streaming(self) -> bool:
        return self.state is SessionState.STREAMING

    def _enter_state_after(self, fact: SessionFact, reason: SessionEnd | None = None) -> None:
        self.state = following_state(TRANSITIONS, self.state, fact)
        self.reason = reason or self.reason


def _failures_at_the_end(partition: PartitionProgress, graceful: bool) -> FailureCountChange:
    """The counts of failures, increased by one if the client could have committed its events and did not."""
    failures = partition.failed_streams + (graceful and partition.uncommitted > 0)
    return FailureCountChange(partition.partition, failures, partition.search_end)


def _standstill_at_the_end(partition: PartitionProgress) -> Standstill:
    position = partition.committable_position() or partition.stored
    return Standstill(partition.partition, position, int(partition.uncommitted > 0))


def _wants_replay_commit(partition: PartitionProgress) -> bool:
    """Whether a replay needs only a commit to end, and that commit has not been requested yet."""
    return partition.replay_awaits_commit and not partition.replay_commit_requested

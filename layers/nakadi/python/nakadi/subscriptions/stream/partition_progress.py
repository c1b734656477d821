"""A session's knowledge of each of its partitions: which events wait, were sent, skipped or committed, and which are
sent next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from enum import Enum, auto
from functools import partial
from typing import Any

from msgspec import Struct

from nakadi.common.states import following_states
from nakadi.model.event_type import Position
from nakadi.model.events import Record
from nakadi.model.objective import ConsumedBatch
from nakadi.model.subscription import OffsetRange, PartitionAssignment, Replay
from nakadi.streaming.chunks import EventRun
from nakadi.subscriptions.stream.actions import IsDeliverable, MeasureDistance
from nakadi.subscriptions.stream.partition_states import TRANSITIONS, PartitionFact, PartitionState

_EMPTY_QUEUE: deque[Any] = deque()
"""Stands for every empty queue. Nothing is ever added to this object: `queue or deque()` is a queue for additions. A
deque takes 760 bytes, and an idle stream would have four deques for each of its partitions."""

_NO_KEYS: frozenset[str] = frozenset()


class EventDisposition(Enum):
    """The treatment of an event that was read."""

    SEND = auto()
    SKIP = auto()
    PARK = auto()  # because earlier events of its key are parked


class SessionTotals(Struct):
    """The sums over the partitions of a session. Each partition adds its own changes, so that a new event does not
    require a sum over all partitions.

    `buffered_bytes` wait to be sent. `unsure_bytes` are the bytes of batches that are not completely committed.
    """

    uncommitted: int = 0
    buffered_bytes: int = 0
    unsure_bytes: int = 0


class PartitionProgress:
    """The positions of one partition. They only grow: committed <= sent <= taken. If an offset is set back, the
    partition gets a new object.

    `stored` is the committed offset as it was last read. `committed` is at least where reading began, so that no commit
    is expected for events that expired before they could be sent. `parked_keys` are the keys of parked events.
    """

    __slots__ = (
        "_parking",
        "_unsure",
        "committed",
        "count",
        "done_ahead",
        "dropping",
        "failed_streams",
        "flushed_at",
        "is_open",
        "keep_alives",
        "keys_read_at",
        "lost_events",
        "opening_number",
        "parked_keys",
        "partition",
        "release_by",
        "replay",
        "replay_commit_requested",
        "runs",
        "search_end",
        "sent",
        "size",
        "skipped",
        "state",
        "stored",
        "taken",
        "totals",
        "uncommitted",
        "unsure_size",
        "window_end",
    )

    def __init__(
        self,
        entry: PartitionAssignment,
        stored: Position,
        now: float,
        *,
        counts: bool,
        totals: SessionTotals | None = None,
        done_ahead: Sequence[OffsetRange] = (),
    ) -> None:
        self.totals = totals or SessionTotals()
        self.partition = entry.partition
        self.stored = self.committed = self.sent = self.taken = stored
        # Events beyond the committed offset that were consumed before: they are skipped.
        self.done_ahead = _ranges_behind(done_ahead, stored)
        self.failed_streams = entry.failed_streams if counts else 0
        self.search_end = entry.search_end if counts else None
        self.replay: Replay | None = entry.replay
        self.replay_commit_requested = False
        self.flushed_at = now
        self.keep_alives = 0
        # How many positions of sent events are uncommitted.
        self.uncommitted = 0
        # How many events expired before they could be sent; reported once.
        self.lost_events = 0
        self.state = PartitionState.OPENING
        # Whether the last opening has been answered. This may be so while another session waits for the partition.
        self.is_open = False
        self.opening_number = 0
        # The end of the client's time to commit its events, because another session waits for the partition.
        self.release_by: float | None = None
        # The position of the failing event that is being dropped or parked, according to the policy.
        self.dropping: Position | None = None
        self.runs: deque[EventRun] = _EMPTY_QUEUE
        self.count = 0
        self.size = 0
        # The bytes of sent batches that are not completely committed.
        self.unsure_size = 0
        self.window_end: datetime | None = None
        self.parked_keys = _NO_KEYS
        # The assignment's revision when the parked keys were read.
        self.keys_read_at = 0
        # Events that are being parked: their first position, and their keys.
        self._parking: deque[tuple[Position, frozenset[str]]] = _EMPTY_QUEUE
        # Sent batches that are not completely committed: the end, the events and the size of each.
        self._unsure: deque[tuple[Position, ConsumedBatch, int]] = _EMPTY_QUEUE
        # Events that are not for this client: the positions of the event before them and of their last one.
        self.skipped: deque[tuple[Position, Position]] = _EMPTY_QUEUE

    @property
    def may_send(self) -> bool:
        """Whether events of this partition may be sent: not while another session waits for it, nor while an event is
        being parked or dropped.
        """
        return self.state is PartitionState.READING

    @property
    def is_drained(self) -> bool:
        """Whether a waiting session can have the partition: no event is uncommitted, or being parked or dropped."""
        if self.state is not PartitionState.DRAINING:
            return False
        return not self.uncommitted and not self._parking and self.dropping is None

    @property
    def replay_awaits_commit(self) -> bool:
        """Whether a replay needs only a commit to end."""
        return self.replay is not None and self.settled_position() >= self.replay.last_position > self.committed

    @property
    def is_searching(self) -> bool:
        return self.search_end is not None

    def begin_reading(self, start: Position, lost_events: int, measure_distance: MeasureDistance) -> None:
        """Record that reading continues after `start`."""
        self.is_open = True
        self._enter_state_after(PartitionFact.OPENED)
        self.lost_events = lost_events
        self.committed = max(self.committed, start)
        self.sent = max(self.sent, self.committed)
        self.taken = max(self.sent, start)
        self._update_uncommitted(measure_distance)

    def prepare_reopening(self) -> None:
        """Prepare to read events again that were read but not sent."""
        self.is_open = False
        self._parking.clear()
        self._enter_state_after(PartitionFact.REOPENED)
        self.skipped.clear()
        self.discard_waiting()
        self.taken = self.sent
        self.window_end = None

    def discard_waiting(self) -> None:
        """Discard the events that wait to be sent."""
        self.runs.clear()
        self.totals.buffered_bytes -= self.size
        self.count = self.size = 0

    def remove_from_totals(self) -> None:
        """Remove the partition's share from the totals, because the session no longer reads it, or starts to read it
        again."""
        self.totals.buffered_bytes -= self.size
        self.totals.uncommitted -= self.uncommitted
        self.totals.unsure_bytes -= self.unsure_size
        self.size = self.uncommitted = self.unsure_size = 0

    # Events

    def receive_run(self, run: EventRun, is_deliverable: IsDeliverable, *, check_each: bool) -> Sequence[EventRun]:
        """Keep the events for this client, and skip the others. Returns the events to park."""
        assert self.is_open, self.state
        following = []
        before = self.size
        for disposition, part in self._parts_of_run(run, is_deliverable, check_each=check_each):
            if disposition is EventDisposition.SEND:
                self.runs = self.runs or deque()
                self.runs.append(part)
                self.count += part.count
                self.size += part.size
            else:
                self._add_skipped(part.end)
                if disposition is EventDisposition.PARK:
                    following.append(part)
            self.taken = part.end
        self.totals.buffered_bytes += self.size - before
        return following

    def take_runs(self, count: int, measure_distance: MeasureDistance) -> tuple[EventRun, ...]:
        """The first `count` events that wait; they count as sent."""
        assert self.state is PartitionState.READING, self.state
        taken, missing, before = [], count, self.size
        while missing:
            run = self.runs.popleft()
            if run.count > missing:
                run, rest = run.split(missing)
                self.runs.appendleft(rest)
            taken.append(run)
            missing -= run.count
            self.size -= run.size
        self.runs = self.runs or _EMPTY_QUEUE
        self.count -= count
        size = before - self.size
        self.totals.buffered_bytes -= size
        self.totals.unsure_bytes += size
        self.unsure_size += size
        self.window_end = None
        self.sent = taken[-1].end
        self._unsure = self._unsure or deque()
        self._unsure.append((self.sent, ConsumedBatch(count, taken[0].stored_at(0)), size))
        self.keep_alives = 0
        self._update_uncommitted(measure_distance)
        return tuple(taken)

    def first_waiting_event(self) -> EventRun:
        """The first event that waits; it keeps waiting."""
        assert self.state is PartitionState.READING, self.state
        return self.runs[0].split(1)[0]

    def events_due_by_timespan(self, seconds: float) -> int:
        """How many waiting events form a batch because of their age: those within the batch's timespan, once a later
        event waits.
        """
        if not seconds or not self.runs:
            return 0
        if self.window_end is None:
            self.window_end = self.runs[0].stored_at(0) + timedelta(seconds=seconds)
        end = self.window_end
        if self.runs[-1].stored_at(-1) < end:
            return 0
        older = sum(run.stored_at(index) < end for run in self.runs for index in range(run.count))
        return max(1, older)

    # Hand-over

    def note_waiting_session(self, release_by: float) -> None:
        """Record that another session waits for the partition. Its waiting time counts from the first such call."""
        if self.release_by is None:
            self.release_by = release_by
        self._enter_state_after(PartitionFact.WANTED)

    def note_no_waiting_session(self) -> None:
        """Record that no other session waits for the partition."""
        self.release_by = None
        self._enter_state_after(PartitionFact.UNWANTED)

    def begin_hand_over(self) -> None:
        self._enter_state_after(PartitionFact.DRAINED)

    def end_hand_over(self, *, still_ours: bool) -> None:
        """Record that the assignment was written; `still_ours` says that an assignment that was read since then shows
        the partition as ours.
        """
        self._enter_state_after(PartitionFact.STILL_OURS if still_ours else PartitionFact.HANDED_OVER)

    # Parking and dropping

    def give_up(self, event: EventRun) -> None:
        """Record that this event is being given up: nothing is sent before it counts as consumed."""
        self.dropping = event.end
        self._enter_state_after(PartitionFact.GIVEN_UP)

    def begin_parking(self, events: Sequence[EventRun]) -> None:
        """Record that these events are being parked: nothing is sent before they are parked."""
        keys = frozenset(key for each in events if (key := each.chunk.records[each.first].key) is not None)
        self._parking = self._parking or deque()
        self._parking.append((events[0].end, keys))
        self._enter_state_after(PartitionFact.PARKING_BEGAN)

    def end_parking(self) -> None:
        """Record the end of the earliest parking in progress: its events are parked."""
        self._parking.popleft()
        self._enter_state_after(PartitionFact.PARKED)

    def set_parked_keys(self, keys: frozenset[str]) -> None:
        """Set the parked keys, without those of the events that are being parked now."""
        self.parked_keys = (
            keys.union(*(being_parked for _, being_parked in self._parking)) if self._parking else keys or _NO_KEYS
        )

    # Commits

    def advance_committed(
        self, stored: Position, measure_distance: MeasureDistance
    ) -> tuple[int, Sequence[ConsumedBatch]]:
        """Record that the offset has moved forward. Return by how many events it has moved, and which batches are now
        consumed.
        """
        before, buffered = self.committed, self.size
        self.stored = stored
        self.committed = max(self.committed, stored)
        self.sent = max(self.sent, self.committed)
        while self.runs and self.runs[0].end <= self.committed:
            self._subtract_run(self.runs.popleft())
        if self.runs and (rest := self.runs[0].part_after(self.committed)) is not self.runs[0]:
            self._subtract_run(self.runs.popleft())
            self.runs.appendleft(rest)
            self.count += rest.count
            self.size += rest.size
        self.totals.buffered_bytes += self.size - buffered
        while self.skipped and self.skipped[0][1] <= self.committed:
            self.skipped.popleft()
        if self.done_ahead:
            self.done_ahead = _ranges_behind(self.done_ahead, self.committed)
        if self.dropping is not None and self.dropping <= self.committed:
            self.dropping = None
            self._enter_state_after(PartitionFact.PASSED)
        consumed = self._update_uncommitted(measure_distance)
        return measure_distance(self.partition, before, self.committed), consumed

    def committable_position(self) -> Position | None:
        """The position up to which everything is committed, skipped or parked, if it is beyond the committed one."""
        if not self.skipped:
            return None
        reached = self.settled_position(short_of=self._parking[0][0] if self._parking else None)
        return reached if reached > self.committed else None

    def settled_position(self, short_of: Position | None = None) -> Position:
        """The position up to which nothing waits for a commit. It stays before `short_of`, which must not be passed."""
        reached = self.committed
        for after, end in self.skipped:
            if after > reached or (short_of is not None and end >= short_of):
                break
            reached = max(reached, end)
        return reached

    # Implementation

    def _enter_state_after(self, fact: PartitionFact) -> None:
        following = following_states(TRANSITIONS, self.state, fact)
        self.state = following[0] if len(following) == 1 else self._state_by_what_is_under_way()
        assert self.state in following, f"{self.state} does not follow from {fact}"

    def _state_by_what_is_under_way(self) -> PartitionState:
        if self.release_by is not None:
            return PartitionState.DRAINING
        if not self.is_open:
            return PartitionState.OPENING
        if self.dropping is not None:
            return PartitionState.DROPPING
        return PartitionState.PARKING if self._parking else PartitionState.READING

    def _parts_of_run(
        self, run: EventRun, is_deliverable: IsDeliverable, *, check_each: bool
    ) -> Iterator[tuple[EventDisposition, EventRun]]:
        if self.done_ahead and run.count and run.position_at(0) <= self.done_ahead[-1].end:
            for is_done, part in run.parts_by_position(self._is_delivered_ahead):
                if is_done:
                    yield EventDisposition.SKIP, part
                else:
                    yield from self._parts_to_do(part, is_deliverable, check_each=check_each)
        else:
            yield from self._parts_to_do(run, is_deliverable, check_each=check_each)

    def _parts_to_do(
        self, run: EventRun, is_deliverable: IsDeliverable, *, check_each: bool
    ) -> Iterator[tuple[EventDisposition, EventRun]]:
        if not run.chunk.plain or check_each or self.parked_keys:
            yield from run.parts_by_kind(partial(self._disposition_of, is_deliverable))
        elif run.count:
            yield EventDisposition.SEND, run

    def _is_delivered_ahead(self, position: Position) -> bool:
        return any(position in each for each in self.done_ahead)

    def _disposition_of(self, is_deliverable: IsDeliverable, record: Record) -> EventDisposition:
        if not is_deliverable(self.partition, record):
            return EventDisposition.SKIP
        return EventDisposition.PARK if record.key in self.parked_keys else EventDisposition.SEND

    def _add_skipped(self, end: Position) -> None:
        after = self.runs[-1].end if self.runs else self.sent
        if self.skipped and self.skipped[-1][0] >= after:
            after, _ = self.skipped.pop()
        self.skipped = self.skipped or deque()
        self.skipped.append((after, end))

    def _subtract_run(self, run: EventRun) -> None:
        self.count -= run.count
        self.size -= run.size

    def oldest_stored_at(self) -> datetime | None:
        """When the oldest event that waits to be sent or committed was stored. Threads other than the one that changes
        the queues may call this, so it first copies each queue in one step.
        """
        unsure, waiting = tuple(self._unsure), tuple(self.runs)
        return unsure[0][1].stored_at if unsure else waiting[0].stored_at(0) if waiting else None

    def _update_uncommitted(self, measure_distance: MeasureDistance) -> Sequence[ConsumedBatch]:
        """Update the number of sent, uncommitted events; returns the batches that are now committed."""
        consumed: Sequence[ConsumedBatch] = ()
        while self._unsure and self._unsure[0][0] <= self.committed:
            _, batch, size = self._unsure.popleft()
            consumed = (*consumed, batch)
            self.unsure_size -= size
            self.totals.unsure_bytes -= size
        self._unsure = self._unsure or _EMPTY_QUEUE
        committed, sent = self.committed, self.sent
        # The distance is needed for every batch, and is almost always within one timeline.
        if committed.timeline == sent.timeline:
            outstanding = sent.offset - committed.offset
        else:
            outstanding = measure_distance(self.partition, committed, sent)
        self.totals.uncommitted += outstanding - self.uncommitted
        self.uncommitted = outstanding
        return consumed


def _ranges_behind(ranges: Sequence[OffsetRange], position: Position) -> Sequence[OffsetRange]:
    return tuple(each for each in ranges if each.end > position)

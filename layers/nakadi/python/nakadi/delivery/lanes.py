"""The deliveries of one stream of a sink: which events go into a batch, and what follows from the answer.

This module never waits, and uses no clock, no store and no network: facts come in as method calls, and each call
returns the actions that follow. A batch goes through its attempts in a lane. The queue of its partition (`queues.py`)
says which events may be in lanes at the same time: the events of one batch, or events of different keys. So the order
of a partition, or of a key, is kept, and a failing lane blocks only the events that have to follow it.

A failed batch is tried again unchanged, under the same id, after growing pauses. If the sink fails repeatedly, the lane
looks for the event that causes it: it sends halves, and continues with the failing half until a single event is left.
The lane keeps that event, and its other events return to the queue. The subscription's policy decides what happens
next: if it limits the number of attempts, no further attempts begin, and the sink's next stream gives up the event;
otherwise the lane keeps trying it. Only answers count against an event: if a sink cannot be reached, or asks the broker
to wait, the lane waits without counting a failure.

A partition has at most one commit in progress, and events delivered meanwhile share the next one. While batches of the
partition go out one after the other, commits are some milliseconds apart, because they cost about as much as the
deliveries. A partition that has nothing to send, or has failed, commits at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from math import inf

from msgspec import Struct

from nakadi.common.states import following_state, following_states
from nakadi.delivery.answers import Answer, Verdict, verdict_of
from nakadi.delivery.lane_states import (
    DELIVERY_TRANSITIONS,
    LANE_TRANSITIONS,
    DeliveryFact,
    DeliveryState,
    LaneFact,
    LaneState,
)
from nakadi.delivery.queues import DeliveryQueue, InOrderQueue, KeyedQueue, Runs, split_runs
from nakadi.model.event_type import Position
from nakadi.model.sink import Parallel
from nakadi.model.subscription import EventTypePartition, OffsetRange
from nakadi.streaming.chunks import EventRun

ATTEMPTS_BEFORE_HALVING = 4

# The pause before the n-th attempt is a random part of the shortest one times 2 to the n, up to the longest.
MIN_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 60.0

COMMIT_WAIT_SECONDS = 0.02
"""How long commits wait, because they cost about as much as deliveries, and more in stores that charge for each."""

MAX_LANES_ALONE = 100
"""How many failing events of a partition may be tried alone while other events continue. A sink that fails at more of
them probably fails at all events.
"""

GONE_REASON = "the sink answered 410"

PickShare = Callable[[], float]
"""Picks a number from 0 up to, not including, 1."""

NewQueue = Callable[[], DeliveryQueue]

QUEUES: dict[Parallel, NewQueue] = {Parallel.PARTITION: InOrderQueue, Parallel.KEY: KeyedQueue}


class DeliveryLimits(Struct, frozen=True, kw_only=True):
    """`max_event_attempts` is how often a single event may fail before the broker gives it up; None means without
    limit.

    `commit_wait_seconds` is how long a commit may wait while other batches follow: if the process is killed in this
    time, uncommitted events are delivered twice.
    """

    batch_limit: int
    max_in_flight: int
    max_event_attempts: int | None
    parallel: Parallel = Parallel.PARTITION
    commit_wait_seconds: float = COMMIT_WAIT_SECONDS


class DeliveryBatch(Struct, frozen=True):
    """Events of a partition in their order; `attempt` counts from 1. The events are adjacent, unless they were chosen
    by their keys: then there may be other events between them.
    """

    partition: EventTypePartition
    runs: tuple[EventRun, ...]
    attempt: int
    by_key: bool = False

    @property
    def first(self) -> Position:
        return self.runs[0].position_at(0)

    @property
    def last(self) -> Position:
        return self.runs[-1].end

    @property
    def count(self) -> int:
        return sum(run.count for run in self.runs)

    def id_for(self, subscription_id: str) -> str:
        """The id of the batch: the same for the same events, regardless of how often and by which process they are
        sent.
        """
        positions: Iterable[Position] = (self.first, self.last)
        if self.by_key:
            positions = (run.position_at(index) for run in self.runs for index in range(run.count))
        names = "/".join((subscription_id, *self.partition_names, *map(str, positions)))
        return f"msg_{hashlib.sha256(names.encode()).hexdigest()[:32]}"

    @property
    def partition_names(self) -> tuple[str, str]:
        return self.partition.event_type, self.partition.partition


class BeginAttempt(Struct, frozen=True):
    """Send a batch, and report its answer with this number."""

    number: int
    batch: DeliveryBatch


class CommitDelivered(Struct, frozen=True):
    """Commit a position and the events that are done ahead of it, and call `end_commit` for the partition, whatever the
    result."""

    partition: EventTypePartition
    position: Position
    done_ahead: tuple[OffsetRange, ...] = ()


DeliveryAction = BeginAttempt | CommitDelivered


class Lane:
    """The attempts of one batch, until it is delivered, or its events go back to the queue."""

    __slots__ = ("batch", "due_at", "failures", "is_alone", "of", "rest", "state", "suspects", "tries")

    def __init__(self, of: PartitionDeliveries, runs: Runs) -> None:
        self.of = of
        self.state = LaneState.READY
        # `batch` has the events that are being sent, or will be sent again unchanged; `rest` has the events to send
        # after them.
        self.batch: DeliveryBatch | None = None
        self.rest: Runs = runs
        self.due_at = inf
        # `tries` is the number of failed attempts since the last delivery; `failures` counts those that events may have
        # caused.
        self.tries = 0
        self.failures = 0
        # How many events, from the next one on, are known to include a failing event.
        self.suspects = 0
        # Whether the lane tries a single event, which has failed by itself.
        self.is_alone = False

    def begin(self) -> DeliveryBatch:
        """Begin the next attempt: a failed batch is sent again unchanged, so that its id means the same events."""
        of, before = self.of, self.batch
        if before is None:
            runs, self.rest = split_runs(self.rest, max(1, self.suspects // 2)) if self.suspects else (self.rest, ())
            self.batch = DeliveryBatch(of.partition, tuple(runs), 1, of.is_keyed)
        else:
            self.batch = DeliveryBatch(of.partition, before.runs, before.attempt + 1, of.is_keyed)
        self._enter_state_after(LaneFact.BEGUN)
        return self.batch

    def end_delivered(self) -> Runs:
        """Record that the batch is delivered, and return its events."""
        batch = self.require_batch()
        self.suspects = max(0, self.suspects - batch.count)
        self.tries = self.failures = 0
        self.batch = None
        self._enter_state_after(LaneFact.DELIVERED)
        return batch.runs

    def end_partly_delivered(self, delivered: int, *, is_blamed: bool, due_at: Callable[[int], float]) -> Runs:
        """Record that the first events are delivered and the next one is not; return the delivered ones.

        If the sink failed at the next event, that event is sent by itself. Failures of earlier attempts no longer
        count.
        """
        batch = self.require_batch()
        head, rest = split_runs(batch.runs, delivered)
        self.rest, self.batch = (*rest, *self.rest), None
        self.suspects, self.tries, self.failures = int(is_blamed), 1, 0
        self.due_at = due_at(self.tries)
        self._enter_state_after(LaneFact.FAILED)
        return head

    def end_failed(self, *, is_blamed: bool, due_at: Callable[[int], float], max_event_attempts: int | None) -> None:
        """Record that the batch was not delivered. `due_at` returns when the next attempt is due after this number of
        tries.
        """
        batch = self.require_batch()
        self.tries += 1
        self.failures += is_blamed
        if is_blamed and batch.count == 1:
            self.is_alone, self.suspects = True, 1
        if is_blamed and batch.count == 1 and self.failures >= (max_event_attempts or inf):
            self._enter_state_after(LaneFact.FOUND)
            return
        if is_blamed and batch.count > 1 and (self.suspects or self.failures >= ATTEMPTS_BEFORE_HALVING):
            self._halve(batch)
        self.due_at = due_at(self.tries)
        self._enter_state_after(LaneFact.FAILED)

    def mark_due(self) -> None:
        self.due_at = inf
        self._enter_state_after(LaneFact.DUE)

    def take_surplus(self) -> Runs:
        """Take the events that need not stay in the lane: those after an event that is tried alone, or all when the
        lane has ended.
        """
        if not self.is_alone and self.state is not LaneState.ENDED:
            return ()
        surplus, self.rest = self.rest, ()
        return surplus

    def require_batch(self) -> DeliveryBatch:
        assert self.batch is not None, self.state
        return self.batch

    def _halve(self, batch: DeliveryBatch) -> None:
        """Send fewer events next time. This counts as a new batch, so the pauses begin again."""
        self.suspects = batch.count
        self.rest, self.batch = (*batch.runs, *self.rest), None
        self.tries = self.failures = 0

    def _enter_state_after(self, fact: LaneFact) -> None:
        following = following_states(LANE_TRANSITIONS, self.state, fact)
        self.state = following[0] if len(following) == 1 or self.suspects else following[-1]


class PartitionDeliveries:
    """The queue of a partition, its lanes, and its events that wait for a commit."""

    def __init__(self, partition: EventTypePartition, limits: DeliveryLimits) -> None:
        self.partition = partition
        self.queue = QUEUES[limits.parallel]()
        self.is_keyed = limits.parallel is Parallel.KEY
        self._commit_wait_seconds = limits.commit_wait_seconds
        self.lanes: set[Lane] = set()
        # Whether the partition waits for its turn to begin a lane.
        self.has_turn = False
        # The time until which the next commit may wait.
        self.commit_due_at = inf
        self.is_committing = False
        self._is_uncommitted = False
        self._last_commit_at = -inf

    def may_begin(self, max_in_flight: int) -> bool:
        """Whether another lane may begin. Lanes with a single failing event block no other lanes, unless there are very
        many of them.
        """
        if not self.queue.may_take:
            return False
        alone = sum(lane.is_alone for lane in self.lanes)
        return alone < MAX_LANES_ALONE and len(self.lanes) - alone < max_in_flight

    def begin_lane(self, batch_limit: int) -> Lane:
        lane = Lane(self, self.queue.take(batch_limit))
        self.lanes.add(lane)
        return lane

    def complete(self, delivered: Runs) -> None:
        """Record that these events are delivered, and need a commit."""
        self.queue.complete(delivered)
        self._is_uncommitted = True
        self.commit_due_at = self._last_commit_at + self._commit_wait_seconds

    def put_back_surplus(self, lane: Lane, delivered: Runs) -> None:
        """After a lane has delivered `delivered`, put back the events that it no longer needs. Unblock the events that
        must follow these, unless they must also follow an event still in the lane."""
        surplus = lane.take_surplus()
        self.queue.give_back(surplus)
        if lane.state is LaneState.ENDED:
            self.lanes.remove(lane)
        kept = (*(() if lane.batch is None else lane.batch.runs), *lane.rest)
        self.queue.release((*delivered, *surplus), but=kept)

    def take_commit(self, now: float, *, at_once: bool) -> CommitDelivered | None:
        """The commit that is due now, if there is one."""
        if not self._is_uncommitted or self.is_committing:
            return None
        if self._has_more_to_send and not at_once and now < self.commit_due_at:
            return None
        self._is_uncommitted = False
        self.commit_due_at, self._last_commit_at, self.is_committing = inf, now, True
        return CommitDelivered(self.partition, self.queue.reached, self.queue.done_ahead())

    def find_failing_event(self) -> Position | None:
        """The event at which a blocked lane stopped, once everything before it is delivered; otherwise None."""
        blocked = (lane.require_batch().last for lane in self.lanes if lane.state is LaneState.BLOCKED)
        return next(filter(self.queue.is_next, blocked), None)

    @property
    def _has_more_to_send(self) -> bool:
        if any(lane.state in (LaneState.READY, LaneState.SENDING) for lane in self.lanes):
            return True
        return self.queue.may_take


class DeliverySession:
    def __init__(self, limits: DeliveryLimits, pick_share: PickShare) -> None:
        self.state = DeliveryState.DELIVERING
        # Why no further attempts begin: `given_up` is the event to give up, `pause_reason` the reason to pause the
        # sink.
        self.given_up: tuple[EventTypePartition, Position] | None = None
        self.pause_reason = ""
        self._limits = limits
        self._pick_share = pick_share
        self._partitions: dict[EventTypePartition, PartitionDeliveries] = {}
        # Those that wait until another attempt may begin: lanes whose next attempt is due, and partitions that may
        # begin a lane.
        self._turns: list[Lane | PartitionDeliveries] = []
        self._sending: dict[int, Lane] = {}
        self._waiting: set[Lane] = set()
        self._numbers = 0
        # No attempt begins before this time, because the sink has asked the broker to wait.
        self._hold_until = -inf

    @property
    def in_flight(self) -> int:
        return len(self._sending)

    # Facts

    def receive(self, partition: EventTypePartition, runs: Runs, now: float) -> Sequence[DeliveryAction]:
        """Take events of a partition, which arrive in order and without gaps."""
        of = self._partitions.get(partition)
        if of is None:
            of = self._partitions[partition] = PartitionDeliveries(partition, self._limits)
        of.queue.receive(runs)
        self._queue_for_turn(of)
        return self._next_attempts(now)

    def handle_answer(self, number: int, answer: Answer, now: float) -> Sequence[DeliveryAction]:
        """Record the end of an attempt. An answer to an attempt that has already ended has no effect."""
        lane = self._sending.pop(number, None)
        if lane is None:
            return ()
        delivered: Runs = ()
        match verdict_of(answer):
            case Verdict.DELIVERED:
                delivered = lane.end_delivered()
            case Verdict.GONE:
                self._fail(lane, answer, now, is_blamed=False)
                self.pause_reason = GONE_REASON
                self._enter_state_after(DeliveryFact.STOPPED)
            case verdict if _is_part(lane, answer, verdict):
                delivered = self._keep_part(lane, answer, now, verdict)
            case verdict:
                self._fail(lane, answer, now, is_blamed=verdict is Verdict.FAILED)
        self._go_on_after_attempt(lane, delivered)
        return [*self._due_commits(lane.of, now), *self._next_attempts(now)]

    def end_commit(self, partition: EventTypePartition, now: float, *, is_committed: bool) -> Sequence[DeliveryAction]:
        """Record the end of a commit. If it failed, the next stream sends the delivered events again, so this stream
        may neither deliver nor give up any event after them: the next stream would mistake another event for the one
        that failed.
        """
        of = self._partitions[partition]
        of.is_committing = False
        if not is_committed:
            self.given_up = None
            self._enter_state_after(DeliveryFact.STOPPED)
        return self._due_commits(of, now)

    def stop(self, now: float) -> Sequence[DeliveryAction]:
        """Begin no further attempts."""
        self._enter_state_after(DeliveryFact.STOPPED)
        return self._due_commits(None, now)

    def tick(self, now: float) -> Sequence[DeliveryAction]:
        """Do what is due at `now`."""
        for lane in [each for each in self._waiting if each.due_at <= now]:
            lane.mark_due()
            self._waiting.remove(lane)
            self._turns.append(lane)
        return [*self._due_commits(None, now), *self._next_attempts(now)]

    def next_tick_at(self) -> float:
        """The time at which `tick` next has something to do, unless another fact comes first."""
        if self.state is not DeliveryState.DELIVERING:
            return inf
        due_at = min((lane.due_at for lane in self._waiting), default=inf)
        if self._turns and self.in_flight < self._limits.max_in_flight:
            due_at = min(due_at, self._hold_until)
        committing = (of.commit_due_at for of in self._partitions.values() if not of.is_committing)
        return min(max(due_at, self._hold_until), min(committing, default=inf))

    # Inside

    def _keep_part(self, lane: Lane, answer: Answer, now: float, verdict: Verdict) -> Runs:
        self._obey_retry_after(answer, now)
        return lane.end_partly_delivered(
            answer.delivered or 0,
            is_blamed=verdict is Verdict.FAILED,
            due_at=lambda tries: now + pause_seconds(tries, self._pick_share()),
        )

    def _obey_retry_after(self, answer: Answer, now: float) -> None:
        if answer.retry_after_seconds is not None:
            self._hold_until = max(self._hold_until, now + answer.retry_after_seconds)

    def _fail(self, lane: Lane, answer: Answer, now: float, *, is_blamed: bool) -> None:
        self._obey_retry_after(answer, now)
        lane.end_failed(
            is_blamed=is_blamed,
            due_at=lambda tries: now + pause_seconds(tries, self._pick_share()),
            max_event_attempts=self._limits.max_event_attempts,
        )

    def _go_on_after_attempt(self, lane: Lane, delivered: Runs) -> None:
        of = lane.of
        if delivered:
            of.complete(delivered)
        of.put_back_surplus(lane, delivered)
        if lane.state is LaneState.WAITING:
            self._waiting.add(lane)
        elif lane.state is LaneState.READY:
            self._turns.append(lane)
        # The partition goes to the end of the queue, so that each partition has its turn.
        self._queue_for_turn(of)
        if self.state is DeliveryState.DELIVERING and (found := of.find_failing_event()) is not None:
            self.given_up = (of.partition, found)
            self._enter_state_after(DeliveryFact.STOPPED)

    def _queue_for_turn(self, of: PartitionDeliveries) -> None:
        if not of.has_turn and of.may_begin(self._limits.max_in_flight):
            of.has_turn = True
            self._turns.append(of)

    def _due_commits(self, of: PartitionDeliveries | None, now: float) -> Sequence[DeliveryAction]:
        """The commits that are due, of this partition, or of all partitions if it is None. While the deliveries settle,
        all are due.
        """
        settles = self.state is not DeliveryState.DELIVERING
        chosen = self._partitions.values() if of is None or settles else (of,)
        actions = [commit for each in chosen if (commit := each.take_commit(now, at_once=settles)) is not None]
        if settles:
            self._settle_if_finished()
        return actions

    def _next_attempts(self, now: float) -> Sequence[DeliveryAction]:
        actions = []
        while (
            self._turns
            and self.state is DeliveryState.DELIVERING
            and self.in_flight < self._limits.max_in_flight
            and now >= self._hold_until
        ):
            turn = self._turns.pop(0)
            lane = turn if isinstance(turn, Lane) else self._begin_lane(turn)
            self._numbers += 1
            self._sending[self._numbers] = lane
            actions.append(BeginAttempt(self._numbers, lane.begin()))
        return actions

    def _begin_lane(self, of: PartitionDeliveries) -> Lane:
        of.has_turn = False
        lane = of.begin_lane(self._limits.batch_limit)
        self._queue_for_turn(of)
        return lane

    def _settle_if_finished(self) -> None:
        """Deliveries are finished only when all delivered events are committed: the next stream begins after them, and
        its first event must be the one to give up.
        """
        is_committing = any(of.is_committing for of in self._partitions.values())
        if self.state is DeliveryState.SETTLING and not self._sending and not is_committing:
            self._enter_state_after(DeliveryFact.FINISHED)

    def _enter_state_after(self, fact: DeliveryFact) -> None:
        self.state = following_state(DELIVERY_TRANSITIONS, self.state, fact)


def _is_part(lane: Lane, answer: Answer, verdict: Verdict) -> bool:
    """Whether the undelivered events count as a new batch: because some events were delivered, or because the first of
    several is to blame.
    """
    if answer.delivered == 0 and verdict is Verdict.FAILED:
        return lane.batch is not None and lane.batch.count > 1
    return bool(answer.delivered)


def pause_seconds(tries: int, share: float) -> float:
    """The pause after this number of failed tries, with full jitter, so that senders that failed together do not return
    together.
    """
    return share * min(MAX_PAUSE_SECONDS, MIN_PAUSE_SECONDS * 2.0 ** min(tries, 16))

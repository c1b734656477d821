"""The deliveries of one stream of a sink: which events go into a batch, and what follows from the answer.

It never waits, and knows no clock, no store and no network: facts come in as method calls, and each returns the actions
that follow. Each partition has a lane, in which at most one batch is under way, so that the order of a partition is
kept. A lane that fails holds up no other.

A batch that failed is tried again as it was, under the same id, after a pause that grows. If the sink fails at it again
and again, the lane looks for the event behind that: it sends halves, of which one fails, until a single event is left.
What becomes of that one is the policy of the subscription: if it names a number of attempts, the deliveries settle, and
the next stream gives the event up; otherwise the lane goes on trying it. Only answers count against an event: a sink
that cannot be reached, or asks for time, is waited for.

A lane has one commit under way at most, and what is delivered meanwhile shares the next one. While batches of the lane
go out one after the other, commits are some milliseconds apart: they cost about as much as the deliveries. A lane that
has nothing to send, or has failed, commits at once.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
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
from nakadi.model.event_type import Position
from nakadi.model.subscription import EventTypePartition
from nakadi.streaming.chunks import EventRun

ATTEMPTS_BEFORE_HALVING = 4

# The pause before the n-th attempt is a random part of the shortest one times 2 to the n, up to the longest.
MIN_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 60.0

# How long a commit may wait while its lane goes on: what a killed process has delivered meanwhile is delivered twice.
MAX_COMMIT_WAIT_SECONDS = 0.005

# About how long a body may be that has more than one event.
MAX_BATCH_BYTES = 1_000_000

GONE_REASON = "the sink answered 410"

PickShare = Callable[[], float]
"""Picks a number from 0 up to, not including, 1."""


class DeliveryLimits(Struct, frozen=True, kw_only=True):
    """`max_event_attempts` is how often a single event may fail before it is given up; None for ever."""

    batch_limit: int
    max_in_flight: int
    max_event_attempts: int | None


class DeliveryBatch(Struct, frozen=True):
    """Consecutive events of a partition; `attempt` counts from 1."""

    partition: EventTypePartition
    runs: tuple[EventRun, ...]
    attempt: int

    @property
    def first(self) -> Position:
        run = self.runs[0]
        return Position(run.chunk.order, run.chunk.offset_at(run.first))

    @property
    def last(self) -> Position:
        return self.runs[-1].end

    @property
    def count(self) -> int:
        return sum(run.count for run in self.runs)

    def id_for(self, subscription_id: str) -> str:
        """The same for the same events, however often and by whichever process they are sent."""
        names = f"{subscription_id}/{self.partition.event_type}/{self.partition.partition}/{self.first}/{self.last}"
        return f"msg_{hashlib.sha256(names.encode()).hexdigest()[:32]}"


class BeginAttempt(Struct, frozen=True):
    """Send a batch, and hand its answer in with this number."""

    number: int
    batch: DeliveryBatch


class CommitDelivered(Struct, frozen=True):
    """Commit a position, and call `end_commit` for its partition, whatever came of it."""

    partition: EventTypePartition
    position: Position


DeliveryAction = BeginAttempt | CommitDelivered


class Lane:
    """What of one partition waits, and what is under way."""

    __slots__ = (
        *("_count", "_last_commit_at", "_runs", "batch", "commit_due_at", "delivered", "due_at", "failures"),
        *("is_committing", "partition", "state", "suspects", "tries"),
    )

    def __init__(self, partition: EventTypePartition) -> None:
        self.partition = partition
        self.state = LaneState.EMPTY
        # What is being sent, or is to be sent again as it is.
        self.batch: DeliveryBatch | None = None
        self.due_at = inf
        # Attempts that failed since the last delivery, and those of them for which events may be to blame.
        self.tries = 0
        self.failures = 0
        # How many of the next events are known to have one among them that the sink fails at.
        self.suspects = 0
        # What waits for the next commit: up to where, and until when at most.
        self.delivered: Position | None = None
        self.commit_due_at = inf
        self.is_committing = False
        self._last_commit_at = -inf
        self._runs: deque[EventRun] = deque()
        self._count = 0

    def receive(self, runs: Sequence[EventRun]) -> None:
        self._runs.extend(runs)
        self._count += sum(run.count for run in runs)
        self._enter_state_after(LaneFact.RECEIVED)

    def begin(self, batch_limit: int) -> DeliveryBatch:
        """The next attempt: a batch that failed is sent again unchanged, so that its id means the same events."""
        if self.batch is None:
            runs = self._take_runs(max(1, self.suspects // 2) if self.suspects else batch_limit)
            self.batch = DeliveryBatch(self.partition, runs, 1)
        else:
            self.batch = DeliveryBatch(self.partition, self.batch.runs, self.batch.attempt + 1)
        self._enter_state_after(LaneFact.BEGUN)
        return self.batch

    def end_delivered(self) -> None:
        """The batch is delivered, and is to be committed."""
        batch = self._require_batch()
        self.delivered = batch.last
        self.commit_due_at = self._last_commit_at + MAX_COMMIT_WAIT_SECONDS
        self.suspects = max(0, self.suspects - batch.count)
        self.tries = self.failures = 0
        self.batch = None
        self._enter_state_after(LaneFact.DELIVERED)

    def take_commit(self, now: float, *, at_once: bool) -> Position | None:
        """The position to commit now, if there is one, and its time has come."""
        if self.delivered is None or self.is_committing:
            return None
        goes_on = self.state in (LaneState.READY, LaneState.SENDING)
        if goes_on and not at_once and now < self.commit_due_at:
            return None
        position, self.delivered = self.delivered, None
        self.commit_due_at, self._last_commit_at, self.is_committing = inf, now, True
        return position

    def end_partly_delivered(self, delivered: int, *, is_blamed: bool, due_at: Callable[[int], float]) -> None:
        """The first events are delivered, and are to be committed; the next one was not.

        If the sink failed at that one, it goes by itself next. What came before does not count as an attempt of it.
        """
        batch = self._require_batch()
        head, rest = _split_runs(batch.runs, delivered)
        self._put_back(rest)
        self.suspects, self.tries, self.failures = int(is_blamed), 1, 0
        self.due_at = due_at(self.tries)
        if head:
            self.delivered = head[-1].end
            self.commit_due_at = self._last_commit_at + MAX_COMMIT_WAIT_SECONDS
        self._enter_state_after(LaneFact.FAILED)

    def end_failed(self, *, is_blamed: bool, due_at: Callable[[int], float], max_event_attempts: int | None) -> None:
        """The batch was not delivered. `due_at` says when the attempt after so many tries has its time."""
        batch = self._require_batch()
        self.tries += 1
        self.failures += is_blamed
        if is_blamed and batch.count == 1 and self.failures >= (max_event_attempts or inf):
            self._enter_state_after(LaneFact.FOUND)
            return
        if is_blamed and batch.count > 1 and (self.suspects or self.failures >= ATTEMPTS_BEFORE_HALVING):
            self._halve(batch)
        self.due_at = due_at(self.tries)
        self._enter_state_after(LaneFact.FAILED)

    def see_that_it_is_due(self) -> None:
        self.due_at = inf
        self._enter_state_after(LaneFact.DUE)

    def _halve(self, batch: DeliveryBatch) -> None:
        """Send fewer events next time. That is no new try of them: the pauses begin again."""
        self.suspects = batch.count
        self._put_back(batch.runs)
        self.tries = self.failures = 0

    def _put_back(self, runs: Sequence[EventRun]) -> None:
        self._runs.extendleft(reversed(runs))
        self._count += sum(run.count for run in runs)
        self.batch = None

    def _take_runs(self, count: int) -> tuple[EventRun, ...]:
        taken: list[EventRun] = []
        missing, size = min(count, self._count), 0
        while missing:
            run = self._runs.popleft()
            wanted = min(run.count, missing, _events_within(run, MAX_BATCH_BYTES - size))
            if not wanted and taken:
                self._runs.appendleft(run)
                break
            if (wanted := max(wanted, 1)) < run.count:
                run, rest = run.split(wanted)
                self._runs.appendleft(rest)
            taken.append(run)
            missing -= run.count
            size += run.size
        self._count -= sum(run.count for run in taken)
        return tuple(taken)

    def _require_batch(self) -> DeliveryBatch:
        assert self.batch is not None, self.state
        return self.batch

    def _enter_state_after(self, fact: LaneFact) -> None:
        following = following_states(LANE_TRANSITIONS, self.state, fact)
        self.state = following[0] if len(following) == 1 else (LaneState.READY if self._count else LaneState.EMPTY)


def _split_runs(runs: Sequence[EventRun], count: int) -> tuple[Sequence[EventRun], Sequence[EventRun]]:
    """The first `count` events, and the rest."""
    head: list[EventRun] = []
    rest = list(runs)
    while rest and rest[0].count <= count:
        head.append(rest.pop(0))
        count -= head[-1].count
    if rest and count:
        first, rest[0] = rest[0].split(count)
        head.append(first)
    return head, rest


def _events_within(run: EventRun, size: int) -> int:
    """How many of the first events of a run have so many bytes together, about."""
    if run.size <= size:
        return run.count
    return max(0, int(run.count * size / run.size))


class DeliverySession:
    def __init__(self, limits: DeliveryLimits, pick_share: PickShare) -> None:
        self.state = DeliveryState.DELIVERING
        # Why it settles: the event that is to be given up, or what the sink is to be paused for.
        self.given_up: tuple[EventTypePartition, Position] | None = None
        self.pause_reason = ""
        self._limits = limits
        self._pick_share = pick_share
        self._lanes: dict[EventTypePartition, Lane] = {}
        self._ready: deque[Lane] = deque()
        self._sending: dict[int, Lane] = {}
        self._numbers = 0
        # The sink has asked for time.
        self._hold_until = -inf

    @property
    def in_flight(self) -> int:
        return len(self._sending)

    # Facts

    def receive(self, partition: EventTypePartition, runs: Sequence[EventRun], now: float) -> Sequence[DeliveryAction]:
        """Events of a partition have come, in order, none left out."""
        lane = self._lanes.get(partition)
        if lane is None:
            lane = self._lanes[partition] = Lane(partition)
        before = lane.state
        lane.receive(runs)
        if before is LaneState.EMPTY:
            self._ready.append(lane)
        return self._next_attempts(now)

    def handle_answer(self, number: int, answer: Answer, now: float) -> Sequence[DeliveryAction]:
        """An attempt has ended. Nothing follows from an answer to one that has ended before."""
        lane = self._sending.pop(number, None)
        if lane is None:
            return ()
        match verdict_of(answer):
            case Verdict.DELIVERED:
                lane.end_delivered()
                if lane.state is LaneState.READY:
                    # Behind the others: each partition has its turn.
                    self._ready.append(lane)
            case Verdict.GONE:
                self._fail(lane, answer, now, is_blamed=False)
                self.pause_reason = GONE_REASON
                self._enter_state_after(DeliveryFact.STOPPED)
            case verdict if _is_part(lane, answer, verdict):
                self._keep_part(lane, answer, now, verdict)
            case verdict:
                self._fail(lane, answer, now, is_blamed=verdict is Verdict.FAILED)
        return [*self._due_commits(lane, now), *self._next_attempts(now)]

    def end_commit(self, partition: EventTypePartition, now: float, *, is_committed: bool) -> Sequence[DeliveryAction]:
        """A commit has ended. If it failed, what was delivered will be sent again by the next stream, so that nothing
        may be delivered behind it, nor given up: the next stream would take another event for the one that failed."""
        lane = self._lanes[partition]
        lane.is_committing = False
        if not is_committed:
            self.given_up = None
            self._enter_state_after(DeliveryFact.STOPPED)
        return self._due_commits(lane, now)

    def stop(self, now: float) -> Sequence[DeliveryAction]:
        """Begin no further attempts."""
        self._enter_state_after(DeliveryFact.STOPPED)
        return self._due_commits(None, now)

    def tick(self, now: float) -> Sequence[DeliveryAction]:
        """Time has passed."""
        for lane in self._lanes.values():
            if lane.due_at <= now:
                lane.see_that_it_is_due()
                self._ready.append(lane)
        return [*self._due_commits(None, now), *self._next_attempts(now)]

    def next_tick_at(self) -> float:
        """When the next tick has something to do, unless a fact comes before."""
        if self.state is not DeliveryState.DELIVERING:
            return inf
        due_at = min((lane.due_at for lane in self._lanes.values()), default=inf)
        if self._ready and self.in_flight < self._limits.max_in_flight:
            due_at = min(due_at, self._hold_until)
        waiting = (lane.commit_due_at for lane in self._lanes.values() if not lane.is_committing)
        return min(max(due_at, self._hold_until), min(waiting, default=inf))

    # Inside

    def _keep_part(self, lane: Lane, answer: Answer, now: float, verdict: Verdict) -> None:
        self._obey_retry_after(answer, now)
        lane.end_partly_delivered(
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
        if lane.state is LaneState.BLOCKED and self.state is DeliveryState.DELIVERING:
            assert lane.batch is not None
            self.given_up = (lane.partition, lane.batch.last)
            self._enter_state_after(DeliveryFact.STOPPED)

    def _due_commits(self, lane: Lane | None, now: float) -> Sequence[DeliveryAction]:
        """The commits of a lane whose time has come; of all lanes for None, and always while the deliveries settle."""
        settles = self.state is not DeliveryState.DELIVERING
        actions = []
        for each in self._lanes.values() if lane is None or settles else (lane,):
            position = each.take_commit(now, at_once=settles)
            if position is not None:
                actions.append(CommitDelivered(each.partition, position))
        if settles:
            self._settle_if_finished()
        return actions

    def _next_attempts(self, now: float) -> Sequence[DeliveryAction]:
        actions = []
        while (
            self._ready
            and self.state is DeliveryState.DELIVERING
            and self.in_flight < self._limits.max_in_flight
            and now >= self._hold_until
        ):
            lane = self._ready.popleft()
            self._numbers += 1
            self._sending[self._numbers] = lane
            actions.append(BeginAttempt(self._numbers, lane.begin(self._limits.batch_limit)))
        return actions

    def _settle_if_finished(self) -> None:
        """Only once everything that is delivered is committed: the next stream begins there, and takes its first event
        for the one that is given up."""
        is_committing = any(lane.is_committing for lane in self._lanes.values())
        if self.state is DeliveryState.SETTLING and not self._sending and not is_committing:
            self._enter_state_after(DeliveryFact.FINISHED)

    def _enter_state_after(self, fact: DeliveryFact) -> None:
        self.state = following_state(DELIVERY_TRANSITIONS, self.state, fact)


def _is_part(lane: Lane, answer: Answer, verdict: Verdict) -> bool:
    """Whether the rest of the batch is another batch: something was delivered, or its first event is to blame."""
    if answer.delivered == 0 and verdict is Verdict.FAILED:
        return lane.batch is not None and lane.batch.count > 1
    return bool(answer.delivered)


def pause_seconds(tries: int, share: float) -> float:
    """The pause after so many failed tries: full jitter, so that senders who failed together do not return together."""
    return share * min(MAX_PAUSE_SECONDS, MIN_PAUSE_SECONDS * 2.0 ** min(tries, 16))

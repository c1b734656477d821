"""A simulation in which consumers fail: one partition, sessions that begin and end, and an operator who skips and
redrives parked events. A seed determines everything: when calls are carried out and whether their answers get lost,
when sessions see changes and when they crash, which events cannot be processed and until when, and which are skipped or
redriven.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from nakadi.common.waiting import run_blocking
from nakadi.engines.memory.coordination import MemoryCoordination
from nakadi.model.event_type import Position
from nakadi.model.events import Record
from nakadi.model.subscription import Assignment, CommitResult, ParkedEventInfo, PartitionAssignment, Redrive
from nakadi.streaming.chunks import EventRun
from nakadi.subscriptions.api.fields import RetryPolicy, UnprocessablePolicy
from nakadi.subscriptions.api.lease_watch import LeaseWatch
from nakadi.subscriptions.api.offsets import ResetExecution, ResetRequests
from nakadi.subscriptions.api.parked_events import ParkedEventStore, RedrivePlanner
from nakadi.subscriptions.stream.actions import (
    ClosePartition,
    OpenPartition,
    ProcessLease,
    SendBatch,
    SendKeepAlive,
    SessionAction,
    SessionContext,
    SharedState,
    SubscriptionStreamLimits,
)
from nakadi.subscriptions.stream.admission import PartitionStart
from nakadi.subscriptions.stream.calls import SessionCallExecutor
from nakadi.subscriptions.stream.members import SubscriptionSessions
from nakadi.subscriptions.stream.parking import ParkingService, empty_run_ending_at, event_runs
from nakadi.subscriptions.stream.session import SubscriptionSession
from tests.support.builders import an_event_type
from tests.support.chunks import ReadingRules, a_chunk
from tests.support.clock import HandMovedClock
from tests.support.coordination import a_place, a_session

SUBSCRIPTION = "a subscription"
PLACE = a_place()
POLICY = RetryPolicy(UnprocessablePolicy.PARK_KEY, 2)


class SimulationFailed(AssertionError):
    """Raised when an event is processed before an earlier one of its key, or is lost."""


@dataclass
class Consumer:
    """A session with its client and the executor of its calls."""

    session: SubscriptionSession
    executor: SessionCallExecutor
    calls: deque[SessionAction] = field(default_factory=deque)
    facts: deque = field(default_factory=deque)
    batches: deque[SendBatch] = field(default_factory=deque)
    source: Iterator[EventRun] | None = None
    stuck: bool = False


class ParkingSimulation:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.clock = HandMovedClock()
        self.coordination = MemoryCoordination()
        self.fulfilment = ResetExecution(
            coordination=self.coordination,
            leases=LeaseWatch(self.coordination, self.clock),
            clock=self.clock,
            plan_replays=RedrivePlanner(coordination=self.coordination, event_types=self).plan_replays,
        )
        self.members = SubscriptionSessions(self.coordination, SUBSCRIPTION, self.clock, self.fulfilment.try_to_execute)
        self.store = ParkedEventStore(self.coordination, SUBSCRIPTION)
        self.keys = [self.chance.choice(["a", "b", "c", None]) for _ in range(self.chance.randint(5, 40))]
        self.published = self.chance.randint(1, len(self.keys))
        self.poison = {n for n in range(len(self.keys)) if self.chance.random() < 0.15}
        self.done: set[int] = set()
        self.skipped: set[int] = set()
        self.consumer: Consumer | None = None
        self.sessions = 0
        new = Assignment(initialised=True, entries=(PartitionAssignment(PLACE),))
        self.coordination.replace_assignment(
            SUBSCRIPTION, Assignment(), new, self.clock.now(), {PLACE: Position(1, -1)}
        )

    # Steps

    def run(self) -> None:
        for _ in range(600):
            self.step()
        self.published = len(self.keys)
        self.poison.clear()
        for _ in range(20):
            # A slow session may still fail at an event, which parks it again, so redrive repeatedly.
            self.end()
            self.redrive()
            for _ in range(500):
                self.go_on(faults=False)
                if len(self.done | self.skipped) == len(self.keys) and not any(self.store.events()):
                    return
        raise SimulationFailed(f"not processed: {set(range(len(self.keys))) - self.done - self.skipped}")

    def step(self) -> None:
        dice = self.chance.random()
        if dice < 0.02:
            self.published = min(len(self.keys), self.published + self.chance.randint(1, 5))
        elif dice < 0.025:
            self.crash()
        elif dice < 0.04:
            self.look_after_the_lot()
        elif dice < 0.045 and self.poison:
            self.poison.discard(self.chance.choice(sorted(self.poison)))
        else:
            self.go_on(faults=True)

    def go_on(self, *, faults: bool) -> None:
        if self.consumer is None:
            self.begin()
        consumer = self.consumer
        assert consumer is not None
        moves = [self.look, self.call, self.hear, self.feed, self.consume]
        move = self.chance.choice([self.wait] if consumer.stuck else [*moves, *moves, self.wait])
        if move == self.call:
            self.call(consumer, faults=faults)
        else:
            move(consumer)
        if consumer.session.end:
            self.leave()

    def begin(self) -> None:
        self.sessions += 1
        stored = a_session(f"session {self.sessions}", started_at=self.clock.now())
        self.members.join(stored)
        limits = SubscriptionStreamLimits(
            batch_limit=self.chance.randint(1, 3),
            max_uncommitted_events=self.chance.randint(1, 6),
            commit_seconds=5,
            stream_seconds=4200,
        )
        context = SessionContext(
            measure_distance=lambda _, first, last: last.offset - first.offset,
            is_deliverable=lambda _, record: record.value is not None,
            lease=ProcessLease("", 1e12),
            reading_rules=ReadingRules(),
        )
        session = SubscriptionSession(stored.id, limits, self.clock.monotonic(), context, POLICY)
        parking = ParkingService(self.store, self.clock, parks_keys=True)
        self.consumer = Consumer(
            session, SessionCallExecutor(self.members, session, self.beginning, self.handle, parking)
        )

    def end(self) -> None:
        if self.consumer is not None:
            self.consumer.session.handle_shutdown()
            self.leave()

    def leave(self) -> None:
        assert self.consumer is not None
        self.members.leave(self.consumer.session.id, self.consumer.session.departure_record())
        self.consumer = None

    def crash(self) -> None:
        """End the session without finishing its calls; others notice later."""
        if self.consumer is not None:
            self.members.remove({self.consumer.session.id})
            self.consumer = None

    # Steps of a consumer

    def look(self, consumer: Consumer) -> None:
        shared = SharedState(self.members.assignment(), self.coordination.committed_offsets(SUBSCRIPTION))
        self.take(consumer, consumer.session.handle_state(shared, self.clock.monotonic()))

    def call(self, consumer: Consumer, *, faults: bool) -> None:
        if not consumer.calls:
            return
        call = consumer.calls[0]
        for _ in range(2 if faults and self.chance.random() < 0.2 else 1):
            # If the answer gets lost, the call is repeated.
            fact = (
                self.begin_reading(consumer, call)
                if isinstance(call, OpenPartition)
                else consumer.executor.perform(call)
            )
        consumer.calls.popleft()
        consumer.facts.append(fact)

    def hear(self, consumer: Consumer) -> None:
        if consumer.facts:
            self.take(consumer, consumer.facts.popleft()(self.clock.monotonic()))

    def feed(self, consumer: Consumer) -> None:
        if consumer.source is not None and consumer.session.wants_events(PLACE):
            run = next(consumer.source, None)
            if run is not None:
                self.take(consumer, consumer.session.handle_events(PLACE, run, self.clock.monotonic()))

    def wait(self, consumer: Consumer) -> None:
        self.clock.move(6.0 if consumer.stuck else self.chance.choice([0.1, 1.0, 3.0]))
        self.take(consumer, consumer.session.tick(self.clock.monotonic()))

    def consume(self, consumer: Consumer) -> None:
        """Process a batch and commit it. If it has an event that cannot be processed, the consumer stops there."""
        if not consumer.batches or consumer.stuck:
            return
        batch = consumer.batches.popleft()
        events = [run.chunk.events[index].offset for run in batch.runs for index in range(run.first, run.last)]
        if self.poison.intersection(events):
            consumer.stuck = True
            return
        self.check_order(events)
        commit = {PLACE: batch.position}
        found = run_blocking(self.coordination.commit(SUBSCRIPTION, consumer.session.id, commit, self.clock.now()))
        if found[PLACE] is not CommitResult.NOT_OWNED:
            self.done |= set(events)

    def take(self, consumer: Consumer, actions: list[SessionAction]) -> None:
        for action in actions:
            match action:
                case SendBatch():
                    consumer.batches.append(action)
                case SendKeepAlive():
                    pass
                case ClosePartition():
                    consumer.source = None
                case _:
                    if isinstance(action, OpenPartition):
                        consumer.source = None
                    consumer.calls.append(action)

    # What the session reads

    def begin_reading(self, consumer: Consumer, opening: OpenPartition):
        beginning = consumer.executor.find_start(opening)

        def begin_reading(now: float) -> list[SessionAction]:
            if not consumer.session.expects_opening(opening):
                return []
            consumer.source = self.events(beginning)
            return consumer.session.handle_opening(
                opening, beginning.position, beginning.lost_events, now, beginning.parked_keys
            )

        return begin_reading

    def beginning(self, _place, stored: Position) -> PartitionStart:
        return PartitionStart(an_event_type(), stored)

    def events(self, beginning: PartitionStart) -> Iterator[EventRun]:
        """Yield the parked events to replay, and then the events of the log, a few at a time."""
        offset, again = beginning.position.offset, beginning.planned_replay
        if again is not None:
            for each in again.events:
                value = self.coordination.parked_event_value(SUBSCRIPTION, each.partition, each.position)
                yield from event_runs([(each, value)] if value is not None else [])
            if (again.events[-1].position if again.events else beginning.position) < again.last_position:
                yield empty_run_ending_at(again.last_position)
            offset = again.resume_position.offset
        while True:
            count = min(self.chance.randint(1, 4), self.published - offset - 1)
            if count <= 0:
                yield from self._nothing_yet()
                continue
            records = [Record(b"%d" % n, self.keys[n]) for n in range(offset + 1, offset + 1 + count)]
            yield a_chunk(*records, start=offset + 1).run_from_offset(offset + 1)
            offset += count

    def _nothing_yet(self) -> Iterator[EventRun]:
        yield a_chunk(start=self.published).run_from_offset(self.published)

    def handle(self, _drop) -> None:
        raise SimulationFailed("an event was dropped")

    # Steps of the operator

    def look_after_the_lot(self) -> None:
        waiting = list(self.store.events())
        if not waiting:
            return
        chosen = self.chance.choice(waiting)
        dice = self.chance.random()
        if dice < 0.3:
            self.skip(chosen)
        elif self.consumer is None or self.chance.random() < 0.8:
            self.end()
            self.redrive(None if dice > 0.8 else (chosen.partition, chosen.key))

    def skip(self, parked: ParkedEventInfo) -> None:
        self.coordination.remove_parked_events(SUBSCRIPTION, parked.partition, [parked.position])
        self.skipped.add(parked.position.offset)
        old = self.members.assignment()
        self.coordination.replace_assignment(SUBSCRIPTION, old, replace(old), self.clock.now())

    def redrive(self, of=None) -> None:
        if any(of in (None, (each.partition, each.key)) for each in self.store.events()):
            ResetRequests(execution=self.fulfilment, max_commit_timeout=5).request_and_wait(SUBSCRIPTION, Redrive(of))

    def get(self, _name: str):
        return an_event_type()

    # Invariants

    def check_order(self, events: list[int]) -> None:
        """Fail if an event is processed before all earlier ones of its key were processed or skipped."""
        processed = set(self.done)
        for event in events:
            key = self.keys[event]
            earlier = {n for n in range(event) if key is not None and self.keys[n] == key}
            if earlier - processed - self.skipped:
                raise SimulationFailed(
                    f"{event} of {key} is processed before {sorted(earlier - processed - self.skipped)}"
                )
            processed.add(event)

"""Simulates deliveries to a sink: random events, a sink that fails in every way, and checks of what must always hold.
The simulation plays the stream, the network, the sink, the store and the clock of a `DeliverySession`. One seed
determines everything.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from nakadi.delivery.answers import Answer, Verdict
from nakadi.delivery.lane_states import DeliveryState
from nakadi.delivery.lanes import (
    BeginAttempt,
    CommitDelivered,
    DeliveryAction,
    DeliveryBatch,
    DeliveryLimits,
    DeliverySession,
)
from nakadi.model.events import Record
from nakadi.model.sink import Parallel
from nakadi.model.subscription import EventTypePartition
from nakadi.streaming.chunks import EventRun
from tests.support.chunks import a_chunk, values

MAX_STEPS = 20_000

Event = tuple[EventTypePartition, int]
"""An event's partition and offset."""


@dataclass
class Attempt:
    number: int
    batch: DeliveryBatch
    answer: Answer


@dataclass
class SinkSimulation:
    seed: int
    partition_count: int = 3
    event_count: int = 40
    has_policy: bool = True
    now: float = 0.0
    parallel: Parallel = Parallel.PARTITION
    received: dict[EventTypePartition, list[int]] = field(default_factory=lambda: defaultdict(list))
    accepted: set[Event] = field(default_factory=set)
    committed: dict[EventTypePartition, int] = field(default_factory=lambda: defaultdict(lambda: -1))
    ahead: dict[EventTypePartition, set[int]] = field(default_factory=lambda: defaultdict(set))
    taken: dict[EventTypePartition, int] = field(default_factory=lambda: defaultdict(lambda: -1))
    parked: set[Event] = field(default_factory=set)
    bodies_by_id: dict[str, tuple[bytes, ...]] = field(default_factory=dict)
    in_flight: list[Attempt] = field(default_factory=list)
    commits: list[CommitDelivered] = field(default_factory=list)
    # The events that the session knows to be delivered, and whether a commit failed.
    known_delivered: set[Event] = field(default_factory=set)
    has_lost_commit: bool = False
    streams: int = 0
    kills: int = 0
    most_in_flight: int = 0
    # How long the sink is unreachable, from the first attempt on; and the times of all attempts.
    outage_seconds: float = 0.0
    down_until: float = -1.0
    called_at: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        rng = self.rng
        self.partitions = [EventTypePartition("a", str(number)) for number in range(self.partition_count)]
        poison = rng.choice((0, 1, 3)) if self.has_policy else 0
        self.poison = {(rng.choice(self.partitions), rng.randrange(self.event_count)) for _ in range(poison)}
        self.limits = DeliveryLimits(
            batch_limit=rng.choice((1, 2, 7, 100)),
            max_in_flight=rng.choice((1, 2, 5)),
            max_event_attempts=rng.choice((2, 3)) if self.has_policy else None,
            parallel=self.parallel,
        )
        names = (None, "k", "l", "m", "n", "o")
        self.keys = {
            (each, offset): rng.choice(names) for each in self.partitions for offset in range(self.event_count)
        }
        # With a policy, random failures would make the broker give up a good event, so the sink fails only at poison
        # events.
        self.fault_rate = 0.0 if self.has_policy else 0.3
        self.says_what_failed = rng.random() < 0.5
        self.begin_stream()

    def begin_stream(self) -> None:
        """Begin a stream after the committed events. It does not send parked ones."""
        self.streams += 1
        self.session = DeliverySession(self.limits, self.rng.random)
        self.in_flight.clear()
        self.commits.clear()
        for each in self.partitions:
            # The stream itself commits events that need no delivery.
            while self.is_consumed((each, self.committed[each] + 1)):
                self.committed[each] += 1
        self.taken = defaultdict(lambda: -1, self.committed)
        self.known_delivered = set()
        self.has_lost_commit = False

    def is_consumed(self, event: Event) -> bool:
        partition, offset = event
        return offset <= self.committed[partition] or offset in self.ahead[partition] or event in self.parked

    def follows(self, event: Event) -> list[Event]:
        """The events that have to be delivered before this one."""
        partition, offset = event
        earlier = [(partition, each) for each in range(offset)]
        if self.parallel is Parallel.PARTITION:
            return earlier
        return [each for each in earlier if self.keys[each] == self.keys[event]]

    def run(self) -> None:
        for _ in range(MAX_STEPS):
            if self.is_done():
                return
            self.step()
        raise AssertionError(f"seed {self.seed}: no end: {dict(self.committed)}")

    def is_done(self) -> bool:
        return all(self.is_consumed((each, offset)) for each in self.partitions for offset in range(self.event_count))

    def step(self) -> None:
        """Do one thing that can happen, chosen at random."""
        choices = [self.feed, self.feed, self.pass_time]
        if self.in_flight:
            choices += [self.answer] * 3
        if self.commits:
            choices += [self.end_commit] * 2
        self.rng.choice(choices)()
        if self.rng.random() < 0.01:
            self.end_process()
        if self.session.state is DeliveryState.SETTLED:
            self.end_stream()

    def end_process(self) -> None:
        """Kill the process, so another continues after the last commits, or let it shut down cleanly, so it settles
        first.
        """
        if self.rng.random() < 0.5:
            self.kills += 1
            for each in self.commits:
                # The commit under way may have succeeded, but nobody learns that.
                if self.rng.random() < 0.5:
                    self.commit(each)
            self.begin_stream()
        else:
            self.carry_out(self.session.stop(self.now))

    def feed(self) -> None:
        partition = self.rng.choice(self.partitions)
        start = self.taken[partition] + 1
        end = min(start + self.rng.choice((1, 1, 3, 20)), self.event_count)
        if end == start:
            return
        self.taken[partition] = end - 1
        wanted = [each for each in range(start, end) if not self.is_consumed((partition, each))]
        runs = [self.a_run(partition, list(group)) for group in consecutive_groups(wanted)]
        self.carry_out(self.session.receive(partition, runs, self.now))

    def a_run(self, partition: EventTypePartition, offsets: list[int]) -> EventRun:
        records = [Record(str(each).encode(), self.keys[partition, each]) for each in offsets]
        return a_chunk(*records, start=offsets[0]).run_from_offset(offsets[0])

    def pass_time(self) -> None:
        longest = 60 if self.outage_seconds else 5000
        self.now = max(self.now, min(self.session.next_tick_at(), self.now + longest))
        self.carry_out(self.session.tick(self.now))

    def answer(self) -> None:
        attempt = self.in_flight.pop(self.rng.randrange(len(self.in_flight)))
        delivered = attempt.batch.count if attempt.answer.status in (200, 204) else attempt.answer.delivered
        if delivered:
            self.known_delivered.update(events_of(attempt.batch)[:delivered])
        self.carry_out(self.session.handle_answer(attempt.number, attempt.answer, self.now))
        if self.rng.random() < 0.2:
            # A second answer comes after the attempt has ended.
            self.carry_out(self.session.handle_answer(attempt.number, Answer(200), self.now))

    def end_commit(self) -> None:
        commit = self.commits.pop(self.rng.randrange(len(self.commits)))
        is_committed = self.rng.random() > 0.02
        if is_committed:
            self.commit(commit)
        self.has_lost_commit |= not is_committed
        self.carry_out(self.session.end_commit(commit.partition, self.now, is_committed=is_committed))

    def commit(self, commit: CommitDelivered) -> None:
        partition, offset = commit.partition, commit.position.offset
        ahead = {each for found in commit.done_ahead for each in range(found.first, found.last + 1)}
        for each in (*range(offset + 1), *ahead):
            event = partition, each
            assert event in self.accepted | self.parked, f"seed {self.seed}: committed before it was accepted"
        self.committed[partition] = max(self.committed[partition], offset)
        self.ahead[partition] |= ahead
        while (partition, self.committed[partition] + 1) in self.parked:
            self.committed[partition] += 1

    def end_stream(self) -> None:
        """Begin the next stream. If the session has given up an event, that must be the next one in its partition, and
        it is parked first.
        """
        if not self.has_lost_commit:
            missing = [each for each in self.known_delivered if not self.is_consumed(each)]
            assert not missing, f"seed {self.seed}: settled before all was committed"
        if self.session.given_up is not None:
            partition, position = self.session.given_up
            event = partition, position.offset
            assert event in self.poison, f"seed {self.seed}: a good event was given up"
            before = all(self.is_consumed((partition, each)) for each in range(position.offset))
            assert before, f"seed {self.seed}: another would be given up"
            assert not self.is_consumed(event), f"seed {self.seed}: it was consumed"
            self.parked.add(event)
        self.begin_stream()

    def carry_out(self, actions: Iterable[DeliveryAction]) -> None:
        for action in actions:
            if isinstance(action, CommitDelivered):
                self.commits.append(action)
            elif isinstance(action, BeginAttempt):
                self.begin_attempt(action)

    def begin_attempt(self, action: BeginAttempt) -> None:
        batch = action.batch
        assert self.session.state is DeliveryState.DELIVERING, f"seed {self.seed}: an attempt after the end"
        under_way = {self.order_of(event) for each in self.in_flight for event in events_of(each.batch)}
        assert under_way.isdisjoint(map(self.order_of, events_of(batch))), f"seed {self.seed}: two at once"
        assert batch.count <= self.limits.batch_limit, f"seed {self.seed}: too many events"
        self.in_flight.append(Attempt(action.number, batch, self.attempt_at_sink(batch)))
        assert len(self.in_flight) <= self.limits.max_in_flight, f"seed {self.seed}: too many at once"
        self.most_in_flight = max(self.most_in_flight, len(self.in_flight))
        # The same id always means the same events, so a receiver can leave out what it already has.
        sent = tuple(values(batch.runs))
        assert self.bodies_by_id.setdefault(batch.id_for("s"), sent) == sent, f"seed {self.seed}: another body"

    def order_of(self, event: Event) -> tuple[EventTypePartition, str | None]:
        """Events with the same result must be delivered one after the other."""
        return event[0], self.keys[event] if self.parallel is Parallel.KEY else None

    def attempt_at_sink(self, batch: DeliveryBatch) -> Answer:
        rng, partition = self.rng, batch.partition
        if not self.called_at:
            self.down_until = self.now + self.outage_seconds
        self.called_at.append(self.now)
        if self.now < self.down_until:
            return Answer(None, "connection refused", was_sent=False)
        offsets = [int(value) for value in values(batch.runs)]
        if rng.random() < 0.1:
            return rng.choice((Answer(503, "", rng.choice((None, 7.0))), Answer(429), Answer(None, was_sent=False)))
        if rng.random() < self.fault_rate:
            # The answer is lost, is cut off after its status, or comes from another server.
            lost, refused = rng.choice(
                ((True, Answer(None)), (True, Answer(502, "<htm")), (False, Answer(302)), (False, Answer(404)))
            )
            if lost:
                self.accept(partition, offsets)
            return refused
        failing = [index for index, offset in enumerate(offsets) if (partition, offset) in self.poison]
        if self.says_what_failed and (failing or rng.random() < 0.2):
            # Without a failing event, the sink asks for the remaining events later.
            taken = failing[0] if failing else rng.randrange(len(offsets))
            self.accept(partition, offsets[:taken])
            verdict = Verdict.FAILED if failing else Verdict.LATER
            return Answer(None, "not all of it", verdict=verdict, delivered=taken)
        if failing:
            return Answer(422, "cannot read it")
        self.accept(partition, offsets)
        return Answer(rng.choice((200, 204)))

    def accept(self, partition: EventTypePartition, offsets: list[int]) -> None:
        """Note the accepted events. They may come again, but not after their commit, and never before their
        predecessors.
        """
        for offset in offsets:
            event = partition, offset
            assert not self.is_consumed(event), f"seed {self.seed}: {offset} came again after its commit"
            missing = set(self.follows(event)) - self.accepted - self.parked
            assert not missing, f"seed {self.seed}: {offset} came out of order"
            self.accepted.add(event)
        self.received[partition] += offsets


def events_of(batch: DeliveryBatch) -> list[Event]:
    return [(batch.partition, int(value)) for value in values(batch.runs)]


def consecutive_groups(offsets: Iterable[int]) -> list[list[int]]:
    """Divide the offsets into groups of consecutive ones."""
    groups: list[list[int]] = []
    for each in offsets:
        if groups and groups[-1][-1] + 1 == each:
            groups[-1].append(each)
        else:
            groups.append([each])
    return groups

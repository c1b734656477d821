"""Some sinks of a process are down for an hour of simulated time, and others are not."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count
from math import inf

from nakadi.delivery.answers import Answer
from nakadi.delivery.courier import events_at_hand
from nakadi.delivery.lanes import BeginAttempt, CommitDelivered, DeliveryLimits, DeliverySession
from nakadi.model.sink import Parallel
from nakadi.model.subscription import EventTypePartition
from tests.support.chunks import some_events

PARTITION = EventTypePartition("a", "0")
BATCH_LIMIT = 100
SECONDS_BETWEEN_EVENTS = 4.0

DOWN_FROM, DOWN_UNTIL, END = 600.0, 4200.0, 4800.0

# How long an attempt and a commit occupy the event loop, which does one thing at a time, and how long a sink takes to
# answer.
ATTEMPT_SECONDS, COMMIT_SECONDS, SINK_SECONDS = 0.001, 0.0005, 0.02


class SimulatedLoop:
    def __init__(self) -> None:
        self.now = 0.0
        self._free_at = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def call_at(self, moment: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._due, (moment, next(self._numbers), do))

    def work(self, seconds: float, do: Callable[[], None]) -> None:
        """Call `do` once the loop has spent this much time on it."""
        self._free_at = max(self.now, self._free_at) + seconds
        self.call_at(self._free_at, do)

    def run(self, until: float) -> None:
        while self._due and self._due[0][0] <= until:
            self.now, _, do = heapq.heappop(self._due)
            do()


class SimulatedSink:
    """A sink for which an event is published every few seconds. Its stream hands over a limited number of uncommitted
    events.
    """

    def __init__(self, loop: SimulatedLoop, rng: random.Random, *, is_affected: bool) -> None:
        self.loop = loop
        self.is_affected = is_affected
        self.session = DeliverySession(
            DeliveryLimits(batch_limit=BATCH_LIMIT, max_in_flight=1, max_event_attempts=None), rng.random
        )
        self.published_at: list[float] = []
        self.handed_over = 0
        self.committed = -1
        self.waited: list[float] = []
        self.called_at: list[float] = []
        self.accepted_at: list[float] = []
        self._timer = inf
        loop.call_at(rng.random() * SECONDS_BETWEEN_EVENTS, self.publish)

    def publish(self) -> None:
        now = self.loop.now
        self.published_at.append(now)
        self.loop.call_at(now + SECONDS_BETWEEN_EVENTS, self.publish)
        self.hand_over()

    def hand_over(self) -> None:
        room = self.committed + 1 + events_at_hand(BATCH_LIMIT, Parallel.PARTITION) - self.handed_over
        number = min(room, len(self.published_at) - self.handed_over)
        if number > 0:
            run = some_events(number, start=self.handed_over)
            self.handed_over += number
            self.carry_out(self.session.receive(PARTITION, [run], self.loop.now))

    def carry_out(self, actions) -> None:
        for each in actions:
            if isinstance(each, BeginAttempt):
                self.loop.work(ATTEMPT_SECONDS, partial(self.attempt, each))
            else:
                self.loop.work(COMMIT_SECONDS, partial(self.commit, each))
        due_at = self.session.next_tick_at()
        if due_at < self._timer:
            self._timer = due_at
            self.loop.call_at(due_at, self.tick)

    def tick(self) -> None:
        self._timer = inf
        self.carry_out(self.session.tick(self.loop.now))

    def attempt(self, begun: BeginAttempt) -> None:
        now, batch = self.loop.now, begun.batch
        self.called_at.append(now)
        if self.is_affected and DOWN_FROM <= now < DOWN_UNTIL:
            self.answer(begun.number, Answer(None, "connection refused", was_sent=False))
            return
        offsets = range(batch.first.offset, batch.last.offset + 1)
        assert offsets[0] == len(self.accepted_at), "the next event, and no other"
        self.accepted_at += [now] * len(offsets)
        self.waited += [now - self.published_at[each] for each in offsets]
        self.loop.call_at(now + SINK_SECONDS, partial(self.answer, begun.number, Answer(204)))

    def answer(self, number: int, answer: Answer) -> None:
        self.carry_out(self.session.handle_answer(number, answer, self.loop.now))

    def commit(self, commit: CommitDelivered) -> None:
        self.committed = commit.position.offset
        self.carry_out(self.session.end_commit(PARTITION, self.loop.now, is_committed=True))
        self.hand_over()


def run_sinks(*, affected: int, healthy: int = 8) -> list[SimulatedSink]:
    loop, rng = SimulatedLoop(), random.Random(1)
    sinks = [SimulatedSink(loop, rng, is_affected=False) for _ in range(healthy)]
    sinks += [SimulatedSink(loop, rng, is_affected=True) for _ in range(affected)]
    loop.run(END)
    return sinks


def p99_of_waits(sinks: list[SimulatedSink]) -> float:
    waited = sorted(each for sink in sinks for each in sink.waited)
    return waited[len(waited) * 99 // 100]


def test_an_hour_without_some_sinks_costs_the_others_nothing():
    """Each sink that is down is called about twice a minute. When these sinks are back, they soon get everything in
    order: not all of them at once, and not more than one delivery each at a time. (X11, X13, X15)"""
    alone = run_sinks(affected=0)
    sinks = run_sinks(affected=20)
    others, affected = sinks[:8], sinks[8:]

    assert p99_of_waits(others) <= 1.1 * p99_of_waits(alone)
    calls = [sum(DOWN_FROM <= at < DOWN_UNTIL for at in each.called_at) for each in affected]
    assert max(calls) <= 2.5 * (DOWN_UNTIL - DOWN_FROM) / 60

    for each in affected:
        assert len(each.published_at) - len(each.accepted_at) <= 1, "the last one may be under way"
    backs = [next(at for at in each.accepted_at if at >= DOWN_UNTIL) for each in affected]
    assert max(backs) <= DOWN_UNTIL + 61
    busiest = max(Counter(int(at) for at in backs).values())
    assert busiest <= len(affected) / 4

    backlog = int((DOWN_UNTIL - DOWN_FROM) / SECONDS_BETWEEN_EVENTS)
    took = [
        each.accepted_at[round(DOWN_FROM / 4) + backlog - 1] - back for each, back in zip(affected, backs, strict=True)
    ]
    floor = (backlog / BATCH_LIMIT - 1) * (SINK_SECONDS + ATTEMPT_SECONDS)
    assert max(took) <= 2 * floor
    print(
        f"p99 of the others {p99_of_waits(others):.4f} s, without an outage {p99_of_waits(alone):.4f} s; "
        f"{max(calls)} calls in the hour; "
        f"back after {min(backs) - DOWN_UNTIL:.1f} to {max(backs) - DOWN_UNTIL:.1f} s, {busiest} of {len(affected)} "
        f"in the busiest second; caught up at {floor / max(took):.0%} of the floor"
    )

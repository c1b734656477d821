"""A world: a store, processes with streams, clients, publishers, and operators that set offsets and add partitions.

One seed determines every move. While one stream waits for the store, others move, even those in the same process, as
threads do. After some hundred moves, the world stops causing faults, and then every process must finish its work.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import accumulate
from random import Random
from typing import Any

from nakadi.common.waiting import run_blocking
from nakadi.engines.memory.coordination import MemoryCoordination
from nakadi.model.event_type import Position
from nakadi.model.outcomes import TryLater, Unavailable
from nakadi.model.subscription import Assignment, CommitResult, ReadFrom
from nakadi.subscriptions.api import assignments
from nakadi.subscriptions.api.fields import RetryPolicy, UnprocessablePolicy
from nakadi.subscriptions.stream.actions import SubscriptionStreamLimits
from tests.simulation.clocks import SimulatedTime, SkewedClock
from tests.simulation.history import Event, History, Place, PromiseBroken, check_promise
from tests.simulation.operators import (
    SUBSCRIPTION,
    RepartitioningOperator,
    ResetOperator,
    SimulatedEventType,
    a_subscription,
    make_reset_execution,
)
from tests.simulation.processes import SimulatedProcess, SimulatedStream
from tests.simulation.wire import Faults, ProcessCrashed, UnreliableCoordination

MOVES = 150
MOST_SKEW_SECONDS = 0.9
MOST_PROCESSES = 3
MOST_PARTITIONS = 5

# After the faults have stopped, the longest time in which nothing more is committed: leases and markers first have to
# expire, and events that no consumer can process are found one by one.
PATIENCE_SECONDS = 240.0

# How long a session may wait for a partition while there are no faults: two of the commit timeouts that worlds use, the
# time until the owner looks, and a lease that may have to expire first. The world checks this for NEGLECTED_ROUNDS
# rounds of half a second.
HAND_OVER_SECONDS = 13.0
NEGLECTED_ROUNDS = 80


class World:
    """A world of processes. `store` is a `Coordination`, in memory if none is given."""

    def __init__(self, seed: int, store: Any = None) -> None:
        self.random = random = Random(seed)
        self.time = SimulatedTime()
        self._numbers = iter(range(100_000))
        self.trail: list[str] = []
        self.store = store or MemoryCoordination()
        self.history = History(able=self._is_stream_able, now=self._now, steady=lambda: self.time.seconds)
        self.faults = Faults() if random.random() < 0.8 else Faults(0.0, 0.0, 0.0, 0.0)
        self.faults.others_move = random.choice([0.05, 0.15, 0.15, 0.4])
        self._stalls = random.choice([0.02, 0.05, 0.05, 0.3])
        self.poison: set[tuple[Place, int]] = set()
        kind = random.choice([None, None, None, None, UnprocessablePolicy.SKIP_EVENT, UnprocessablePolicy.PARK_KEY])
        self.policy = RetryPolicy(kind, 2) if kind else None
        self.topic = SimulatedEventType(self.history, random.randint(1, 4))
        self.subscription = a_subscription(random.choice([ReadFrom.BEGIN, ReadFrom.BEGIN, ReadFrom.END]))
        self.processes = [self._new_process() for _ in range(random.randint(1, MOST_PROCESSES))]
        self.streams: dict[str, SimulatedStream] = {}
        self.clients = self._wire()
        self.reset: ResetOperator | None = None
        self.repartitioning: RepartitioningOperator | None = None

        self._depth = 0
        self._busy: set[str] = set()
        drawn = self._drawn_moves()
        self._moves, self._weights = list(drawn), list(accumulate(drawn.values()))

    def _drawn_moves(self) -> dict[Callable[[], None], float]:
        """How often each kind of move happens in this world, because different worlds reveal more than many similar
        ones.
        """
        usual = {
            self._publish: 8,
            self._open: 5,
            self._let_a_process_read_news: 14,
            self._turn: 26,
            self._call: 14,
            self._commit: 10,
            self._renew_and_clean_up: 6,
            self._pass_time: 6,
            self._client_goes: 2,
            self._client_leaves: 1,
            self._client_extends: 4,
        }
        seldom = {
            self._crash: 1,
            self._pause: 1,
            self._set_back: 0.5,
            self._expire: 1,
            self._reset: 3,
            self._repartition: 1,
        }
        return {
            **{move: weight * self.random.choice([0.3, 1, 1, 3]) for move, weight in usual.items()},
            **{move: weight * self.random.choice([0, 1, 1, 4]) for move, weight in seldom.items()},
        }

    # The course of the world

    def run(self) -> None:
        for _ in range(MOVES):
            self.move()
        self._end_faults_and_settle()

    def move(self) -> None:
        [move] = self.random.choices(self._moves, cum_weights=self._weights)
        self.time.move(self.random.expovariate(10))
        move()

    def _let_others_move(self, process: SimulatedProcess | None = None) -> None:
        """Let others move during a call of a process; if the process is paused, the call takes long."""
        if self._depth < 2:
            self._depth += 1
            for _ in range(self.random.randint(1, 2)):
                self.move()
            stalled = self.time.seconds + (self.random.uniform(0, 15) if self.random.random() < self._stalls else 0.0)
            while self.time.seconds < max(stalled, process.paused_until if process else 0.0):
                self.time.move(self.random.uniform(0, 2))
                self.move()
            self._depth -= 1

    def _end_faults_and_settle(self) -> None:
        self.faults.end()
        self.faults.others_move = 0.0
        self._note("nothing goes wrong from here on")
        end, left = self.time.seconds + PATIENCE_SECONDS, self._count_left()
        for process in self.processes:
            process.paused_until = 0.0
        if self.random.random() < 0.2:
            self._neglect_waiting_sessions()
            end, left = self.time.seconds + PATIENCE_SECONDS, self._count_left()
        if self.random.random() < 0.05:
            self._delete()
        while not self._is_quiet():
            if self.time.seconds > end:
                raise PromiseBroken(f"progress: {self._describe_rest()}")
            self._everybody_moves()
            if (less := self._count_left()) < left:
                end, left = self.time.seconds + PATIENCE_SECONDS, less

    def _neglect_waiting_sessions(self) -> None:
        """Let clients commit one event at a time, always before their time is over, but nothing in a partition for
        which another session waits. The partition has to change hands nevertheless.
        """
        self._note("nobody commits what others wait for")
        asked: dict[tuple[Place, str], float] = {}
        for number in range(NEGLECTED_ROUNDS):
            self._publish()
            if number % 20 == 0:
                self._open_in(self.random.choice(self.processes), requested=[])
            self._everybody_moves(0.5, self._commit_one)
            wanted = self._wanted_partitions()
            asked = {each: asked.get(each, self.time.seconds) for each in wanted}
            for (place, owner), since in asked.items():
                waited = self.time.seconds - since
                check_promise(
                    "hand-over", waited < HAND_OVER_SECONDS, f"{owner} keeps {place.partition} for {waited:.1f} s"
                )

    def _wanted_partitions(self) -> set[tuple[Place, str]]:
        """The partitions for which other sessions wait, with their owners."""
        entries = self.store.assignment(SUBSCRIPTION).entries
        return {
            (each.partition, each.owner)
            for each in entries
            if each.owner and each.next_owner and self._is_stream_able(each.owner)
        }

    def _commit_one(self, stream: SimulatedStream) -> None:
        """Commit the next event of a partition for which no other session waits."""
        offsets, wanted = self.history.offsets, {place for place, _ in self._wanted_partitions()}
        latest = max(
            (each.changed_at for each in offsets.values() if each.owner == stream.session.id), default=self._now()
        )
        if abs(self._now() - latest) < timedelta(seconds=0.6 * stream.limits.commit_seconds):
            return
        for place, received in stream.received.items():
            following = [each for each in received if each > offsets[place].position.offset]
            if place not in wanted and following and (place, following[0]) not in self.poison:
                self._commit_upto(stream, place, following[0])
                return

    def _count_left(self) -> int:
        return sum(self.history.count_left().values())

    def _everybody_moves(self, seconds: float = 1.5, commit: Callable[[SimulatedStream], None] | None = None) -> None:
        self.time.move(seconds)
        if self.reset is not None:
            self._reset()
        if self.repartitioning is not None:
            self._repartition()
        self._see_that_somebody_streams()
        for process in [each for each in self.processes if each.awake]:
            if process.has_duties:
                process.renew_and_clean_up()
            if process.should_read_state:
                process.read_news()
            for stream in tuple(process.streams):
                self._stream_moves(stream)
                (commit or self._commit_everything)(stream)

    def _see_that_somebody_streams(self) -> None:
        if not any(process.awake for process in self.processes):
            self.processes.append(self._new_process())
        sessions = self.store.assignment(SUBSCRIPTION).sessions
        if not self.history.deleted and all(
            each.requested_partitions or not self._is_stream_able(each.id) for each in sessions
        ):
            self._open_in(self.random.choice([each for each in self.processes if each.awake]), requested=[])

    def _stream_moves(self, stream: SimulatedStream) -> None:
        self._one_turn(stream)
        while stream.calls and not stream.left:
            stream.call()

    def _commit_everything(self, stream: SimulatedStream) -> None:
        for place in tuple(stream.received):
            self._commit_all(stream, place)

    def _delete(self) -> None:
        """Delete the subscription, and check that its streams end and none of its state is left."""
        self._note("the subscription is deleted")
        self.store.remove_subscription_state(SUBSCRIPTION)
        self.history.deleted = True
        self.reset = self.repartitioning = None

    def _is_quiet(self) -> bool:
        if self.history.deleted:
            return not any(process.streams for process in self.processes)
        if self._being_changed or self._count_left():
            return False
        assignment = self.store.assignment(SUBSCRIPTION)
        balanced = assignments.with_rebalanced_partitions(assignment) == assignment
        settled = all(entry.next_owner is None for entry in assignment.entries)
        alive = all(self._is_stream_able(each.id) and not each.is_leaving for each in assignment.sessions)
        return balanced and settled and alive

    @property
    def _being_changed(self) -> bool:
        return self.reset is not None or self.repartitioning is not None

    def _describe_rest(self) -> str:
        left = {place.partition: count for place, count in self.history.count_left().items()}
        return f"{left} events are left, {self._describe()}"

    # Possible moves

    def _publish(self) -> None:
        place = self.random.choice(list(self.history.events))
        events = self.history.events[place]
        for _ in range(self.random.randint(1, 5)):
            key = self.random.choice([None, "a", "b", "c"])
            events.append(Event(len(events), ours=self.random.random() < 0.85, key=key))
            if self.policy and events[-1].ours and self.random.random() < 0.05:
                self.poison.add((place, events[-1].offset))

    def _open(self) -> None:
        process = self._some_process()
        if process is not None and not process.takes_lease:
            places = list(self.history.events)
            direct = self.random.random() < 0.2
            requested = self.random.sample(places, min(len(places), self.random.randint(1, 2))) if direct else []
            self._open_in(process, requested)

    def _open_in(self, process: SimulatedProcess, requested: list[Place]) -> None:
        random = self.random
        limits = SubscriptionStreamLimits(
            batch_limit=random.choice([1, 2, 5]),
            max_uncommitted_events=random.choice([1, 3, 10, 30]),
            stream_limit=random.choice([0, 0, 0, 7]),
            flush_seconds=random.choice([1, 5, 30]),
            stream_seconds=random.choice([10, 60, 4000]),
            commit_seconds=random.choice([2, 5]),
            releases_on_disconnect=random.random() < 0.3,
        )
        session_id = f"s{next(self._numbers):03d}"
        self._do_exclusively(session_id, lambda: self._open_stream(process, session_id, limits, requested))

    def _open_stream(
        self, process: SimulatedProcess, session_id: str, limits: SubscriptionStreamLimits, requested: list[Place]
    ) -> None:
        stream = process.open(self.subscription, session_id, limits, requested)
        if stream is not None:
            self.streams[session_id] = stream
        self._note(f"{process.name} opened {session_id} {[each.partition for each in requested]}: {self._describe()}")

    def _let_a_process_read_news(self) -> None:
        process = self._some_process()
        if process is not None and process.should_read_state:
            self._do_exclusively(f"{process.name} looks", process.read_news)

    def _turn(self) -> None:
        stream = self._some_stream()
        if stream is not None:
            self._do_exclusively(f"{stream.session.id} turns", lambda: self._one_turn(stream))

    def _one_turn(self, stream: SimulatedStream) -> None:
        if stream.left:
            return
        before = {place: len(got) for place, got in stream.received.items()}
        stream.run_driver_round()
        got = {place.partition: got[before.get(place, 0) :] for place, got in stream.received.items()}
        if any(got.values()):
            self._note(f"{stream.session.id} got {got}")
        if stream.session.end:
            self._note(f"{stream.session.id} ends: {stream.session.end.name}")
            stream.process.streams.remove(stream)
            stream.leave()

    def _call(self) -> None:
        stream = self._some_stream()
        if stream is not None and stream.calls:
            self._do_exclusively(f"{stream.session.id} calls", lambda: self._one_call(stream))

    def _one_call(self, stream: SimulatedStream) -> None:
        self._note(f"{stream.session.id} calls {stream.calls[0]}")
        stream.call()

    def _commit(self) -> None:
        # The client of a stream may commit in any state of the stream.
        streams = [stream for stream in self.streams.values() if stream.received]
        if not streams:
            return
        stream = self.random.choice(streams[-6:])
        place = self.random.choice(list(stream.received))
        kind = self.random.random()
        if kind < 0.75:
            self._commit_all(stream, place)
        elif kind < 0.95:
            self._commit_upto(stream, place, self.random.choice(stream.received[place]))
        elif not self.policy:
            self._commit_unsent(stream, place)

    def _commit_all(self, stream: SimulatedStream, place: Place) -> None:
        """Commit everything before the first event that this consumer cannot process."""
        got = stream.received[place]
        bad = [
            each for each in got if (place, each) in self.poison and each not in self.history.excused.get(place, set())
        ]
        digested = [each for each in got if not bad or each < min(bad)]
        if digested:
            self._commit_upto(stream, place, digested[-1])

    def _commit_upto(self, stream: SimulatedStream, place: Place, offset: int) -> None:
        with contextlib.suppress(Unavailable):
            verdicts = run_blocking(
                self.clients.commit(SUBSCRIPTION, stream.session.id, {place: Position(1, offset)}, self._now())
            )
            if verdicts[place] is CommitResult.COMMITTED:
                self._note(f"{stream.session.id} commits {place.partition}:{offset}")

    def _commit_unsent(self, stream: SimulatedStream, place: Place) -> None:
        offset = self.random.randrange(len(self.history.events[place]))
        before = self.history.offsets[place]
        if before.owner == stream.session.id:
            self.history.excuse_from_delivery(place, before.position, Position(1, offset))
            self._commit_upto(stream, place, offset)

    def _renew_and_clean_up(self) -> None:
        process = self._some_process()
        if process is not None and process.has_duties and not process.takes_lease:
            self._do_exclusively(f"{process.name} tends", process.renew_and_clean_up)

    def _pass_time(self) -> None:
        self.time.move(self.random.choice([0.5, 1.0, 2.0, 6.0]))

    def _client_goes(self) -> None:
        stream = self._some_stream()
        if stream is not None:
            stream.facts.append(stream.handle_disconnect)

    def _client_leaves(self) -> None:
        self._ask("leaves", assignments.with_session_leaving)

    def _client_extends(self) -> None:
        self._ask("asks for more time", assignments.with_extension_requested)

    def _ask(self, what: str, request: Callable[[Assignment, str], Assignment]) -> None:
        """Let a client send a request about a stream through any process, whichever serves the stream."""
        sessions = self.store.assignment(SUBSCRIPTION).sessions
        if sessions:
            session_id = self.random.choice(sessions).id
            execution = make_reset_execution(self.clients, self._clock())
            with contextlib.suppress(Unavailable, TryLater):
                execution.change_assignment(SUBSCRIPTION, lambda old: request(old, session_id))
                self._note(f"the client of {session_id} {what}")

    def _crash(self) -> None:
        process = self._some_process()
        if process is not None:
            process.crash()
            self._note(f"{process.name} crashes")
            self.processes = [each for each in self.processes if each.alive]
            self.processes.append(self._new_process())

    def _pause(self) -> None:
        process = self._some_process()
        if process is not None:
            process.paused_until = self.time.seconds + self.random.uniform(5, 30)
            self._note(f"{process.name} pauses until {process.paused_until:.1f}")

    def _set_back(self) -> None:
        self.time.behind += self.random.choice([5.0, 60.0, 3600.0])
        self._note(f"the time of day is {self.time.behind:.0f} s behind")

    def _expire(self) -> None:
        place = self.random.choice(list(self.history.events))
        self.history.oldest[place] = self.random.randint(self.history.oldest[place], len(self.history.events[place]))

    def _reset(self) -> None:
        if self.reset is None:
            places = [each for each in self.history.offsets if self.random.random() < 0.6]
            positions = {
                each: Position(1, self.random.randint(self.history.oldest[each], len(self.history.events[each])) - 1)
                for each in places
            }
            self.reset = ResetOperator(self._wire(), self._clock(), positions, stays=self.random.random() < 0.6)
        self._do_exclusively("somebody resets", self._next_of_reset)

    def _next_of_reset(self) -> None:
        assert self.reset is not None
        self.reset.step()
        self._note(f"reset of {[place.partition for place in self.reset.positions]}: {self.reset.state}")
        if self.reset.state == "over":
            self.reset = None

    def _repartition(self) -> None:
        if self.repartitioning is None and len(self.history.events) < MOST_PARTITIONS:
            self.repartitioning = RepartitioningOperator(self.subscription, self.topic, self._wire(), self._clock())
        if self.repartitioning is not None:
            self._do_exclusively("somebody repartitions", self._next_of_repartitioning)

    def _next_of_repartitioning(self) -> None:
        assert self.repartitioning is not None
        self.repartitioning.step()
        self._note(f"repartitioning to {len(self.history.events)}: {self.repartitioning.state}")
        if self.repartitioning.state == "over":
            self.repartitioning = None

    # Creation

    def _new_process(self) -> SimulatedProcess:
        wire = self._wire()
        name = f"p{next(self._numbers)}"
        process = SimulatedProcess(name, self._clock(), wire, self.history, self.topic, self.random, self.policy)
        wire.meanwhile = lambda: self._let_others_move(process)
        return process

    def _wire(self) -> UnreliableCoordination:
        return UnreliableCoordination(self.store, self.history, self.faults, self.random, self._let_others_move)

    def _clock(self) -> SkewedClock:
        skew = self.random.uniform(-MOST_SKEW_SECONDS, MOST_SKEW_SECONDS)
        return SkewedClock(self.time, skew, booted=self.random.uniform(0, 10_000))

    # Random choices

    def _do_exclusively(self, what: str, move: Callable[[], None]) -> None:
        """Do something that must not happen twice at the same time. If the process crashes, the operation stays
        incomplete.
        """
        if what in self._busy:
            return
        self._busy.add(what)
        try:
            with contextlib.suppress(ProcessCrashed):
                move()
        finally:
            self._busy.discard(what)

    def _some_process(self) -> SimulatedProcess | None:
        awake = [each for each in self.processes if each.awake]
        return self.random.choice(awake) if awake else None

    def _some_stream(self) -> SimulatedStream | None:
        process = self._some_process()
        return self.random.choice(process.streams) if process is not None and process.streams else None

    def _is_stream_able(self, session_id: str) -> bool:
        stream = self.streams.get(session_id)
        return stream is not None and stream.is_able

    def _now(self) -> datetime:
        return SkewedClock(self.time).now()

    def _describe(self) -> str:
        entries = self.store.assignment(SUBSCRIPTION).entries
        return " ".join(
            f"{each.owner or ''}{'>' + each.next_owner if each.next_owner else ''}" or "-" for each in entries
        )

    def _note(self, what: str) -> None:
        self.trail.append(f"{self.time.seconds:7.2f} {'  ' * self._depth}{what}")


def run(seed: int) -> None:
    """Run the world of a seed. If it breaks a promise, raise `PromiseBroken` with the moves that led to that."""
    world = World(seed)
    try:
        world.run()
        check_promise("I8", world._is_quiet(), "the world is not at rest")
    except Exception as error:
        trail = "\n".join(world.trail[-80:])
        again = f"The same once more: make simulate SEEDS=1 FIRST={seed}"
        raise PromiseBroken(f"seed {seed}: {error}\n{trail}\n{again}") from error

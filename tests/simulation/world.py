"""A world: a store, processes with streams, clients, publishers, and somebody who sets offsets and adds partitions.

Everything that happens is drawn from one seed, one move at a time; and while one process talks to the store, others
move as well. After some hundred moves nothing goes wrong any more, and then everybody with work must come to its end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from random import Random

from nakadi.consuming.parameters import Limits
from nakadi.consuming.policy import Policy, Unprocessable
from nakadi.coordination.memory import MemoryCoordination
from nakadi.model.coordination import NOTHING_YET, Verdict
from nakadi.model.cursor import Position
from nakadi.model.outcomes import Conflict, TryLater, Unavailable
from nakadi.model.subscription import EventTypePartition
from nakadi.subscriptions import assignments
from nakadi.subscriptions.initialisation import with_added
from nakadi.subscriptions.resets import Resets
from tests.simulation.clocks import SkewedClock, Time
from tests.simulation.history import Broken, Event, History, Place, promise
from tests.simulation.processes import SUBSCRIPTION, Process, Stream
from tests.simulation.wire import Faults, Wire

MOVES = 150
MOST_SKEW_SECONDS = 0.9
MOST_PROCESSES = 3
MOST_PARTITIONS = 5

# How long everything may take to come to its end once nothing goes wrong any more: leases and markers run out first.
PATIENCE_SECONDS = 240.0


class World:
    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.time = Time()
        self._numbers = iter(range(100_000))
        self.trail: list[str] = []
        self.store = MemoryCoordination()
        self.history = History(able=self._able, now=self._now)
        self.faults = Faults() if random.random() < 0.8 else Faults(0.0, 0.0, 0.0)
        self.poison: set[tuple[Place, int]] = set()
        self.policy = Policy(Unprocessable.SKIP_EVENT, 2) if random.random() < 0.25 else None
        self.processes = [self._new_process() for _ in range(random.randint(1, MOST_PROCESSES))]
        self.streams: dict[str, Stream] = {}
        self.clients = self._wire()
        self.reset: Resetting | None = None

        self._depth = 0
        self._busy: set[str] = set()
        self._add_partitions(random.randint(1, 4))
        self._moves: list[tuple[int, Callable[[], None]]] = [
            (8, self._publish),
            (5, self._open),
            (14, self._look),
            (26, self._turn),
            (14, self._call),
            (10, self._commit),
            (6, self._tend),
            (6, self._pass_time),
            (2, self._client_goes),
            (1, self._crash),
            (1, self._pause),
            (1, self._expire),
            (3, self._reset),
            (1, self._repartition),
        ]

    # Running

    def run(self) -> None:
        for _ in range(MOVES):
            self.move()
        self._calm_down()

    def move(self) -> None:
        weights = [weight for weight, _ in self._moves]
        [(_, move)] = self.random.choices(self._moves, weights)
        self.time.move(self.random.expovariate(10))
        move()

    def _meanwhile(self) -> None:
        """What others do while a call is under way."""
        if self._depth < 2:
            self._depth += 1
            for _ in range(self.random.randint(1, 2)):
                self.move()
            if self.random.random() < 0.05:
                self.time.move(self.random.uniform(0, 15))
            self._depth -= 1

    def _calm_down(self) -> None:
        self.faults.end()
        self.faults.others_move = 0.0
        self._note("nothing goes wrong from here on")
        end = self.time.seconds + PATIENCE_SECONDS
        for process in self.processes:
            process.paused_until = 0.0
        while not self._is_quiet():
            if self.time.seconds > end:
                raise Broken(f"progress: {self._what_is_left()}")
            self._everybody_moves()

    def _everybody_moves(self) -> None:
        self.time.move(0.7)
        if self.reset is not None:
            self._reset()
        if not any(process.awake for process in self.processes):
            self.processes.append(self._new_process())
        if all(each.requested or not self._able(each.id) for each in self.store.assignment(SUBSCRIPTION).sessions):
            self._open_in(self.random.choice([each for each in self.processes if each.awake]), requested=[])
        for process in [each for each in self.processes if each.awake]:
            if process.has_duties:
                process.tend()
            if process.news:
                process.look()
            for stream in tuple(process.streams):
                self._one_turn(stream)
                while stream.calls and not stream.left:
                    stream.call()
                for place in tuple(stream.received):
                    self._commit_all(stream, place)

    def _is_quiet(self) -> bool:
        assignment = self.store.assignment(SUBSCRIPTION)
        balanced = assignments.rebalanced(assignment) == assignment
        settled = all(entry.next is None for entry in assignment.entries)
        alive = all(self._able(each.id) for each in assignment.sessions)
        return not self.history.left() and balanced and settled and alive and self.reset is None

    def _what_is_left(self) -> str:
        left = {place.partition: count for place, count in self.history.left().items()}
        return f"{left} events are left, {self._told()}"

    # What may happen

    def _publish(self) -> None:
        place = self.random.choice(list(self.history.events))
        events = self.history.events[place]
        for _ in range(self.random.randint(1, 5)):
            events.append(Event(len(events), ours=self.random.random() < 0.85))
            if self.policy and events[-1].ours and self.random.random() < 0.05:
                self.poison.add((place, events[-1].offset))

    def _open(self) -> None:
        process = self._some_process()
        if process is not None:
            places = list(self.history.events)
            direct = self.random.random() < 0.2
            requested = self.random.sample(places, min(len(places), self.random.randint(1, 2))) if direct else []
            self._open_in(process, requested)

    def _open_in(self, process: Process, requested: list[Place]) -> None:
        random = self.random
        limits = Limits(
            batch_limit=random.choice([1, 2, 5]),
            window=random.choice([1, 3, 10]),
            stream_limit=random.choice([0, 0, 0, 7]),
            flush_seconds=random.choice([1, 5, 30]),
            stream_seconds=random.choice([10, 60, 4000]),
            commit_seconds=random.choice([2, 5]),
        )
        session_id = f"s{next(self._numbers):03d}"
        self._busy.add(process.name)
        if process.open(session_id, limits, requested):
            self.streams[session_id] = process.streams[-1]
        self._busy.discard(process.name)
        self._note(f"{process.name} opened {session_id} {[each.partition for each in requested]}: {self._told()}")

    def _look(self) -> None:
        process = self._some_process()
        if process is not None and process.news:
            self._within(process, process.look)

    def _turn(self) -> None:
        stream = self._some_stream()
        if stream is not None:
            self._within(stream.process, lambda: self._one_turn(stream))

    def _one_turn(self, stream: Stream) -> None:
        if stream.left:
            return
        before = {place: len(got) for place, got in stream.received.items()}
        stream.turn()
        got = {place.partition: got[before.get(place, 0) :] for place, got in stream.received.items()}
        if any(got.values()):
            self._note(f"{stream.session.id} got {got}")
        if stream.session.end:
            self._note(f"{stream.session.id} ends: {stream.session.end.name}")
            stream.leave()
            stream.process.streams.remove(stream)

    def _call(self) -> None:
        stream = self._some_stream()
        if stream is not None and stream.calls:
            self._note(f"{stream.session.id} calls {stream.calls[0]}")
            self._within(stream.process, stream.call)

    def _commit(self) -> None:
        # The client of a stream may commit whatever has become of the stream.
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

    def _commit_all(self, stream: Stream, place: Place) -> None:
        """Commit everything before the first event that this consumer cannot digest."""
        got = stream.received[place]
        bad = [
            each for each in got if (place, each) in self.poison and each not in self.history.excused.get(place, set())
        ]
        digested = [each for each in got if not bad or each < min(bad)]
        if digested:
            self._commit_upto(stream, place, digested[-1])

    def _commit_upto(self, stream: Stream, place: Place, offset: int) -> None:
        with contextlib.suppress(Unavailable):
            verdicts = self.clients.commit(SUBSCRIPTION, stream.session.id, {place: Position(1, offset)}, self._now())
            if verdicts[place] is Verdict.COMMITTED:
                self._note(f"{stream.session.id} commits {place.partition}:{offset}")

    def _commit_unsent(self, stream: Stream, place: Place) -> None:
        offset = self.random.randrange(len(self.history.events[place]))
        before = self.history.offsets[place]
        if before.owner == stream.session.id:
            self.history.excuse(place, before.position, Position(1, offset))
            self._commit_upto(stream, place, offset)

    def _tend(self) -> None:
        process = self._some_process()
        if process is not None and process.has_duties:
            self._within(process, process.tend)

    def _pass_time(self) -> None:
        self.time.move(self.random.choice([0.5, 1.0, 2.0, 6.0]))

    def _client_goes(self) -> None:
        stream = self._some_stream()
        if stream is not None:
            stream.facts.append(stream.session.gone)

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

    def _expire(self) -> None:
        place = self.random.choice(list(self.history.events))
        self.history.oldest[place] = self.random.randint(self.history.oldest[place], len(self.history.events[place]))

    def _reset(self) -> None:
        if self.reset is None:
            places = [each for each in self.history.events if self.random.random() < 0.6]
            positions = {
                each: Position(1, self.random.randint(self.history.oldest[each], len(self.history.events[each])) - 1)
                for each in places
            }
            self.reset = Resetting(self._wire(), self._clock(), positions)
        self._take_step()

    def _repartition(self) -> None:
        if self.reset is None and len(self.history.events) < MOST_PARTITIONS:
            self._add_partitions(len(self.history.events) + 1)
            self.reset = Resetting(self._wire(), self._clock(), {})
            self._take_step()

    def _take_step(self) -> None:
        assert self.reset is not None
        if "reset" not in self._busy:
            self._busy.add("reset")
            self.reset.step()
            self._busy.discard("reset")
            self._note(f"reset of {[place.partition for place in self.reset.positions]}: {self.reset.state}")
            if self.reset.state == "over":
                self.reset = None

    # Making things

    def _add_partitions(self, count: int) -> None:
        positions = {EventTypePartition("order", str(number)): Position(1, -1) for number in range(count)}
        for place in positions:
            for kept, empty in (
                (self.history.events, list),
                (self.history.delivered, set),
                (self.history.excused, set),
            ):
                kept.setdefault(place, empty())  # type: ignore[attr-defined]
            self.history.oldest.setdefault(place, 0)
        old = self.store.assignment(SUBSCRIPTION) or NOTHING_YET
        new, added = with_added(old, positions)
        stored = self.store.write(SUBSCRIPTION, old, replace(new, initialised=True), self._now(), added)
        self.history.was_written("", stored, self.store.offsets(SUBSCRIPTION), handing_over=False)

    def _new_process(self) -> Process:
        return Process(f"p{next(self._numbers)}", self._clock(), self._wire(), self.history, self.random, self.policy)

    def _wire(self) -> Wire:
        return Wire(self.store, self.history, self.faults, self.random, self._meanwhile)

    def _clock(self) -> SkewedClock:
        skew = self.random.uniform(-MOST_SKEW_SECONDS, MOST_SKEW_SECONDS)
        return SkewedClock(self.time, skew, booted=self.random.uniform(0, 10_000))

    # Choosing

    def _within(self, process: Process, move: Callable[[], None]) -> None:
        """A process does one thing at a time."""
        self._busy.add(process.name)
        try:
            move()
        finally:
            self._busy.discard(process.name)

    def _some_process(self) -> Process | None:
        free = [each for each in self.processes if each.awake and each.name not in self._busy]
        return self.random.choice(free) if free else None

    def _some_stream(self) -> Stream | None:
        process = self._some_process()
        return self.random.choice(process.streams) if process is not None and process.streams else None

    def _able(self, session_id: str) -> bool:
        stream = self.streams.get(session_id)
        return stream is not None and stream.able

    def _now(self) -> datetime:
        return SkewedClock(self.time).now()

    def _told(self) -> str:
        entries = self.store.assignment(SUBSCRIPTION).entries
        return " ".join(f"{each.owner or ''}{'>' + each.next if each.next else ''}" or "-" for each in entries)

    def _note(self, what: str) -> None:
        self.trail.append(f"{self.time.seconds:7.2f} {'  ' * self._depth}{what}")


class Resetting:
    """A reset, or the end of all streams when there are no positions, step by step."""

    def __init__(self, wire: Wire, clock: SkewedClock, positions: dict[Place, Position]) -> None:
        self._resets = Resets(coordination=wire, clock=clock, max_commit_timeout=5.0)  # type: ignore[arg-type]
        self._clock = clock
        self._markers = ExitStack()
        self._marker = ""
        self._until = clock.monotonic() + 6.0
        self.positions = positions
        self.state = "new"

    def step(self) -> None:
        try:
            self.state = self._next()
        except (Conflict, TryLater, Unavailable):
            self.state = "over"
        if self.state == "over":
            with contextlib.suppress(Unavailable, TryLater):
                self._markers.close()

    def _next(self) -> str:
        if self.state == "new":
            self._marker = self._resets._marked(SUBSCRIPTION, self._markers)
            return "waiting"
        if not self._resets._has_sessions(SUBSCRIPTION):
            self._resets._set(SUBSCRIPTION, self._marker, self.positions)
            return "over"
        return "over" if self._clock.monotonic() > self._until else "waiting"


def run(seed: int) -> None:
    """Live through the world of a seed; raises `Broken` with its trail."""
    world = World(seed)
    try:
        world.run()
        promise("I8", world._is_quiet(), "the world is not at rest")
    except Exception as error:
        trail = "\n".join(world.trail[-80:])
        raise Broken(f"seed {seed}: {error}\n{trail}") from error

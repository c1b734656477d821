"""Simulates publishers that send the same events: `python -m tests.simulation.publishing [WORLDS] [FIRST]`.

A world has a log, claims, publishers and a time that the world moves. The clock of each publisher is somewhat wrong,
and its error changes whenever the clock is set. Each step of an append is one move: others move in between, processes
die, calls fail before or after their effect, and an append whose answer is lost may be stored in the log later. The
event type moves to other timelines meanwhile. One seed determines everything.

The promises: an event is stored once within its window, and a publisher that hears that an event is stored, or is a
duplicate, finds it in the log. In the end, when nothing fails any more, every publisher hears that its event is stored.
"""

from __future__ import annotations

import json
import logging
import random
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from msgspec import Struct

from nakadi.common.waiting import run_blocking
from nakadi.engines.memory.eid_claims import MemoryEidClaims
from nakadi.engines.memory.event_log import MemoryLog
from nakadi.model.events import AppendRefused, AppendResult, DuplicateEvent, Record, fates_of_events
from nakadi.model.outcomes import Unavailable
from nakadi.ports.deduplication import EventIds
from nakadi.ports.event_log import SealedTopic
from nakadi.publishing import claimed_append as claimed_append_module
from tests.support.clock import HandMovedClock

LATE_SECONDS = 12.0
"""How many seconds later an append whose answer was lost may still reach the log."""

MAX_APPEND_SECONDS = 54.0
"""An append reaches the log within this time after its beginning, or never."""
MAX_SKEW_SECONDS = 7.4
"""A clock is ahead or behind by at most this much, so two clocks differ by less than 15 seconds."""
MAX_CONFIRMATION_DELAY = timedelta(seconds=120)
"""The window of an event begins when its publisher knows that it is stored, at most this much after the append."""


class SkewedClock(Struct):
    """A machine's clocks: its time of day is wrong and may be set, but its steady clock is right."""

    time: HandMovedClock
    skew: timedelta

    def now(self) -> datetime:
        return self.time.now() + self.skew

    def monotonic(self) -> float:
        return self.time.monotonic()

    def sleep(self, seconds: float) -> None:
        self.time.sleep(seconds)


class PromiseBroken(AssertionError):
    """Raised when a world has broken a promise."""


class World:
    """A world of publishers. With `max_skew`, clocks are wrong by at most this number of seconds; without it, clocks
    are right in half of the worlds.

    In a tight world, four publishers send one event repeatedly, slow steps take nearly as long as they may, and clocks
    are as wrong as they may be. Only in tight worlds does the difference between clocks often matter.
    """

    def __init__(
        self,
        seed: int,
        module: Any = claimed_append_module,
        *,
        max_skew: float | None = None,
        is_tight: bool | None = None,
    ) -> None:
        self.drawn = random.Random(seed)
        self.module = module
        self.clock = HandMovedClock()
        self.log = MemoryLog(self.clock)
        self.claims = MemoryEidClaims()
        self.max_skew = self.drawn.choice([0.0, MAX_SKEW_SECONDS]) if max_skew is None else max_skew
        self.is_tight = self.drawn.random() < 0.1 if is_tight is None else is_tight
        self.partitions = self.drawn.choice([1, 1, 3])
        self.window = timedelta(seconds=60 if self.is_tight else self.drawn.choice([5, 60, 300, 3600]))
        self.faults = self.drawn.choice([0.1, 0.3] if self.is_tight else [0.0, 0.02, 0.1, 0.3])
        self.deaths = 0.0 if self.is_tight else self.drawn.choice([0.0, 0.02, 0.1])
        self.pace = self.drawn.choice([0.5, 3.0, 10.0] if self.is_tight else [0.1, 1.0, 10.0])
        self.eids = [
            uuid.UUID(int=self.drawn.getrandbits(128))
            for _ in range(1 if self.is_tight else self.drawn.choice([1, 3, 6]))
        ]
        self.topics: list[str] = []
        self.late: list[tuple[float, str, Mapping[int, Sequence[Record]]]] = []
        self.is_calm = self.has_grown = False
        self.append_deadline = 0.0
        self.begin_timeline()
        self.positions = [module.KnownPositions(self.clock) for _ in range(2)]
        self.publishers = [Publisher(self) for _ in range(4 if self.is_tight else self.drawn.choice([1, 2, 4]))]

    def for_storage(self, _storage_id: str) -> World:
        return self

    # The calls that an append makes

    def bounds(self, topic: str, partitions: Sequence[int]) -> Any:
        return self.log.bounds(topic, partitions)

    def read(self, topic: str, partition: int, offset: int) -> Any:
        return self.log.read(topic, partition, offset, limit=self.drawn.choice([1, 1000]))

    async def append(self, topic: str, batches: Mapping[int, Sequence[Record]]) -> Mapping[int, AppendResult]:
        """Append the records of some partitions, and refuse those of others, which may still reach the log now,
        later, or never.
        """
        self.has_grown = True
        refused = {each for each in batches if self.fails()}
        fates = dict(await self.log.append(topic, {each: batches[each] for each in batches if each not in refused}))
        for partition in refused:
            fates[partition] = AppendRefused("timed out")
            match self.drawn.randrange(3):
                case 0:
                    await self.log.append(topic, {partition: batches[partition]})
                case 1:
                    due = self.clock.monotonic() + self.draw_delay(LATE_SECONDS)
                    self.late.append((min(due, self.append_deadline), topic, {partition: batches[partition]}))
        return fates

    def fails(self) -> bool:
        return not self.is_calm and self.drawn.random() < self.faults

    def call(self, step: Callable[[], Any]) -> Any:
        """Make a call, which may fail before or after its effect."""
        if self.fails():
            raise Unavailable("It did not arrive.")
        result = step()
        if self.fails():
            raise Unavailable("Its answer was lost.")
        return result

    # Other events

    def draw_skew(self) -> timedelta:
        return timedelta(seconds=self.drawn.choice([-1, 1] if self.is_tight else [-1, -0.5, 0, 0.5, 1]) * self.max_skew)

    def draw_delay(self, longest: float) -> float:
        return self.drawn.uniform(0.7 * longest if self.is_tight else 0, longest)

    def begin_timeline(self) -> None:
        if self.topics:
            self.log.seal_topic(self.topics[-1])
        self.topics.append(f"topic-{len(self.topics)}")
        self.log.create_topic(self.topics[-1], self.partitions)

    def arrive_late(self) -> None:
        now = self.clock.monotonic()
        for each in [each for each in self.late if each[0] <= now]:
            self.late.remove(each)
            self.has_grown = True
            try:
                run_blocking(self.log.append(each[1], each[2]))
            except SealedTopic:
                continue

    def pass_time(self) -> None:
        """Let time pass in small steps, so late appends arrive when they are due."""
        left = self.drawn.expovariate(1 / self.pace)
        while left > 0:
            self.clock.move(min(left, 1.0))
            left -= 1.0
            self.arrive_late()

    def run(self) -> None:
        for _ in range(600 if self.is_tight else 150):
            if self.drawn.random() < 0.01:
                self.begin_timeline()
            if self.drawn.random() < 0.02:
                self.drawn.choice(self.publishers).clock.skew = self.draw_skew()
            self.pass_time()
            self.drawn.choice(self.publishers).move()
            self.check()
        self.is_calm = True
        for _ in range(3000):
            if all(each.is_satisfied for each in self.publishers):
                break
            self.clock.move(1.0)
            self.arrive_late()
            for each in self.publishers:
                each.move()
            self.check()
        else:
            raise PromiseBroken("A publisher is never told that its events are stored.")

    # Promises

    def stored_times(self) -> Mapping[bytes, list[datetime]]:
        found: dict[bytes, list[datetime]] = {}
        for topic in self.topics:
            for partition in range(self.partitions):
                for event in self.log.read(topic, partition, 0, limit=100_000).events:
                    eid = uuid.UUID(json.loads(event.record.value or b"")["metadata"]["eid"]).bytes
                    found.setdefault(eid, []).append(event.stored_at)
        return found

    def check(self) -> None:
        if not self.has_grown:
            return
        self.has_grown = False
        for times in map(sorted, self.stored_times().values()):
            for earlier, later in pairwise(times):
                if later - earlier < self.window - timedelta(seconds=2 * self.max_skew):
                    raise PromiseBroken(f"An event is stored at {earlier}, and at {later} again.")

    def check_duplicate_claim(self, eid: uuid.UUID, asked_at: datetime) -> None:
        times = self.stored_times().get(eid.bytes, [])
        if not times or asked_at - max(times) > self.window + MAX_CONFIRMATION_DELAY:
            raise PromiseBroken("An event that is not there is called stored.")


class Publisher:
    """Sends a batch until the broker has reported all of it as stored, and then sends another one."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.clock = SkewedClock(world.clock, world.draw_skew())
        self.is_satisfied = False
        self.begin_batch()

    def begin_batch(self) -> None:
        drawn = self.world.drawn
        self.batch = [drawn.choice(self.world.eids) for _ in range(drawn.choice([1, 1, 2, 4]))]
        self.is_satisfied = False
        self.begin_attempt()

    def begin_attempt(self) -> None:
        world = self.world
        self.step: Callable[[], Any] | None = None
        self.begun_at = world.clock.now()
        self.partition_of = [world.drawn.randrange(world.partitions) for _ in self.batch]
        batches: dict[int, list[Record]] = {}
        for eid, partition in zip(self.batch, self.partition_of, strict=True):
            value = json.dumps({"metadata": {"eid": str(eid)}}).encode()
            batches.setdefault(partition, []).append(Record(value))
        ids = EventIds(
            scope="type",
            timeline=len(world.topics),
            window=world.window,
            packed_eids=b"".join(each.bytes for each in self.batch),
            partitions=self.partition_of,
        )
        self.steps = world.module.ClaimedAppend(
            logs=world,
            claims=world.claims,
            positions=world.drawn.choice(world.positions),
            clock=self.clock,
            storage_id="default",
            topic=world.topics[-1],
            batches=batches,
            ids=ids,
        ).steps()

    def move(self) -> None:
        world = self.world
        if self.is_satisfied:
            if not world.is_calm and world.drawn.random() < 0.3:
                self.begin_batch()
            return
        if not world.is_calm and world.drawn.random() < world.deaths:
            self.begin_attempt()  # the process has died, and its client tries again
            return
        try:
            if self.step is None:
                self._take(next(self.steps))
                return
            if self._is_append() and not self._append_is_due():
                return
            step, self.step = self.step, None
            world.append_deadline = self.step_taken_at + MAX_APPEND_SECONDS
            try:
                result = world.call(step)
            except Exception as error:  # noqa: BLE001  # the append handles it
                self._take(self.steps.throw(error))
            else:
                self._take(self.steps.send(result))
        except StopIteration as end:
            self.note_result(end.value)
        except (SealedTopic, Unavailable):
            self.begin_attempt()

    def _is_append(self) -> bool:
        return getattr(self.step, "func", None) is self.world.module._append_to

    def _take(self, step: Callable[[], Any]) -> None:
        self.step = step
        self.step_taken_at = self.world.clock.monotonic()
        self.append_seconds = self.world.drawn.choice([0.0, 0.0, self.world.draw_delay(MAX_APPEND_SECONDS)])

    def _append_is_due(self) -> bool:
        """Whether the append has taken as long as the log allows; then its process counts as dead."""
        took = self.world.clock.monotonic() - self.step_taken_at
        if took > MAX_APPEND_SECONDS:
            self.begin_attempt()
        return self.append_seconds <= took <= MAX_APPEND_SECONDS

    def note_result(self, fates: Mapping[int, AppendResult]) -> None:
        told = list(fates_of_events(self.partition_of, fates))
        for eid, fate in zip(self.batch, told, strict=True):
            if fate is None or isinstance(fate, DuplicateEvent):
                self.world.check_duplicate_claim(eid, self.begun_at)
        if any(isinstance(fate, AppendRefused) for fate in told):
            self.begin_attempt()
        else:
            self.is_satisfied = True


def main(worlds: int = 1000, first: int = 0) -> None:
    logging.disable()
    for seed in range(first, first + worlds):
        try:
            World(seed).run()
        except Exception as error:
            raise SystemExit(f"World {seed}: {error!r}") from error
    print(f"{worlds} worlds")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

"""Simulated days on which the indexer and housekeeping come and go, and the stream forgets events that were not
indexed. Meanwhile, publishers, tasks and consumers continue, shards split and merge, timelines are switched, and other
processes interrupt between two calls of the index. At the end, the events that consumers got are compared with the
acknowledged ones.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch
from uuid import UUID

from nakadi.common.waiting import run_blocking
from nakadi.engines.common import frames
from nakadi.engines.kinesis.envelopes import WHOLE_FRAME, parse_envelope
from nakadi.engines.kinesis.event_log import KinesisLog
from nakadi.engines.kinesis.numbering import ArrivedRecord
from nakadi.event_types import positions
from nakadi.model.authorization import UNAUTHENTICATED
from nakadi.model.event_type import EventType, Position
from nakadi.model.events import AppendStored, Record
from nakadi.model.log_index import RecordPosition
from nakadi.model.outcomes import Conflict, Outcome, Unavailable
from nakadi.ports.event_log import OffsetUnavailable, SealedTopic, UnknownTopic
from tests.support.kinesis_forgetful import StoredRecord
from tests.support.kinesis_hours import HoursOfKinesis, run_in_hours

BEGIN = Position(1, -1)
CHUNK = 0.9
"""In hours: a task that reads less often than every hour starts over where the index ends."""

LASTS = (0.02, 0.5, 1, 4, 9, 20, 22.5, 24, 27)
"""How many hours may pass in one step."""

Place = tuple[str, int]


@dataclass
class Figures:
    """The counts of a run. `doubled`, `skipped`, `missed`, `lost`, `left` and `unclear` must stay empty."""

    steps: int = 0
    acknowledged: int = 0
    delivered: int = 0
    forgotten: int = 0
    new_timelines: int = 0
    left_out: int = 0
    reshards: int = 0
    interruptions: int = 0
    unavailable: int = 0
    doubled: int = 0
    skipped: int = 0
    missed: int = 0
    lost: int = 0
    left: int = 0
    unclear: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> int:
        return self.doubled + self.skipped + self.missed + self.lost + self.left + len(self.unclear)

    def __str__(self) -> str:
        return (
            f"{self.steps} steps, {self.reshards} reshards, {self.interruptions} interruptions, "
            f"{self.unavailable} times unavailable: acknowledged {self.acknowledged}, delivered {self.delivered}, "
            f"forgotten unindexed {self.forgotten}, left out of closed timelines {self.left_out}, "
            f"new timelines {self.new_timelines}; doubled {self.doubled}, skipped {self.skipped}, "
            f"missed {self.missed}, lost {self.lost}, left behind {self.left}, unclear {len(self.unclear)}"
        )


@dataclass
class Consumer:
    """Reads one partition, and remembers where it is."""

    place: Place
    position: Position = BEGIN
    last: int | None = None
    seen: set[int] = field(default_factory=set)


class InterruptedIndex:
    """The log index, which lets other processes work before each call."""

    def __init__(self, index: Any, between: Callable[[], None]) -> None:
        self._index = index
        self._interrupt = between

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._index, name)

        def intercept(*values: Any) -> Any:
            self._interrupt()
            return method(*values)

        return intercept


class OutageSimulation:
    def __init__(self, seed: int, hours: HoursOfKinesis) -> None:
        self.chance = random.Random(seed)
        self.figures = Figures()
        self.hours = hours
        self._plain_index = hours.index
        hours.index = InterruptedIndex(hours.index, self._interrupt)  # type: ignore[assignment]
        self._interrupting = 0.0
        self._inside = False
        self._publishing = False
        self.indexer_is_here = self.keeper_is_here = True
        hours.kinesis.forgotten = self._note_forgotten
        self._forgotten: set[int] = set()
        self._keeper = hours.broker
        self._publisher = hours.a_log()
        self._tasks = [hours.a_log(self.chance.choice((2000, 128_000_000))) for _ in range(3)]
        self._names = [hours.an_event_type(f"type-{number}", partitions) for number, partitions in enumerate((1, 2, 3))]
        self._cached: dict[str, EventType] = {}
        self._acknowledged: dict[Place, list[int]] = defaultdict(list)
        self._after: dict[Place, dict[int, int]] = defaultdict(dict)
        self._seen: dict[tuple[str, int, int], int] = {}
        self._leaps: list[tuple[Consumer, Position, int, int]] = []
        self._number = 0
        self._consumers = [
            Consumer((name, partition))
            for name in self._names
            for partition in range(self._get_event_type(name).timeline.partitions)
        ]
        self._consumers += [Consumer(each.place) for each in self._consumers]
        self._keeper.lost_events_recovery.run()  # a new deployment reads its stream at once

    # Steps of the simulated days

    def step(self) -> None:
        self.figures.steps += 1
        self._interrupting = self.chance.choice((0.0, 0.0, 0.05, 0.2))
        steps = (
            self.publish,
            self.consume,
            self.index,
            self.let_hours_pass,
            self.reshard,
            self.restart,
            self.switch,
            self.toggle_participant,
        )
        act = self.chance.choices(steps, (8, 8, 4, 6, 2, 1, 1, 3))[0]
        self._attempt(act)

    def _attempt(self, act: Callable[[], None]) -> None:
        try:
            act()
        except (Unavailable, Outcome):
            self.figures.unavailable += 1
        except Exception as error:  # noqa: BLE001  # any unclear outcome is counted
            self.figures.unclear.append(f"{act.__name__}: {error!r}")

    def publish(self) -> None:
        """Publish to a timeline that may no longer be the newest, as processes do that cache the event type."""
        name = self.chance.choice(self._names)
        event_type = self._cached.get(name) or self._get_event_type(name)
        partition = self.chance.randrange(event_type.timeline.partitions)
        values = [self._next() for _ in range(self.chance.randint(1, 3))]
        batches = {partition: [Record(b"%d" % value) for value in values]}
        # The checks compare values in the order of publication, so only one publisher may be at work.
        self._publishing = True
        try:
            fates = run_blocking(self._publisher.append(event_type.timeline.topic, batches))
        except (SealedTopic, UnknownTopic):
            self._cached.pop(name, None)
            return
        finally:
            self._publishing = False
            if self.chance.random() < 0.5:
                self._cached[name] = self._get_event_type(name)
        if fates[partition] == AppendStored():
            for value in values:
                known = self._acknowledged[name, partition]
                if known:
                    self._after[name, partition][known[-1]] = value
                known.append(value)

    def consume(self) -> None:
        consumer = self.chance.choice(self._consumers)
        self._go_on(consumer, self.chance.choice(self._tasks), at_once=self.chance.choice((1, 5, 1000)))

    def index(self) -> None:
        """Give the indexer some records of a shard, as Lambda may deliver them: again, too early, or cut in two."""
        if not self.indexer_is_here:
            return
        shard = self.chance.choice(self.hours.kinesis.listed())
        records = [
            ArrivedRecord(RecordPosition(shard.id, each.sequence), each.key, int(each.at * 1000), each.data)
            for each in shard.records
        ]
        if records:
            first = self.chance.randrange(len(records))
            self.hours.an_indexer().index(shard.id, records[first : first + self.chance.randint(1, 20)])

    def let_hours_pass(self) -> None:
        """Let hours pass, in which the participants that are present do their work."""
        left = self.chance.choice(LASTS)
        while left > 0:
            self.hours.pass_by(min(left, CHUNK))
            left -= CHUNK
            if self.indexer_is_here:
                self._attempt(self.hours.index_all)
            if self.keeper_is_here:
                self._attempt(self._keeper.lost_events_recovery.run)
            if self.chance.random() < 0.3:
                self._attempt(self.publish)
            for task in self._tasks[:-1]:
                # Open streams ask continuously. The last task has no streams, and reads seldom.
                self._attempt(lambda task=task: self._look(task))  # type: ignore[misc]
            if self.chance.random() < 0.3:
                self._attempt(self.consume)

    def reshard(self) -> None:
        shards = self.hours.kinesis.open()
        if len(shards) > 1 and self.chance.random() < 0.5:
            at = self.chance.randrange(len(shards) - 1)
            self.hours.kinesis.merge(shards[at], shards[at + 1])
        elif len(shards) < 4:
            self.hours.kinesis.split(self.chance.choice(shards))
        self.figures.reshards += 1

    def restart(self) -> None:
        self._tasks[self.chance.randrange(len(self._tasks))] = self.hours.a_log(self.chance.choice((2000, 128_000_000)))

    def switch(self) -> None:
        try:
            self.hours.broker.timelines.move_to_new_timeline(
                self.chance.choice(self._names), "default", UNAUTHENTICATED
            )
        except Conflict:
            self.figures.unavailable += 1

    def toggle_participant(self) -> None:
        """Let a participant leave or return."""
        if self.chance.random() < 0.7:
            self.indexer_is_here = not self.indexer_is_here
        else:
            self.keeper_is_here = not self.keeper_is_here

    def long_outage(self) -> None:
        self.indexer_is_here = False
        for hours_later in (0.1, 4, 9, 12):
            for _ in range(4):
                self._attempt(self.publish)
            self.hours.pass_by(hours_later)

    def _interrupt(self) -> None:
        if self._inside or self.chance.random() >= self._interrupting:
            return
        self._inside = True
        self.figures.interruptions += 1
        acts: tuple[Callable[[], None], ...] = (self._keep_house, self._index_at_once, self._a_moment, self._published)
        try:
            self._attempt(self.chance.choice(acts))
        finally:
            self._inside = False

    def _keep_house(self) -> None:
        if self.keeper_is_here:
            self.hours.a_broker(self._plain_index).lost_events_recovery.run()

    def _index_at_once(self) -> None:
        if self.indexer_is_here:
            self.hours.index_all(self._plain_index)

    def _a_moment(self) -> None:
        self.hours.pass_by(self.chance.choice((0.01, 0.1, 0.4)))

    def _published(self) -> None:
        if self._publishing:
            return
        log, self._publisher = self._publisher, self.hours.a_log(index=self._plain_index)
        try:
            self.publish()
        finally:
            self._publisher = log

    # Checks after the steps

    def finish(self) -> Figures:
        """Let all participants return and do their work, and then count the violations."""
        self._interrupting = 0.0
        self.indexer_is_here = self.keeper_is_here = True
        for _ in range(6):
            self._attempt(self._keeper.lost_events_recovery.run)
            self._attempt(self.hours.index_all)
            self.hours.pass_by(CHUNK)
        fresh = self.hours.a_log()
        found: dict[Place, set[int]] = {}
        for place in {each.place for each in self._consumers}:
            consumer = Consumer(place)
            self._attempt(lambda consumer=consumer: self._go_on(consumer, fresh))  # type: ignore[misc]
            found[place] = consumer.seen
            expected = set(self._acknowledged[place])
            self.figures.acknowledged += len(expected)
            self.figures.forgotten += len(expected & self._forgotten)
            self.figures.lost += len(expected - consumer.seen - self._forgotten)
        for consumer in self._consumers:
            self._attempt(lambda consumer=consumer: self._go_on(consumer, self.chance.choice(self._tasks)))  # type: ignore[misc]
            self.figures.missed += len(found[consumer.place] - consumer.seen)
        for consumer, position, before, after in self._leaps:
            self._judge_skipped_events(consumer, position, before, after, found[consumer.place])
        self.figures.left += len(self._keeper.logs.for_storage("default").gaps())  # type: ignore[attr-defined]
        self.figures.new_timelines = sum(
            timeline.after_loss for name in self._names for timeline in self._get_event_type(name).timelines
        )
        return self.figures

    def _judge_skipped_events(
        self, consumer: Consumer, position: Position, before: int, after: int, found: set[int]
    ) -> None:
        """Count events that a consumer skipped: it may skip only events that are stored nowhere any more, in a closed
        timeline.
        """
        passed = [value for value in self._acknowledged[consumer.place] if before < value < after]
        timeline = positions.timeline_with_order(self._get_event_type(consumer.place[0]), position.timeline)
        if timeline is None or not timeline.closed or found & set(passed) or not set(passed) <= self._forgotten:
            self.figures.skipped += 1
        else:
            self.figures.left_out += len(passed)

    # Helpers of the steps and checks

    def _go_on(self, consumer: Consumer, log: KinesisLog, at_once: int = 1000) -> None:
        name, partition = consumer.place
        while True:
            event_type = self._get_event_type(name)
            timeline, offset = positions.next_event_location(event_type, consumer.position, partition)
            try:
                piece = log.read(timeline.topic, partition, offset, limit=at_once)
            except OffsetUnavailable:
                self.figures.unclear.append(f"{name}/{partition}: {offset} of {timeline} is unavailable")
                return
            for event in piece.events:
                self._deliver(consumer, timeline.topic, Position(timeline.order, event.offset), event.record)
            if piece.next_offset == offset or at_once < 1000:
                return
            # The timeline may end in events that nobody can read any more; continue behind them.
            consumer.position = Position(timeline.order, piece.next_offset - 1)

    def _deliver(self, consumer: Consumer, topic: str, position: Position, record: Record) -> None:
        value = int(record.value or b"")
        self.figures.delivered += 1
        self.figures.doubled += self._seen.setdefault((topic, consumer.place[1], position.offset), value) != value
        same = position.timeline == consumer.position.timeline
        if same and consumer.last is not None and self._after[consumer.place].get(consumer.last) != value:
            self._leaps.append((consumer, position, consumer.last, value))
        if same and consumer.last is None and self._acknowledged[consumer.place][0] != value:
            self._leaps.append((consumer, position, -1, value))
        consumer.position, consumer.last = position, value
        consumer.seen.add(value)

    def _look(self, task: KinesisLog) -> None:
        for name in self._names:
            timeline = self._get_event_type(name).timeline
            task.bounds(timeline.topic, range(timeline.partitions))

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _get_event_type(self, name: str) -> EventType:
        return self.hours.broker.event_types.get(name)

    def _note_forgotten(self, shard: str, record: StoredRecord) -> None:
        indexed = self._plain_index.shard_progresses("live").get(shard)
        envelope = parse_envelope(record.data)
        is_whole = envelope is not None and envelope.kind == WHOLE_FRAME
        if is_whole and (not indexed or indexed.last_sequence < record.sequence):
            self._forgotten |= {int(each.value or b"") for each in frames.decode(envelope.frame) if each is not None}


@contextmanager
def start_outages(seed: int) -> Iterator[OutageSimulation]:
    names = random.Random(seed)
    with (
        run_in_hours(strict=bool(seed % 2)) as hours,
        patch("nakadi.event_types.timelines.uuid4", lambda: UUID(int=names.getrandbits(128))),
    ):
        random.seed(seed)
        yield OutageSimulation(seed, hours)


def days_of(seed: int, steps: int) -> Figures:
    """Simulate days of this number of steps. Halfway, for any seed, the indexer is away for more than a day."""
    with start_outages(seed) as made:
        for number in range(steps):
            if number == steps // 2:
                made.long_outage()
            made.step()
        return made.finish()

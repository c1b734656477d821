"""Parking and replaying: an event that consumers fail to process is parked, and so are later events of its key.

An event that has to be parked is parked before any later event is sent, because a later commit moves the cursor past
it. So every event that the cursor has passed was consumed or is parked, and no event of a key is sent as long as an
earlier one is parked.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from datetime import UTC, datetime
from itertools import groupby

from msgspec import Struct

from nakadi.model.event_type import EventType, Position
from nakadi.model.events import EventSlice, Record, StoredEvent
from nakadi.model.outcomes import Unavailable
from nakadi.model.subscription import CommitResult, EventTypePartition, ParkedEvent, ParkedEventInfo, Replay
from nakadi.ports.clock import Clock
from nakadi.ports.coordination import MAX_PARKED_BYTES_PER_CALL, MAX_PARKED_EVENTS_PER_CALL
from nakadi.streaming.chunks import EventChunk, EventRun
from nakadi.streaming.driver import EventSource
from nakadi.subscriptions.api.parked_events import ParkedEventStore, event_key, parking_key
from nakadi.subscriptions.stream.actions import GiveUpOnEvent, ParkEvents
from nakadi.subscriptions.stream.partition_progress import PartitionProgress

log = logging.getLogger(__name__)


def parking_calls(progress: PartitionProgress, runs: Iterable[EventRun]) -> Iterator[ParkEvents]:
    """The calls that park events, each for as many events as one write may park.

    A call also moves the cursor, unless earlier events still wait for a commit.
    """
    for events in _parking_batches(runs):
        end = events[-1].end
        progress.begin_parking(events)
        yield ParkEvents(
            partition=progress.partition,
            events=tuple(events),
            commit_position=end if progress.settled_position() >= end else None,
            replay_id=None if progress.replay is None else progress.replay.id,
            opening_number=progress.opening_number,
        )


class ParkingService(Struct, frozen=True):
    """Reads and writes the parked events of a subscription for one of its sessions. Without `parks_keys`, the policy
    parks no events, and no key is looked up."""

    store: ParkedEventStore
    clock: Clock
    parks_keys: bool

    def parked_keys(self, partition: EventTypePartition, replay: Replay | None) -> frozenset[str]:
        """The keys of a partition's parked events, except those that a replay sends again."""
        if not self.parks_keys:
            return frozenset()
        return frozenset(
            each.key for each in self.store.events(partition) if replay is None or not replay.includes(each)
        )

    def events_to_replay(
        self, partition: EventTypePartition, replay: Replay, behind: Position
    ) -> tuple[ParkedEventInfo, ...]:
        """The events of a replay that are not consumed yet."""
        return tuple(each for each in self.store.events(partition, after=(partition, behind)) if replay.includes(each))

    def event_value(self, parked: ParkedEventInfo) -> bytes | None:
        return self.store.coordination.parked_event_value(self.store.subscription_id, parked.partition, parked.position)

    def park_events(self, session: str, call: ParkEvents) -> CommitResult:
        return self._park(session, call.partition, call.events, 0, call.commit_position, call.replay_id)

    def park_failed(self, session: str, call: GiveUpOnEvent) -> CommitResult:
        """Park an event that consumers failed to process, and move the cursor past it, in one step."""
        return self._park(session, call.partition, [call.event], call.failed_streams, call.event.end, call.replay_id)

    def _park(
        self,
        session: str,
        partition: EventTypePartition,
        events: Sequence[EventRun],
        failed_streams: int,
        commit_position: Position | None,
        replay_id: str | None,
    ) -> CommitResult:
        now = self.clock.now()
        parked = [
            ParkedEvent(
                ParkedEventInfo(
                    partition=partition,
                    position=each.end,
                    key=parking_key(each.chunk.records[each.first].key, each.end),
                    failed_streams=failed_streams,
                    stored_at=each.stored_at(0),
                    parked_at=now,
                    replay=replay_id,
                    owner=each.chunk.records[each.first].owner,
                ),
                each.values[0],
            )
            for each in events
        ]
        return self.store.coordination.park_events(self.store.subscription_id, session, parked, now, commit_position)


def _parking_batches(runs: Iterable[EventRun]) -> Iterator[list[EventRun]]:
    """The events in groups, as many at a time as one write may park."""
    step: list[EventRun] = []
    size = 0
    for run in runs:
        for index in range(run.first, run.last):
            event = EventRun(run.chunk, index, index + 1)
            if step and (len(step) == MAX_PARKED_EVENTS_PER_CALL or size + event.size > MAX_PARKED_BYTES_PER_CALL):
                yield step
                step, size = [], 0
            step.append(event)
            size += event.size
    if step:
        yield step


# The number of parked events that a replay holds in memory at a time.
MAX_FETCHED_AT_ONCE = 20

FETCH_RETRY_INTERVAL_SECONDS = 1.0

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

FetchParkedValue = Callable[[ParkedEventInfo], bytes | None]


class ReplaySource:
    """A source that returns the parked events of a replay first, and then the events of the log. Events between these
    count as skipped.
    """

    def __init__(
        self,
        parked: Sequence[ParkedEventInfo],
        behind: Position,
        last_position: Position,
        fetch: FetchParkedValue,
        threads: Executor,
        onward: EventSource,
    ) -> None:
        self._parked = deque(parked)
        self._last = parked[-1].position if parked else behind
        self._last_position = last_position
        self._fetch = fetch
        self._threads = threads
        self._onward = onward
        self._runs: deque[EventRun] = deque()
        self._skipped = self._last >= last_position

    @property
    def is_topic_missing(self) -> bool:
        return self._is_replayed and self._onward.is_topic_missing

    @property
    def _is_replayed(self) -> bool:
        return not self._parked and not self._runs and self._skipped

    @property
    def needs_move(self) -> bool:
        return self._onward.needs_move if self._is_replayed else bool(self._parked) and not self._runs

    @property
    def has_more(self) -> bool:
        return not self._is_replayed or self._onward.has_more

    async def move_to_next_event(self, wake: Callable[[], None]) -> None:
        if self._is_replayed:
            await self._onward.move_to_next_event(wake)
            return
        some = [self._parked[index] for index in range(min(MAX_FETCHED_AT_ONCE, len(self._parked)))]
        loop = asyncio.get_running_loop()
        try:
            values = await loop.run_in_executor(self._threads, lambda: [self._fetch(each) for each in some])
        except Unavailable as error:
            log.warning("Reading parked events failed, trying again in %s s: %s", FETCH_RETRY_INTERVAL_SECONDS, error)
            loop.call_later(FETCH_RETRY_INTERVAL_SECONDS, wake)
            return
        # Events that were removed meanwhile are not sent.
        self._runs += event_runs([(each, value) for each, value in zip(some, values, strict=True) if value is not None])
        for _ in some:
            self._parked.popleft()

    def update_event_type(self, event_type: EventType) -> None:
        self._onward.update_event_type(event_type)

    def take_run(self) -> EventRun | None:
        if self._runs:
            return self._runs.popleft()
        if not self._parked and not self._skipped:
            self._skipped = True
            return empty_run_ending_at(self._last_position)
        return self._onward.take_run() if self._is_replayed else None

    def release(self) -> None:
        self._onward.release()


def event_runs(events: Sequence[tuple[ParkedEventInfo, bytes]]) -> Iterator[EventRun]:
    """The runs of parked events, with the positions and keys that they had in the log, one run for each timeline."""
    for order, group in groupby(events, key=lambda each: each[0].position.timeline):
        stored = tuple(
            StoredEvent(each.position.offset, Record(value, event_key(each), each.owner), each.stored_at)
            for each, value in group
        )
        yield EventChunk(order, stored[0].offset, EventSlice(stored, stored[-1].offset + 1)).run_from_offset(
            stored[0].offset
        )


def empty_run_ending_at(position: Position) -> EventRun:
    """A run that ends at a position and has no events to send."""
    nothing = StoredEvent(position.offset, Record(None), EPOCH)
    return EventChunk(position.timeline, position.offset, EventSlice((nothing,), position.offset + 1)).run_from_offset(
        position.offset
    )

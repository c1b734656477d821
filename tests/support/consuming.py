"""A subscription session without a broker: a test takes the place of its clock, its store and its client."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from nakadi.model.event_type import Position
from nakadi.model.events import Record
from nakadi.model.subscription import Assignment, CommittedOffset, EventTypePartition, PartitionAssignment
from nakadi.streaming.chunks import EventRun
from nakadi.subscriptions.api.fields import RetryPolicy
from nakadi.subscriptions.stream.actions import (
    OpenPartition,
    ProcessLease,
    SendBatch,
    SendKeepAlive,
    SessionAction,
    SessionContext,
    SharedState,
    SubscriptionStreamLimits,
)
from nakadi.subscriptions.stream.session import SubscriptionSession
from nakadi.subscriptions.stream.stream_memory import StreamMemory
from tests.support.builders import A_MOMENT
from tests.support.chunks import ReadingRules, some_events
from tests.support.coordination import a_place, a_session, entry

ME = "me"


def at(offset: int, timeline: int = 1) -> Position:
    return Position(timeline, offset)


def has_value(record: Record) -> bool:
    return record.value is not None


def distance(_place: EventTypePartition, first: Position, last: Position) -> int:
    return last.offset - first.offset


class SessionHarness:
    """`SessionHarness(0, 1)` has a session that owns partitions 0 and 1, of which nothing is committed, and reads both.

    `lines` are the client's lines: "0:0-4" is a batch with events 0 to 4 of partition 0, "0@4" a keep-alive line after
    event 4, and the text after a space is the debug info. `calls` are the session's calls to its environment.
    """

    def __init__(
        self,
        *partitions: int,
        policy: RetryPolicy | None = None,
        deliverable: Any = None,
        opening: bool = True,
        entries: Iterable[PartitionAssignment] = (),
        has_objective: bool = False,
        memory: StreamMemory | None = None,
        **limits: Any,
    ) -> None:
        self.now = 0.0
        self.lease = ProcessLease("", 1e9)
        self.rules = ReadingRules()
        self.opening = opening
        self.starts: dict[EventTypePartition, tuple[Position, int]] = {}
        self.lines: list[str] = []
        self.calls: list[SessionAction] = []
        context = SessionContext(
            measure_distance=distance,
            is_deliverable=lambda _, record: (deliverable or has_value)(record),
            lease=self.lease,
            reading_rules=self.rules,
            has_objective=lambda: has_objective,
            memory=memory,
        )
        defaults = {"batch_limit": 1, "stream_seconds": 4200, "flush_seconds": 30}
        self.session = SubscriptionSession(ME, SubscriptionStreamLimits(**defaults | limits), self.now, context, policy)
        owned = tuple(entry(each, ME) for each in partitions)
        self.assignment = Assignment(
            revision=1, initialised=True, entries=(*owned, *entries), sessions=(a_session(ME), a_session("other"))
        )
        self.offsets = {
            each.partition: CommittedOffset(at(-1), each.owner, A_MOMENT) for each in self.assignment.entries
        }
        self.pass_shared_state()

    # Facts

    def pass_shared_state(self, *, resetting: bool = False) -> None:
        self._take(self.session.handle_state(SharedState(self.assignment, dict(self.offsets), resetting), self.now))

    def change(self, *entries: PartitionAssignment) -> None:
        """Replace these entries, set their owners in the offsets, and pass the new state to the session."""
        new = {each.partition: each for each in entries}
        there = tuple(new.pop(each.partition, each) for each in self.assignment.entries)
        self.assignment = replace(
            self.assignment, revision=self.assignment.revision + 1, entries=(*there, *new.values())
        )
        for each in entries:
            before = self.offsets.get(each.partition, CommittedOffset(at(-1), None, A_MOMENT))
            self.offsets[each.partition] = replace(before, owner=each.owner)
        self.pass_shared_state()

    def commit(self, offset: int, partition: int = 0) -> None:
        self.offsets[a_place(partition)] = CommittedOffset(at(offset), ME, A_MOMENT)
        self.pass_shared_state()

    def arrive(self, events: EventRun | int, start: int = 0, partition: int = 0) -> None:
        """Pass events of a partition to the session: a number of events from offset `start`, or a given run."""
        run = some_events(events, start) if isinstance(events, int) else events
        self._take(self.session.handle_events(a_place(partition), run, self.now))

    def wait(self, seconds: float) -> None:
        """Let time pass, and wake the session at each of its deadlines. Fail if waking changes nothing and the session
        keeps the deadline: in a broker, it would spin.
        """
        until = self.now + seconds
        while not self.session.end and (deadline := self.session.next_tick_at()) <= until:
            self.now = max(self.now, deadline)
            self.tick()
            assert self.session.end or self.session.next_tick_at() > self.now, (
                f"The tick at {deadline} changes nothing."
            )
        self.now = until

    def tick(self) -> None:
        self._take(self.session.tick(self.now))

    def tell(self, actions: Iterable[SessionAction]) -> None:
        self._take(actions)

    # Results

    def take_messages(self) -> list[str]:
        """The client's lines since the last call of this method."""
        lines, self.lines = self.lines, []
        return lines

    def take_calls(self) -> list[SessionAction]:
        """The session's calls since the last call of this method, without openings that were answered."""
        calls, self.calls = self.calls, []
        return calls

    def _take(self, actions: Iterable[SessionAction]) -> None:
        for action in actions:
            match action:
                case SendBatch():
                    self.lines.append(_format_batch(action))
                case SendKeepAlive(place, position, info):
                    self.lines.append(f"{place.partition}@{position.offset} {info}".strip())
                case OpenPartition(place, position) if self.opening:
                    start, lost = self.starts.get(place, (position, 0))
                    self._take(self.session.handle_opening(action, start, lost, self.now))
                case _:
                    self.calls.append(action)


def _format_batch(batch: SendBatch) -> str:
    offsets = [run.chunk.events[index].offset for run in batch.runs for index in range(run.first, run.last)]
    assert batch.position.offset == offsets[-1]
    return f"{batch.partition.partition}:{offsets[0]}-{offsets[-1]} {batch.info}".strip()

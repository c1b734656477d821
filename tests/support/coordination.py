"""Sessions, entries and assignments with good defaults, and calls to a coordination."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

from nakadi.common.waiting import begin_task, run_blocking
from nakadi.model.event_type import Position
from nakadi.model.subscription import (
    EMPTY_ASSIGNMENT,
    Assignment,
    CommitResult,
    EventTypePartition,
    OffsetRange,
    ParkedEvent,
    ParkedEventInfo,
    PartitionAssignment,
    Session,
)
from nakadi.ports.coordination import CommitResultByPartition, Coordination
from tests.support.builders import A_MOMENT

LATER = A_MOMENT + timedelta(seconds=1)
SUBSCRIPTION = "1b6c"


def a_place(partition: int | str = 0, event_type: str = "order") -> EventTypePartition:
    return EventTypePartition(event_type, str(partition))


def places(*partitions: int) -> tuple[EventTypePartition, ...]:
    return tuple(a_place(each) for each in partitions)


def a_session(session_id: str, *requested: int, **changes: Any) -> Session:
    """A session that shares all partitions, or one that requests these by name."""
    defaults: dict[str, Any] = {
        "process_id": "this process",
        "started_at": A_MOMENT,
        "commit_timeout": 60.0,
        "requested_partitions": places(*requested),
    }
    return Session(id=session_id, **defaults | changes)


def entry(partition: int, told: str = "") -> PartitionAssignment:
    """The entry of a partition: "" has no owner, "a" belongs to a, and "a>b" belongs to a until it passes to b."""
    owner, _, following = told.partition(">")
    return PartitionAssignment(a_place(partition), owner or None, following or None)


def entries(*told: str) -> tuple[PartitionAssignment, ...]:
    """The entries of partitions 0, 1, 2, …, in the notation of `entry`."""
    return tuple(entry(partition, each) for partition, each in enumerate(told))


def format_partitions(them: Iterable[PartitionAssignment]) -> list[str]:
    """The notation of these entries, as `entry` reads it."""
    return [f"{each.owner or ''}{'>' + each.next_owner if each.next_owner else ''}" for each in them]


def an_assignment(*told: str, sessions: Iterable[Session] = (), **changes: Any) -> Assignment:
    defaults: dict[str, Any] = {"revision": 1, "initialised": True}
    return Assignment(entries=entries(*told), sessions=tuple(sessions), **defaults | changes)


def a_parked_event(offset: int, value: bytes = b"{}", timeline: int = 1, **changes: Any) -> ParkedEvent:
    """A parked event, in partition 0 by default."""
    defaults: dict[str, Any] = {
        "partition": a_place(),
        "position": Position(timeline, offset),
        "key": "a key",
        "failed_streams": 0,
        "stored_at": A_MOMENT,
        "parked_at": A_MOMENT,
    }
    return ParkedEvent(ParkedEventInfo(**defaults | changes), value)


def at(offset: int, timeline: int = 1) -> Position:
    return Position(timeline, offset)


def begin_assignment(
    coordination: Coordination, *told: str, sessions=(), subscription: str = SUBSCRIPTION
) -> Assignment:
    """Store an assignment whose partitions are all before their first event."""
    new = an_assignment(*told, sessions=sessions)
    positions = {each.partition: at(-1) for each in new.entries}
    return coordination.replace_assignment(subscription, EMPTY_ASSIGNMENT, new, A_MOMENT, positions)


def commit(
    coordination: Coordination, session: str, offset: int, partition: int = 0, timeline: int = 1
) -> CommitResult:
    place = a_place(partition)
    return run_blocking(coordination.commit(SUBSCRIPTION, session, {place: at(offset, timeline)}, LATER))[place]


def commit_ahead(
    coordination: Coordination, session: str, offset: int, *done: OffsetRange, partition: int = 0
) -> CommitResult:
    """Commit an offset, and ranges of later offsets that are done ahead of it."""
    place = a_place(partition)
    committing = coordination.commit(SUBSCRIPTION, session, {place: at(offset)}, LATER, {place: done})
    return run_blocking(committing)[place]


def commit_async(
    coordination: Coordination, session: str, positions: Mapping[EventTypePartition, Position]
) -> Future[CommitResultByPartition]:
    """Begin a commit, and return a future of its result; a second result would be an error."""
    outcome: Future[CommitResultByPartition] = Future()

    def done(found: CommitResultByPartition | Exception) -> None:
        if isinstance(found, Exception):
            outcome.set_exception(found)
        else:
            outcome.set_result(found)

    begin_task(coordination.commit(SUBSCRIPTION, session, positions, LATER), done)
    return outcome


def position(coordination: Coordination, partition: int = 0) -> Position:
    return coordination.committed_offsets(SUBSCRIPTION)[a_place(partition)].position

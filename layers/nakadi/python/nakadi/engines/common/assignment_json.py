"""Assignments as JSON text, as coordination engines store them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, assert_never

import orjson
from msgspec import to_builtins

from nakadi.common.converting import Converter
from nakadi.model.event_type import Position
from nakadi.model.subscription import (
    Assignment,
    EndedReset,
    EventTypePartition,
    PartitionAssignment,
    Redrive,
    Replay,
    Reset,
    ResetTask,
    Session,
    SetOffsets,
    Standstill,
    TimedOutSession,
)

_sessions = Converter(tuple[Session, ...])
_timed_out_sessions = Converter(tuple[TimedOutSession, ...])
_standstills = Converter(tuple[Standstill, ...])

_SESSION_FIELDS = Session.__struct_fields__.index("is_leaving")
_NOTHING_ASKED = list(Session.__struct_defaults__[1:])


def assignment_json(assignment: Assignment) -> str:
    """An assignment as text, without the revision, which is stored separately."""
    reset = assignment.reset
    body = {
        "initialised": assignment.initialised,
        "entries": [_entry_row(each) for each in assignment.entries],
        "sessions": [_session_row(each) for each in assignment.sessions],
        "reset": None if reset is None else _reset_row(reset),
    }
    # Tasks are stored under separate names, which older versions of the broker do not read.
    if reset is not None and reset.task is not None:
        body["wish"] = _reset_task_body(reset.task)
        body["claimed"] = reset.is_claimed
    if assignment.ended_reset is not None:
        body["ended"] = _ended_reset_row(assignment.ended_reset)
    if assignment.timed_out_sessions:
        body["timed_out"] = to_builtins(assignment.timed_out_sessions)
    if assignment.standstills:
        body["standstills"] = to_builtins(assignment.standstills)
    return orjson.dumps(body).decode()


def assignment_from_json(text: str | bytes, revision: int) -> Assignment:
    body = orjson.loads(text)
    ended = body.get("ended")
    return Assignment(
        revision=revision,
        initialised=body["initialised"],
        entries=tuple(_entry_from_row(each) for each in body["entries"]),
        sessions=_sessions.from_builtins(body["sessions"]),
        reset=None if body["reset"] is None else _reset_from_body(body),
        ended_reset=None if ended is None else _ended_reset_from_row(ended),
        timed_out_sessions=_timed_out_sessions.from_builtins(body.get("timed_out", ())),
        standstills=_standstills.from_builtins(body.get("standstills", ())),
    )


def _session_row(session: Session) -> Sequence[Any]:
    """A session as a row. Values that record requests are omitted while there is no request, so that the row is the
    same as in older versions of the broker.
    """
    row: list[Any] = to_builtins(session)
    return row if row[_SESSION_FIELDS:] != _NOTHING_ASKED else row[:_SESSION_FIELDS]


def _reset_row(reset: Reset) -> Sequence[str]:
    began = [] if reset.began_at is None else [reset.began_at.isoformat()]
    return [reset.id, reset.expires_at.isoformat(), *began]


def _reset_from_body(body: Mapping[str, Any]) -> Reset:
    task, (reset_id, *moments) = body.get("wish"), body["reset"]
    expires_at, began_at = (*map(datetime.fromisoformat, moments), None)[:2]
    assert expires_at is not None
    return Reset(
        reset_id,
        expires_at,
        began_at,
        None if task is None else _reset_task_from_body(task),
        body.get("claimed", False),
    )


def _ended_reset_row(ended: EndedReset) -> Sequence[Any]:
    return [
        ended.id,
        ended.ended_at.isoformat(),
        ended.failure,
        None if ended.task is None else _reset_task_body(ended.task),
    ]


def _ended_reset_from_row(row: Sequence[Any]) -> EndedReset:
    reset_id, at, failure, task = row
    return EndedReset(
        reset_id, datetime.fromisoformat(at), failure, None if task is None else _reset_task_from_body(task)
    )


def _reset_task_body(task: ResetTask) -> Mapping[str, Any]:
    match task:
        case SetOffsets(positions):
            offsets: dict[str, dict[str, Sequence[int]]] = {}
            for partition, position in positions:
                of_event_type = offsets.setdefault(partition.event_type, {})
                of_event_type[partition.partition] = [position.timeline, position.offset]
            return {"offsets": offsets}
        case Redrive(of):
            return {"redrive": None if of is None else [of[0].event_type, of[0].partition, of[1]]}
        case _:
            assert_never(task)


def _reset_task_from_body(body: Mapping[str, Any]) -> ResetTask:
    if "redrive" in body:
        if body["redrive"] is None:
            return Redrive()
        event_type, partition, key = body["redrive"]
        return Redrive((EventTypePartition(event_type, partition), key))
    return SetOffsets(
        tuple(
            (EventTypePartition(event_type, partition), Position(*position))
            for event_type, positions in body["offsets"].items()
            for partition, position in positions.items()
        )
    )


def _entry_row(entry: PartitionAssignment) -> Sequence[Any]:
    end = entry.search_end
    search_end = None if end is None else [end.timeline, end.offset]
    row = [
        entry.partition.event_type,
        entry.partition.partition,
        entry.owner,
        entry.next_owner,
        entry.failed_streams,
        search_end,
    ]
    return row if entry.replay is None else [*row, _replay_row(entry.replay)]


def _replay_row(replay: Replay) -> Sequence[Any]:
    return [replay.id, replay.last_position.timeline, replay.last_position.offset, replay.event_keys]


def _entry_from_row(row: Sequence[Any]) -> PartitionAssignment:
    event_type, partition, owner, following, fails, search_end, *rest = row
    end = None if search_end is None else Position(*search_end)
    replay = _replay_from_row(rest[0]) if rest else None
    return PartitionAssignment(EventTypePartition(event_type, partition), owner, following, fails, end, replay)


def _replay_from_row(row: Sequence[Any]) -> Replay:
    replay_id, timeline, offset, keys = row
    return Replay(replay_id, Position(timeline, offset), None if keys is None else tuple(keys))

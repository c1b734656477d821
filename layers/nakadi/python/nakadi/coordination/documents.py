"""Assignments as JSON text, there and back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import orjson

from nakadi.model.coordination import Assignment, Entry, Replay, Reset, Session
from nakadi.model.cursor import Position
from nakadi.model.subscription import EventTypePartition


def text_of(assignment: Assignment) -> str:
    """Everything but the revision, which is kept beside it."""
    reset = assignment.reset
    return orjson.dumps(
        {
            "initialised": assignment.initialised,
            "entries": [_entry_row(each) for each in assignment.entries],
            "sessions": [_session_row(each) for each in assignment.sessions],
            "reset": None if reset is None else _reset_body(reset),
        }
    ).decode()


def assignment_in(text: str | bytes, revision: int) -> Assignment:
    body = orjson.loads(text)
    reset = body["reset"]
    return Assignment(
        revision=revision,
        initialised=body["initialised"],
        entries=tuple(_entry_of(each) for each in body["entries"]),
        sessions=tuple(_session_of(each) for each in body["sessions"]),
        reset=None if reset is None else Reset(reset[0], *map(datetime.fromisoformat, reset[1:])),
    )


def _reset_body(reset: Reset) -> Sequence[str]:
    began = [] if reset.since is None else [reset.since.isoformat()]
    return [reset.id, reset.until.isoformat(), *began]


def _entry_row(entry: Entry) -> Sequence[Any]:
    end = entry.search_end
    search_end = None if end is None else [end.timeline, end.offset]
    row = [entry.place.event_type, entry.place.partition, entry.owner, entry.next, entry.fails, search_end]
    return row if entry.replay is None else [*row, _replay_row(entry.replay)]


def _replay_row(replay: Replay) -> Sequence[Any]:
    return [replay.id, replay.until.timeline, replay.until.offset, replay.keys]


def _entry_of(row: Sequence[Any]) -> Entry:
    event_type, partition, owner, following, fails, search_end, *rest = row
    end = None if search_end is None else Position(*search_end)
    replay = _replay_of(rest[0]) if rest else None
    return Entry(EventTypePartition(event_type, partition), owner, following, fails, end, replay)


def _replay_of(row: Sequence[Any]) -> Replay:
    replay_id, timeline, offset, keys = row
    return Replay(replay_id, Position(timeline, offset), None if keys is None else tuple(keys))


def _session_row(session: Session) -> Sequence[Any]:
    requested = [[each.event_type, each.partition] for each in session.requested]
    return [session.id, session.holder, session.started_at.isoformat(), session.commit_timeout, requested]


def _session_of(row: Sequence[Any]) -> Session:
    session_id, holder, started_at, commit_timeout, requested = row
    return Session(
        id=session_id,
        holder=holder,
        started_at=datetime.fromisoformat(started_at),
        commit_timeout=commit_timeout,
        requested=tuple(EventTypePartition(*each) for each in requested),
    )

"""The clerk carries out the calls of a session, one after the other; each may be carried out again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, assert_never

from nakadi.consuming.actions import Action, AutoCommit, Drop, HandOver, Note, Open
from nakadi.consuming.members import Members
from nakadi.consuming.session import Session
from nakadi.consuming.survey import Beginning
from nakadi.model.cursor import Position
from nakadi.model.subscription import EventTypePartition

Fact = Callable[[float], Sequence[Action]]
"""What a session is told, with the time."""


class Surveyor(Protocol):
    def beginning(self, place: EventTypePartition, stored: Position) -> Beginning:
        """Where to begin behind what is committed. Raises `Unusable` if there is no such place."""


class Undertaker(Protocol):
    def bury(self, drop: Drop) -> None:
        """See to an event that consumers failed at, before it counts as consumed."""


class Clerk:
    def __init__(self, members: Members, session: Session, surveyor: Surveyor, undertaker: Undertaker) -> None:
        self._members = members
        self._session = session
        self._surveyor = surveyor
        self._undertaker = undertaker

    def begin(self, opening: Open) -> Beginning:
        return self._surveyor.beginning(opening.place, opening.position)

    def perform(self, call: AutoCommit | HandOver | Note | Drop) -> Fact:
        """Carry it out, and say what the session is to be told. Raises `Unavailable`."""
        session = self._session
        match call:
            case HandOver(places, positions):
                self._members.commit(session.id, positions)
                revision = self._members.hand_over(session.id, places).revision
                return lambda now: session.handed_over(places, revision, now)
            case Note():
                self._members.note(session.id, call)
            case Drop():
                self._undertaker.bury(call)
                self._members.commit(session.id, {call.place: call.event.end})
            case AutoCommit(positions):
                self._members.commit(session.id, positions)
            case _:
                assert_never(call)
        return session.tick

"""The clerk carries out the calls of a session, one after the other; each may be carried out again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, assert_never

from nakadi.consuming.actions import Action, AutoCommit, Drop, EndReplay, HandOver, Note, Open, Park, Relearn
from nakadi.consuming.members import Members
from nakadi.consuming.parking import Attendant
from nakadi.consuming.session import Session
from nakadi.consuming.survey import Again, Beginning
from nakadi.metrics import Metrics
from nakadi.model.coordination import Replay, Verdict
from nakadi.model.cursor import Position
from nakadi.model.subscription import EventTypePartition

Fact = Callable[[float], Sequence[Action]]
"""What a session is told, with the time."""


Find = Callable[[EventTypePartition, Position], Beginning]
"""Where to begin behind what is committed. Raises `Unusable` if there is no such place."""


class Undertaker(Protocol):
    def bury(self, drop: Drop) -> None:
        """See to an event that consumers failed at, before it counts as consumed."""


class Clerk:
    """Without an `attendant` there is no lot."""

    def __init__(
        self,
        members: Members,
        session: Session,
        beginning_of: Find,
        undertaker: Undertaker,
        attendant: Attendant | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._members = members
        self._session = session
        self._beginning_of = beginning_of
        self._undertaker = undertaker
        self._attendant = attendant
        self._metrics = metrics or Metrics()

    def begin(self, opening: Open) -> Beginning:
        if self._attendant is None:
            return self._beginning_of(opening.place, opening.position)
        parked = self._attendant.keys(opening.place, opening.replay)
        return replace(self._beginning(opening, self._attendant), parked=parked)

    def _beginning(self, opening: Open, attendant: Attendant) -> Beginning:
        place, replay = opening.place, opening.replay
        if replay is None:
            return self._beginning_of(place, opening.position)
        onward = self._beginning_of(place, max(opening.position, replay.until))
        again = Again(attendant.again(place, replay, opening.position), replay.until, onward.start)
        return replace(onward, start=opening.position, again=again)

    def perform(self, call: AutoCommit | HandOver | Note | Drop | Park | Relearn | EndReplay) -> Fact:
        """Carry it out, and say what the session is to be told. Raises `Unavailable`."""
        session = self._session
        match call:
            case HandOver(places, positions):
                self._members.commit(session.id, positions)
                revision = self._members.hand_over(session.id, places).revision
                self._metrics.partitions_handed_over.add(len(places))
                return lambda now: session.handed_over(places, revision, now)
            case Note():
                self._members.note(session.id, call)
            case Drop():
                self._drop(call)
            case Park():
                if self._parked(call):
                    return lambda now: session.parked(call, now)
            case Relearn(place, replay):
                keys = self._attendant.keys(place, replay) if self._attendant else frozenset()
                return lambda _: session.learned(call, keys)
            case EndReplay(place, replay):
                self._end_replay(place, replay)
            case AutoCommit(positions):
                self._members.commit(session.id, positions)
            case _:
                assert_never(call)
        return session.tick

    def _drop(self, call: Drop) -> None:
        if self._attendant is not None and self._attendant.follows:
            if self._attendant.park_failed(self._session.id, call) is not Verdict.NOT_OWNED:
                self._metrics.events_parked.add(1, "failed")
            return
        self._undertaker.bury(call)
        self._members.commit(self._session.id, {call.place: call.event.end})

    def _parked(self, call: Park) -> bool:
        """Put events away; whether the partition was still ours."""
        assert self._attendant is not None, "nothing follows where there is no lot"
        parked = self._attendant.park(self._session.id, call) is not Verdict.NOT_OWNED
        if parked:
            self._metrics.events_parked.add(len(call.events), "followed")
        return parked

    def _end_replay(self, place: EventTypePartition, replay: Replay) -> None:
        """First the events go: what is left of a replay that was interrupted in between is nothing."""
        if self._attendant is not None:
            self._attendant.lot.clear(place, replay)
        self._members.end_replay(self._session.id, place, replay)

"""The path from a process to the store: calls and answers get lost, calls arrive twice, other processes are quicker,
and changes are not always reported.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Any, TypeVar

from nakadi.common.waiting import run_blocking
from nakadi.model.event_type import Position
from nakadi.model.outcomes import Unavailable
from nakadi.model.subscription import (
    Assignment,
    CommitResult,
    CommittedOffset,
    EventTypePartition,
    OffsetsCommitted,
    ParkedEvent,
    ParkedEventInfo,
    SubscriptionChange,
    SubscriptionChangeNotice,
)
from nakadi.ports.coordination import DoneAheadByPartition
from tests.simulation.history import History

Answer = TypeVar("Answer")


@dataclass(slots=True)
class Faults:
    """The probability of each kind of failure of a call; `others_move` is the probability that others act meanwhile."""

    call_lost: float = 0.03
    answer_lost: float = 0.03
    sent_twice: float = 0.03
    news_lost: float = 0.03
    others_move: float = 0.15

    def end(self) -> None:
        self.call_lost = self.answer_lost = self.sent_twice = self.news_lost = 0.0


class ProcessCrashed(BaseException):
    """Raised within the work of a process that crashes, which must not catch it."""


class UnreliableCoordination:
    """A `Coordination` with faults. `meanwhile` lets the rest of the world make moves; `actor` is the session that is
    calling, if any, and `letting_go` is whether it hands over partitions. The process that uses this coordination sets
    `alive`.
    """

    def __init__(
        self, store: Any, history: History, faults: Faults, random: Random, meanwhile: Callable[[], None]
    ) -> None:
        self.alive: Callable[[], bool] = lambda: True
        self._store = store
        self._history = history
        self._faults = faults
        self._random = random
        # Reports have their own random generator, because they may come from an engine's thread.
        self._hearing = Random(random.random())
        self.meanwhile = meanwhile
        self.actor = ""
        self.letting_go = False

    def assignment(self, subscription: str) -> Assignment:
        return self._call(lambda: self._store.assignment(subscription))

    def replace_assignment(
        self,
        subscription: str,
        old: Assignment,
        new: Assignment,
        now: datetime,
        positions: Mapping[EventTypePartition, Position] | None = None,
    ) -> Assignment:
        actor, letting_go = self.actor, self.letting_go

        def read_written() -> Assignment:
            stored = self._store.replace_assignment(subscription, old, new, now, positions)
            self._history.check_written_assignment(
                actor, stored, self._store.committed_offsets(subscription), handing_over=letting_go
            )
            return stored

        return self._call(read_written)

    def committed_offsets(self, subscription: str) -> Mapping[EventTypePartition, CommittedOffset]:
        return self._call(lambda: self._store.committed_offsets(subscription))

    async def commit(
        self,
        subscription: str,
        session: str,
        positions: Mapping[EventTypePartition, Position],
        now: datetime,
        done_ahead: DoneAheadByPartition | None = None,
    ) -> Mapping[EventTypePartition, CommitResult]:
        def list_committed() -> Mapping[EventTypePartition, CommitResult]:
            verdicts = run_blocking(self._store.commit(subscription, session, positions, now, done_ahead))
            offsets = self._store.committed_offsets(subscription)
            for place, verdict in verdicts.items():
                if verdict is CommitResult.COMMITTED:
                    self._history.record_commit(place, offsets[place])
            return verdicts

        return self._call(list_committed)

    def park_events(
        self,
        subscription: str,
        session: str,
        events: Sequence[ParkedEvent],
        now: datetime,
        upto: Position | None = None,
    ) -> CommitResult:
        def list_parked() -> CommitResult:
            place = events[0].parked.partition
            verdict = self._store.park_events(subscription, session, events, now, upto)
            if verdict is CommitResult.COMMITTED:
                self._history.record_parked(place, [each.parked.position.offset for each in events])
                if upto is not None:
                    self._history.record_commit(place, self._store.committed_offsets(subscription)[place])
            return verdict

        return self._call(list_parked)

    def list_parked_events(self, subscription: str, **wanted: Any) -> Sequence[ParkedEventInfo]:
        return self._call(lambda: self._store.list_parked_events(subscription, **wanted))

    def renew_lease(self, holder: str, until: datetime) -> None:
        self._call(lambda: self._store.renew_lease(holder, until))

    def release_lease(self, holder: str) -> None:
        self._call(lambda: self._store.release_lease(holder))

    def lease_expiries(self) -> Mapping[str, datetime]:
        return self._call(self._store.lease_expiries)

    def add_change_listener(
        self, subscription: str, changed: Callable[[SubscriptionChangeNotice], None]
    ) -> Callable[[], None]:
        """A report of a commit through another process only says that there was a commit. A store may report its own
        change again, from a thread that reads its file; this method ignores such reports, because no seed determines
        when they come.
        """
        thread = threading.get_ident()

        def hear_notice(what: SubscriptionChangeNotice) -> None:
            if threading.get_ident() != thread:
                return
            luck = self._hearing.random()
            if luck >= self._faults.news_lost:
                changed(SubscriptionChange.OFFSETS if isinstance(what, OffsetsCommitted) and luck < 0.5 else what)

        return self._store.add_change_listener(subscription, hear_notice)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _call(self, call: Callable[[], Answer]) -> Answer:
        faults, context = self._faults, (self.actor, self.letting_go)
        if self._random.random() < faults.others_move:
            self.meanwhile()
            self.actor, self.letting_go = context
            if not self.alive():
                raise ProcessCrashed
        fate = self._random.random()
        if fate < faults.call_lost:
            raise Unavailable("the call was lost")
        answer = call()
        if fate > 1 - faults.answer_lost:
            raise Unavailable("the answer was lost")
        if fate > 1 - faults.answer_lost - faults.sent_twice:
            # The call arrives twice, and the caller gets the second answer.
            return call()
        return answer

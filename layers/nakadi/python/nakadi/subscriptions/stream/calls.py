"""Carrying out the calls of a session, one after the other, and publishing dead letters.

Each call may be carried out again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, assert_never
from uuid import uuid4

import orjson
from msgspec import Struct, field
from msgspec.structs import replace

from nakadi.common.metrics import Metrics
from nakadi.event_types.system_event_types import SystemEventTypes
from nakadi.model.coordination import Replay, Verdict
from nakadi.model.cursor import Position
from nakadi.model.outcomes import TryLater
from nakadi.model.subscription import EventTypePartition, Subscription
from nakadi.ports.clock import Clock
from nakadi.publishing import outcome as publishing_outcome
from nakadi.publishing.publisher import Publisher
from nakadi.publishing.system_events import BROKER
from nakadi.subscriptions.api.fields import UnprocessablePolicy, policy_of
from nakadi.subscriptions.stream.actions import (
    AutoCommit,
    DropEvent,
    EndReplay,
    HandOver,
    OpenPartition,
    ParkEvents,
    RecordFailures,
    ReloadParkedKeys,
    SessionAction,
)
from nakadi.subscriptions.stream.admission import PartitionStart, PlannedReplay
from nakadi.subscriptions.stream.members import SubscriptionSessions
from nakadi.subscriptions.stream.parking import ParkingService
from nakadi.subscriptions.stream.session import SubscriptionSession

SessionFact = Callable[[float], Sequence[SessionAction]]
"""What a session is told, with the time."""


FindStart = Callable[[EventTypePartition, Position], PartitionStart]
"""Where to begin behind what is committed. Raises `Unusable` if there is no such place."""


class HandlesUnprocessable(Protocol):
    def bury(self, drop: DropEvent) -> None:
        """See to an event that consumers failed at, before it counts as consumed."""


class SessionCallExecutor:
    """Without an `attendant` there is no lot."""

    def __init__(
        self,
        members: SubscriptionSessions,
        session: SubscriptionSession,
        beginning_of: FindStart,
        undertaker: HandlesUnprocessable,
        attendant: ParkingService | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._members = members
        self._session = session
        self._beginning_of = beginning_of
        self._undertaker = undertaker
        self._attendant = attendant
        self._metrics = metrics or Metrics()

    def begin(self, opening: OpenPartition) -> PartitionStart:
        if self._attendant is None:
            return self._beginning_of(opening.place, opening.position)
        parked = self._attendant.keys(opening.place, opening.replay)
        return replace(self._beginning(opening, self._attendant), parked=parked)

    def _beginning(self, opening: OpenPartition, attendant: ParkingService) -> PartitionStart:
        place, replay = opening.place, opening.replay
        if replay is None:
            return self._beginning_of(place, opening.position)
        onward = self._beginning_of(place, max(opening.position, replay.until))
        again = PlannedReplay(attendant.again(place, replay, opening.position), replay.until, onward.start)
        return replace(onward, start=opening.position, again=again)

    def perform(
        self, call: AutoCommit | HandOver | RecordFailures | DropEvent | ParkEvents | ReloadParkedKeys | EndReplay
    ) -> SessionFact:
        """Carry it out, and say what the session is to be told. Raises `Unavailable`."""
        session = self._session
        match call:
            case HandOver(places, positions):
                self._members.commit(session.id, positions)
                revision = self._members.hand_over(session.id, places).revision
                self._metrics.partitions_handed_over.add(len(places))
                return lambda now: session.handed_over(places, revision, now)
            case RecordFailures():
                self._members.note(session.id, call)
            case DropEvent():
                self._drop(call)
            case ParkEvents():
                if self._parked(call):
                    return lambda now: session.parked(call, now)
            case ReloadParkedKeys(place, replay):
                keys = self._attendant.keys(place, replay) if self._attendant else frozenset()
                return lambda _: session.learned(call, keys)
            case EndReplay(place, replay):
                self._end_replay(place, replay)
            case AutoCommit(positions):
                self._members.commit(session.id, positions)
            case _:
                assert_never(call)
        return session.tick

    def _drop(self, call: DropEvent) -> None:
        if self._attendant is not None and self._attendant.follows:
            if self._attendant.park_failed(self._session.id, call) is not Verdict.NOT_OWNED:
                self._metrics.events_parked.add(1, "failed")
            return
        self._undertaker.bury(call)
        self._members.commit(self._session.id, {call.place: call.event.end})

    def _parked(self, call: ParkEvents) -> bool:
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


# Dead letters ---------------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)


class DeadLetterPublisher(Struct, frozen=True, kw_only=True):
    """The store of a broker: an event type of its own."""

    own: SystemEventTypes
    publisher: Publisher
    clock: Clock
    name: str
    metrics: Metrics = field(default_factory=Metrics)

    def keep(self, subscription_id: str, drop: DropEvent) -> None:
        """Publish an event to the store. Raises `TryLater` if that did not work."""
        self.own.ensure(self.name)
        letter = {**dead_letter_of(subscription_id, drop), "metadata": self._metadata()}
        try:
            outcome = self.publisher.publish(self.name, orjson.dumps([letter]), BROKER, flow_id="")
        except Exception:
            self.metrics.dead_letters.add(1, "failed")
            raise
        self.metrics.dead_letters.add(1, "stored" if outcome.verdict is publishing_outcome.Verdict.STORED else "failed")
        if outcome.verdict is not publishing_outcome.Verdict.STORED:
            log.warning("A dead letter was not stored in %s: %s", self.name, outcome.items)
            raise TryLater(f"A dead letter was not stored in {self.name}")

    def _metadata(self) -> Mapping[str, str]:
        return {"eid": str(uuid4()), "occurred_at": self.clock.now().isoformat()}


class UnprocessableEventHandler(Struct, frozen=True):
    """Deals with a subscription's unprocessable events as its policy says."""

    letters: DeadLetterPublisher
    subscription: Subscription

    def bury(self, drop: DropEvent) -> None:
        policy = policy_of(self.subscription.annotations)
        if policy is not None and policy.kind is UnprocessablePolicy.DEAD_LETTER_QUEUE:
            self.letters.keep(self.subscription.id, drop)
        else:
            self.letters.metrics.events_skipped.add()


def dead_letter_of(subscription_id: str, drop: DropEvent) -> Mapping[str, Any]:
    """What is told of a dropped event, without metadata of its own."""
    return {
        "subscription_id": subscription_id,
        "event_type": drop.place.event_type,
        "partition": drop.place.partition,
        "offset": str(drop.event.end),
        "error": {"message": f"Nakadi Auto DLQ: skipped due to failed commits count: {drop.fails}"},
        "event": _with_metadata(drop),
    }


def _with_metadata(drop: DropEvent) -> Mapping[str, Any]:
    """The event. What the store insists on and the event does not have is made up, so that every event can go there."""
    event: dict[str, Any] = orjson.loads(drop.event.values[0])
    known = event.get("metadata")
    made_up = {
        "event_type": drop.place.event_type,
        "eid": str(uuid4()),
        "occurred_at": drop.event.stored_at(0).isoformat(),
    }
    return {**event, "metadata": {**made_up, **known} if isinstance(known, dict) else made_up}

"""Operators that set offsets and add partitions, step by step, and the event type that all processes share."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from nakadi.model.event_type import EventType, Position
from nakadi.model.outcomes import Conflict, TryLater, Unavailable
from nakadi.model.subscription import ReadFrom, SetOffsets, Subscription
from nakadi.subscriptions.api.assignments import RESET_TIMED_OUT_MESSAGE
from nakadi.subscriptions.api.lease_watch import LeaseWatch
from nakadi.subscriptions.api.offsets import OffsetInitialisation, ResetExecution, ResetRequests
from tests.simulation.clocks import START, SkewedClock
from tests.simulation.history import History, Place
from tests.simulation.wire import UnreliableCoordination
from tests.support.builders import a_timeline, an_event_type

SUBSCRIPTION = "the subscription"
EVENT_TYPE = "order"


def a_subscription(read_from: ReadFrom) -> Subscription:
    return Subscription(
        id=SUBSCRIPTION,
        owning_application="shop",
        event_types=(EVENT_TYPE,),
        read_from=read_from,
        created_at=START,
        updated_at=START,
    )


class SimulatedEventType:
    """The event type, with the methods of `EventTypes` and `CursorResolver`."""

    def __init__(self, history: History, partitions: int) -> None:
        self._history = history
        self._event_type = an_event_type(name=EVENT_TYPE)
        self.grow(partitions)

    def grow(self, partitions: int) -> None:
        timeline = a_timeline(id="timeline", topic="topic", partitions=partitions)
        self._event_type = an_event_type(name=EVENT_TYPE, id="order", timelines=(timeline,))
        self._history.grow(Place(EVENT_TYPE, each) for each in self._event_type.partitions)

    def get(self, _name: str) -> EventType:
        return self._event_type

    def positions_before_oldest(self, event_type: EventType) -> Mapping[str, Position]:
        return {each: Position(1, self._history.oldest[_place(each)] - 1) for each in event_type.partitions}

    def end_positions(self, event_type: EventType) -> Mapping[str, Position]:
        return {each: Position(1, len(self._history.events[_place(each)]) - 1) for each in event_type.partitions}


def make_offset_initialisation(
    topic: SimulatedEventType, wire: UnreliableCoordination, clock: SkewedClock
) -> OffsetInitialisation:
    known: Any = topic
    coordination: Any = wire
    return OffsetInitialisation(event_types=known, cursor_resolver=known, coordination=coordination, clock=clock)


def _place(partition: str) -> Place:
    return Place(EVENT_TYPE, partition)


class ResetOperator:
    """Requests a reset or, without positions, the end of all streams. Some callers leave before the reset ends."""

    def __init__(
        self, wire: UnreliableCoordination, clock: SkewedClock, positions: dict[Place, Position], *, stays: bool = True
    ) -> None:
        self._fulfilment = make_reset_execution(wire, clock)
        self._resets = ResetRequests(execution=self._fulfilment, max_commit_timeout=5.0)
        self._clock = clock
        self._reset = ""
        self._until = clock.monotonic() + 6.0
        self._stays = stays
        self.positions = positions
        self.state = "new"

    def step(self) -> None:
        try:
            self.state = self._next()
        except (Conflict, TryLater, Unavailable):
            self.state = "over"

    def _next(self) -> str:
        if self.state == "new":
            task = SetOffsets(tuple(sorted(self.positions.items())))
            self._reset = self._resets.request_reset(SUBSCRIPTION, task)
            return "waiting" if self._stays else "over"
        standing = self._fulfilment.try_to_execute(SUBSCRIPTION).reset
        if standing is None or standing.id != self._reset:
            return "over"
        if self._clock.monotonic() > self._until:
            self._fulfilment.abandon_reset(SUBSCRIPTION, self._reset, RESET_TIMED_OUT_MESSAGE)
            return "over"
        return "waiting"


def make_reset_execution(wire: UnreliableCoordination, clock: SkewedClock) -> ResetExecution:
    coordination: Any = wire
    return ResetExecution(
        coordination=coordination, leases=LeaseWatch(coordination, clock), clock=clock, plan_replays=lambda *_: {}
    )


class RepartitioningOperator:
    """Adds one partition. The operator repeats the request until there is an answer."""

    def __init__(
        self, subscription: Subscription, topic: SimulatedEventType, wire: UnreliableCoordination, clock: SkewedClock
    ) -> None:
        self._subscription = subscription
        self._topic = topic
        self._wire = wire
        self._clock = clock
        self._initialisation = make_offset_initialisation(topic, wire, clock)
        self._count = len(topic.get(EVENT_TYPE).partitions) + 1
        self._closing: ResetOperator | None = None
        self.state = "new"

    def step(self) -> None:
        with contextlib.suppress(Unavailable, TryLater):
            self.state = self._next()

    def _next(self) -> str:
        if self._closing is not None:
            self._closing.step()
            return self._closing.state
        if self.state == "new":
            self._initialisation.ensure_initialised(self._subscription)
            self._topic.grow(self._count)
            return "grown"
        _, extended = self._initialisation.ensure_entries_for_event_type(
            self._subscription, self._topic.get(EVENT_TYPE)
        )
        if not extended:
            return "over"
        self._closing = ResetOperator(self._wire, self._clock, {})
        return "closing"

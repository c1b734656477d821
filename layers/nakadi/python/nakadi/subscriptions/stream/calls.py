"""Carries out the calls of a session, in order, and publishes dead letters.

Each call may be repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, assert_never
from uuid import uuid4

import orjson
from msgspec import Struct
from msgspec.structs import replace

from nakadi.common.metrics import Metrics
from nakadi.event_types.system_event_types import SystemEventTypes
from nakadi.model.event_type import Position
from nakadi.model.outcomes import TryLater
from nakadi.model.subscription import CommitResult, EventTypePartition, Replay, Subscription
from nakadi.ports.clock import Clock
from nakadi.publishing import batch as publishing_batch
from nakadi.publishing.publisher import Publisher
from nakadi.publishing.system_events import BROKER_SUBJECT
from nakadi.streaming.chunks import EventRun
from nakadi.subscriptions.api.fields import UnprocessablePolicy, retry_policy_from_annotations
from nakadi.subscriptions.stream.actions import (
    AutoCommit,
    EndReplay,
    FailureCountChange,
    GiveUpOnEvent,
    GrantExtension,
    HandOverPartitions,
    OpenPartition,
    ParkEvents,
    ReloadParkedKeys,
    SessionAction,
)
from nakadi.subscriptions.stream.admission import PartitionStart, PlannedReplay
from nakadi.subscriptions.stream.members import SubscriptionSessions
from nakadi.subscriptions.stream.parking import ParkingService
from nakadi.subscriptions.stream.session import SubscriptionSession

log = logging.getLogger(__name__)

ApplySessionFact = Callable[[float], Sequence[SessionAction]]
"""The outcome of a call, as a function that passes it to the session with the current time."""


FindStart = Callable[[EventTypePartition, Position], PartitionStart]
"""Returns where reading begins after the committed position. Raises `UnusableCursor` if there is no such position."""


HandleUnprocessableEvent = Callable[[GiveUpOnEvent], None]
"""Applies the policy to an unprocessable event, before the event counts as consumed."""


class SessionCallExecutor:
    """Carries out the calls of one session. Without `parking`, no event can be parked.

    It works in threads, one call at a time. The session belongs to the event loop, so this class reads only its id, and
    returns facts, which the driver passes to the session on the loop.
    """

    def __init__(
        self,
        members: SubscriptionSessions,
        session: SubscriptionSession,
        find_start: FindStart,
        unprocessable: HandleUnprocessableEvent,
        parking: ParkingService | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._members = members
        self._session = session
        self._find_start = find_start
        self._unprocessable = unprocessable
        self._parking = parking
        self._metrics = metrics or Metrics()

    def find_start(self, opening: OpenPartition) -> PartitionStart:
        """Find where reading begins. Raises `Unavailable`, and `UnusableCursor` if there is no such position."""
        if self._parking is None:
            return self._find_start(opening.partition, opening.position)
        parked = self._parking.parked_keys(opening.partition, opening.replay)
        return replace(self._start_with_replay(opening, self._parking), parked_keys=parked)

    def _start_with_replay(self, opening: OpenPartition, parking: ParkingService) -> PartitionStart:
        partition, replay = opening.partition, opening.replay
        if replay is None:
            return self._find_start(partition, opening.position)
        onward = self._find_start(partition, max(opening.position, replay.last_position))
        events = parking.events_to_replay(partition, replay, opening.position)
        again = PlannedReplay(events, replay.last_position, onward.position)
        return replace(onward, position=opening.position, planned_replay=again)

    def perform(
        self,
        call: AutoCommit
        | HandOverPartitions
        | FailureCountChange
        | GiveUpOnEvent
        | ParkEvents
        | ReloadParkedKeys
        | EndReplay
        | GrantExtension,
    ) -> ApplySessionFact:
        """Carry out a call, and return its outcome as a fact for the session. Raises `Unavailable`."""
        session = self._session
        match call:
            case HandOverPartitions(partitions, positions):
                # The order matters: a commit is refused as soon as the partition belongs to another session. Commit
                # first, then hand over. If the second step fails, both are repeated, and the commits stay.
                self._members.commit(session.id, positions)
                revision = self._members.hand_over(session.id, partitions).revision
                self._metrics.partitions_handed_over.add(len(partitions))
                return lambda now: session.end_hand_over(partitions, revision, now)
            case FailureCountChange():
                self._members.change_failure_count(session.id, call)
            case GiveUpOnEvent():
                self._park_or_drop_event(call)
            case ParkEvents():
                if self._park_events(call):
                    return lambda now: session.handle_parking_end(call, now)
            case ReloadParkedKeys(partition, replay):
                keys = self._parking.parked_keys(partition, replay) if self._parking else frozenset()
                return lambda _: session.handle_parked_keys(call, keys)
            case EndReplay(partition, replay):
                self._end_replay(partition, replay)
            case AutoCommit(positions):
                self._members.commit(session.id, positions)
            case GrantExtension(number, commit_by):
                self._members.grant_extension(session.id, number, commit_by)
            case _:
                assert_never(call)
        return session.tick

    def _park_or_drop_event(self, call: GiveUpOnEvent) -> None:
        if self._parking is not None and self._parking.parks_keys:
            if self._parking.park_failed(self._session.id, call) is not CommitResult.NOT_OWNED:
                self._metrics.events_parked.add(1, "failed")
                self._log_parked(call.partition, [call.event], f"{call.failed_streams} streams failed at it")
            return
        # First the event is published, then the cursor is committed: if the process dies in between, the event is
        # published twice, but not lost. Parking, which is done above, does both in one write.
        self._unprocessable(call)
        self._members.commit(self._session.id, {call.partition: call.event.end})

    def _park_events(self, call: ParkEvents) -> bool:
        """Park events, and return whether the partition was still the session's."""
        assert self._parking is not None, "only a session with parking parks events"
        parked = self._parking.park_events(self._session.id, call) is not CommitResult.NOT_OWNED
        if parked:
            self._metrics.events_parked.add(len(call.events), "followed")
            self._log_parked(call.partition, call.events, "following a parked event of the same key")
        return parked

    def _log_parked(self, partition: EventTypePartition, events: Sequence[EventRun], reason: str) -> None:
        """Log one line for all, because many events may follow a parked one."""
        log.info(
            "Parked %s offset %s of partition %s of %s for subscription %s: %s",
            "the event at" if len(events) == 1 else f"{len(events)} events up to",
            events[-1].end,
            partition.partition,
            partition.event_type,
            self._members.subscription_id,
            reason,
        )

    def _end_replay(self, partition: EventTypePartition, replay: Replay) -> None:
        """Remove the consumed events, and then end the replay: if this call is interrupted and repeated, it finds no
        events left to remove."""
        if self._parking is not None:
            self._parking.store.remove_replayed(partition, replay)
        self._members.end_replay(self._session.id, partition, replay)


class DeadLetterPublisher(Struct, frozen=True, kw_only=True):
    """Publishes to the dead letter queue of a broker, which is a separate event type."""

    system_event_types: SystemEventTypes
    publisher: Publisher
    clock: Clock
    event_type_name: str
    metrics: Metrics

    def publish_or_skip(self, subscription: Subscription, dropped: GiveUpOnEvent) -> None:
        """Drop an unprocessable event as its subscription's policy says: publish it to the queue, or skip it."""
        policy = retry_policy_from_annotations(subscription.annotations)
        if policy is not None and policy.kind is UnprocessablePolicy.DEAD_LETTER_QUEUE:
            self.publish(subscription.id, dropped)
        else:
            self.metrics.events_skipped.add()

    def publish(self, subscription_id: str, dropped: GiveUpOnEvent) -> None:
        """Publish an event to the dead letter queue. Raises `TryLater` if that failed."""
        self.system_event_types.ensure_exists(self.event_type_name)
        letter = {**dead_letter_event(subscription_id, dropped), "metadata": self._new_metadata()}
        try:
            outcome = self.publisher.publish(self.event_type_name, orjson.dumps([letter]), BROKER_SUBJECT, flow_id="")
        except Exception:
            self.metrics.dead_letters.add(1, "failed")
            raise
        is_stored = outcome.status is publishing_batch.BatchStatus.STORED
        self.metrics.dead_letters.add(1, "stored" if is_stored else "failed")
        if not is_stored:
            log.warning("Publishing a dead letter to %s failed: %s", self.event_type_name, outcome.items)
            raise TryLater(f"A dead letter was not stored in {self.event_type_name}")

    def _new_metadata(self) -> Mapping[str, str]:
        return {"eid": str(uuid4()), "occurred_at": self.clock.now().isoformat()}


def dead_letter_event(subscription_id: str, dropped: GiveUpOnEvent) -> Mapping[str, Any]:
    """The dead letter of a dropped event, with no metadata yet."""
    return {
        "subscription_id": subscription_id,
        "event_type": dropped.partition.event_type,
        "partition": dropped.partition.partition,
        "offset": str(dropped.event.end),
        "error": {"message": f"Nakadi Auto DLQ: skipped due to failed commits count: {dropped.failed_streams}"},
        "event": _event_with_metadata(dropped),
    }


def _event_with_metadata(dropped: GiveUpOnEvent) -> Mapping[str, Any]:
    """The event, with substitutes for missing metadata that the dead letter queue requires."""
    event: dict[str, Any] = orjson.loads(dropped.event.values[0])
    known = event.get("metadata")
    made_up = {
        "event_type": dropped.partition.event_type,
        "eid": str(uuid4()),
        "occurred_at": dropped.event.stored_at(0).isoformat(),
    }
    return {**event, "metadata": {**made_up, **known} if isinstance(known, dict) else made_up}

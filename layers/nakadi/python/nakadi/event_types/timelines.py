"""Timelines: moves event types to a new topic, perhaps in another storage.

The new topic is created first, so that an unreachable storage stops a switch before it begins. The switch itself has
two writes. The first announces the new timeline, so that no other switch can begin. Then the old topic is sealed:
publishers find it closed, and read the event type again until the second write has put the new timeline in use. Each
step can be repeated. If a store fails meanwhile, the request tries again for a few seconds, because publishers wait; a
switch that was interrupted for longer is finished by the next one or by housekeeping.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import replace

from nakadi.auth.features import Features
from nakadi.auth.permissions import Permissions, permission_denied_error
from nakadi.event_types.deduplication import check_storage_deduplicates
from nakadi.event_types.repository import EventTypes
from nakadi.event_types.storages import Storages
from nakadi.event_types.timeline_states import TimelineFact, timeline_after
from nakadi.model.authorization import Operation, Resource, ResourceType, Subject
from nakadi.model.event_type import CleanupPolicy, EventType, Timeline
from nakadi.model.events import TopicContinuation
from nakadi.model.outcomes import Conflict, Fault, Invalid, NotFound, TryLater
from nakadi.ports.clock import Clock
from nakadi.ports.deduplication import DeduplicatingLogs
from nakadi.ports.event_log import EventLogs
from nakadi.ports.registry import ChangedMeanwhile, DocumentChange

log = logging.getLogger(__name__)

# A switch takes less than a second: one that has taken this long was interrupted. A switch that began in the future,
# before a clock was set back, also counts as interrupted. A process that is still working on such a switch finds that
# it is finished, and does no harm.
SWITCH_ABANDONED_AFTER = timedelta(seconds=30)

COMPLETION_PAUSES_SECONDS = (0.1, 0.4, 1.5, 4.0)
"""The pauses between the attempts of a request to complete what it began, while a store fails. Together, they are
shorter than publishers wait."""


class Timelines(Struct, frozen=True, kw_only=True):
    event_types: EventTypes
    storages: Storages
    permissions: Permissions
    features: Features
    logs: EventLogs
    deduplication: DeduplicatingLogs
    clock: Clock
    sleep: Callable[[float], None] = time.sleep

    def timelines_of(self, name: str, subject: Subject) -> tuple[Timeline, ...]:
        """All timelines, by order. Only administrators get to know whether the event type exists."""
        self._require_administrator(name, Operation.READ, subject)
        event_type = self._get_event_type(name)
        return (*event_type.timelines, *([event_type.switching_to] if event_type.switching_to else []))

    def move_to_new_timeline(self, name: str, storage_id: str | None, subject: Subject) -> None:
        """Move an event type to a new timeline in a storage. Returns when the new timeline is in use."""
        self.require_may_switch(name, subject)
        announced = self.event_types.retry_if_changed(lambda: self._announce_unless_compacted(name, storage_id))
        self.retry_while_stores_fail(lambda: self.complete_switch(announced))

    def require_may_switch(self, name: str, subject: Subject) -> None:
        """Raise unless the subject may begin timelines of this event type, and the registry accepts changes."""
        self.features.require_writes_allowed()
        self._get_event_type(name)
        self._require_administrator(name, Operation.WRITE, subject)

    def finish_abandoned_switch(self, event_type: EventType) -> None:
        """Finish a switch if the process that began it did not."""
        if is_switch_abandoned(event_type, self.clock.now()):
            self.complete_switch(event_type)

    def _get_event_type(self, name: str) -> EventType:
        """The event type. These requests have an error message without a full stop, which clients know."""
        event_type = self.event_types.find(name)
        if event_type is None:
            raise NotFound(f'EventType "{name}" does not exist')
        return event_type

    def _require_administrator(self, name: str, permission: Operation, subject: Subject) -> None:
        if not self.permissions.is_administrator(subject, permission):
            raise permission_denied_error(Operation.ADMIN, Resource(ResourceType.EVENT_TYPE, name))

    def _announce_unless_compacted(self, name: str, storage_id: str | None) -> EventType:
        # With compaction, an older event with the same key would stay in the previous timeline.
        if self.event_types.get(name).cleanup_policy.compacts:
            raise Invalid("It is not possible to create a timeline for event type with 'compact' cleanup_policy")
        return self.announce_switch(name, storage_id)

    def announce_switch(self, name: str, storage_id: str | None) -> EventType:
        """Begin a switch: no other one can begin until it is completed. Raises `ChangedMeanwhile`."""
        event_type = self.event_types.get(name)
        storage_conditions = self.write_conditions_on_storage(storage_id)
        if is_switch_abandoned(event_type, self.clock.now()):
            self.complete_switch(event_type)
            event_type = self.event_types.get(name)
        if event_type.switching_to is not None:
            raise Conflict(f"Timeline is already being created for: {name}")
        following = next_timeline(event_type, str(storage_id), self.clock.now())
        check_storage_deduplicates(event_type, following.storage_id, self.deduplication)
        new_log = self.logs.for_storage(following.storage_id)
        new_log.create_topic(following.topic, following.partitions)
        try:
            return self.event_types.replace(
                event_type, replace(event_type, switching_to=following), *storage_conditions
            )
        except ChangedMeanwhile:
            new_log.delete_topic(following.topic)
            raise
        except Fault:
            # Perhaps only the answer got lost. If the event type cannot be read either, the topic stays.
            found = self.event_types.find(name)
            if found is not None and found.switching_to == following:
                return found
            new_log.delete_topic(following.topic)
            raise

    def write_conditions_on_storage(self, storage_id: str | None) -> tuple[DocumentChange, ...]:
        try:
            if storage_id is not None:
                return self.storages.write_conditions_on(storage_id)
        except NotFound:
            pass
        raise Invalid(f"No storage with id: {'null' if storage_id is None else storage_id}")

    def complete_switch(self, announced: EventType) -> None:
        """Finish a switch, even while other processes change the event type or finish the same switch."""
        self.event_types.retry_if_changed(lambda: self._try_to_complete_switch(announced))

    def retry_while_stores_fail(self, step: Callable[[], None]) -> None:
        """Take a step without which the event type accepts no events. A few attempts are made."""
        for pause in COMPLETION_PAUSES_SECONDS:
            try:
                return step()
            except (Fault, TryLater) as error:
                log.warning("A change of timelines failed and is tried again: %r", error)
                self.sleep(pause)
        return step()

    def _try_to_complete_switch(self, announced: EventType) -> None:
        assert announced.switching_to is not None
        event_type = self.event_types.get(announced.name)
        if event_type.switching_to is None or event_type.switching_to.id != announced.switching_to.id:
            return  # another process has finished it
        positions = self.seal_topic(event_type.timeline)
        self.event_types.replace(event_type, with_completed_switch(event_type, positions, self.clock.now()))

    def seal_topic(self, timeline: Timeline) -> Mapping[int, int]:
        """Close a topic to publishers, and return the last offset of each partition."""
        old_log = self.logs.for_storage(timeline.storage_id)
        old_log.seal_topic(timeline.topic)
        bounds = old_log.bounds(timeline.topic, range(timeline.partitions))
        return {partition: each.next_offset - 1 for partition, each in bounds.items()}


def is_switch_abandoned(event_type: EventType, now: datetime) -> bool:
    following = event_type.switching_to
    return following is not None and abs(now - following.created_at) > SWITCH_ABANDONED_AFTER


def first_timeline(storage_id: str, partitions: int, now: datetime) -> Timeline:
    return timeline_after(_new_timeline(1, storage_id, partitions, now), TimelineFact.SWITCHED, switched_at=now)


def next_timeline(event_type: EventType, storage_id: str, now: datetime) -> Timeline:
    current = event_type.timeline
    return _new_timeline(current.order + 1, storage_id, current.partitions, now)


def with_completed_switch(event_type: EventType, positions: Mapping[int, int], now: datetime) -> EventType:
    *closed, current = event_type.timelines
    assert event_type.switching_to is not None
    kept_until = now + timedelta(milliseconds=event_type.retention_time)
    ended = timeline_after(current, TimelineFact.ENDED, latest_positions=dict(positions), cleaned_up_at=kept_until)
    begun = timeline_after(event_type.switching_to, TimelineFact.SWITCHED, switched_at=now)
    return replace(event_type, timelines=(*closed, ended, begun), switching_to=None)


def with_timelines_after_loss(
    event_type: EventType, continuations: Sequence[TopicContinuation], now: datetime
) -> EventType:
    """The event type with a timeline for each topic that continues its current one after a loss of events.

    A switch in progress will end with the timeline after these.
    """
    *closed, current = event_type.timelines
    # With compaction alone, the newest event of a key may be in any timeline, so no timeline is ever removed.
    kept_until = now + timedelta(milliseconds=event_type.retention_time)
    cleaned_up_at = None if event_type.cleanup_policy is CleanupPolicy.COMPACT else kept_until
    for each in continuations:
        positions = {partition: offset - 1 for partition, offset in each.end_offsets.items()}
        closed.append(
            timeline_after(current, TimelineFact.LOST, latest_positions=positions, cleaned_up_at=cleaned_up_at)
        )
        begun = _new_timeline(current.order + 1, current.storage_id, current.partitions, now)
        current = timeline_after(begun, TimelineFact.SWITCHED, topic=each.topic, switched_at=now, after_loss=True)
    switching = event_type.switching_to and replace(event_type.switching_to, order=current.order + 1)
    return replace(event_type, timelines=(*closed, current), switching_to=switching)


def _new_timeline(order: int, storage_id: str, partitions: int, now: datetime) -> Timeline:
    return Timeline(
        id=str(uuid4()), order=order, storage_id=storage_id, topic=uuid4().hex, partitions=partitions, created_at=now
    )

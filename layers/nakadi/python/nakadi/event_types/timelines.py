"""Timelines: moving an event type to a new generation of its log, perhaps in another storage.

First the new topic is made, so that a storage out of reach stops a switch before it begins. Then a switch has two
writes. The first announces the new timeline, so that nobody begins another one. The old topic is sealed: from there on
publishers find it closed, and ask again until the second write puts the new timeline in its place. Every step can be
repeated; a switch that was cut short is finished by the next one who looks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import replace

from nakadi.auth.administration import Features
from nakadi.auth.permissions import Permissions, denied
from nakadi.common.chores import attempted
from nakadi.event_types.repository import EventTypes
from nakadi.event_types.storages import Storages
from nakadi.model.administration import AdminPermission
from nakadi.model.authorization import Operation, Resource, ResourceType, Subject
from nakadi.model.event_type import CleanupPolicy, EventType
from nakadi.model.events import Continuation
from nakadi.model.log_index import Gap
from nakadi.model.outcomes import Conflict, Invalid, NotFound
from nakadi.model.timeline import Timeline
from nakadi.ports.clock import Clock
from nakadi.ports.event_log import EventLogs, Forgetful, UnknownTopic
from nakadi.ports.registry import Change, ChangedMeanwhile

# A switch takes less than a second; one that has taken this long was cut short. So was one that began in the future,
# before a clock was set back: whoever is still at it finds that it was finished.
ABANDONED_AFTER = timedelta(seconds=30)


class Timelines(Struct, frozen=True, kw_only=True):
    event_types: EventTypes
    storages: Storages
    permissions: Permissions
    features: Features
    logs: EventLogs
    clock: Clock

    def of(self, name: str, subject: Subject) -> tuple[Timeline, ...]:
        """Every timeline, by order. Whether the event type exists is only for administrators to learn."""
        self._require_administrator(name, AdminPermission.READ, subject)
        event_type = self._existing(name)
        return (*event_type.timelines, *([event_type.switching_to] if event_type.switching_to else []))

    def switch(self, name: str, storage_id: str | None, subject: Subject) -> None:
        """Begin a new timeline in a storage."""
        self.features.require_writable()
        self._existing(name)
        self._require_administrator(name, AdminPermission.WRITE, subject)
        self._complete(self.event_types.retry_if_changed(lambda: self._announce(name, storage_id)))

    def finish_abandoned(self, event_type: EventType) -> None:
        """Finish a switch that whoever began it did not."""
        if is_switch_abandoned(event_type, self.clock.now()):
            self._complete(event_type)

    def _existing(self, name: str) -> EventType:
        """The event type; here clients know the message of a missing one without its full stop."""
        event_type = self.event_types.find(name)
        if event_type is None:
            raise NotFound(f'EventType "{name}" does not exist')
        return event_type

    def _require_administrator(self, name: str, permission: AdminPermission, subject: Subject) -> None:
        if not self.permissions.is_administrator(subject, permission):
            raise denied(Operation.ADMIN, Resource(ResourceType.EVENT_TYPE, name))

    def _announce(self, name: str, storage_id: str | None) -> EventType:
        event_type = self.event_types.get(name)
        if event_type.cleanup_policy.compacts:
            raise Invalid("It is not possible to create a timeline for event type with 'compact' cleanup_policy")
        still_there = self._storage_checks(storage_id)
        if event_type.switching_to is not None:
            self.finish_abandoned(event_type)
            raise Conflict(f"Timeline is already being created for: {name}")
        following = next_timeline(event_type, str(storage_id), self.clock.now())
        new_log = self.logs.of(following.storage_id)
        new_log.create_topic(following.topic, following.partitions)
        try:
            return self.event_types.replace(event_type, replace(event_type, switching_to=following), *still_there)
        except ChangedMeanwhile:
            new_log.delete_topic(following.topic)
            raise

    def _storage_checks(self, storage_id: str | None) -> tuple[Change, ...]:
        try:
            if storage_id is not None:
                return self.storages.checks_for(storage_id)
        except NotFound:
            pass
        raise Invalid(f"No storage with id: {'null' if storage_id is None else storage_id}")

    def _complete(self, announced: EventType) -> None:
        """Finish a switch, whatever else is changed about the event type meanwhile, and whoever else finishes it."""
        self.event_types.retry_if_changed(lambda: self._try_to_complete(announced))

    def _try_to_complete(self, announced: EventType) -> None:
        assert announced.switching_to is not None
        event_type = self.event_types.get(announced.name)
        if event_type.switching_to is None or event_type.switching_to.id != announced.switching_to.id:
            return  # another process was quicker
        positions = self._seal(event_type.timeline)
        self.event_types.replace(event_type, with_completed_switch(event_type, positions, self.clock.now()))

    def _seal(self, timeline: Timeline) -> Mapping[int, int]:
        """Close a topic; the last offset of each partition."""
        old_log = self.logs.of(timeline.storage_id)
        old_log.seal_topic(timeline.topic)
        bounds = old_log.bounds(timeline.topic, range(timeline.partitions))
        return {partition: each.next - 1 for partition, each in bounds.items()}


def is_switch_abandoned(event_type: EventType, now: datetime) -> bool:
    following = event_type.switching_to
    return following is not None and abs(now - following.created_at) > ABANDONED_AFTER


def first_timeline(storage_id: str, partitions: int, now: datetime) -> Timeline:
    return replace(_timeline(1, storage_id, partitions, now), switched_at=now)


def next_timeline(event_type: EventType, storage_id: str, now: datetime) -> Timeline:
    """The timeline that is to follow, with as many partitions."""
    current = event_type.timeline
    return _timeline(current.order + 1, storage_id, current.partitions, now)


def with_completed_switch(event_type: EventType, positions: Mapping[int, int], now: datetime) -> EventType:
    """The event type with its announced timeline in use, and the old one closed at these positions."""
    *closed, current = event_type.timelines
    assert event_type.switching_to is not None
    kept_until = now + timedelta(milliseconds=event_type.retention_time)
    ended = replace(current, latest_positions=dict(positions), cleaned_up_at=kept_until)
    begun = replace(event_type.switching_to, switched_at=now)
    return replace(event_type, timelines=(*closed, ended, begun), switching_to=None)


def with_continuations(event_type: EventType, continuations: Sequence[Continuation], now: datetime) -> EventType:
    """The event type with a timeline for each topic that continues its current one, since events were lost in between.

    A switch that is under way goes on from the last of them.
    """
    *closed, current = event_type.timelines
    # Of what is only compacted the newest event of a key may lie in any timeline: none of them goes.
    kept_until = now + timedelta(milliseconds=event_type.retention_time)
    cleaned_up_at = None if event_type.cleanup_policy is CleanupPolicy.COMPACT else kept_until
    for each in continuations:
        positions = {partition: offset - 1 for partition, offset in each.ends.items()}
        closed.append(replace(current, latest_positions=positions, cleaned_up_at=cleaned_up_at))
        begun = _timeline(current.order + 1, current.storage_id, current.partitions, now)
        current = replace(begun, topic=each.topic, switched_at=now, after_loss=True)
    switching = event_type.switching_to and replace(event_type.switching_to, order=current.order + 1)
    return replace(event_type, timelines=(*closed, current), switching_to=switching)


def _timeline(order: int, storage_id: str, partitions: int, now: datetime) -> Timeline:
    return Timeline(
        id=str(uuid4()),
        order=order,
        storage_id=storage_id,
        topic=uuid4().hex,
        partitions=partitions,
        created_at=now,
    )


# Lost events ----------------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

ReportNewTimeline = Callable[[EventType, EventType], None]
"""Called with an event type before and after it got new timelines."""


class LostEvents(Struct, kw_only=True):
    event_types: EventTypes
    storages: Storages
    logs: EventLogs
    clock: Clock
    report: ReportNewTimeline
    found: int = 0
    """How many gaps the last look has found."""

    def run(self) -> None:
        """Look for gaps in all storages, and close them."""
        self.found = 0
        for storage in self.storages.all():
            attempted("search for lost events", f"storage {storage.id}", partial(self._look, storage.id))

    def _look(self, storage_id: str) -> None:
        event_log = self.logs.of(storage_id)
        gaps = event_log.gaps() if isinstance(event_log, Forgetful) else ()
        if not gaps or not isinstance(event_log, Forgetful):
            return
        self.found += len(gaps)
        for gap in gaps:
            log.error("Storage %s has lost events before they were indexed: %s", storage_id, gap)
        topics: dict[str, Mapping[int, int] | None] = {}
        for event_type in self.event_types.all():
            timelines = self._with_new_timelines(event_type.name, storage_id, event_log, gaps)
            topics |= _ends(each for each in timelines if each.storage_id == storage_id)
        event_log.close_gaps(gaps, topics)

    def _with_new_timelines(
        self, name: str, storage_id: str, event_log: Forgetful, gaps: Sequence[Gap]
    ) -> Sequence[Timeline]:
        def attempt() -> Sequence[Timeline]:
            event_type = self.event_types.find(name)
            if event_type is None:
                return ()
            if event_type.timeline.storage_id != storage_id:
                return event_type.timelines
            try:
                continuations = event_log.continuations(event_type.timeline.topic, gaps)
            except UnknownTopic:
                # It was deleted meanwhile, or the log has nothing of it that could be lost.
                return event_type.timelines
            if not continuations:
                return event_type.timelines
            changed = with_continuations(event_type, continuations, self.clock.now())
            self.event_types.replace(event_type, changed)
            log.error("Event type %s may have lost events, and has a new timeline", name)
            self.report(event_type, changed)
            return changed.timelines

        return self.event_types.retry_if_changed(attempt)


def _ends(timelines: Iterable[Timeline]) -> Mapping[str, Mapping[int, int] | None]:
    """By topic: None for one that is open, else the offset behind the last event of each partition."""
    return {
        each.topic: None
        if each.latest_positions is None
        else {partition: last + 1 for partition, last in each.latest_positions.items()}
        for each in timelines
        if not each.deleted
    }

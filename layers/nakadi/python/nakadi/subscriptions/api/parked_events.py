"""The parked events of a subscription: lists, skips and redrives them.

A redrive sets the cursors of the partitions back to before the first of the events, like a reset, while no stream is
open. The next stream gets the redriven events, and then continues after the last position that was reached before.
Events between these were consumed or stay parked, and are not sent again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby, islice
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import replace

from nakadi.auth.features import Features
from nakadi.auth.permissions import Permissions
from nakadi.event_types import positions
from nakadi.event_types.cursors import MAX_OFFSET
from nakadi.event_types.repository import EventTypes
from nakadi.model.authorization import Authorization, Feature, Operation, Resource, ResourceType, Subject
from nakadi.model.event_type import Position
from nakadi.model.outcomes import Conflict, NotFound
from nakadi.model.subscription import (
    CommittedOffset,
    EventTypePartition,
    ParkedEventInfo,
    PartitionAssignment,
    Redrive,
    Replay,
    Subscription,
)
from nakadi.ports.clock import Clock
from nakadi.ports.coordination import AssignmentChanged, Coordination
from nakadi.subscriptions.api.access import require_reader
from nakadi.subscriptions.api.offsets import ResetRequests
from nakadi.subscriptions.api.repository import Subscriptions

ParkedPartition = EventTypePartition
OffsetsByPartition = Mapping[ParkedPartition, CommittedOffset]

MAX_KEYS_PER_REDRIVE = 50
"""How many keys to redrive a partition's entry in the assignment may name. A client that wants to redrive more keys at
once can redrive all.
"""

TOO_MANY_KEYS_MESSAGE = (
    f"More than {MAX_KEYS_PER_REDRIVE} keys are being redriven at once, wait for them or redrive all parked events"
)

_PARKED_EVENT_ID_PATTERN = re.compile(
    r"(?P<event_type>[^:]+):(?P<partition>[^:]+):001-(?P<timeline>[0-9a-f]{4,8})-(?P<offset>[0-9]{18,19})"
)


class ParkedEventFilter(Struct, frozen=True, kw_only=True):
    """Filters that select the parked events that match all of them."""

    event_type: str | None = None
    partition: str | None = None
    key: str | None = None

    def matches(self, parked: ParkedEventInfo) -> bool:
        return (
            self.event_type in (None, parked.partition.event_type)
            and self.partition in (None, parked.partition.partition)
            and self.key in (None, parked.key)
        )


class ParkedEventStatus(Struct, frozen=True):
    """A parked event, and whether a redrive is sending it again."""

    parked: ParkedEventInfo
    is_being_resent: bool

    @property
    def id(self) -> str:
        return parked_event_id(self.parked)


class ParkedEvents(Struct, frozen=True, kw_only=True):
    subscription_repository: Subscriptions
    event_types: EventTypes
    permissions: Permissions
    features: Features
    coordination: Coordination
    reset_requests: ResetRequests
    clock: Clock

    def list_events(
        self, subscription_id: str, event_filter: ParkedEventFilter, after: str | None, limit: int, subject: Subject
    ) -> Sequence[ParkedEventStatus]:
        self._require_reader(subscription_id, subject)
        begin = None if after is None else parse_parked_event_id(after)
        entries = self._entries(subscription_id)
        found = (
            each
            for each in ParkedEventStore(self.coordination, subscription_id).events(after=begin)
            if event_filter.matches(each)
        )
        return [_parked_event_status(each, entries) for each in islice(found, limit)]

    def get_event(self, subscription_id: str, parked_id: str, subject: Subject) -> tuple[ParkedEventStatus, bytes]:
        """A parked event as it was published. Also raises `NotPermitted` for subjects that may not read this particular
        event.
        """
        self._require_reader(subscription_id, subject)
        parked = self._get_parked_event(subscription_id, parked_id)
        event_type = self.event_types.find(parked.partition.event_type)
        if event_type is not None:
            self.permissions.require(Operation.READ, event_type.resource, subject)
        if parked.owner is not None and self.features.is_on(Feature.EVENT_OWNER_SELECTOR_AUTHZ):
            lists = Authorization(admins=(), readers=(parked.owner,))
            self.permissions.require(Operation.READ, Resource(ResourceType.EVENT, parked_id, lists), subject)
        value = self.coordination.parked_event_value(subscription_id, parked.partition, parked.position)
        if value is None:
            raise _parked_event_not_found(parked_id)
        return _parked_event_status(parked, self._entries(subscription_id)), value

    def skip(self, subscription_id: str, parked_id: str, subject: Subject) -> None:
        """Remove a parked event for good. Once no event of its key is parked, later events with the key are delivered
        again.
        """
        self._require_administrator(subscription_id, subject)
        parked = self._get_parked_event(subscription_id, parked_id)
        self.coordination.remove_parked_events(subscription_id, parked.partition, [parked.position])
        notify_streams(self.coordination, subscription_id, self.clock.now())

    def redrive(self, subscription_id: str, parked_id: str, subject: Subject) -> None:
        """Send a parked event again, with all other parked events of its key, in order."""
        self._require_administrator(subscription_id, subject)
        parked = self._get_parked_event(subscription_id, parked_id)
        self.reset_requests.request_and_wait(subscription_id, Redrive((parked.partition, parked.key)))

    def redrive_all(self, subscription_id: str, subject: Subject) -> None:
        self._require_administrator(subscription_id, subject)
        if any(True for _ in ParkedEventStore(self.coordination, subscription_id).events()):
            self.reset_requests.request_and_wait(subscription_id, Redrive())

    def find(self, subscription_id: str, parked_id: str) -> ParkedEventInfo | None:
        meant = parse_parked_event_id(parked_id)
        if meant is None:
            return None
        partition, position = meant
        before = partition, Position(position.timeline, position.offset - 1)
        found = self.coordination.list_parked_events(subscription_id, partition=partition, after=before, limit=1)
        return found[0] if found and found[0].position == position else None

    # Implementation

    def _require_reader(self, subscription_id: str, subject: Subject) -> None:
        require_reader(self.subscription_repository, self.permissions, subscription_id, subject)

    def _require_administrator(self, subscription_id: str, subject: Subject) -> Subscription:
        subscription = self.subscription_repository.get(subscription_id)
        for operation in (Operation.VIEW, Operation.ADMIN):
            self.permissions.require(operation, subscription.resource, subject)
        return subscription

    def _get_parked_event(self, subscription_id: str, parked_id: str) -> ParkedEventInfo:
        found = self.find(subscription_id, parked_id)
        if found is None:
            raise _parked_event_not_found(parked_id)
        return found

    def _entries(self, subscription_id: str) -> Mapping[ParkedPartition, PartitionAssignment]:
        return {each.partition: each for each in self.coordination.assignment(subscription_id).entries}


def notify_streams(coordination: Coordination, subscription_id: str, now: datetime) -> None:
    """Make streams read the parked keys again, by giving the assignment a new revision."""
    old = coordination.assignment(subscription_id)
    try:
        coordination.replace_assignment(subscription_id, old, old, now)
    except AssignmentChanged:
        return  # the other change has the same effect


class RedrivePlanner(Struct, frozen=True, kw_only=True):
    """The changes that a redrive makes while no stream is open."""

    coordination: Coordination
    event_types: EventTypes

    def plan_replays(
        self, subscription_id: str, redrive: Redrive
    ) -> Mapping[ParkedPartition, tuple[PartitionAssignment, Position]]:
        """Return the new position of each cursor, and the partition's entry with the replay that begins there. This
        also removes events that no longer have a reason to be parked. Raises `Conflict` if events cannot be sent again.
        """
        offsets = self.coordination.committed_offsets(subscription_id)
        assignment = self.coordination.assignment(subscription_id)
        changed: list[tuple[PartitionAssignment, Position, Sequence[ParkedEventInfo]]] = []
        for partition, events in groupby(
            ParkedEventStore(self.coordination, subscription_id).events(), key=lambda each: each.partition
        ):
            entry = assignment.entry(partition)
            if entry is not None:
                self._remove_obsolete(subscription_id, entry, parked := list(events), offsets)
                changed += _planned_replay(entry, parked, offsets[partition].position, redrive)
        self._check_timelines([each for *_, events in changed for each in events])
        return {entry.partition: (entry, position) for entry, position, _ in changed}

    def _remove_obsolete(
        self,
        subscription_id: str,
        entry: PartitionAssignment,
        parked: list[ParkedEventInfo],
        offsets: OffsetsByPartition,
    ) -> None:
        """Remove events that were sent again and then consumed, and those that the log will send again."""
        reached = offsets[entry.partition].position
        gone = [each for each in parked if is_parking_obsolete(each, entry, reached)]
        self.coordination.remove_parked_events(subscription_id, entry.partition, [each.position for each in gone])
        parked[:] = [each for each in parked if each not in gone]

    def _check_timelines(self, events: Iterable[ParkedEventInfo]) -> None:
        """Raise unless the timelines of the events still exist, because a stream's commits name positions in these
        timelines.
        """
        for name, group in groupby(events, key=lambda each: each.partition.event_type):
            event_type = self.event_types.get(name)
            for each in group:
                timeline = positions.timeline_with_order(event_type, each.position.timeline)
                if timeline is None or timeline.deleted:
                    raise Conflict(
                        f"{parked_event_id(each)} cannot be redriven, its timeline is gone: read it here, and skip it"
                    )


def is_parking_obsolete(parked: ParkedEventInfo, entry: PartitionAssignment, committed: Position) -> bool:
    """Whether an event need no longer be parked, given that the cursor is at `committed` and no stream is open."""
    if entry.replay is not None and entry.replay.includes(parked):
        return parked.position <= committed
    last_position = committed if entry.replay is None else max(committed, entry.replay.last_position)
    return parked.position > last_position


def _planned_replay(
    entry: PartitionAssignment, parked: Sequence[ParkedEventInfo], committed: Position, redrive: Redrive
) -> Iterator[tuple[PartitionAssignment, Position, Sequence[ParkedEventInfo]]]:
    """The entry of a partition with the events to send again, the new position of its cursor, and these events."""
    chosen = {each.key for each in parked if _is_selected(each, redrive)}
    if not chosen:
        return
    all_ = redrive.partition_and_key is None
    old = entry.replay
    # Keys that an earlier redrive was already sending again stay selected, except those that were parked again
    # meanwhile.
    failed = {each.key for each in parked if old is not None and not old.includes(each)}
    going_on = {each.key for each in parked if old is not None and old.includes(each)} - failed
    keys = going_on | chosen
    if not all_ and len(keys) > MAX_KEYS_PER_REDRIVE:
        raise Conflict(TOO_MANY_KEYS_MESSAGE)
    events = [each for each in parked if all_ or each.key in keys]
    first = events[0].position
    last_position = committed if old is None else max(committed, old.last_position)
    replay = Replay(str(uuid4()), last_position, None if all_ else tuple(sorted(keys)))
    position = min(committed, Position(first.timeline, first.offset - 1))
    yield replace(entry, replay=replay), position, events


def _is_selected(parked: ParkedEventInfo, redrive: Redrive) -> bool:
    return redrive.partition_and_key is None or redrive.partition_and_key == (parked.partition, parked.key)


def parked_event_id(parked: ParkedEventInfo) -> str:
    return f"{parked.partition.event_type}:{parked.partition.partition}:{parked.position}"


def parse_parked_event_id(parked_id: str) -> tuple[ParkedPartition, Position] | None:
    """The place that an id names; None if the text is not an id."""
    found = _PARKED_EVENT_ID_PATTERN.fullmatch(parked_id)
    if found is None:
        return None
    position = Position(int(found["timeline"], 16), int(found["offset"]))
    # Stores keep offsets in 64 bits.
    if position.offset > MAX_OFFSET:
        return None
    return ParkedPartition(found["event_type"], found["partition"]), position


def _parked_event_status(
    parked: ParkedEventInfo, entries: Mapping[ParkedPartition, PartitionAssignment]
) -> ParkedEventStatus:
    entry = entries.get(parked.partition)
    return ParkedEventStatus(parked, entry is not None and entry.replay is not None and entry.replay.includes(parked))


def _parked_event_not_found(parked_id: str) -> NotFound:
    return NotFound(f'There is no parked event "{parked_id}"')


PARKED_EVENTS_PER_QUERY = 1000


class ParkedEventStore(Struct, frozen=True):
    """The parked events of one subscription."""

    coordination: Coordination
    subscription_id: str

    def events(
        self, partition: EventTypePartition | None = None, after: tuple[EventTypePartition, Position] | None = None
    ) -> Iterator[ParkedEventInfo]:
        """The parked events, of all partitions or of one, in order."""
        while page := self.coordination.list_parked_events(
            self.subscription_id, partition=partition, after=after, limit=PARKED_EVENTS_PER_QUERY
        ):
            yield from page
            after = page[-1].partition, page[-1].position

    def remove_replayed(self, partition: EventTypePartition, replay: Replay) -> None:
        """Remove those events of a replay that were not parked again."""
        sent = [each.position for each in self.events(partition) if replay.includes(each)]
        self.coordination.remove_parked_events(self.subscription_id, partition, sent)


def parking_key(key: str | None, position: Position) -> str:
    """The key under which an event is parked. An event without a key is parked under a key of its own, so no other
    event has to follow it.
    """
    return f"@{position}" if key is None else key


def event_key(parked: ParkedEventInfo) -> str | None:
    """The key of a parked event: the inverse of `parking_key`."""
    return None if parked.key == f"@{parked.position}" else parked.key

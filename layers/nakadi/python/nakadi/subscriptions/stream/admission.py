"""Who may stream a subscription, which events they may see, and where reading begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import orjson
from msgspec import Struct

from nakadi.auth.permissions import Permissions
from nakadi.common.caching import Cache
from nakadi.event_types import positions
from nakadi.event_types.cursors import CursorError
from nakadi.event_types.repository import EventTypes
from nakadi.event_types.snapshot import CursorResolver, PartitionSnapshot
from nakadi.model.authorization import Operation, Subject
from nakadi.model.event_type import EventType, Position
from nakadi.model.events import Record
from nakadi.model.outcomes import Invalid, NotFound, TryLater, UnusableCursor
from nakadi.model.subscription import EventTypePartition, ParkedEventInfo, Subscription
from nakadi.ports.clock import Clock
from nakadi.streaming.access import ReadAccess
from nakadi.subscriptions.api.offsets import OffsetInitialisation
from nakadi.subscriptions.api.repository import Subscriptions
from nakadi.subscriptions.stream.actions import IsDeliverable

CANNOT_CONTINUE = "Failed to continue streaming"


class StreamAdmission(Struct, frozen=True, kw_only=True):
    """Decides whether a client may stream a subscription. `execute_reset` carries out a pending reset of a
    subscription, if no session is left.
    """

    subscription_repository: Subscriptions
    event_types: EventTypes
    permissions: Permissions
    initialisation: OffsetInitialisation
    execute_reset: Callable[[str], object]

    def admit(
        self, subscription_id: str, requested: Sequence[EventTypePartition], subject: Subject
    ) -> tuple[Subscription, Sequence[EventType]]:
        """Return the subscription, after giving it offsets if it had none, and its event types. The order of the checks
        is the order of the outcomes that it raises.
        """
        subscription = self._get_subscription(subscription_id, subject)
        event_types = self._get_event_types(subscription)
        _check_partitions(requested, event_types)
        self._check_permitted(subscription, event_types, subject)
        self._initialise_offsets(subscription)
        return subscription, event_types

    def check_subscription_exists(self, subscription: Subscription) -> None:
        """Raise `NotFound` if the subscription was deleted since it was admitted."""
        self.subscription_repository.get(subscription.id)

    def _get_subscription(self, subscription_id: str, subject: Subject) -> Subscription:
        """The subscription. The block is checked first, so that a blocked client does not find out whether the
        subscription exists.
        """
        try:
            # The registry is read rather than the cache, because the shared state of a deleted subscription must not be
            # created again.
            subscription: Subscription = self.subscription_repository.get(subscription_id)
        except NotFound:
            self.permissions.require_consumer(subject, ())
            raise
        self.permissions.require_consumer(subject, subscription.event_types)
        return subscription

    def _get_event_types(self, subscription: Subscription) -> Sequence[EventType]:
        try:
            return [self.event_types.get(name) for name in subscription.event_types]
        except NotFound as error:
            raise TryLater(CANNOT_CONTINUE) from error

    def _check_permitted(self, subscription: Subscription, event_types: Sequence[EventType], subject: Subject) -> None:
        self.permissions.require_all_operations((Operation.VIEW, Operation.READ), subscription.resource, subject)
        for each in event_types:
            self.permissions.require(Operation.READ, each.resource, subject)

    def _initialise_offsets(self, subscription: Subscription) -> None:
        try:
            self.initialisation.ensure_initialised(subscription)
        except NotFound as error:
            raise TryLater(CANNOT_CONTINUE) from error


def _check_partitions(requested: Sequence[EventTypePartition], event_types: Sequence[EventType]) -> None:
    if len(set(requested)) < len(requested):
        raise Invalid("Duplicated partition specified")
    there = {EventTypePartition(each.name, partition) for each in event_types for partition in each.partitions}
    foreign = [str(each) for each in requested if each not in there]
    if foreign:
        raise Invalid(
            "Wrong partitions specified - some partitions don't belong to subscription: " + ", ".join(foreign)
        )


AcceptsEvent = Callable[[bytes], bool]
"""Whether the client of a stream wants an event with this text."""


def delivery_filter(
    access: ReadAccess,
    subscription_id: str,
    subject: Subject,
    attached: str = "",
    *,
    accepts: AcceptsEvent | None = None,
) -> IsDeliverable:
    """A filter of the events that a subject may see and the client accepts. Of the event type that is `attached` to the
    subscription, it accepts only events that are tagged for the subscription.
    """

    def is_deliverable(partition: EventTypePartition, record: Record) -> bool:
        if record.directed_to is not None:
            if record.directed_to != subscription_id:
                return False
            record = record._replace(directed_to=None)
        elif partition.event_type == attached:
            return False
        if not access.may_read(record, subject):
            return False
        if access.skips_misplaced_events and names_another_event_type(partition, record):
            return False
        return accepts is None or accepts(record.value or b"null")

    return is_deliverable


def names_another_event_type(partition: EventTypePartition, record: Record) -> bool:
    """Whether the metadata of an event names another event type than the one it was published to."""
    event: Any = orjson.loads(record.value or b"{}")
    metadata = event.get("metadata") if isinstance(event, dict) else None
    named = metadata.get("event_type") if isinstance(metadata, dict) else None
    return named is not None and named != partition.event_type


# For how long a read of the log's bounds is used: a session opens many partitions at once, and one read serves them
# all.
SNAPSHOT_MAX_AGE_SECONDS = 1.0


class PlannedReplay(Struct, frozen=True):
    """The parked `events` are sent again. All other events up to `last_position` count as consumed, and reading
    continues after `resume_position`.
    """

    events: tuple[ParkedEventInfo, ...]
    last_position: Position
    resume_position: Position


class PartitionStart(Struct, frozen=True):
    """Reading continues after `position`; `lost_events` earlier events were removed.

    `parked_keys` are the keys of parked events.
    """

    event_type: EventType
    position: Position
    lost_events: int = 0
    parked_keys: frozenset[str] = frozenset()
    planned_replay: PlannedReplay | None = None


class KnownEventTypes(dict[str, EventType]):
    """The event types of a stream by name, each in the newest revision that was seen.

    Two parts read event types independently: `PartitionStarts` when a partition is opened, and the access monitor once
    a second. The newer revision must be used, whichever part read it: with an older revision, from before a move to
    another timeline, a partition would wait for events that never come. Only the event loop writes to this mapping;
    another thread may see an older revision, as if it had read a moment earlier.
    """

    def __init__(self, event_types: Iterable[EventType], look_again: Callable[[], None]) -> None:
        """`look_again` requests a check by the access monitor."""
        super().__init__({each.name: each for each in event_types})
        self.look_again = look_again

    def event_distance(self, partition: EventTypePartition, first: Position, last: Position) -> int:
        """How many events lie after the first position, up to and including the second, even across timelines."""
        return event_distance(self.get(partition.event_type), partition, first, last)

    def keep_newest(self, event_type: EventType) -> EventType:
        """Keep the newer of this revision and the known one, and return it. Call this only on the event loop."""
        known = self.get(event_type.name)
        if known is not None and known.id == event_type.id and known.revision > event_type.revision:
            return known
        self[event_type.name] = event_type
        return event_type


class PartitionStarts:
    """Finds where reading begins. Asks the registry and the log, so it must not be called on an event loop."""

    def __init__(self, event_types: EventTypes, cursor_resolver: CursorResolver, clock: Clock) -> None:
        self._event_types = event_types
        self._cursor_resolver = cursor_resolver
        # The key has the id of the event type and the least known revision: another event type may reuse the name, and
        # a caller that knows of a change must not get an earlier version.
        self._views: Cache[tuple[str, int], tuple[EventType, PartitionSnapshot]] = Cache(
            clock, SNAPSHOT_MAX_AGE_SECONDS
        )

    def find(self, partition: EventTypePartition, stored: Position, known: EventType | None = None) -> PartitionStart:
        """Where reading begins after the committed position. Raises `UnusableCursor` if there is no such position.

        `known` is the caller's revision of the event type; without it, the event type is looked up.
        """
        event_type = known or self._event_types.get(partition.event_type)
        key = (event_type.id, event_type.revision)
        try:
            return self._start_in_snapshot(
                *self._views.get(key, lambda _: self._read_snapshot(event_type)), partition, stored
            )
        except UnusableCursor:
            self._views.invalidate(key)  # the cached bounds may be older than events that have arrived since
        return self._start_in_snapshot(
            *self._views.get(key, lambda _: self._read_snapshot(event_type)), partition, stored
        )

    def _read_snapshot(self, known: EventType) -> tuple[EventType, PartitionSnapshot]:
        current = self._event_types.get(known.name)
        if current.id != known.id:
            raise UnusableCursor(f"The event type {known.name} was deleted, and another one has its name")
        return current, self._cursor_resolver.take_snapshot(current)

    @staticmethod
    def _start_in_snapshot(
        event_type: EventType, view: PartitionSnapshot, partition: EventTypePartition, stored: Position
    ) -> PartitionStart:
        oldest = view.positions_before_oldest().get(partition.partition, stored)
        start = max(stored, oldest)
        try:
            view.check_readable(partition.partition, start)
        except CursorError as error:
            raise UnusableCursor(str(error)) from error
        return PartitionStart(event_type, start, event_distance(event_type, partition, stored, start))


def event_distance(event_type: EventType | None, partition: EventTypePartition, first: Position, last: Position) -> int:
    """How many events lie after the first position, up to and including the second, even across timelines."""
    if first.timeline == last.timeline:
        return last.offset - first.offset
    try:
        if event_type is not None:
            return positions.count_events_between(event_type, partition.partition, first, last)
    except Invalid:
        pass
    return 1  # the exact number is unknown, but at least one event was lost

"""What becomes of subscriptions when an event type is deleted, or gets more partitions."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial

from msgspec import Struct, field

from nakadi.auth.administration import Features
from nakadi.common.chores import attempted
from nakadi.event_types import positions
from nakadi.event_types.repository import EventTypes
from nakadi.event_types.snapshot import Cursors
from nakadi.model.administration import Feature
from nakadi.model.authorization import WILDCARD
from nakadi.model.event_type import EventType
from nakadi.model.outcomes import Conflict
from nakadi.model.subscription import EventTypePartition, Subscription
from nakadi.model.timeline import Position
from nakadi.ports.coordination import Coordination
from nakadi.ports.event_log import EventLogs
from nakadi.ports.registry import Change
from nakadi.subscriptions.api.initialisation import OffsetInitialisation
from nakadi.subscriptions.api.repository import Subscriptions, removal
from nakadi.subscriptions.api.resets import Resets
from nakadi.subscriptions.api.resource import DeletedSubscriptions

# What an event type's own removal needs beside.
MOST_CHANGES_BESIDES = 90


class SubscribedEventTypes(Struct, frozen=True, kw_only=True):
    """What happens to subscriptions when an event type is deleted, or gets partitions."""

    subscriptions: Subscriptions
    features: Features
    initialisation: OffsetInitialisation
    resets: Resets
    leftovers: DeletedSubscriptions
    deletable_owner: str
    deletable_group: str
    attachment: RedriveAttachment

    def depend_on(self, name: str) -> bool:
        return bool(self.subscriptions.of_event_type(name))

    def changes_for_removal(self, event_type: EventType) -> tuple[Change, ...]:
        """What the removal of an event type has to do and to insist on besides; raises `Conflict` if subscriptions
        stand against it."""
        if event_type.name == self.attachment.name and self.attachment.is_attached():
            raise _has_subscriptions(event_type)
        mark = self.subscriptions.mark(event_type)
        found = self.subscriptions.of_event_type(event_type.name)
        if not self._may_go_too(found) or self.subscriptions.is_being_subscribed(event_type.name):
            raise _has_subscriptions(event_type)
        changes = tuple(change for each in found for change in removal(each))
        if len(changes) <= MOST_CHANGES_BESIDES:
            return (mark, *changes)
        for each in found:
            self.subscriptions.remove(each)
        return (mark,)

    def clean_up(self) -> None:
        """An event type is deleted, and with it perhaps subscriptions: end what is left of them."""
        self.leftovers.try_to_clear_all()

    def before_repartitioning(self, event_type: EventType) -> None:
        """Subscriptions that were never streamed get their first offsets now, while the new partitions can be
        distinguished."""
        for each in self.subscriptions.of_event_type(event_type.name):
            self.initialisation.initialised(each)

    def after_repartitioning(self, event_type: EventType) -> None:
        """Have the subscriptions consume all partitions; the streams of those that got some end and come back."""
        found = self.subscriptions.of_event_type(event_type.name)
        extended = [each.id for each in found if self.initialisation.extended(each, event_type)[1]]
        self.resets.close_streams(extended)
        # An earlier request may have been answered before streams had ended.
        self.resets.wait_for_end([each.id for each in found])

    def _may_go_too(self, subscriptions: Sequence[Subscription]) -> bool:
        if not subscriptions or self.features.is_on(Feature.DELETE_EVENT_TYPE_WITH_SUBSCRIPTIONS):
            return True
        return all(
            (each.owning_application, each.consumer_group) == (self.deletable_owner, self.deletable_group)
            for each in subscriptions
        )


def _has_subscriptions(event_type: EventType) -> Conflict:
    return Conflict(f"Can't remove event type {event_type.name}, as it has subscriptions")


# The redrive event type -----------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)


class _ScannedPositions(Struct):
    """How far an event type has been looked through."""

    event_type: str = ""
    positions: dict[str, Position] = field(default_factory=dict)


class RedriveAttachment(Struct, frozen=True, kw_only=True):
    subscriptions: Subscriptions
    event_types: EventTypes
    features: Features
    cursors: Cursors
    logs: EventLogs
    coordination: Coordination
    initialisation: OffsetInitialisation
    name: str
    guarded: bool = False
    """Whether tokens are asked for."""
    _looked: _ScannedPositions = field(default_factory=_ScannedPositions)

    def run(self) -> None:
        """Attach the redrive event type to the subscriptions that its new events are tagged with.

        The feature that is named after this job switches it off.
        """
        event_type = self.event_types.find(self.name)
        if event_type is None or self.features.is_on(Feature.DLQ_REDRIVE_EVENT_TYPE_ATTACHMENT_JOB):
            return
        if self.guarded and _anyone_may_write(event_type):
            log.warning("%s is not attached: it names no writers, so all subjects may write", self.name)
            return
        if self._looked.event_type != event_type.id:
            self._looked.event_type = event_type.id
            self._looked.positions = dict(self.cursors.beginning(event_type))
        for partition in event_type.partitions:
            attempted(
                "search for redriven events", f"partition {partition}", partial(self._look_on, event_type, partition)
            )

    def is_attached(self) -> bool:
        """Whether any subscription is attached."""
        return any(
            entry.place.event_type == self.name
            for each in self.subscriptions.newest_first()
            for entry in self.coordination.assignment(each.id).entries
        )

    def _look_on(self, event_type: EventType, partition: str) -> None:
        """What was looked through before something failed is looked through once more."""
        named: set[str] = set()
        start = self._looked.positions.get(partition, Position(event_type.timeline.order, -1))
        end = start
        for tags, reached in self._stretches(event_type, partition, start):
            named |= tags
            end = reached
        for subscription_id in named:
            self._attach(subscription_id, event_type)
        self._looked.positions[partition] = end

    def _attach(self, subscription_id: str, event_type: EventType) -> None:
        subscription = self.subscriptions.find(subscription_id)
        if subscription is None:
            return
        beginnings = self.cursors.beginning(event_type)
        places = {EventTypePartition(event_type.name, name): at for name, at in beginnings.items()}
        self.initialisation.with_places(subscription, places)

    def _stretches(
        self, event_type: EventType, partition: str, position: Position
    ) -> Iterator[tuple[set[str], Position]]:
        """What follows a position, stretch by stretch: who is named in it, and where it ends."""
        number = int(partition)
        while True:
            timeline, offset = self.cursors.next_event(event_type, position, partition)
            event_log = self.logs.of(timeline.storage_id)
            bounds = event_log.bounds(timeline.topic, [number])[number]
            offset = max(offset, bounds.oldest)
            while offset < bounds.next:
                found = event_log.read(timeline.topic, number, offset)
                offset = found.next_offset
                named = {each.record.directed_to for each in found.events if each.record.directed_to is not None}
                yield named, Position(timeline.order, offset - 1)
            end = positions.end_of(timeline, number)
            if end is None:
                return
            position = Position(timeline.order, end)


def _anyone_may_write(event_type: EventType) -> bool:
    return event_type.authorization is None or WILDCARD in event_type.authorization.writers

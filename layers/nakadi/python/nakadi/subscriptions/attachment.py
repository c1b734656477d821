"""Attachment: what is published once more for a subscription, to an event type for that purpose, reaches it although
it does not subscribe to that event type.

An operator creates the redrive event type, and publishes to it with the tag of a subscription. Whoever is named by a
tag gets all its partitions, from their beginning; of the events in there, streams send those that are tagged for them.
Whoever may publish to it can send events to any subscription. So it is not attached while tokens are asked for and
everybody with a token may publish to it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from nakadi.administration.features import Features
from nakadi.catalog.event_types import EventTypes
from nakadi.chores import attempted
from nakadi.cursors import timelines
from nakadi.cursors.service import Cursors
from nakadi.model.administration import Feature
from nakadi.model.authorization import WILDCARD
from nakadi.model.cursor import Position
from nakadi.model.event_type import EventType
from nakadi.model.subscription import EventTypePartition
from nakadi.ports import Coordination, EventLogs
from nakadi.subscriptions.initialisation import Initialisation
from nakadi.subscriptions.repository import Subscriptions

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Looked:
    """How far an event type has been looked through."""

    event_type: str = ""
    positions: dict[str, Position] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    subscriptions: Subscriptions
    event_types: EventTypes
    features: Features
    cursors: Cursors
    logs: EventLogs
    coordination: Coordination
    initialisation: Initialisation
    name: str
    guarded: bool = False
    """Whether tokens are asked for."""
    _looked: _Looked = field(default_factory=_Looked)

    def run(self) -> None:
        """Attach the redrive event type to whoever is named in it since the last time.

        The feature that is named after this job switches it off.
        """
        event_type = self.event_types.find(self.name)
        if event_type is None or self.features.is_on(Feature.DLQ_REDRIVE_EVENT_TYPE_ATTACHMENT_JOB):
            return
        if self.guarded and _is_open(event_type):
            log.warning("%s is not attached: its writers are to be named, for now everybody is one", self.name)
            return
        if self._looked.event_type != event_type.id:
            self._looked.event_type = event_type.id
            self._looked.positions = dict(self.cursors.beginning(event_type))
        for partition in event_type.partitions:
            attempted(
                "search for redriven events", f"partition {partition}", partial(self._look_on, event_type, partition)
            )

    def is_attached(self) -> bool:
        """Whether anybody is."""
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
            timeline, offset = self.cursors.following(event_type, position, partition)
            event_log = self.logs.of(timeline.storage_id)
            bounds = event_log.bounds(timeline.topic, [number])[number]
            offset = max(offset, bounds.oldest)
            while offset < bounds.next:
                found = event_log.read(timeline.topic, number, offset)
                offset = found.next_offset
                named = {each.record.directed_to for each in found.events if each.record.directed_to is not None}
                yield named, Position(timeline.order, offset - 1)
            end = timelines.end_of(timeline, number)
            if end is None:
                return
            position = Position(timeline.order, end)


def _is_open(event_type: EventType) -> bool:
    return event_type.authorization is None or WILDCARD in event_type.authorization.writers

"""Giving an event type more partitions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nakadi.access.permissions import Permissions
from nakadi.administration.features import Features
from nakadi.catalog.dependents import Dependents
from nakadi.catalog.event_types import EventTypes
from nakadi.model.authorization import Operation, Subject
from nakadi.model.event_type import EventType, Statistics
from nakadi.model.outcomes import Invalid
from nakadi.ports.event_log import EventLogs


@dataclass(frozen=True, slots=True, kw_only=True)
class Repartitioning:
    event_types: EventTypes
    permissions: Permissions
    features: Features
    logs: EventLogs
    dependents: Dependents
    max_partitions: int
    fixed: str = ""
    """An event type that keeps the partitions it has, for subscriptions read it that cannot be told of more."""

    def set_count(self, name: str, count: int, subject: Subject) -> None:
        """Have `count` partitions. Events stay where they are; the new partitions are empty."""
        grown = self.event_types.again_if_changed(lambda: self._set_count(name, count, subject))
        # Also when there was nothing to do: whoever asked before may not have come this far.
        self.dependents.grown(grown)

    def _set_count(self, name: str, count: int, subject: Subject) -> EventType:
        event_type = self.event_types.get(name)
        self.permissions.require_administrator(Operation.ADMIN, event_type.resource, subject)
        self._check(count, event_type)
        if name == self.fixed and count != event_type.timeline.partitions:
            raise Invalid(f"Event type {name} is for redriving, its partitions can not be changed")
        self.features.require_writable()
        if count == event_type.timeline.partitions:
            return event_type
        timeline = event_type.timeline
        self.dependents.growing(event_type)
        self.logs.of(timeline.storage_id).add_partitions(timeline.topic, count)
        return self.event_types.replace(event_type, with_partitions(event_type, count))

    def _check(self, count: int, event_type: EventType) -> None:
        if count > self.max_partitions:
            raise Invalid(f"Number of partitions should not be more than {self.max_partitions}")
        if count < event_type.timeline.partitions:
            raise Invalid("Number of partitions can not decrease")


def with_partitions(event_type: EventType, count: int) -> EventType:
    """The event type with so many partitions; its statistics say so too, so that its owner's copy is seen as old."""
    *closed, active = event_type.timelines
    expected = event_type.default_statistic or Statistics(
        messages_per_minute=1, message_size=1, read_parallelism=count, write_parallelism=count
    )
    return replace(
        event_type,
        timelines=(*closed, replace(active, partitions=count)),
        default_statistic=replace(expected, read_parallelism=count, write_parallelism=count),
    )

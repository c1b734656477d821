"""Adds partitions to event types."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from nakadi.auth.features import Features
from nakadi.auth.permissions import Permissions
from nakadi.event_types.deletion import GetDependents
from nakadi.event_types.repository import EventTypes
from nakadi.model.authorization import Operation, Subject
from nakadi.model.event_type import (
    EventType,
    Statistics,
)
from nakadi.model.outcomes import Invalid
from nakadi.ports.event_log import EventLogs


class Repartitioning(Struct, frozen=True, kw_only=True):
    event_types: EventTypes
    permissions: Permissions
    features: Features
    logs: EventLogs
    dependents: GetDependents
    max_partitions: int
    event_type_with_fixed_partitions: str = ""
    """The name of an event type whose partitions cannot change: its subscriptions would not get new ones."""

    def set_partition_count(self, name: str, count: int, subject: Subject) -> None:
        """Extend an event type to `count` partitions. The new ones are empty, and events stay where they are."""
        extended = self.event_types.retry_if_changed(lambda: self._set_partition_count(name, count, subject))
        # This is called even if the number is right already, because an earlier request may have ended between its
        # write and this call.
        self.dependents().after_repartitioning(extended)

    def _set_partition_count(self, name: str, count: int, subject: Subject) -> EventType:
        event_type = self.event_types.get(name)
        self.permissions.require_administrator(Operation.ADMIN, event_type.resource, subject)
        self._check_partition_count(count, event_type)
        if name == self.event_type_with_fixed_partitions and count != event_type.timeline.partitions:
            raise Invalid(f"Event type {name} is for redriving, its partitions can not be changed")
        self.features.require_writes_allowed()
        extended = with_partition_count(event_type, count)
        if extended == event_type:
            return event_type
        timeline = event_type.timeline
        if count > timeline.partitions:
            self.dependents().before_repartitioning(event_type)
            self.logs.for_storage(timeline.storage_id).add_partitions(timeline.topic, count)
        return self.event_types.replace(event_type, extended)

    def _check_partition_count(self, count: int, event_type: EventType) -> None:
        if count > self.max_partitions:
            raise Invalid(f"Number of partitions should not be more than {self.max_partitions}")
        if count < event_type.timeline.partitions:
            raise Invalid("Number of partitions can not decrease")


def with_partition_count(event_type: EventType, count: int) -> EventType:
    *closed, active = event_type.timelines
    expected = event_type.default_statistic or Statistics(
        messages_per_minute=1, message_size=1, read_parallelism=count, write_parallelism=count
    )
    return replace(
        event_type,
        timelines=(*closed, replace(active, partitions=count)),
        default_statistic=replace(expected, read_parallelism=count, write_parallelism=count),
    )

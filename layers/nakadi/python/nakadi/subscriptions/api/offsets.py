"""Offsets that the broker sets by itself: the first ones, and those of later partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from nakadi.event_types.cursors import CursorError
from nakadi.event_types.repository import EventTypes
from nakadi.event_types.snapshot import CursorResolver
from nakadi.model.event_type import Cursor, EventType, Position
from nakadi.model.outcomes import TryLater
from nakadi.model.subscription import (
    Assignment,
    EventTypePartition,
    PartitionAssignment,
    ReadFrom,
    Subscription,
)
from nakadi.ports.clock import Clock
from nakadi.ports.coordination import MAX_PARTITIONS_PER_WRITE, AssignmentChanged, Coordination

Positions = Mapping[EventTypePartition, Position]


# Far more than there can be writers at the same time.
ASSIGNMENT_WRITE_ATTEMPTS = 100

SUBSCRIPTION_BUSY_MESSAGE = "Subscription is being changed by others, please repeat request"


class OffsetInitialisation(Struct, frozen=True, kw_only=True):
    event_types: EventTypes
    cursor_resolver: CursorResolver
    coordination: Coordination
    clock: Clock

    def ensure_initialised(self, subscription: Subscription) -> Assignment:
        """The assignment, with an offset for every partition. What has one keeps it.

        Raises `NotFound` if an event type of a subscription that was never streamed is gone.
        """
        assignment = self.coordination.assignment(subscription.id)
        if assignment.initialised:
            return assignment
        event_types = [self.event_types.get(name) for name in subscription.event_types]
        return self._add_entries_until(
            subscription.id, self.first_positions(subscription, event_types), lambda assignment: assignment.initialised
        )

    def ensure_entries_for_event_type(
        self, subscription: Subscription, event_type: EventType
    ) -> tuple[Assignment, bool]:
        """With entries for partitions that the event type has got meanwhile, and whether there were any.

        Whatever `read_from` says, these are read from their beginning.
        """
        before = self.ensure_initialised(subscription)
        positions = {
            EventTypePartition(event_type.name, partition): Position(event_type.timeline.order, -1)
            for partition in event_type.partitions
        }
        if _has_entries_for(before, positions):
            return before, False
        return self.ensure_entries_for_partitions(subscription, positions), True

    def ensure_entries_for_partitions(self, subscription: Subscription, positions: Positions) -> Assignment:
        """With entries for these partitions, which are read from there unless they were there before."""
        self.ensure_initialised(subscription)
        return self._add_entries_until(subscription.id, positions, lambda found: _has_entries_for(found, positions))

    def first_positions(self, subscription: Subscription, event_types: Iterable[EventType]) -> Positions:
        return {
            EventTypePartition(each.name, partition): position
            for each in event_types
            for partition, position in self._first_positions_of(subscription, each).items()
        }

    def _first_positions_of(self, subscription: Subscription, event_type: EventType) -> Mapping[str, Position]:
        match subscription.read_from:
            case ReadFrom.END:
                return self.cursor_resolver.end_positions(event_type)
            case ReadFrom.BEGIN:
                return self.cursor_resolver.positions_before_oldest(event_type)
            case ReadFrom.CURSORS:
                return self._positions_from_initial_cursors(subscription, event_type)

    def _positions_from_initial_cursors(
        self, subscription: Subscription, event_type: EventType
    ) -> Mapping[str, Position]:
        """What the cursors mean. One whose timeline is gone means the oldest event, as one whose events are gone does;
        partitions that were added since then are read from their beginning."""
        view = self.cursor_resolver.take_snapshot(event_type)
        beginning = view.positions_before_oldest()
        positions = dict.fromkeys(event_type.partitions, Position(event_type.timeline.order, -1))
        for each in subscription.initial_cursors:
            if each.event_type == event_type.name and each.partition in positions:
                try:
                    positions[each.partition] = view.resolve(Cursor(each.partition, each.offset))
                except CursorError:
                    positions[each.partition] = beginning[each.partition]
        return positions

    def _add_entries_until(
        self, subscription_id: str, positions: Positions, done: Callable[[Assignment], bool]
    ) -> Assignment:
        """Add what is missing, as much as fits a write at a time. Other processes may do the same: a write that comes
        second fails, and is decided again on what is there then."""
        for _ in range(ASSIGNMENT_WRITE_ATTEMPTS):
            old = self.coordination.assignment(subscription_id)
            if done(old):
                return old
            new, added = with_next_missing_entries(old, positions)
            try:
                self.coordination.replace_assignment(subscription_id, old, new, self.clock.now(), added)
            except AssignmentChanged:
                continue
        raise TryLater(SUBSCRIPTION_BUSY_MESSAGE)


def with_next_missing_entries(assignment: Assignment, positions: Positions) -> tuple[Assignment, Positions]:
    """With entries for partitions that have none, as many as one write may add, and their positions.

    With the last of them the subscription is initialised.
    """
    there = {entry.partition for entry in assignment.entries}
    missing = sorted((partition for partition in positions if partition not in there), key=_by_event_type_and_number)
    added: Sequence[EventTypePartition] = missing[:MAX_PARTITIONS_PER_WRITE]
    entries = (*assignment.entries, *(PartitionAssignment(partition) for partition in added))
    complete = len(added) == len(missing)
    new = replace(assignment, entries=entries, initialised=assignment.initialised or complete)
    return new, {partition: positions[partition] for partition in added}


def _by_event_type_and_number(partition: EventTypePartition) -> tuple[str, int]:
    return partition.event_type, int(partition.partition)


def _has_entries_for(assignment: Assignment, positions: Positions) -> bool:
    return positions.keys() <= {entry.partition for entry in assignment.entries}

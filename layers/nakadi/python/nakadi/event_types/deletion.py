"""Deletes event types.

The registry comes first: an event type that is not registered has no readers and no writers. Its events and its schema
versions are removed after that, by the same request or, if that fails, by the next housekeeping.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

from msgspec import Struct

from nakadi.auth.administration import Features
from nakadi.auth.permissions import Permissions, denied
from nakadi.common.chores import attempted
from nakadi.event_types.repository import CLEANUP_NOTES, SCHEMAS, EventTypes
from nakadi.model.administration import Feature
from nakadi.model.authorization import Operation, Subject
from nakadi.model.event_type import EventType
from nakadi.model.outcomes import Fault, NotPermitted
from nakadi.ports.event_log import EventLogs
from nakadi.ports.registry import Change, Registry, Remove

log = logging.getLogger(__name__)

# Well below the number of changes that one write of a registry may have.
SCHEMAS_PER_WRITE = 50


class Dependents(Protocol):
    """What depends on event types, which is subscriptions."""

    def depend_on(self, name: str) -> bool:
        """Whether something depends on the event type."""

    def changes_for_removal(self, event_type: EventType) -> tuple[Change, ...]:
        """Changes and conditions for the write that removes an event type, so that nothing depends on it afterwards.

        Raises `Conflict` if something depends on it that may not be removed with it.
        """

    def clean_up(self) -> None:
        """Finish the removal of what was removed together with an event type."""

    def before_repartitioning(self, event_type: EventType) -> None:
        """Prepare for more partitions of the event type."""

    def after_repartitioning(self, event_type: EventType) -> None:
        """Begin to use the new partitions of the event type. May be called again with the same ones."""


class LazyDependents:
    """Creates the dependents at the first call: most processes never need them."""

    def __init__(self, dependents: Callable[[], Dependents]) -> None:
        self._dependents = dependents

    def depend_on(self, name: str) -> bool:
        return self._dependents().depend_on(name)

    def changes_for_removal(self, event_type: EventType) -> tuple[Change, ...]:
        return self._dependents().changes_for_removal(event_type)

    def clean_up(self) -> None:
        self._dependents().clean_up()

    def before_repartitioning(self, event_type: EventType) -> None:
        self._dependents().before_repartitioning(event_type)

    def after_repartitioning(self, event_type: EventType) -> None:
        self._dependents().after_repartitioning(event_type)


class DeletedEventTypes(Struct, frozen=True):
    """Removes what deleted event types leave behind: topics with events, and schema versions."""

    registry: Registry
    logs: EventLogs

    def clear_all(self) -> None:
        for note in self.registry.list(CLEANUP_NOTES):
            attempted("removal of leftovers", f"the event type {note.key}", partial(self.clear, note.key))

    def clear(self, event_type_id: str) -> None:
        """Remove what one event type has left behind. Can be repeated: the note about it is removed last."""
        note = self.registry.get(CLEANUP_NOTES, event_type_id)
        if note is None:
            return
        for storage_id, topic in note.body["topics"]:
            self.logs.of(storage_id).delete_topic(topic)
        while schemas := self.registry.list(SCHEMAS, prefix=f"{event_type_id}/", limit=SCHEMAS_PER_WRITE):
            self.registry.write(*(Remove(SCHEMAS, schema.key) for schema in schemas))
        self.registry.write(Remove(CLEANUP_NOTES, event_type_id))


class EventTypeDeletion(Struct, frozen=True, kw_only=True):
    """Deletes event types on behalf of clients."""

    event_types: EventTypes
    permissions: Permissions
    features: Features
    leftovers: DeletedEventTypes
    dependents: Dependents

    def delete(self, name: str, subject: Subject) -> None:
        """Delete an event type and its events. When this returns, the name can be used again."""
        self._require_enabled(subject)
        self.features.require_writable()
        self._remove_leftovers(self.event_types.retry_if_changed(lambda: self._remove(name, subject)))

    def _require_enabled(self, subject: Subject) -> None:
        # While authentication is off every subject counts as an administrator, and the feature binds all of them.
        off = self.features.is_on(Feature.DISABLE_EVENT_TYPE_DELETION)
        if off and (subject.trusted or not self.permissions.is_administrator(subject)):
            raise NotPermitted("Event Type deletion is disabled")

    def _remove(self, name: str, subject: Subject) -> EventType:
        event_type = self.event_types.get(name)
        self._require_permission(event_type, subject)
        self.event_types.remove(event_type, *self.dependents.changes_for_removal(event_type))
        return event_type

    def _require_permission(self, event_type: EventType, subject: Subject) -> None:
        self.permissions.require(Operation.VIEW, event_type.resource, subject)
        self.permissions.require(Operation.ADMIN, event_type.resource, subject)
        if event_type.authorization is None and self.features.is_on(Feature.FORCE_EVENT_TYPE_AUTHZ):
            raise denied(Operation.ADMIN, event_type.resource, "You cannot delete event-type without authorization.")

    def _remove_leftovers(self, event_type: EventType) -> None:
        """Remove events and schema versions. What fails is left to housekeeping, since the event type is deleted."""
        self.dependents.clean_up()
        try:
            self.leftovers.clear(event_type.id)
        except Fault:
            log.warning(
                "Removal of events of deleted event type %s failed, housekeeping will retry",
                event_type.name,
                exc_info=True,
            )

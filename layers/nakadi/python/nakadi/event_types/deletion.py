"""Deleting an event type: what depends on it, and what it leaves behind."""

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


class Dependents(Protocol):
    def changes_for_removal(self, event_type: EventType) -> tuple[Change, ...]:
        """What a write that removes the event type has to do and to insist on besides, so that nobody depends on it
        afterwards. Raises `Conflict` if somebody does and will not let go.
        """

    def clean_up(self) -> None:
        """Clear away what is left of those that were removed together with an event type."""

    def before_repartitioning(self, event_type: EventType) -> None:
        """The event type is about to get more partitions."""

    def after_repartitioning(self, event_type: EventType) -> None:
        """The event type has these partitions. It may be told more than once."""


class LazyDependents:
    """Dependents that are put together when they are first asked: most processes never ask."""

    def __init__(self, dependents: Callable[[], Dependents]) -> None:
        self._dependents = dependents

    def changes_for_removal(self, event_type: EventType) -> tuple[Change, ...]:
        return self._dependents().changes_for_removal(event_type)

    def clean_up(self) -> None:
        self._dependents().clean_up()

    def before_repartitioning(self, event_type: EventType) -> None:
        self._dependents().before_repartitioning(event_type)

    def after_repartitioning(self, event_type: EventType) -> None:
        self._dependents().after_repartitioning(event_type)


# Well below what one write of a registry takes.
SCHEMAS_PER_WRITE = 50


class DeletedEventTypes(Struct, frozen=True):
    registry: Registry
    logs: EventLogs

    def clear_all(self) -> None:
        for note in self.registry.list(CLEANUP_NOTES):
            attempted("removal of leftovers", f"the event type {note.key}", partial(self.clear, note.key))

    def clear(self, event_type_id: str) -> None:
        """Clear up after one event type. Can be repeated; the note goes last, so that nothing is forgotten."""
        note = self.registry.get(CLEANUP_NOTES, event_type_id)
        if note is None:
            return
        for storage_id, topic in note.body["topics"]:
            self.logs.of(storage_id).delete_topic(topic)
        while schemas := self.registry.list(SCHEMAS, prefix=f"{event_type_id}/", limit=SCHEMAS_PER_WRITE):
            self.registry.write(*(Remove(SCHEMAS, schema.key) for schema in schemas))
        self.registry.write(Remove(CLEANUP_NOTES, event_type_id))


log = logging.getLogger(__name__)


class EventTypeDeletion(Struct, frozen=True, kw_only=True):
    event_types: EventTypes
    permissions: Permissions
    features: Features
    leftovers: DeletedEventTypes
    dependents: Dependents

    def delete(self, name: str, subject: Subject) -> None:
        """Delete an event type and its events. When this returns the name is free again."""
        self._require_switched_on(subject)
        self.features.require_writable()
        self._clear_away(self.event_types.retry_if_changed(lambda: self._remove(name, subject)))

    def _require_switched_on(self, subject: Subject) -> None:
        # While authentication is off nobody stands out as an administrator, and the switch is for everyone.
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

    def _clear_away(self, event_type: EventType) -> None:
        """The event type is gone already; what cannot be cleared now is cleared by the next housekeeping."""
        self.dependents.clean_up()
        try:
            self.leftovers.clear(event_type.id)
        except Fault:
            log.warning("The events of %s are still to be cleared away", event_type.name, exc_info=True)

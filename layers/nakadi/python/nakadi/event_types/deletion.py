"""Deletes event types.

An event type is removed from the registry first, because after that it has no readers and no writers. Its events and
its schema versions are removed after that, by the same request or, if that fails, by the next housekeeping.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from msgspec import Struct

from nakadi.auth.features import Features
from nakadi.auth.permissions import Permissions, permission_denied_error
from nakadi.common.chores import run_and_log_failure
from nakadi.event_types.repository import CLEANUP_NOTES_KIND, SCHEMAS_KIND, EventTypes
from nakadi.model.authorization import Feature, Operation, Subject
from nakadi.model.event_type import EventType
from nakadi.model.outcomes import Fault, NotPermitted
from nakadi.model.reads import Reader
from nakadi.ports.event_log import EventLogs
from nakadi.ports.registry import DocumentChange, Registry, RemoveDocument

log = logging.getLogger(__name__)


# Well below the number of changes that one write of a registry may have.
SCHEMAS_PER_WRITE = 50


class Dependents(Protocol):
    """The resources that depend on event types: subscriptions."""

    def any_depend_on(self, name: str) -> bool:
        """Whether any resource depends on the event type."""

    def readers_of(self, name: str) -> Sequence[Reader]:
        """The subscriptions to the event type, and the members that they have declared."""

    def changes_for_removal(self, event_type: EventType) -> tuple[DocumentChange, ...]:
        """Changes and conditions for the write that removes an event type, so that no resource depends on the event
        type afterwards.

        Raises `Conflict` if a resource depends on it that may not be removed with it.
        """

    def clear_deleted_subscriptions(self) -> None:
        """Finish the removal of subscriptions that were deleted together with an event type."""

    def before_repartitioning(self, event_type: EventType) -> None:
        """Prepare for more partitions of the event type."""

    def after_repartitioning(self, event_type: EventType) -> None:
        """Begin to use the new partitions of the event type. May be called again with the same partitions."""


GetDependents = Callable[[], Dependents]
"""Returns the dependents. They are created at the first call, because most processes never need them."""


class DeletedEventTypeCleanup(Struct, frozen=True):
    """Removes the remains of deleted event types: topics with events, and schema versions."""

    registry: Registry
    logs: EventLogs

    def clean_up_all(self) -> None:
        for note in self.registry.list(CLEANUP_NOTES_KIND):
            run_and_log_failure("removal of leftovers", f"the event type {note.key}", partial(self.clean_up, note.key))

    def try_to_clean_up(self, key: str, event_type: str) -> None:
        """Remove what a note names, for a request that is done without this. Housekeeping completes failed removals."""
        try:
            self.clean_up(key)
        except Fault:
            log.warning("Removal of events of %s failed, housekeeping will retry", event_type, exc_info=True)

    def clean_up(self, event_type_id: str) -> None:
        note = self.registry.get(CLEANUP_NOTES_KIND, event_type_id)
        if note is None:
            return
        for storage_id, topic in note.body["topics"]:
            self.logs.for_storage(storage_id).delete_topic(topic)
        while schemas := self.registry.list(SCHEMAS_KIND, prefix=f"{event_type_id}/", limit=SCHEMAS_PER_WRITE):
            self.registry.write(*(RemoveDocument(SCHEMAS_KIND, schema.key) for schema in schemas))
        self.registry.write(RemoveDocument(CLEANUP_NOTES_KIND, event_type_id))


class EventTypeDeletion(Struct, frozen=True, kw_only=True):
    event_types: EventTypes
    permissions: Permissions
    features: Features
    deleted_event_type_cleanup: DeletedEventTypeCleanup
    dependents: GetDependents

    def delete(self, name: str, subject: Subject) -> None:
        """Delete an event type and its events. When this returns, the name can be used again."""
        self._require_enabled(subject)
        self.features.require_writes_allowed()
        event_type = self.event_types.retry_if_changed(lambda: self._remove_from_registry(name, subject))
        self.dependents().clear_deleted_subscriptions()
        self.deleted_event_type_cleanup.try_to_clean_up(event_type.id, name)

    def _require_enabled(self, subject: Subject) -> None:
        # While authentication is off, every subject counts as an administrator, so the feature then applies to
        # administrators too.
        off = self.features.is_on(Feature.DISABLE_EVENT_TYPE_DELETION)
        if off and (subject.trusted or not self.permissions.is_administrator(subject)):
            raise NotPermitted("Event Type deletion is disabled")

    def _remove_from_registry(self, name: str, subject: Subject) -> EventType:
        event_type = self.event_types.get(name)
        self._require_permission(event_type, subject)
        self.event_types.remove(event_type, *self.dependents().changes_for_removal(event_type))
        return event_type

    def _require_permission(self, event_type: EventType, subject: Subject) -> None:
        self.permissions.require_all_operations((Operation.VIEW, Operation.ADMIN), event_type.resource, subject)
        if event_type.authorization is None and self.features.is_on(Feature.FORCE_EVENT_TYPE_AUTHZ):
            raise permission_denied_error(
                Operation.ADMIN, event_type.resource, "You cannot delete event-type without authorization."
            )

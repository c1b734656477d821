"""Deleting an event type: the registry first, its events after."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from nakadi.access.permissions import Permissions, denied
from nakadi.administration.features import Features
from nakadi.catalog.dependents import Dependents
from nakadi.catalog.event_types import EventTypes
from nakadi.catalog.leftovers import Leftovers
from nakadi.model.administration import Feature
from nakadi.model.authorization import Operation, Subject
from nakadi.model.event_type import EventType
from nakadi.model.outcomes import Fault, NotPermitted

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    event_types: EventTypes
    permissions: Permissions
    features: Features
    leftovers: Leftovers
    dependents: Dependents

    def delete(self, name: str, subject: Subject) -> None:
        """Delete an event type and its events. When this returns the name is free again."""
        self._require_switched_on(subject)
        self.features.require_writable()
        self._clear_away(self.event_types.again_if_changed(lambda: self._remove(name, subject)))

    def _require_switched_on(self, subject: Subject) -> None:
        # While authentication is off nobody stands out as an administrator, and the switch is for everyone.
        off = self.features.is_on(Feature.DISABLE_EVENT_TYPE_DELETION)
        if off and (subject.trusted or not self.permissions.is_administrator(subject)):
            raise NotPermitted("Event Type deletion is disabled")

    def _remove(self, name: str, subject: Subject) -> EventType:
        event_type = self.event_types.get(name)
        self._require_permission(event_type, subject)
        self.event_types.remove(event_type, *self.dependents.released(event_type))
        return event_type

    def _require_permission(self, event_type: EventType, subject: Subject) -> None:
        self.permissions.require(Operation.VIEW, event_type.resource, subject)
        self.permissions.require(Operation.ADMIN, event_type.resource, subject)
        if event_type.authorization is None and self.features.is_on(Feature.FORCE_EVENT_TYPE_AUTHZ):
            raise denied(Operation.ADMIN, event_type.resource, "You cannot delete event-type without authorization.")

    def _clear_away(self, event_type: EventType) -> None:
        """The event type is gone already; what cannot be cleared now is cleared by the next housekeeping."""
        self.dependents.clear_up()
        try:
            self.leftovers.clear(event_type.id)
        except Fault:
            log.warning("The events of %s are still to be cleared away", event_type.name, exc_info=True)

"""The event types of the broker itself: dead letters, the audit log, and KPIs.

They are created at a broker's start or by housekeeping, whichever comes first; several processes may try at the same
time. A feature's event types are created while the feature is on. Existing event types are not changed, with one
exception. While authentication is on, an event type that no operator has changed gets the authorization of the settings
if it is open to everyone, or if its lists are empty because the settings named no administrator before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from msgspec import Struct, field
from msgspec.structs import replace

from nakadi.auth.features import Features
from nakadi.event_types import drafts
from nakadi.event_types.repository import EventTypes
from nakadi.event_types.system_event_type_definitions import SystemEventType
from nakadi.model.authorization import WILDCARD, Authorization, Feature
from nakadi.model.event_type import (
    EventTypeDraft,
)
from nakadi.model.outcomes import Fault, Outcome

log = logging.getLogger(__name__)


class SystemEventTypes(Struct, frozen=True, kw_only=True):
    """Creates the system event types.

    `register` stores an event type unless it exists; `is_authentication_on` is set while authentication is on.
    """

    definitions: tuple[SystemEventType, ...]
    event_types: EventTypes
    features: Features
    register: Callable[[EventTypeDraft], None]
    is_authentication_on: bool
    prepared_names: set[str] = field(default_factory=set)
    """The names of the event types that are known to exist, and need no further check."""

    def create_missing(self) -> None:
        """Create the missing event types. A failure is logged, and the next call tries again."""
        if self.features.is_on(Feature.DISABLE_DB_WRITE_OPERATIONS):
            return
        for each in self.definitions:
            enabled = each.feature is None or self.features.is_on(each.feature)
            if enabled and each.name not in self.prepared_names:
                try:
                    self._prepare_event_type(each)
                except (Fault, Outcome):
                    log.warning("Creation of system event type %s failed", each.name, exc_info=True)

    def ensure_exists(self, name: str) -> None:
        if self.event_types.find(name) is None:
            self.register(next(each.draft for each in self.definitions if each.name == name))

    def _prepare_event_type(self, definition: SystemEventType) -> None:
        self.ensure_exists(definition.name)
        self.event_types.retry_if_changed(lambda: self._correct_authorization(definition))
        self.prepared_names.add(definition.name)

    def _correct_authorization(self, definition: SystemEventType) -> None:
        """Replace the authorization of an event type that was created with other settings or by an older version."""
        found = self.event_types.find(definition.name)
        wanted = drafts.authorization_from_draft(definition.draft.authorization)
        if not self.is_authentication_on or found is None or not _needs_new_authorization(found.authorization, wanted):
            return
        if found.updated_at != found.created_at:
            state = (
                "open to everyone"
                if _is_open_to_everyone(found.authorization)
                else "open to administrators of the broker only"
            )
            log.warning("System event type %s stays %s, because an operator has changed it", definition.name, state)
            return
        # `updated_at` is kept, so that the event type still counts as one that no operator has changed.
        self.event_types.replace(found, replace(found, authorization=wanted))
        log.info("Authorization of system event type %s set to %s", definition.name, wanted)


def _needs_new_authorization(authorization: Authorization | None, wanted: Authorization | None) -> bool:
    if _is_open_to_everyone(authorization):
        return not _is_open_to_everyone(wanted)
    return not _has_named_subjects(authorization) and _has_named_subjects(wanted)


def _is_open_to_everyone(authorization: Authorization | None) -> bool:
    """Whether the lists permit anything to every subject with a token."""
    return authorization is None or WILDCARD in (*authorization.admins, *authorization.readers, *authorization.writers)


def _has_named_subjects(authorization: Authorization | None) -> bool:
    return authorization is not None and bool(authorization.admins or authorization.readers or authorization.writers)

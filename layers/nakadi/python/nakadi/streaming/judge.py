"""The judge: who may be streamed to, and what of it."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from nakadi.access.permissions import Permissions
from nakadi.administration.features import Features
from nakadi.catalog.event_types import EventTypes, unknown
from nakadi.model.administration import Feature
from nakadi.model.authorization import Attribute, Authorization, Operation, Resource, ResourceType, Subject
from nakadi.model.event_type import EventType
from nakadi.model.events import Record
from nakadi.model.outcomes import NotFound, NotPermitted, TryLater

# Clients tell a missing event type by these words here, and by others everywhere else.
NO_SUCH_EVENT_TYPE = "topic not found"


@dataclass(frozen=True, slots=True)
class Blocked:
    """Neither a word nor an event more."""


@dataclass(frozen=True, slots=True)
class Refused:
    """No event more, and why."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Changed:
    """Go on, with the event type as it is now."""

    event_type: EventType


Verdict = Blocked | Refused | Changed | None


class Judge:
    """Looks things up, and so belongs into a thread."""

    def __init__(self, event_types: EventTypes, permissions: Permissions, features: Features) -> None:
        self._event_types = event_types
        self._permissions = permissions
        self._features = features
        self._looking = threading.Lock()
        self._owners_matter = True
        # Whether events that say of themselves that they belong elsewhere are not shown.
        self.misplaced_are_skipped = False

    def admit(self, name: str, subject: Subject) -> EventType:
        """The event type that a subject wants to read, if it may."""
        self.look_at_features()
        self._permissions.require_consumer(subject, [name])
        event_type = self._event_types.find(name)
        if event_type is None:
            raise NotFound(NO_SUCH_EVENT_TYPE)
        self._permissions.require(Operation.VIEW, event_type.resource, subject)
        self._permissions.require(Operation.READ, event_type.resource, subject)
        return event_type

    def verdict(self, subject: Subject, known: EventType) -> Verdict:
        """What has become of a subject's right to read an event type that it was reading as it was then known."""
        try:
            self._permissions.require_consumer(subject, [known.name])
        except NotPermitted:
            return Blocked()
        current = self._current(known)
        if current is None:
            return Refused(TryLater(str(unknown(known.name))))
        if current.revision <= known.revision:
            return None
        try:
            self._permissions.require(Operation.READ, current.resource, subject)
        except NotPermitted as error:
            return Refused(error)
        return Changed(current)

    def change(self, known: EventType) -> Verdict:
        """What has become of an event type that is read whatever its subject may read."""
        current = self._current(known)
        return Changed(current) if current is not None and current.revision > known.revision else None

    def look_at_features(self) -> None:
        """Remember what is asked for every event, where there is no time to look."""
        with self._looking:  # one by one, or somebody who looked earlier might have the last word
            self._owners_matter = self._features.is_on(Feature.EVENT_OWNER_SELECTOR_AUTHZ)
            self.misplaced_are_skipped = self._features.is_on(Feature.SKIP_MISPLACED_EVENTS)

    def may_read(self, record: Record, subject: Subject) -> bool:
        """Whether a subject gets to see an event. Tombstones, and what is for one subscription, nobody does."""
        if record.value is None or record.directed_to is not None:
            return False
        return record.owner is None or not self._owners_matter or self._may_read_of(record.owner, subject)

    def _may_read_of(self, owner: Attribute, subject: Subject) -> bool:
        owned = Resource(ResourceType.EVENT, "", Authorization(admins=(), readers=(owner,)))
        return self._permissions.allows(Operation.READ, owned, subject)

    def _current(self, known: EventType) -> EventType | None:
        """The same event type as it is now; another one may have taken its name."""
        try:
            current: EventType | None = self._event_types.cached(known.name)
        except NotFound:
            return None
        if current is not None and current.id != known.id:
            # What is remembered may be the one *before* ours.
            current = self._event_types.find(known.name)
        return current if current is not None and current.id == known.id else None

"""Creating, updating and deleting subscriptions."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace

from nakadi.auth import permissions
from nakadi.auth.administration import Features
from nakadi.auth.permissions import Permissions
from nakadi.common.chores import attempted
from nakadi.event_types import drafts
from nakadi.event_types.cursors import CursorError
from nakadi.event_types.documents import now_in_milliseconds
from nakadi.event_types.drafts import AUTHORIZATION_MANDATORY
from nakadi.event_types.repository import EventTypes
from nakadi.event_types.snapshot import Cursors
from nakadi.model.administration import Feature
from nakadi.model.authorization import Operation, Subject
from nakadi.model.event_type import EventType
from nakadi.model.outcomes import Fault, Invalid, TryLater
from nakadi.model.subscription import (
    EventTypePartition,
    ReadFrom,
    Subscription,
    SubscriptionCursor,
    SubscriptionCursorDraft,
    SubscriptionDraft,
)
from nakadi.model.timeline import Cursor
from nakadi.ports.clock import Clock
from nakadi.ports.coordination import Coordination
from nakadi.ports.registry import ChangedMeanwhile
from nakadi.subscriptions.api.fields import check_fields
from nakadi.subscriptions.api.repository import SubscriptionIds, Subscriptions, key_of

# Creation -------------------------------------------------------------------------------------------------------------


SWITCHED_OFF = "Subscription creation is temporarily unavailable"

# Event types change rarely; who meets this many changes in a row is better off asking again.
ATTEMPTS = 8


class SubscriptionCreation(Struct, frozen=True, kw_only=True):
    subscriptions: Subscriptions
    event_types: EventTypes
    cursors: Cursors
    permissions: Permissions
    features: Features
    clock: Clock
    max_partitions: int
    ids: SubscriptionIds = field(default_factory=SubscriptionIds)

    def create(self, draft: SubscriptionDraft, subject: Subject) -> tuple[Subscription, bool]:
        """The subscription of this application, these event types and this group, and whether it is new."""
        check_fields(draft)
        found = self.subscriptions.with_key(_key(draft))
        if found is not None:
            self.permissions.require(Operation.VIEW, found.resource, subject)
            return found, False
        for _ in range(ATTEMPTS):
            try:
                return self._created(draft, subject), True
            except ChangedMeanwhile:
                # An event type was changed, or is gone: both are found out by looking again.
                self._check_still_there(draft)
        raise TryLater(SWITCHED_OFF)

    def _created(self, draft: SubscriptionDraft, subject: Subject) -> Subscription:
        """The order is the clients' to see."""
        if self.features.is_on(Feature.DISABLE_SUBSCRIPTION_CREATION):
            raise TryLater(SWITCHED_OFF)
        self.features.require_writable()
        if draft.authorization is None and self.features.is_on(Feature.FORCE_SUBSCRIPTION_AUTHZ):
            raise Invalid(AUTHORIZATION_MANDATORY)
        event_types = self._event_types(draft)
        for event_type in event_types:
            self.permissions.require(Operation.VIEW, event_type.resource, subject)
        self._check_size(event_types)
        if draft.read_from is ReadFrom.CURSORS:
            self._check_cursors(cursors_of(draft.initial_cursors), event_types)
        drafts.check_authorization(draft.authorization)
        subscription = self._new(draft)
        # Before it is stored: a client that may not see it could never use it.
        self.permissions.require(Operation.VIEW, subscription.resource, subject)
        return self.subscriptions.add(subscription, event_types)

    def _event_types(self, draft: SubscriptionDraft) -> Sequence[EventType]:
        names = draft.event_types or ()
        found = {name: self.event_types.find(name) for name in names}
        missing = [f"'{name}'" for name in names if found[name] is None]
        if missing:
            raise _not_found(missing)
        return [each for each in found.values() if each is not None]

    def _check_still_there(self, draft: SubscriptionDraft) -> None:
        missing = [name for name in draft.event_types or () if self.event_types.find(name) is None]
        if missing:
            raise _not_found(missing)

    def _check_size(self, event_types: Sequence[EventType]) -> None:
        count = sum(len(each.partitions) for each in event_types)
        if count > self.max_partitions:
            raise Invalid(
                f"total partition count for subscription is {count}, "
                f"but the maximum partition count is {self.max_partitions}"
            )

    def _check_cursors(self, cursors: Sequence[SubscriptionCursor], event_types: Sequence[EventType]) -> None:
        check_coverage(cursors, event_types)
        by_name = {each.name: self.cursors.at(each) for each in event_types}
        try:
            for each in cursors:
                view = by_name[each.event_type]
                position = view.resolve(Cursor(each.partition, each.offset))
                view.check_readable(each.partition, position, each.offset)
        except CursorError as error:
            raise Invalid(str(error)) from error

    def _new(self, draft: SubscriptionDraft) -> Subscription:
        assert draft.owning_application is not None
        assert draft.consumer_group is not None
        assert draft.read_from is not None
        now = now_in_milliseconds(self.clock)
        return Subscription(
            id=self.ids.next(now),
            owning_application=draft.owning_application,
            event_types=draft.event_types or (),
            consumer_group=draft.consumer_group,
            read_from=draft.read_from,
            initial_cursors=cursors_of(draft.initial_cursors),
            authorization=drafts.authorization(draft.authorization),
            annotations=draft.annotations or {},
            labels=draft.labels or {},
            created_at=now,
            updated_at=now,
        )


def check_coverage(cursors: Sequence[SubscriptionCursor], event_types: Sequence[EventType]) -> None:
    """There must be one cursor for each partition, and none for anything else."""
    wanted = {EventTypePartition(each.name, partition) for each in event_types for partition in each.partitions}
    given = {each.place for each in cursors}
    if wanted - given:
        raise Invalid("initial_cursors should contain cursors for all partitions of subscription")
    if given - wanted:
        raise Invalid("initial_cursors should contain cursors only for partitions of this subscription")
    if len(cursors) > len(given):
        raise Invalid("there should be no more than 1 cursor for each partition in initial_cursors")


def cursors_of(them: Sequence[SubscriptionCursorDraft]) -> tuple[SubscriptionCursor, ...]:
    return tuple(SubscriptionCursor(each.event_type or "", each.partition or "", each.offset or "") for each in them)


def _key(draft: SubscriptionDraft) -> str:
    return key_of(draft.owning_application or "", draft.event_types or (), draft.consumer_group or "")


def _not_found(names: Sequence[str]) -> Invalid:
    return Invalid(f"Failed to create subscription, event type(s) not found: {', '.join(names)}")


# Update ---------------------------------------------------------------------------------------------------------------


BUSY = "Subscription is being changed by others, please repeat request"


class SubscriptionUpdate(Struct, frozen=True, kw_only=True):
    subscriptions: Subscriptions
    permissions: Permissions
    features: Features
    clock: Clock

    def update(self, subscription_id: str, draft: SubscriptionDraft, subject: Subject) -> Subscription:
        """Replace authorization, annotations and labels; everything else has to be as it is."""
        check_fields(draft)
        self.features.require_writable()
        if draft.authorization is None and self.features.is_on(Feature.FORCE_SUBSCRIPTION_AUTHZ):
            raise Invalid(AUTHORIZATION_MANDATORY)
        for _ in range(ATTEMPTS):
            try:
                return self._update(subscription_id, draft, subject)
            except ChangedMeanwhile:
                continue
        raise TryLater(BUSY)

    def _update(self, subscription_id: str, draft: SubscriptionDraft, subject: Subject) -> Subscription:
        old = self.subscriptions.get(subscription_id)
        self.permissions.require(Operation.VIEW, old.resource, subject)
        self.permissions.require(Operation.ADMIN, old.resource, subject)
        check_unchanged(old, draft)
        permissions.check_not_removed(old.authorization, draft.authorization)
        drafts.check_authorization(draft.authorization)
        new = replace(
            old,
            authorization=drafts.authorization(draft.authorization),
            annotations=old.annotations if draft.annotations is None else draft.annotations,
            labels=old.labels if draft.labels is None else draft.labels,
            # Every change moves the time of the last change, also two within one millisecond.
            updated_at=max(now_in_milliseconds(self.clock), old.updated_at + timedelta(milliseconds=1)),
        )
        return self.subscriptions.replace(old, new)


def check_unchanged(old: Subscription, draft: SubscriptionDraft) -> None:
    fixed = (
        ("subscription consumer group", old.consumer_group, draft.consumer_group),
        ("subscription event types", old.event_types, draft.event_types),
        ("owning application", old.owning_application, draft.owning_application),
        ("read from", old.read_from, draft.read_from),
        ("initial cursors", old.initial_cursors, cursors_of(draft.initial_cursors)),
    )
    for name, before, after in fixed:
        if before != after:
            raise Invalid(f"Not allowed to change {name}")


# Deletion -------------------------------------------------------------------------------------------------------------


class SubscriptionDeletion(Struct, frozen=True, kw_only=True):
    subscriptions: Subscriptions
    permissions: Permissions
    features: Features
    leftovers: DeletedSubscriptions

    def delete(self, subscription_id: str, subject: Subject) -> None:
        """Delete a subscription with its offsets. Its streams end."""
        self.features.require_writable()
        self._remove(subscription_id, subject)
        self.leftovers.try_to_clear_all()

    def _remove(self, subscription_id: str, subject: Subject) -> Subscription:
        for _ in range(ATTEMPTS):
            subscription = self.subscriptions.get(subscription_id)
            self.permissions.require(Operation.VIEW, subscription.resource, subject)
            self.permissions.require(Operation.ADMIN, subscription.resource, subject)
            try:
                self.subscriptions.remove(subscription)
            except ChangedMeanwhile:
                continue
            return subscription
        raise TryLater(BUSY)


log = logging.getLogger(__name__)


class DeletedSubscriptions(Struct, frozen=True):
    """What deleted subscriptions leave behind: an assignment and offsets. Running streams end when these go."""

    subscriptions: Subscriptions
    coordination: Coordination

    def clear_all(self) -> None:
        for subscription_id in self.subscriptions.leftovers():
            attempted(
                "removal of assignment and offsets",
                f"the subscription {subscription_id}",
                partial(self.clear, subscription_id),
            )

    def clear(self, subscription_id: str) -> None:
        """The note goes last, so that nothing is forgotten."""
        self.coordination.forget(subscription_id)
        self.subscriptions.cleared(subscription_id)

    def try_to_clear_all(self) -> None:
        """What cannot be cleared now is cleared by the next housekeeping."""
        try:
            self.clear_all()
        except Fault:
            log.warning("What deleted subscriptions left is still to be cleared away", exc_info=True)

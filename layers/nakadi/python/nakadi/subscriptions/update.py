"""Changing a subscription, as far as it can be changed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from nakadi.access import lists
from nakadi.access.permissions import Permissions
from nakadi.administration.features import Features
from nakadi.catalog import drafts
from nakadi.catalog.creation import AUTHORIZATION_MANDATORY
from nakadi.catalog.moments import now_in_milliseconds
from nakadi.model.administration import Feature
from nakadi.model.authorization import Operation, Subject
from nakadi.model.outcomes import Invalid, TryLater
from nakadi.model.subscription import Subscription, SubscriptionDraft
from nakadi.ports import ChangedMeanwhile, Clock
from nakadi.subscriptions.creation import ATTEMPTS, cursors_of
from nakadi.subscriptions.repository import Subscriptions
from nakadi.subscriptions.violations import check_fields

BUSY = "Subscription is being changed by others, please repeat request"


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
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
        lists.check_not_removed(old.authorization, draft.authorization)
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

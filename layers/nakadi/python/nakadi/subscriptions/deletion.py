"""Deleting a subscription: the registry first, what its streams shared after."""

from __future__ import annotations

from dataclasses import dataclass

from nakadi.access.permissions import Permissions
from nakadi.administration.features import Features
from nakadi.model.authorization import Operation, Subject
from nakadi.model.outcomes import TryLater
from nakadi.model.subscription import Subscription
from nakadi.ports import ChangedMeanwhile
from nakadi.subscriptions.creation import ATTEMPTS
from nakadi.subscriptions.leftovers import Leftovers
from nakadi.subscriptions.repository import Subscriptions
from nakadi.subscriptions.update import BUSY


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    subscriptions: Subscriptions
    permissions: Permissions
    features: Features
    leftovers: Leftovers

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

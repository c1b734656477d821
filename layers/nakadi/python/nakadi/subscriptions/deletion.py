"""Deleting a subscription: the registry first, what its streams shared after."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from nakadi.access.permissions import Permissions
from nakadi.administration.features import Features
from nakadi.model.authorization import Operation, Subject
from nakadi.model.outcomes import Fault, TryLater
from nakadi.model.subscription import Subscription
from nakadi.ports import ChangedMeanwhile, Coordination
from nakadi.subscriptions.creation import ATTEMPTS
from nakadi.subscriptions.repository import Subscriptions
from nakadi.subscriptions.update import BUSY

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What deleted subscriptions leave behind: an assignment and offsets. Running streams end when these go."""

    subscriptions: Subscriptions
    coordination: Coordination

    def clear_all(self) -> None:
        for subscription_id in self.subscriptions.leftovers():
            self.clear(subscription_id)

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

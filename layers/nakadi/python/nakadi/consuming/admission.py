"""Who may stream a subscription, and which of its partitions can be asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nakadi.access.permissions import Permissions
from nakadi.catalog.event_types import EventTypes
from nakadi.model.authorization import Operation, Subject
from nakadi.model.event_type import EventType
from nakadi.model.outcomes import Invalid, NotFound, TryLater
from nakadi.model.subscription import EventTypePartition, Subscription
from nakadi.subscriptions.initialisation import Initialisation
from nakadi.subscriptions.repository import Subscriptions

CANNOT_GO_ON = "Failed to continue streaming"


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """`fulfil_wish` does what a reset of a subscription wishes that stands, if no session is left."""

    subscriptions: Subscriptions
    event_types: EventTypes
    permissions: Permissions
    initialisation: Initialisation
    fulfil_wish: Callable[[str], object]

    def admit(
        self, subscription_id: str, requested: Sequence[EventTypePartition], subject: Subject
    ) -> tuple[Subscription, Sequence[EventType]]:
        """The subscription, which has offsets now, and its event types. Raises outcomes in the order of the checks."""
        subscription = self._subscription(subscription_id, subject)
        event_types = self._event_types(subscription)
        _check_partitions(requested, event_types)
        self._check_permitted(subscription, event_types, subject)
        self._initialise(subscription)
        return subscription, event_types

    def check_still_there(self, subscription: Subscription) -> None:
        """Raise `NotFound` if the subscription was deleted since it was admitted."""
        self.subscriptions.get(subscription.id)

    def _subscription(self, subscription_id: str, subject: Subject) -> Subscription:
        """Who is blocked does not learn whether it exists."""
        try:
            # Not as it was a moment ago: what is shared of one that was deleted must not come into being again.
            subscription: Subscription = self.subscriptions.get(subscription_id)
        except NotFound:
            self.permissions.require_consumer(subject, ())
            raise
        self.permissions.require_consumer(subject, subscription.event_types)
        return subscription

    def _event_types(self, subscription: Subscription) -> Sequence[EventType]:
        try:
            return [self.event_types.get(name) for name in subscription.event_types]
        except NotFound as error:
            raise TryLater(CANNOT_GO_ON) from error

    def _check_permitted(self, subscription: Subscription, event_types: Sequence[EventType], subject: Subject) -> None:
        self.permissions.require(Operation.VIEW, subscription.resource, subject)
        self.permissions.require(Operation.READ, subscription.resource, subject)
        for each in event_types:
            self.permissions.require(Operation.READ, each.resource, subject)

    def _initialise(self, subscription: Subscription) -> None:
        try:
            self.initialisation.initialised(subscription)
        except NotFound as error:
            raise TryLater(CANNOT_GO_ON) from error


def _check_partitions(requested: Sequence[EventTypePartition], event_types: Sequence[EventType]) -> None:
    if len(set(requested)) < len(requested):
        raise Invalid("Duplicated partition specified")
    there = {EventTypePartition(each.name, partition) for each in event_types for partition in each.partitions}
    foreign = [str(each) for each in requested if each not in there]
    if foreign:
        raise Invalid(
            "Wrong partitions specified - some partitions don't belong to subscription: " + ", ".join(foreign)
        )

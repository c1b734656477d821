"""The parts that subscriptions consist of, wired."""

from __future__ import annotations

from functools import cached_property

from nakadi.bootstrap_subscription_care import SubscriptionCare
from nakadi.http.routes.subscriptions import SubscriptionHandlers
from nakadi.subscriptions.api.cursors import SubscriptionCursors
from nakadi.subscriptions.api.event_types import SubscribedEventTypes
from nakadi.subscriptions.api.listing import SubscriptionListing
from nakadi.subscriptions.api.parked_events import ParkedEvents
from nakadi.subscriptions.api.resets import Resets
from nakadi.subscriptions.api.resource import SubscriptionCreation, SubscriptionDeletion, SubscriptionUpdate


class Subscribing(SubscriptionCare):
    """What is made of the rest of a broker, each part once."""

    @cached_property
    def resets(self) -> Resets:
        return Resets(
            fulfilment=self.wish_fulfilment,
            max_commit_timeout=self.settings.max_commit_timeout_seconds,
            longest_wait=self.settings.longest_wait_seconds or None,
        )

    @cached_property
    def dependents(self) -> SubscribedEventTypes:
        return SubscribedEventTypes(
            subscriptions=self.subscriptions,
            features=self.features,
            initialisation=self.initialisation,
            resets=self.resets,
            leftovers=self.leftovers,
            deletable_owner=self.settings.deletable_subscription_owning_application,
            deletable_group=self.settings.deletable_subscription_consumer_group,
            attachment=self.attachment,
        )

    @cached_property
    def creation(self) -> SubscriptionCreation:
        return SubscriptionCreation(
            subscriptions=self.subscriptions,
            event_types=self.event_types,
            cursors=self.cursors,
            permissions=self.permissions,
            features=self.features,
            clock=self.clock,
            max_partitions=self.settings.max_subscription_partitions,
        )

    @cached_property
    def update(self) -> SubscriptionUpdate:
        return SubscriptionUpdate(
            subscriptions=self.subscriptions,
            permissions=self.permissions,
            features=self.features,
            clock=self.clock,
        )

    @cached_property
    def deletion(self) -> SubscriptionDeletion:
        return SubscriptionDeletion(
            subscriptions=self.subscriptions,
            permissions=self.permissions,
            features=self.features,
            leftovers=self.leftovers,
        )

    @cached_property
    def subscription_cursors(self) -> SubscriptionCursors:
        return SubscriptionCursors(
            subscriptions=self.subscriptions,
            event_types=self.event_types,
            cursors=self.cursors,
            permissions=self.permissions,
            coordination=self.coordination,
            initialisation=self.initialisation,
            resets=self.resets,
            clock=self.clock,
            metrics=self.metrics,
        )

    @cached_property
    def parked_events(self) -> ParkedEvents:
        return ParkedEvents(
            subscriptions=self.subscriptions,
            event_types=self.event_types,
            permissions=self.permissions,
            features=self.features,
            coordination=self.coordination,
            resets=self.resets,
            clock=self.clock,
        )

    @cached_property
    def doors(self) -> SubscriptionHandlers:
        return SubscriptionHandlers(
            subscriptions=self.subscriptions,
            listing=SubscriptionListing(self.subscriptions),
            creation=self.creation,
            update=self.update,
            deletion=self.deletion,
            cursors=self.subscription_cursors,
            stats=self.stats,
            permissions=self.permissions,
            features=self.features,
        )

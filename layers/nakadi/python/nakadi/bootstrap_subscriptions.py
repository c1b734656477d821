"""The parts that subscriptions consist of, wired."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from nakadi.access.permissions import Permissions
from nakadi.administration.features import Features
from nakadi.caching import Cache
from nakadi.catalog.event_types import EventTypes
from nakadi.cursors.service import Cursors
from nakadi.http.routes.subscriptions import SubscriptionDoors
from nakadi.ports import Clock, Coordination, EventLogs, Registry
from nakadi.settings import Settings
from nakadi.subscriptions.creation import Creation
from nakadi.subscriptions.cursors import SubscriptionCursors
from nakadi.subscriptions.deletion import Deletion
from nakadi.subscriptions.event_types import SubscribedEventTypes
from nakadi.subscriptions.initialisation import Initialisation
from nakadi.subscriptions.leftovers import Leftovers
from nakadi.subscriptions.listing import Listing
from nakadi.subscriptions.parked import ParkedEvents
from nakadi.subscriptions.repository import Subscriptions
from nakadi.subscriptions.resets import Resets
from nakadi.subscriptions.stats import Stats
from nakadi.subscriptions.update import Update


@dataclass(frozen=True, kw_only=True)
class Subscribing:
    """What is made of the rest of a broker, each part once."""

    settings: Settings
    clock: Clock
    registry: Registry
    coordination: Coordination
    logs: EventLogs
    event_types: EventTypes
    cursors: Cursors
    permissions: Permissions
    features: Features

    @cached_property
    def subscriptions(self) -> Subscriptions:
        return Subscriptions(self.registry, Cache(self.clock, self.settings.cache_seconds), self.clock)

    @cached_property
    def initialisation(self) -> Initialisation:
        return Initialisation(
            event_types=self.event_types,
            cursors=self.cursors,
            coordination=self.coordination,
            clock=self.clock,
        )

    @cached_property
    def resets(self) -> Resets:
        return Resets(
            coordination=self.coordination,
            clock=self.clock,
            max_commit_timeout=self.settings.max_commit_timeout_seconds,
        )

    @cached_property
    def leftovers(self) -> Leftovers:
        return Leftovers(self.subscriptions, self.coordination)

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
        )

    @cached_property
    def creation(self) -> Creation:
        return Creation(
            subscriptions=self.subscriptions,
            event_types=self.event_types,
            cursors=self.cursors,
            permissions=self.permissions,
            features=self.features,
            clock=self.clock,
            max_partitions=self.settings.max_subscription_partitions,
        )

    @cached_property
    def update(self) -> Update:
        return Update(
            subscriptions=self.subscriptions,
            permissions=self.permissions,
            features=self.features,
            clock=self.clock,
        )

    @cached_property
    def deletion(self) -> Deletion:
        return Deletion(
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
        )

    @cached_property
    def stats(self) -> Stats:
        return Stats(
            subscriptions=self.subscriptions,
            event_types=self.event_types,
            cursors=self.cursors,
            permissions=self.permissions,
            coordination=self.coordination,
            logs=self.logs,
            clock=self.clock,
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
    def doors(self) -> SubscriptionDoors:
        return SubscriptionDoors(
            subscriptions=self.subscriptions,
            listing=Listing(self.subscriptions),
            creation=self.creation,
            update=self.update,
            deletion=self.deletion,
            cursors=self.subscription_cursors,
            stats=self.stats,
            permissions=self.permissions,
            features=self.features,
        )

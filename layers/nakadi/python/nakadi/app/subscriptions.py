"""The parts that subscriptions consist of, wired: those that housekeeping needs, and those that requests need."""

from __future__ import annotations

from functools import cached_property

from msgspec import Struct

from nakadi.app.settings import Settings
from nakadi.auth.permissions import Features, Permissions
from nakadi.common.caching import Cache, ChangeWatch
from nakadi.common.metrics import Metrics
from nakadi.event_types.repository import EventTypes
from nakadi.event_types.snapshot import CursorResolver
from nakadi.http.routes.subscriptions import SubscriptionHandlers
from nakadi.model.subscription import Subscription
from nakadi.ports.clock import Clock
from nakadi.ports.coordination import Coordination
from nakadi.ports.event_log import EventLogs
from nakadi.ports.registry import Registry
from nakadi.subscriptions.api.assignments import LeaseWatch
from nakadi.subscriptions.api.cursors import SubscriptionCursors
from nakadi.subscriptions.api.listing import SubscriptionListing
from nakadi.subscriptions.api.offsets import OffsetInitialisation, ResetExecution, ResetRequests
from nakadi.subscriptions.api.open_streams import OpenStreams
from nakadi.subscriptions.api.parked_events import ParkedEvents, RedrivePlanner
from nakadi.subscriptions.api.repository import SUBSCRIPTIONS_KIND as SUBSCRIPTIONS
from nakadi.subscriptions.api.repository import Subscriptions
from nakadi.subscriptions.api.resource import (
    DeletedSubscriptionCleanup,
    RedriveAttachment,
    SubscribedEventTypes,
    SubscriptionCreation,
    SubscriptionDeletion,
    SubscriptionUpdater,
)
from nakadi.subscriptions.api.stats import StalledSubscriptions, SubscriptionStats


class SubscriptionServices(Struct, dict=True, frozen=True, kw_only=True):
    """What is made of the rest of a broker, each part once."""

    settings: Settings
    clock: Clock
    registry: Registry
    watch: ChangeWatch
    coordination: Coordination
    logs: EventLogs
    event_types: EventTypes
    cursor_resolver: CursorResolver
    permissions: Permissions
    features: Features
    metrics: Metrics

    @cached_property
    def subscriptions(self) -> Subscriptions:
        cache = Cache[str, Subscription](self.clock, self.settings.cache_seconds, self.watch, SUBSCRIPTIONS)
        self.metrics.add_cache_sources("subscriptions", lambda: cache.hits, lambda: cache.misses)
        return Subscriptions(self.registry, cache, self.clock)

    @cached_property
    def offset_initialisation(self) -> OffsetInitialisation:
        return OffsetInitialisation(
            event_types=self.event_types,
            cursor_resolver=self.cursor_resolver,
            coordination=self.coordination,
            clock=self.clock,
        )

    @cached_property
    def deleted_subscription_cleanup(self) -> DeletedSubscriptionCleanup:
        return DeletedSubscriptionCleanup(self.subscriptions, self.coordination)

    @cached_property
    def redrive_attachment(self) -> RedriveAttachment:
        return RedriveAttachment(
            subscription_repository=self.subscriptions,
            event_types=self.event_types,
            features=self.features,
            cursor_resolver=self.cursor_resolver,
            logs=self.logs,
            coordination=self.coordination,
            initialisation=self.offset_initialisation,
            event_type_name=self.settings.dead_letter_redrive,
            is_authentication_on=self.settings.auth != "off",
        )

    @cached_property
    def lease_watch(self) -> LeaseWatch:
        return LeaseWatch(self.coordination, self.clock)

    @cached_property
    def reset_execution(self) -> ResetExecution:
        return ResetExecution(
            coordination=self.coordination,
            leases=self.lease_watch,
            clock=self.clock,
            plan_replays=RedrivePlanner(coordination=self.coordination, event_types=self.event_types).plan_replays,
        )

    @cached_property
    def subscription_stats(self) -> SubscriptionStats:
        return SubscriptionStats(
            subscription_repository=self.subscriptions,
            event_types=self.event_types,
            cursor_resolver=self.cursor_resolver,
            permissions=self.permissions,
            coordination=self.coordination,
            leases=self.lease_watch,
            logs=self.logs,
            clock=self.clock,
        )

    @cached_property
    def stalled_subscriptions(self) -> StalledSubscriptions:
        return StalledSubscriptions(
            subscription_repository=self.subscriptions,
            coordination=self.coordination,
            stats=self.subscription_stats,
            execute_reset=self.reset_execution.try_to_execute,
        )

    # For requests alone

    @cached_property
    def reset_requests(self) -> ResetRequests:
        return ResetRequests(
            execution=self.reset_execution,
            max_commit_timeout=self.settings.max_commit_timeout_seconds,
            max_wait_seconds=self.settings.longest_wait_seconds or None,
        )

    @cached_property
    def subscribed_event_types(self) -> SubscribedEventTypes:
        return SubscribedEventTypes(
            subscription_repository=self.subscriptions,
            features=self.features,
            initialisation=self.offset_initialisation,
            reset_requests=self.reset_requests,
            deleted_subscription_cleanup=self.deleted_subscription_cleanup,
            deletable_owner=self.settings.deletable_subscription_owning_application,
            deletable_group=self.settings.deletable_subscription_consumer_group,
            redrive_attachment=self.redrive_attachment,
        )

    @cached_property
    def creation(self) -> SubscriptionCreation:
        return SubscriptionCreation(
            subscription_repository=self.subscriptions,
            event_types=self.event_types,
            cursor_resolver=self.cursor_resolver,
            permissions=self.permissions,
            features=self.features,
            clock=self.clock,
            max_partitions=self.settings.max_subscription_partitions,
        )

    @cached_property
    def update(self) -> SubscriptionUpdater:
        return SubscriptionUpdater(
            subscription_repository=self.subscriptions,
            permissions=self.permissions,
            features=self.features,
            clock=self.clock,
        )

    @cached_property
    def deletion(self) -> SubscriptionDeletion:
        return SubscriptionDeletion(
            subscription_repository=self.subscriptions,
            permissions=self.permissions,
            features=self.features,
            deleted_subscription_cleanup=self.deleted_subscription_cleanup,
        )

    @cached_property
    def subscription_cursors(self) -> SubscriptionCursors:
        return SubscriptionCursors(
            subscription_repository=self.subscriptions,
            event_types=self.event_types,
            cursor_resolver=self.cursor_resolver,
            permissions=self.permissions,
            coordination=self.coordination,
            initialisation=self.offset_initialisation,
            reset_requests=self.reset_requests,
            clock=self.clock,
            metrics=self.metrics,
        )

    @cached_property
    def open_streams(self) -> OpenStreams:
        return OpenStreams(
            subscription_repository=self.subscriptions,
            permissions=self.permissions,
            execution=self.reset_execution,
            max_wait_seconds=self.settings.longest_wait_seconds or None,
        )

    @cached_property
    def parked_events(self) -> ParkedEvents:
        return ParkedEvents(
            subscription_repository=self.subscriptions,
            event_types=self.event_types,
            permissions=self.permissions,
            features=self.features,
            coordination=self.coordination,
            reset_requests=self.reset_requests,
            clock=self.clock,
        )

    @cached_property
    def handlers(self) -> SubscriptionHandlers:
        return SubscriptionHandlers(
            subscriptions=self.subscriptions,
            listing=SubscriptionListing(self.subscriptions),
            creation=self.creation,
            update=self.update,
            deletion=self.deletion,
            cursors=self.subscription_cursors,
            stats=self.subscription_stats,
            open_streams=self.open_streams,
            permissions=self.permissions,
            features=self.features,
        )

"""The parts of subscriptions, wired from top to bottom: first the common ones, then the parts for requests."""

from __future__ import annotations

from msgspec import Struct

from nakadi.app.core import BrokerCore
from nakadi.app.settings import Settings
from nakadi.common.caching import Cache
from nakadi.delivery.sinks import Sinks
from nakadi.http.routes.subscriptions import SubscriptionHandlers
from nakadi.model.subscription import Subscription
from nakadi.ports.coordination import Coordination
from nakadi.subscriptions.api.cursors import CursorOperations
from nakadi.subscriptions.api.lease_watch import LeaseWatch
from nakadi.subscriptions.api.listing import SubscriptionListing
from nakadi.subscriptions.api.objectives import FreshnessReports, Objectives
from nakadi.subscriptions.api.offsets import OffsetInitialisation, ResetExecution, ResetRequests
from nakadi.subscriptions.api.open_streams import OpenStreams
from nakadi.subscriptions.api.parked_events import ParkedEvents, RedrivePlanner
from nakadi.subscriptions.api.reads import SubscribedReads
from nakadi.subscriptions.api.repository import SUBSCRIPTIONS_KIND as SUBSCRIPTIONS
from nakadi.subscriptions.api.repository import Subscriptions
from nakadi.subscriptions.api.resource import (
    DeletedSubscriptionCleanup,
    RedriveAttachment,
    SubscriptionCreation,
    SubscriptionDeletion,
    SubscriptionsOfEventTypes,
    SubscriptionUpdater,
)
from nakadi.subscriptions.api.stats import SubscriptionStats, TroubledSubscriptions


class SubscriptionServices(Struct, frozen=True, kw_only=True):
    """The services of subscriptions that streams and housekeeping need; the services for requests build on them."""

    subscriptions: Subscriptions
    offset_initialisation: OffsetInitialisation
    deleted_subscription_cleanup: DeletedSubscriptionCleanup
    redrive_attachment: RedriveAttachment
    reset_execution: ResetExecution
    stats: SubscriptionStats
    freshness_reports: FreshnessReports
    troubled_subscriptions: TroubledSubscriptions


def make_subscription_services(core: BrokerCore, coordination: Coordination) -> SubscriptionServices:
    cache = Cache[str, Subscription](core.clock, core.settings.cache_seconds, core.watch, SUBSCRIPTIONS)
    core.metrics.add_cache_sources("subscriptions", lambda: cache.hits, lambda: cache.misses)
    subscriptions = Subscriptions(core.registry, cache, core.clock)
    offset_initialisation = OffsetInitialisation(
        event_types=core.event_types, cursor_resolver=core.cursor_resolver, coordination=coordination, clock=core.clock
    )
    redrive_attachment = RedriveAttachment(
        subscription_repository=subscriptions,
        event_types=core.event_types,
        features=core.features,
        cursor_resolver=core.cursor_resolver,
        logs=core.logs,
        coordination=coordination,
        initialisation=offset_initialisation,
        event_type_name=core.settings.dead_letter_redrive,
        is_authentication_on=core.settings.auth != "off",
    )
    leases = LeaseWatch(coordination, core.clock)
    reset_execution = ResetExecution(
        coordination=coordination,
        leases=leases,
        clock=core.clock,
        plan_replays=RedrivePlanner(coordination=coordination, event_types=core.event_types).plan_replays,
    )
    stats = SubscriptionStats(
        subscription_repository=subscriptions,
        event_types=core.event_types,
        cursor_resolver=core.cursor_resolver,
        permissions=core.permissions,
        coordination=coordination,
        leases=leases,
        logs=core.logs,
        clock=core.clock,
        max_commit_seconds=core.settings.max_commit_timeout_seconds,
    )
    freshness_reports = FreshnessReports(core.registry, core.clock)
    return SubscriptionServices(
        subscriptions=subscriptions,
        offset_initialisation=offset_initialisation,
        deleted_subscription_cleanup=DeletedSubscriptionCleanup(subscriptions, coordination),
        redrive_attachment=redrive_attachment,
        reset_execution=reset_execution,
        stats=stats,
        freshness_reports=freshness_reports,
        troubled_subscriptions=TroubledSubscriptions(
            subscription_repository=subscriptions,
            coordination=coordination,
            stats=stats,
            find_windows=freshness_reports.windows,
            execute_reset=reset_execution.try_to_execute,
        ),
    )


def make_reset_requests(settings: Settings, services: SubscriptionServices) -> ResetRequests:
    return ResetRequests(
        execution=services.reset_execution,
        max_commit_timeout=settings.max_commit_timeout_seconds,
        max_wait_seconds=settings.longest_wait_seconds or None,
    )


def make_subscriptions_of_event_types(core: BrokerCore, services: SubscriptionServices) -> SubscriptionsOfEventTypes:
    """The part of subscriptions that the services of event types use."""
    return SubscriptionsOfEventTypes(
        subscription_repository=services.subscriptions,
        features=core.features,
        initialisation=services.offset_initialisation,
        reset_requests=make_reset_requests(core.settings, services),
        deleted_subscription_cleanup=services.deleted_subscription_cleanup,
        deletable_owner=core.settings.deletable_subscription_owning_application,
        deletable_group=core.settings.deletable_subscription_consumer_group,
        redrive_attachment=services.redrive_attachment,
    )


class SubscriptionRequests(Struct, frozen=True, kw_only=True):
    """The services of subscriptions that only requests need."""

    reset_requests: ResetRequests
    creation: SubscriptionCreation
    parked_events: ParkedEvents
    objectives: Objectives
    handlers: SubscriptionHandlers


def make_subscription_requests(
    core: BrokerCore,
    services: SubscriptionServices,
    coordination: Coordination,
    sinks: Sinks,
) -> SubscriptionRequests:
    reset_requests = make_reset_requests(core.settings, services)
    creation = SubscriptionCreation(
        subscription_repository=services.subscriptions,
        event_types=core.event_types,
        cursor_resolver=core.cursor_resolver,
        permissions=core.permissions,
        features=core.features,
        clock=core.clock,
        max_partitions=core.settings.max_subscription_partitions,
    )
    objectives = Objectives(
        subscription_repository=services.subscriptions,
        reports=services.freshness_reports,
        stats=services.stats,
        permissions=core.permissions,
        features=core.features,
        clock=core.clock,
    )
    parked_events = ParkedEvents(
        subscription_repository=services.subscriptions,
        event_types=core.event_types,
        permissions=core.permissions,
        features=core.features,
        coordination=coordination,
        reset_requests=reset_requests,
        clock=core.clock,
    )
    handlers = SubscriptionHandlers(
        subscriptions=services.subscriptions,
        listing=SubscriptionListing(services.subscriptions),
        creation=creation,
        update=_make_update(core, services),
        deletion=_make_deletion(core, services),
        cursors=_make_cursors(core, services, coordination, reset_requests),
        stats=services.stats,
        reads=SubscribedReads(core.event_types),
        objectives=objectives,
        open_streams=_make_open_streams(core, services),
        permissions=core.permissions,
        features=core.features,
        sinks=sinks,
    )
    return SubscriptionRequests(
        reset_requests=reset_requests,
        creation=creation,
        parked_events=parked_events,
        objectives=objectives,
        handlers=handlers,
    )


def _make_update(core: BrokerCore, services: SubscriptionServices) -> SubscriptionUpdater:
    return SubscriptionUpdater(
        subscription_repository=services.subscriptions,
        event_types=core.event_types,
        permissions=core.permissions,
        features=core.features,
        clock=core.clock,
    )


def _make_deletion(core: BrokerCore, services: SubscriptionServices) -> SubscriptionDeletion:
    return SubscriptionDeletion(
        subscription_repository=services.subscriptions,
        permissions=core.permissions,
        features=core.features,
        deleted_subscription_cleanup=services.deleted_subscription_cleanup,
    )


def _make_cursors(
    core: BrokerCore, services: SubscriptionServices, coordination: Coordination, reset_requests: ResetRequests
) -> CursorOperations:
    return CursorOperations(
        subscription_repository=services.subscriptions,
        event_types=core.event_types,
        cursor_resolver=core.cursor_resolver,
        permissions=core.permissions,
        coordination=coordination,
        initialisation=services.offset_initialisation,
        reset_requests=reset_requests,
        clock=core.clock,
        metrics=core.metrics,
    )


def _make_open_streams(core: BrokerCore, services: SubscriptionServices) -> OpenStreams:
    return OpenStreams(
        subscription_repository=services.subscriptions,
        permissions=core.permissions,
        execution=services.reset_execution,
        max_wait_seconds=core.settings.longest_wait_seconds or None,
    )

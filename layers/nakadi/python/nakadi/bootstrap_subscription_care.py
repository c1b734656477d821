"""The parts that look after subscriptions without anybody asking, wired; they need few others."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from nakadi.auth.administration import Features
from nakadi.auth.permissions import Permissions
from nakadi.caching import Cache, ChangeWatch
from nakadi.event_types.repository import EventTypes
from nakadi.event_types.snapshot import Cursors
from nakadi.metrics import Metrics
from nakadi.model.subscription import Subscription
from nakadi.ports.clock import Clock
from nakadi.ports.coordination import Coordination
from nakadi.ports.event_log import EventLogs
from nakadi.ports.registry import Registry
from nakadi.settings import Settings
from nakadi.subscriptions.api.event_types import RedriveAttachment
from nakadi.subscriptions.api.initialisation import OffsetInitialisation
from nakadi.subscriptions.api.leases import LeaseWatch
from nakadi.subscriptions.api.parked_events import RedrivePlanner
from nakadi.subscriptions.api.repository import KIND as SUBSCRIPTIONS
from nakadi.subscriptions.api.repository import Subscriptions
from nakadi.subscriptions.api.resets import ResetExecution
from nakadi.subscriptions.api.resource import DeletedSubscriptions
from nakadi.subscriptions.api.stats import StalledSubscriptions, SubscriptionStats


@dataclass(frozen=True, kw_only=True)
class SubscriptionCare:
    settings: Settings
    clock: Clock
    registry: Registry
    watch: ChangeWatch
    coordination: Coordination
    logs: EventLogs
    event_types: EventTypes
    cursors: Cursors
    permissions: Permissions
    features: Features
    metrics: Metrics

    @cached_property
    def subscriptions(self) -> Subscriptions:
        cache = Cache[str, Subscription](self.clock, self.settings.cache_seconds, self.watch, SUBSCRIPTIONS)
        self.metrics.follow_cache("subscriptions", lambda: cache.hits, lambda: cache.misses)
        return Subscriptions(self.registry, cache, self.clock)

    @cached_property
    def initialisation(self) -> OffsetInitialisation:
        return OffsetInitialisation(
            event_types=self.event_types,
            cursors=self.cursors,
            coordination=self.coordination,
            clock=self.clock,
        )

    @cached_property
    def leftovers(self) -> DeletedSubscriptions:
        return DeletedSubscriptions(self.subscriptions, self.coordination)

    @cached_property
    def attachment(self) -> RedriveAttachment:
        return RedriveAttachment(
            subscriptions=self.subscriptions,
            event_types=self.event_types,
            features=self.features,
            cursors=self.cursors,
            logs=self.logs,
            coordination=self.coordination,
            initialisation=self.initialisation,
            name=self.settings.dead_letter_redrive,
            guarded=self.settings.auth != "off",
        )

    @cached_property
    def leases(self) -> LeaseWatch:
        return LeaseWatch(self.coordination, self.clock)

    @cached_property
    def wish_fulfilment(self) -> ResetExecution:
        return ResetExecution(
            coordination=self.coordination,
            leases=self.leases,
            clock=self.clock,
            replays=RedrivePlanner(coordination=self.coordination, event_types=self.event_types).replays,
        )

    @cached_property
    def stats(self) -> SubscriptionStats:
        return SubscriptionStats(
            subscriptions=self.subscriptions,
            event_types=self.event_types,
            cursors=self.cursors,
            permissions=self.permissions,
            coordination=self.coordination,
            leases=self.leases,
            logs=self.logs,
            clock=self.clock,
        )

    @cached_property
    def stall_watch(self) -> StalledSubscriptions:
        return StalledSubscriptions(
            subscriptions=self.subscriptions,
            coordination=self.coordination,
            stats=self.stats,
            fulfil_wish=self.wish_fulfilment.attempt,
        )

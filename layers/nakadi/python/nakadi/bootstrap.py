"""The one place that knows everyone: settings in, a wired broker out.

Parts are imported when they are first asked for, so that a process loads only what it does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from datetime import timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeVar

from nakadi.app.engines import (
    LogDependencies,
    StorageLogs,
    check_reachable,
    open_event_log,
    open_log_index,
    open_registry,
    url_of,
)
from nakadi.areas import AREAS, routes_of
from nakadi.auth.administration import KIND, SettingsBody, SettingsDocument
from nakadi.authentication import authentication
from nakadi.caching import Cache, ChangeWatch
from nakadi.engines.archive.stores import archive_at
from nakadi.http.application import Answered, Application, Authenticate
from nakadi.metrics import Metrics
from nakadi.model.authorization import Attribute
from nakadi.model.outcomes import Unavailable
from nakadi.model.storage import DEFAULT_STORAGE_ID, Storage, StorageType
from nakadi.ports.clock import Clock, SystemClock
from nakadi.ports.coordination import Coordination
from nakadi.ports.event_log import EventLog, Indexed, Registered
from nakadi.ports.registry import Registry
from nakadi.readiness import Readiness
from nakadi.settings import Settings

if TYPE_CHECKING:
    from nakadi.auth.administration import Admins, Blacklist, Features
    from nakadi.auth.permissions import Permissions
    from nakadi.bootstrap_subscription_care import SubscriptionCare
    from nakadi.bootstrap_subscriptions import Subscribing
    from nakadi.engines.archive.archiver import Tiers
    from nakadi.event_types.creation import EventTypeCreation
    from nakadi.event_types.deletion import DeletedEventTypes, EventTypeDeletion, LazyDependents
    from nakadi.event_types.housekeeping import Housekeeping
    from nakadi.event_types.repository import EventTypes, TopicDirectory
    from nakadi.event_types.rules import EventTypeLimits
    from nakadi.event_types.schema_versions import SchemaVersions
    from nakadi.event_types.snapshot import Cursors
    from nakadi.event_types.storages import Storages
    from nakadi.event_types.system_event_types import SystemEventTypes
    from nakadi.event_types.timelines import LostEvents, Timelines
    from nakadi.event_types.update import EventTypeUpdate, Repartitioning
    from nakadi.model.event_type import EventType, EventTypeDraft
    from nakadi.publishing.outcome import BatchOutcome
    from nakadi.publishing.publisher import Publisher
    from nakadi.publishing.system_events import Figures
    from nakadi.schemas.validation import Validators
    from nakadi.streaming.streams import EventStreams
    from nakadi.subscriptions.stream.streams import SubscriptionStreams
    from nakadi.turns import Turns


log = logging.getLogger(__name__)

LEAST_GRACE = 600
"""Seconds. An object is referred to within moments, but some processes are slow."""

AroundLog = Callable[[EventLog], EventLog]
FiguresDropped = Callable[[int], None]

Care = TypeVar("Care", bound="SubscriptionCare")
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def open_broker(settings: Settings, clock: Clock | None = None, around_log: AroundLog = lambda log: log) -> Broker:
    """Open what the settings name. The rest is made when it is first asked for.

    `around_log` may put something of one's own around the event log, such as faults on demand.
    """
    clock = clock or SystemClock()
    authenticate = authentication(settings, clock)
    metrics = Metrics(clock.monotonic(), settings.max_metric_names)
    registry = open_registry(settings.registry)
    watch = ChangeWatch(registry.changes, clock)
    try:
        event_log = open_event_log(
            settings.event_log, clock, _beside_the_log(settings, registry, clock, watch, metrics)
        )
    except BaseException:
        registry.close()
        raise
    return Broker(
        settings=settings,
        clock=clock,
        registry=registry,
        watch=watch,
        event_log=around_log(event_log),
        around_log=around_log,
        authenticate=authenticate,
        metrics=metrics,
    )


def _beside_the_log(
    settings: Settings, registry: Registry, clock: Clock, watch: ChangeWatch, metrics: Metrics
) -> LogDependencies:
    """What some logs need; it is opened by those that do."""
    one_store = settings.log_index_url == settings.registry and not settings.registry.startswith("memory:")
    return LogDependencies(
        index=partial(open_log_index, settings.log_index_url),
        archive=partial(archive_at, settings.archive),
        directory=partial(_directory, registry, clock),
        tiers=partial(_tiers, settings),
        watch=watch if one_store else None,
        metrics=metrics,
    )


def _directory(registry: Registry, clock: Clock) -> TopicDirectory:
    from nakadi.event_types.repository import EventTypes, TopicDirectory

    return TopicDirectory(EventTypes(registry, Cache(clock, 0)), clock.monotonic)


def _tiers(settings: Settings) -> Tiers:
    from nakadi.engines.archive.archiver import Tiers

    return Tiers(
        after=settings.archive_after_seconds,
        hot=settings.hot_retention_ms / 1000,
        grace=max(settings.archive_grace_seconds, LEAST_GRACE),
    )


class Broker:
    """Every part of a broker, each made once."""

    def __init__(
        self,
        *,
        settings: Settings,
        clock: Clock,
        registry: Registry,
        watch: ChangeWatch,
        event_log: EventLog,
        around_log: AroundLog,
        authenticate: Authenticate,
        metrics: Metrics,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.registry = registry
        self.metrics = metrics
        self.logs = StorageLogs(event_log, self._storage, self._opened)
        self._around_log = around_log
        self._authenticate = authenticate
        self.watch = watch
        self._settings_cache: Cache[str, SettingsBody] = self._counted(
            "settings", Cache(clock, settings.cache_seconds, watch, KIND)
        )
        self._figures_dropped: FiguresDropped | None = None

    def prepare(self) -> None:
        """Make what is to be there before the first request. What fails is logged, and done by the housekeeping."""
        if self.settings.auth != "off" and not self.settings.default_admin:
            log.warning("NAKADI_DEFAULT_ADMIN names nobody: administrators are those alone who were stored as such")
        self.prepare_event_types()

    def prepare_event_types(self) -> None:
        """Make those of the broker's own that are missing; called again when a feature is switched on."""
        try:
            self.system_event_types.prepare()
        except Unavailable:
            log.warning("The event types of the broker's own could not be looked for", exc_info=True)

    def close(self) -> None:
        """Give everything back, in the order in which the parts lean on each other."""
        if "subscription_streams" in vars(self):
            self.subscription_streams.close()
        if "figures" in vars(self):
            self.figures.close()
        if "streams" in vars(self):
            self.streams.close()
        if "coordination" in vars(self):
            self.coordination.close()
        self.logs.close()
        self.registry.close()

    def _storage(self, storage_id: str) -> Storage | None:
        return self.storages.find(storage_id)

    def _opened(self, storage: Storage) -> EventLog:
        url = url_of(storage, self.settings.event_log)
        if url == self.settings.event_log:
            return self.logs.of(DEFAULT_STORAGE_ID)
        return self._around_log(
            open_event_log(
                url, self.clock, _beside_the_log(self.settings, self.registry, self.clock, self.watch, self.metrics)
            )
        )

    # Administration and access

    @cached_property
    def features(self) -> Features:
        from nakadi.auth.administration import Features

        return Features(self._settings_document("features"))

    @cached_property
    def admins(self) -> Admins:
        from nakadi.auth.administration import Admins

        default = _attributes(self.settings.default_admins)
        return Admins(self._settings_document("admins"), self.features, default)

    @cached_property
    def blacklist(self) -> Blacklist:
        from nakadi.auth.administration import Blacklist

        return Blacklist(self._settings_document("blacklist"))

    @cached_property
    def storages(self) -> Storages:
        from nakadi.event_types.storages import Storages

        return Storages(
            registry=self.registry,
            choice=self._settings_document("storage"),
            features=self.features,
            built_in=_storage_type(self.settings.event_log),
            reach=partial(check_reachable, built_in=self.settings.event_log),
        )

    @cached_property
    def permissions(self) -> Permissions:
        from nakadi.auth.permissions import Permissions

        return Permissions(self.admins, self.blacklist, _attributes(self.settings.all_data_access))

    # The catalog

    @cached_property
    def event_types(self) -> EventTypes:
        from nakadi.event_types.repository import KIND as EVENT_TYPES
        from nakadi.event_types.repository import EventTypes

        cache: Cache[str, EventType] = Cache(
            self.clock, self.settings.cache_seconds, watch=self.watch, kind=EVENT_TYPES
        )
        return EventTypes(self.registry, self._counted("event_types", cache))

    @cached_property
    def limits(self) -> EventTypeLimits:
        from nakadi.event_types.rules import EventTypeLimits

        return EventTypeLimits(
            default_partitions=self.settings.default_partitions,
            max_partitions=self.settings.max_partitions,
            retention_min=self.settings.retention_min_ms,
            retention_default=self.settings.retention_default_ms,
            retention_max=self.settings.retention_max_ms,
        )

    @cached_property
    def schema_turns(self) -> Turns:
        from nakadi.turns import Turns

        return self._followed("schemas", Turns(patience=20.0))

    @cached_property
    def creation(self) -> EventTypeCreation:
        from nakadi.event_types.creation import EventTypeCreation

        return EventTypeCreation(
            event_types=self.event_types,
            storages=self.storages,
            features=self.features,
            logs=self.logs,
            clock=self.clock,
            limits=self.limits,
            turns=self.schema_turns,
            permissions=self.permissions,
            reserved=self._reserved_names,
        )

    @property
    def _reserved_names(self) -> frozenset[str]:
        from nakadi.event_types.system_event_types import AUDIT_LOG, KPI_EVENT_TYPES

        settings = self.settings
        return frozenset({AUDIT_LOG, *KPI_EVENT_TYPES, settings.dead_letter_queue, settings.dead_letter_redrive})

    @cached_property
    def system_event_types(self) -> SystemEventTypes:
        from nakadi.event_types.system_event_types import SystemEventTypeOwner, SystemEventTypes, definitions

        settings = self.settings
        closed = settings.auth != "off"

        def family(owner: str, members: tuple[tuple[str, str], ...]) -> SystemEventTypeOwner:
            """Whom the settings name; else administrators, or everybody while nobody is asked who they are."""
            return SystemEventTypeOwner(
                owner=owner, members=_attributes(members or (settings.default_admins if closed else (("*", "*"),)))
            )

        return SystemEventTypes(
            definitions=definitions(
                dead_letter_queue=settings.dead_letter_queue,
                dead_letters=family(settings.dead_letter_owning_application, settings.dead_letter_authorization),
                audit=family(settings.audit_owning_application, settings.audit_authorization),
                figures=family(settings.kpi_owning_application, settings.kpi_authorization),
            ),
            event_types=self.event_types,
            features=self.features,
            register=self._register_own,
            closed=closed,
        )

    def _register_own(self, draft: EventTypeDraft) -> None:
        """What creation needs is loaded when an event type is found missing, which is once in a deployment's life."""
        self.creation.create_system_event_type(draft)

    @cached_property
    def update(self) -> EventTypeUpdate:
        from nakadi.event_types.update import EventTypeUpdate

        return EventTypeUpdate(
            event_types=self.event_types,
            permissions=self.permissions,
            features=self.features,
            clock=self.clock,
            limits=self.limits,
            turns=self.schema_turns,
        )

    @cached_property
    def leftovers(self) -> DeletedEventTypes:
        from nakadi.event_types.deletion import DeletedEventTypes

        return DeletedEventTypes(self.registry, self.logs)

    @cached_property
    def deletion(self) -> EventTypeDeletion:
        from nakadi.event_types.deletion import EventTypeDeletion

        return EventTypeDeletion(
            event_types=self.event_types,
            permissions=self.permissions,
            features=self.features,
            leftovers=self.leftovers,
            dependents=self._dependents,
        )

    @cached_property
    def repartitioning(self) -> Repartitioning:
        from nakadi.event_types.update import Repartitioning

        return Repartitioning(
            event_types=self.event_types,
            permissions=self.permissions,
            features=self.features,
            logs=self.logs,
            dependents=self._dependents,
            max_partitions=self.settings.max_partitions,
            fixed=self.settings.dead_letter_redrive,
        )

    @cached_property
    def timelines(self) -> Timelines:
        from nakadi.event_types.timelines import Timelines

        return Timelines(
            event_types=self.event_types,
            storages=self.storages,
            permissions=self.permissions,
            features=self.features,
            logs=self.logs,
            clock=self.clock,
        )

    @cached_property
    def schema_versions(self) -> SchemaVersions:
        from nakadi.event_types.schema_versions import SchemaVersions

        return SchemaVersions(
            event_types=self.event_types,
            permissions=self.permissions,
            features=self.features,
            clock=self.clock,
            turns=self.schema_turns,
        )

    @cached_property
    def housekeeping(self) -> Housekeeping:
        from nakadi.event_types.housekeeping import Housekeeping

        watch = self.subscription_care.stall_watch
        self.metrics.stalled_subscriptions.follow(lambda: {(): len(watch.stalled)})
        return Housekeeping(
            event_types=self.event_types,
            timelines=self.timelines,
            leftovers=self.leftovers,
            logs=self.logs,
            clock=self.clock,
            more={
                "lost events": self.lost_events.run,
                "the broker's own event types": self.system_event_types.prepare,
                "deleted subscriptions": self.subscription_care.leftovers.clear_all,
                "redriven events": self.subscription_care.attachment.run,
                "stalled subscriptions": watch.look,
                "orphaned consumers": self._remove_orphaned_consumers,
            },
            metrics=self.metrics,
        )

    def _remove_orphaned_consumers(self) -> None:
        for storage in self.storages.all():
            try:
                event_log = self.logs.of(storage.id)
                if isinstance(event_log, Registered):
                    event_log.remove_orphans()
            except Unavailable:
                log.warning("Consumers of storage %s could not be looked at", storage.id, exc_info=True)

    def keep_house(self) -> timedelta | None:
        """A round of housekeeping; then how late the log indexers are, as `index_lag` says."""
        self.housekeeping.run()
        return self.index_lag()

    @cached_property
    def lost_events(self) -> LostEvents:
        from nakadi.event_types.timelines import LostEvents

        return LostEvents(
            event_types=self.event_types,
            storages=self.storages,
            logs=self.logs,
            clock=self.clock,
            report=self._report_lost_events,
        )

    def _report_lost_events(self, before: EventType, after: EventType) -> None:
        """What tells the audit log is loaded when there is something to tell, which is next to never."""
        from nakadi.audited import audit_of, timelines_view

        audit_of(self).tell_of_own("timeline", before.name, timelines_view(before), timelines_view(after))

    def index_lag(self) -> timedelta | None:
        """How late the latest of all log indexers is; None where there is none, or where one cannot be measured."""
        lags: list[timedelta] = []
        for storage in self.storages.all():
            try:
                event_log = self.logs.of(storage.id)
                if isinstance(event_log, Indexed):
                    lags.append(event_log.index_lag())
            except Unavailable:
                log.warning("How late the indexer of storage %s is could not be measured", storage.id, exc_info=True)
                return None
        latest = max(lags, default=None)
        if latest is not None:
            self.metrics.index_lag.set(latest.total_seconds())
        return latest

    # Events in, events out

    @cached_property
    def cursors(self) -> Cursors:
        from nakadi.event_types.snapshot import Cursors

        return Cursors(self.logs)

    @cached_property
    def validators(self) -> Validators:
        from nakadi.schemas.validation import Validators

        validators = Validators()
        self.metrics.follow_cache("validators", lambda: validators.hits, lambda: validators.misses)
        return validators

    @cached_property
    def publisher(self) -> Publisher:
        from nakadi.publishing.batch import BatchLimits
        from nakadi.publishing.publisher import Publisher
        from nakadi.turns import Turns

        return Publisher(
            event_types=self.event_types,
            validators=self.validators,
            permissions=self.permissions,
            features=self.features,
            logs=self.logs,
            clock=self.clock,
            limits=BatchLimits(
                events=self.settings.max_batch_events,
                event_bytes=self.settings.max_event_bytes,
                steps=self.settings.max_batch_steps,
            ),
            turns=self._followed("publishing", Turns()),
            metrics=self.metrics,
        )

    @cached_property
    def figures(self) -> Figures:
        from nakadi.publishing.system_events import BROKER, COLLECT_SECONDS, Figures, hashing

        def publish(event_type: str, body: bytes) -> BatchOutcome:
            return self.publisher.publish(event_type, body, BROKER, flow_id="")

        def count(what: str, number: int) -> None:
            self.metrics.kpi_figures.add(number, what)
            if self._figures_dropped is not None and what == "dropped":
                self._figures_dropped(number)

        return Figures(
            features=self.features,
            publish=publish,
            clock=self.clock,
            hashed=hashing(self.settings.hash_salt),
            count=count,
            collect_seconds=COLLECT_SECONDS if self._figures_dropped is None else None,
        )

    def write_figures_when_asked(self, dropped: FiguresDropped) -> None:
        """For a process whose threads stand still between requests; to be called before anything is made.

        `dropped` is told how many figures found no room, or could not be written.
        """
        self._figures_dropped = dropped

    @cached_property
    def streams(self) -> EventStreams:
        from nakadi.streaming.access import ReadAccess
        from nakadi.streaming.streams import EventStreams

        return EventStreams(
            event_types=self.event_types,
            judge=ReadAccess(self.event_types, self.permissions, self.features),
            cursors=self.cursors,
            logs=self.logs,
            clock=self.clock,
            longest_seconds=self.settings.longest_stream_seconds or None,
            longest_silence_seconds=self.settings.longest_silence_seconds or None,
            metrics=self.metrics,
        )

    # Subscriptions

    @cached_property
    def _dependents(self) -> LazyDependents:
        from nakadi.event_types.deletion import LazyDependents

        return LazyDependents(lambda: self.subscribing.dependents)

    @cached_property
    def coordination(self) -> Coordination:
        from nakadi.app.engines import open_coordination

        return open_coordination(self.settings.coordination or self.settings.registry)

    @cached_property
    def subscribing(self) -> Subscribing:
        from nakadi.bootstrap_subscriptions import Subscribing

        return self._about_subscriptions(Subscribing)

    @cached_property
    def subscription_care(self) -> SubscriptionCare:
        from nakadi.bootstrap_subscription_care import SubscriptionCare

        return self._about_subscriptions(SubscriptionCare)

    def _about_subscriptions(self, kind: type[Care]) -> Care:
        return kind(
            settings=self.settings,
            clock=self.clock,
            registry=self.registry,
            watch=self.watch,
            coordination=self.coordination,
            logs=self.logs,
            event_types=self.event_types,
            cursors=self.cursors,
            permissions=self.permissions,
            features=self.features,
            metrics=self.metrics,
        )

    @cached_property
    def subscription_streams(self) -> SubscriptionStreams:
        from nakadi.bootstrap_consuming import subscription_streams

        return subscription_streams(self)

    # HTTP

    @cached_property
    def readiness(self) -> Readiness:
        return Readiness(lambda: self.registry.get(KIND, "features"), self.clock)

    @cached_property
    def application(self) -> Application:
        return self.application_of(*AREAS)

    def application_of(self, *areas: str, answered: Answered | None = None, tells: bool = True) -> Application:
        """An application with the routes of these areas. `answered` is told of its answers, beside `metrics`; `tells`
        says that there are figures of its requests."""
        from nakadi.http.figures import RequestFigures

        observe = RequestFigures(self.figures) if tells else None
        metrics = self.metrics

        def counted(operation: str, status: int, seconds: float, received: int, sent: int) -> None:
            metrics.answered(operation, status, seconds, received, sent)
            if answered is not None:
                answered(operation, status, seconds, received, sent)

        return Application(
            routes_of(self, *areas),
            self._authenticate,
            metrics.answered if answered is None else counted,
            observe,
            lambda status: metrics.requests.add(1, "unrouted", str(status)),
        )

    def _counted(self, name: str, cache: Cache[Key, Value]) -> Cache[Key, Value]:
        self.metrics.follow_cache(name, lambda: cache.hits, lambda: cache.misses)
        return cache

    def _followed(self, work: str, turns: Turns) -> Turns:
        self.metrics.turns_waiting.follow(lambda: {(work,): turns.waiting})
        return turns

    def _settings_document(self, key: str) -> SettingsDocument:
        return SettingsDocument(self.registry, key, self._settings_cache)


def _storage_type(event_log_url: str) -> StorageType:
    scheme = event_log_url.partition(":")[0]
    return StorageType(scheme) if scheme in set(StorageType) else StorageType.EMBEDDED


def _attributes(pairs: tuple[tuple[str, str], ...]) -> tuple[Attribute, ...]:
    return tuple(Attribute(data_type, value) for data_type, value in pairs)

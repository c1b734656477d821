"""The core of a broker: its stores, its settings documents, and the services of event types, wired.

Parts are imported when they are first asked for, so that a process loads only what it does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from functools import cached_property, partial
from socket import socket
from typing import TYPE_CHECKING, TypeVar

from nakadi.app.engines import (
    LogDependencies,
    StorageLogs,
    check_storage_reachable,
    open_eid_claims,
    open_event_log,
    open_log_index,
    storage_type,
    storage_url,
)
from nakadi.app.settings import Settings
from nakadi.auth.permissions import SETTINGS_KIND, SettingsBody, SettingsDocument
from nakadi.common.caching import Cache, ChangeWatch, wait_until_caches_expire
from nakadi.common.metrics import Metrics
from nakadi.engines.archive.stores import open_archive_if_set
from nakadi.http.application import Authenticate
from nakadi.model.authorization import Attribute
from nakadi.model.event_type import DEFAULT_STORAGE_ID, Storage, StorageType
from nakadi.model.outcomes import BadSetting
from nakadi.ports.clock import Clock
from nakadi.ports.event_log import EventLog
from nakadi.ports.registry import Registry

if TYPE_CHECKING:
    from nakadi.auth.permissions import Admins, Blacklist, Features, Permissions
    from nakadi.common.work import LongWorkQueue
    from nakadi.engines.archive.archiver import ArchivePolicy
    from nakadi.event_types.adoption import TopicAdoption
    from nakadi.event_types.deletion import DeletedEventTypeCleanup, EventTypeDeletion, GetDependents
    from nakadi.event_types.registration import EventTypeCreation, EventTypeUpdate, Repartitioning
    from nakadi.event_types.repository import EventTypes, TopicDirectory
    from nakadi.event_types.rules import EventTypeLimits
    from nakadi.event_types.schema_versions import SchemaVersions
    from nakadi.event_types.storages import Storages
    from nakadi.event_types.system_event_types import SystemEventTypes
    from nakadi.event_types.timelines import Timelines
    from nakadi.model.event_type import EventType, EventTypeDraft
    from nakadi.publishing.claimed_append import LogDeduplication

MIN_ARCHIVE_GRACE_SECONDS = 600
"""Seconds. An object is referred to within moments, but some processes are slow."""

ARCHIVER_CHOICES = ("broker", "function")

WrapLog = Callable[[EventLog], EventLog]

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class EventTypeServices(ABC):
    """What the stores of a broker are opened for, and everything that registers, changes and removes event types: each
    part made once."""

    def __init__(
        self,
        *,
        settings: Settings,
        clock: Clock,
        registry: Registry,
        watch: ChangeWatch,
        event_log: EventLog,
        wrap_log: WrapLog,
        authenticate: Authenticate | None,
        metrics: Metrics,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.registry = registry
        self.metrics = metrics
        self.logs = StorageLogs(event_log, self._find_storage, self._open_storage)
        self._wrap_log = wrap_log
        self.authenticate = authenticate
        self.watch = watch
        self._settings_cache: Cache[str, SettingsBody] = self.with_cache_metrics(
            "settings", Cache(clock, settings.cache_seconds, watch, SETTINGS_KIND)
        )

    def _find_storage(self, storage_id: str) -> Storage | None:
        return self.storages.find(storage_id)

    def _open_storage(self, storage: Storage) -> EventLog:
        url = storage_url(storage, self.settings.event_log, self.settings.kafka_properties)
        if url == self.settings.event_log:
            return self.logs.for_storage(DEFAULT_STORAGE_ID)
        return self._wrap_log(
            open_event_log(
                url, self.clock, log_dependencies(self.settings, self.registry, self.clock, self.watch, self.metrics)
            )
        )

    @cached_property
    def deduplication(self) -> LogDeduplication:
        from nakadi.publishing.claimed_append import LogDeduplication

        return LogDeduplication(self.logs, partial(open_eid_claims, self.settings.registry), self.clock)

    def _check_reachable(self, storage: Storage) -> None:
        check_storage_reachable(storage, self.settings.event_log, self.settings.kafka_properties)

    @cached_property
    def features(self) -> Features:
        from nakadi.auth.permissions import Features

        return Features(self.settings_document("features"))

    @cached_property
    def admins(self) -> Admins:
        from nakadi.auth.permissions import Admins

        default = attributes_from_pairs(self.settings.default_admins)
        return Admins(self.settings_document("admins"), self.features, default)

    @cached_property
    def blacklist(self) -> Blacklist:
        from nakadi.auth.permissions import Blacklist

        return Blacklist(self.settings_document("blacklist"))

    @cached_property
    def storages(self) -> Storages:
        from nakadi.event_types.storages import Storages

        return Storages(
            registry=self.registry,
            choice=self.settings_document("storage"),
            features=self.features,
            built_in=storage_type(self.settings.event_log),
            check_reachable=self._check_reachable,
        )

    @cached_property
    def permissions(self) -> Permissions:
        from nakadi.auth.permissions import Permissions

        return Permissions(self.admins, self.blacklist, attributes_from_pairs(self.settings.all_data_access))

    @cached_property
    def event_types(self) -> EventTypes:
        from nakadi.event_types.repository import EVENT_TYPES_KIND as EVENT_TYPES
        from nakadi.event_types.repository import EventTypes

        cache: Cache[str, EventType] = Cache(
            self.clock, self.settings.cache_seconds, watch=self.watch, kind=EVENT_TYPES
        )
        return EventTypes(self.registry, self.with_cache_metrics("event_types", cache))

    def with_cache_metrics(self, name: str, cache: Cache[Key, Value]) -> Cache[Key, Value]:
        self.metrics.add_cache_sources(name, lambda: cache.hits, lambda: cache.misses)
        return cache

    def with_turn_metrics(self, work: str, long_work: LongWorkQueue) -> LongWorkQueue:
        self.metrics.turns_waiting.add_source(lambda: {(work,): long_work.waiting_count})
        return long_work

    @property
    def has_unknown_neighbours(self) -> bool:
        """Whether processes may share the registry that do not tell this one of their changes.

        The workers of a data file count their changes in memory that they share, and see each of them at once.
        """
        return self.settings.registry.startswith("dynamodb:")

    def wait_until_in_force(self) -> None:
        """Return when no process goes by the registry as it was before this call."""
        wait_until_caches_expire(self.clock, self.settings.cache_seconds)

    def settings_document(self, key: str) -> SettingsDocument:
        return SettingsDocument(self.registry, key, self._settings_cache)

    # Event types

    @property
    @abstractmethod
    def get_dependents(self) -> GetDependents:
        """What depends on event types: subscriptions."""

    @cached_property
    def event_type_limits(self) -> EventTypeLimits:
        from nakadi.event_types.rules import EventTypeLimits

        return EventTypeLimits(
            default_partitions=self.settings.default_partitions,
            max_partitions=self.settings.max_partitions,
            retention_min=self.settings.retention_min_ms,
            retention_default=self.settings.retention_default_ms,
            retention_max=self.settings.retention_max_ms,
        )

    @cached_property
    def schema_work_queue(self) -> LongWorkQueue:
        from nakadi.common.work import LongWorkQueue

        return self.with_turn_metrics("schemas", LongWorkQueue(timeout_seconds=20.0))

    @cached_property
    def event_type_creation(self) -> EventTypeCreation:
        from nakadi.event_types.registration import EventTypeCreation

        return EventTypeCreation(
            event_types=self.event_types,
            storages=self.storages,
            features=self.features,
            logs=self.logs,
            deduplication=self.deduplication,
            clock=self.clock,
            limits=self.event_type_limits,
            long_work_queue=self.schema_work_queue,
            permissions=self.permissions,
            reserved_names=self._reserved_names,
        )

    @property
    def _reserved_names(self) -> frozenset[str]:
        from nakadi.event_types.system_event_types import AUDIT_LOG, KPI_EVENT_TYPES

        settings = self.settings
        return frozenset({AUDIT_LOG, *KPI_EVENT_TYPES, settings.dead_letter_queue, settings.dead_letter_redrive})

    @cached_property
    def system_event_types(self) -> SystemEventTypes:
        from nakadi.event_types.system_event_types import (
            SystemEventTypeOwner,
            SystemEventTypes,
            system_event_type_definitions,
        )

        settings = self.settings
        closed = settings.auth != "off"

        def owner_of(owner: str, members: tuple[tuple[str, str], ...]) -> SystemEventTypeOwner:
            """The members in the settings; else administrators, or all subjects without authentication."""
            return SystemEventTypeOwner(
                owning_application=owner,
                permitted_subjects=attributes_from_pairs(
                    members or (settings.default_admins if closed else (("*", "*"),))
                ),
            )

        return SystemEventTypes(
            definitions=system_event_type_definitions(
                dead_letter_queue=settings.dead_letter_queue,
                dead_letter_owner=owner_of(settings.dead_letter_owning_application, settings.dead_letter_authorization),
                audit_log_owner=owner_of(settings.audit_owning_application, settings.audit_authorization),
                kpi_owner=owner_of(settings.kpi_owning_application, settings.kpi_authorization),
            ),
            event_types=self.event_types,
            features=self.features,
            register=self._register_system_event_type,
            is_authentication_on=closed,
        )

    def _register_system_event_type(self, draft: EventTypeDraft) -> None:
        """What creation needs is loaded when an event type is found missing, which is once in a deployment's life."""
        self.event_type_creation.create_system_event_type(draft)

    @cached_property
    def event_type_update(self) -> EventTypeUpdate:
        from nakadi.event_types.registration import EventTypeUpdate

        return EventTypeUpdate(
            event_types=self.event_types,
            permissions=self.permissions,
            features=self.features,
            deduplication=self.deduplication,
            clock=self.clock,
            limits=self.event_type_limits,
            long_work_queue=self.schema_work_queue,
        )

    @cached_property
    def deleted_event_type_cleanup(self) -> DeletedEventTypeCleanup:
        from nakadi.event_types.deletion import DeletedEventTypeCleanup

        return DeletedEventTypeCleanup(self.registry, self.logs)

    @cached_property
    def event_type_deletion(self) -> EventTypeDeletion:
        from nakadi.event_types.deletion import EventTypeDeletion

        return EventTypeDeletion(
            event_types=self.event_types,
            permissions=self.permissions,
            features=self.features,
            deleted_event_type_cleanup=self.deleted_event_type_cleanup,
            dependents=self.get_dependents,
        )

    @cached_property
    def repartitioning(self) -> Repartitioning:
        from nakadi.event_types.registration import Repartitioning

        return Repartitioning(
            event_types=self.event_types,
            permissions=self.permissions,
            features=self.features,
            logs=self.logs,
            dependents=self.get_dependents,
            max_partitions=self.settings.max_partitions,
            event_type_with_fixed_partitions=self.settings.dead_letter_redrive,
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
            deduplication=self.deduplication,
            clock=self.clock,
        )

    @cached_property
    def topic_adoption(self) -> TopicAdoption:
        from nakadi.event_types.adoption import TopicAdoption

        return TopicAdoption(
            timelines=self.timelines,
            event_types=self.event_types,
            logs=self.logs,
            deduplication=self.deduplication,
            deleted_event_type_cleanup=self.deleted_event_type_cleanup,
            dependents=self.get_dependents,
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
            long_work_queue=self.schema_work_queue,
        )


def log_dependencies(
    settings: Settings,
    registry: Registry,
    clock: Clock,
    watch: ChangeWatch,
    metrics: Metrics,
    committer: socket | None = None,
) -> LogDependencies:
    """What some logs need; it is opened by those that do."""
    one_store = settings.log_index_url == settings.registry and not settings.registry.startswith("memory:")
    return LogDependencies(
        open_index=partial(open_log_index, settings.log_index_url),
        open_archive=partial(open_archive_if_set, settings.archive),
        open_topic_directory=partial(_open_topic_directory, registry, clock),
        make_archive_policy=partial(
            _make_archive_policy, settings, elsewhere=committer is not None and _is_embedded(settings.event_log)
        ),
        watch=watch if one_store else None,
        metrics=metrics,
        committer=committer,
    )


def _open_topic_directory(registry: Registry, clock: Clock) -> TopicDirectory:
    from nakadi.event_types.repository import EventTypes, TopicDirectory

    return TopicDirectory(EventTypes(registry, Cache(clock, 0)), clock.monotonic)


def _make_archive_policy(settings: Settings, *, elsewhere: bool) -> ArchivePolicy:
    from nakadi.engines.archive.archiver import ArchivePolicy

    if settings.archiver not in ARCHIVER_CHOICES:
        raise BadSetting(f"NAKADI_ARCHIVER is one of {', '.join(ARCHIVER_CHOICES)}, and not {settings.archiver!r}")
    return ArchivePolicy(
        archive_after=settings.archive_after_seconds,
        hot_retention=settings.hot_retention_ms / 1000,
        unreferenced_grace=max(settings.archive_grace_seconds, MIN_ARCHIVE_GRACE_SECONDS),
        another_process_archives=elsewhere or settings.archiver == "function",
    )


def _is_embedded(event_log_url: str) -> bool:
    """Whether one process of the broker commits for all, and so knows what is to be archived."""
    return storage_type(event_log_url) is StorageType.EMBEDDED


def attributes_from_pairs(pairs: tuple[tuple[str, str], ...]) -> tuple[Attribute, ...]:
    return tuple(Attribute(data_type, value) for data_type, value in pairs)

"""The core of a broker, wired from top to bottom, and the dependencies of logs."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from socket import socket
from typing import TypeVar

from nakadi.app.engines import (
    LogDependencies,
    is_shared_store,
    log_index_url,
    may_have_unknown_neighbours,
    open_event_log,
    open_log_index,
    storage_type,
)
from nakadi.app.settings import Settings
from nakadi.app.storages import StorageLogs, check_storage_reachable, storage_url
from nakadi.auth.admins import Admins
from nakadi.auth.blacklist import Blacklist
from nakadi.auth.features import Features
from nakadi.auth.permissions import Permissions
from nakadi.auth.settings_document import SETTINGS_KIND, SettingsBody, SettingsDocument
from nakadi.common.caching import Cache, ChangeWatch, wait_until_caches_expire
from nakadi.common.metrics import Metrics
from nakadi.common.work import LongWorkQueue
from nakadi.engines.archive.policy import ArchivePolicy
from nakadi.engines.archive.stores import open_archive_if_set
from nakadi.event_types.deletion import DeletedEventTypeCleanup
from nakadi.event_types.repository import EVENT_TYPES_KIND, EventTypes
from nakadi.event_types.snapshot import CursorResolver
from nakadi.event_types.storages import Storages
from nakadi.event_types.topic_directory import TopicDirectory
from nakadi.http.application import Authenticate
from nakadi.model.authorization import Attribute
from nakadi.model.event_type import DEFAULT_STORAGE_ID, EventType, Storage, StorageType
from nakadi.model.outcomes import BadSetting
from nakadi.ports.clock import Clock
from nakadi.ports.event_log import EventLog
from nakadi.ports.registry import Registry

MIN_ARCHIVE_GRACE_SECONDS = 600
"""The shortest grace time. A segment refers to a new object within moments, but some processes are slow."""

ARCHIVER_CHOICES = ("broker", "function")

WrapLog = Callable[[EventLog], EventLog]

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class BrokerCore:
    """The parts of every broker: its stores, its settings documents, permissions and event types."""

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
        self.features = Features(self.settings_document("features"))
        self.admins = Admins(
            self.settings_document("admins"), self.features, attributes_from_pairs(settings.default_admins)
        )
        self.blacklist = Blacklist(self.settings_document("blacklist"))
        self.permissions = Permissions(self.admins, self.blacklist, attributes_from_pairs(settings.all_data_access))
        self.storages = Storages(
            registry=registry,
            choice=self.settings_document("storage"),
            features=self.features,
            built_in=storage_type(settings.event_log),
            check_reachable=self._check_reachable,
        )
        event_type_cache: Cache[str, EventType] = Cache(clock, settings.cache_seconds, watch, EVENT_TYPES_KIND)
        self.event_types = EventTypes(registry, self.with_cache_metrics("event_types", event_type_cache))
        self.cursor_resolver = CursorResolver(self.logs)
        self.deleted_event_type_cleanup = DeletedEventTypeCleanup(registry, self.logs)

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

    def _check_reachable(self, storage: Storage) -> None:
        check_storage_reachable(storage, self.settings.event_log, self.settings.kafka_properties)

    def with_cache_metrics(self, name: str, cache: Cache[Key, Value]) -> Cache[Key, Value]:
        self.metrics.add_cache_sources(name, lambda: cache.hits, lambda: cache.misses)
        return cache

    def with_turn_metrics(self, work: str, long_work: LongWorkQueue) -> LongWorkQueue:
        self.metrics.turns_waiting.add_source(lambda: {(work,): long_work.waiting_count})
        return long_work

    @property
    def has_unknown_neighbours(self) -> bool:
        """Whether processes that do not announce their changes may share the registry."""
        return may_have_unknown_neighbours(self.settings.registry)

    def wait_until_in_force(self) -> None:
        """Return when no process uses the registry's state from before this call."""
        wait_until_caches_expire(self.clock, self.settings.cache_seconds)

    def settings_document(self, key: str) -> SettingsDocument:
        return SettingsDocument(self.registry, key, self._settings_cache)


def log_dependencies(
    settings: Settings,
    registry: Registry,
    clock: Clock,
    watch: ChangeWatch,
    metrics: Metrics,
    committer: socket | None = None,
) -> LogDependencies:
    """The dependencies of logs. A log opens a dependency only if it needs it."""
    index_url = log_index_url(settings)
    one_store = index_url == settings.registry and is_shared_store(index_url)
    return LogDependencies(
        open_index=partial(open_log_index, index_url),
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
    return TopicDirectory(EventTypes(registry, Cache(clock, 0)), clock.monotonic)


def _make_archive_policy(settings: Settings, *, elsewhere: bool) -> ArchivePolicy:
    if settings.archiver not in ARCHIVER_CHOICES:
        raise BadSetting(f"NAKADI_ARCHIVER is one of {', '.join(ARCHIVER_CHOICES)}, and not {settings.archiver!r}")
    return ArchivePolicy(
        archive_after=settings.archive_after_seconds,
        hot_retention=settings.hot_retention_ms / 1000,
        unreferenced_grace=max(settings.archive_grace_seconds, MIN_ARCHIVE_GRACE_SECONDS),
        another_process_archives=elsewhere or settings.archiver == "function",
    )


def _is_embedded(event_log_url: str) -> bool:
    """Whether one process of the broker commits for all processes, and therefore knows which events to archive."""
    return storage_type(event_log_url) is StorageType.EMBEDDED


def attributes_from_pairs(pairs: tuple[tuple[str, str], ...]) -> tuple[Attribute, ...]:
    return tuple(Attribute(data_type, value) for data_type, value in pairs)

"""The one place that knows everyone: settings in, a wired broker out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from importlib import metadata

from nakadi.access.keys import KeySet, fetch_from
from nakadi.access.permissions import Permissions
from nakadi.access.tokens import TokenRules, Tokens
from nakadi.administration.admins import Admins
from nakadi.administration.blacklist import Blacklist
from nakadi.administration.documents import Body, SettingsDocument
from nakadi.administration.features import Features
from nakadi.administration.storages import Storages
from nakadi.caching import Cache
from nakadi.catalog.creation import Creation
from nakadi.catalog.deletion import Deletion
from nakadi.catalog.event_types import EventTypes
from nakadi.catalog.housekeeping import Housekeeping
from nakadi.catalog.leftovers import Leftovers
from nakadi.catalog.limits import Limits
from nakadi.catalog.repartitioning import Repartitioning
from nakadi.catalog.schema_versions import SchemaVersions
from nakadi.catalog.timelines import Timelines
from nakadi.catalog.update import Update
from nakadi.clock import SystemClock
from nakadi.cursors.service import Cursors
from nakadi.eventlogs import open_event_log
from nakadi.http import routes, views
from nakadi.http.application import Application, Authenticate
from nakadi.http.audit import Audit, Audited, always, by_body, by_path
from nakadi.http.metrics import Metrics
from nakadi.http.routing import Route
from nakadi.http.security import Scopes, ScopeTable, nobody_is_asked, token_is_asked
from nakadi.model.administration import Feature
from nakadi.model.authorization import Attribute
from nakadi.model.outcomes import Unavailable
from nakadi.model.storage import DEFAULT_STORAGE_ID, StorageType
from nakadi.ports import Clock, EventLog, Registry
from nakadi.publishing.pipeline import Publisher
from nakadi.publishing.system import SystemEvents
from nakadi.registries import open_registry
from nakadi.schemas.validator import Validators
from nakadi.settings import BadSetting, Settings
from nakadi.streaming.judge import Judge
from nakadi.streaming.streams import Streams


def open_broker(settings: Settings, clock: Clock | None = None) -> Broker:
    """Open what the settings name. The rest is made when it is first asked for."""
    clock = clock or SystemClock()
    authenticate = _authentication(settings, clock)
    registry = open_registry(settings.registry, clock)
    try:
        event_log = open_event_log(settings.event_log, clock)
    except BaseException:
        registry.close()
        raise
    return Broker(settings, clock, registry, Logs(event_log), authenticate)


class Logs:
    """The event logs of the storages. This broker has one, the built-in storage's."""

    def __init__(self, default: EventLog) -> None:
        self._default = default

    def of(self, storage_id: str) -> EventLog:
        if storage_id != DEFAULT_STORAGE_ID:
            raise Unavailable(f"This broker cannot reach the storage {storage_id}")
        return self._default

    def close(self) -> None:
        self._default.close()


class Broker:
    """Every part of a broker, each made once."""

    def __init__(
        self, settings: Settings, clock: Clock, registry: Registry, logs: Logs, authenticate: Authenticate
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.registry = registry
        self.logs = logs
        self._authenticate = authenticate
        self._settings_cache: Cache[str, Body] = Cache(clock, settings.cache_seconds)

    def close(self) -> None:
        """Give everything back, in the order in which the parts lean on each other."""
        self.streams.close()
        self.logs.close()
        self.registry.close()

    # Administration and access

    @cached_property
    def features(self) -> Features:
        return Features(self._settings_document("features"))

    @cached_property
    def admins(self) -> Admins:
        default = _attributes(self.settings.default_admin)
        return Admins(self._settings_document("admins"), self.features, default)

    @cached_property
    def blacklist(self) -> Blacklist:
        return Blacklist(self._settings_document("blacklist"))

    @cached_property
    def storages(self) -> Storages:
        built_in = _storage_type(self.settings.event_log)
        return Storages(self.registry, self._settings_document("storage"), self.features, built_in)

    @cached_property
    def permissions(self) -> Permissions:
        return Permissions(self.admins, self.blacklist, _attributes(self.settings.all_data_access))

    # The catalog

    @cached_property
    def event_types(self) -> EventTypes:
        return EventTypes(self.registry, Cache(self.clock, self.settings.cache_seconds))

    @cached_property
    def limits(self) -> Limits:
        return Limits(
            default_partitions=self.settings.default_partitions,
            max_partitions=self.settings.max_partitions,
            retention_min=self.settings.retention_min_ms,
            retention_default=self.settings.retention_default_ms,
            retention_max=self.settings.retention_max_ms,
        )

    @cached_property
    def creation(self) -> Creation:
        return Creation(
            event_types=self.event_types,
            storages=self.storages,
            features=self.features,
            logs=self.logs,
            clock=self.clock,
            limits=self.limits,
        )

    @cached_property
    def update(self) -> Update:
        return Update(
            event_types=self.event_types,
            permissions=self.permissions,
            features=self.features,
            clock=self.clock,
            limits=self.limits,
        )

    @cached_property
    def leftovers(self) -> Leftovers:
        return Leftovers(self.registry, self.logs)

    @cached_property
    def deletion(self) -> Deletion:
        return Deletion(
            event_types=self.event_types,
            permissions=self.permissions,
            features=self.features,
            leftovers=self.leftovers,
        )

    @cached_property
    def repartitioning(self) -> Repartitioning:
        return Repartitioning(
            event_types=self.event_types,
            permissions=self.permissions,
            features=self.features,
            logs=self.logs,
            max_partitions=self.settings.max_partitions,
        )

    @cached_property
    def timelines(self) -> Timelines:
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
        return SchemaVersions(
            event_types=self.event_types,
            permissions=self.permissions,
            features=self.features,
            clock=self.clock,
        )

    @cached_property
    def housekeeping(self) -> Housekeeping:
        return Housekeeping(
            event_types=self.event_types,
            timelines=self.timelines,
            leftovers=self.leftovers,
            logs=self.logs,
            clock=self.clock,
        )

    # Events in, events out

    @cached_property
    def cursors(self) -> Cursors:
        return Cursors(self.logs)

    @cached_property
    def validators(self) -> Validators:
        return Validators()

    @cached_property
    def publisher(self) -> Publisher:
        return Publisher(
            event_types=self.event_types,
            validators=self.validators,
            permissions=self.permissions,
            features=self.features,
            logs=self.logs,
            clock=self.clock,
            most_event_bytes=self.settings.max_event_bytes,
        )

    @cached_property
    def streams(self) -> Streams:
        return Streams(
            event_types=self.event_types,
            judge=Judge(self.event_types, self.permissions, self.features),
            cursors=self.cursors,
            logs=self.logs,
            clock=self.clock,
        )

    # HTTP

    @cached_property
    def metrics(self) -> Metrics:
        return Metrics(self.clock.monotonic())

    @cached_property
    def application(self) -> Application:
        routes = [self._audit().wrapped(route) for route in self._routes()]
        return Application(routes, self._authenticate, self.metrics.answered)

    def _audit(self) -> Audit:
        events = SystemEvents(
            event_types=self.event_types, creation=self.creation, publisher=self.publisher, clock=self.clock
        )
        return Audit(self.features, events, self._audited())

    def _audited(self) -> Mapping[str, Audited]:
        """Operation -> what it changes."""
        event_type = Audited("event_type", by_path("name"), self._event_type_view)
        storage = Audited("storage", by_path("id"), self._storage_view)
        blacklist_entry = Audited("blacklist_entry", by_path("name"), self._blacklist_view)
        return {
            "create_event_type": replace(event_type, id_of=by_body("name")),
            "update_event_type": event_type,
            "delete_event_type": event_type,
            "add_schema": event_type,
            "set_partition_count": event_type,
            "create_timeline": Audited("timeline", by_path("name"), self._timelines_view),
            "create_storage": replace(storage, id_of=by_body("id")),
            "delete_storage": storage,
            "set_default_storage": storage,
            "set_feature": Audited("feature", by_body("feature"), self._feature_view),
            "set_admins": Audited("admins", always("admins"), lambda _: views.admins_view(self.admins.lists())),
            "block": blacklist_entry,
            "unblock": blacklist_entry,
        }

    def _event_type_view(self, name: str) -> views.View | None:
        event_type = self.event_types.find(name)
        return None if event_type is None else views.event_type_view(event_type)

    def _storage_view(self, storage_id: str) -> views.View | None:
        storage = self.storages.find(storage_id)
        return None if storage is None else views.storage_view(storage)

    def _timelines_view(self, name: str) -> list[views.View] | None:
        event_type = self.event_types.find(name)
        return None if event_type is None else [views.timeline_view(each, name) for each in event_type.timelines]

    def _feature_view(self, name: str) -> bool:
        return self.features.all().get(Feature(name.lower()), False) if name.lower() in set(Feature) else False

    def _blacklist_view(self, name: str) -> list[str] | None:
        return [kind for kind, names in self.blacklist.entries().items() if name in names] or None

    def _routes(self) -> list[Route]:
        return [
            *self._event_type_doors().routes(),
            *routes.schemas.routes(self.schema_versions),
            *routes.timelines.routes(self.timelines),
            *routes.publishing.routes(self.publisher, self.permissions),
            *routes.streams.routes(self.streams),
            *routes.cursors.routes(self.event_types, self.permissions, self.cursors),
            *routes.registry.routes(),
            *routes.settings.routes(self.admins, self.blacklist, self.features),
            *routes.storages.routes(self.storages, self.event_types, self.admins),
            *routes.monitoring.routes(self.metrics, self.clock, _version()),
            *routes.documentation.routes(),
        ]

    def _event_type_doors(self) -> routes.event_types.EventTypeDoors:
        warnings = routes.event_types.Warnings(self.settings.data_access_warning, self.settings.compaction_warning)
        return routes.event_types.EventTypeDoors(
            event_types=self.event_types,
            creation=self.creation,
            update=self.update,
            deletion=self.deletion,
            repartitioning=self.repartitioning,
            permissions=self.permissions,
            features=self.features,
            warnings=warnings,
        )

    def _settings_document(self, key: str) -> SettingsDocument:
        return SettingsDocument(self.registry, key, self._settings_cache)


def _authentication(settings: Settings, clock: Clock) -> Authenticate:
    if settings.auth == "off":
        return nobody_is_asked
    if settings.auth != "jwt":
        raise BadSetting(f"NAKADI_AUTH is 'off' or 'jwt', not {settings.auth!r}")
    if not settings.auth_jwks:
        raise BadSetting("NAKADI_AUTH=jwt needs NAKADI_AUTH_JWKS: the file or URL of the key set")
    rules = TokenRules(
        issuer=settings.auth_issuer,
        audience=settings.auth_audience,
        algorithms=settings.auth_algorithms,
        leeway_seconds=settings.auth_leeway_seconds,
        subject_claim=settings.auth_subject_claim,
        attribute_claims=settings.auth_attributes,
    )
    tokens = Tokens(KeySet(fetch_from(settings.auth_jwks), clock), rules, clock)
    return token_is_asked(tokens, ScopeTable(_scopes(settings)), settings.auth_realms)


def _scopes(settings: Settings) -> Scopes:
    return Scopes(
        uid=settings.scope_uid,
        config_write=settings.scope_config_write,
        event_type_write=settings.scope_event_type_write,
        event_stream_read=settings.scope_event_stream_read,
        event_stream_write=settings.scope_event_stream_write,
    )


def _storage_type(event_log_url: str) -> StorageType:
    scheme = event_log_url.partition(":")[0]
    return StorageType(scheme) if scheme in set(StorageType) else StorageType.EMBEDDED


def _attributes(pairs: tuple[tuple[str, str], ...]) -> tuple[Attribute, ...]:
    return tuple(Attribute(data_type, value) for data_type, value in pairs)


def _version() -> str:
    try:
        return metadata.version("nakadi-serverless")
    except metadata.PackageNotFoundError:
        return "development"

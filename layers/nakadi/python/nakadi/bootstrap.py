"""The one place that knows everyone: settings in, a wired broker out."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata

from nakadi.access.keys import KeySet, fetch_from
from nakadi.access.permissions import Permissions
from nakadi.access.tokens import TokenRules, Tokens
from nakadi.administration.admins import Admins
from nakadi.administration.blacklist import Blacklist
from nakadi.administration.documents import SettingsDocument
from nakadi.administration.features import Features
from nakadi.administration.storages import Storages
from nakadi.caching import Cache
from nakadi.catalog.event_types import EventTypes
from nakadi.clock import SystemClock
from nakadi.eventlogs import open_event_log
from nakadi.http.application import Application, Authenticate
from nakadi.http.metrics import Metrics
from nakadi.http.routes import monitoring, registry, storages
from nakadi.http.routes import settings as settings_routes
from nakadi.http.routing import Route
from nakadi.http.security import Scopes, ScopeTable, nobody_is_asked, token_is_asked
from nakadi.model.authorization import Attribute
from nakadi.model.outcomes import Unavailable
from nakadi.model.storage import DEFAULT_STORAGE_ID, StorageType
from nakadi.ports import Clock, EventLog, Registry
from nakadi.registries import open_registry
from nakadi.settings import BadSetting, Settings


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """Everything that a doorway or a test may want to hold on to."""

    settings: Settings
    clock: Clock
    registry: Registry
    logs: Logs
    features: Features
    admins: Admins
    blacklist: Blacklist
    storages: Storages
    permissions: Permissions
    event_types: EventTypes
    application: Application

    def close(self) -> None:
        self.logs.close()
        self.registry.close()


def open_broker(settings: Settings, clock: Clock | None = None) -> Broker:
    """Open what the settings name, and wire it."""
    clock = clock or SystemClock()
    registry_store = open_registry(settings.registry, clock)
    logs = Logs(open_event_log(settings.event_log, clock))
    cache_of_settings: Cache[str, object] = Cache(clock, settings.cache_seconds)

    def document(key: str) -> SettingsDocument:
        return SettingsDocument(registry_store, key, cache_of_settings)

    features = Features(document("features"))
    admins = Admins(document("admins"), features, _attributes(settings.default_admin))
    blacklist = Blacklist(document("blacklist"))
    all_storages = Storages(registry_store, document("storage"), features, _storage_type(settings.event_log))
    permissions = Permissions(admins, blacklist, _attributes(settings.all_data_access))
    event_types = EventTypes(registry_store, Cache(clock, settings.cache_seconds))
    metrics = Metrics(clock.monotonic())
    routes: list[Route] = [
        *registry.routes(),
        *settings_routes.routes(admins, blacklist, features),
        *storages.routes(all_storages, event_types, admins),
        *monitoring.routes(metrics, clock, _version()),
    ]
    return Broker(
        settings=settings,
        clock=clock,
        registry=registry_store,
        logs=logs,
        features=features,
        admins=admins,
        blacklist=blacklist,
        storages=all_storages,
        permissions=permissions,
        event_types=event_types,
        application=Application(routes, _authentication(settings, clock), metrics, clock),
    )


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
    scopes = Scopes(
        uid=settings.scope_uid,
        config_write=settings.scope_config_write,
        event_type_write=settings.scope_event_type_write,
        event_stream_read=settings.scope_event_stream_read,
        event_stream_write=settings.scope_event_stream_write,
    )
    tokens = Tokens(KeySet(fetch_from(settings.auth_jwks), clock), rules, clock)
    return token_is_asked(tokens, ScopeTable(scopes), settings.auth_realms)


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

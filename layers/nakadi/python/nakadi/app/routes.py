"""The routes of a process, by areas that load only what they need, and who may use them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from nakadi.app.settings import Settings
from nakadi.http.message import Request
from nakadi.model.authorization import UNAUTHENTICATED, Subject
from nakadi.model.outcomes import BadSetting, NotAuthenticated, NotPermitted

if TYPE_CHECKING:
    from nakadi.app.broker import BrokerServices
    from nakadi.auth.tokens import TokenVerifier
    from nakadi.http.application import Authenticate, Handler, Route
    from nakadi.http.message import Answer
    from nakadi.ports.clock import Clock

# Routes ---------------------------------------------------------------------------------------------------------------


# What the streaming service serves, and no function.
STREAMING_AREAS = ("streams", "subscription_streams")

# What it serves beside that to clients that do not come by the gateway.
DIRECT_AREAS = ("publishing", "subscriptions")


def make_routes(broker: BrokerServices, *areas: str) -> list[Route]:
    routes = [route for area in areas for route in ROUTE_MAKER_BY_AREA[area](broker)]
    if CHANGING_AREAS.isdisjoint(areas):
        return routes
    from nakadi.app.audit import make_audit

    audit = make_audit(broker)
    return [_answered_when_in_force(audit.wrap_route(route), broker) for route in routes]


def _answered_when_in_force(route: Route, broker: BrokerServices) -> Route:
    """The route, whose successes are answered when what it wrote is in force in all processes.

    It waits as well when there was nothing to write: an earlier request, which nobody waited for, may have written the
    same a moment ago.
    """
    if not route.changes_cached_documents or not broker.has_unknown_neighbours:
        return route
    handle_at_once = cast("Handler", route.handler)

    def handle(request: Request) -> Answer:
        answer = handle_at_once(request)
        if answer.status < 300 and not (route.only_reads and route.only_reads(request)):
            broker.wait_until_in_force()
        return answer

    return replace(route, handler=handle)


def _event_type_routes(broker: BrokerServices) -> list[Route]:
    from nakadi.http.routes import event_types

    settings = broker.settings
    handlers = event_types.EventTypeHandlers(
        event_types=broker.event_types,
        creation=broker.event_type_creation,
        update=broker.event_type_update,
        deletion=broker.event_type_deletion,
        repartitioning=broker.repartitioning,
        permissions=broker.permissions,
        features=broker.features,
        warnings=event_types.WarningTexts(settings.data_access_warning, settings.compaction_warning),
    )
    return [
        *handlers.routes(),
        *event_types.schema_routes(broker.schema_versions),
        *event_types.timeline_routes(broker.timelines, broker.topic_adoption),
        *event_types.strategy_routes(),
    ]


def _publishing_routes(broker: BrokerServices) -> list[Route]:
    from nakadi.http.routes import publishing

    return publishing.routes(broker.publisher, broker.permissions, broker.kpi_collector)


def _stream_routes(broker: BrokerServices) -> list[Route]:
    from nakadi.http.routes import streams
    from nakadi.publishing.system_events import StreamKpis

    def new_stream_kpis(request: Request) -> StreamKpis:
        return StreamKpis(broker.kpi_collector, broker.clock, request.subject, request.flow_id, metrics=broker.metrics)

    return streams.routes(broker.event_streams, new_stream_kpis)


def _cursor_routes(broker: BrokerServices) -> list[Route]:
    from nakadi.http.routes import cursors

    return cursors.routes(broker.event_types, broker.permissions, broker.cursor_resolver)


def _subscription_routes(broker: BrokerServices) -> list[Route]:
    from nakadi.http.routes.subscriptions import ParkedEventHandlers

    subscribing = broker.subscription_services
    return [*subscribing.handlers.routes(), *ParkedEventHandlers(subscribing.parked_events).routes()]


def _subscription_stream_routes(broker: BrokerServices) -> list[Route]:
    from nakadi.http.routes import streams
    from nakadi.publishing.system_events import StreamKpis

    def new_stream_kpis(request: Request, subscription_id: str) -> StreamKpis:
        return StreamKpis(
            broker.kpi_collector, broker.clock, request.subject, request.flow_id, subscription_id, broker.metrics
        )

    return streams.subscription_routes(broker.subscription_streams, new_stream_kpis)


def _settings_routes(broker: BrokerServices) -> list[Route]:
    from nakadi.http.routes import settings

    return [
        *settings.routes(broker.admins, broker.blacklist, broker.features, broker.create_missing_event_types),
        *settings.storage_routes(broker.storages, broker.event_types, broker.admins),
    ]


def _monitoring_routes(broker: BrokerServices) -> list[Route]:
    from nakadi.http.routes import monitoring

    return [
        *monitoring.routes(
            broker.read_metrics or broker.read_own_metrics, broker.clock, broker.readiness_check, _version()
        ),
        *monitoring.documentation_routes(),
    ]


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("nakadi-serverless")
    except metadata.PackageNotFoundError:
        return "development"


ROUTE_MAKER_BY_AREA: Mapping[str, Callable[[BrokerServices], list[Route]]] = {
    "event_types": _event_type_routes,
    "publishing": _publishing_routes,
    "streams": _stream_routes,
    "cursors": _cursor_routes,
    "subscriptions": _subscription_routes,
    "subscription_streams": _subscription_stream_routes,
    "settings": _settings_routes,
    "monitoring": _monitoring_routes,
}
"""Every area; it is called as its module in `nakadi.http.routes`."""

CHANGING_AREAS = frozenset({"event_types", "subscriptions", "settings"})
"""The areas with operations that the audit log records."""


# Who is asking, and which scope a request needs -----------------------------------------------------------------------


# What anyone may look at: whether the broker is alive and at work, and how to speak to it.
PUBLIC_PATH_PATTERN = re.compile(r"/(health(/.*)?|ready|openapi\.json|docs)/?")

READING_PATH_PATTERN = r"/event-types/[^/]+/(partitions|events|cursor-distances|shifted-cursors|cursors-lag)(/.*)?"


class ScopeTable:
    """Method and path -> scope, first match wins."""

    def __init__(self, settings: Settings) -> None:
        read, write = settings.scope_event_stream_read, settings.scope_event_stream_write
        self._otherwise = settings.scope_uid
        self._by_method: dict[str, list[tuple[re.Pattern[str], str]]] = {}
        # What clients ask for most comes first: each of its requests is matched against one or two patterns.
        for methods, path, scope in (
            ("POST", r"/event-types/[^/]+/events(/.*)?", write),
            ("GET HEAD POST", r"/subscriptions(/.*)?", read),
            ("GET HEAD", READING_PATH_PATTERN, read),
            ("DELETE", r"/subscriptions/[^/]+(/.*)?", read),
            ("POST", r"/event-types/[^/]+/(shifted-cursors|cursors-lag|cursor-distances)", read),
            ("DELETE", r"/event-types/[^/]+(/.*)?", settings.scope_config_write),
            ("POST PUT", r"/event-types(/.*)?", settings.scope_event_type_write),
        ):
            for method in methods.split():
                self._by_method.setdefault(method, []).append((re.compile(path), scope))

    def needed_scope(self, method: str, path: str) -> str:
        path = path.rstrip("/") or "/"
        for pattern, scope in self._by_method.get(method, ()):
            if pattern.fullmatch(path):
                return scope
        return self._otherwise


def make_token_authentication(
    tokens: TokenVerifier, table: ScopeTable, realms: tuple[str, ...]
) -> Callable[[Request], Subject]:
    """Authentication by bearer token, with the scope that the operation needs and one of the realms, if any are set."""
    return _authentication_by(
        lambda request: tokens.verified_subject(request.headers.get("authorization")), table, realms
    )


def make_gateway_authentication(table: ScopeTable, realms: tuple[str, ...]) -> Callable[[Request], Subject]:
    """Behind a gateway whose authorizer has looked at the token: the subject is the one that it found."""

    def subject_of(request: Request) -> Subject:
        if request.subject == UNAUTHENTICATED:
            raise NotAuthenticated("Full authentication is required to access this resource")
        return request.subject

    return _authentication_by(subject_of, table, realms)


def _authentication_by(
    subject_of: Callable[[Request], Subject], table: ScopeTable, realms: tuple[str, ...]
) -> Callable[[Request], Subject]:
    def authenticate(request: Request) -> Subject:
        if PUBLIC_PATH_PATTERN.fullmatch(request.path):
            return UNAUTHENTICATED
        subject = subject_of(request)
        if realms and subject.realm not in realms:
            raise NotPermitted("Insufficient realms for this resource")
        scope = table.needed_scope(request.method, request.path)
        if scope and scope not in subject.scopes:
            raise NotPermitted("Insufficient scope for this resource")
        return subject

    return authenticate


def make_authentication(settings: Settings, clock: Clock) -> Authenticate | None:
    match settings.auth:
        case "off":
            return None
        case "jwt":
            return make_token_authentication(
                make_token_verifier(settings, clock), ScopeTable(settings), settings.auth_realms
            )
        case "gateway":
            return make_gateway_authentication(ScopeTable(settings), settings.auth_realms)
        case other:
            raise BadSetting(f"NAKADI_AUTH is 'off', 'jwt' or 'gateway', not {other!r}")


def make_token_verifier(settings: Settings, clock: Clock) -> TokenVerifier:
    """What tells good tokens from others, by these settings."""
    from nakadi.auth.tokens import KeySet, TokenRules, TokenVerifier, make_key_fetcher

    if not settings.auth_jwks:
        raise BadSetting("NAKADI_AUTH=jwt needs NAKADI_AUTH_JWKS: the file or URL of the key set")
    rules = TokenRules(
        issuer=settings.auth_issuer,
        audience=settings.auth_audience,
        algorithms=settings.auth_algorithms,
        leeway_seconds=settings.auth_leeway_seconds,
        subject_claim=settings.auth_subject_claim,
        attribute_claims=settings.auth_attributes,
        service_realms=settings.auth_service_realms,
    )
    return TokenVerifier(KeySet(make_key_fetcher(settings.auth_jwks), clock), rules, clock)

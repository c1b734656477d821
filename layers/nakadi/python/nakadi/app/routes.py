"""The routes of a broker, by area: a process offers some of them, and loads what these need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nakadi.app.broker import BrokerServices
    from nakadi.http.application import Route
    from nakadi.http.message import Request

# What the streaming service serves, and no function.
STREAMED = ("streams", "subscription_streams")

# What it serves beside that to clients that do not come by the gateway.
DIRECT = ("publishing", "subscriptions")


def routes_of(broker: BrokerServices, *areas: str) -> list[Route]:
    routes = [route for area in areas for route in AREAS[area](broker)]
    if CHANGING.isdisjoint(areas):
        return routes
    from nakadi.app.audit import make_audit

    audit = make_audit(broker)
    return [audit.wrapped(route) for route in routes]


def _event_type_routes(broker: BrokerServices) -> list[Route]:
    from nakadi.http.routes import event_types

    settings = broker.settings
    handlers = event_types.EventTypeHandlers(
        event_types=broker.event_types,
        creation=broker.creation,
        update=broker.update,
        deletion=broker.deletion,
        repartitioning=broker.repartitioning,
        permissions=broker.permissions,
        features=broker.features,
        warnings=event_types.Warnings(settings.data_access_warning, settings.compaction_warning),
    )
    return [
        *handlers.routes(),
        *event_types.schema_routes(broker.schema_versions),
        *event_types.timeline_routes(broker.timelines, broker.adoption),
        *event_types.strategy_routes(),
    ]


def _publishing_routes(broker: BrokerServices) -> list[Route]:
    from nakadi.http.routes import publishing

    return publishing.routes(broker.publisher, broker.permissions, broker.figures)


def _stream_routes(broker: BrokerServices) -> list[Route]:
    from nakadi.http.routes import streams
    from nakadi.publishing.system_events import StreamKpis

    def figures_of(request: Request) -> StreamKpis:
        return StreamKpis(broker.figures, broker.clock, request.subject, request.flow_id, metrics=broker.metrics)

    return streams.routes(broker.streams, figures_of)


def _cursor_routes(broker: BrokerServices) -> list[Route]:
    from nakadi.http.routes import cursors

    return cursors.routes(broker.event_types, broker.permissions, broker.cursors)


def _subscription_routes(broker: BrokerServices) -> list[Route]:
    from nakadi.http.routes.subscriptions import ParkedEventHandlers

    subscribing = broker.subscription_services
    return [*subscribing.handlers.routes(), *ParkedEventHandlers(subscribing.parked_events).routes()]


def _subscription_stream_routes(broker: BrokerServices) -> list[Route]:
    from nakadi.http.routes import streams
    from nakadi.publishing.system_events import StreamKpis

    def figures_of(request: Request, subscription_id: str) -> StreamKpis:
        return StreamKpis(
            broker.figures, broker.clock, request.subject, request.flow_id, subscription_id, broker.metrics
        )

    return streams.subscription_routes(broker.subscription_streams, figures_of)


def _settings_routes(broker: BrokerServices) -> list[Route]:
    from nakadi.http.routes import settings

    return [
        *settings.routes(broker.admins, broker.blacklist, broker.features, broker.prepare_event_types),
        *settings.storage_routes(broker.storages, broker.event_types, broker.admins),
    ]


def _monitoring_routes(broker: BrokerServices) -> list[Route]:
    from nakadi.http.routes import monitoring

    return [
        *monitoring.routes(broker.read_metrics or (lambda: broker.metrics), broker.clock, broker.readiness, _version()),
        *monitoring.documentation_routes(),
    ]


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("nakadi-serverless")
    except metadata.PackageNotFoundError:
        return "development"


AREAS: Mapping[str, Callable[[BrokerServices], list[Route]]] = {
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

CHANGING = frozenset({"event_types", "subscriptions", "settings"})
"""The areas with operations that the audit log records."""

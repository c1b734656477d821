"""Makes the application of a process from areas of routes. Each area loads only the modules that it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from nakadi.app.broker import BrokerServices
from nakadi.auth.settings_document import SETTINGS_KIND
from nakadi.http.application import Application, ReportAnswer
from nakadi.http.message import Answer, Request
from nakadi.http.request_kpis import RequestKpiRecorder
from nakadi.http.router import Handler, Route

if TYPE_CHECKING:
    from nakadi.publishing.system_events import StreamKpis
    from nakadi.streaming.driver import StreamFigures

# The routes that the streaming service serves, but functions do not.
STREAMING_AREAS = ("streams", "subscription_streams", "sink_trials", "rehearsals", "queries")

# The routes that the streaming service also serves to clients that bypass the gateway.
DIRECT_AREAS = ("publishing", "subscriptions")


def make_application(
    broker: BrokerServices, *areas: str, report_answer: ReportAnswer | None = None, collects_kpis: bool = True
) -> Application:
    """An application with the routes of these areas, or of all areas if none is named.

    It calls `report_answer` for each answer. With `collects_kpis`, the application collects KPIs of its requests.
    """
    metrics = broker.metrics

    def count_and_report(operation: str, status: int, seconds: float, received: int, sent: int) -> None:
        metrics.answered(operation, status, seconds, received, sent)
        if report_answer is not None:
            report_answer(operation, status, seconds, received, sent)

    return Application(
        make_routes(broker, *(areas or ROUTE_MAKER_BY_AREA)),
        broker.authenticate,
        metrics.answered if report_answer is None else count_and_report,
        RequestKpiRecorder(broker.kpi_collector) if collects_kpis else None,
        lambda status: metrics.requests.add(1, "unrouted", str(status)),
        metrics.clients.count_request,
    )


def make_routes(broker: BrokerServices, *areas: str) -> list[Route]:
    routes = [route for area in areas for route in ROUTE_MAKER_BY_AREA[area](broker)]
    if broker.tracer is not None:
        from nakadi.app.tracing import with_spans

        routes = with_spans(routes, broker.tracer)
    if CHANGING_AREAS.isdisjoint(areas):
        return routes
    return [_answered_when_in_force(broker.audit.wrap_route(route), broker) for route in routes]


def _answered_when_in_force(route: Route, broker: BrokerServices) -> Route:
    """Return the route with a handler that answers a success only when the change is in force in all processes.

    It also waits if the request changed nothing: an earlier request, whose client did not wait for the answer, may have
    made the same change a moment ago.
    """
    if not route.changes_cached_documents or not broker.has_unknown_neighbours:
        return route
    handle_at_once = cast(Handler, route.handler)

    def handle(request: Request) -> Answer:
        answer = handle_at_once(request)
        if answer.status < 300 and not (route.only_reads and route.only_reads(request)):
            broker.wait_until_in_force()
        return answer

    return replace(route, handler=handle)


def _event_type_routes(broker: BrokerServices) -> list[Route]:
    from nakadi.http.routes import event_types, schemas, strategies, timelines

    settings = broker.settings
    handlers = event_types.EventTypeHandlers(
        event_types=broker.event_types,
        creation=broker.registration.creation,
        update=broker.registration.update,
        deletion=broker.registration.deletion,
        repartitioning=broker.registration.repartitioning,
        readers=broker.registration.readers,
        permissions=broker.permissions,
        features=broker.features,
        warnings=event_types.WarningTexts(settings.data_access_warning, settings.compaction_warning),
        find_table_objective=broker.find_table_objective,
    )
    return [
        *handlers.routes(),
        *schemas.routes(broker.registration.schema_versions),
        *timelines.routes(broker.timelines, broker.registration.topic_adoption),
        *strategies.routes(),
    ]


def _rehearsal_routes(broker: BrokerServices) -> list[Route]:
    from nakadi.http.routes.rehearsals import RehearsalHandlers

    return RehearsalHandlers(broker.rehearsals).routes()


def _query_routes(broker: BrokerServices) -> list[Route]:
    from nakadi.http.routes.queries import QueryHandlers

    return QueryHandlers(lambda: broker.queries if broker.own_url else None).routes()


def _publishing_routes(broker: BrokerServices) -> list[Route]:
    from nakadi.http.routes import publishing

    return publishing.routes(broker.publisher, broker.permissions, broker.kpi_collector)


def _stream_routes(broker: BrokerServices) -> list[Route]:
    from nakadi.http.routes import streams
    from nakadi.publishing.system_events import StreamKpis

    def new_stream_kpis(request: Request) -> StreamFigures:
        kpis = StreamKpis(broker.kpi_collector, broker.clock, request.subject, request.flow_id, metrics=broker.metrics)
        return _with_spans(kpis, broker)

    return streams.routes(broker.event_streams, new_stream_kpis)


def _with_spans(kpis: StreamKpis, broker: BrokerServices, subscription_id: str = "") -> StreamFigures:
    if broker.tracer is None:
        return kpis
    from nakadi.app.tracing import TracedStreamFigures

    return TracedStreamFigures(kpis, broker.tracer, subscription_id)


def _cursor_routes(broker: BrokerServices) -> list[Route]:
    from nakadi.http.routes import cursors

    return cursors.routes(broker.event_types, broker.permissions, broker.cursor_resolver)


def _subscription_routes(broker: BrokerServices) -> list[Route]:
    from nakadi.http.routes.objectives import ObjectiveHandlers
    from nakadi.http.routes.parked_events import ParkedEventHandlers
    from nakadi.http.routes.sinks import SinkHandlers

    subscribing, delivering = broker.subscription_requests, broker.delivery_services
    return [
        *subscribing.handlers.routes(),
        *ParkedEventHandlers(subscribing.parked_events).routes(),
        *ObjectiveHandlers(subscribing.objectives).routes(),
        *SinkHandlers(delivering.sinks).routes(),
    ]


def _sink_trial_routes(broker: BrokerServices) -> list[Route]:
    from nakadi.http.routes.sink_trials import SinkTrialHandlers

    delivering = broker.delivery_services
    return SinkTrialHandlers(delivering.sinks, delivering.try_sink).routes()


def _subscription_stream_routes(broker: BrokerServices) -> list[Route]:
    from nakadi.http.routes import subscription_streams
    from nakadi.publishing.system_events import StreamKpis

    def new_stream_kpis(request: Request, subscription_id: str) -> StreamFigures:
        kpis = StreamKpis(
            broker.kpi_collector, broker.clock, request.subject, request.flow_id, subscription_id, broker.metrics
        )
        return _with_spans(kpis, broker, subscription_id)

    return subscription_streams.routes(broker.subscription_streams, new_stream_kpis)


def _settings_routes(broker: BrokerServices) -> list[Route]:
    from nakadi.http.routes import settings, storages

    return [
        *settings.routes(broker.admins, broker.blacklist, broker.features, broker.create_missing_event_types),
        *storages.routes(broker.storages, broker.event_types, broker.admins),
    ]


def _monitoring_routes(broker: BrokerServices) -> list[Route]:
    from nakadi.http import readiness
    from nakadi.http.routes import documentation, monitoring

    return [
        *monitoring.routes(
            broker.read_metrics or broker.read_own_metrics,
            broker.clock,
            readiness.ReadinessCheck(lambda: broker.registry.get(SETTINGS_KIND, "features"), broker.clock),
            _version(),
        ),
        *documentation.routes(),
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
    "sink_trials": _sink_trial_routes,
    "rehearsals": _rehearsal_routes,
    "queries": _query_routes,
    "settings": _settings_routes,
    "monitoring": _monitoring_routes,
}
"""All areas, each named after its module in `nakadi.http.routes`."""

CHANGING_AREAS = frozenset({"event_types", "subscriptions", "settings"})
"""The areas with audited operations."""

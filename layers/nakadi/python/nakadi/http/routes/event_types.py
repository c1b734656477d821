"""Event types, the versions of their schemas, their timelines, and the strategies that they choose from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from msgspec import Struct

from nakadi.auth.permissions import Features, Permissions
from nakadi.event_types.adoption import TimelineToAdopt, TopicAdoption
from nakadi.event_types.deletion import EventTypeDeletion
from nakadi.event_types.registration import EventTypeCreation, EventTypeUpdate, Repartitioning
from nakadi.event_types.repository import EVENT_TYPES_PAGE_SIZE, EventTypes
from nakadi.event_types.schema_versions import SchemaEvaluation, SchemaVersions
from nakadi.event_types.timelines import Timelines
from nakadi.http.application import Route
from nakadi.http.bodies import ObjectReader, attribute_parameter, event_type_draft, object_body, schema_draft
from nakadi.http.message import Request, Response, empty_response, json_response
from nakadi.http.parameters import FlagParameter, IntegerParameter, TextParameter
from nakadi.http.views import (
    View,
    event_type_view,
    forecast_view,
    measured_statistics_view,
    page_links,
    schema_forecast_view,
    schema_view,
    table_state_view,
    timeline_view,
)
from nakadi.model.annotations import EVENT_TYPE_ANNOTATIONS, annotation_warnings
from nakadi.model.authorization import Attribute, Feature, Operation
from nakadi.model.event_type import CleanupPolicy, EnrichmentStrategy, EventType, PartitionStrategy
from nakadi.model.outcomes import Malformed, Violations
from nakadi.openapi.checks import openapi_violations

OWNING_APPLICATION, WRITER, AFTER = TextParameter("owning_application"), TextParameter("writer"), TextParameter("after")
LIMIT = IntegerParameter("limit", None)
DRY_RUN = FlagParameter("dry_run")


class WarningTexts(Struct, frozen=True):
    """The text of the `Warning` header in answers to the creation and to changes of an event type."""

    data_access: str
    compaction: str

    def warning_header(self, event_type: EventType) -> Mapping[str, str]:
        compacted = event_type.cleanup_policy is CleanupPolicy.COMPACT
        mistakes = annotation_warnings(event_type.annotations, EVENT_TYPE_ANNOTATIONS)
        texts = (self.data_access, self.compaction if compacted else "", *mistakes)
        return {"warning": f'299 nakadi "{". ".join(text for text in texts if text)}"'}


class EventTypeHandlers(Struct, frozen=True, kw_only=True):
    event_types: EventTypes
    creation: EventTypeCreation
    update: EventTypeUpdate
    deletion: EventTypeDeletion
    repartitioning: Repartitioning
    permissions: Permissions
    features: Features
    warnings: WarningTexts

    def routes(self) -> list[Route]:
        all_, one = "/event-types", "/event-types/{name}"
        count = f"{one}/partition-count"
        return [
            Route(
                method="GET",
                template=all_,
                handler=self.list,
                operation="list_event_types",
                parameters=(OWNING_APPLICATION, WRITER, LIMIT, AFTER),
            ),
            Route(method="POST", template=all_, handler=self.create, operation="create_event_type"),
            Route(method="GET", template=one, handler=self.get, operation="get_event_type"),
            Route(
                method="PUT",
                template=one,
                handler=self.replace,
                operation="update_event_type",
                parameters=(DRY_RUN,),
                changes_cached_documents=True,
                only_reads=DRY_RUN.read,
            ),
            Route(
                method="DELETE",
                template=one,
                handler=self.delete,
                operation="delete_event_type",
                changes_cached_documents=True,
            ),
            Route(
                method="PUT",
                template=count,
                handler=self.repartition,
                operation="set_partition_count",
                changes_cached_documents=True,
            ),
        ]

    def list(self, request: Request) -> Response:
        application, writer = OWNING_APPLICATION.read(request), attribute_parameter(request, WRITER)
        limit = LIMIT.read(request)
        if limit is not None and not 1 <= limit <= EVENT_TYPES_PAGE_SIZE:
            raise Malformed(f"'limit' parameter should have value between 1 and {EVENT_TYPES_PAGE_SIZE}")
        page_size = EVENT_TYPES_PAGE_SIZE if limit is None or application or writer else limit
        listed = (
            event_type_view(each)
            for each in self.event_types.all(after=AFTER.read(request) or "", page_size=page_size)
            if application in (None, each.owning_application) and (writer is None or _lists_writer(each, writer))
        )
        return json_response(list(islice(listed, limit)))

    def get(self, request: Request) -> Response:
        event_type = self.event_types.get(request.path_parameters["name"])
        self.permissions.require(Operation.VIEW, event_type.resource, request.subject)
        measured = self.event_types.measured_statistics(event_type)
        extra = {} if measured is None else {"measured_statistic": measured_statistics_view(measured)}
        table = self.event_types.table_state(event_type)
        extra |= {} if table is None else {"table": table_state_view(table)}
        return json_response(event_type_view(event_type) | extra)

    def create(self, request: Request) -> Response:
        draft = event_type_draft(object_body(request))
        return self._change_response(self.creation.create(draft, request.subject), 201)

    def replace(self, request: Request) -> Response:
        name, draft = request.path_parameters["name"], event_type_draft(object_body(request))
        if DRY_RUN.read(request):
            return json_response(forecast_view(self.update.forecast(name, draft, request.subject)))
        return self._change_response(self.update.update(name, draft, request.subject), 200)

    def delete(self, request: Request) -> Response:
        self.deletion.delete(request.path_parameters["name"], request.subject)
        return empty_response()

    def repartition(self, request: Request) -> Response:
        count = object_body(request).integer("partition_count", bits=32)
        if count is None:
            raise Violations(openapi_violations("PartitionCount", {"partition_count": None}))
        self.repartitioning.set_partition_count(request.path_parameters["name"], count, request.subject)
        return empty_response(204)

    def _change_response(self, event_type: EventType, status: int) -> Response:
        warning = self.warnings.warning_header(event_type)
        if self.features.is_on(Feature.RETURN_BODY_ON_CREATE_UPDATE_EVENT_TYPE):
            return json_response(event_type_view(event_type), status, warning)
        return empty_response(status, warning)


def _lists_writer(event_type: EventType, writer: Attribute) -> bool:
    """Literally: a wildcard writer is not everyone's name."""
    return event_type.authorization is not None and writer in event_type.authorization.writers


# Schemas --------------------------------------------------------------------------------------------------------------


DEFAULT_SCHEMA_LIMIT = 20

SCHEMA_OFFSET, SCHEMA_LIMIT = IntegerParameter("offset", 0), IntegerParameter("limit", DEFAULT_SCHEMA_LIMIT)
FETCH = FlagParameter("fetch")


def schema_routes(schema_versions: SchemaVersions) -> list[Route]:
    handlers = _SchemaHandlers(schema_versions)
    all_ = "/event-types/{name}/schemas"
    one, check = f"{all_}/{{version}}", f"{all_}/{{version}}/compatibility-check"
    return [
        Route(
            method="GET",
            template=all_,
            handler=handlers.list,
            operation="list_schemas",
            parameters=(SCHEMA_OFFSET, SCHEMA_LIMIT),
        ),
        Route(
            method="POST",
            template=all_,
            handler=handlers.add,
            operation="add_schema",
            parameters=(FETCH, DRY_RUN),
            changes_cached_documents=True,
            only_reads=_only_reads_schemas,
        ),
        Route(method="GET", template=one, handler=handlers.get, operation="get_schema"),
        Route(method="POST", template=check, handler=handlers.check_compatibility, operation="check_compatibility"),
    ]


def _only_reads_schemas(request: Request) -> bool:
    return FETCH.read(request) or DRY_RUN.read(request)


class _SchemaHandlers(Struct, frozen=True):
    versions: SchemaVersions

    def list(self, request: Request) -> Response:
        name = request.path_parameters["name"]
        offset, limit = SCHEMA_OFFSET.read(request), SCHEMA_LIMIT.read(request)
        schemas, more = self.versions.page(name, offset, limit, request.subject)
        links = page_links(
            f"/event-types/{name}/schemas",
            offset=offset,
            limit=limit or DEFAULT_SCHEMA_LIMIT,
            size=len(schemas),
            has_more=more,
        )
        return json_response({"items": [schema_view(each) for each in schemas], "_links": links})

    def get(self, request: Request) -> Response:
        parameters = request.path_parameters
        return json_response(schema_view(self.versions.get(parameters["name"], parameters["version"], request.subject)))

    def add(self, request: Request) -> Response:
        name, draft = request.path_parameters["name"], schema_draft(object_body(request))
        if FETCH.read(request):
            return json_response(schema_view(self.versions.find_equal(name, draft, request.subject)))
        if DRY_RUN.read(request):
            return json_response(forecast_view(self.versions.forecast(name, draft, request.subject)))
        self.versions.add(name, draft, request.subject)
        return empty_response()

    def check_compatibility(self, request: Request) -> Response:
        parameters, text = request.path_parameters, object_body(request).text("schema")
        evaluation = self.versions.evaluate(parameters["name"], parameters["version"], text, request.subject)
        return json_response(_evaluation_view(evaluation))


def _evaluation_view(evaluation: SchemaEvaluation) -> View:
    refusal = evaluation.forecast.refusal
    return {
        "compatible": refusal is None,
        "compatibility_mode": evaluation.event_type.compatibility_mode,
        **({} if refusal is None else {"error": refusal}),
        "validated_against_version": str(evaluation.compared_schema.version),
        **schema_forecast_view(evaluation.forecast),
    }


# Timelines ------------------------------------------------------------------------------------------------------------


def timeline_routes(timelines: Timelines, adoption: TopicAdoption) -> list[Route]:
    handlers = _TimelineHandlers(timelines, adoption)
    path = "/event-types/{name}/timelines"
    return [
        Route(method="GET", template=path, handler=handlers.list, operation="list_timelines"),
        Route(
            method="POST",
            template=path,
            handler=handlers.create,
            operation="create_timeline",
            changes_cached_documents=True,
        ),
    ]


class _TimelineHandlers(Struct, frozen=True):
    timelines: Timelines
    adoption: TopicAdoption

    def list(self, request: Request) -> Response:
        name = request.path_parameters["name"]
        return json_response([timeline_view(each, name) for each in self.timelines.timelines_of(name, request.subject)])

    def create(self, request: Request) -> Response:
        name, body = request.path_parameters["name"], object_body(request)
        storage_id, adopted = body.text("storage_id"), body.objects("adopt")
        if adopted is None:
            self.timelines.move_to_new_timeline(name, storage_id, request.subject)
        else:
            drafts = [_read_adopted_timeline(each) for each in adopted]
            self.adoption.adopt(name, storage_id, drafts, request.subject)
        return empty_response(201)


def _read_adopted_timeline(body: ObjectReader) -> TimelineToAdopt:
    position = body.object("latest_position")
    return TimelineToAdopt(
        order=body.integer("order", bits=32),
        topic=body.text("topic"),
        latest_offsets=None if position is None else position.integers("offsets") or (),
    )


# Strategies -----------------------------------------------------------------------------------------------------------


VALIDATION_STRATEGIES = ("schema-validation",)


def strategy_routes() -> list[Route]:
    return [
        _make_strategies_route("partition", tuple(PartitionStrategy)),
        _make_strategies_route("enrichment", tuple(EnrichmentStrategy)),
        _make_strategies_route("validation", VALIDATION_STRATEGIES),
    ]


def _make_strategies_route(kind: str, strategies: Sequence[str]) -> Route:
    return Route(
        method="GET",
        template=f"/registry/{kind}-strategies",
        handler=lambda _: json_response(strategies),
        operation=f"list_{kind}_strategies",
    )

"""Versions of schemas."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from nakadi.event_types.schema_versions import SchemaEvaluation, SchemaVersions
from nakadi.http.bodies import object_body
from nakadi.http.drafts import schema_draft
from nakadi.http.message import Request, Response, empty_response, json_response
from nakadi.http.parameters import FlagParameter, IntegerParameter
from nakadi.http.reader_views import affected_readers_view
from nakadi.http.router import Route
from nakadi.http.routes.event_types import DRY_RUN, FORCE, readers_warning
from nakadi.http.views import (
    View,
    forecast_view,
    page_links,
    schema_forecast_view,
    schema_view,
)
from nakadi.model.outcomes import NotFound
from nakadi.schemas.avro.envelopes import BATCH_SCHEMAS, AvroJson

DEFAULT_SCHEMA_LIMIT = 20

SCHEMA_OFFSET, SCHEMA_LIMIT = IntegerParameter("offset", 0), IntegerParameter("limit", DEFAULT_SCHEMA_LIMIT)
FETCH = FlagParameter("fetch")


def routes(schema_versions: SchemaVersions) -> list[Route]:
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
            parameters=(FETCH, DRY_RUN, FORCE),
            changes_cached_documents=True,
            only_reads=_only_reads_schemas,
        ),
        Route(method="GET", template=one, handler=handlers.get, operation="get_schema"),
        Route(method="POST", template=check, handler=handlers.check_compatibility, operation="check_compatibility"),
        Route(
            method="GET",
            template="/avro-schemas/{schema_name}/versions",
            handler=_list_avro_schemas,
            operation="list_avro_schemas",
        ),
        Route(
            method="GET",
            template="/avro-schemas/{schema_name}/versions/{version}",
            handler=_get_avro_schema,
            operation="get_avro_schema",
        ),
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
        force = frozenset(FORCE.read(request))
        if DRY_RUN.read(request):
            return json_response(forecast_view(self.versions.forecast(name, draft, request.subject, force)))
        warning = readers_warning(self.versions.add(name, draft, request.subject, force).affected)
        return empty_response(200, {"warning": f'299 nakadi "{warning}"'} if warning else {})

    def check_compatibility(self, request: Request) -> Response:
        parameters, text = request.path_parameters, object_body(request).text("schema")
        evaluation = self.versions.evaluate(parameters["name"], parameters["version"], text, request.subject)
        return json_response(_evaluation_view(evaluation))


def _list_avro_schemas(request: Request) -> Response:
    versions = _find_avro_schemas(request)
    return json_response({"items": [_avro_schema_view(each, version) for version, each in versions.items()]})


def _get_avro_schema(request: Request) -> Response:
    versions, version = _find_avro_schemas(request), request.path_parameters["version"]
    if version not in versions:
        name = request.path_parameters["schema_name"]
        raise NotFound(f"Avro schema not found for: {name}, version {version}")
    return json_response(_avro_schema_view(versions[version], version))


def _find_avro_schemas(request: Request) -> Mapping[str, AvroJson]:
    name = request.path_parameters["schema_name"]
    if name not in BATCH_SCHEMAS:
        raise NotFound(f"There is no Avro schema of this name: {name}. Known are {' and '.join(BATCH_SCHEMAS)}")
    return BATCH_SCHEMAS[name]


def _avro_schema_view(schema: AvroJson, version: str) -> View:
    return {"avro_schema": schema, "version": version}


def _evaluation_view(evaluation: SchemaEvaluation) -> View:
    refusal = evaluation.forecast.refusal
    return {
        "compatible": refusal is None,
        "compatibility_mode": evaluation.event_type.compatibility_mode,
        **({} if refusal is None else {"error": refusal}),
        "validated_against_version": str(evaluation.compared_schema.version),
        **({"readers": affected_readers_view(evaluation.readers)} if evaluation.readers else {}),
        **schema_forecast_view(evaluation.forecast),
    }

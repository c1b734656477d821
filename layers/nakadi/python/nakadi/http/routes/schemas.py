"""The schema versions of an event type."""

from __future__ import annotations

from dataclasses import dataclass

from nakadi.catalog.schema_versions import SchemaVersions, Verdict
from nakadi.http.bodies import object_body
from nakadi.http.drafts import schema_draft
from nakadi.http.links import page_links
from nakadi.http.message import Request, Response, empty_response, json_response
from nakadi.http.routing import Route
from nakadi.http.views import View, schema_view

DEFAULT_LIMIT = 20


def routes(schema_versions: SchemaVersions) -> list[Route]:
    doors = _Schemas(schema_versions)
    all_ = "/event-types/{name}/schemas"
    one, check = f"{all_}/{{version}}", f"{all_}/{{version}}/compatibility-check"
    return [
        Route(method="GET", template=all_, handler=doors.list, operation="list_schemas"),
        Route(method="POST", template=all_, handler=doors.add, operation="add_schema"),
        Route(method="GET", template=one, handler=doors.get, operation="get_schema"),
        Route(method="POST", template=check, handler=doors.check, operation="check_compatibility"),
    ]


@dataclass(frozen=True, slots=True)
class _Schemas:
    versions: SchemaVersions

    def list(self, request: Request) -> Response:
        name = request.path_parameters["name"]
        offset, limit = request.integer("offset", 0), request.integer("limit", DEFAULT_LIMIT)
        page = self.versions.page(name, offset or 0, DEFAULT_LIMIT if limit is None else limit, request.subject)
        links = page_links(
            f"/event-types/{name}/schemas",
            offset=offset or 0,
            limit=limit or DEFAULT_LIMIT,
            size=len(page.schemas),
            more=page.more,
        )
        return json_response({"items": [schema_view(each) for each in page.schemas], "_links": links})

    def get(self, request: Request) -> Response:
        parameters = request.path_parameters
        return json_response(schema_view(self.versions.get(parameters["name"], parameters["version"], request.subject)))

    def add(self, request: Request) -> Response:
        name, draft = request.path_parameters["name"], schema_draft(object_body(request))
        if request.flag("fetch"):
            return json_response(schema_view(self.versions.find_equal(name, draft, request.subject)))
        self.versions.add(name, draft, request.subject)
        return empty_response()

    def check(self, request: Request) -> Response:
        parameters, text = request.path_parameters, object_body(request).text("schema")
        verdict = self.versions.judge(parameters["name"], parameters["version"], text, request.subject)
        return json_response(_verdict_view(verdict))


def _verdict_view(verdict: Verdict) -> View:
    return {
        "compatible": verdict.error is None,
        "compatibility_mode": verdict.event_type.compatibility_mode,
        **({} if verdict.error is None else {"error": verdict.error}),
        "validated_against_version": str(verdict.against.version),
    }

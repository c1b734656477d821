"""The timelines of an event type."""

from __future__ import annotations

from dataclasses import dataclass

from nakadi.catalog.timelines import Timelines
from nakadi.http.bodies import object_body
from nakadi.http.message import Request, Response, empty_response, json_response
from nakadi.http.routing import Route
from nakadi.http.views import timeline_view


def routes(timelines: Timelines) -> list[Route]:
    doors = _Timelines(timelines)
    path = "/event-types/{name}/timelines"
    return [
        Route(method="GET", template=path, handler=doors.list, operation="list_timelines"),
        Route(method="POST", template=path, handler=doors.create, operation="create_timeline"),
    ]


@dataclass(frozen=True, slots=True)
class _Timelines:
    timelines: Timelines

    def list(self, request: Request) -> Response:
        name = request.path_parameters["name"]
        return json_response([timeline_view(each, name) for each in self.timelines.of(name, request.subject)])

    def create(self, request: Request) -> Response:
        storage_id = object_body(request).text("storage_id")
        self.timelines.switch(request.path_parameters["name"], storage_id, request.subject)
        return empty_response(201)

"""Timelines of event types."""

from __future__ import annotations

from msgspec import Struct

from nakadi.event_types.adoption import TimelineToAdopt, TopicAdoption
from nakadi.event_types.timelines import Timelines
from nakadi.http.bodies import ObjectReader, object_body
from nakadi.http.message import Request, Response, empty_response, json_response
from nakadi.http.router import Route
from nakadi.http.views import (
    timeline_view,
)


def routes(timelines: Timelines, adoption: TopicAdoption) -> list[Route]:
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

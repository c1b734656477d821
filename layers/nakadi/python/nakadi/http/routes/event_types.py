"""Event types, their schemas, partitions and timelines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nakadi.access.permissions import Permissions
from nakadi.administration.features import Features
from nakadi.catalog.creation import Creation
from nakadi.catalog.deletion import Deletion
from nakadi.catalog.event_types import EventTypes
from nakadi.catalog.repartitioning import Repartitioning
from nakadi.catalog.update import Update
from nakadi.http.attributes import attribute_parameter
from nakadi.http.bodies import object_body
from nakadi.http.drafts import event_type_draft
from nakadi.http.message import Request, Response, empty_response, json_response
from nakadi.http.routing import Route
from nakadi.http.views import event_type_view, measured_view
from nakadi.model.administration import Feature
from nakadi.model.authorization import Attribute, Operation
from nakadi.model.event_type import CleanupPolicy, EventType
from nakadi.model.outcomes import Violation, Violations


@dataclass(frozen=True, slots=True)
class Warnings:
    """What the `Warning` header tells whoever creates or changes an event type."""

    data_access: str
    compaction: str

    def of(self, event_type: EventType) -> Mapping[str, str]:
        compacted = event_type.cleanup_policy is CleanupPolicy.COMPACT
        texts = (self.data_access, self.compaction if compacted else "")
        return {"warning": f'299 nakadi "{". ".join(text for text in texts if text)}"'}


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTypeDoors:
    event_types: EventTypes
    creation: Creation
    update: Update
    deletion: Deletion
    repartitioning: Repartitioning
    permissions: Permissions
    features: Features
    warnings: Warnings

    def routes(self) -> list[Route]:
        all_, one = "/event-types", "/event-types/{name}"
        count = f"{one}/partition-count"
        return [
            Route(method="GET", template=all_, handler=self.list, operation="list_event_types"),
            Route(method="POST", template=all_, handler=self.create, operation="create_event_type"),
            Route(method="GET", template=one, handler=self.get, operation="get_event_type"),
            Route(method="PUT", template=one, handler=self.put, operation="update_event_type"),
            Route(method="DELETE", template=one, handler=self.delete, operation="delete_event_type"),
            Route(method="PUT", template=count, handler=self.repartition, operation="set_partition_count"),
        ]

    def list(self, request: Request) -> Response:
        application, writer = request.parameter("owning_application"), attribute_parameter(request, "writer")
        return json_response(
            [
                event_type_view(each)
                for each in self.event_types.all()
                if application in (None, each.owning_application) and (writer is None or _names_writer(each, writer))
            ]
        )

    def get(self, request: Request) -> Response:
        event_type = self.event_types.get(request.path_parameters["name"])
        self.permissions.require(Operation.VIEW, event_type.resource, request.subject)
        measured = self.event_types.measured(event_type)
        extra = {} if measured is None else {"measured_statistic": measured_view(measured)}
        return json_response(event_type_view(event_type) | extra)

    def create(self, request: Request) -> Response:
        draft = event_type_draft(object_body(request))
        return self._stored(self.creation.create(draft, request.subject), 201)

    def put(self, request: Request) -> Response:
        draft = event_type_draft(object_body(request))
        return self._stored(self.update.update(request.path_parameters["name"], draft, request.subject), 200)

    def delete(self, request: Request) -> Response:
        self.deletion.delete(request.path_parameters["name"], request.subject)
        return empty_response()

    def repartition(self, request: Request) -> Response:
        count = object_body(request).integer("partition_count", bits=32)
        if count is None:
            raise Violations((Violation("partition_count", "must not be null"),))
        self.repartitioning.set_count(request.path_parameters["name"], count, request.subject)
        return empty_response(204)

    def _stored(self, event_type: EventType, status: int) -> Response:
        warning = self.warnings.of(event_type)
        if self.features.is_on(Feature.RETURN_BODY_ON_CREATE_UPDATE_EVENT_TYPE):
            return json_response(event_type_view(event_type), status, warning)
        return empty_response(status, warning)


def _names_writer(event_type: EventType, writer: Attribute) -> bool:
    """Literally: a wildcard writer is not everyone's name."""
    return event_type.authorization is not None and writer in event_type.authorization.writers

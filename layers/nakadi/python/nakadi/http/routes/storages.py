"""Storages: where event logs live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nakadi.administration.admins import Admins
from nakadi.administration.storages import Storages
from nakadi.catalog.event_types import EventTypes
from nakadi.http.bodies import Members, object_body
from nakadi.http.message import Request, Response, empty_response, json_response, json_text
from nakadi.http.routing import Route
from nakadi.http.views import storage_view
from nakadi.model.administration import AdminPermission
from nakadi.model.outcomes import Invalid
from nakadi.model.storage import Storage, StorageType

MOST_CONFIGURATION = 10_000
REFUSAL = "Admin privileges required to perform this operation"


def routes(storages: Storages, event_types: EventTypes, admins: Admins) -> list[Route]:
    doors = _Storages(storages, event_types, admins)
    one, default = "/storages/{id}", "/storages/default/{id}"
    return [
        Route(method="GET", template="/storages", handler=doors.list, operation="list_storages"),
        Route(method="POST", template="/storages", handler=doors.create, operation="create_storage", any_body=True),
        Route(method="GET", template=one, handler=doors.get, operation="get_storage"),
        Route(method="DELETE", template=one, handler=doors.delete, operation="delete_storage"),
        Route(method="PUT", template=default, handler=doors.set_default, operation="set_default_storage"),
    ]


@dataclass(frozen=True, slots=True)
class _Storages:
    storages: Storages
    event_types: EventTypes
    admins: Admins

    def list(self, request: Request) -> Response:
        self.admins.require(request.subject, AdminPermission.READ, REFUSAL)
        return json_response([storage_view(each) for each in self.storages.all()])

    def get(self, request: Request) -> Response:
        self.admins.require(request.subject, AdminPermission.READ, REFUSAL)
        return json_response(storage_view(self.storages.get(request.path_parameters["id"])))

    def create(self, request: Request) -> Response:
        body = object_body(request)
        self.admins.require(request.subject, AdminPermission.WRITE, REFUSAL)
        self.storages.add(_storage(body))
        return empty_response(201)

    def delete(self, request: Request) -> Response:
        self.admins.require(request.subject, AdminPermission.WRITE, REFUSAL)
        self.storages.remove(request.path_parameters["id"], self.event_types.live_in)
        return empty_response(204)

    def set_default(self, request: Request) -> Response:
        self.admins.require(request.subject, AdminPermission.WRITE, REFUSAL)
        return json_response(storage_view(self.storages.choose(request.path_parameters["id"])))


def _storage(body: Members) -> Storage:
    storage_id = _required(body, "id", body.text("id"))
    type_name = _required(body, "storage_type", body.text("storage_type"))
    if type_name.lower() not in set(StorageType):
        raise Invalid(f"Type '{type_name}' is not a valid storage type")
    storage_type = StorageType(type_name.lower())
    return Storage(
        id=storage_id,
        type=storage_type,
        configuration=_configuration(body, f"{storage_type}_configuration"),
        default=bool(body.flag("default")),
    )


def _configuration(body: Members, name: str) -> Mapping[str, Any]:
    _required(body, name, body.raw(name))
    if not isinstance(body.raw(name), dict):
        raise Invalid(f'JSONObject["{name}"] is not a JSONObject.')
    if len(json_text(body.raw(name))) > MOST_CONFIGURATION:
        raise Invalid(f'JSONObject["{name}"] has more than {MOST_CONFIGURATION} bytes.')
    return dict(body.raw(name))


def _required(body: Members, name: str, value: Any) -> Any:
    if name not in body or value is None:
        raise Invalid(f'JSONObject["{name}"] not found.')
    return value

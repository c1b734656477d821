"""Storages, and the choice of the storage for new event types."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from nakadi.auth.admins import Admins
from nakadi.event_types.repository import EventTypes
from nakadi.event_types.storages import Storages
from nakadi.http.bodies import ObjectReader, object_body
from nakadi.http.message import Request, Response, empty_response, json_bytes, json_response
from nakadi.http.router import Route
from nakadi.http.views import storage_view
from nakadi.model.authorization import Operation
from nakadi.model.event_type import Storage, StorageType
from nakadi.model.outcomes import Invalid

MAX_CONFIGURATION_BYTES = 10_000
ADMIN_REQUIRED_MESSAGE = "Admin privileges required to perform this operation"


def routes(storages: Storages, event_types: EventTypes, admins: Admins) -> list[Route]:
    handlers = _StorageHandlers(storages, event_types, admins)
    one, default = "/storages/{id}", "/storages/default/{id}"
    return [
        Route(method="GET", template="/storages", handler=handlers.list, operation="list_storages"),
        Route(
            method="POST",
            template="/storages",
            handler=handlers.create,
            operation="create_storage",
            changes_cached_documents=True,
            accepts_any_content_type=True,
        ),
        Route(method="GET", template=one, handler=handlers.get, operation="get_storage"),
        Route(method="DELETE", template=one, handler=handlers.delete, operation="delete_storage"),
        Route(
            method="PUT",
            template=default,
            handler=handlers.set_default,
            operation="set_default_storage",
            changes_cached_documents=True,
        ),
    ]


class _StorageHandlers(Struct, frozen=True):
    storages: Storages
    event_types: EventTypes
    admins: Admins

    def list(self, request: Request) -> Response:
        self.admins.require(request.subject, Operation.READ, ADMIN_REQUIRED_MESSAGE)
        return json_response([storage_view(each) for each in self.storages.all()])

    def get(self, request: Request) -> Response:
        self.admins.require(request.subject, Operation.READ, ADMIN_REQUIRED_MESSAGE)
        return json_response(storage_view(self.storages.get(request.path_parameters["id"])))

    def create(self, request: Request) -> Response:
        body = object_body(request)
        self.admins.require(request.subject, Operation.WRITE, ADMIN_REQUIRED_MESSAGE)
        self.storages.add(_read_storage(body))
        return empty_response(201)

    def delete(self, request: Request) -> Response:
        self.admins.require(request.subject, Operation.WRITE, ADMIN_REQUIRED_MESSAGE)
        self.storages.remove(request.path_parameters["id"], self.event_types.uses_storage)
        return empty_response(204)

    def set_default(self, request: Request) -> Response:
        self.admins.require(request.subject, Operation.WRITE, ADMIN_REQUIRED_MESSAGE)
        return json_response(storage_view(self.storages.choose(request.path_parameters["id"])))


def _read_storage(body: ObjectReader) -> Storage:
    storage_id = _require_value(body, "id", body.text("id"))
    type_name = _require_value(body, "storage_type", body.text("storage_type"))
    if type_name.lower() not in set(StorageType):
        raise Invalid(f"Type '{type_name}' is not a valid storage type")
    storage_type = StorageType(type_name.lower())
    return Storage(
        id=storage_id,
        type=storage_type,
        configuration=_read_configuration(body, f"{storage_type}_configuration"),
        default=bool(body.boolean("default")),
    )


def _read_configuration(body: ObjectReader, name: str) -> Mapping[str, Any]:
    _require_value(body, name, body.raw_value(name))
    if not isinstance(body.raw_value(name), dict):
        raise Invalid(f'JSONObject["{name}"] is not a JSONObject.')
    text = json_bytes(body.raw_value(name))
    if len(text) > MAX_CONFIGURATION_BYTES:
        raise Invalid(f'JSONObject["{name}"] has more than {MAX_CONFIGURATION_BYTES} bytes.')
    configuration: Mapping[str, Any] = json.loads(text)  # without spellings of numbers, which cannot be stored
    return configuration


def _require_value(body: ObjectReader, name: str, value: Any) -> Any:
    if name not in body or value is None:
        raise Invalid(f'JSONObject["{name}"] not found.')
    return value

"""The settings of administrators: the broker's administrators, the blacklist, features, and storages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from nakadi.auth.permissions import Admins, Blacklist, Features
from nakadi.event_types.repository import EventTypes
from nakadi.event_types.storages import Storages
from nakadi.http.application import Route
from nakadi.http.bodies import (
    ObjectReader,
    authorization_draft,
    object_body,
    require_admins,
    unknown_enum_value_error,
)
from nakadi.http.message import Request, Response, empty_response, json_bytes, json_response
from nakadi.http.views import admins_view, blacklist_view, features_view, storage_view
from nakadi.model.authorization import BlockedKind, Feature, Operation
from nakadi.model.event_type import Storage, StorageType
from nakadi.model.outcomes import MAX_TEXT_CHARACTERS, Invalid, MalformedFields
from nakadi.openapi.checks import openapi_violations


def routes(
    admins: Admins, blacklist: Blacklist, features: Features, on_feature_switched_on: Callable[[], None]
) -> list[Route]:
    """`on_feature_switched_on` is called after that: some features have event types, which are to be there then."""
    handlers = _SettingsHandlers(admins, blacklist, features, on_feature_switched_on)
    blacklist_entry = "/settings/blacklist/{blacklist_type}/{name}"
    return [
        Route(method="GET", template="/settings/admins", handler=handlers.get_admins, operation="get_admins"),
        Route(
            method="POST",
            template="/settings/admins",
            handler=handlers.set_admins,
            operation="set_admins",
            changes_cached_documents=True,
        ),
        Route(method="GET", template="/settings/blacklist", handler=handlers.get_blacklist, operation="get_blacklist"),
        Route(
            method="PUT",
            template=blacklist_entry,
            handler=handlers.add_to_blacklist,
            operation="block",
            changes_cached_documents=True,
        ),
        Route(
            method="DELETE",
            template=blacklist_entry,
            handler=handlers.remove_from_blacklist,
            operation="unblock",
            changes_cached_documents=True,
        ),
        Route(method="GET", template="/settings/features", handler=handlers.list_features, operation="list_features"),
        Route(
            method="POST",
            template="/settings/features",
            handler=handlers.switch_feature,
            operation="set_feature",
            changes_cached_documents=True,
        ),
    ]


class _SettingsHandlers(Struct, frozen=True):
    admins: Admins
    blacklist: Blacklist
    features: Features
    on_feature_switched_on: Callable[[], None]

    def get_admins(self, request: Request) -> Response:
        self.admins.require(request.subject, Operation.READ)
        return json_response(admins_view(self.admins.authorization()))

    def set_admins(self, request: Request) -> Response:
        draft = authorization_draft(object_body(request))
        self.admins.require(request.subject, Operation.ADMIN)
        self.admins.replace(require_admins(draft))
        return empty_response()

    def get_blacklist(self, request: Request) -> Response:
        self.admins.require(request.subject, Operation.READ)
        return json_response(blacklist_view(self.blacklist.entries()))

    def add_to_blacklist(self, request: Request) -> Response:
        kind = _requested_blocked_kind(request)
        self.admins.require(request.subject, Operation.WRITE)
        name = request.path_parameters["name"]
        if len(name) > MAX_TEXT_CHARACTERS:
            raise Invalid(f"A name on the blacklist has at most {MAX_TEXT_CHARACTERS} characters")
        self.blacklist.block(kind, name)
        return empty_response(204)

    def remove_from_blacklist(self, request: Request) -> Response:
        kind = _requested_blocked_kind(request)
        self.admins.require(request.subject, Operation.WRITE)
        self.blacklist.unblock(kind, request.path_parameters["name"])
        return empty_response(204)

    def list_features(self, request: Request) -> Response:
        self.admins.require(request.subject, Operation.READ)
        return json_response(features_view(self.features.all()))

    def switch_feature(self, request: Request) -> Response:
        body = object_body(request)
        feature, enabled = body.enum_value("feature", Feature), body.boolean("enabled")
        if feature is None:
            raise MalformedFields(openapi_violations("FeatureSwitch", {"feature": None}))
        self.admins.require(request.subject, Operation.WRITE)
        self.features.switch(feature, on=bool(enabled))
        if enabled:
            self.on_feature_switched_on()
        return empty_response(204)


def _requested_blocked_kind(request: Request) -> BlockedKind:
    """Exactly as it is written, upper case and all."""
    name = request.path_parameters["blacklist_type"]
    if name not in set(BlockedKind):
        raise unknown_enum_value_error(name, BlockedKind)
    return BlockedKind(name)


# Storages -------------------------------------------------------------------------------------------------------------


MAX_CONFIGURATION_BYTES = 10_000
ADMIN_REQUIRED_MESSAGE = "Admin privileges required to perform this operation"


def storage_routes(storages: Storages, event_types: EventTypes, admins: Admins) -> list[Route]:
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
    if len(json_bytes(body.raw_value(name))) > MAX_CONFIGURATION_BYTES:
        raise Invalid(f'JSONObject["{name}"] has more than {MAX_CONFIGURATION_BYTES} bytes.')
    return dict(body.raw_value(name))


def _require_value(body: ObjectReader, name: str, value: Any) -> Any:
    if name not in body or value is None:
        raise Invalid(f'JSONObject["{name}"] not found.')
    return value

"""The settings of administrators: the broker's administrators, the blacklist, and features."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from nakadi.auth.admins import Admins
from nakadi.auth.blacklist import Blacklist
from nakadi.auth.features import Features
from nakadi.http.bodies import object_body, unknown_enum_value_error
from nakadi.http.drafts import authorization_draft, require_admins
from nakadi.http.message import Request, Response, empty_response, json_response
from nakadi.http.router import Route
from nakadi.http.views import admins_view, blacklist_view, features_view
from nakadi.model.authorization import BlockedKind, Feature, Operation
from nakadi.model.outcomes import MAX_TEXT_CHARACTERS, Invalid, MalformedFields
from nakadi.openapi.checks import openapi_violations


def routes(
    admins: Admins, blacklist: Blacklist, features: Features, on_feature_switched_on: Callable[[], None]
) -> list[Route]:
    """`on_feature_switched_on` is called after a feature is switched on, because some features have event types that
    must then exist.
    """
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
    """The kind, in exactly this spelling and letter case."""
    name = request.path_parameters["blacklist_type"]
    if name not in set(BlockedKind):
        raise unknown_enum_value_error(name, BlockedKind)
    return BlockedKind(name)

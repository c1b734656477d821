"""Settings: administrators, the blacklist, features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nakadi.administration.admins import Admins
from nakadi.administration.blacklist import Blacklist
from nakadi.administration.features import Features
from nakadi.http.authorizations import admin_lists, authorization_draft
from nakadi.http.bodies import illegal_word, object_body
from nakadi.http.message import Request, Response, empty_response, json_response
from nakadi.http.routing import Route
from nakadi.http.views import admins_view, blacklist_view, features_view
from nakadi.model.administration import AdminPermission, BlockedKind, Feature
from nakadi.model.outcomes import Incomplete, Invalid, Violation
from nakadi.model.sizes import MOST_CHARACTERS


def routes(admins: Admins, blacklist: Blacklist, features: Features, switched_on: Callable[[], None]) -> list[Route]:
    """`switched_on` is called when a feature was: some have event types, which are to be there then."""
    doors = _Settings(admins, blacklist, features, switched_on)
    blacklist_entry = "/settings/blacklist/{blacklist_type}/{name}"
    return [
        Route(method="GET", template="/settings/admins", handler=doors.get_admins, operation="get_admins"),
        Route(method="POST", template="/settings/admins", handler=doors.set_admins, operation="set_admins"),
        Route(method="GET", template="/settings/blacklist", handler=doors.get_blacklist, operation="get_blacklist"),
        Route(method="PUT", template=blacklist_entry, handler=doors.block, operation="block"),
        Route(method="DELETE", template=blacklist_entry, handler=doors.unblock, operation="unblock"),
        Route(method="GET", template="/settings/features", handler=doors.list_features, operation="list_features"),
        Route(method="POST", template="/settings/features", handler=doors.set_feature, operation="set_feature"),
    ]


@dataclass(frozen=True, slots=True)
class _Settings:
    admins: Admins
    blacklist: Blacklist
    features: Features
    switched_on: Callable[[], None]

    def get_admins(self, request: Request) -> Response:
        self.admins.require(request.subject, AdminPermission.READ)
        return json_response(admins_view(self.admins.lists()))

    def set_admins(self, request: Request) -> Response:
        draft = authorization_draft(object_body(request))
        self.admins.require(request.subject, AdminPermission.ADMIN)
        self.admins.replace(admin_lists(draft))
        return empty_response()

    def get_blacklist(self, request: Request) -> Response:
        self.admins.require(request.subject, AdminPermission.READ)
        return json_response(blacklist_view(self.blacklist.entries()))

    def block(self, request: Request) -> Response:
        kind = _blocked_kind(request)
        self.admins.require(request.subject, AdminPermission.WRITE)
        name = request.path_parameters["name"]
        if len(name) > MOST_CHARACTERS:
            raise Invalid(f"A name on the blacklist has at most {MOST_CHARACTERS} characters")
        self.blacklist.block(kind, name)
        return empty_response(204)

    def unblock(self, request: Request) -> Response:
        kind = _blocked_kind(request)
        self.admins.require(request.subject, AdminPermission.WRITE)
        self.blacklist.unblock(kind, request.path_parameters["name"])
        return empty_response(204)

    def list_features(self, request: Request) -> Response:
        self.admins.require(request.subject, AdminPermission.READ)
        return json_response(features_view(self.features.all()))

    def set_feature(self, request: Request) -> Response:
        body = object_body(request)
        feature, enabled = body.word("feature", Feature), body.flag("enabled")
        if feature is None:
            raise Incomplete((Violation("feature", "must not be null"),))
        self.admins.require(request.subject, AdminPermission.WRITE)
        self.features.switch(feature, on=bool(enabled))
        if enabled:
            self.switched_on()
        return empty_response(204)


def _blocked_kind(request: Request) -> BlockedKind:
    """Exactly as it is written, upper case and all."""
    name = request.path_parameters["blacklist_type"]
    if name not in set(BlockedKind):
        raise illegal_word(name, BlockedKind)
    return BlockedKind(name)

"""Which scope a request needs, and who is asking."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from nakadi.http.message import Request
from nakadi.model.authorization import UNAUTHENTICATED, Subject
from nakadi.model.outcomes import NotAuthenticated, NotPermitted

if TYPE_CHECKING:
    from nakadi.auth.tokens import Tokens

# What anyone may look at: whether the broker is alive and at work, and how to speak to it.
PUBLIC = re.compile(r"/(health(/.*)?|ready|openapi\.json|docs)/?")

READING = r"/event-types/[^/]+/(partitions|events|cursor-distances|shifted-cursors|cursors-lag)(/.*)?"


class Scopes(Struct, frozen=True, kw_only=True):
    uid: str
    config_write: str
    event_type_write: str
    event_stream_read: str
    event_stream_write: str


class ScopeTable:
    """Method and path -> scope, first match wins."""

    def __init__(self, scopes: Scopes) -> None:
        read, write = scopes.event_stream_read, scopes.event_stream_write
        self._otherwise = scopes.uid
        self._rows = [
            (re.compile(method), re.compile(path), scope)
            for method, path, scope in (
                ("GET|HEAD", READING, read),
                ("GET|HEAD|POST", r"/subscriptions(/.*)?", read),
                ("DELETE", r"/subscriptions/[^/]+(/.*)?", read),
                ("POST", r"/event-types/[^/]+/(shifted-cursors|cursors-lag|cursor-distances)", read),
                ("POST", r"/event-types/[^/]+/events(/.*)?", write),
                ("DELETE", r"/event-types/[^/]+(/.*)?", scopes.config_write),
                ("POST|PUT", r"/event-types(/.*)?", scopes.event_type_write),
            )
        ]

    def needed(self, method: str, path: str) -> str:
        path = path.rstrip("/") or "/"
        for methods, paths, scope in self._rows:
            if methods.fullmatch(method) and paths.fullmatch(path):
                return scope
        return self._otherwise


def no_authentication(_: Request) -> Subject:
    """Authentication off: a token may be sent, and is not looked at."""
    return UNAUTHENTICATED


def token_authentication(tokens: Tokens, table: ScopeTable, realms: tuple[str, ...]) -> Callable[[Request], Subject]:
    """Authentication by bearer token, with the scope that the operation needs and one of the realms, if any are set."""
    return _authentication(lambda request: tokens.subject(request.headers.get("authorization")), table, realms)


def gateway_authentication(table: ScopeTable, realms: tuple[str, ...]) -> Callable[[Request], Subject]:
    """Behind a gateway whose authorizer has looked at the token: the subject is the one that it found."""

    def subject_of(request: Request) -> Subject:
        if request.subject == UNAUTHENTICATED:
            raise NotAuthenticated("Full authentication is required to access this resource")
        return request.subject

    return _authentication(subject_of, table, realms)


def _authentication(
    subject_of: Callable[[Request], Subject], table: ScopeTable, realms: tuple[str, ...]
) -> Callable[[Request], Subject]:
    def authenticate(request: Request) -> Subject:
        if PUBLIC.fullmatch(request.path):
            return UNAUTHENTICATED
        subject = subject_of(request)
        if realms and subject.realm not in realms:
            raise NotPermitted("Insufficient realms for this resource")
        scope = table.needed(request.method, request.path)
        if scope and scope not in subject.scopes:
            raise NotPermitted("Insufficient scope for this resource")
        return subject

    return authenticate

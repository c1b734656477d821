"""Authenticates callers, and finds the scope that a request needs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from nakadi.app.settings import Settings
from nakadi.http.message import Request
from nakadi.model.authorization import UNAUTHENTICATED, Subject
from nakadi.model.outcomes import BadSetting, NotAuthenticated, NotPermitted

if TYPE_CHECKING:
    from nakadi.auth.tokens import TokenVerifier
    from nakadi.http.application import Authenticate
    from nakadi.ports.clock import Clock

# Paths that anyone may read: whether the broker is alive and ready, and how to use it.
PUBLIC_PATH_PATTERN = re.compile(r"/(health(/.*)?|ready|openapi\.json|docs)/?")

READING_PATH_PATTERN = r"/event-types/[^/]+/(partitions|events|cursor-distances|shifted-cursors|cursors-lag)(/.*)?"


class ScopeTable:
    """Maps methods and paths to scopes. The first match wins."""

    def __init__(self, settings: Settings) -> None:
        read, write = settings.scope_event_stream_read, settings.scope_event_stream_write
        change = settings.scope_event_type_write
        self._otherwise = (settings.scope_uid,)
        self._by_method: dict[str, list[tuple[re.Pattern[str], tuple[str, ...]]]] = {}
        # The most frequent requests come first: each of them is matched against one or two patterns.
        for methods, path, *scopes in (
            ("POST", r"/event-types/[^/]+/events(/.*)?", write),
            ("GET HEAD POST", r"/subscriptions(/.*)?", read),
            ("GET HEAD", READING_PATH_PATTERN, read),
            ("DELETE", r"/subscriptions/[^/]+(/.*)?", read),
            ("POST", r"/event-types/[^/]+/(shifted-cursors|cursors-lag|cursor-distances)", read),
            # Rehearsals show events to those who change schemas, so they need two scopes.
            ("GET HEAD POST DELETE", r"/event-types/[^/]+/schemas/rehearsals(/.*)?", change, read),
            # A query lists event types and reads their events, so it needs two scopes.
            ("POST", r"/queries", settings.scope_uid, read),
            ("DELETE", r"/event-types/[^/]+(/.*)?", settings.scope_config_write),
            ("POST PUT", r"/event-types(/.*)?", change),
        ):
            for method in methods.split():
                self._by_method.setdefault(method, []).append((re.compile(path), tuple(scopes)))

    def needed_scopes(self, method: str, path: str) -> tuple[str, ...]:
        path = path.rstrip("/") or "/"
        for pattern, scopes in self._by_method.get(method, ()):
            if pattern.fullmatch(path):
                return scopes
        return self._otherwise


def make_token_authentication(
    tokens: TokenVerifier, table: ScopeTable, realms: tuple[str, ...]
) -> Callable[[Request], Subject]:
    """Authenticate by bearer token, with the scope that the operation needs and, if the settings name realms, one of
    these.
    """
    return _authentication_by(
        lambda request: tokens.verified_subject(request.headers.get("authorization")), table, realms
    )


def make_gateway_authentication(table: ScopeTable, realms: tuple[str, ...]) -> Callable[[Request], Subject]:
    """Authenticate behind a gateway whose authorizer has verified the token: use the subject that the authorizer
    returned.
    """

    def subject_of(request: Request) -> Subject:
        if request.subject == UNAUTHENTICATED:
            raise NotAuthenticated("Full authentication is required to access this resource")
        return request.subject

    return _authentication_by(subject_of, table, realms)


def _authentication_by(
    subject_of: Callable[[Request], Subject], table: ScopeTable, realms: tuple[str, ...]
) -> Callable[[Request], Subject]:
    def authenticate(request: Request) -> Subject:
        if PUBLIC_PATH_PATTERN.fullmatch(request.path):
            return UNAUTHENTICATED
        subject = subject_of(request)
        if realms and subject.realm not in realms:
            raise NotPermitted("Insufficient realms for this resource")
        for scope in table.needed_scopes(request.method, request.path):
            if scope and scope not in subject.scopes:
                raise NotPermitted("Insufficient scope for this resource")
        return subject

    return authenticate


def make_authentication(settings: Settings, clock: Clock) -> Authenticate | None:
    match settings.auth:
        case "off":
            return None
        case "jwt":
            return make_token_authentication(
                make_token_verifier(settings, clock), ScopeTable(settings), settings.auth_realms
            )
        case "gateway":
            return make_gateway_authentication(ScopeTable(settings), settings.auth_realms)
        case other:
            raise BadSetting(f"NAKADI_AUTH is 'off', 'jwt' or 'gateway', not {other!r}")


def make_token_verifier(settings: Settings, clock: Clock) -> TokenVerifier:
    """The verifier of tokens for these settings."""
    from nakadi.auth.key_set import KeySet, make_key_fetcher
    from nakadi.auth.tokens import TokenRules, TokenVerifier

    if not settings.auth_jwks:
        raise BadSetting("NAKADI_AUTH=jwt needs NAKADI_AUTH_JWKS: the file or URL of the key set")
    rules = TokenRules(
        issuer=settings.auth_issuer,
        audience=settings.auth_audience,
        algorithms=settings.auth_algorithms,
        leeway_seconds=settings.auth_leeway_seconds,
        subject_claim=settings.auth_subject_claim,
        attribute_claims=settings.auth_attributes,
        service_realms=settings.auth_service_realms,
    )
    return TokenVerifier(KeySet(make_key_fetcher(settings.auth_jwks), clock), rules, clock)

"""Who is asking: the ways to find out, chosen by settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nakadi.app.settings import Settings
from nakadi.http.application import (
    OAuthScopes,
    ScopeTable,
    gateway_authentication,
    no_authentication,
    token_authentication,
)
from nakadi.model.outcomes import BadSetting

if TYPE_CHECKING:
    from nakadi.auth.tokens import Tokens
    from nakadi.http.application import Authenticate
    from nakadi.ports.clock import Clock


def authentication(settings: Settings, clock: Clock) -> Authenticate:
    match settings.auth:
        case "off":
            return no_authentication
        case "jwt":
            return token_authentication(tokens(settings, clock), _scope_table(settings), settings.auth_realms)
        case "gateway":
            return gateway_authentication(_scope_table(settings), settings.auth_realms)
        case other:
            raise BadSetting(f"NAKADI_AUTH is 'off', 'jwt' or 'gateway', not {other!r}")


def tokens(settings: Settings, clock: Clock) -> Tokens:
    """What tells good tokens from others, by these settings."""
    from nakadi.auth.tokens import KeySet, TokenRules, Tokens, make_key_fetcher

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
    return Tokens(KeySet(make_key_fetcher(settings.auth_jwks), clock), rules, clock)


def _scope_table(settings: Settings) -> ScopeTable:
    scopes = OAuthScopes(
        uid=settings.scope_uid,
        config_write=settings.scope_config_write,
        event_type_write=settings.scope_event_type_write,
        event_stream_read=settings.scope_event_stream_read,
        event_stream_write=settings.scope_event_stream_write,
    )
    return ScopeTable(scopes)

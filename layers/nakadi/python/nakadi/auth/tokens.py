"""OAuth2 bearer tokens: JWTs, checked here with the keys of a JWKS, and issued elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

import jwt
from msgspec import Struct

from nakadi.auth.key_set import KeySet
from nakadi.model.authorization import Attribute, Subject
from nakadi.model.outcomes import MAX_TEXT_CHARACTERS, NotAuthenticated
from nakadi.ports.clock import Clock

NOT_AUTHENTICATED_MESSAGE = "Full authentication is required to access this resource"

# A genuine token has a few kilobytes at most, so a longer text is refused without a check of its signature.
MAX_TOKEN_LENGTH = 16_384

# The number of verified tokens that are remembered, so that not every request verifies its token again. Each takes
# about two kilobytes.
MAX_CACHED_TOKENS = 1000

# Thirty million years in seconds. Larger numbers in a claim are not times, and neither is NaN.
MAX_CLAIM_TIME_SECONDS = 10.0**15

USER, SERVICE = "user", "service"
ANY_REALM = "*"


class TokenRules(Struct, frozen=True, kw_only=True):
    """The conditions that a token has to meet. The accepted algorithms come from the settings, never from the token."""

    issuer: str
    audience: str
    algorithms: tuple[str, ...]
    leeway_seconds: int
    subject_claim: str
    attribute_claims: tuple[tuple[str, str], ...]
    service_realms: tuple[str, ...] = ()

    def attribute_claims_of_realm(self, realm: str) -> Iterable[tuple[str, str]]:
        """Pairs of an attribute's data type and the claim that it is read from, for tokens of a realm.

        A claim never makes a subject both a user and a service: otherwise a person could choose a service's name as a
        user name, and get the permissions of the service.
        """
        is_service = realm in self.service_realms or ANY_REALM in self.service_realms
        other = USER if is_service else SERVICE
        shared = {claim for kind, claim in self.attribute_claims if kind == USER} & {
            claim for kind, claim in self.attribute_claims if kind == SERVICE
        }
        return [(kind, claim) for kind, claim in self.attribute_claims if kind != other or claim not in shared]


class _VerifiedToken(Struct, frozen=True):
    """The claims of a token, and the key that has verified its signature."""

    key_id: str | None
    key: jwt.PyJWK
    time_claims: Mapping[str, Any]
    subject: Subject


class TokenVerifier:
    """Verifies tokens. It remembers verified tokens by their hashes, because checking a signature takes as long as
    publishing.

    A remembered token stays verified as long as its key is in the key set; each call checks the token's times.
    """

    def __init__(self, keys: KeySet, rules: TokenRules, clock: Clock) -> None:
        self._keys = keys
        self._rules = rules
        self._clock = clock
        self._lock = threading.Lock()
        self._verified: dict[bytes, _VerifiedToken] = {}

    def verified_subject(self, authorization_header: str | None) -> Subject:
        """The subject of the token in an `Authorization` header. Raises `NotAuthenticated`."""
        token = _bearer_token(authorization_header)
        name = sha256(token.encode(errors="surrogatepass")).digest()
        known = self._verified.get(name)
        if known is not None and self._keys.find_key(known.key_id) is known.key:
            self._check_time_claims(known.time_claims)
            return known.subject
        verified = self._verify(token)
        with self._lock:
            if len(self._verified) >= MAX_CACHED_TOKENS:
                del self._verified[next(iter(self._verified))]
            self._verified[name] = verified
        return verified.subject

    def _verify(self, token: str) -> _VerifiedToken:
        key_id, key, claims = self._signed_claims(token)
        self._check_time_claims(claims)
        name = claims.get(self._rules.subject_claim)
        if not isinstance(name, str) or not name:
            raise NotAuthenticated("The token names no subject")
        if len(name) > MAX_TEXT_CHARACTERS:
            # The length is limited because the name is stored with every event that the subject publishes.
            raise NotAuthenticated(f"The token's subject has more than {MAX_TEXT_CHARACTERS} characters")
        subject = Subject(
            name=name,
            attributes=frozenset(self._attributes(claims)),
            scopes=frozenset(_texts_of_claim(claims.get("scope", claims.get("scp")))),
            realm=_realm_of_claims(claims),
        )
        times = {each: claims[each] for each in ("exp", "nbf", "iat") if each in claims}
        return _VerifiedToken(key_id, key, times, subject)

    def _signed_claims(self, token: str) -> tuple[str | None, jwt.PyJWK, Mapping[str, Any]]:
        """The id by which a token names its key, the key that verifies its signature, and its claims."""
        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in self._rules.algorithms:
                raise NotAuthenticated("The token is signed with an algorithm that is not accepted")
            key_id = header.get("kid")
            key = self._keys.find_key(key_id)
            if key is None:
                raise NotAuthenticated("The token is signed with an unknown key")
            try:
                return key_id, key, self._decode_claims(token, key)
            except jwt.InvalidSignatureError:
                successor = self._keys.find_replacement_key(key_id, key)
                if successor is None:
                    raise
                return key_id, successor, self._decode_claims(token, successor)
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            raise NotAuthenticated(f"The token is not valid: {error}") from error

    def _decode_claims(self, token: str, key: jwt.PyJWK) -> Mapping[str, Any]:
        rules = self._rules
        # `_check_time_claims` checks the times, with a clock that tests can move.
        options: Any = {"require": ["exp"], "verify_exp": False, "verify_nbf": False, "verify_iat": False}
        options["verify_aud"] = bool(rules.audience)
        return jwt.decode(
            token,
            key,
            algorithms=list(rules.algorithms),
            audience=rules.audience or None,
            issuer=rules.issuer or None,
            options=options,
        )

    def _check_time_claims(self, claims: Mapping[str, Any]) -> None:
        now, leeway = self._clock.now().timestamp(), self._rules.leeway_seconds
        if _seconds_claim(claims, "exp", now) <= now - leeway:
            raise NotAuthenticated("The token has expired")
        if _seconds_claim(claims, "nbf", now) > now + leeway or _seconds_claim(claims, "iat", now) > now + leeway:
            raise NotAuthenticated("The token is not valid yet")

    def _attributes(self, claims: Mapping[str, Any]) -> Iterable[Attribute]:
        """The subject's attributes; a claim with a list gives an attribute for each value."""
        for data_type, claim in self._rules.attribute_claims_of_realm(_realm_of_claims(claims)):
            for value in _texts_of_claim(claims.get(claim), split_at_blanks=False):
                yield Attribute(data_type, value)


def _realm_of_claims(claims: Mapping[str, Any]) -> str:
    return str(claims.get("realm", ""))


def _bearer_token(header: str | None) -> str:
    scheme, _, token = (header or "").strip().partition(" ")
    if not header:
        raise NotAuthenticated(NOT_AUTHENTICATED_MESSAGE)
    if scheme.lower() != "bearer" or not token or len(token) > MAX_TOKEN_LENGTH:
        raise NotAuthenticated("The Authorization header holds no bearer token")
    return token.strip()


def _seconds_claim(claims: Mapping[str, Any], name: str, default: float) -> float:
    value = claims.get(name, default)
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not -MAX_CLAIM_TIME_SECONDS < value < MAX_CLAIM_TIME_SECONDS
    ):
        raise NotAuthenticated(f"The token's {name} is not a time")
    return float(value)


def _texts_of_claim(value: Any, *, split_at_blanks: bool = True) -> list[str]:
    """The texts of a claim, which is a list of texts or one text; one text is split at spaces if `split_at_blanks`,
    otherwise it is taken as a whole.
    """
    if isinstance(value, str):
        return value.split() if split_at_blanks else [value]
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []

"""A token issuer for tests: keys, a key set in a file, and tokens as an OAuth2 server would sign them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

ISSUER = "https://issuer.example"
AUDIENCE = "nakadi"
EVERY_SCOPE = "uid nakadi.config.write nakadi.event_type.write nakadi.event_stream.read nakadi.event_stream.write"


class Issuer:
    """Signs with its newest key; `rotate` creates a new key, and publishes it with the others."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "jwks.json"
        self._keys: list[EllipticCurvePrivateKey] = []
        self.rotate()

    def rotate(self) -> None:
        self._keys.append(ec.generate_private_key(ec.SECP256R1()))
        self.path.write_text(json.dumps({"keys": [_public(key, str(n)) for n, key in enumerate(self._keys)]}))

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "auth": "jwt",
            "auth_jwks": str(self.path),
            "auth_issuer": ISSUER,
            "auth_audience": AUDIENCE,
            "default_admin": (("user", "the-admin"),),
        }

    def token(self, subject: str = "ann", *, scope: str = EVERY_SCOPE, **claims: Any) -> str:
        return self.sign({"sub": subject, "scope": scope, **claims})

    def sign(self, claims: dict[str, Any], **headers: Any) -> str:
        """Sign a token that is valid for an hour, unless `claims` or `headers` say otherwise; None removes a claim."""
        now = datetime.now(UTC)
        usual = {"iss": ISSUER, "aud": AUDIENCE, "iat": now, "exp": now + timedelta(hours=1)}
        payload = {name: value for name, value in {**usual, **claims}.items() if value is not None}
        return jwt.encode(payload, self._keys[-1], "ES256", {"kid": str(len(self._keys) - 1), **headers})

    def bearer(self, subject: str = "ann", **claims: Any) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token(subject, **claims)}"}


def _public(key: EllipticCurvePrivateKey, key_id: str) -> dict[str, Any]:
    return {**jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": key_id, "alg": "ES256"}

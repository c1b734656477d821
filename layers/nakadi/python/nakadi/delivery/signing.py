"""Signatures by the Standard Webhooks scheme (standardwebhooks.com), and the secrets for them."""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
from collections.abc import Iterable, Mapping
from datetime import datetime

from nakadi.model.sink import SigningSecret

SECRET_PREFIX = "whsec_"  # noqa: S105  # what secrets begin with
NEW_SECRET_BYTES = 32
SECRET_BYTES = range(24, 65)


def generate_secret() -> str:
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(NEW_SECRET_BYTES)).decode()


def is_secret(text: str) -> bool:
    """Whether a text is a secret of the scheme: `whsec_` and 24 to 64 bytes in Base64."""
    try:
        return text.startswith(SECRET_PREFIX) and len(_decode_secret(text)) in SECRET_BYTES
    except (binascii.Error, ValueError):
        return False


def signature_headers(
    message_id: str, body: bytes, signing: Iterable[SigningSecret], now: datetime
) -> Mapping[str, str]:
    """The headers that prove who sent a body: one signature for each valid secret, the newest first."""
    timestamp = str(int(now.timestamp()))
    signed = b"%b.%b.%b" % (message_id.encode(), timestamp.encode(), body)
    signatures = (_signature(each.value, signed) for each in signing if each.is_valid(now))
    return {"webhook-id": message_id, "webhook-timestamp": timestamp, "webhook-signature": " ".join(signatures)}


def _signature(secret: str, signed: bytes) -> str:
    return f"v1,{base64.b64encode(hmac.digest(_decode_secret(secret), signed, 'sha256')).decode()}"


def _decode_secret(secret: str) -> bytes:
    return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)

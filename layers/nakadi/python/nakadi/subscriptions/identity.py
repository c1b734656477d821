"""What tells subscriptions apart."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

import orjson

_MILLISECONDS = (1 << 48) - 1
_VERSION_8 = 8 << 76
_VARIANT = 2 << 62


def new_id(created_at: datetime) -> str:
    """A UUID that nobody can guess, and that is less than those made before: in the order of their ids, the newest
    subscription is the first."""
    milliseconds = _MILLISECONDS - int(created_at.timestamp() * 1000)
    high, low = secrets.randbits(12) << 64, secrets.randbits(62)
    return str(UUID(int=(milliseconds << 80) | _VERSION_8 | high | _VARIANT | low))


def key_of(owning_application: str, event_types: Iterable[str], consumer_group: str) -> str:
    """The same for subscriptions that may not both exist."""
    identity = orjson.dumps([owning_application, sorted(set(event_types)), consumer_group])
    return hashlib.sha256(identity).hexdigest()

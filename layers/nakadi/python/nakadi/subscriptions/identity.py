"""What tells subscriptions apart."""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

import orjson

_RANDOM = 74  # bits, behind 48 bits of milliseconds: together those that a UUID leaves free
_LAST_MILLISECOND = (1 << 48) - 1
_STEP = 64


class Ids:
    """Makes the ids of subscriptions.

    Each is a UUID that cannot be guessed, and less than those made before: in the order of their ids, the newest
    subscription is the first. Between processes that holds to the millisecond. Within a process it also holds in one
    millisecond, for all its threads, and for as long as a clock that was set back is behind.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = (_LAST_MILLISECOND + 1) << _RANDOM

    def next(self, created_at: datetime) -> str:
        milliseconds = _LAST_MILLISECOND - int(created_at.timestamp() * 1000)
        wanted = (milliseconds << _RANDOM) | secrets.randbits(_RANDOM)
        with self._lock:
            if wanted >= self._last:
                wanted = self._last - 1 - secrets.randbits(_STEP)
            self._last = wanted
        return str(_as_uuid(wanted))


def _as_uuid(number: int) -> UUID:
    """A UUID of version 8, which leaves all bits but its version and variant to whoever makes it."""
    high, middle, low = number >> 74, (number >> 62) & 0xFFF, number & ((1 << 62) - 1)
    return UUID(int=(high << 80) | (8 << 76) | (middle << 64) | (2 << 62) | low)


def key_of(owning_application: str, event_types: Iterable[str], consumer_group: str) -> str:
    """The same for subscriptions that may not both exist."""
    identity = orjson.dumps([owning_application, sorted(set(event_types)), consumer_group])
    return hashlib.sha256(identity).hexdigest()

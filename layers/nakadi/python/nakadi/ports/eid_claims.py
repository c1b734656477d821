"""Claims on ids of events. With these, each event is stored once even in a log that cannot remember ids itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from msgspec import Struct


class EidClaim(Struct, frozen=True, kw_only=True):
    """The claim of an attempt to store an event; `token` identifies the attempt, `key` the event and its scope.

    If the event is stored, it is in this partition at `start` or after it. Until `is_stored` is true, the attempt may
    be in progress; at `settled_at` it has ended. `since` is when the claim was made, or confirmed. After `expires_at`,
    the claim is no longer needed.
    """

    key: bytes
    token: str
    storage_id: str
    topic: str
    timeline: int
    partition: int
    start: int
    since: datetime
    settled_at: datetime
    expires_at: datetime
    is_stored: bool = False


class EidClaims(Protocol):
    """Claims by their keys. A call's changes are durable, and every later call of any process sees them.

    When a call raises `Unavailable`, it may have changed any of its claims.
    """

    def claim(self, wanted: Sequence[EidClaim]) -> Mapping[bytes, EidClaim]:
        """Write each claim whose key has no claim yet, and return the existing claims of the other keys.

        A claim that exists with the same token is this attempt's own, and is not returned.
        """

    def replace(self, changes: Sequence[tuple[EidClaim, EidClaim]]) -> Collection[bytes]:
        """Replace old claims with new ones, and return the keys for which this succeeded.

        A replacement succeeds if the stored claim is still the old one, or already the new one.
        """

    def remove(self, claims: Sequence[EidClaim]) -> None:
        """Remove the claims among these that still have their tokens."""

    def close(self) -> None:
        """Release all resources. Further calls raise `Unavailable`."""

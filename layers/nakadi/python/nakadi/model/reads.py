"""The declared members of subscriptions, and the effect of a schema change on them."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class ReadChangeKind(StrEnum):
    REMOVED = "removed"
    RENAMED = "renamed"
    RETYPED = "retyped"
    OPTIONAL = "optional"
    UNKNOWN = "unknown"


class ReadChange(Struct, frozen=True, kw_only=True):
    """A change to a member that is read. `path` is the declared path; `member` is the changed member, which is at the
    path, above it or below it.
    """

    path: str
    member: str
    kind: ReadChangeKind
    explanation: str


class Reader(Struct, frozen=True, kw_only=True):
    """A subscription to an event type, and the members that it has declared; None if it declares nothing."""

    subscription_id: str
    owning_application: str
    consumer_group: str
    reads: tuple[str, ...] | None


class AffectedReader(Struct, frozen=True):
    reader: Reader
    changes: tuple[ReadChange, ...]

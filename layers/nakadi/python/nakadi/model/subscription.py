"""Subscriptions: many consumers of some event types, and one cursor for each of their partitions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

from msgspec import Struct, field

from nakadi.model.authorization import Authorization, AuthorizationDraft, Resource, ResourceType


class ReadFrom(StrEnum):
    """Where the first stream begins; in the order in which messages list them."""

    BEGIN = "begin"
    END = "end"
    CURSORS = "cursors"


class EventTypePartition(Struct, frozen=True, order=True):
    """A partition of one of several event types: the unit that streams share a subscription by."""

    event_type: str
    partition: str

    def __str__(self) -> str:
        """As refusals name it."""
        return f"EventTypePartition{{eventType='{self.event_type}', partition='{self.partition}'}}"


class SubscriptionCursor(Struct, frozen=True):
    """A place as a client wrote it, in a partition of one of a subscription's event types."""

    event_type: str
    partition: str
    offset: str

    @property
    def place(self) -> EventTypePartition:
        return EventTypePartition(self.event_type, self.partition)


class Subscription(Struct, frozen=True, kw_only=True):
    """A subscription as it is registered.

    `event_types` are sorted and without duplicates: together with application and group they are what makes it this
    subscription and no other. `revision` counts the writes of the registered entry.
    """

    id: str
    owning_application: str
    event_types: tuple[str, ...]
    consumer_group: str = "default"
    read_from: ReadFrom = ReadFrom.END
    initial_cursors: tuple[SubscriptionCursor, ...] = ()
    authorization: Authorization | None = None
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    labels: Mapping[str, str | None] = field(default_factory=dict)
    created_at: datetime
    updated_at: datetime
    revision: int = 0

    @property
    def resource(self) -> Resource:
        return Resource(ResourceType.SUBSCRIPTION, self.id, self.authorization)


class SubscriptionCursorDraft(Struct, frozen=True):
    event_type: str | None = None
    partition: str | None = None
    offset: str | None = None


class SubscriptionDraft(Struct, frozen=True, kw_only=True):
    """A subscription as a client sends it.

    A field that the request leaves out has its default here; None says that it was null, or missing without a default.
    For `annotations` and `labels`, None means: as they were.
    """

    owning_application: str | None = None
    event_types: tuple[str, ...] | None = None
    consumer_group: str | None = "default"
    read_from: ReadFrom | None = ReadFrom.END
    initial_cursors: tuple[SubscriptionCursorDraft, ...] = ()
    authorization: AuthorizationDraft | None = None
    annotations: Mapping[str, str | None] | None = None
    labels: Mapping[str, str | None] | None = None

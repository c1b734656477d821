"""Who asks, and what the lists of a resource say about it."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from msgspec import Struct


class Operation(StrEnum):
    VIEW = "VIEW"
    READ = "READ"
    WRITE = "WRITE"
    ADMIN = "ADMIN"


class ResourceType(StrEnum):
    EVENT_TYPE = "event-type"
    SUBSCRIPTION = "subscription"
    EVENT = "event"


class Attribute(Struct, frozen=True, order=True):
    """Something true of a subject: `user` is `ann`, `team` is `checkout`. The pair `*`, `*` is true of all subjects."""

    data_type: str
    value: str

    def __str__(self) -> str:
        return f"{self.data_type}:{self.value}"


WILDCARD = Attribute("*", "*")


class Subject(Struct, frozen=True):
    """The sender of a request. `trusted` is set while authentication is off: then everything is allowed."""

    name: str
    attributes: frozenset[Attribute] = frozenset()
    scopes: frozenset[str] = frozenset()
    realm: str = ""
    trusted: bool = False

    def has_one_of(self, attributes: tuple[Attribute, ...]) -> bool:
        return WILDCARD in attributes or not self.attributes.isdisjoint(attributes)


UNAUTHENTICATED = Subject(name="unauthenticated", trusted=True)


class Authorization(Struct, frozen=True, kw_only=True):
    """The lists of an event type or, without `writers`, of a subscription."""

    admins: tuple[Attribute, ...]
    readers: tuple[Attribute, ...]
    writers: tuple[Attribute, ...] = ()

    def granting(self, operation: Operation) -> tuple[Attribute, ...]:
        match operation:
            case Operation.ADMIN:
                return self.admins
            case Operation.READ:
                return self.readers
            case Operation.WRITE:
                return self.writers
            case Operation.VIEW:
                return self.admins + self.readers + self.writers


class AttributeDraft(Struct, frozen=True):
    data_type: str | None = None
    value: str | None = None


class AuthorizationDraft(Struct, frozen=True, kw_only=True):
    """An authorization section as a client sends it; None stands for a missing member."""

    admins: tuple[AttributeDraft, ...] | None = None
    readers: tuple[AttributeDraft, ...] | None = None
    writers: tuple[AttributeDraft, ...] | None = None

    def lists(self) -> Iterator[tuple[str, tuple[AttributeDraft, ...] | None]]:
        yield "admins", self.admins
        yield "readers", self.readers
        yield "writers", self.writers


class Resource(Struct, frozen=True):
    """What a permission is asked for; without `authorization` it is open to everyone."""

    type: ResourceType
    name: str
    authorization: Authorization | None = None

"""Subjects, the authorization lists of resources, and the features and blocks that administrators decide on."""

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


class Attribute(Struct, frozen=True, order=True, array_like=True):
    """A property of a subject: `user` is `ann`, `team` is `checkout`. The pair `*`, `*` is true of all subjects."""

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
    """The lists of an event type, of the whole broker or, without `writers`, of a subscription."""

    admins: tuple[Attribute, ...]
    readers: tuple[Attribute, ...]
    writers: tuple[Attribute, ...] = ()

    def attributes_granting(self, operation: Operation) -> tuple[Attribute, ...]:
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
    """An authorization section as a client sends it; None means a missing member."""

    admins: tuple[AttributeDraft, ...] | None = None
    readers: tuple[AttributeDraft, ...] | None = None
    writers: tuple[AttributeDraft, ...] | None = None

    def named_lists(self) -> Iterator[tuple[str, tuple[AttributeDraft, ...] | None]]:
        yield "admins", self.admins
        yield "readers", self.readers
        yield "writers", self.writers


class Resource(Struct, frozen=True):
    """The resource that a permission applies to. Without `authorization`, it is open to everyone."""

    type: ResourceType
    name: str
    authorization: Authorization | None = None


class BlockedKind(StrEnum):
    CONSUMER_APP = "CONSUMER_APP"
    CONSUMER_EVENT_TYPE = "CONSUMER_ET"
    PRODUCER_APP = "PRODUCER_APP"
    PRODUCER_EVENT_TYPE = "PRODUCER_ET"


class Feature(StrEnum):
    """The features, in the order in which lists show them."""

    DISABLE_EVENT_TYPE_CREATION = "disable_event_type_creation"
    DISABLE_EVENT_TYPE_DELETION = "disable_event_type_deletion"
    DELETE_EVENT_TYPE_WITH_SUBSCRIPTIONS = "delete_event_type_with_subscriptions"
    EVENT_TYPE_DELETION_ONLY_ADMINS = "event_type_deletion_only_admins"
    DISABLE_SUBSCRIPTION_CREATION = "disable_subscription_creation"
    REMOTE_TOKENINFO = "remote_tokeninfo"
    KPI_COLLECTION = "kpi_collection"
    AUDIT_LOG_COLLECTION = "audit_log_collection"
    DISABLE_DB_WRITE_OPERATIONS = "disable_db_write_operations"
    FORCE_EVENT_TYPE_AUTHZ = "force_event_type_authz"
    FORCE_SUBSCRIPTION_AUTHZ = "force_subscription_authz"
    REPARTITIONING = "repartitioning"
    EVENT_OWNER_SELECTOR_AUTHZ = "event_owner_selector_authz"
    ACCESS_LOG_ENABLED = "access_log_enabled"
    TOKEN_SUBSCRIPTIONS_ITERATION = "token_subscriptions_iteration"  # noqa: S105  # a feature, no password
    RETURN_BODY_ON_CREATE_UPDATE_EVENT_TYPE = "return_body_on_create_update_event_type"
    VALIDATE_SUBSCRIPTION_OWNING_APPLICATION = "validate_subscription_owning_application"
    VALIDATE_EVENT_TYPE_OWNING_APPLICATION = "validate_event_type_owning_application"
    SKIP_MISPLACED_EVENTS = "skip_misplaced_events"
    DLQ_REDRIVE_EVENT_TYPE_ATTACHMENT_JOB = "dlq_redrive_event_type_attachment_job"
    FORCE_DATA_LAKE_ANNOTATIONS = "force_data_lake_annotations"

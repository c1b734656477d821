"""What administrators decide: who else is one, what is blocked, which features are on."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from nakadi.model.authorization import Attribute


class AdminPermission(StrEnum):
    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


class AdminLists(Struct, frozen=True, kw_only=True):
    admins: tuple[Attribute, ...] = ()
    readers: tuple[Attribute, ...] = ()
    writers: tuple[Attribute, ...] = ()

    def granting(self, permission: AdminPermission) -> tuple[Attribute, ...]:
        match permission:
            case AdminPermission.READ:
                return self.readers
            case AdminPermission.WRITE:
                return self.writers
            case AdminPermission.ADMIN:
                return self.admins


class BlockedKind(StrEnum):
    CONSUMER_APP = "CONSUMER_APP"
    CONSUMER_EVENT_TYPE = "CONSUMER_ET"
    PRODUCER_APP = "PRODUCER_APP"
    PRODUCER_EVENT_TYPE = "PRODUCER_ET"


class Feature(StrEnum):
    """In the order in which they are listed."""

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

"""The event types of the broker itself: dead letters, the audit log, and KPIs.

They are created when a broker starts and by housekeeping, whichever is first; several processes may try at the same
time. Those of a feature are created while the feature is on. Existing ones are not changed, with one exception: while
authentication is on, one that no operator has changed gets the authorization of the settings if it is open to
everyone, or if its lists are empty because the settings named no administrator before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from msgspec import Struct, field
from msgspec.structs import replace

from nakadi.auth.permissions import Features
from nakadi.event_types import documents
from nakadi.event_types.repository import EventTypes
from nakadi.model.authorization import WILDCARD, Attribute, AttributeDraft, Authorization, AuthorizationDraft, Feature
from nakadi.model.event_type import (
    Audience,
    Category,
    CompatibilityMode,
    EnrichmentStrategy,
    EventTypeDraft,
    PartitionStrategy,
    SchemaDraft,
    SchemaType,
    StatisticsDraft,
)
from nakadi.model.outcomes import Fault, Outcome

log = logging.getLogger(__name__)

AUDIT_LOG = "nakadi.audit.log"
BATCH_PUBLISHED = "nakadi.batch.published"
DATA_STREAMED = "nakadi.data.streamed"
ACCESS_LOG = "nakadi.access.log"
EVENT_TYPE_LOG = "nakadi.event.type.log"
SUBSCRIPTION_LOG = "nakadi.subscription.log"

KPI_EVENT_TYPES = frozenset({BATCH_PUBLISHED, DATA_STREAMED, ACCESS_LOG, EVENT_TYPE_LOG, SUBSCRIPTION_LOG})
"""The names of the event types for KPIs."""

MILLISECONDS_PER_DAY = 86_400_000


class SystemEventTypeOwner(Struct, frozen=True, kw_only=True):
    """The owning application of some event types, and who may administer, read and write them beside the broker."""

    owning_application: str
    permitted_subjects: tuple[Attribute, ...]


class SystemEventType(Struct, frozen=True, kw_only=True):
    draft: EventTypeDraft
    feature: Feature | None = None
    """The event type is created while this feature is on; without a feature, always."""

    @property
    def name(self) -> str:
        assert self.draft.name is not None
        return self.draft.name


class SystemEventTypes(Struct, frozen=True, kw_only=True):
    """Creates the system event types.

    `register` stores an event type unless it exists; `is_authentication_on` is set while authentication is on.
    """

    definitions: tuple[SystemEventType, ...]
    event_types: EventTypes
    features: Features
    register: Callable[[EventTypeDraft], None]
    is_authentication_on: bool
    prepared_names: set[str] = field(default_factory=set)
    """The names of those that are known to exist, and need no other look."""

    def create_missing(self) -> None:
        """Create the missing ones. A failure is logged, and the next call tries again."""
        if self.features.is_on(Feature.DISABLE_DB_WRITE_OPERATIONS):
            return
        for each in self.definitions:
            enabled = each.feature is None or self.features.is_on(each.feature)
            if enabled and each.name not in self.prepared_names:
                try:
                    self._prepare_event_type(each)
                except (Fault, Outcome):
                    log.warning("Creation of system event type %s failed", each.name, exc_info=True)

    def ensure_exists(self, name: str) -> None:
        if self.event_types.find(name) is None:
            self.register(next(each.draft for each in self.definitions if each.name == name))

    def _prepare_event_type(self, definition: SystemEventType) -> None:
        self.ensure_exists(definition.name)
        self.event_types.retry_if_changed(lambda: self._correct_authorization(definition))
        self.prepared_names.add(definition.name)

    def _correct_authorization(self, definition: SystemEventType) -> None:
        """Replace the authorization of an event type that was created with other settings or by an older version."""
        found = self.event_types.find(definition.name)
        wanted = documents.authorization_from_draft(definition.draft.authorization)
        if not self.is_authentication_on or found is None or not _needs_new_authorization(found.authorization, wanted):
            return
        if found.updated_at != found.created_at:
            state = (
                "open to everyone"
                if _is_open_to_everyone(found.authorization)
                else "open to administrators of the broker only"
            )
            log.warning("System event type %s stays %s, because an operator has changed it", definition.name, state)
            return
        # `updated_at` is kept, so that the event type still counts as one that no operator has changed.
        self.event_types.replace(found, replace(found, authorization=wanted))
        log.info("Authorization of system event type %s set to %s", definition.name, wanted)


def _needs_new_authorization(authorization: Authorization | None, wanted: Authorization | None) -> bool:
    if _is_open_to_everyone(authorization):
        return not _is_open_to_everyone(wanted)
    return not _has_named_subjects(authorization) and _has_named_subjects(wanted)


def _is_open_to_everyone(authorization: Authorization | None) -> bool:
    """Whether every subject with a token may do something."""
    return authorization is None or WILDCARD in (*authorization.admins, *authorization.readers, *authorization.writers)


def _has_named_subjects(authorization: Authorization | None) -> bool:
    return authorization is not None and bool(authorization.admins or authorization.readers or authorization.writers)


def system_event_type_definitions(
    *,
    dead_letter_queue: str,
    dead_letter_owner: SystemEventTypeOwner,
    audit_log_owner: SystemEventTypeOwner,
    kpi_owner: SystemEventTypeOwner,
) -> tuple[SystemEventType, ...]:
    on = Feature.KPI_COLLECTION
    return (
        SystemEventType(draft=_dead_letter_queue_draft(dead_letter_queue, dead_letter_owner)),
        SystemEventType(draft=_audit_log_draft(audit_log_owner), feature=Feature.AUDIT_LOG_COLLECTION),
        *(SystemEventType(draft=_kpi_draft(name, kpi_owner), feature=on) for name in sorted(KPI_EVENT_TYPES)),
    )


def _system_event_type_draft(
    name: str, owner: SystemEventTypeOwner, schema: Mapping[str, Any], **fields: Any
) -> EventTypeDraft:
    members = tuple(AttributeDraft(each.data_type, each.value) for each in dict.fromkeys(owner.permitted_subjects))
    return EventTypeDraft(
        name=name,
        owning_application=owner.owning_application,
        schema=SchemaDraft(type=SchemaType.JSON, text=orjson.dumps(schema).decode()),
        enrichment_strategies=(EnrichmentStrategy.METADATA,),
        authorization=AuthorizationDraft(admins=members, readers=members, writers=members),
        **fields,
    )


def _statistics_draft(parallelism: int, size: int = 100, rate: int = 100) -> StatisticsDraft:
    return StatisticsDraft(
        messages_per_minute=rate, message_size=size, read_parallelism=parallelism, write_parallelism=parallelism
    )


# Dead letters --------------------------------------------------------------------------------------------------------

DEAD_LETTER_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["subscription_id", "event_type", "partition", "offset", "error", "event"],
    "properties": {
        "subscription_id": {"type": "string", "format": "uuid"},
        "event_type": {"type": "string"},
        "partition": {"type": "string"},
        "offset": {"type": "string"},
        "error": {
            "type": "object",
            "additionalProperties": False,
            "required": ["message"],
            "properties": {"message": {"type": "string"}},
        },
        "event": {
            "type": "object",
            "additionalProperties": True,
            "required": ["metadata"],
            "properties": {
                "metadata": {
                    "type": "object",
                    "additionalProperties": True,
                    "required": ["event_type", "eid", "occurred_at"],
                    "properties": {
                        "event_type": {"type": "string"},
                        "eid": {"type": "string", "format": "uuid"},
                        "occurred_at": {"type": "string", "format": "date-time"},
                    },
                }
            },
        },
    },
}


def _dead_letter_queue_draft(name: str, owner: SystemEventTypeOwner) -> EventTypeDraft:
    return _system_event_type_draft(
        name,
        owner,
        DEAD_LETTER_SCHEMA,
        category=Category.BUSINESS,
        retention_time=MILLISECONDS_PER_DAY,
        audience=Audience.COMPONENT_INTERNAL,
        default_statistic=_statistics_draft(1, size=1000, rate=1),
    )


# The audit log -------------------------------------------------------------------------------------------------------

AUDIT_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "previous_object": {},
        "previous_text": {"type": "string"},
        "new_object": {},
        "new_text": {"type": "string"},
        "resource_type": {"type": "string"},
        "resource_id": {"type": "string"},
        "user": {"type": "string"},
        "user_hash": {"type": "string"},
    },
    "required": ["resource_type", "resource_id", "user"],
}


def _audit_log_draft(owner: SystemEventTypeOwner) -> EventTypeDraft:
    return _system_event_type_draft(
        AUDIT_LOG,
        owner,
        AUDIT_SCHEMA,
        category=Category.DATA,
        partition_strategy=PartitionStrategy.HASH,
        partition_key_fields=("resource_id",),
        retention_time=4 * MILLISECONDS_PER_DAY,
        audience=Audience.COMPANY_INTERNAL,
        default_statistic=_statistics_draft(10),
    )


# KPIs ----------------------------------------------------------------------------------------------------------------

TEXT_SCHEMA, TEXT_OR_NULL_SCHEMA, INTEGER_SCHEMA = {"type": "string"}, {"type": ["string", "null"]}, {"type": "integer"}


class _KpiDefinition(Struct, frozen=True, kw_only=True):
    fields: Mapping[str, Mapping[str, Any]]
    compatibility_mode: CompatibilityMode
    parallelism: int
    audience: Audience | None = None


APPLICATION_FIELD_SCHEMAS = {"app": TEXT_SCHEMA, "app_hashed": TEXT_SCHEMA}

KPI_DEFINITIONS: Mapping[str, _KpiDefinition] = {
    ACCESS_LOG: _KpiDefinition(
        fields={
            **dict.fromkeys(("method", "path", "query", "user_agent"), TEXT_SCHEMA),
            **APPLICATION_FIELD_SCHEMAS,
            **dict.fromkeys(("status_code", "response_time_ms"), INTEGER_SCHEMA),
            **dict.fromkeys(("accept_encoding", "content_encoding"), TEXT_SCHEMA),
            **dict.fromkeys(("request_length", "response_length"), INTEGER_SCHEMA),
        },
        compatibility_mode=CompatibilityMode.FORWARD,
        parallelism=8,
    ),
    BATCH_PUBLISHED: _KpiDefinition(
        fields={
            "event_type": TEXT_SCHEMA,
            **APPLICATION_FIELD_SCHEMAS,
            "token_realm": TEXT_SCHEMA,
            **dict.fromkeys(("number_of_events", "ms_spent", "batch_size"), INTEGER_SCHEMA),
        },
        compatibility_mode=CompatibilityMode.COMPATIBLE,
        parallelism=10,
        audience=Audience.COMPONENT_INTERNAL,
    ),
    DATA_STREAMED: _KpiDefinition(
        fields={
            "api": TEXT_SCHEMA,
            "subscription": TEXT_OR_NULL_SCHEMA,
            "event_type": TEXT_SCHEMA,
            **APPLICATION_FIELD_SCHEMAS,
            "token_realm": TEXT_SCHEMA,
            **dict.fromkeys(("number_of_events", "bytes_streamed", "batches_streamed"), INTEGER_SCHEMA),
        },
        compatibility_mode=CompatibilityMode.COMPATIBLE,
        parallelism=8,
        audience=Audience.COMPONENT_INTERNAL,
    ),
    EVENT_TYPE_LOG: _KpiDefinition(
        fields=dict.fromkeys(("event_type", "status", "category", "authz", "compatibility_mode"), TEXT_SCHEMA),
        compatibility_mode=CompatibilityMode.FORWARD,
        parallelism=1,
        audience=Audience.COMPONENT_INTERNAL,
    ),
    SUBSCRIPTION_LOG: _KpiDefinition(
        fields=dict.fromkeys(("subscription_id", "status"), TEXT_SCHEMA),
        compatibility_mode=CompatibilityMode.COMPATIBLE,
        parallelism=1,
    ),
}


def _kpi_draft(name: str, owner: SystemEventTypeOwner) -> EventTypeDraft:
    kpi = KPI_DEFINITIONS[name]
    return _system_event_type_draft(
        name,
        owner,
        {"type": "object", "properties": kpi.fields, "required": list(kpi.fields)},
        category=Category.BUSINESS,
        compatibility_mode=kpi.compatibility_mode,
        retention_time=4 * MILLISECONDS_PER_DAY,
        audience=kpi.audience,
        default_statistic=_statistics_draft(kpi.parallelism),
    )

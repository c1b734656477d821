"""The definitions of the broker's own event types: names, schemas, and settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from msgspec import Struct

from nakadi.model.authorization import Attribute, AttributeDraft, AuthorizationDraft, Feature
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
    """The owning application of some event types, and who besides the broker may administer, read and write them."""

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

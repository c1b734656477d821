"""Event types, schemas and timelines as JSON documents of the registry, to and from."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from nakadi.model.authorization import Attribute, Authorization
from nakadi.model.event_type import (
    Audience,
    Category,
    CleanupPolicy,
    CompatibilityMode,
    EnrichmentStrategy,
    EventType,
    OwnerSelector,
    OwnerSelectorType,
    PartitionStrategy,
    Statistics,
)
from nakadi.model.schema import Schema, SchemaType, Version
from nakadi.model.timeline import Timeline
from nakadi.ports.clock import Clock
from nakadi.ports.registry import Document

DocumentBody = Mapping[str, Any]


def event_type_body(event_type: EventType) -> DocumentBody:
    return {
        "id": event_type.id,
        "owning_application": event_type.owning_application,
        "category": event_type.category.value,
        "schema": schema_body(event_type.schema),
        "enrichment_strategies": [each.value for each in event_type.enrichment_strategies],
        "partition_strategy": event_type.partition_strategy.value,
        "partition_key_fields": list(event_type.partition_key_fields),
        "ordering_key_fields": list(event_type.ordering_key_fields),
        "ordering_instance_ids": list(event_type.ordering_instance_ids),
        "cleanup_policy": event_type.cleanup_policy.value,
        "compatibility_mode": event_type.compatibility_mode.value,
        "default_statistic": _unless_none(event_type.default_statistic, asdict),
        "retention_time": event_type.retention_time,
        "authorization": _unless_none(event_type.authorization, authorization_body),
        "audience": _unless_none(event_type.audience, lambda audience: audience.value),
        "event_owner_selector": _unless_none(event_type.event_owner_selector, asdict),
        "annotations": dict(event_type.annotations),
        "labels": dict(event_type.labels),
        "created_at": event_type.created_at.isoformat(),
        "updated_at": event_type.updated_at.isoformat(),
        "timelines": [timeline_body(each) for each in event_type.timelines],
        "switching_to": _unless_none(event_type.switching_to, timeline_body),
    }


def event_type_of(document: Document) -> EventType:
    body = document.body
    return EventType(
        id=body["id"],
        name=document.key,
        owning_application=body["owning_application"],
        category=Category(body["category"]),
        schema=schema_of(body["schema"]),
        enrichment_strategies=tuple(EnrichmentStrategy(each) for each in body["enrichment_strategies"]),
        partition_strategy=PartitionStrategy(body["partition_strategy"]),
        partition_key_fields=tuple(body["partition_key_fields"]),
        ordering_key_fields=tuple(body["ordering_key_fields"]),
        ordering_instance_ids=tuple(body["ordering_instance_ids"]),
        cleanup_policy=CleanupPolicy(body["cleanup_policy"]),
        compatibility_mode=CompatibilityMode(body["compatibility_mode"]),
        default_statistic=_unless_none(body["default_statistic"], lambda statistic: Statistics(**statistic)),
        retention_time=body["retention_time"],
        authorization=_unless_none(body["authorization"], authorization_of),
        audience=_unless_none(body["audience"], Audience),
        event_owner_selector=_unless_none(body["event_owner_selector"], _selector_of),
        annotations=body["annotations"],
        labels=body["labels"],
        created_at=datetime.fromisoformat(body["created_at"]),
        updated_at=datetime.fromisoformat(body["updated_at"]),
        timelines=tuple(timeline_of(each) for each in body["timelines"]),
        switching_to=_unless_none(body["switching_to"], timeline_of),
        revision=document.revision,
    )


def schema_body(schema: Schema) -> DocumentBody:
    return {
        "type": schema.type.value,
        "text": schema.text,
        "version": str(schema.version),
        "created_at": schema.created_at.isoformat(),
    }


def schema_of(body: DocumentBody) -> Schema:
    return Schema(
        type=SchemaType(body["type"]),
        text=body["text"],
        version=Version.parse(body["version"]),
        created_at=datetime.fromisoformat(body["created_at"]),
    )


def authorization_body(authorization: Authorization) -> DocumentBody:
    return {
        "admins": _attributes_body(authorization.admins),
        "readers": _attributes_body(authorization.readers),
        "writers": _attributes_body(authorization.writers),
    }


def authorization_of(body: DocumentBody) -> Authorization:
    return Authorization(
        admins=_attributes_of(body["admins"]),
        readers=_attributes_of(body["readers"]),
        writers=_attributes_of(body["writers"]),
    )


def timeline_body(timeline: Timeline) -> DocumentBody:
    positions = timeline.latest_positions
    return {
        "id": timeline.id,
        "order": timeline.order,
        "storage_id": timeline.storage_id,
        "topic": timeline.topic,
        "partitions": timeline.partitions,
        "created_at": timeline.created_at.isoformat(),
        "switched_at": _unless_none(timeline.switched_at, datetime.isoformat),
        "cleaned_up_at": _unless_none(timeline.cleaned_up_at, datetime.isoformat),
        "latest_positions": None if positions is None else {str(number): last for number, last in positions.items()},
        "deleted": timeline.deleted,
        "after_loss": timeline.after_loss,
        "adopted": timeline.adopted,
    }


def timeline_of(body: DocumentBody) -> Timeline:
    positions = body["latest_positions"]
    return Timeline(
        id=body["id"],
        order=body["order"],
        storage_id=body["storage_id"],
        topic=body["topic"],
        partitions=body["partitions"],
        created_at=datetime.fromisoformat(body["created_at"]),
        switched_at=_unless_none(body["switched_at"], datetime.fromisoformat),
        cleaned_up_at=_unless_none(body["cleaned_up_at"], datetime.fromisoformat),
        latest_positions=None if positions is None else {int(number): last for number, last in positions.items()},
        deleted=body["deleted"],
        after_loss=body.get("after_loss", False),
        adopted=body.get("adopted", False),
    )


def _selector_of(body: DocumentBody) -> OwnerSelector:
    return OwnerSelector(type=OwnerSelectorType(body["type"]), name=body["name"], value=body["value"])


def _attributes_body(attributes: tuple[Attribute, ...]) -> list[list[str]]:
    return [[each.data_type, each.value] for each in attributes]


def _attributes_of(pairs: list[list[str]]) -> tuple[Attribute, ...]:
    return tuple(Attribute(*pair) for pair in pairs)


def _unless_none(value: Any, convert: Any) -> Any:
    return None if value is None else convert(value)


# Measured statistics --------------------------------------------------------------------------------------------------


MEASURED_KIND = "measured-statistics"
"""These documents are keyed by the ids of event types: an event type that is created again starts without."""


class MeasuredStatistics(Struct, frozen=True, kw_only=True):
    """The measured traffic of an event type between two times, and the number of partitions that it needs."""

    statistic: Statistics
    recommended_partitions: int
    since: datetime
    until: datetime


def measured_body(measured: MeasuredStatistics) -> Mapping[str, Any]:
    return {
        "statistic": asdict(measured.statistic),
        "recommended_partitions": measured.recommended_partitions,
        "since": measured.since.isoformat(),
        "until": measured.until.isoformat(),
    }


def measured_of(body: Mapping[str, Any]) -> MeasuredStatistics:
    return MeasuredStatistics(
        statistic=Statistics(**body["statistic"]),
        recommended_partitions=body["recommended_partitions"],
        since=datetime.fromisoformat(body["since"]),
        until=datetime.fromisoformat(body["until"]),
    )


# Times ----------------------------------------------------------------------------------------------------------------


def now_in_milliseconds(clock: Clock) -> datetime:
    """The time now, cut to milliseconds as in responses: what is stored and what clients read are equal."""
    now = clock.now()
    return now.replace(microsecond=now.microsecond // 1000 * 1000)

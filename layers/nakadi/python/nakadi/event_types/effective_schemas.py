"""The schemas against which events of an event type are validated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nakadi.model.event_type import Category, CompatibilityMode, EventType, EventTypeDraft, SchemaType
from nakadi.schemas.avro.json_schema import json_schema_of
from nakadi.schemas.avro.types import parse_record_schema
from nakadi.schemas.document import effective_schema
from nakadi.schemas.strict_json import parse_strict


def effective_schema_of(event_type: EventType) -> dict[str, Any]:
    """The effective schema of an event type. For an Avro schema, it is a JSON schema that describes the events as JSON;
    events are not validated against that.
    """
    if event_type.schema.type is SchemaType.AVRO:
        return effective_schema_of_avro(event_type.schema.text, event_type)
    return effective_schema_from(parse_strict(event_type.schema.text), event_type)


def effective_schema_of_avro(text: str, definition: EventType | EventTypeDraft) -> dict[str, Any]:
    """The effective schema for an Avro schema: events have the members of the record, and metadata, whatever their
    category is.
    """
    assert definition.name is not None
    assert definition.cleanup_policy is not None
    return effective_schema(
        json_schema_of(parse_record_schema(text)),
        event_type=definition.name,
        category=Category.BUSINESS,
        mode=CompatibilityMode.NONE,
        cleanup_policy=definition.cleanup_policy,
    )


def effective_schema_from(tree: Mapping[str, Any], definition: EventType | EventTypeDraft) -> dict[str, Any]:
    assert definition.name is not None
    assert definition.category is not None
    assert definition.compatibility_mode is not None
    assert definition.cleanup_policy is not None
    return effective_schema(
        tree,
        event_type=definition.name,
        category=definition.category,
        mode=definition.compatibility_mode,
        cleanup_policy=definition.cleanup_policy,
    )

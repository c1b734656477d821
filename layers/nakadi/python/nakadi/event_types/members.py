"""The members of an event type's events: the members that its schema describes, and the ones that each event of its
category has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nakadi.event_types.effective_schemas import effective_schema_of
from nakadi.model.event_type import Category, EventType
from nakadi.schemas.read_paths import ReadPath
from nakadi.schemas.reads import declared_members

METADATA = "metadata"
BROKER_METADATA = ("received_at", "version", "published_by")
ENVELOPE_MEMBERS = (METADATA, "data_type", "data_op")


def members_of(event_type: EventType) -> tuple[ReadPath, ...]:
    """The innermost members that publishers of an event type may send."""
    declared = declared_members(effective_schema_of(event_type))
    match event_type.category:
        case Category.UNDEFINED:
            return declared
        case Category.BUSINESS:
            return tuple(path for path in declared if path[0] != METADATA)
        case Category.DATA:
            return tuple(path for path in declared if path[0] not in ENVELOPE_MEMBERS)


def always_sent_members(category: Category) -> tuple[str, ...]:
    """The members that each event has because of its category. Consumers need them."""
    match category:
        case Category.UNDEFINED:
            return ()
        case Category.BUSINESS:
            return (METADATA,)
        case Category.DATA:
            return ENVELOPE_MEMBERS


def schema_that_readers_see(event_type: EventType) -> Mapping[str, Any]:
    """The effective schema, in which the metadata may have the broker's additions."""
    schema = effective_schema_of(event_type)
    if METADATA not in always_sent_members(event_type.category):
        return schema
    metadata = schema["properties"][METADATA]
    seen = {**metadata["properties"], **{name: {"type": "string"} for name in BROKER_METADATA}}
    return schema | {"properties": schema["properties"] | {METADATA: metadata | {"properties": seen}}}

"""The schemas against which events of an event type are validated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nakadi.model.event_type import EventType, EventTypeDraft
from nakadi.schemas.document import effective_schema
from nakadi.schemas.strict_json import parse_strict


def effective_schema_of(event_type: EventType) -> dict[str, Any]:
    return effective_schema_from(parse_strict(event_type.schema.text), event_type)


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

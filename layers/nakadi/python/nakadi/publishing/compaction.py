"""Record keys: what compaction goes by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nakadi.model.event_type import EventType
from nakadi.model.outcomes import Malformed
from nakadi.publishing.partitioning import Place

MEMBER = "partition_compaction_key"


def keys_of(
    event_type: EventType, events: Sequence[Mapping[str, Any]], places: Sequence[Place]
) -> Sequence[str | None]:
    """The events' own compaction keys if their type is compacted, otherwise the values they were placed by."""
    if event_type.cleanup_policy.compacts:
        return [compaction_key(event) for event in events]
    return [key for _, key in places]


def compaction_key(event: Mapping[str, Any]) -> str:
    metadata = _member(event, "metadata")
    if not isinstance(metadata, dict):
        raise _unreadable("metadata", "is not a JSONObject.")
    key = _member(metadata, MEMBER)
    if not isinstance(key, str):
        raise _unreadable(MEMBER, "not a string.")
    return key


def _member(value: Mapping[str, Any], name: str) -> Any:
    if name not in value:
        raise _unreadable(name, "not found.")
    return value[name]


def _unreadable(name: str, problem: str) -> Malformed:
    return Malformed(f'Error occurred when parsing event(s). JSONObject["{name}"] {problem}')

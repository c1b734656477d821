"""What the broker adds to an event: who sent it, when it came, and where it went; and the key for compaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from nakadi.model.event_type import EnrichmentStrategy, EventType
from nakadi.model.outcomes import Malformed
from nakadi.model.schema import Version
from nakadi.publishing.batch import Batch
from nakadi.publishing.outcome import Rejected, Step
from nakadi.publishing.partition import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What is the same for all events of a request."""

    published_by: str
    flow_id: str
    received_at: datetime
    version: Version


def enriched(event_type: EventType, batch: Batch, origin: Origin, partitions: Sequence[int]) -> list[bytes]:
    """The events as they are stored: as they came, but for their metadata."""
    if EnrichmentStrategy.METADATA not in event_type.enrichment_strategies:
        return [piece.text(index) for piece in batch.pieces() for index in range(len(piece.events))]
    stamp = {
        "published_by": origin.published_by,
        "received_at": moment_text(origin.received_at),
        "event_type": event_type.name,
        "version": str(origin.version),
    }
    texts: list[bytes] = []
    for piece in batch.pieces():
        for index, event in enumerate(piece.events):
            metadata, partition = event.get("metadata"), partitions[len(texts)]
            if not isinstance(metadata, dict):
                raise Rejected(
                    Step.ENRICHING, len(texts), "enrichment error", reached=Step.PARTITIONING, partitions=partitions
                )
            flow_id = metadata.get("flow_id") or origin.flow_id
            added = {**metadata, **stamp, "flow_id": flow_id, "partition": str(partition)}
            texts.append(piece.text_with(index, "metadata", added))
    return texts


def moment_text(moment: datetime) -> str:
    """UTC with exactly three digits of a second's fraction."""
    return f"{moment.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


# Keys -----------------------------------------------------------------------------------------------------------------


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

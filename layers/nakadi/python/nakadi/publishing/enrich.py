"""What the broker adds to an event: who sent it, when it came, and where it went; and the key for compaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from nakadi.model.event_type import EnrichmentStrategy, EventType
from nakadi.model.outcomes import Malformed
from nakadi.model.schema import Version
from nakadi.publishing.batch import Batch
from nakadi.publishing.outcome import BatchRejected, Step

COMPACTION_KEY = "partition_compaction_key"


class Origin(Struct, frozen=True, kw_only=True):
    """What is the same for all events of a request."""

    published_by: str
    flow_id: str
    received_at: datetime
    version: Version


def enriched(event_type: EventType, batch: Batch, origin: Origin, partitions: Sequence[int]) -> list[bytes]:
    """The texts of the events as they are stored: as they came, but for their metadata."""
    if EnrichmentStrategy.METADATA not in event_type.enrichment_strategies:
        return batch.texts()
    stamp = {
        "published_by": origin.published_by,
        "received_at": timestamp_text(origin.received_at),
        "event_type": event_type.name,
        "version": str(origin.version),
    }
    texts: list[bytes] = []
    for piece in batch.pieces():
        enriched_metadata: list[Mapping[str, Any]] = []
        for event, partition in zip(piece.events, partitions[len(texts) :], strict=False):
            metadata = event.get("metadata")
            if not isinstance(metadata, dict):
                index = len(texts) + len(enriched_metadata)
                detail = "enrichment error"
                raise BatchRejected(Step.ENRICHING, index, detail, reached=Step.PARTITIONING, partitions=partitions)
            flow_id = metadata.get("flow_id") or origin.flow_id
            enriched_metadata.append({**metadata, **stamp, "flow_id": flow_id, "partition": str(partition)})
        texts += piece.texts_with("metadata", enriched_metadata)
    return texts


def timestamp_text(moment: datetime) -> str:
    """UTC with exactly three digits of a second's fraction."""
    return f"{moment.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


def compaction_keys(events: Iterable[Mapping[str, Any]]) -> list[str | None]:
    """The key of each event by which compaction keeps the newest; raises `Malformed` at the first that has none."""
    keys: list[str | None] = []
    for event in events:
        metadata = _member(event, "metadata")
        if not isinstance(metadata, dict):
            raise _malformed("metadata", "is not a JSONObject.")
        key = _member(metadata, COMPACTION_KEY)
        if not isinstance(key, str):
            raise _malformed(COMPACTION_KEY, "not a string.")
        keys.append(key)
    return keys


def _member(value: Mapping[str, Any], name: str) -> Any:
    if name not in value:
        raise _malformed(name, "not found.")
    return value[name]


def _malformed(name: str, problem: str) -> Malformed:
    return Malformed(f'Error occurred when parsing event(s). JSONObject["{name}"] {problem}')

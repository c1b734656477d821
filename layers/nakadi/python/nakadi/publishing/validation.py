"""Whether the events of a batch are what their event type says."""

from __future__ import annotations

from typing import Any

from nakadi.model.event_type import Category, EventType
from nakadi.publishing.batch import Batch
from nakadi.publishing.outcome import Rejected, Step
from nakadi.schemas import strict_json
from nakadi.schemas.effective import effective_schema
from nakadi.schemas.timestamps import problem_with
from nakadi.schemas.validator import Validator


def effective_schema_of(event_type: EventType) -> dict[str, Any]:
    return effective_schema(
        strict_json.parse(event_type.schema.text),
        event_type=event_type.name,
        category=event_type.category,
        mode=event_type.compatibility_mode,
        cleanup_policy=event_type.cleanup_policy,
    )


def validate(event_type: EventType, batch: Batch, validator: Validator, *, most_bytes: int, reached: Step) -> None:
    """Raise `Rejected` at the first event that is not as it should be."""
    too_large = batch.sizes_above(most_bytes)
    accepts = validator.accepts
    has_metadata = event_type.category is not Category.UNDEFINED
    for index, event in enumerate(batch.events):
        if not accepts(event):
            raise Rejected(Step.VALIDATING, index, validator.explain(event), reached=reached)
        if has_metadata and (problem := problem_with(event["metadata"]["occurred_at"])) is not None:
            raise Rejected(Step.VALIDATING, index, f"#/metadata/occurred_at:{problem}", reached=reached)
        if index in too_large:
            raise _too_large(index, too_large[index], most_bytes, reached)


def check_sizes(batch: Batch, *, most_bytes: int, reached: Step) -> None:
    """Raise `Rejected` at the first event that is too large."""
    for index, size in batch.sizes_above(most_bytes).items():
        raise _too_large(index, size, most_bytes, reached)


def _too_large(index: int, size: int, most_bytes: int, reached: Step) -> Rejected:
    detail = f"Event too large: {size} bytes, max size is {most_bytes} bytes"
    return Rejected(Step.VALIDATING, index, detail, reached=reached)

"""Whether the events of a batch are what their event type says."""

from __future__ import annotations

from typing import Any

from nakadi.model.event_type import Category, EventType
from nakadi.publishing.batch import Batch, Event
from nakadi.publishing.effort import Effort
from nakadi.publishing.outcome import Rejected, Step
from nakadi.schemas import strict_json
from nakadi.schemas.bounds import Exhausted
from nakadi.schemas.effective import effective_schema
from nakadi.schemas.formats import problem_with
from nakadi.schemas.validation import Validator

TOO_MUCH = (
    "Validating the events of this batch takes more than {} steps: its schema holds their values against too much. "
    "Publish fewer or smaller events at once, or simplify the schema"
)


def effective_schema_of(event_type: EventType) -> dict[str, Any]:
    return effective_schema(
        strict_json.parse(event_type.schema.text),
        event_type=event_type.name,
        category=event_type.category,
        mode=event_type.compatibility_mode,
        cleanup_policy=event_type.cleanup_policy,
    )


def validate(
    event_type: EventType, batch: Batch, validator: Validator, effort: Effort, *, most_bytes: int, reached: Step
) -> None:
    """Raise `Rejected` at the first event that is not as it should be, or at which the work becomes too much."""
    too_large = batch.sizes_above(most_bytes)
    has_metadata = event_type.category is not Category.UNDEFINED
    for index, event in enumerate(batch.events):
        try:
            valid = _accepted(event, validator, effort)
        except Exhausted:
            raise Rejected(Step.VALIDATING, index, TOO_MUCH.format(effort.most), reached=reached) from None
        if not valid:
            raise Rejected(Step.VALIDATING, index, validator.explain(event, effort.take_turn), reached=reached)
        if has_metadata and (problem := problem_with(event["metadata"]["occurred_at"])) is not None:
            raise Rejected(Step.VALIDATING, index, f"#/metadata/occurred_at:{problem}", reached=reached)
        if index in too_large:
            raise _too_large(index, too_large[index], most_bytes, reached)


def _accepted(event: Event, validator: Validator, effort: Effort) -> bool:
    """Whether an event is valid. One that needs more steps than there are is begun anew with more."""
    begun_anew = False
    while True:
        try:
            return validator.accepts(event, effort.steps)
        except Exhausted:
            effort.extend(larger=begun_anew)
            begun_anew = True


def check_sizes(batch: Batch, *, most_bytes: int, reached: Step) -> None:
    """Raise `Rejected` at the first event that is too large."""
    for index, size in batch.sizes_above(most_bytes).items():
        raise _too_large(index, size, most_bytes, reached)


def _too_large(index: int, size: int, most_bytes: int, reached: Step) -> Rejected:
    detail = f"Event too large: {size} bytes, max size is {most_bytes} bytes"
    return Rejected(Step.VALIDATING, index, detail, reached=reached)

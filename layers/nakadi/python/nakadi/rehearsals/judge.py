"""Judges stored events by a schema, with the validator that publishing uses.

The broker's additions to the metadata are not judged, because publishing adds them after validation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import orjson
from msgspec import Struct, field

from nakadi.common.work import LongWorkQueue, client_never_gone
from nakadi.event_types.effective_schemas import effective_schema_of
from nakadi.model.event_type import Category, EnrichmentStrategy, EventType
from nakadi.publishing.batch import MAX_BATCH_STEPS, Event, WorkBudget
from nakadi.publishing.enrichment import WRITTEN_BY_BROKER
from nakadi.publishing.publisher import compile_event_validator
from nakadi.publishing.validation import accepts_event
from nakadi.schemas.batch_check import MAX_STEPS
from nakadi.schemas.formats import timestamp_problem
from nakadi.schemas.keywords import BrokenRule
from nakadi.schemas.text_check import TextCheck, make_text_check
from nakadi.schemas.validation import Validator

ADDED_BY_BROKER = frozenset({*WRITTEN_BY_BROKER, "partition"})

TOO_MUCH_WORK_RULE = BrokenRule("unknown", "#")
MOMENT_RULE = BrokenRule("format", "#/metadata/occurred_at")


PrepareEvent = Callable[[Event], Event]
"""Makes the event to judge from a stored event."""


class Failure(Struct, frozen=True):
    """An event that fails, by its index. `event` is as it was judged. `known_rules` is empty if the broken rules have
    not been determined yet. The publisher is empty if the event does not name one.
    """

    index: int
    event: Event
    publisher: str
    known_rules: tuple[BrokenRule, ...] = ()


class EventJudge(Struct, frozen=True, kw_only=True):
    """`text_check` recognizes most valid events, and the validator judges the others. `prepare` removes the parts that
    are not judged. `is_stopping` ends long work.
    """

    validator: Validator
    has_metadata: bool
    text_check: TextCheck
    prepare: PrepareEvent | None = None
    is_stopping: Callable[[], bool] = client_never_gone
    # A rehearsal has a separate queue for long work, so it and requests do not wait for each other.
    _queue: LongWorkQueue = field(default_factory=LongWorkQueue)

    def find_failures(self, texts: Sequence[bytes]) -> Iterator[Failure]:
        """The events among these texts that fail."""
        doubtful = list(self.text_check.find_doubtful(texts, [MAX_STEPS]))
        if not doubtful:
            return
        with closing(WorkBudget(MAX_BATCH_STEPS, self._queue, self.is_stopping)) as budget:
            for index in doubtful:
                stored = orjson.loads(texts[index])
                event = stored if self.prepare is None else self.prepare(stored)
                accepted = accepts_event(event, self.validator, budget)
                if not accepted or self._has_bad_moment(event):
                    known = (TOO_MUCH_WORK_RULE,) if accepted is None else (MOMENT_RULE,) if accepted else ()
                    yield Failure(index, event, publisher_of(stored), known)

    def broken_rules(self, failure: Failure) -> tuple[BrokenRule, ...]:
        """The rules that a failing event breaks, at least one."""
        return failure.known_rules or self.validator.broken_rules(failure.event)

    def _has_bad_moment(self, event: Event) -> bool:
        return self.has_metadata and timestamp_problem(event["metadata"]["occurred_at"]) is not None


def without_added_metadata(event: Event) -> Event:
    """The event without what the broker has added to its metadata."""
    metadata = event.get("metadata")
    if type(metadata) is not dict:
        return event
    return {**event, "metadata": {name: value for name, value in metadata.items() if name not in ADDED_BY_BROKER}}


def publisher_of(event: Event) -> str:
    """The application that published an event, as the broker has recorded it."""
    metadata = event.get("metadata")
    name = metadata.get("published_by") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else ""


def make_judge(event_type: EventType, proposed: EventType, is_stopping: Callable[[], bool]) -> EventJudge:
    """A judge of events by the schema, category and compatibility mode of the proposed event type."""
    has_metadata = proposed.category is not Category.UNDEFINED
    effective = effective_schema_of(proposed)
    was_enriched = EnrichmentStrategy.METADATA in event_type.enrichment_strategies
    validator = compile_event_validator(
        _permitting_added_metadata(effective) if has_metadata else effective, has_metadata=has_metadata
    )
    assert validator.batch_check is not None, "a validator of events has one"
    prepare = without_added_metadata if was_enriched and not has_metadata else None
    return EventJudge(
        validator=validator,
        has_metadata=has_metadata,
        text_check=make_text_check(validator.batch_check, prepare),
        prepare=prepare,
        is_stopping=is_stopping,
    )


def _permitting_added_metadata(effective: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema extended by the broker's additions. Unlike removing the additions, this costs nothing for each
    event.
    """
    metadata = effective["properties"]["metadata"]
    added = {name: {"type": "string"} for name in sorted(ADDED_BY_BROKER) if name not in metadata["properties"]}
    permitting = {**metadata, "properties": {**metadata["properties"], **added}}
    return {**effective, "properties": {**effective["properties"], "metadata": permitting}}

"""What is missing or malformed in the fields of an event type that somebody asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from nakadi.access import lists
from nakadi.catalog.annotations import annotation_violations, label_violations
from nakadi.model.event_type import EventTypeDraft, OwnerSelectorDraft, OwnerSelectorType, StatisticsDraft
from nakadi.model.outcomes import Violation
from nakadi.model.schema import SchemaDraft
from nakadi.model.sizes import MOST_ENTRIES, size_violations

NOT_NULL = "must not be null"

_NAME = re.compile(r"[a-zA-Z][-0-9a-zA-Z_]*(\.[0-9a-zA-Z][-0-9a-zA-Z_]*)*")
MAX_NAME = 255

_MANDATORY = (
    "owning_application",
    "category",
    "schema",
    "enrichment_strategies",
    "cleanup_policy",
    "compatibility_mode",
)

_FIELD_LISTS = ("partition_key_fields", "ordering_key_fields", "ordering_instance_ids")

# Each number of the statistic with the least it may be, and what is said of less.
_STATISTIC = (
    ("messages_per_minute", 0, "can't be less then zero"),
    ("message_size", 1, "can't be less then 1"),
    ("read_parallelism", 1, "at least one reader expected"),
    ("write_parallelism", 1, "at least one writer expected"),
)


def violations(draft: EventTypeDraft) -> tuple[Violation, ...]:
    """Everything that can be said of the draft's fields one by one, knowing nothing but the draft."""
    return tuple(_violations(draft))


def _violations(draft: EventTypeDraft) -> Iterator[Violation]:
    yield from _name_violations(draft.name)
    yield from (Violation(field, NOT_NULL) for field in _MANDATORY if getattr(draft, field) is None)
    yield from size_violations("owning_application", draft.owning_application)
    yield from _enrichment_violations(draft)
    for field in _FIELD_LISTS:
        yield from _field_list_violations(field, getattr(draft, field))
    if draft.schema is not None:
        yield from _schema_violations(draft.schema)
    if draft.default_statistic is not None:
        yield from _statistic_violations(draft.default_statistic)
    if draft.authorization is not None:
        yield from lists.violations(draft.authorization, lists.EVENT_TYPE_LISTS)
    if draft.event_owner_selector is not None:
        yield from _owner_selector_violations(draft.event_owner_selector)
    yield from annotation_violations(draft.annotations or {})
    yield from label_violations(draft.labels or {})


def _name_violations(name: str | None) -> Iterator[Violation]:
    if name is None:
        yield Violation("name", NOT_NULL)
        return
    if not _NAME.fullmatch(name):
        yield Violation("name", "format not allowed")
    if not 1 <= len(name) <= MAX_NAME:
        yield Violation("name", f"the length of the name must be >= 1 and <= {MAX_NAME}")


def _enrichment_violations(draft: EventTypeDraft) -> Iterator[Violation]:
    strategies = draft.enrichment_strategies or ()
    yield from size_violations("enrichment_strategies", strategies, MOST_ENTRIES)
    for index, strategy in enumerate(strategies[:MOST_ENTRIES]):
        if strategy is None:
            yield Violation(f"enrichment_strategies[{index}]", NOT_NULL)


def _field_list_violations(name: str, paths: Sequence[str]) -> Iterator[Violation]:
    yield from size_violations(name, paths, MOST_ENTRIES)
    for index, path in enumerate(paths[:MOST_ENTRIES]):
        yield from size_violations(f"{name}[{index}]", path)


def _schema_violations(schema: SchemaDraft) -> Iterator[Violation]:
    if schema.type is None:
        yield Violation("schema.type", NOT_NULL)
    if schema.text is None:
        yield Violation("schema.schema", NOT_NULL)


def _statistic_violations(statistic: StatisticsDraft) -> Iterator[Violation]:
    for field, least, message in _STATISTIC:
        value = getattr(statistic, field)
        if value is None:
            yield Violation(f"default_statistic.{field}", NOT_NULL)
        elif value < least:
            yield Violation(f"default_statistic.{field}", message)


def _owner_selector_violations(selector: OwnerSelectorDraft) -> Iterator[Violation]:
    """The owner that is told by an event's metadata needs no value."""
    if selector.type is None:
        yield Violation("event_owner_selector.type", NOT_NULL)
    if selector.name is None:
        yield Violation("event_owner_selector.name", NOT_NULL)
    elif not selector.name:
        yield Violation("event_owner_selector.name", "the length of the name must be >= 1")
    yield from size_violations("event_owner_selector.name", selector.name)
    yield from size_violations("event_owner_selector.value", selector.value)
    if selector.value is None and selector.type is not OwnerSelectorType.METADATA:
        yield Violation("event_owner_selector.value", NOT_NULL)

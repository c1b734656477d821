"""Event types as clients send them: checks of the single fields, and the values that are stored."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from msgspec.structs import asdict

from nakadi.auth import permissions
from nakadi.auth.permissions import check_no_duplicates
from nakadi.model.authorization import Attribute, AttributeDraft, Authorization, AuthorizationDraft
from nakadi.model.event_type import (
    EventTypeDraft,
    OwnerSelector,
    OwnerSelectorDraft,
    OwnerSelectorType,
    Statistics,
    StatisticsDraft,
)
from nakadi.model.outcomes import Violation
from nakadi.model.schema import SchemaDraft
from nakadi.model.sizes import MOST_ENTRIES, size_violations


def plain_fields(draft: EventTypeDraft) -> dict[str, Any]:
    """The fields that are stored as the client sends them."""
    return {
        "name": draft.name,
        "owning_application": draft.owning_application,
        "category": draft.category,
        "enrichment_strategies": draft.enrichment_strategies,
        "partition_key_fields": draft.partition_key_fields,
        "ordering_key_fields": draft.ordering_key_fields,
        "ordering_instance_ids": draft.ordering_instance_ids,
        "cleanup_policy": draft.cleanup_policy,
        "compatibility_mode": draft.compatibility_mode,
        "authorization": authorization(draft.authorization),
        "audience": draft.audience,
        "event_owner_selector": owner_selector(draft.event_owner_selector),
    }


def statistics(draft: StatisticsDraft | None) -> Statistics | None:
    return None if draft is None else Statistics(**asdict(draft))


def owner_selector(draft: OwnerSelectorDraft | None) -> OwnerSelector | None:
    if draft is None:
        return None
    assert draft.type is not None
    assert draft.name is not None
    return OwnerSelector(type=draft.type, name=draft.name, value=draft.value)


def authorization(draft: AuthorizationDraft | None) -> Authorization | None:
    if draft is None:
        return None
    return Authorization(
        admins=attributes(draft.admins), readers=attributes(draft.readers), writers=attributes(draft.writers)
    )


def attributes(drafts: tuple[AttributeDraft, ...] | None) -> tuple[Attribute, ...]:
    return tuple(Attribute(each.data_type or "", each.value or "") for each in drafts or ())


def check_authorization(draft: AuthorizationDraft | None) -> None:
    requested = authorization(draft)
    if requested is not None:
        check_no_duplicates(requested)


# Violations -----------------------------------------------------------------------------------------------------------


NOT_NULL = "must not be null"
AUTHORIZATION_MANDATORY = "Authorization section is mandatory"

_EVENT_TYPE_NAME = re.compile(r"[a-zA-Z][-0-9a-zA-Z_]*(\.[0-9a-zA-Z][-0-9a-zA-Z_]*)*")
MAX_NAME = 255

_MANDATORY_FIELDS = (
    "owning_application",
    "category",
    "schema",
    "enrichment_strategies",
    "cleanup_policy",
    "compatibility_mode",
)

_FIELD_LISTS = ("partition_key_fields", "ordering_key_fields", "ordering_instance_ids")

# Each number of the statistic, its minimum, and the message for a smaller one.
_STATISTIC = (
    ("messages_per_minute", 0, "can't be less then zero"),
    ("message_size", 1, "can't be less then 1"),
    ("read_parallelism", 1, "at least one reader expected"),
    ("write_parallelism", 1, "at least one writer expected"),
)


def draft_violations(draft: EventTypeDraft) -> tuple[Violation, ...]:
    """All violations in the fields of the draft, as far as they show without anything else than the draft."""
    return tuple(_draft_violations(draft))


def _draft_violations(draft: EventTypeDraft) -> Iterator[Violation]:
    yield from _name_violations(draft.name)
    yield from (Violation(field, NOT_NULL) for field in _MANDATORY_FIELDS if getattr(draft, field) is None)
    yield from size_violations("owning_application", draft.owning_application)
    yield from _enrichment_violations(draft)
    for field in _FIELD_LISTS:
        yield from _field_list_violations(field, getattr(draft, field))
    if draft.schema is not None:
        yield from _schema_violations(draft.schema)
    if draft.default_statistic is not None:
        yield from _statistic_violations(draft.default_statistic)
    if draft.authorization is not None:
        yield from permissions.authorization_violations(draft.authorization, permissions.EVENT_TYPE_LISTS)
    if draft.event_owner_selector is not None:
        yield from _owner_selector_violations(draft.event_owner_selector)
    yield from annotation_violations(draft.annotations or {})
    yield from label_violations(draft.labels or {})


def _name_violations(name: str | None) -> Iterator[Violation]:
    if name is None:
        yield Violation("name", NOT_NULL)
        return
    if not _EVENT_TYPE_NAME.fullmatch(name):
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
    """Violations in an owner selector. One of type `metadata` has no value, since each event names its owner."""
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


# Annotations and labels, on event types and subscriptions alike -------------------------------------------------------


MAX_PREFIX = 253
MAX_KEY_NAME = 63
MAX_ANNOTATION = 1000
MAX_LABEL = 63
# Keys are cut to this length in messages. It is more than a key may have, so that one that is too long is still known.
SHOWN = 500

_LABEL_OF_HOST = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_KEY_NAME = "[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?"
_LABEL = re.compile(_KEY_NAME)

# Each pattern describes the whole key, so a wrong character before the slash violates three of them.
_KEY_RULES = tuple(
    (re.compile(pattern), message)
    for pattern, message in (
        (
            rf"({_LABEL_OF_HOST}(\.{_LABEL_OF_HOST})*/)?[^/]*",
            "Key name should be an optional lowercase domain name with path",
        ),
        (
            rf"([-.a-z0-9]{{0,{MAX_PREFIX}}}/)?[^/]*",
            f"Key prefix cannot be more than {MAX_PREFIX} characters.",
        ),
        (rf"([-.a-z0-9]+/)?[^/]{{0,{MAX_KEY_NAME}}}", f"Key name cannot be more than {MAX_KEY_NAME} characters."),
        (f"([^/]+/)?{_KEY_NAME}", "Key name should start and end with a letter or a digit"),
    )
)


def annotation_violations(annotations: Mapping[str, str | None]) -> Iterator[Violation]:
    yield from size_violations("annotations", annotations, MOST_ENTRIES)
    for key, value in islice(annotations.items(), MOST_ENTRIES):
        path = f"annotations[{key[:SHOWN]}]"
        yield from _key_violations(path, key[:SHOWN])
        yield from size_violations(path, value, MAX_ANNOTATION)


def label_violations(labels: Mapping[str, str | None]) -> Iterator[Violation]:
    yield from size_violations("labels", labels, MOST_ENTRIES)
    for key, value in islice(labels.items(), MOST_ENTRIES):
        path = f"labels[{key[:SHOWN]}]"
        yield from _key_violations(path, key[:SHOWN])
        yield from size_violations(path, value, MAX_LABEL)
        if value and not _LABEL.fullmatch(value):
            yield Violation(path, "Should contain only allowed symbols")


def _key_violations(path: str, key: str) -> Iterator[Violation]:
    if not key:
        yield Violation(path, "Key cannot be empty")
    for rule, message in _KEY_RULES:
        if not rule.fullmatch(key):
            yield Violation(path, message)

"""Event types as clients send them: checks of the single fields, and the values that are stored."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
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
from nakadi.model.outcomes import MOST_ENTRIES, Violation, size_violations
from nakadi.openapi.checks import NOT_NULL, body_violations


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


_PLAIN = (
    *("name", "owning_application", "category", "enrichment_strategies", "partition_key_fields"),
    *("ordering_key_fields", "ordering_instance_ids", "cleanup_policy", "compatibility_mode"),
)

AUTHORIZATION_MANDATORY = "Authorization section is mandatory"


def draft_violations(draft: EventTypeDraft) -> tuple[Violation, ...]:
    """All violations in the fields of the draft, as far as they show without anything else than the draft."""
    return (
        *body_violations("EventTypeDraft", _body(draft)),
        *_owner_violations(draft.event_owner_selector),
        *annotation_violations(draft.annotations or {}),
        *label_violations(draft.labels or {}),
    )


def _body(draft: EventTypeDraft) -> dict[str, Any]:
    """The draft as its description has it. Of the strategy for partitions, rules say more than a description can."""
    schema, statistic, selector = draft.schema, draft.default_statistic, draft.event_owner_selector
    return {
        **{name: getattr(draft, name) for name in _PLAIN},
        "schema": None if schema is None else {"type": schema.type, "schema": schema.text},
        "default_statistic": None if statistic is None else asdict(statistic),
        "authorization": permissions.authorization_body(draft.authorization),
        "event_owner_selector": None if selector is None else asdict(selector),
    }


def _owner_violations(selector: OwnerSelectorDraft | None) -> Iterator[Violation]:
    """An owner that the metadata of events names needs no value."""
    if selector is not None and selector.value is None and selector.type is not OwnerSelectorType.METADATA:
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

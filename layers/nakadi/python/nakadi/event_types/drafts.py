"""Event types as clients send them: checks of single fields, and the values that are stored."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from msgspec.structs import asdict

from nakadi.auth import authorization
from nakadi.auth.authorization import check_no_duplicates_in_lists
from nakadi.event_types.annotations import annotation_violations, label_violations
from nakadi.model.authorization import Attribute, AttributeDraft, Authorization, AuthorizationDraft
from nakadi.model.event_type import (
    Deduplication,
    DeduplicationDraft,
    EventTypeDraft,
    OwnerSelector,
    OwnerSelectorDraft,
    OwnerSelectorType,
    Statistics,
    StatisticsDraft,
)
from nakadi.model.outcomes import Violation
from nakadi.openapi.checks import NULL_REFUSED_MESSAGE, openapi_violations
from nakadi.ports.clock import Clock


def now_in_milliseconds(clock: Clock) -> datetime:
    """The time now, truncated to milliseconds as in responses, so that stored and returned times are equal."""
    now = clock.now()
    return now.replace(microsecond=now.microsecond // 1000 * 1000)


_FIELDS_STORED_AS_SENT = (
    *("name", "owning_application", "category", "enrichment_strategies", "partition_key_fields"),
    *("ordering_key_fields", "ordering_instance_ids", "cleanup_policy", "compatibility_mode"),
)


def fields_stored_as_sent(draft: EventTypeDraft) -> dict[str, Any]:
    """The fields that are stored as the client sends them."""
    return {
        **{name: getattr(draft, name) for name in (*_FIELDS_STORED_AS_SENT, "audience")},
        "authorization": authorization_from_draft(draft.authorization),
        "event_owner_selector": owner_selector_from_draft(draft.event_owner_selector),
    }


def deduplication_from_draft(draft: DeduplicationDraft | None) -> Deduplication | None:
    if draft is None:
        return None
    assert draft.window_seconds is not None
    return Deduplication(window_seconds=draft.window_seconds)


def statistics_from_draft(draft: StatisticsDraft | None) -> Statistics | None:
    return None if draft is None else Statistics(**asdict(draft))


def owner_selector_from_draft(draft: OwnerSelectorDraft | None) -> OwnerSelector | None:
    if draft is None:
        return None
    assert draft.type is not None
    assert draft.name is not None
    return OwnerSelector(type=draft.type, name=draft.name, value=draft.value)


def authorization_from_draft(draft: AuthorizationDraft | None) -> Authorization | None:
    if draft is None:
        return None
    return Authorization(
        admins=attributes_from_drafts(draft.admins),
        readers=attributes_from_drafts(draft.readers),
        writers=attributes_from_drafts(draft.writers),
    )


def attributes_from_drafts(drafts: tuple[AttributeDraft, ...] | None) -> tuple[Attribute, ...]:
    return tuple(Attribute(each.data_type or "", each.value or "") for each in drafts or ())


def check_no_duplicate_attributes(draft: AuthorizationDraft | None) -> None:
    requested = authorization_from_draft(draft)
    if requested is not None:
        check_no_duplicates_in_lists(requested)


AUTHORIZATION_MANDATORY_MESSAGE = "Authorization section is mandatory"


def rule_violations(draft: EventTypeDraft) -> tuple[Violation, ...]:
    """All violations that the draft alone shows, without any stored data."""
    return (
        *openapi_violations("EventTypeDraft", _body_from_draft(draft)),
        *_owner_violations(draft.event_owner_selector),
        *annotation_violations(draft.annotations or {}),
        *label_violations(draft.labels or {}),
    )


def _body_from_draft(draft: EventTypeDraft) -> dict[str, Any]:
    """The draft in the form of the API description, except for the partition strategy, whose rules no description can
    express.
    """
    schema, statistic, selector = draft.schema, draft.default_statistic, draft.event_owner_selector
    return {
        **{name: getattr(draft, name) for name in _FIELDS_STORED_AS_SENT},
        "schema": None if schema is None else {"type": schema.type, "schema": schema.text},
        "default_statistic": None if statistic is None else asdict(statistic),
        "authorization": authorization.authorization_body(draft.authorization),
        "event_owner_selector": None if selector is None else asdict(selector),
        "deduplication": asdict(draft.deduplication) if draft.deduplication else None,
    }


def _owner_violations(selector: OwnerSelectorDraft | None) -> Iterator[Violation]:
    """Violations of an owner selector. One that reads metadata needs no value."""
    if selector is not None and selector.value is None and selector.type is not OwnerSelectorType.METADATA:
        yield Violation("event_owner_selector.value", NULL_REFUSED_MESSAGE)

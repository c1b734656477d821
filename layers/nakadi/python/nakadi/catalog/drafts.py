"""From a draft whose fields were found sound to the nouns that are kept."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from nakadi.access.lists import check_no_duplicates
from nakadi.model.authorization import Attribute, AttributeDraft, Authorization, AuthorizationDraft
from nakadi.model.event_type import EventTypeDraft, OwnerSelector, OwnerSelectorDraft, Statistics, StatisticsDraft


def plain_fields(draft: EventTypeDraft) -> dict[str, Any]:
    """The fields that are kept just as they are asked for."""
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


def attributes(listed: tuple[AttributeDraft, ...] | None) -> tuple[Attribute, ...]:
    return tuple(Attribute(each.data_type or "", each.value or "") for each in listed or ())


def check_authorization(draft: AuthorizationDraft | None) -> None:
    wished = authorization(draft)
    if wished is not None:
        check_no_duplicates(wished)

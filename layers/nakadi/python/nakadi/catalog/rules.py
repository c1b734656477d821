"""What has to hold for an event type, whether it is new or changed. Every check raises `Invalid`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nakadi.model.event_type import (
    Category,
    CleanupPolicy,
    EnrichmentStrategy,
    EventType,
    EventTypeDraft,
    OwnerSelectorDraft,
    OwnerSelectorType,
    PartitionStrategy,
    Statistics,
)
from nakadi.model.outcomes import Invalid
from nakadi.schemas.nodes import missing


def check_retention(retention_time: int | None, *, minimum: int, maximum: int) -> None:
    """In milliseconds; None stands for whatever is the default, and is fine."""
    if retention_time is None:
        return
    if retention_time > maximum:
        raise Invalid(f'Field "options.retention_time" can not be more than {maximum}')
    if retention_time < minimum:
        raise Invalid(f'Field "options.retention_time" can not be less than {minimum}')


def check_cleanup_policy(policy: CleanupPolicy, category: Category) -> None:
    """Events are compacted by a key in their metadata, which those of category `undefined` do not have."""
    if policy.compacts and category is Category.UNDEFINED:
        raise Invalid(
            "cleanup_policy 'compact' and 'compact_and_delete' is not available for 'undefined' event type category"
        )


def check_enrichment(strategies: Sequence[EnrichmentStrategy | None], category: Category) -> None:
    if category is Category.UNDEFINED and strategies:
        raise Invalid("must not define enrichment strategy for undefined event type")
    if len(set(strategies)) < len(strategies):
        raise Invalid("enrichment strategies must not contain duplicated entries")
    if category is not Category.UNDEFINED and EnrichmentStrategy.METADATA not in strategies:
        raise Invalid("must define metadata enrichment strategy")


def partition_strategy(name: str | None, key_fields: Sequence[str | None], category: Category) -> PartitionStrategy:
    """The strategy of that name, if it can be used with these fields and this category."""
    if name is None:
        raise Invalid("partition strategy must not be null")
    if name not in set(PartitionStrategy):
        raise Invalid(f"partition strategy does not exist: {name}")
    strategy = PartitionStrategy(name)
    if strategy is PartitionStrategy.HASH and not key_fields:
        raise Invalid("partition_key_fields field should be set for partition strategy 'hash'")
    if strategy is PartitionStrategy.USER_DEFINED and category is Category.UNDEFINED:
        raise Invalid("'user_defined' partition strategy can't be used for EventType of category 'undefined'")
    return strategy


def check_owner_selector(selector: OwnerSelectorDraft | None) -> None:
    if selector is not None and selector.type is OwnerSelectorType.METADATA and selector.value is not None:
        raise Invalid("event_owner_selector specifying value for type 'metadata' is not supported")


def check_fields_in_schema(wanted: EventType | EventTypeDraft, effective: Mapping[str, Any]) -> None:
    """The fields that are named elsewhere in an event type are fields of its events."""
    selector = wanted.event_owner_selector
    if selector is not None and selector.type is OwnerSelectorType.PATH:
        _check_present("event_owner_selector.value", (selector.value or "",), effective)
    _check_present("ordering_key_fields", wanted.ordering_key_fields, effective)
    if wanted.ordering_instance_ids and not wanted.ordering_key_fields:
        raise Invalid("`ordering_instance_ids` field can not be defined without defining `ordering_key_fields`")
    _check_present("ordering_instance_ids", wanted.ordering_instance_ids, effective)


def _check_present(field: str, paths: Sequence[str], effective: Mapping[str, Any]) -> None:
    absent = missing(effective, paths)
    if absent:
        raise Invalid(f"{field} [{', '.join(absent)}] absent in schema")


def partition_count(statistic: Statistics | None, *, default: int, maximum: int) -> int:
    """As many as the busier side needs, within what is permitted."""
    if statistic is None:
        return default
    return min(max(statistic.read_parallelism, statistic.write_parallelism), maximum)

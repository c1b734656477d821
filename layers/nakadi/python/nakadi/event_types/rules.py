"""The rules for event types: which values are valid, and which changes are permitted. Checks raise `Invalid`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from nakadi.model.event_type import (
    Audience,
    Category,
    CleanupPolicy,
    CompatibilityMode,
    EnrichmentStrategy,
    EventType,
    EventTypeDraft,
    OwnerSelector,
    OwnerSelectorDraft,
    OwnerSelectorType,
    PartitionStrategy,
    Statistics,
)
from nakadi.model.outcomes import Invalid
from nakadi.schemas.nodes import undefined_paths


def check_retention(retention_time: int | None, *, minimum: int, maximum: int) -> None:
    """Check a retention time in milliseconds. None means the default, which is valid."""
    if retention_time is None:
        return
    if retention_time > maximum:
        raise Invalid(f'Field "options.retention_time" can not be more than {maximum}')
    if retention_time < minimum:
        raise Invalid(f'Field "options.retention_time" can not be less than {minimum}')


def check_cleanup_policy(policy: CleanupPolicy, category: Category) -> None:
    """Refuse compaction for the category `undefined`: its events have no metadata, and therefore no compaction key."""
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
    """The strategy with this name. Raises `Invalid` if it cannot be used with these key fields and this category."""
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


def check_fields_in_schema(definition: EventType | EventTypeDraft, effective_schema: Mapping[str, Any]) -> None:
    selector = definition.event_owner_selector
    if selector is not None and selector.type is OwnerSelectorType.PATH:
        _check_fields_present("event_owner_selector.value", (selector.value or "",), effective_schema)
    _check_fields_present("ordering_key_fields", definition.ordering_key_fields, effective_schema)
    if definition.ordering_instance_ids and not definition.ordering_key_fields:
        raise Invalid("`ordering_instance_ids` field can not be defined without defining `ordering_key_fields`")
    _check_fields_present("ordering_instance_ids", definition.ordering_instance_ids, effective_schema)


def _check_fields_present(field: str, paths: Sequence[str], effective_schema: Mapping[str, Any]) -> None:
    absent = undefined_paths(effective_schema, paths)
    if absent:
        raise Invalid(f"{field} [{', '.join(absent)}] absent in schema")


def partition_count(statistic: Statistics | None, *, default: int, maximum: int) -> int:
    """The number of partitions: the larger parallelism of the statistic, at most the maximum."""
    if statistic is None:
        return default
    return min(max(statistic.read_parallelism, statistic.write_parallelism), maximum)


CATEGORY_CHANGE_MESSAGE = (
    "Category change is allowed only from 'undefined' to 'business'. "
    "'enrichment_strategies' should be properly set as well"
)
MODE_CHANGE_MESSAGE = "changing compatibility_mode is not allowed"
STRATEGY_CHANGE_MESSAGE = "changing partition_strategy is only allowed if the original strategy was 'random'"
ENRICHMENT_CHANGE_MESSAGE = "changing enrichment_strategies is not allowed"

# The changes of mode that every owner may make: each promises more to consumers than the one before.
_TIGHTENING_MODE_CHANGES = frozenset(
    {(CompatibilityMode.NONE, CompatibilityMode.FORWARD), (CompatibilityMode.FORWARD, CompatibilityMode.COMPATIBLE)}
)


def check_owner_selector_change(old: OwnerSelector | None, new: OwnerSelector | None) -> None:
    if old is None or old == new:
        return
    if new is None:
        raise Invalid("event_owner_selector can't be set back to null")
    raise Invalid(
        f"event_owner_selector must not be changed, original: {_selector_text(old)}, updated: {_selector_text(new)}"
    )


def _selector_text(selector: OwnerSelector) -> str:
    return f"{{type={selector.type}, name={selector.name}, value={selector.value}}}"


def check_cleanup_policy_change(old: CleanupPolicy, new: CleanupPolicy) -> None:
    """Permit only the change that adds compaction to deletion. Other changes would lose events, or keep them for too
    long.
    """
    if old is not new and (old, new) != (CleanupPolicy.DELETE, CleanupPolicy.COMPACT_AND_DELETE):
        raise Invalid(f"Invalid cleanup_policy change: {old.name} cannot be changed to {new.name}")


def check_audience_change(old: Audience | None, new: Audience | None) -> None:
    if old is not None and new is None:
        raise Invalid("event audience must not be set back to null")


def check_statistics_change(old: Statistics | None, new: Statistics | None) -> None:
    """Refuse a change of the parallelisms, because they have determined the number of partitions. A missing statistic
    means no change.
    """
    if new is not None and (old is None or _read_and_write_parallelism(old) != _read_and_write_parallelism(new)):
        raise Invalid("default statistics must not be changed")


def _read_and_write_parallelism(statistic: Statistics) -> tuple[int, int]:
    return statistic.read_parallelism, statistic.write_parallelism


def check_mode_strategy_and_category_changes(
    old: EventType, new: EventType, *, is_event_type_admin: bool, is_nakadi_admin: bool
) -> None:
    """Check the changes of compatibility mode, partition strategy and enrichment, and of the category.

    The first three are reported together; a change of category is reported alone.
    """
    mode = None if _may_change_mode(old, new, admin=is_event_type_admin or is_nakadi_admin) else MODE_CHANGE_MESSAGE
    strategy = None if is_nakadi_admin or _may_change_strategy(old, new) else STRATEGY_CHANGE_MESSAGE
    enrichment = None if old.enrichment_strategies == new.enrichment_strategies else ENRICHMENT_CHANGE_MESSAGE
    if old.category is not new.category:
        if _becomes_business(old, new) and not (mode or strategy):
            return
        raise Invalid(CATEGORY_CHANGE_MESSAGE)
    problems = [each for each in (mode, strategy, enrichment) if each]
    if problems:
        raise Invalid("; ".join(problems))


def _may_change_mode(old: EventType, new: EventType, *, admin: bool) -> bool:
    """Whether the compatibility mode may change. Everyone is an administrator of an event type without
    authorization.
    """
    change = (old.compatibility_mode, new.compatibility_mode)
    return admin or old.authorization is None or change[0] is change[1] or change in _TIGHTENING_MODE_CHANGES


def _may_change_strategy(old: EventType, new: EventType) -> bool:
    return old.partition_strategy in (new.partition_strategy, PartitionStrategy.RANDOM)


def _becomes_business(old: EventType, new: EventType) -> bool:
    """Whether the change is the permitted one from `undefined` to `business`, whose events have metadata."""
    return (
        (old.category, new.category) == (Category.UNDEFINED, Category.BUSINESS)
        and EnrichmentStrategy.METADATA in new.enrichment_strategies
        and new.compatibility_mode is not CompatibilityMode.COMPATIBLE
    )


class EventTypeLimits(Struct, frozen=True, kw_only=True):
    """Limits of this broker for event types. Retention times are in milliseconds."""

    default_partitions: int
    max_partitions: int
    retention_min: int
    retention_default: int
    retention_max: int

    def check_retention(self, retention_time: int | None) -> None:
        check_retention(retention_time, minimum=self.retention_min, maximum=self.retention_max)

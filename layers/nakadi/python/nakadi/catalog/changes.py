"""How a registered event type may change. Every check raises `Invalid` and takes what is and what is wished for."""

from __future__ import annotations

from nakadi.model.event_type import (
    Audience,
    Category,
    CleanupPolicy,
    CompatibilityMode,
    EnrichmentStrategy,
    EventType,
    OwnerSelector,
    PartitionStrategy,
    Statistics,
)
from nakadi.model.outcomes import Invalid

CATEGORY = (
    "Category change is allowed only from 'undefined' to 'business'. "
    "'enrichment_strategies' should be properly set as well"
)
MODE = "changing compatibility_mode is not allowed"
STRATEGY = "changing partition_strategy is only allowed if the original strategy was 'random'"
ENRICHMENT = "changing enrichment_strategies is not allowed"

# The changes of mode that every owner may make: each step promises consumers more than before.
_TIGHTENING = frozenset(
    {
        (CompatibilityMode.NONE, CompatibilityMode.FORWARD),
        (CompatibilityMode.FORWARD, CompatibilityMode.COMPATIBLE),
    }
)


def check_owner_selector(old: OwnerSelector | None, new: OwnerSelector | None) -> None:
    if old is None or old == new:
        return
    if new is None:
        raise Invalid("event_owner_selector can't be set back to null")
    raise Invalid(f"event_owner_selector must not be changed, original: {_told(old)}, updated: {_told(new)}")


def _told(selector: OwnerSelector) -> str:
    return f"{{type={selector.type}, name={selector.name}, value={selector.value}}}"


def check_cleanup_policy(old: CleanupPolicy, new: CleanupPolicy) -> None:
    """Compaction may begin while old events still expire; whatever else would lose or keep events against a promise."""
    if old is not new and (old, new) != (CleanupPolicy.DELETE, CleanupPolicy.COMPACT_AND_DELETE):
        raise Invalid(f"Invalid cleanup_policy change: {old.name} cannot be changed to {new.name}")


def check_audience(old: Audience | None, new: Audience | None) -> None:
    if old is not None and new is None:
        raise Invalid("event audience must not be set back to null")


def check_statistics(old: Statistics | None, new: Statistics | None) -> None:
    """The parallelisms once decided the number of partitions; leaving the statistic out leaves it as it is."""
    if new is not None and (old is None or _parallelism(old) != _parallelism(new)):
        raise Invalid("default statistics must not be changed")


def _parallelism(statistic: Statistics) -> tuple[int, int]:
    return statistic.read_parallelism, statistic.write_parallelism


def check_constraints(old: EventType, new: EventType, *, is_event_type_admin: bool, is_nakadi_admin: bool) -> None:
    """Compatibility mode, partition strategy and enrichment, which are told together, and the category, told alone."""
    mode = None if _may_change_mode(old, new, admin=is_event_type_admin or is_nakadi_admin) else MODE
    strategy = None if is_nakadi_admin or _may_change_strategy(old, new) else STRATEGY
    enrichment = None if old.enrichment_strategies == new.enrichment_strategies else ENRICHMENT
    if old.category is not new.category:
        if _becomes_business(old, new) and not (mode or strategy):
            return
        raise Invalid(CATEGORY)
    told = [each for each in (mode, strategy, enrichment) if each]
    if told:
        raise Invalid("; ".join(told))


def _may_change_mode(old: EventType, new: EventType, *, admin: bool) -> bool:
    """An event type that is open to everyone has everyone for an admin."""
    change = (old.compatibility_mode, new.compatibility_mode)
    return admin or old.authorization is None or change[0] is change[1] or change in _TIGHTENING


def _may_change_strategy(old: EventType, new: EventType) -> bool:
    return old.partition_strategy in (new.partition_strategy, PartitionStrategy.RANDOM)


def _becomes_business(old: EventType, new: EventType) -> bool:
    """An event that was free to look like anything may begin to carry metadata, which the broker then adds to."""
    return (
        (old.category, new.category) == (Category.UNDEFINED, Category.BUSINESS)
        and EnrichmentStrategy.METADATA in new.enrichment_strategies
        and new.compatibility_mode is not CompatibilityMode.COMPATIBLE
    )

"""How a registered event type may change."""

import pytest
from msgspec.structs import replace

from nakadi.event_types import rules
from nakadi.model.authorization import Attribute, Authorization
from nakadi.model.event_type import (
    Audience,
    Category,
    CleanupPolicy,
    CompatibilityMode,
    EnrichmentStrategy,
    OwnerSelector,
    OwnerSelectorType,
    PartitionStrategy,
    Statistics,
)
from nakadi.model.outcomes import Invalid
from tests.support.builders import an_event_type

OWNED = Authorization(admins=(Attribute("user", "ann"),), readers=(), writers=())
METADATA = (EnrichmentStrategy.METADATA,)
BY_TEAM = OwnerSelector(type=OwnerSelectorType.PATH, name="team", value="owner.team")


def refusal_detail(check, *arguments, **flags) -> str:
    with pytest.raises(Invalid) as refused:
        check(*arguments, **flags)
    return refused.value.detail


def check_call(old, *, event_type_admin=False, nakadi_admin=False, **changes):
    flags = {"is_event_type_admin": event_type_admin, "is_nakadi_admin": nakadi_admin}
    return rules.check_mode_strategy_and_category_changes, old, replace(old, **changes), flags


def expected_refusals(old, **changes) -> str:
    check, *pair, flags = check_call(old, **changes)
    return refusal_detail(check, *pair, **flags)


def check_change(old, **changes) -> bool:
    check, *pair, flags = check_call(old, **changes)
    check(*pair, **flags)
    return True


def test_an_owner_selector_may_be_added():
    """An owner selector may be added to an event type, and may then stay. (R116)"""
    rules.check_owner_selector_change(None, None)
    rules.check_owner_selector_change(None, BY_TEAM)
    rules.check_owner_selector_change(BY_TEAM, replace(BY_TEAM))


def test_an_owner_selector_may_not_change():
    """An owner selector may neither change nor be removed, because stored events have their owner from it. (R116)"""
    other = replace(BY_TEAM, name="other")
    assert (
        refusal_detail(rules.check_owner_selector_change, BY_TEAM, None)
        == "event_owner_selector can't be set back to null"
    )
    assert refusal_detail(rules.check_owner_selector_change, BY_TEAM, other) == (
        "event_owner_selector must not be changed, original: {type=path, name=team, value=owner.team}, "
        "updated: {type=path, name=other, value=owner.team}"
    )


@pytest.mark.parametrize("old", CleanupPolicy)
@pytest.mark.parametrize("new", CleanupPolicy)
def test_changes_of_the_cleanup_policy(old, new):
    """The cleanup policy may change from `delete` to `compact_and_delete`, and in no other way. (R117)"""
    if old is new or (old, new) == (CleanupPolicy.DELETE, CleanupPolicy.COMPACT_AND_DELETE):
        rules.check_cleanup_policy_change(old, new)
    else:
        message = f"Invalid cleanup_policy change: {old.value.upper()} cannot be changed to {new.value.upper()}"
        assert refusal_detail(rules.check_cleanup_policy_change, old, new) == message


def test_an_audience_may_change_but_not_be_removed():
    """An audience may be set and changed, but not removed. (R118)"""
    public, internal = Audience.EXTERNAL_PUBLIC, Audience.COMPANY_INTERNAL
    for old, new in ((None, None), (None, public), (public, internal), (public, public)):
        rules.check_audience_change(old, new)
    assert refusal_detail(rules.check_audience_change, public, None) == "event audience must not be set back to null"


STATISTIC = Statistics(messages_per_minute=1, message_size=1, read_parallelism=2, write_parallelism=3)


@pytest.mark.parametrize(
    ("old", "new", "ok"),
    [
        (STATISTIC, None, True),
        (None, None, True),
        (STATISTIC, STATISTIC, True),
        (STATISTIC, replace(STATISTIC, messages_per_minute=9, message_size=9), True),
        (STATISTIC, replace(STATISTIC, read_parallelism=3), False),
        (STATISTIC, replace(STATISTIC, write_parallelism=2), False),
        (None, STATISTIC, False),
    ],
)
def test_parallelisms_may_not_change(old, new, ok):
    """The two parallelisms never change, even if they were not set; the other numbers of the statistic may change.
    (R119)
    """
    if ok:
        rules.check_statistics_change(old, new)
    else:
        assert refusal_detail(rules.check_statistics_change, old, new) == "default statistics must not be changed"


@pytest.mark.parametrize("old", PartitionStrategy)
@pytest.mark.parametrize("new", PartitionStrategy)
def test_a_partition_strategy_may_change_from_random(old, new):
    """A partition strategy may change only from `random`, or if an administrator of the broker changes it. (R114,
    R120)"""
    event_type = an_event_type(partition_strategy=old)
    assert check_change(event_type, partition_strategy=new, nakadi_admin=True)
    if old in (new, PartitionStrategy.RANDOM):
        assert check_change(event_type, partition_strategy=new)
    else:
        message = "changing partition_strategy is only allowed if the original strategy was 'random'"
        assert expected_refusals(event_type, partition_strategy=new) == message
        assert expected_refusals(event_type, partition_strategy=new, event_type_admin=True) == message


@pytest.mark.parametrize(("old", "new"), [((), METADATA), (METADATA, ())])
def test_enrichment_may_not_change(old, new):
    """Enrichment strategies may not change, even if an administrator changes them. (R121)"""
    event_type = an_event_type(category=Category.BUSINESS, enrichment_strategies=old)
    for flags in ({}, {"event_type_admin": True}, {"nakadi_admin": True}):
        assert expected_refusals(event_type, enrichment_strategies=new, **flags) == (
            "changing enrichment_strategies is not allowed"
        )


def test_undefined_events_may_become_business_events():
    """The category `undefined` may become `business`, together with the enrichment that `business` needs. (R121,
    R122)"""
    assert check_change(an_event_type(), category=Category.BUSINESS, enrichment_strategies=METADATA)


CATEGORY = (
    "Category change is allowed only from 'undefined' to 'business'. "
    "'enrichment_strategies' should be properly set as well"
)


@pytest.mark.parametrize(
    ("old", "changes", "message"),
    [
        ({}, {"category": Category.BUSINESS}, CATEGORY),
        (
            {},
            {
                "category": Category.BUSINESS,
                "enrichment_strategies": METADATA,
                "compatibility_mode": CompatibilityMode.COMPATIBLE,
            },
            CATEGORY,
        ),
        (
            {},
            {"category": Category.DATA, "enrichment_strategies": METADATA},
            CATEGORY,
        ),
        (
            {"category": Category.BUSINESS, "enrichment_strategies": METADATA},
            {"category": Category.UNDEFINED},
            CATEGORY,
        ),
        ({"category": Category.DATA, "enrichment_strategies": METADATA}, {"category": Category.BUSINESS}, CATEGORY),
    ],
)
def test_other_changes_of_the_category_are_refused(old, changes, message):
    """Any other change of category is refused in one message, even by an administrator. (R122)"""
    assert expected_refusals(an_event_type(**old), **changes, nakadi_admin=True) == message


MODES = list(CompatibilityMode)
TIGHTENING = {
    (CompatibilityMode.NONE, CompatibilityMode.FORWARD),
    (CompatibilityMode.FORWARD, CompatibilityMode.COMPATIBLE),
}


@pytest.mark.parametrize("old", MODES)
@pytest.mark.parametrize("new", MODES)
def test_a_compatibility_mode_may_be_tightened_step_by_step(old, new):
    """Every subject that may update an event type may tighten its mode by one step; admins may make any change. (R123,
    R275)
    """
    event_type = an_event_type(compatibility_mode=old, authorization=OWNED)
    assert check_change(event_type, compatibility_mode=new, event_type_admin=True)
    assert check_change(event_type, compatibility_mode=new, nakadi_admin=True)
    if old is new or (old, new) in TIGHTENING:
        assert check_change(event_type, compatibility_mode=new)
    else:
        assert expected_refusals(event_type, compatibility_mode=new) == "changing compatibility_mode is not allowed"


@pytest.mark.parametrize("old", MODES)
@pytest.mark.parametrize("new", MODES)
def test_everyone_is_admin_of_an_open_event_type(old, new):
    """Everyone may change the mode of an event type without authorization. (R124)"""
    assert check_change(an_event_type(compatibility_mode=old), compatibility_mode=new)


def test_all_refused_changes_are_reported_in_order():
    """Refused changes of the mode, the partition strategy and the enrichment are reported together, in this order.
    (R125)
    """
    old = an_event_type(
        category=Category.BUSINESS,
        enrichment_strategies=METADATA,
        partition_strategy=PartitionStrategy.HASH,
        partition_key_fields=("a",),
        compatibility_mode=CompatibilityMode.COMPATIBLE,
        authorization=OWNED,
    )
    assert expected_refusals(
        old,
        enrichment_strategies=(),
        partition_strategy=PartitionStrategy.RANDOM,
        compatibility_mode=CompatibilityMode.NONE,
    ) == (
        "changing compatibility_mode is not allowed; "
        "changing partition_strategy is only allowed if the original strategy was 'random'; "
        "changing enrichment_strategies is not allowed"
    )


def test_a_category_does_not_change_when_another_change_is_refused():
    """A permitted change of category is refused together with any other refused change; only the other one is reported.
    (R122)"""
    old = an_event_type(partition_strategy=PartitionStrategy.HASH, partition_key_fields=("a",))
    message = expected_refusals(
        old,
        category=Category.BUSINESS,
        enrichment_strategies=METADATA,
        partition_strategy=PartitionStrategy.RANDOM,
    )
    assert message == CATEGORY


def test_other_fields_may_change():
    """Owner, key and ordering fields, audience, retention, authorization lists, annotations and labels may change
    freely. (R126)
    """
    assert check_change(
        an_event_type(authorization=OWNED),
        owning_application="other",
        partition_key_fields=("a", "b"),
        ordering_key_fields=("c",),
        ordering_instance_ids=("d",),
        audience=Audience.EXTERNAL_PUBLIC,
        retention_time=10_800_000,
        authorization=replace(OWNED, readers=(Attribute("user", "bob"),)),
        annotations={"a": "b"},
        labels={"c": "d"},
    )

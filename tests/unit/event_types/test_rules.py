"""The rules for an event type."""

import pytest

from nakadi.event_types import rules
from nakadi.model.event_type import (
    Category,
    CleanupPolicy,
    EnrichmentStrategy,
    EventTypeDraft,
    OwnerSelectorDraft,
    OwnerSelectorType,
    PartitionStrategy,
    Statistics,
)
from nakadi.model.outcomes import Invalid

METADATA = EnrichmentStrategy.METADATA


def refusal_detail(check, *arguments, **options) -> str:
    with pytest.raises(Invalid) as refused:
        check(*arguments, **options)
    return refused.value.detail


@pytest.mark.parametrize("milliseconds", [None, 10, 15, 20])
def test_retention_within_limits(milliseconds):
    """Both limits of the retention time are themselves valid; so is an event type without a retention time. (R78,
    R79)"""
    rules.check_retention(milliseconds, minimum=10, maximum=20)


@pytest.mark.parametrize(("milliseconds", "words"), [(21, "more than 20"), (9, "less than 10"), (-1, "less than 10")])
def test_retention_beyond_limits(milliseconds, words):
    """A retention time beyond a limit is refused with a message that contains the limit. (R78)"""
    message = refusal_detail(rules.check_retention, milliseconds, minimum=10, maximum=20)
    assert message == f'Field "options.retention_time" can not be {words}'


@pytest.mark.parametrize("category", Category)
@pytest.mark.parametrize("policy", CleanupPolicy)
def test_compaction_needs_metadata(policy, category):
    """Compaction is refused for the category `undefined`: without metadata, events have no compaction key. (R98)"""
    if category is Category.UNDEFINED and policy is not CleanupPolicy.DELETE:
        assert refusal_detail(rules.check_cleanup_policy, policy, category) == (
            "cleanup_policy 'compact' and 'compact_and_delete' is not available for 'undefined' event type category"
        )
    else:
        rules.check_cleanup_policy(policy, category)


@pytest.mark.parametrize(
    ("category", "strategies", "message"),
    [
        (Category.UNDEFINED, (), None),
        (Category.UNDEFINED, (METADATA,), "must not define enrichment strategy for undefined event type"),
        (Category.BUSINESS, (METADATA,), None),
        (Category.DATA, (METADATA,), None),
        (Category.BUSINESS, (), "must define metadata enrichment strategy"),
        (Category.DATA, (), "must define metadata enrichment strategy"),
        (Category.DATA, (METADATA, METADATA), "enrichment strategies must not contain duplicated entries"),
    ],
)
def test_metadata_is_enriched_in_all_categories_that_have_it(category, strategies, message):
    """Event types of the categories `business` and `data` have exactly one enrichment strategy, and those of the
    category `undefined` have none. (R99)
    """
    if message is None:
        rules.check_enrichment(strategies, category)
    else:
        assert refusal_detail(rules.check_enrichment, strategies, category) == message


@pytest.mark.parametrize(
    ("name", "key_fields", "category"),
    [
        ("random", (), Category.UNDEFINED),
        ("random", ("not.in.schema",), Category.DATA),
        ("hash", ("not.in.schema",), Category.UNDEFINED),
        ("user_defined", (), Category.BUSINESS),
    ],
)
def test_valid_partition_strategies(name, key_fields, category):
    """The name identifies a strategy; key fields may be given with any strategy, and are not looked up in the schema.
    (R86, R100, R273)"""
    assert rules.partition_strategy(name, key_fields, category) is PartitionStrategy(name)


@pytest.mark.parametrize(
    ("name", "category", "message"),
    [
        (None, Category.BUSINESS, "partition strategy must not be null"),
        ("best", Category.BUSINESS, "partition strategy does not exist: best"),
        ("HASH", Category.BUSINESS, "partition strategy does not exist: HASH"),
        ("hash", Category.BUSINESS, "partition_key_fields field should be set for partition strategy 'hash'"),
        (
            "user_defined",
            Category.UNDEFINED,
            "'user_defined' partition strategy can't be used for EventType of category 'undefined'",
        ),
    ],
)
def test_invalid_partition_strategies_are_refused(name, category, message):
    """A strategy that is unknown, or that lacks its fields, is refused. (R71, R100, R126)"""
    assert refusal_detail(rules.partition_strategy, name, (), category) == message


def selector(kind, value=None):
    return OwnerSelectorDraft(type=OwnerSelectorType(kind), name="owner", value=value)


def test_an_owner_in_the_metadata_has_no_value():
    """An owner selector of type `metadata` is accepted without a value. (R74, deviation)"""
    for fine in (None, selector("metadata"), selector("path", "a"), selector("static", "a")):
        rules.check_owner_selector(fine)
    assert refusal_detail(rules.check_owner_selector, selector("metadata", "a")) == (
        "event_owner_selector specifying value for type 'metadata' is not supported"
    )


EFFECTIVE = {"properties": {"data": {"properties": {"a": {}, "b": {}}}}}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"event_owner_selector": selector("path", "data.a")},
        {"event_owner_selector": selector("static", "not.a.path")},
        {"event_owner_selector": selector("metadata")},
        {"ordering_key_fields": ("data.a", "data.b"), "ordering_instance_ids": ("data.b",)},
        {"partition_key_fields": ("not.there",)},
    ],
)
def test_named_fields_in_the_schema_are_valid(fields):
    """A field may be named if events have it; values that are not checked as paths may be anything. (R75, R77, R82,
    R86)"""
    rules.check_fields_in_schema(EventTypeDraft(**fields), EFFECTIVE)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"event_owner_selector": selector("path", "a"), "ordering_key_fields": ("b",)},
            "event_owner_selector.value [a] absent in schema",
        ),
        (
            {"ordering_key_fields": ("x", "data.a", "y"), "ordering_instance_ids": ("z",)},
            "ordering_key_fields [x, y] absent in schema",
        ),
        (
            {"ordering_key_fields": ("data.a",), "ordering_instance_ids": ("data.b", "z")},
            "ordering_instance_ids [z] absent in schema",
        ),
        (
            {"ordering_instance_ids": ("data.b",)},
            "`ordering_instance_ids` field can not be defined without defining `ordering_key_fields`",
        ),
    ],
)
def test_named_fields_absent_in_the_schema_are_refused(fields, message):
    """Fields that events do not have are refused by name, starting with the owner's. (R75, R82, R84, R157)"""
    assert refusal_detail(rules.check_fields_in_schema, EventTypeDraft(**fields), EFFECTIVE) == message


@pytest.mark.parametrize(
    ("read", "write", "partitions"), [(1, 1, 1), (3, 2, 3), (2, 3, 3), (8, 1, 8), (9, 1, 8), (1, 100, 8)]
)
def test_the_larger_parallelism_is_the_number_of_partitions(read, write, partitions):
    """The number of partitions is the larger parallelism, up to the maximum; the traffic has no influence. (R103)"""
    statistic = Statistics(
        messages_per_minute=10_000, message_size=10_000, read_parallelism=read, write_parallelism=write
    )
    assert rules.partition_count(statistic, default=1, maximum=8) == partitions


def test_partitions_without_a_statistic():
    """Without a statistic, there is the default number of partitions. (R103)"""
    assert rules.partition_count(None, default=1, maximum=8) == 1

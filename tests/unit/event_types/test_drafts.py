"""Missing and malformed members in the draft of an event type."""

import pytest
from msgspec.structs import replace

from nakadi.event_types.drafts import rule_violations
from nakadi.model.authorization import AttributeDraft, AuthorizationDraft
from nakadi.model.event_type import (
    Category,
    EventTypeDraft,
    OwnerSelectorDraft,
    OwnerSelectorType,
    SchemaDraft,
    SchemaType,
    StatisticsDraft,
)
from nakadi.model.outcomes import Violations

SOUND = EventTypeDraft(
    name="shop.order",
    owning_application="shop",
    category=Category.UNDEFINED,
    schema=SchemaDraft(type=SchemaType.JSON, text="{}"),
)


def violations_of(**changes) -> list[tuple[str, str]]:
    return [(each.path, each.message) for each in rule_violations(replace(SOUND, **changes))]


def test_a_valid_draft_has_no_violations():
    """A draft with only the mandatory fields is valid. (R67, R70)"""
    assert rule_violations(SOUND) == ()
    assert violations_of(owning_application="") == []


@pytest.mark.parametrize(
    "field",
    [
        "name",
        "owning_application",
        "category",
        "schema",
        "enrichment_strategies",
        "cleanup_policy",
        "compatibility_mode",
    ],
)
def test_fields_that_must_not_be_null(field):
    """A mandatory field that is missing is reported, and so is null for a field that has a default. (R5, R21, R68,
    R70)
    """
    assert violations_of(**{field: None}) == [(field, "must not be null")]


def test_a_schema_has_a_type_and_a_text():
    """Both members of a schema are mandatory. (R19, R70)"""
    assert violations_of(schema=SchemaDraft()) == [
        ("schema.type", "must not be null"),
        ("schema.schema", "must not be null"),
    ]


def test_an_enrichment_strategy_must_not_be_null():
    """A null in the list of enrichment strategies is reported with its index. (R19, R70)"""
    assert violations_of(enrichment_strategies=(None,)) == [("enrichment_strategies[0]", "must not be null")]


@pytest.mark.parametrize(
    "name",
    [
        "myET",
        "my-team.cool_event_type",
        "event-type.391.16afg",
        "a.67f2ca98-8b2e-4f8c-9d6b-7c1d2f0b9a3e",
        "a.0",
        "a",
        "a" * 255,
        "a_.b-",
    ],
)
def test_valid_names(name):
    """A name consists of words of letters, digits, hyphens and underscores, separated by dots. (R69)"""
    assert violations_of(name=name) == []


@pytest.mark.parametrize(
    "name",
    [
        "?",
        "56mycoolET",
        "abc^%!",
        "myET.-abc",
        "abc._def",
        "_underscore",
        "-event",
        "many..dots",
        ".firstDot",
        "lastDot.",
        "new\nline",
        "newline\n",
        "ümlaut",
    ],
)
def test_invalid_names_have_violations(name):
    """A name is refused if it begins with a digit, or has an empty part, a part that begins with a hyphen or an
    underscore, or any other character. (R68, R69)
    """
    assert violations_of(name=name) == [("name", "format not allowed")]


def test_names_that_are_too_long_or_too_short():
    """A name has 1 to 255 characters. (R68, R69)"""
    length = ("name", "the length of the name must be >= 1 and <= 255")
    assert violations_of(name="a" * 256) == [length]
    assert violations_of(name="") == [("name", "format not allowed"), length]


def test_statistics_must_be_complete():
    """A statistic has all four numbers. (R19, R72)"""
    numbers = ("messages_per_minute", "message_size", "read_parallelism", "write_parallelism")
    expected = [(f"default_statistic.{each}", "must not be null") for each in numbers]
    assert violations_of(default_statistic=StatisticsDraft()) == expected


def test_statistics_have_minimums():
    """Each number of a statistic has a minimum. (R72)"""
    least = StatisticsDraft(messages_per_minute=0, message_size=1, read_parallelism=1, write_parallelism=1)
    less = StatisticsDraft(messages_per_minute=-1, message_size=0, read_parallelism=0, write_parallelism=0)
    assert violations_of(default_statistic=least) == []
    assert violations_of(default_statistic=less) == [
        ("default_statistic.messages_per_minute", "can't be less then zero"),
        ("default_statistic.message_size", "can't be less then 1"),
        ("default_statistic.read_parallelism", "at least one reader expected"),
        ("default_statistic.write_parallelism", "at least one writer expected"),
    ]


def test_authorization_must_be_complete():
    """All three lists of an authorization section are checked. (R19, R49, R52)"""
    ann = AttributeDraft("user", "ann")
    section = AuthorizationDraft(admins=(ann,), readers=(AttributeDraft(value="x"),), writers=())
    assert violations_of(authorization=section) == [
        ("authorization.readers[0].data_type", "must not be null"),
        ("authorization.writers", "must contain at least one attribute"),
    ]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        (OwnerSelectorDraft(), ["type", "name", "value"]),
        (OwnerSelectorDraft(type=OwnerSelectorType.PATH, name="n"), ["value"]),
        (OwnerSelectorDraft(type=OwnerSelectorType.STATIC, value="v"), ["name"]),
        (OwnerSelectorDraft(type=OwnerSelectorType.STATIC, name="n", value="v"), []),
    ],
)
def test_an_owner_selector_must_be_complete(selector, expected):
    """An owner selector has a type, a name and a value. (R73)"""
    assert violations_of(event_owner_selector=selector) == [
        (f"event_owner_selector.{each}", "must not be null") for each in expected
    ]


def test_the_name_of_an_owner_selector_must_not_be_empty():
    """The name of an owner selector is not empty. (R73)"""
    selector = OwnerSelectorDraft(type=OwnerSelectorType.STATIC, name="", value="v")
    assert violations_of(event_owner_selector=selector) == [
        ("event_owner_selector.name", "the length of the name must be >= 1")
    ]


def test_an_owner_in_the_metadata_needs_no_value():
    """An owner selector of type `metadata` is complete without a value. (R74, deviation)"""
    assert violations_of(event_owner_selector=OwnerSelectorDraft(type=OwnerSelectorType.METADATA, name="owner")) == []


def test_annotations_and_labels_are_checked():
    """The keys and values of annotations and labels are checked; a key is reported as it was sent. (R20, R252, R255,
    deviation)
    """
    assert violations_of(annotations={"_My-Key": "a"}, labels={"ok": "!"}) == [
        ("annotations[_My-Key]", "Key name should start and end with a letter or a digit"),
        ("labels[ok]", "Should contain only allowed symbols"),
    ]


def test_all_violations_are_reported_at_once():
    """All violations are reported together, one per line, with a line break after the last. (R18, R19)"""
    detail = Violations(rule_violations(replace(SOUND, name="?", category=None))).detail
    assert detail == 'Field "name" format not allowed\nField "category" must not be null\n'

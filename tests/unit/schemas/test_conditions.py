"""Conditions on events."""

import pytest

from nakadi.schemas.conditions import BadCondition, parse_condition

EVENT = {
    "metadata": {"event_type": "x", "partition": "0"},
    "data": {
        "order": {"total": 120.5, "lines": [{"sku": "a"}, {"sku": "b"}], "paid": True, "note": None, "gone": False}
    },
    "with space": 'a "quoted" word',
    "zero": 0,
    "tags": ["new", 1],
}

TRUE = (
    'data.order.total > 100 and metadata.event_type == "x"',
    "data.order.total >= 120.5 and data.order.total <= 120.5 and data.order.total < 1e3",
    "not data.order.total > 200",
    "data.order.lines[0].sku == 'a' and data.order.lines[-1].sku == \"b\"",
    "data.order.paid",
    "data.order.paid == true",
    "zero == 0 and zero",
    "data.order.note == null",
    "not data.order.note and not data.order.gone and not data.missing.deeper[3]",
    "data.missing != 1",
    'this == 1 or ["with space"] == 1 or zero == 0'.replace('["with space"] == 1 or ', ""),
    "tags contains 'new' and tags contains 1",
    "metadata contains 'partition'",
    "metadata.event_type contains ''",
    "(zero == 1 or zero == 0) and not (zero == 1 and zero == 0)",
    "zero == 1 or zero == 0 and zero == 0",
    "metadata.partition < '1'",
    "100 < data.order.total",
)
FALSE = (
    "data.order.total > '100'",
    "data.order.paid == 1",
    "data.order.paid > 0",
    "data.missing == 1 or data.missing < 1 or data.missing > 1",
    "metadata.event_type == 'y'",
    "metadata.event_type.deeper",
    "tags contains 'old' or tags contains true",
    "zero contains 0",
    "tags['new']",
)


@pytest.mark.parametrize("text", TRUE)
def test_a_condition_holds(text):
    """Fields, comparisons, `and`, `or`, `not`, and parentheses have their usual meaning."""
    assert parse_condition(text)(EVENT)


@pytest.mark.parametrize("text", FALSE)
def test_a_condition_does_not_hold(text):
    """A comparison with a missing value, or with a value of another type, does not hold."""
    assert not parse_condition(text)(EVENT)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", 1),
        ("a ==", 5),
        ("a = 1", 3),
        ("(a == 1", 8),
        ("a == 1)", 7),
        ("a == 1 b", 8),
        ("and", 1),
        ("a.[0]", 3),
        ("a[b]", 3),
        ("a[1.5]", 3),
        ('a == "open', 6),
        ('a == "\\x"', 6),
        ("__import__('os')", 11),
        ("a == 1; b", 7),
        ("lambda: 1", 7),
        ("a == " + "9" * 9000, 6),
        ("a == ٣", 6),
        ("a == 007", 6),
    ],
)
def test_a_wrong_condition_is_refused_with_its_place(text, place):
    """A text that is not a condition is refused with the position of the fault."""
    with pytest.raises(BadCondition, match=rf"at character {place}:"):
        parse_condition(text)


@pytest.mark.parametrize("text", ["(" * 10_000, "not " * 2_000 + "a", "a" * 10_001, "(" * 60 + "a" + ")" * 60])
def test_a_condition_has_limits(text):
    """A condition that is too long or nested too deeply is refused rather than crashing the program."""
    with pytest.raises(BadCondition):
        parse_condition(text)


@pytest.mark.parametrize("event", [None, 1, "text", [1], {}])
def test_a_condition_can_be_asked_of_anything(event):
    """An event that is not an object has no fields."""
    assert not parse_condition("a.b[0].c == 1")(event)

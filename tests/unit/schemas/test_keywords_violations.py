"""The messages about the faults of an event."""

import pytest

from nakadi.schemas.keywords import (
    MAX_VIOLATION_LINES,
    SchemaViolation,
    combined_violation,
    member_pointer,
    quoted_value,
    truncated_text,
    type_mismatch_message,
)
from nakadi.schemas.values import StepsExhausted, java_text


def test_a_single_violation_stays_unchanged():
    """A single violation stays unchanged, and no violations give None. (P71)"""
    one = SchemaViolation("#/a", "is wrong")

    assert combined_violation("#", (one,)) is one
    assert combined_violation("#", ()) is None


def test_several_violations_are_counted_together():
    """Several violations are counted together with those inside them, each with its location. (P71)"""
    inside = combined_violation("#/b", (SchemaViolation("#/b/c", "is wrong"), SchemaViolation("#/b/d", "is wrong")))
    outside = combined_violation("#", (SchemaViolation("#/a", "is wrong"), inside))

    assert list(outside.message_lines()) == [
        "#: 3 schema violations found",
        "#/a: is wrong",
        "#/b: 2 schema violations found",
        "#/b/c: is wrong",
        "#/b/d: is wrong",
    ]


def test_counting_violations_stops_at_a_limit():
    """The count of violations stops at a limit. (P71)"""
    many = combined_violation(
        "#", tuple(SchemaViolation(f"#/{each}", "is wrong") for each in range(MAX_VIOLATION_LINES + 1))
    )

    assert many.text == "more than 100 schema violations found"


def test_quoting():
    """Strings are quoted unchanged, other values as JSON, and both up to a limited length. (P72)"""
    steps = [100_000]
    assert quoted_value("a", steps) == "a"
    assert quoted_value(None, steps) == "null"
    assert quoted_value({"ä": [1.5, True]}, steps) == '{"ä":[1.5,true]}'
    assert quoted_value("a" * 2_000, steps) == truncated_text("a" * 2_000) == "a" * 1_000 + "…"


LARGE = [
    [1] * 100_000,
    [[["x" * 300]] * 3] * 10,
    {f"{number:05}": {"b": None, "a": [True]} for number in range(9_000, 0, -1)},
    {"x" * 2_000: 1},
    ["x" * 5_000, 1],
    [[[]] * 500] * 500,
]


@pytest.mark.parametrize("value", LARGE)
def test_a_large_value_is_quoted_by_its_beginning(value):
    """If a value is too large for a message, only the quoted part is converted to JSON. (P72)"""
    steps = [1_000_000]
    assert quoted_value(value, steps) == truncated_text(java_text(value))
    assert steps[0] > 1_000_000 - 6_000 - 5 * len(value)


def test_quoting_is_work():
    """Quoting a value takes steps, which may exceed the batch's work limit. (P71)"""
    with pytest.raises(StepsExhausted):
        quoted_value({str(number): 1 for number in range(1_000)}, [1_000])


def test_messages_have_java_names_of_types():
    """Messages name types as Java does. (P72)"""
    assert type_mismatch_message("string", 1) == "expected type: String, found: Integer"
    assert type_mismatch_message("object", 2**40) == "expected type: JSONObject, found: Long"


def test_member_names_are_escaped_in_a_pointer():
    """A member's name is escaped in the JSON Pointer. (P71)"""
    assert member_pointer("#/a", "b/~c") == "#/a/b~1~0c"

"""The limits on a schema's size."""

import pytest

from nakadi.model.outcomes import Invalid
from nakadi.schemas import limits
from nakadi.schemas.limits import check_schema_length, check_schema_size


def nested_schema(levels: int) -> dict:
    schema: dict = {}
    for _ in range(levels - 1):
        schema = {"not": schema}
    return schema


def refusal(schema: dict, **added: int) -> str:
    with pytest.raises(Invalid) as refused:
        check_schema_size(schema, **added)
    return refused.value.detail


def test_the_length_of_a_schema_is_limited():
    """A schema may have up to 256 KiB of text; the answer names the limit and the length."""
    check_schema_length("x" * limits.MAX_SCHEMA_CHARACTERS)
    with pytest.raises(Invalid) as refused:
        check_schema_length("x" * (limits.MAX_SCHEMA_CHARACTERS + 1))
    assert refused.value.detail == "schema is too large: at most 262144 characters are possible, found 262145"


def test_the_depth_of_a_schema_is_limited():
    """A schema has at most 100 levels."""
    check_schema_size(nested_schema(100))

    assert refusal(nested_schema(101)) == "schema is too large: at most 100 levels of nesting are possible, found 101"


def test_the_number_of_nodes_is_limited():
    """Every node of a schema counts towards the limit, wherever it is."""
    check_schema_size({"title": [0] * 9_998})

    assert refusal({"title": [0] * 9_999}) == "schema is too large: at most 10000 values are possible, found 10001"


def test_the_number_of_enum_values_is_limited():
    """An enum has at most 5000 values."""
    check_schema_size({"enum": [0] * 5_000})

    detail = refusal({"properties": {"a": {"enum": [0] * 5_001}}})
    assert detail == "schema is too large: at most 5000 values in an enum are possible, found 5001"


def test_number_of_patterns():
    """A schema has at most 200 different patterns, including the patterns of property names."""
    properties = {str(number): {"pattern": f"^{number % 100}$"} for number in range(300)}
    patterned = {f"^x{number}$": {} for number in range(100)}
    check_schema_size({"properties": properties, "patternProperties": patterned})

    detail = refusal({"properties": properties, "patternProperties": patterned | {"^y$": {}}})
    assert detail == "schema is too large: at most 200 patterns are possible, found 201"


def test_length_of_patterns():
    """The patterns of a schema have at most 10000 characters in total."""
    check_schema_size({"pattern": "a" * 6_000, "not": {"pattern": "b" * 4_000}})

    detail = refusal({"pattern": "a" * 6_000, "not": {"pattern": "b" * 4_001}})
    assert detail == "schema is too large: at most 10000 characters in patterns are possible, found 10001"


def test_what_was_added():
    """What an envelope adds to a schema does not count towards the limits."""
    check_schema_size(nested_schema(102), added_levels=2)
    check_schema_size({"title": [0] * 10_008}, added_values=10)

    assert "found 101" in refusal(nested_schema(103), added_levels=2)


def test_words_that_are_no_keywords():
    """A property may be called `pattern` or `enum`."""
    check_schema_size(
        {"properties": {"pattern": {"type": "string"}, "enum": {"type": "string"}, "patternProperties": True}}
    )

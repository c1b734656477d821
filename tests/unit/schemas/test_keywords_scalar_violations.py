"""Violations that can be found without looking inside a value."""

import pytest

from nakadi.schemas.formats import SchemaPatterns
from nakadi.schemas.keywords import REASON_FINDERS_BY_KEYWORD, REASON_FINDERS_FOR_ALLOWED_VALUES, has_json_schema_type
from nakadi.schemas.values import MAX_EVENT_STEPS, StepsExhausted


def reason(schema, value, steps=MAX_EVENT_STEPS):
    reasons = {**REASON_FINDERS_FOR_ALLOWED_VALUES, **REASON_FINDERS_BY_KEYWORD}
    (keyword,) = [each for each in schema if each in reasons][:1]
    return reasons[keyword](schema, value, SchemaPatterns(), [steps])


@pytest.mark.parametrize("keyword", [*REASON_FINDERS_FOR_ALLOWED_VALUES, *REASON_FINDERS_BY_KEYWORD])
@pytest.mark.parametrize("value", [None, True])
def test_values_that_a_keyword_is_not_about(keyword, value):
    """Keywords about strings, numbers, arrays and objects do not apply to other values. (P56)"""
    told = {"enum": [None, True], "const": value, "pattern": "x", "format": "ipv4"}

    assert reason({keyword: told.get(keyword, 1)}, value) is None


def test_integers_are_numbers_and_truth_values_are_not():
    """A truth value is not a number, and an integer is one. (P72)"""
    assert has_json_schema_type(1, "integer")
    assert has_json_schema_type(1, "number")
    assert not any(has_json_schema_type(True, each) for each in ("integer", "number", "string"))


@pytest.mark.parametrize(
    ("schema", "value"),
    [({"enum": list(range(100))}, 5), ({"format": "uri"}, "a" * 1_000), ({"uniqueItems": True}, [1] * 1_000)],
)
def test_finding_a_violation_takes_steps(schema, value):
    """Finding a violation takes steps if it takes long. (P71)"""
    with pytest.raises(StepsExhausted):
        reason(schema, value, steps=100)

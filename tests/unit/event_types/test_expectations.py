"""Expectations on events, which annotations state."""

import pytest

from nakadi.event_types.expectations import MAX_EXPECTATIONS, Expectation, stated_expectations
from nakadi.event_types.table_retention import check_data_lake_annotations
from nakadi.model.annotations import EVENT_TYPE_ANNOTATIONS, annotation_warnings
from nakadi.model.outcomes import Invalid

STATED = {"nakadi.io/expect-b": "customer.id", "nakadi.io/expect": "total.amount >= 0", "nakadi.io/expect-c": None}


def test_several_annotations_state_one_expectation_each():
    """The expectations are ordered by name; an annotation without a value states none. (T5)"""
    check_data_lake_annotations(STATED)
    assert stated_expectations(STATED | {"nakadi.io/expectation": "a", "expect": "b"}) == [
        Expectation("nakadi.io/expect", "total.amount >= 0"),
        Expectation("nakadi.io/expect-b", "customer.id"),
    ]


def test_a_name_of_ones_own_is_no_mistake():
    """The broker warns about an unknown annotation only if its name looks like a known one. (T5, R282)"""
    assert annotation_warnings(STATED, EVENT_TYPE_ANNOTATIONS) == []
    [warning] = annotation_warnings(["nakadi.io/expects"], EVENT_TYPE_ANNOTATIONS)
    assert "nakadi.io/expects means nothing to the broker; the nearest is nakadi.io/expect" in warning


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("total >", "The condition is invalid at character 8: expected a field, a number or a text in quotes"),
        ("", "The condition is invalid at character 1"),
        ("total >= 0 ?", "The condition is invalid at character 12"),
    ],
)
def test_what_is_no_condition_is_refused(text, reason):
    """If the text of an annotation is no condition, the message names the annotation, the position and the text.
    (T5)
    """
    with pytest.raises(Invalid) as refused:
        check_data_lake_annotations({"nakadi.io/expect-total": text})
    assert refused.value.detail.startswith(f"Annotation nakadi.io/expect-total is not valid: {reason}")
    assert refused.value.detail.endswith(f'Provided value: "{text}".')


def test_there_are_only_so_many():
    """A twenty-first expectation is refused. (T5)"""
    many = {f"nakadi.io/expect-{number}": "a" for number in range(MAX_EXPECTATIONS)}
    check_data_lake_annotations(many)
    with pytest.raises(Invalid, match="at most 20 expectations, and not 21"):
        check_data_lake_annotations(many | {"nakadi.io/expect": "a"})

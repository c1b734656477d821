"""Patches between JSON values."""

import json

import jsonpatch
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nakadi.schemas.json_patch import patch_between
from tests.support.everything import choose_by_suite

SCALARS = st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from([1.0, 0.0]) | st.text("a/~", max_size=2)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab/~", max_size=2), inner, max_size=3)
)


@settings(max_examples=choose_by_suite(100, 5000), derandomize=True, deadline=None, database=None)
@given(VALUES, VALUES)
def test_a_patch_leads_from_one_value_to_the_other(before, after):
    """A library that implements RFC 6902 turns the first value into the second. (R297)"""
    assert json.dumps(jsonpatch.apply_patch(before, patch_between(before, after)), sort_keys=True) == json.dumps(
        after, sort_keys=True
    )


@pytest.mark.parametrize("value", [1, 1.0, True, None, "a", [1, {"a": []}], {"a": {"b": 1}}])
def test_nothing_changes_without_a_difference(value):
    """Equal values need no operation. (R297)"""
    assert patch_between(value, json.loads(json.dumps(value))) == []


def test_a_patch_touches_no_more_than_it_must():
    """A patch does not name members that are equal on both sides. (R297)"""
    before = {"type": "object", "properties": {"a": {"type": "string"}, "b/c": {"type": "string"}}}
    after = {"type": "object", "properties": {"a": {"type": "string"}, "b/c": {"type": "null"}, "d": True}}

    assert patch_between(before, after) == [
        {"op": "replace", "path": "/properties/b~1c/type", "value": "null"},
        {"op": "add", "path": "/properties/d", "value": True},
    ]

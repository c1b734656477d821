"""The types of JSON values."""

import pytest

from nakadi.schemas.values import canonical_text, has_java_type_name, java_type_name


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (True, "Boolean"),
        (1, "Integer"),
        (1.0, "Double"),
        ("", "String"),
        (None, "Null"),
        ([], "JsonArray"),
        ({}, "JsonObject"),
    ],
)
def test_values_have_a_type(value, name):
    """Each type of JSON values has a name in Java; integers and floats are numbers, booleans are not. (R153)"""
    assert java_type_name(value) == name
    assert has_java_type_name(value, "Number") is (name in ("Integer", "Double"))


def test_values_are_the_same_or_not():
    """The order of members does not matter, but the type of a number does. (R198, R199)"""
    assert canonical_text({"a": 1, "b": [None]}) == canonical_text({"b": [None], "a": 1})
    assert len({canonical_text(each) for each in (1, 1.0, True, "1", None, "null")}) == 6

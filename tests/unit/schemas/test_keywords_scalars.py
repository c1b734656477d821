"""Expressions for the part of a schema that does not look inside a value."""

import pytest

from nakadi.schemas.document import EID_PATTERN, Draft
from nakadi.schemas.keywords import ALWAYS_TRUE, CodeCheck, CodeConstants, combined_check, scalar_check


def expression(schema, draft=Draft.FOUR) -> str:
    return scalar_check(schema, draft, "x", CodeConstants({})).valid_if


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({}, "True"),
        ({"title": "a", "anything": 1}, "True"),
        ({"type": "string"}, "type(x) is str"),
        ({"type": "integer", "minimum": 1}, "type(x) is int and x >= k1"),
        ({"type": ["string", "null"]}, "(type(x) is str or x is None)"),
        ({"type": []}, "False"),
        ({"minLength": 1}, "(not type(x) is str or (len(x) >= k1))"),
        ({"enum": ["a"]}, "(x == k1)"),
        ({"enum": ["a", "b", None]}, "(x is None or (type(x) is str and x in k1))"),
        ({"enum": ["a", "b"], "type": "string"}, "type(x) is str and (x in k1)"),
        ({"enum": []}, "False"),
        ({"const": "a"}, "True"),
    ],
)
def test_expressions(schema, expected):
    """The check of a value is one expression, which is as short as possible. (P56)"""
    assert expression(schema) == expected


def test_const_counts_from_draft_06_on():
    """The keyword `const` has an effect from draft 06 on. (P56)"""
    assert expression({"const": "a"}, Draft.SIX) == "(x == k1)"


def test_the_pattern_of_identifiers():
    """The pattern of event ids is checked without RE2, because every event has an id. (P65)"""
    constants = CodeConstants({})

    assert scalar_check({"pattern": EID_PATTERN, "type": "string"}, Draft.FOUR, "x", constants).valid_if == (
        "type(x) is str and k1(x) is not None"
    )
    with pytest.raises(KeyError):
        constants.patterns._compiled[EID_PATTERN]


def test_all_of():
    """Conditions that are always true are left out, and the costs of the others are added up. (P56)"""
    assert combined_check([ALWAYS_TRUE, CodeCheck("a", 2), ALWAYS_TRUE, CodeCheck("b", 3)]) == CodeCheck("a and b", 5)
    assert combined_check([ALWAYS_TRUE]) is ALWAYS_TRUE

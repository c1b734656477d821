"""When two JSON values are equal."""

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from nakadi.schemas.values import Divisor, StepsExhausted, all_differ, equality_key, exact_fraction, is_multiple_of
from tests.support.everything import choose_by_suite
from tests.support.schemas import VALUES

AMPLE = 1_000_000


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, 1.0), ([1], [1.0]), ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ({"a": [{}]}, {"a": [{}]}), (0.0, -0.0)],
)
def test_equal_values_have_equal_keys(one, other):
    """Numbers are compared by value, and objects regardless of the order of their members. (P56)"""
    assert equality_key(one, [AMPLE]) == equality_key(other, [AMPLE])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (0, False),
        ([0], [False]),
        ({"a": 1}, {"a": True}),
        ([], {}),
        ([[]], []),
        ("1", 1),
        (None, False),
        ({"a": 1, "b": 2}, {"a": 2, "b": 1}),
        (["a", 1], {"a": 1}),
    ],
)
def test_different_values_have_different_keys(one, other):
    """Truth values are not numbers, and values of different types are never equal. (P56)"""
    assert equality_key(one, [AMPLE]) != equality_key(other, [AMPLE])


@settings(max_examples=100)
@given(VALUES)
def test_every_value_has_a_key(value):
    """Every value can be a member of a set, and is equal to itself. (P56)"""
    assert {equality_key(value, [AMPLE])} == {equality_key(value, [AMPLE])}


def test_a_list_of_different_values_is_recognized():
    """In a list of different values, no two are equal. (P56)"""
    assert all_differ([1, True, "1", [1], [True], {"a": 1}], [AMPLE])
    assert not all_differ([[1, {"a": 2}], 3, [1.0, {"a": 2.0}]], [AMPLE])
    assert all_differ(["a", None, 1, "1", 1.5], [AMPLE])
    assert not all_differ(["a", 1, None, 1.0], [AMPLE])


def test_comparing_large_values_takes_steps():
    """Comparing large values takes as many steps as they have parts. (P56)"""
    with pytest.raises(StepsExhausted):
        equality_key([0] * 100, [99])
    with pytest.raises(StepsExhausted):
        all_differ([{"a": [0] * 100}, 1], [100])


@pytest.mark.parametrize(
    ("value", "divisor", "expected"),
    [
        (0.3, 0.1, True),
        (0.35, 0.1, False),
        (4, 2, True),
        (3, 1.5, True),
        (3, 2, False),
        (-4, 2, True),
        (0, 7, True),
        (1e308, 1e-8, True),
        (10**18 + 1, 10**18, False),
        (float("inf"), 1, False),
    ],
)
def test_multiples_of_decimals_are_exact(value, divisor, expected):
    """Multiples are those of the decimals as written. (P56)"""
    assert is_multiple_of(value, Divisor.from_number(divisor)) is expected


def test_a_number_has_exactly_the_value_of_its_text():
    """A number has exactly the value of its text. (P56)"""
    assert exact_fraction(0.1) == Fraction(1, 10)
    assert exact_fraction(10**40) == 10**40


DIVISORS = some.sampled_from([0.01, 0.1, 0.25, 0.3, 1, 2.5, 7, 1e-5, 1e-14, 1e-20, 1e300, 3e-7, 123.456])
FLOATS = some.floats(allow_nan=False) | some.builds(
    lambda digits, places: float(f"{digits}e-{places}"), some.integers(-(10**17), 10**17), some.integers(0, 20)
)


@settings(max_examples=choose_by_suite(100, 500), deadline=None)
@given(FLOATS, DIVISORS)
def test_multiples_are_those_of_the_decimals_that_are_written(value, divisor):
    """Every method gives the same answer as exact arithmetic on both numbers as written."""
    expected = Fraction(repr(value)) % exact_fraction(divisor) == 0 if math.isfinite(value) else False
    assert is_multiple_of(value, Divisor.from_number(divisor)) is expected

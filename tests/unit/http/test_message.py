"""Reading parameters of a request."""

import pytest

from nakadi.http.message import Request
from nakadi.model.outcomes import Malformed


def asked(value):
    return Request(method="GET", path="/", query={"p": (value,)})


def test_the_first_value_counts_and_all_are_kept():
    """A parameter that comes several times keeps every value, the first of them being its value. (L9)"""
    request = Request(method="GET", path="/", query={"p": ("1", "x")})

    assert request.query_parameter("p") == "1"
    assert request.query_integer("p") == 1
    assert request.query_flag("p") is True
    assert request.query["p"] == ("1", "x")
    assert request.query_parameter("q") is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7", 7),
        ("-1", -1),
        ("+3", 3),
        ("007", 7),
        (" 3\t", 3),
        (str(2**31 - 1), 2**31 - 1),
        (str(-(2**31)), -(2**31)),
        ("", 20),
        (" ", 20),
    ],
)
def test_numbers_are_read(text, number):
    """A number is read as one, whatever blanks are around it; an empty value counts as missing. (L9)"""
    assert asked(text).query_integer("p", 20) == number


@pytest.mark.parametrize(
    "text", ["abc", "1_000", "٣", "1.5", "0x10", "--1", "+", "1 2", str(2**31), str(-(2**31) - 1), "1" * 20, "1" * 5000]
)
def test_what_is_not_a_number_is_malformed(text):
    """A query parameter of the wrong type, or beyond 32 bits, is malformed. (R15, L9)"""
    with pytest.raises(Malformed):
        asked(text).query_integer("p")


def test_some_numbers_may_be_longer():
    """A parameter may have 64 bits instead, and no more."""
    assert asked(str(2**63 - 1)).query_integer("p", bits=64) == 2**63 - 1
    with pytest.raises(Malformed):
        asked(str(2**63)).query_integer("p", bits=64)


@pytest.mark.parametrize(
    ("text", "truth"),
    [
        ("true", True),
        ("TRUE", True),
        (" true ", True),
        ("1", True),
        ("yes", True),
        ("off", False),
        ("0", False),
        ("", True),
    ],
)
def test_truth_values_are_read(text, truth):
    """A flag is read in the words that people use for it; an empty one counts as missing."""
    assert asked(text).query_flag("p", default=True) is truth


def test_maybe_is_malformed():
    """A flag that is neither true nor false is malformed. (R15)"""
    with pytest.raises(Malformed):
        asked("maybe").query_flag("p")

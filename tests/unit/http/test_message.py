"""Reading parameters of a request."""

import pytest

from nakadi.http.message import Request
from nakadi.model.outcomes import Malformed


def asked(value):
    return Request(method="GET", path="/", query={"p": (value,)})


def test_the_last_value_counts_and_all_are_kept():
    """A parameter that comes several times keeps every value, the last of them being its value."""
    request = Request(method="GET", path="/", query={"p": ("1", "2")})

    assert request.parameter("p") == "2"
    assert request.query["p"] == ("1", "2")
    assert request.parameter("q") is None


@pytest.mark.parametrize(("text", "number"), [("7", 7), ("-1", -1), ("+3", 3), ("007", 7), ("", 20)])
def test_numbers_are_read(text, number):
    """A number is read as one; an empty value counts as missing."""
    assert asked(text).integer("p", 20) == number


@pytest.mark.parametrize("text", ["abc", "1_000", " 7", "٣", "1.5", "0x10", "--1", "+", "1" * 20])
def test_what_is_not_a_number_is_malformed(text):
    """A query parameter of the wrong type is malformed. (R15)"""
    with pytest.raises(Malformed):
        asked(text).integer("p")


@pytest.mark.parametrize(
    ("text", "truth"),
    [("true", True), ("TRUE", True), ("1", True), ("yes", True), ("off", False), ("0", False), ("", True)],
)
def test_truth_values_are_read(text, truth):
    """A flag is read in the words that people use for it; an empty one counts as missing."""
    assert asked(text).flag("p", default=True) is truth


def test_maybe_is_malformed():
    """A flag that is neither true nor false is malformed. (R15)"""
    with pytest.raises(Malformed):
        asked("maybe").flag("p")

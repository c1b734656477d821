"""Reading the query parameters and headers that a route declares, and nothing else."""

import pytest

from nakadi.http.application import Application
from nakadi.http.message import Request, Response
from nakadi.http.parameters import (
    FlagParameter,
    Header,
    HeaderFamily,
    IntegerParameter,
    ListParameter,
    TextParameter,
    UndeclaredParameter,
)
from nakadi.http.router import Route
from nakadi.model.outcomes import Malformed

TEXT, NUMBER, FLAG, LIST, HEADER = (
    TextParameter("p"),
    IntegerParameter("p", 20),
    FlagParameter("p"),
    ListParameter("p"),
    Header("p"),
)
LONG_NUMBER, OPTIONAL_NUMBER = IntegerParameter("p", 20, bits=64), IntegerParameter("p", None)
ALL = (TEXT, NUMBER, FLAG, LIST, HEADER, LONG_NUMBER, OPTIONAL_NUMBER)


def request(*values, **fields):
    return Request(method="GET", path="/", query={"p": values} if values else {}, **{"declared": ALL, **fields})


def test_the_first_value_wins():
    """If a parameter occurs several times, the first value is used. (L9)"""
    asked = request("1", "x")

    assert TEXT.read(asked) == "1"
    assert NUMBER.read(asked) == 1
    assert FLAG.read(asked) is True


def test_a_family_of_headers_has_every_one_with_its_name():
    """The headers of a family begin alike, and the rest of a name identifies a header within its family. Only a route
    that declares the family may read them.
    """
    family, headers = HeaderFamily("ce-"), {"ce-id": "1", "ce-b": "2", "host": "x"}

    assert family.read(request(headers=headers, declared=(family,))) == {"id": "1", "b": "2"}
    with pytest.raises(UndeclaredParameter):
        family.read(request(headers=headers))


def test_a_missing_parameter_has_its_default():
    """The value of a missing parameter is its default."""
    asked = request()

    assert (TEXT.read(asked), NUMBER.read(asked), OPTIONAL_NUMBER.read(asked)) == (None, 20, None)
    assert (FLAG.read(asked), LIST.read(asked), HEADER.read(asked)) == (False, (), None)


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (("a", "b"), ("a", "b")),
        (("a,b",), ("a", "b")),
        (("a,b", "c"), ("a,b", "c")),
        (("a,,b",), ("a", "b")),
        (("",), ()),
    ],
)
def test_lists_are_values_or_have_commas(values, found):
    """A list is a repeated parameter, or one value with commas."""
    assert LIST.read(request(*values)) == found


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
    """A number may have whitespace around it; an empty value counts as missing. (L9)"""
    assert NUMBER.read(request(text)) == number


@pytest.mark.parametrize(
    "text", ["abc", "1_000", "٣", "1.5", "0x10", "--1", "+", "1 2", str(2**31), str(-(2**31) - 1), "1" * 20, "1" * 5000]
)
def test_what_is_not_a_number_is_malformed(text):
    """A query parameter of the wrong type, or beyond 32 bits, is malformed. (R15, L9)"""
    with pytest.raises(Malformed):
        NUMBER.read(request(text))


def test_some_numbers_may_be_longer():
    """A parameter may be declared with 64 bits instead, and no more."""
    assert LONG_NUMBER.read(request(str(2**63 - 1))) == 2**63 - 1
    with pytest.raises(Malformed):
        LONG_NUMBER.read(request(str(2**63)))


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
        ("", False),
    ],
)
def test_truth_values_are_read(text, truth):
    """A flag may be any of the usual words; an empty value counts as missing."""
    assert FLAG.read(request(text)) is truth


def test_maybe_is_malformed():
    """A flag that is neither true nor false is malformed. (R15)"""
    with pytest.raises(Malformed):
        FLAG.read(request("maybe"))


def test_a_header_is_read_by_its_name_in_lower_case():
    """Header names are in lower case when a route reads them."""
    assert HEADER.read(request(headers={"p": "1"})) == "1"


@pytest.mark.parametrize("parameter", ALL)
def test_what_is_not_declared_cannot_be_read(parameter):
    """A handler can read only the parameters that its route declares, even if another route declares a parameter
    with the same name.
    """
    others = tuple(each for each in ALL if each is not parameter)
    asked = request("1", headers={"p": "1"}, declared=others)

    with pytest.raises(UndeclaredParameter, match="'p'"):
        parameter.read(asked)


def test_a_request_may_read_what_its_route_declares():
    """The application gives each request its route's declaration; reading anything else is a bug of the broker."""
    routes = [
        Route(method="GET", template="/with", handler=_show_text, operation="with", parameters=(TEXT,)),
        Route(method="GET", template="/without", handler=_show_text, operation="without"),
    ]
    application = Application(routes)

    def ask(path):
        return application.answer(Request(method="GET", path=path, target=f"{path}?p=1", query={"p": ("1",)}))

    assert (ask("/with").status, ask("/with").body) == (200, b"1")
    assert ask("/without").status == 500


def _show_text(asked):
    return Response(200, {}, TEXT.read(asked).encode())

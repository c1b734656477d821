"""Query parameters and headers of operations: each is declared once, and read through its declaration.

    LIMIT = IntegerParameter("limit", 20)

    Route(method="GET", template="/things", handler=list_things, operation="list_things", parameters=(LIMIT,))

    def list_things(request: Request) -> Response:
        limit = LIMIT.read(request)

A request knows the declarations of its route. Reading anything else raises `UndeclaredParameter`, and a test compares
the description of the API with the declarations.
"""

from __future__ import annotations

import re
from typing import Generic, TypeVar

from nakadi.http.message import Parameter, Request
from nakadi.model.outcomes import Malformed

Default = TypeVar("Default")


class UndeclaredParameter(Exception):
    """Raised when a handler reads a parameter that the route of its request does not declare: an error in the broker's
    code.
    """

    def __init__(self, parameter: Parameter) -> None:
        super().__init__(f"the route of this request does not declare {parameter}")


class QueryParameter(Parameter, frozen=True, eq=False):
    """A query parameter, whose values are texts."""

    def read_all(self, request: Request) -> tuple[str, ...]:
        """Every value, in order."""
        if self not in request.declared:
            raise UndeclaredParameter(self)
        return request.query.get(self.name, ())

    def first_text(self, request: Request) -> str | None:
        """The first value; None if the parameter is missing."""
        values = self.read_all(request)
        return values[0] if values else None


class TextParameter(QueryParameter, frozen=True, eq=False):
    """A text."""

    def read(self, request: Request) -> str | None:
        """The first value; None if the parameter is missing."""
        return self.first_text(request)


class ChoiceParameter(TextParameter, frozen=True, eq=False):
    """A text out of `choices`, which the description of the API lists. The handler that reads it refuses other values
    itself, with a status of its choice.
    """

    choices: tuple[str, ...]


class ListParameter(QueryParameter, frozen=True, eq=False):
    """Texts: a parameter that may be repeated, or have commas between its values."""

    def read(self, request: Request) -> tuple[str, ...]:
        """The values, without empty ones."""
        values = self.read_all(request)
        listed = values[0].split(",") if len(values) == 1 else values
        return tuple(each for each in listed if each)


class IntegerParameter(QueryParameter, Generic[Default], frozen=True, eq=False):
    """A whole number of at most `bits` bits."""

    default: Default
    bits: int = 32

    def read(self, request: Request) -> int | Default:
        """The number. Blanks around it are ignored; a blank value counts as missing."""
        text = (self.first_text(request) or "").strip()
        if not text:
            return self.default
        number = parse_integer(text)
        if number is None or not fits_bits(number, self.bits):
            raise Malformed(
                f"Failed to convert value '{text}' of parameter '{self.name}' to a number of {self.bits} bits"
            )
        return number


class FlagParameter(QueryParameter, frozen=True, eq=False):
    """A truth value, false if it is missing."""

    def read(self, request: Request) -> bool:
        """The truth value, in any of the words that people use for it; a blank value counts as missing."""
        text = (self.first_text(request) or "").strip().lower()
        if text in ("", "false", "off", "no", "0"):
            return False
        if text in ("true", "on", "yes", "1"):
            return True
        raise Malformed(f"Failed to convert value '{text}' of parameter '{self.name}' to true or false")


class Header(Parameter, frozen=True, eq=False):
    """A header, named in lower case."""

    def read(self, request: Request) -> str | None:
        """The value; None if the header is missing."""
        if self not in request.declared:
            raise UndeclaredParameter(self)
        return request.headers.get(self.name)


class HeaderFamily(Parameter, frozen=True, eq=False):
    """All headers whose names begin with `name`, in lower case. Clients choose the rest of the name."""

    def read(self, request: Request) -> dict[str, str]:
        """The values of these headers, by the rest of their names."""
        if self not in request.declared:
            raise UndeclaredParameter(self)
        begin = len(self.name)
        return {name[begin:]: value for name, value in request.headers.items() if name.startswith(self.name)}


def parse_integer(text: str) -> int | None:
    """A whole number in digits; None if the text is not one. Python would also read `1_000` and digits of other
    scripts.
    """
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,20}", text) else None


def fits_bits(number: int, bits: int) -> bool:
    """Whether a signed integer of this number of bits can hold the number."""
    return -(1 << (bits - 1)) <= number < 1 << (bits - 1)

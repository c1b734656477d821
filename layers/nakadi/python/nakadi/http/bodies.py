"""Reads JSON bodies leniently.

Unknown members are ignored, and scalars are converted to the expected type. Unreadable values are `Malformed`, with
their path: `authorization.readers[0].value`. Other packages decide whether the values make sense.
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from enum import StrEnum
from math import isfinite
from typing import Any, Self, TypeVar

from msgspec import DecodeError
from msgspec.json import Decoder

from nakadi.http.message import Request
from nakadi.http.parameters import fits_bits, parse_integer
from nakadi.model.outcomes import Malformed

EnumType = TypeVar("EnumType", bound=StrEnum)
Item = TypeVar("Item")


class WrittenNumber(float):
    """A number with a fraction or an exponent. As a text, it keeps its spelling: a label may be a version, `1.10`."""

    __slots__ = ("spelling",)
    spelling: str

    def __new__(cls, spelling: str) -> Self:
        number = super().__new__(cls, spelling)
        number.spelling = spelling
        return number

    def __str__(self) -> str:
        return self.spelling


_DECODER = Decoder(float_hook=WrittenNumber)


def json_body(request: Request) -> Any:
    """The body of a request that must have one. The body `null` counts as missing."""
    body = json_document(request.body) if request.body else None
    if body is None:
        raise Malformed(f"Required request body is missing: {request.method} {request.path}")
    return body


def json_document(text: bytes) -> Any:
    """The JSON document at the beginning of a text, with or without a byte order mark."""
    text = text.removeprefix(BOM_UTF8)
    try:
        return _DECODER.decode(text)
    except (DecodeError, ValueError, RecursionError) as error:
        return _decode_first_document(text, error)


def object_body(request: Request) -> ObjectReader:
    return ObjectReader.from_value(json_body(request))


def list_body(request: Request) -> list[Any]:
    body = json_body(request)
    if not isinstance(body, list):
        raise unreadable_value_error(body, "a list")
    return body


def _decode_first_document(body: bytes, first_error: Exception) -> Any:
    """The first document of the body. Anything after it is ignored."""
    try:
        text = body.decode().lstrip(" \t\r\n")
        decoder = json.JSONDecoder(parse_float=WrittenNumber, parse_constant=_refuse_nan_or_infinity)
        value, _ = decoder.raw_decode(text)
        json.dumps(value, ensure_ascii=False).encode()  # raises for half of a surrogate pair
    except (ValueError, RecursionError):
        raise Malformed(f"JSON parse error: {first_error}") from first_error
    return value


def _refuse_nan_or_infinity(name: str) -> None:
    raise ValueError(name)


def unreadable_value_error(value: Any, expected: str, path: str = "") -> Malformed:
    return Malformed(f"JSON parse error: Cannot read {expected} from {_json_type_with_article(value)}{_at_path(path)}")


def unknown_enum_value_error(value: str, enum_type: type[EnumType], path: str = "") -> Malformed:
    return Malformed(f"Illegal enum value: '{value}'. Possible values: [{', '.join(enum_type)}]{_at_path(path)}")


def _at_path(path: str) -> str:
    return f" (at {path})" if path else ""


def _json_type_with_article(value: Any) -> str:
    return {dict: "an object", list: "a list", type(None): "null"}.get(type(value), "a value")


MAX_NUMBER = 1e300

# Texts that stand for a missing number or truth value.
TEXTS_FOR_NULL = ("", "null")


class ObjectReader:
    """The members of a JSON object, each read as the expected type. A missing member reads as None, like null.

    `path` is the path of the object in the body.
    """

    def __init__(self, raw: Mapping[str, Any], path: str = "") -> None:
        self._raw = raw
        self._path = path

    @classmethod
    def from_value(cls, value: Any, path: str = "") -> ObjectReader:
        if not isinstance(value, dict):
            raise unreadable_value_error(value, "an object", path)
        return cls(value, path)

    def __contains__(self, name: str) -> bool:
        return name in self._raw

    def raw_value(self, name: str) -> Any:
        return self._raw.get(name)

    def path_of(self, name: str) -> str:
        """The path of a member in the body."""
        return f"{self._path}.{name}" if self._path else name

    def text(self, name: str) -> str | None:
        return _as_text(self._raw.get(name), self.path_of(name))

    def integer(self, name: str, *, bits: int = 64) -> int | None:
        """A number without its fraction, with at most this many bits. A text of digits counts as a number."""
        return _as_integer(self._raw.get(name), bits, self.path_of(name))

    def number(self, name: str) -> float | None:
        """A number, perhaps with a fraction. A text does not count as one."""
        value = self._raw.get(name)
        if value is None:
            return None
        # An integer may be too large for a `float`.
        if isinstance(value, bool) or not isinstance(value, int | float) or not -MAX_NUMBER < value < MAX_NUMBER:
            raise unreadable_value_error(value, "a number", self.path_of(name))
        return float(value)

    def boolean(self, name: str) -> bool | None:
        """True or false: as such, as text, or as an integer, of which only 0 is false."""
        value = self._raw.get(name)
        if value is None or value in TEXTS_FOR_NULL:
            return None
        if isinstance(value, str) and value.strip().lower() in ("true", "false"):
            return value.strip().lower() == "true"
        if isinstance(value, int):
            return bool(value)
        raise unreadable_value_error(value, "true or false", self.path_of(name))

    def enum_value(self, name: str, enum_type: type[EnumType]) -> EnumType | None:
        """A value of an enumeration, in upper or lower case."""
        return _as_enum_value(self._raw.get(name), enum_type, self.path_of(name))

    def exact_enum_value(self, name: str, enum_type: type[EnumType]) -> EnumType | None:
        """A value of an enumeration, in exactly its spelling."""
        value = self.text(name)
        if value is None or value in set(enum_type):
            return None if value is None else enum_type(value)
        raise unknown_enum_value_error(value, enum_type, self.path_of(name))

    def enum_values(self, name: str, enum_type: type[EnumType]) -> tuple[EnumType | None, ...] | None:
        return self._read_items(name, lambda value, at: _as_enum_value(value, enum_type, at))

    def texts(self, name: str) -> tuple[str | None, ...] | None:
        return self._read_items(name, _as_text)

    def integers(self, name: str) -> tuple[int | None, ...] | None:
        return self._read_items(name, lambda value, at: _as_integer(value, 64, at))

    def object(self, name: str) -> ObjectReader | None:
        value = self._raw.get(name)
        return None if value is None else ObjectReader.from_value(value, self.path_of(name))

    def objects(self, name: str) -> tuple[ObjectReader, ...] | None:
        return self._read_items(name, ObjectReader.from_value)

    def text_mapping(self, name: str) -> dict[str, str | None] | None:
        """An object with only texts and nulls as values."""
        value = self._raw.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise unreadable_value_error(value, "an object", self.path_of(name))
        return {key: _as_text(each, f"{self.path_of(name)}.{key}") for key, each in value.items()}

    def _read_items(self, name: str, read: Callable[[Any, str], Item]) -> tuple[Item, ...] | None:
        """The items of a list, read one by one."""
        value = self._raw.get(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise unreadable_value_error(value, "a list", self.path_of(name))
        return tuple(read(each, f"{self.path_of(name)}[{index}]") for index, each in enumerate(value))


def _as_text(value: Any, path: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise unreadable_value_error(value, "a text", path)


def _as_integer(value: Any, bits: int, path: str) -> int | None:
    if value is None or value in TEXTS_FOR_NULL:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise unreadable_value_error(value, "a number", path)
    if isinstance(value, float) and not isfinite(value):  # such as 1e999, which the lenient parser reads as infinity
        raise unreadable_value_error(value, "a number", path)
    number = parse_integer(value.strip()) if isinstance(value, str) else int(value)
    if number is None:
        raise unreadable_value_error(value, "a number", path)
    if not fits_bits(number, bits):
        raise Malformed(f"JSON parse error: {number} does not fit {bits} bits{_at_path(path)}")
    return number


def _as_enum_value(value: Any, enum_type: type[EnumType], path: str) -> EnumType | None:
    text = _as_text(value, path)
    if text is None:
        return None
    try:
        return enum_type(text.lower())
    except ValueError:
        raise unknown_enum_value_error(text, enum_type, path) from None

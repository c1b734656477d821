"""Turns events into rows with the values that the jobs' tables would have.

A column has the value of a property if the column can hold that value exactly, else NULL. If the columns do not hold
the whole event, `nakadi_event` has its text. Each value is read from its own JSON text, so that no number is converted
twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Context, Decimal, InvalidOperation
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from nakadi_jobs.columns import (
    MAX_DIGITS,
    STRING,
    Array,
    Json,
    Kind,
    Scalar,
    Struct,
    Texts,
    decimal_scale,
)
from nakadi_jobs.exact_values import EXACT_DIGITS
from nakadi_sql.columns import PLACE_COLUMNS, arrow_type

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])
_TEXT = msgspec.json.Decoder(str)
_ANY = msgspec.json.Decoder(Any)

_INTEGER = re.compile(rb"-?[0-9]+")
_PLAIN_NUMBER = re.compile(rb"-?[0-9.]{1,%d}" % EXACT_DIGITS)
_NUMBER_START = b"-0123456789"
_MOMENT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.][0-9]{1,6}(0*))?(?:[Zz]|[-+][0-9]{2}:[0-9]{2})"
)
_BIGINT = 1 << 63
_DECIMALS = Context(prec=MAX_DIGITS)


class LoggedEvent(NamedTuple):
    """An event of the log with its place."""

    timeline: int
    partition: int
    offset: int
    stored_at: datetime | None
    key: str | None
    owner: tuple[str, str] | None
    text: bytes


class _Unfit(Exception):
    """Raised for a value that a column cannot hold exactly."""


class _Seen:
    """Notes whether a part of the event is in no column."""

    __slots__ = ("lacking",)

    def __init__(self) -> None:
        self.lacking = False


Convert = Callable[[bytes, _Seen], Any]
"""A function that converts the JSON text of a value for its column. It raises `_Unfit` if the column cannot hold it."""


class RowMaker:
    """Turns events into Arrow rows with the columns of an event type."""

    def __init__(self, columns: Struct) -> None:
        self.columns = columns
        self.schema = arrow_schema(columns)
        self._convert = _structure(columns)
        self._has_publisher = _publisher_is_text(columns)

    def make_rows(self, events: Sequence[LoggedEvent]) -> pa.Table:
        rows = [self._row(event) for event in events]
        return pa.Table.from_pylist(rows, self.schema)

    def _row(self, event: LoggedEvent) -> dict[str, Any]:
        seen = _Seen()
        try:
            values = self._convert(event.text, seen)
        except _Unfit:
            values, seen.lacking = {}, True
        owner = None if event.owner is None else dict(zip(("data_type", "value"), event.owner, strict=True))
        metadata = values.get("metadata")
        return {
            **values,
            "nakadi_timeline": event.timeline,
            "nakadi_partition": event.partition,
            "nakadi_offset": event.offset,
            "nakadi_time": event.stored_at,
            "nakadi_key": event.key,
            "nakadi_owner": owner,
            "nakadi_size": len(event.text),
            "nakadi_publisher": metadata.get("published_by") if self._has_publisher and metadata else None,
            "nakadi_event": event.text.decode() if seen.lacking else None,
        }


def arrow_schema(columns: Struct) -> pa.Schema:
    """The schema of the rows of an event type."""
    return pa.schema([(each.name, arrow_type(each.kind)) for each in (*PLACE_COLUMNS.fields, *columns.fields)])


def _publisher_is_text(columns: Struct) -> bool:
    metadata = next((field.kind for field in columns.fields if field.name == "metadata"), None)
    return isinstance(metadata, Struct) and any(
        field.name == "published_by" and field.kind == STRING for field in metadata.fields
    )


def _converter(kind: Kind) -> Convert:
    match kind:
        case Struct():
            return _structure(kind)
        case Array(element):
            return _array(element)
        case Texts():
            return _read_texts
        case Json():
            return _read_json
        case Scalar(name) if name.startswith("decimal"):
            return _decimal(decimal_scale(name))
        case Scalar(name):
            return _SCALARS[name]


def _structure(kind: Struct) -> Convert:
    readers = [(field.name, field.source or field.name, _field_converter(field.kind)) for field in kind.fields]
    several = [
        (field.name, field.source or field.name, _converter_of_several_types(field.kind))
        for field in kind.fields
        if field.has_several_types
    ]
    several_names = {name for name, _, _ in several}
    single = [each for each in readers if each[0] not in several_names]
    known = {source for _, source, _ in readers}

    def convert(text: bytes, seen: _Seen) -> dict[str, Any]:
        members = _read_members(text)
        if not members.keys() <= known:
            seen.lacking = True
        values: dict[str, Any] = {}
        for name, source, read in single:
            raw = members.get(source)
            if raw is not None:
                values[name] = read(bytes(raw), seen)
        for name, source, read in several:
            raw = members.get(source)
            if raw is not None:
                seen.lacking = True
                values[name] = read(bytes(raw), seen)
        return values

    return convert


def _field_converter(kind: Kind) -> Convert:
    """A converter for a column of this kind. It turns a value that the column cannot hold into NULL, and notes that."""
    read = _converter(kind)

    def convert(text: bytes, seen: _Seen) -> Any:
        if text == b"null":
            # A missing member also becomes NULL, so the column does not show that this member exists.
            seen.lacking = True
            return None
        try:
            return read(text, seen)
        except _Unfit:
            seen.lacking = True
            return None

    return convert


def _converter_of_several_types(kind: Kind) -> Convert:
    """A converter for one of the columns of a property that has several types: a text column holds the values of all
    types, and every other column only those of its own type.
    """
    if kind != STRING:
        return _field_converter(kind)

    def convert(text: bytes, _seen: _Seen) -> str | None:
        if text == b"null":
            return None
        try:
            return _read_text(text, _seen) if text[:1] == b'"' else _well_formed(text)
        except _Unfit:
            return None

    return convert


def _array(element: Kind) -> Convert:
    """A converter for lists. If an element does not fit, the whole list does not, because a list without the element
    would be a different list.
    """
    read = _converter(element)

    def convert(text: bytes, seen: _Seen) -> list[Any]:
        if text[:1] != b"[":
            raise _Unfit
        elements = map(bytes, _ELEMENTS.decode(text))
        return [None if each == b"null" else read(each, seen) for each in elements]

    return convert


def _read_members(text: bytes) -> Mapping[str, msgspec.Raw]:
    if text[:1] != b"{":
        raise _Unfit
    try:
        return _MEMBERS.decode(text)
    except (msgspec.MsgspecError, UnicodeError):
        raise _Unfit from None


def _read_texts(text: bytes, _seen: _Seen) -> list[tuple[str, str | None]]:
    members = _read_members(text)
    return [
        (name, None if raw == b"null" else _read_text(raw, _seen))
        for name, raw in ((name, bytes(value)) for name, value in members.items())
    ]


def _read_json(text: bytes, _seen: _Seen) -> str:
    if text[:1] not in (b"{", b"["):
        raise _Unfit
    return _well_formed(text)


def _well_formed(text: bytes) -> str:
    """Decode a JSON text. Raises `_Unfit` if it contains half of a surrogate pair."""
    if b"\\u" in text:
        try:
            _ANY.decode(text)
        except (msgspec.MsgspecError, UnicodeError):
            raise _Unfit from None
    return text.decode()


def _read_text(text: bytes, _seen: _Seen) -> str:
    try:
        return _TEXT.decode(text)
    except (msgspec.MsgspecError, UnicodeError):
        raise _Unfit from None


def _read_integer(text: bytes, _seen: _Seen) -> int:
    if _INTEGER.fullmatch(text) and len(text) <= 20 and -_BIGINT <= (number := int(text)) < _BIGINT:
        return number
    raise _Unfit


def _read_double(text: bytes, _seen: _Seen) -> float:
    if text[0] not in _NUMBER_START:
        raise _Unfit
    number = float(text)
    if _PLAIN_NUMBER.fullmatch(text) or _digits(text.decode()) == _digits(repr(number)):
        return number
    raise _Unfit


def _digits(number: str) -> str:
    """The significant digits of a number. A text and the nearest float are equal if these digits are, because the two
    numbers cannot differ by a factor of ten.
    """
    return number.upper().partition("E")[0].replace("-", "").replace(".", "").strip("0")


def _decimal(scale: int) -> Convert:
    unit = Decimal(1).scaleb(-scale)

    def convert(text: bytes, _seen: _Seen) -> Decimal:
        if text[0] not in _NUMBER_START:
            raise _Unfit
        try:
            number = Decimal(text.decode())
            rounded = number.quantize(unit, context=_DECIMALS)
        except InvalidOperation:
            raise _Unfit from None
        if rounded != number:
            raise _Unfit
        return rounded

    return convert


def _read_boolean(text: bytes, _seen: _Seen) -> bool:
    if text in (b"true", b"false"):
        return text == b"true"
    raise _Unfit


def _read_moment(text: bytes, seen: _Seen) -> datetime:
    moment = _read_text(text, seen) if text[:1] == b'"' else ""
    found = _MOMENT.fullmatch(moment)
    if found is None:
        raise _Unfit
    return parse_moment(moment)


def parse_moment(moment: str) -> datetime:
    """Parse a time in RFC 3339, and convert it to UTC. Raises `_Unfit` if Python cannot represent it."""
    try:
        return datetime.fromisoformat(moment.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        raise _Unfit from None


_SCALARS: Mapping[str, Convert] = {
    "string": _read_text,
    "bigint": _read_integer,
    "int": _read_integer,
    "double": _read_double,
    "boolean": _read_boolean,
    "timestamp": _read_moment,
}

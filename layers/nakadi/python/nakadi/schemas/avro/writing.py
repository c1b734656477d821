"""Writes values in their binary form, from their JSON form.

This is the inverse of `reading.py`. JSON does not say to which branch of a union a value belongs, so a schema whose
unions have branches that look alike in JSON cannot be converted back: `is_unambiguous_in_json` detects this.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from nakadi.schemas.avro.types import (
    ArrayType,
    AvroType,
    DecimalForm,
    EnumType,
    FixedType,
    MapType,
    Primitive,
    RecordType,
    UnionType,
)

Write = Callable[[Any, bytearray], None]

_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
# The number of digits that a number keeps for certain when it is read from JSON.
MAX_EXACT_DIGITS = 15


class DoesNotFit(Exception):
    """Raised for a value that does not belong to the type."""


def write_long(value: int, out: bytearray) -> None:
    rest = (value << 1) ^ (value >> 63)
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)


def write_bytes(value: bytes, out: bytearray) -> None:
    write_long(len(value), out)
    out += value


def write_string(value: str, out: bytearray) -> None:
    write_bytes(value.encode(), out)


def make_writer(of: AvroType) -> Write:
    """A function that appends a value to bytes. It raises `DoesNotFit` for values that a reader of the type never
    returns.
    """
    write = _Writers().make(of)

    def write_checked(value: Any, out: bytearray) -> None:
        try:
            write(value, out)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, struct.error) as error:
            raise DoesNotFit(f"{type(error).__name__}: {error}") from error

    return write_checked


def _write_latin_1(value: str, out: bytearray) -> None:
    write_bytes(value.encode("latin-1"), out)


def _write_null(_: Any, __: bytearray) -> None:
    pass


def _write_boolean(value: Any, out: bytearray) -> None:
    out.append(1 if value else 0)


_PRIMITIVE_WRITERS: dict[str, Write] = {
    "null": _write_null,
    "boolean": _write_boolean,
    "int": write_long,
    "long": write_long,
    "float": lambda value, out: out.extend(_FLOAT.pack(float(value))),
    "double": lambda value, out: out.extend(_DOUBLE.pack(float(value))),
    "bytes": _write_latin_1,
    "string": write_string,
}


class _Writers:
    def __init__(self) -> None:
        self._records: dict[str, list[tuple[str, Write]]] = {}

    def make(self, of: AvroType) -> Write:  # noqa: PLR0911  # one for each type
        match of:
            case Primitive("bytes", DecimalForm() as form):
                return lambda value, out: write_bytes(_decimal_bytes(value, form, None), out)
            case FixedType(_, size, DecimalForm() as form):
                return lambda value, out: out.extend(_decimal_bytes(value, form, size))
            case Primitive(kind):
                return _PRIMITIVE_WRITERS[kind]
            case EnumType():
                indexes = {symbol: index for index, symbol in enumerate(of.symbols)}
                return lambda value, out: write_long(indexes[value], out)
            case FixedType():
                return lambda value, out: out.extend(value.encode("latin-1"))
            case ArrayType(items):
                return _make_array_writer(self.make(items))
            case MapType(values):
                return _make_map_writer(self.make(values))
            case UnionType(branches):
                return _make_union_writer(branches, [self.make(each) for each in branches])
            case RecordType():
                return self._make_record_writer(of)

    def _make_record_writer(self, record: RecordType) -> Write:
        fields = self._records.get(record.name)
        if fields is None:
            fields = self._records[record.name] = []
            fields.extend((each.name, self.make(each.type)) for each in record.known_fields)

        def write_record(value: Any, out: bytearray) -> None:
            for name, write in fields:
                write(value[name], out)

        return write_record


def _decimal_bytes(value: float, form: DecimalForm, size: int | None) -> bytes:
    """A decimal in this number of bytes, or in as few as it needs."""
    scaled = Decimal(repr(value)).scaleb(form.scale)
    number = int(scaled)
    if number != scaled or abs(number) >= 10**form.precision or type(value) is bool:
        raise ValueError(f"{value} is no decimal with {form.precision} digits, {form.scale} of them behind the point")
    return number.to_bytes((number + (number < 0)).bit_length() // 8 + 1 if size is None else size, "big", signed=True)


def _make_array_writer(write: Write) -> Write:
    def write_array(values: Sequence[Any], out: bytearray) -> None:
        if values:
            write_long(len(values), out)
            for each in values:
                write(each, out)
        out.append(0)

    return write_array


def _make_map_writer(write: Write) -> Write:
    def write_map(values: dict[str, Any], out: bytearray) -> None:
        if values:
            write_long(len(values), out)
            for name, each in values.items():
                write_string(name, out)
                write(each, out)
        out.append(0)

    return write_map


def _make_union_writer(branches: Sequence[AvroType], writers: Sequence[Write]) -> Write:
    by_form: dict[Any, int] = {}
    for index, branch in enumerate(branches):
        for form in _forms_of(branch):
            by_form.setdefault(form, index)

    def write_union(value: Any, out: bytearray) -> None:
        form = frozenset(value) if type(value) is dict else type(value)
        index = by_form.get(form)
        if index is None:
            index = by_form[dict if type(value) is dict else type(value)]
        write_long(index, out)
        writers[index](value, out)

    return write_union


def _forms_of(of: AvroType) -> Sequence[Any]:  # noqa: PLR0911  # one for each type
    """The JSON forms of a type's values: their types in Python, or the names of their members."""
    match of:
        case RecordType():
            return (frozenset(each.name for each in of.known_fields),)
        case MapType():
            return (dict,)
        case ArrayType():
            return (list,)
        case Primitive("bytes", DecimalForm(_, scale)) | FixedType(_, _, DecimalForm(_, scale)):
            return (float if scale else int,)
        case EnumType() | FixedType():
            return (str,)
        case UnionType():
            return ()
        case Primitive(kind):
            return _FORMS_OF_PRIMITIVES[kind]


_FORMS_OF_PRIMITIVES: dict[str, Sequence[Any]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    # The text stands for a number that JSON cannot express, such as NaN.
    "float": (float, str),
    "double": (float, str),
    "bytes": (str,),
    "string": (str,),
}


def is_unambiguous_in_json(of: AvroType) -> bool:
    """Whether JSON says everything about values of this type: the branches of each union look different in JSON, and no
    number has more digits than JSON parsers keep.
    """
    seen: set[int] = set()
    waiting = [of]
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        match each:
            case UnionType(branches):
                if not _are_distinguishable(branches):
                    return False
                waiting.extend(branches)
            case ArrayType(inner) | MapType(inner):
                waiting.append(inner)
            case Primitive(_, DecimalForm(precision)) | FixedType(_, _, DecimalForm(precision)):
                if precision > MAX_EXACT_DIGITS:
                    return False
            case RecordType():
                waiting.extend(field.type for field in each.known_fields)
    return True


def _are_distinguishable(branches: Sequence[AvroType]) -> bool:
    forms = [form for each in branches for form in _forms_of(each)]
    has_map = dict in forms
    has_record = any(isinstance(each, frozenset) for each in forms)
    return len(set(forms)) == len(forms) and not (has_map and has_record)

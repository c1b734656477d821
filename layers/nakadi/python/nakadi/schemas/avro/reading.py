"""Reads values from their binary form, as JSON represents them.

    read = make_reader(parse_record_schema(text))
    read(AvroInput(payload, room=max_bytes))

Everything is checked before it is used: a count of values is valid only if that many may still be read, and a length
only if that many bytes are left. The size of a value as JSON is counted while it is read, so a value that has few bytes
and very many members raises `TooMuchJson` before it fills the memory. Decimals are `Decimal` objects, which
`write_decimal` writes as JSON.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import orjson

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
from nakadi.schemas.strict_json import MAX_JSON_DEPTH

SINGLE_OBJECT_MARK = b"\xc3\x01"
FINGERPRINT_BYTES = 8
_MAX_VARINT_BYTES = 10

_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
# Values for which JSON has no number become texts, as in the library for Java.
_NO_NUMBERS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


class BadAvro(Exception):
    """Raised for bytes that do not conform to the schema; the message says why."""


class TooMuchJson(Exception):
    """Raised when a value is longer in JSON than there is room for."""


class AvroInput:
    """Bytes, the position of the next one, and the room for their JSON form.

    `extend` is called when the room is used up for the first time; it may add to `room`.
    """

    __slots__ = ("data", "depth", "end", "extend", "position", "room")

    def __init__(self, data: bytes, room: int, extend: Callable[[AvroInput], None] | None = None) -> None:
        self.data = data
        self.end = len(data)
        self.position = 0
        self.depth = 0
        self.room = room
        self.extend = extend

    def spend(self, size: int) -> None:
        self.room -= size
        if self.room < 0:
            extend, self.extend = self.extend, None
            if extend is not None:
                extend(self)
            if self.room < 0:
                raise TooMuchJson

    def enter(self) -> None:
        self.depth += 1
        if self.depth > MAX_JSON_DEPTH - 1:
            raise BadAvro(f"It is nested deeper than {MAX_JSON_DEPTH} levels")

    def read_long(self) -> int:
        data, position, end = self.data, self.position, self.end
        result = shift = 0
        while True:
            if position >= end:
                raise BadAvro("It ends within a number")
            byte = data[position]
            position += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift >= 7 * _MAX_VARINT_BYTES:
                raise BadAvro("A number has more than 10 bytes")
        if result >> 64:
            raise BadAvro("A number has more than 64 bits")
        self.position = position
        return (result >> 1) ^ -(result & 1)

    def take(self, size: int) -> bytes:
        start, self.position = self.position, self.position + size
        if size < 0 or self.position > self.end:
            raise BadAvro(f"A length is {size}, and {self.end - start} bytes follow")
        return self.data[start : self.position]

    def check_end_of_block(self, end: int | None) -> None:
        """Check that a block ends at the position that it has declared; `end` is None if it has declared none."""
        if end is not None and end != self.position:
            raise BadAvro("A block does not have the length that it says")

    def check_at_end(self) -> None:
        if self.position != self.end:
            raise BadAvro(f"{self.end - self.position} bytes follow the end of the value")


Read = Callable[[AvroInput], Any]


def make_reader(of: AvroType) -> Read:
    """A function that reads values of a type. Raises `BadAvro` and `TooMuchJson` when it reads."""
    return _Readers().make(of)


def _read_null(_: AvroInput) -> None:
    return None


def _read_boolean(source: AvroInput) -> bool:
    byte = source.take(1)
    if byte not in (b"\x00", b"\x01"):
        raise BadAvro(f"A boolean is {byte[0]}")
    return byte == b"\x01"


def _read_int(source: AvroInput) -> int:
    value = source.read_long()
    if not -(1 << 31) <= value < 1 << 31:
        raise BadAvro("An int has more than 32 bits")
    return value


def _read_long(source: AvroInput) -> int:
    return source.read_long()


def _read_float(source: AvroInput) -> float | str:
    raw = source.take(4)
    (value,) = _FLOAT.unpack(raw)
    for digits in (6, 7, 8, 9):
        # Take the shortest number that has the same 32 bits.
        if _is_same_float(text := f"{value:.{digits}g}", raw):
            return _number_or_text(float(text))
    return _number_or_text(value)


def _is_same_float(text: str, raw: bytes) -> bool:
    try:
        return _FLOAT.pack(float(text)) == raw
    except OverflowError:
        return False


def _read_double(source: AvroInput) -> float | str:
    (value,) = _DOUBLE.unpack(source.take(8))
    return _number_or_text(value)


def _number_or_text(value: float) -> float | str:
    return _NO_NUMBERS.get(repr(value), value)


def _read_bytes(source: AvroInput) -> str:
    raw = source.take(source.read_long())
    source.spend(len(raw))
    return raw.decode("latin-1")


def _read_string(source: AvroInput) -> str:
    raw = source.take(source.read_long())
    source.spend(len(raw))
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise BadAvro("A string is not in UTF-8") from None


_PRIMITIVE_READERS: dict[str, Read] = {
    "null": _read_null,
    "boolean": _read_boolean,
    "int": _read_int,
    "long": _read_long,
    "float": _read_float,
    "double": _read_double,
    "bytes": _read_bytes,
    "string": _read_string,
}


class _Readers:
    """Creates readers. It creates only one reader for a record, so that a record can contain itself."""

    def __init__(self) -> None:
        self._records: dict[str, list[tuple[str, Read]]] = {}

    def make(self, of: AvroType) -> Read:  # noqa: PLR0911  # one for each type
        match of:
            case Primitive("bytes", DecimalForm() as form):
                return _make_decimal_reader(form, lambda source: source.take(source.read_long()))
            case FixedType(_, size, DecimalForm() as form):
                return _make_decimal_reader(form, lambda source: source.take(size))
            case Primitive(kind):
                return _PRIMITIVE_READERS[kind]
            case EnumType():
                return _make_enum_reader(of)
            case FixedType():
                return _make_fixed_reader(of)
            case ArrayType(items):
                return _make_array_reader(self.make(items))
            case MapType(values):
                return _make_map_reader(self.make(values))
            case UnionType(branches):
                return _make_union_reader([self.make(each) for each in branches])
            case RecordType():
                return self._make_record_reader(of)

    def _make_record_reader(self, record: RecordType) -> Read:
        fields = self._records.get(record.name)
        if fields is None:
            fields = self._records[record.name] = []
            fields.extend((each.name, self.make(each.type)) for each in record.known_fields)
        # Names in quotes, colons, commas, and at least one character for each value.
        size = 2 + sum(len(each.name.encode()) + 5 for each in record.known_fields)

        def read_record(source: AvroInput) -> dict[str, Any]:
            source.spend(size)
            source.enter()
            found = {name: read(source) for name, read in fields}
            source.depth -= 1
            return found

        return read_record


def _make_enum_reader(of: EnumType) -> Read:
    symbols = of.symbols

    def read_enum(source: AvroInput) -> str:
        index = source.read_long()
        if not 0 <= index < len(symbols):
            raise BadAvro(f"The enum {of.name} has no symbol {index}")
        source.spend(len(symbols[index]))
        return symbols[index]

    return read_enum


def _make_fixed_reader(of: FixedType) -> Read:
    size = of.size

    def read_fixed(source: AvroInput) -> str:
        source.spend(size)
        return source.take(size).decode("latin-1")

    return read_fixed


def _make_decimal_reader(form: DecimalForm, take: Callable[[AvroInput], bytes]) -> Read:
    end = 10**form.precision

    def read_decimal(source: AvroInput) -> Decimal:
        raw = take(source)
        if not raw:
            raise BadAvro("A decimal has no bytes")
        number = int.from_bytes(raw, "big", signed=True)
        if not -end < number < end:
            raise BadAvro(f"A decimal has more than {form.precision} digits")
        source.spend(form.precision)
        return Decimal(f"{number}E-{form.scale}")

    return read_decimal


def write_decimal(value: Any) -> orjson.Fragment:
    """The number with all its digits, for `orjson.dumps`."""
    if isinstance(value, Decimal):
        return orjson.Fragment(format(value, "f"))
    raise TypeError(type(value).__name__)


def _make_union_reader(branches: list[Read]) -> Read:
    def read_union(source: AvroInput) -> Any:
        index = source.read_long()
        if not 0 <= index < len(branches):
            raise BadAvro(f"A union has no branch {index}")
        return branches[index](source)

    return read_union


def _read_blocks(source: AvroInput, size: int, read_item: Callable[[], None]) -> None:
    """Read the items of all blocks; each takes at least this number of bytes in JSON."""
    source.spend(2)
    source.enter()
    while count := source.read_long():
        end = None
        if count < 0:
            count, length = -count, source.read_long()
            end = source.position + length
        source.spend(count * size)
        for _ in range(count):
            read_item()
        source.check_end_of_block(end)
    source.depth -= 1


def _make_array_reader(read: Read) -> Read:
    def read_array(source: AvroInput) -> list[Any]:
        found: list[Any] = []
        _read_blocks(source, 2, lambda: found.append(read(source)))
        return found

    return read_array


def _make_map_reader(read: Read) -> Read:
    def read_map(source: AvroInput) -> dict[str, Any]:
        found: dict[str, Any] = {}

        def read_entry() -> None:
            name = _read_string(source)
            if name in found:
                raise BadAvro("A map has a key twice")
            found[name] = read(source)

        _read_blocks(source, 5, read_entry)
        return found

    return read_map

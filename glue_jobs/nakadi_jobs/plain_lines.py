"""Reads plain lines of the archive as Arrow rows. A line is plain if none of its values could become another one.

The text of a line decides whether Spark has to read it, before any value is parsed. Arrow decides too: it rejects long
numbers, exponents, halves of surrogate pairs, other spellings of moments, and values of another type. An event with a
member that has no column gets a row that also holds its text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
from msgspec import Struct as Frozen
from pyarrow import compute
from pyarrow import json as arrow_json

from nakadi_jobs.columns import (
    DOUBLE,
    STRING,
    Array,
    Field,
    Kind,
    Scalar,
    Struct,
    contains_several_types,
    is_decimal,
    leaves,
)
from nakadi_jobs.exact_values import EXACT_DIGITS
from nakadi_jobs.transform import EVENT_MARKER, HEADER

UTC_TIME = pa.timestamp("us", "UTC")

FIELD_ID = b"PARQUET:field_id"

FEW_LINES = 64
"""If one of this many lines is unreadable, all of them are left to Spark."""

_NULL = r":\s*null"
_NUMBER = rf"[:,\[]\s*-?[0-9](?:[0-9.]{{{EXACT_DIGITS + 1}}}|[0-9]{{{EXACT_DIGITS}}}|[0-9.]*[eE])"
"""A number that may have more digits than a double holds, or has an exponent."""
_CODE = r"\\u000[0-3]"
"""Characters with a meaning for `exact_values`."""
_HALF = r"\\u[dD][89a-fA-F]"
"""Half of a surrogate pair."""
_PAIR = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F]"

_MOMENT = (
    r"^[12][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,6})?(Z|[-+](0[0-9]|1[0-7]):[0-5][0-9])$"
)

_ICEBERG_TYPES = {"string": "string", "bigint": "long", "int": "int", "double": "double", "boolean": "boolean"}
_ICEBERG_TIME = "timestamptz"

_ARROW_TYPES: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    "long": pa.int64(),
    "int": pa.int32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    _ICEBERG_TIME: UTC_TIME,
}


class NotPlain(Exception):
    """Raised for columns or a table for which Arrow cannot make rows."""


class Form(Frozen, frozen=True):
    """The columns to read, and the fields of the table as Iceberg's JSON."""

    columns: Struct
    table: str


class Rows(NamedTuple):
    """The rows of plain lines, in order, and the remaining lines."""

    rows: pa.Table
    doubtful: Sequence[bytes]


Mask = np.ndarray[Any, np.dtype[np.bool_]]
"""True for some of the rows."""


class _Column(NamedTuple):
    """A column, where it is doubtful, and where something has no column; None for nowhere."""

    values: pa.Array
    doubtful: Mask | None
    lacking: Mask | None


class Reader:
    """Reads lines of a form. Raises `NotPlain` if no line of this form is plain."""

    def __init__(self, form: Form) -> None:
        if not form.columns.fields or contains_several_types(form.columns):
            raise NotPlain("columns with values of several types")
        self.columns = form.columns
        fields = orjson.loads(form.table)["fields"]
        self.schema = pa.schema([_arrow_field(each, each) for each in fields])
        _check_same(form.columns, {each["name"].lower(): each["type"] for each in fields})
        line = Struct((*HEADER, Field("event", form.columns)))
        read_as = _reading_type(line)
        assert read_as is not None
        self._line = line
        self._options = arrow_json.ParseOptions(explicit_schema=pa.schema(list(read_as)))
        is_inexact = any(each == DOUBLE or is_decimal(each) for each in leaves(form.columns))
        patterns = [_CODE, *([_NUMBER] if is_inexact else [])]
        self._doubtful = "|".join(patterns)
        self._suspicious = "|".join([_NULL, _HALF, *patterns])

    def read(self, text: bytes, topic: str, timeline: int) -> Rows:
        """Read lines of a topic, each with a newline at its end. Lines of other topics have no row."""
        ends = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n")) + 1
        starts = np.concatenate(([0], ends)).astype(np.int64)
        doubtful: list[bytes] = []
        read = list(self._read(text, starts, _Topic(topic, timeline), doubtful))
        return Rows(pa.concat_tables(read) if read else self.schema.empty_table(), doubtful)

    def _read(self, text: bytes, starts: Any, topic: _Topic, doubtful: list[bytes]) -> Iterator[pa.Table]:
        """Read all lines at once. If Arrow rejects one, read each half separately."""
        if len(starts) < 2:
            return
        first, end = int(starts[0]), int(starts[-1])
        here = text if (first, end) == (0, len(text)) else text[first:end]
        try:
            found = self._rows(here, starts - first, topic)
        except (pa.ArrowException, ValueError):
            if len(starts) <= FEW_LINES:
                doubtful += [text[begin:stop] for begin, stop in pairwise(starts.tolist())]
                return
            half = len(starts) // 2
            yield from self._read(text, starts[: half + 1], topic, doubtful)
            yield from self._read(text, starts[half:], topic, doubtful)
            return
        doubtful += found.doubtful
        yield found.rows

    def _rows(self, text: bytes, starts: Any, topic: _Topic) -> Rows:
        """Raises ValueError or an Arrow exception if one of the lines is not plain."""
        if not text.isascii():
            text.decode()
        count = len(starts) - 1
        lines = pa.LargeStringArray.from_buffers(count, pa.py_buffer(starts), pa.py_buffer(text))
        suspicious = compute.match_substring_regex(lines, self._suspicious)
        lacking: Mask = np.zeros(count, np.bool_)
        doubtful: Mask = np.zeros(count, np.bool_)
        if compute.any(suspicious).as_py():
            at, found = np.flatnonzero(_to_numpy(suspicious)), lines.filter(suspicious)
            lacking[at] = _to_numpy(compute.match_substring_regex(found, _NULL))
            doubtful[at] = _to_numpy(compute.match_substring_regex(found, self._doubtful)) | _lone_halves_mask(found)
        options = arrow_json.ReadOptions(use_threads=False, block_size=len(text) + 1)
        table = arrow_json.read_json(pa.BufferReader(text), read_options=options, parse_options=self._options)
        if len(table) != count:
            raise ValueError("empty lines")
        line = pa.StructArray.from_arrays(
            [column.combine_chunks() for column in table.columns], names=table.column_names
        )
        event = line.field("event")
        made = _convert(event, self.columns, _column_types(self.schema, self.columns))
        for more in (made.lacking, _other_members_mask(line, self._line)):
            lacking = lacking if more is None else lacking | more
        doubtful = doubtful if made.doubtful is None else doubtful | made.doubtful
        heads = _to_numpy(compute.find_substring(lines, EVENT_MARKER)).astype(np.int64)
        for name in ("partition", "offset", "time"):
            doubtful |= ~_validity(line.field(name))
        # Behind the event are a brace and the newline.
        sizes = np.where(heads < 0, 0, np.maximum(np.diff(starts) - heads - len(EVENT_MARKER) - 2, 0)).astype(np.int32)
        tombstones = ~_validity(event) & (heads < 0)
        texts = _event_texts(text, starts, heads, lacking & ~doubtful & ~tombstones)
        places = {
            "nakadi_timeline": pa.array(np.full(count, topic.timeline, np.int32)),
            "nakadi_partition": line.field("partition"),
            "nakadi_offset": line.field("offset"),
            "nakadi_time": compute.cast(line.field("time"), UTC_TIME),
            "nakadi_key": line.field("key"),
            "nakadi_owner": _convert_owner(line.field("owner"), self.schema.field("nakadi_owner").type),
            "nakadi_directed_to": line.field("directed_to"),
            "nakadi_tombstone": pa.array(tombstones),
            "nakadi_size": pa.array(sizes),
            "nakadi_publisher": _publisher_column(event, self.columns),
            "nakadi_event": texts,
        }
        payload = {name.lower(): made.values.field(name) for name in (each.name for each in made.values.type)}
        columns = {**payload, **places}
        rows = pa.Table.from_arrays(
            [
                columns[field.name.lower()] if field.name.lower() in columns else pa.nulls(count, field.type)
                for field in self.schema
            ],
            schema=self.schema,
        )
        kept = ~doubtful
        if not compute.all(compute.equal(line.field("topic"), topic.name)).as_py():
            kept &= _to_numpy(compute.fill_null(compute.equal(line.field("topic"), topic.name), fill_value=False))
        left = [text[starts[at] : starts[at + 1]] for at in np.flatnonzero(doubtful)]
        return Rows(rows if kept.all() else rows.filter(pa.array(kept)), left)


class _Topic(NamedTuple):
    name: str
    timeline: int


def _reading_type(kind: Kind) -> pa.DataType | None:
    """The type with which Arrow reads values; None if only Spark reads them. Moments are texts until their spelling is
    known.
    """
    match kind:
        case Struct(fields):
            known = ((field.name, _reading_type(field.kind)) for field in fields)
            return pa.struct([(name, read_as) for name, read_as in known if read_as is not None])
        case Array(element):
            inner = _reading_type(element)
            return None if inner is None else pa.list_(inner)
        case Scalar("timestamp"):
            return pa.string()
        case Scalar(name) if name.startswith("decimal"):
            return pa.float64()
        case Scalar(name) if name in _ICEBERG_TYPES:
            return _ARROW_TYPES[_ICEBERG_TYPES[name]]
    return None


def _arrow_field(named: Mapping[str, Any], described: Mapping[str, Any], key: str = "id") -> pa.Field:
    kind = _arrow_type(described["type"])
    required = bool(described.get("required"))
    return pa.field(named["name"], kind, nullable=not required, metadata={FIELD_ID: str(described[key])})


def _arrow_type(kind: Any) -> pa.DataType:
    """The Arrow type of a type in Iceberg's JSON."""
    match kind:
        case str() if kind in _ARROW_TYPES:
            return _ARROW_TYPES[kind]
        case str() if kind.startswith("decimal("):
            precision, scale = kind.removeprefix("decimal(").rstrip(")").split(",")
            return pa.decimal128(int(precision), int(scale))
        case {"type": "struct", "fields": fields}:
            return pa.struct([_arrow_field(each, each) for each in fields])
        case {"type": "list", "element-id": number, "element": element}:
            return pa.list_(_inner_field("element", element, number, nullable=True))
        case {"type": "map", "key-id": key_id, "key": key, "value-id": value_id, "value": value}:
            return pa.map_(
                _inner_field("key", key, key_id, nullable=False), _inner_field("value", value, value_id, nullable=True)
            )
    raise NotPlain(f"columns of the type {kind}")


def _inner_field(name: str, kind: Any, number: int, *, nullable: bool) -> pa.Field:
    return pa.field(name, _arrow_type(kind), nullable=nullable, metadata={FIELD_ID: str(number)})


def _check_same(kind: Kind, existing: Any) -> None:
    """Raise `NotPlain` if the table has another type than the values that are read for it."""
    match kind, existing:
        case Struct(fields), {"type": "struct", "fields": listed}:
            _check_same(Struct(fields), {each["name"].lower(): each["type"] for each in listed})
            return
        case Struct(fields), Mapping() if all(field.name.lower() in existing for field in fields):
            for field in fields:
                _check_same(field.kind, existing[field.name.lower()])
            return
        case Array(element), {"type": "list", "element": inner}:
            _check_same(element, inner)
            return
        case Scalar("timestamp"), str() if existing == _ICEBERG_TIME:
            return
        case Scalar(name), str() if _ICEBERG_TYPES.get(name) == existing or name == existing.replace(" ", ""):
            return
    if _reading_type(kind) is not None:
        raise NotPlain(f"a column that is {existing}")


def _column_types(schema: pa.Schema, columns: Struct) -> pa.StructType:
    """The types of the columns, all of which the table has."""
    names = {field.name.lower() for field in columns.fields}
    return pa.struct([field for field in schema if field.name.lower() in names])


def _convert(found: pa.Array, kind: Kind, wanted: pa.DataType) -> _Column:
    """A column of the table, from the values that were read for it."""
    match kind:
        case Struct():
            return _convert_structure(found, kind, wanted)
        case Array(element):
            inner = _convert(found.values, element, wanted.value_type)
            values = pa.ListArray.from_arrays(found.offsets, inner.values, type=wanted, mask=_null_mask(found))
            return _Column(values, _list_mask(inner.doubtful, found), _list_mask(inner.lacking, found))
        case Scalar("timestamp"):
            return _convert_moments(found)
        case Scalar(name) if name.startswith("decimal"):
            return _convert_decimals(found, wanted)
    return _Column(found, None, None)


def _convert_structure(found: pa.StructArray, kind: Struct, wanted: pa.StructType) -> _Column:
    doubtful, lacking = _unread_mask(found, kind), _other_members_mask(found, kind)
    kinds = {field.name.lower(): field for field in kind.fields if found.type.get_field_index(field.name) >= 0}
    values = []
    for field in wanted:
        known = kinds.get(field.name.lower())
        if known is None or _reading_type(known.kind) is None:
            values.append(pa.nulls(len(found), field.type))
            continue
        made = _convert(found.field(known.name), known.kind, field.type)
        values.append(made.values)
        doubtful, lacking = _either(doubtful, made.doubtful), _either(lacking, made.lacking)
    return _Column(pa.StructArray.from_arrays(values, fields=list(wanted), mask=_null_mask(found)), doubtful, lacking)


def _unread_mask(found: pa.StructArray, kind: Struct) -> Mask | None:
    """Where there is a value that only Spark reads."""
    return _presence_mask(found, [field.name for field in kind.fields if _reading_type(field.kind) is None])


def _other_members_mask(found: pa.StructArray, kind: Struct) -> Mask | None:
    """Where there is a member without a column."""
    names = {field.name for field in kind.fields}
    return _presence_mask(found, [field.name for field in found.type if field.name not in names])


def _presence_mask(found: pa.StructArray, names: Iterable[str]) -> Mask | None:
    mask: Mask | None = None
    for name in names:
        if found.type.get_field_index(name) >= 0:
            mask = _either(mask, _validity(found.field(name)))
    return mask


def _list_mask(mask: Mask | None, lists: pa.ListArray) -> Mask | None:
    """The lists that have a marked element."""
    if mask is None or not mask.any():
        return None
    before = np.concatenate(([0], np.cumsum(mask)))[_to_numpy(lists.offsets)]
    found: Mask = np.diff(before) > 0
    return found


def _convert_moments(found: pa.Array) -> _Column:
    usual = compute.match_substring_regex(found, _MOMENT)
    strange = ~_to_numpy(compute.fill_null(usual, fill_value=True))
    if strange.any():
        found = compute.if_else(usual, found, pa.scalar(None, pa.string()))
    return _Column(compute.cast(found, UTC_TIME), strange, None)


def _convert_decimals(found: pa.Array, wanted: pa.Decimal128Type) -> _Column:
    """Decimals from doubles, if they have so few digits that the decimal is exactly what was written."""
    few = compute.less(compute.abs(found), 10.0 ** (EXACT_DIGITS - wanted.scale))
    values = compute.cast(compute.if_else(few, found, pa.scalar(None, pa.float64())), wanted)
    same = compute.and_(few, compute.equal(compute.cast(values, pa.float64()), found))
    # A number that became null has changed.
    return _Column(values, _validity(found) & ~_to_numpy(compute.fill_null(same, fill_value=False)), None)


def _lone_halves_mask(lines: pa.Array) -> Mask:
    """The lines with halves of surrogate pairs that are in no pair."""
    halves, pairs = (_to_numpy(compute.count_substring_regex(lines, pattern)) for pattern in (_HALF, _PAIR))
    lone: Mask = halves != 2 * pairs
    return lone


def _convert_owner(found: pa.ListArray, wanted: pa.StructType) -> pa.Array:
    """An owner, from a list of a type and a value. Raises ValueError for other lists."""
    if found.null_count == len(found):
        return pa.nulls(len(found), wanted)
    lengths = compute.drop_null(compute.list_value_length(found))
    if not compute.all(compute.equal(lengths, 2)).as_py():
        raise ValueError("an owner that is no type and value")
    first = pa.array(_to_numpy(found.offsets)[:-1], mask=_to_numpy(_null_mask(found)))
    values = [found.values.take(compute.add(first, number)) for number in (0, 1)]
    return pa.StructArray.from_arrays(values, fields=list(wanted), mask=_null_mask(found))


def _publisher_column(event: pa.StructArray, columns: Struct) -> pa.Array:
    """The same as in `transform`."""
    metadata = next((field.kind for field in columns.fields if field.name == "metadata"), None)
    known = {field.name: field.kind for field in metadata.fields} if isinstance(metadata, Struct) else {}
    if known.get("published_by") != STRING:
        return pa.nulls(len(event), pa.string())
    return event.field("metadata").field("published_by")


def _event_texts(text: bytes, starts: Any, heads: Any, wanted: Mask) -> pa.Array:
    """The texts of the events whose lines need them. A line ends with a brace after the event, and a newline."""
    count = len(heads)
    at = np.flatnonzero(wanted)
    if not len(at):
        return pa.nulls(count, pa.string())
    found: list[bytes | None] = [None] * count
    for line in at:
        whole = text[starts[line] : starts[line + 1] - 1]
        found[line] = whole if heads[line] < 0 else whole[heads[line] + len(EVENT_MARKER) : -1]
    return pa.array(found, pa.string())


def _either(one: Mask | None, other: Mask | None) -> Mask | None:
    if one is None or other is None:
        return other if one is None else one
    both: Mask = one | other
    return both


def _null_mask(found: pa.Array) -> pa.Array | None:
    """Where values are missing, in the form that Arrow needs for a new structure."""
    return found.is_null() if found.null_count else None


def _validity(found: pa.Array) -> Mask:
    valid: Mask = _to_numpy(found.is_valid())
    return valid


def _to_numpy(found: pa.Array) -> Any:
    return found.to_numpy(zero_copy_only=False)

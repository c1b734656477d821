"""Reads plain lines of the archive as Arrow rows. A line is plain if reading it changes none of its values. The text
of a line decides, before any value is parsed, whether Spark has to read the line. Arrow decides too: it rejects long
numbers, exponents, halves of surrogate pairs, other spellings of moments, and values of another type. Arrow cannot give
the text of an open object; msgspec takes the text unchanged from the line.

An event with a member that has no column gets a row that also holds its text: members are counted in the line, and in
the columns.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
import orjson
import pyarrow as pa
from msgspec import Struct as Frozen
from pyarrow import compute
from pyarrow import json as arrow_json

from nakadi_jobs.columns import (
    DOUBLE,
    MAX_DIGITS,
    STRING,
    Array,
    Field,
    Json,
    Kind,
    Scalar,
    Struct,
    Texts,
    contains_several_types,
    decimal_scale,
    innermost_types,
    is_decimal,
)
from nakadi_jobs.exact_values import EXACT_DIGITS
from nakadi_jobs.transform import EVENT_MARKER, HEADER

UTC_TIME = pa.timestamp("us", "UTC")

FIELD_ID = b"PARQUET:field_id"

FEW_LINES = 64
"""If one of this many lines is unreadable, Spark reads all of them."""

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

MEMBER = '":'
"""The text between a member's name and its value, which seldom occurs anywhere else."""

_BLANKS_BEFORE_COLONS = (b" :", b"\t:", b"\r:")
_MEMBER_WITH_BLANKS = r'"[ \t\r]*:'

_NOTHING = msgspec.Raw()
_NULL = b"null"
_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])
_TEXTS = msgspec.json.Decoder(dict[str, str | None])

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
"""Marks some of the rows: one truth value for each row."""


Counts = np.ndarray[Any, np.dtype[np.int64]]
"""A number for each row."""

CountMembers = Callable[[bytes], int]


class _Column(NamedTuple):
    """A column, a mask of its doubtful rows (None: no row is doubtful), and the number of object members in each value
    (None: no members).
    """

    values: pa.Array
    doubtful: Mask | None
    members: Counts | None


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
        self._options = arrow_json.ParseOptions(
            explicit_schema=pa.schema(list(read_as)), unexpected_field_behavior="ignore"
        )
        self._opened = msgspec.json.Decoder(_open_type(line))
        self._opened_names = [f'"{name}"'.encode() for name in _names_of(line, _is_opened)]
        is_inexact = any(each == DOUBLE or is_decimal(each) for each in innermost_types(form.columns))
        patterns = [_CODE, *([_NUMBER] if is_inexact else []), *_texts_for_decimals(line)]
        self._doubtful = "|".join(patterns)
        self._suspicious = "|".join([_HALF, *patterns])

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
        except (pa.ArrowException, msgspec.MsgspecError, ValueError):
            if len(starts) <= FEW_LINES:
                doubtful += [text[begin:stop] for begin, stop in pairwise(starts.tolist())]
                return
            half = len(starts) // 2
            yield from self._read(text, starts[: half + 1], topic, doubtful)
            yield from self._read(text, starts[half:], topic, doubtful)
            return
        doubtful += found.doubtful
        yield found.rows

    def _may_have_opened(self, text: bytes) -> bool:
        """Whether a line may have an open object. A name may be written with codes of its characters."""
        return bool(self._opened_names) and (rb"\u" in text or any(name in text for name in self._opened_names))

    def _rows(self, text: bytes, starts: Any, topic: _Topic) -> Rows:
        """Read lines all at once. Raises ValueError, or an exception of Arrow or msgspec, if one of them cannot be read
        in this way.
        """
        if not text.isascii():
            text.decode()
        lines = pa.LargeStringArray.from_buffers(len(starts) - 1, pa.py_buffer(starts), pa.py_buffer(text))
        doubtful = self._doubtful_mask(lines)
        line = self._parse(text, len(lines))
        has_blanks = any(each in text for each in _BLANKS_BEFORE_COLONS)
        payload = self._convert_event(line.field("event"), text, _count_with_blanks if has_blanks else _count_members)
        if payload.doubtful is not None:
            doubtful |= payload.doubtful
        for name in ("partition", "offset", "time"):
            doubtful |= ~_validity_mask(line.field(name))
        lacking: Mask = _count_in_lines(lines, has_blanks=has_blanks) > _count_in_columns(line, self._line, payload)
        columns = {
            **{each.name.lower(): payload.values.field(each.name) for each in payload.values.type},
            **self._nakadi_columns(text, starts, lines, line, topic.timeline, lacking & ~doubtful),
        }
        rows = pa.Table.from_arrays(
            [
                columns[field.name.lower()] if field.name.lower() in columns else pa.nulls(len(lines), field.type)
                for field in self.schema
            ],
            schema=self.schema,
        )
        is_of_topic = compute.fill_null(compute.equal(line.field("topic"), topic.name), fill_value=False)
        kept = ~doubtful & _to_numpy(is_of_topic)
        left = [text[starts[at] : starts[at + 1]] for at in np.flatnonzero(doubtful)]
        return Rows(rows if kept.all() else rows.filter(pa.array(kept)), left)

    def _doubtful_mask(self, lines: pa.Array) -> Mask:
        """The lines of which Arrow might change a value, by their text."""
        doubtful: Mask = np.zeros(len(lines), np.bool_)
        suspicious = compute.match_substring_regex(lines, self._suspicious)
        if compute.any(suspicious).as_py():
            found = lines.filter(suspicious)
            doubtful[_to_numpy(suspicious)] = _to_numpy(
                compute.match_substring_regex(found, self._doubtful)
            ) | _lone_halves_mask(found)
        return doubtful

    def _parse(self, text: bytes, count: int) -> pa.StructArray:
        """Parse the lines into columns, without the values of open objects."""
        options = arrow_json.ReadOptions(use_threads=False, block_size=len(text) + 1)
        table = arrow_json.read_json(pa.BufferReader(text), read_options=options, parse_options=self._options)
        if len(table) != count:
            raise ValueError("empty lines")
        return pa.StructArray.from_arrays(
            [column.combine_chunks() for column in table.columns], names=table.column_names
        )

    def _convert_event(self, event: pa.StructArray, text: bytes, count: CountMembers) -> _Column:
        """The columns of the events, with the open objects that are read from the text of all lines."""
        opened = self._opened.decode_lines(text) if self._may_have_opened(text) else []
        wanted = _column_types(self.schema, self.columns)
        return _convert(event, self.columns, wanted, _OpenedValues(opened, count).members(len(HEADER)))

    def _nakadi_columns(
        self, text: bytes, starts: Any, lines: pa.Array, line: pa.StructArray, timeline: int, with_text: Mask
    ) -> Mapping[str, pa.Array]:
        """The columns that tables have beside those of their events. Rows `with_text` also hold the event's text."""
        event = line.field("event")
        heads = _to_numpy(compute.find_substring(lines, EVENT_MARKER)).astype(np.int64)
        # Behind the event are a brace and the newline.
        sizes = np.where(heads < 0, 0, np.maximum(np.diff(starts) - heads - len(EVENT_MARKER) - 2, 0)).astype(np.int32)
        tombstones = ~_validity_mask(event) & (heads < 0)
        return {
            "nakadi_timeline": pa.array(np.full(len(lines), timeline, np.int32)),
            "nakadi_partition": line.field("partition"),
            "nakadi_offset": line.field("offset"),
            "nakadi_time": compute.cast(line.field("time"), UTC_TIME),
            "nakadi_key": line.field("key"),
            "nakadi_owner": _convert_owner(line.field("owner"), self.schema.field("nakadi_owner").type),
            "nakadi_directed_to": line.field("directed_to"),
            "nakadi_tombstone": pa.array(tombstones),
            "nakadi_size": pa.array(sizes),
            "nakadi_publisher": _publisher_column(event, self.columns),
            "nakadi_event": _event_texts(text, starts, heads, with_text & ~tombstones),
        }


class _Topic(NamedTuple):
    name: str
    timeline: int


def _is_opened(kind: Kind) -> bool:
    """Whether the type is an open object (of unknown members), an open list, or a list of these. msgspec reads their
    text.
    """
    return isinstance(kind, Json | Texts) or (isinstance(kind, Array) and _is_opened(kind.of))


def _has_opened(kind: Kind) -> bool:
    return any(isinstance(each, Json | Texts) for each in innermost_types(kind))


def _names_of(kind: Kind, is_meant: Callable[[Kind], bool]) -> Iterator[str]:
    """The names of the members whose values are open objects, or lists of them."""
    match kind:
        case Struct(fields):
            for field in fields:
                if is_meant(field.kind) or (isinstance(field.kind, Array) and is_meant(_innermost(field.kind))):
                    yield field.name
                else:
                    yield from _names_of(field.kind, is_meant)
        case Array(element):
            yield from _names_of(element, is_meant)


def _innermost(kind: Kind) -> Kind:
    return _innermost(kind.of) if isinstance(kind, Array) else kind


def _reading_type(kind: Kind) -> pa.DataType | None:
    """The type with which Arrow reads values; None for open objects and for types that consist of them. Moments are
    texts until their spelling is known.
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
            return pa.decimal128(MAX_DIGITS, decimal_scale(name))
        case Scalar(name) if name in _ICEBERG_TYPES:
            return _ARROW_TYPES[_ICEBERG_TYPES[name]]
    return None


def _open_type(kind: Kind) -> Any:
    """The type with which msgspec reads the texts of the open objects inside a type; None if there are none."""
    if _is_opened(kind):
        return msgspec.Raw
    match kind:
        case Struct(fields):
            # Fields have generated names, because a member may be called `class`.
            found = ((f"f{number}", _open_type(field.kind)) for number, field in enumerate(fields))
            known = [
                (name, each, _NOTHING) if each is msgspec.Raw else (name, each | None, None)
                for name, each in found
                if each is not None
            ]
            names = {f"f{number}": field.name for number, field in enumerate(fields)}
            return msgspec.defstruct("Opened", known, rename=names, gc=False) if known else None
        case Array(element):
            inner = _open_type(element)
            return None if inner is None else types.GenericAlias(list, inner | None)
    return None


def _texts_for_decimals(line: Struct) -> Iterator[str]:
    """A pattern for strings where decimals should be: Arrow would read them as numbers."""
    names = sorted({*_names_of(line, is_decimal)})
    if names:
        yield rf'"(?:{"|".join(names)})"\s*:\s*(?:"|\[[-+0-9.,eE\s\[\]]*")'


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
        case (Json(), "string") | (Texts(), {"type": "map", "key": "string", "value": "string"}):
            return
    raise NotPlain(f"a column that is {existing}")


def _column_types(schema: pa.Schema, columns: Struct) -> pa.StructType:
    """The types of the columns, all of which the table has."""
    names = {field.name.lower() for field in columns.fields}
    return pa.struct([field for field in schema if field.name.lower() in names])


class _OpenedValues(NamedTuple):
    """The values that msgspec has read for each value of a column, if it contains open objects, and how to count their
    members.
    """

    found: Sequence[Any]
    count: CountMembers

    def members(self, number: int) -> _OpenedValues:
        name = f"f{number}"
        return self._replace(found=[None if each is None else getattr(each, name, None) for each in self.found])

    def elements(self) -> _OpenedValues:
        return self._replace(found=[*chain.from_iterable(each for each in self.found if each is not None)])


def _convert(found: pa.Array, kind: Kind, wanted: pa.DataType, opened: _OpenedValues) -> _Column:
    """A column of the table, from the values that were read for it."""
    match kind:
        case Struct():
            return _convert_structure(found, kind, wanted, opened)
        case Array(element):
            inner = _convert(found.values, element, wanted.value_type, opened.elements())
            values = pa.ListArray.from_arrays(found.offsets, inner.values, type=wanted, mask=_null_mask(found))
            return _Column(values, _list_mask(inner.doubtful, found), _sum_by_list(inner.members, found))
        case Scalar("timestamp"):
            return _convert_moments(found)
    return _Column(found, None, None)


def _convert_structure(found: pa.StructArray, kind: Struct, wanted: pa.StructType, opened: _OpenedValues) -> _Column:
    doubtful: Mask | None = None
    members: Counts = np.zeros(len(found), np.int64)
    kinds = {field.name.lower(): (number, field) for number, field in enumerate(kind.fields)}
    values = []
    for column in wanted:
        number, field = kinds.get(column.name.lower(), (0, None))
        if field is None:
            values.append(pa.nulls(len(found), column.type))
            continue
        inner = opened.members(number) if _has_opened(field.kind) else _OpenedValues((), opened.count)
        if _is_opened(field.kind):
            made = _convert_opened(inner.found or [None] * len(found), field.kind, column.type, opened.count)
        else:
            made = _convert(found.field(field.name), field.kind, column.type, inner)
        values.append(made.values)
        doubtful = _either_mask(doubtful, made.doubtful)
        members += _validity_mask(made.values)
        if made.members is not None:
            members += made.members
    return _Column(pa.StructArray.from_arrays(values, fields=list(wanted), mask=_null_mask(found)), doubtful, members)


def _convert_opened(
    texts: Sequence[msgspec.Raw | None], kind: Kind, wanted: pa.DataType, count: CountMembers
) -> _Column:
    """Convert a column of open objects, or of a type that consists of them. A value of another kind is doubtful."""
    doubtful: Mask = np.zeros(len(texts), np.bool_)
    members: Counts = np.zeros(len(texts), np.int64)
    values: list[Any] = [None] * len(texts)
    for at, raw in enumerate(texts):
        text = b"" if raw is None else bytes(raw)
        if text and text != _NULL:
            try:
                values[at], members[at] = _read_opened(text, kind, count)
            except (ValueError, msgspec.MsgspecError):
                doubtful[at] = True
    return _Column(pa.array(values, wanted), doubtful, members)


def _read_opened(text: bytes, kind: Kind, count: CountMembers) -> tuple[Any, int]:
    """A value and the number of members in it. Raises ValueError or `MsgspecError` for another kind of value."""
    match kind:
        case Array(element):
            found = [_read_opened(raw, element, count) for raw in map(bytes, _ELEMENTS.decode(text))]
            return [value for value, _ in found], sum(members for _, members in found)
        case Texts():
            texts = _TEXTS.decode(text)
            return [*texts.items()], len(texts)
    if text[:1] not in (b"{", b"["):
        raise ValueError("neither an object nor a list")
    return text.decode(), count(text)


def _count_members(text: bytes) -> int:
    return text.count(MEMBER.encode())


def _count_with_blanks(text: bytes) -> int:
    return len(re.findall(_MEMBER_WITH_BLANKS.encode(), text))


def _count_in_lines(lines: pa.Array, *, has_blanks: bool) -> Counts:
    """A lower bound for the number of members of each line."""
    counted = compute.count_substring_regex if has_blanks else compute.count_substring
    counts: Counts = _to_numpy(counted(lines, _MEMBER_WITH_BLANKS if has_blanks else MEMBER))
    return counts


def _count_in_columns(line: pa.StructArray, kind: Struct, event: _Column) -> Counts:
    """The number of members of each line that have a column."""
    counts: Counts = np.zeros(len(line), np.int64)
    for field in kind.fields:
        counts += _validity_mask(line.field(field.name))
    return counts if event.members is None else counts + event.members


def _list_mask(mask: Mask | None, lists: pa.ListArray) -> Mask | None:
    """A mask of the lists that have a marked element; None if no element is marked."""
    if mask is None or not mask.any():
        return None
    before = np.concatenate(([0], np.cumsum(mask)))[_to_numpy(lists.offsets)]
    found: Mask = np.diff(before) > 0
    return found


def _sum_by_list(members: Counts | None, lists: pa.ListArray) -> Counts | None:
    if members is None:
        return None
    sums: Counts = np.diff(np.concatenate(([0], np.cumsum(members)))[_to_numpy(lists.offsets)])
    return sums


def _convert_moments(found: pa.Array) -> _Column:
    usual = compute.match_substring_regex(found, _MOMENT)
    strange = ~_to_numpy(compute.fill_null(usual, fill_value=True))
    if strange.any():
        found = compute.if_else(usual, found, pa.scalar(None, pa.string()))
    return _Column(compute.cast(found, UTC_TIME), strange, None)


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
    """The publisher column, as `transform` computes it."""
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


def _either_mask(one: Mask | None, other: Mask | None) -> Mask | None:
    if one is None or other is None:
        return other if one is None else one
    both: Mask = one | other
    return both


def _null_mask(found: pa.Array) -> pa.Array | None:
    """The mask of missing values, as Arrow needs it for a new structure; None if no value is missing."""
    return found.is_null() if found.null_count else None


def _validity_mask(found: pa.Array) -> Mask:
    valid: Mask = _to_numpy(found.is_valid())
    return valid


def _to_numpy(found: pa.Array) -> Any:
    return found.to_numpy(zero_copy_only=False)

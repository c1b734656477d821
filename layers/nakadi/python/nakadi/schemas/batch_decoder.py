"""Decodes a whole batch at once, to a type of msgspec that says what the schema does.

Then no event becomes a `dict`, which takes most of the time of reading one. What a type cannot say is checked after it,
for the parts of the schema that say it. Members that the schema does not name are added to the type when they are met:
producers send the same ones again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec
import orjson
from msgspec import UNSET, Struct

from nakadi.common.work import check_may_block
from nakadi.schemas.document import EID_PATTERN, SchemaDocument
from nakadi.schemas.formats import is_usual_timestamp, timestamp_problem
from nakadi.schemas.shapes import NO_NAMES, MsgspecTypes, any_scalar_type
from nakadi.schemas.strict_json import count_colons
from nakadi.schemas.untyped_parts import CompileParts, UntypedPart, UntypedPartCheck

_ENCODER = msgspec.json.Encoder()
_OTHER_BYTES = bytes({*range(256)} - {*b": "})
_DECODING_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, OverflowError, RecursionError)
_is_eid = re.compile(EID_PATTERN.strip("^$")).fullmatch
_EID_PATH, _OCCURRED_AT_PATH = ("metadata", "eid"), ("metadata", "occurred_at")

# What the decoded events of a batch may take: so much as their parsed form may.
_MAX_DECODED_MEMORY_BYTES = 8 * 1024 * 1024
_MEMORY_BYTES_OF_OBJECT, _MEMORY_BYTES_OF_MEMBER = 64, 8
_MIN_OBJECT_BYTES = len("{}")
# Batches of another form are left out after two of them, twice as many each time, and this often doubled at most.
_MAX_PAUSE_DOUBLINGS = 8
# So many members are met before those that are new are left to the thorough way, and no name is longer than this.
_MAX_UNDECLARED_NAMES = 30
_is_plain_name = re.compile(r'[^"\\\x00-\x1f]{1,100}').fullmatch


def _make_any_json_type(levels: int) -> Any:
    """Values that may be anything: strict JSON, and not nested deeper than this."""
    kind: Any = any_scalar_type()
    for _ in range(levels):  # each has twice the parts of the one before
        kind = any_scalar_type() | list[kind] | dict[str, kind]
    return kind


_ANY_JSON_TYPE = _make_any_json_type(levels=4)


class DecodedBatch(Struct, frozen=True):
    """Events that are valid for certain, as structs, and their array without blanks."""

    events: Sequence[Any]
    text: bytes

    def __len__(self) -> int:
        return len(self.events)

    def in_pieces(self) -> Iterable[DecodedBatch]:
        return (self,)

    def rows_at(self, paths: Sequence[Sequence[str]]) -> Iterable[tuple[Any, ...]]:
        """What each event has at these paths, `UNSET` where it has nothing. Objects are dicts or structs."""
        return zip(*self.columns_at(paths), strict=True)

    def columns_at(self, paths: Sequence[Sequence[str]]) -> Sequence[Sequence[Any]]:
        """The same with what all events have at a path together."""
        columns: dict[tuple[str, ...], Sequence[Any]] = {(): self.events}
        return [_column_at(tuple(path), columns) for path in paths]


def _column_at(path: tuple[str, ...], columns: dict[tuple[str, ...], Sequence[Any]]) -> Sequence[Any]:
    """The values at a path; `columns` has those at some paths, and gets those on the way to this one."""
    if path not in columns:
        columns[path] = _members_named(_column_at(path[:-1], columns), path[-1])
    return columns[path]


def _members_named(values: Sequence[Any], name: str) -> Sequence[Any]:
    """The member of this name of each value, `UNSET` where there is none."""
    # A type of msgspec allows for one type of struct in one place. So what has no such attribute is no struct.
    kind = next((type(value) for value in values if isinstance(value, Struct)), Struct)
    field = None
    if name in kind.__struct_encode_fields__:
        field = kind.__struct_fields__[kind.__struct_encode_fields__.index(name)]
        try:
            return list(map(attrgetter(field), values))
        except AttributeError:
            pass
    return [_member_or_unset(value, name, field) for value in values]


def _member_or_unset(value: Any, name: str, field: str | None) -> Any:
    if type(value) is dict:
        return value.get(name, UNSET)
    return getattr(value, field, UNSET) if field is not None else UNSET


class _BatchType(Struct, frozen=True):
    """A type of msgspec for the events of a batch, made ready, and how many objects these may have."""

    decode: Callable[[bytes], list[Any]]
    max_objects: int
    untyped_parts: Sequence[UntypedPart]


class BatchDecoder:
    """Decodes the array of a batch and holds each event to the schema, at once. What it declines may be valid as well.

    Struct types know no repeated members, and pass over those that they have no place for. Both are found by counting:
    written down again, events in which something was lost have fewer colons.
    """

    def __init__(
        self,
        root: Mapping[str, Any],
        document: SchemaDocument,
        made: _BatchType,
        check: UntypedPartCheck,
        *,
        has_metadata: bool,
    ) -> None:
        self._root = root
        self._document = document
        self._has_metadata = has_metadata
        self._check = check
        # Threads may replace and count these at the same time and lose a step: then a batch more or less is tried.
        self._type = made
        self._undeclared_names: Mapping[int, Mapping[str, None]] = {}
        self._declined = 0
        self._left_out = 0

    def decode(self, body: bytes) -> DecodedBatch | None:
        made = self._type
        # Counting its objects is for a body that is long enough to have too many.
        if self._left_out > 0 or (
            len(body) > made.max_objects * _MIN_OBJECT_BYTES and body.count(b"{") > made.max_objects
        ):
            self._left_out -= self._left_out > 0
            return None
        try:
            events = made.decode(body)
            text = _text_without_blanks(body, _ENCODER.encode(events))
            if text is None and self._add_undeclared_names(body):
                return None
        except _DECODING_ERRORS:
            text = None
        batch = None if text is None else DecodedBatch(events, text)
        if batch is None or not self._is_valid(batch, made.untyped_parts):
            self._declined += 1
            self._left_out = 2 ** min(self._declined, _MAX_PAUSE_DOUBLINGS) - 2
            return None
        self._declined = 0
        return batch

    def end_pause(self) -> None:
        """To be called for a batch that is not valid: it says nothing about the next ones."""
        self._left_out = 0

    def _is_valid(self, batch: DecodedBatch, untyped_parts: Sequence[UntypedPart]) -> bool:
        if self._has_metadata:
            eids, moments = batch.columns_at((_EID_PATH, _OCCURRED_AT_PATH))
            if not all(map(_is_eid, eids)):
                return False
            if not all(map(is_usual_timestamp, moments)) and any(map(timestamp_problem, moments)):
                return False
        return not untyped_parts or self._check.accepts(batch.events, untyped_parts)

    def _add_undeclared_names(self, body: bytes) -> bool:
        """Give members that the schema does not name a place in the type, for the next batch; False if none is new."""
        before = sum(map(len, self._undeclared_names.values()))
        if before >= _MAX_UNDECLARED_NAMES:
            return False
        check_may_block()
        names = {key: dict.fromkeys(each) for key, each in self._undeclared_names.items()}
        try:
            for event in orjson.loads(body):
                _collect_undeclared_names(event, self._root, self._document, names)
        except orjson.JSONDecodeError:
            return False
        if not before < sum(map(len, names.values())) <= _MAX_UNDECLARED_NAMES:
            return False
        made = _make_batch_type(self._root, self._document, self._has_metadata, names)
        if made is None:
            return False
        self._check.prepare(made.untyped_parts)
        self._type, self._undeclared_names = made, names
        return True


def _text_without_blanks(body: bytes, reencoded: bytes) -> bytes | None:
    """The text of events that were `reencoded`; None if something was lost in them."""
    if b"\\" in body:
        return msgspec.json.format(body, indent=-1) if reencoded.count(b":") == count_colons(body) else None
    if b"\n" in body or b"\t" in body or b"\r" in body:
        return msgspec.json.format(body, indent=-1) if reencoded.count(b":") == body.count(b":") else None
    # One look at each text, and several at the few signs that decide.
    sent, written = body.translate(None, _OTHER_BYTES), reencoded.translate(None, _OTHER_BYTES)
    if sent == written:
        return body
    if sent.count(b":") != written.count(b":"):
        return None
    # Without escapes, their strings are written as they came. So where there are as many spaces, all are within them.
    return body if len(sent) == len(written) else msgspec.json.format(body, indent=-1)


def _collect_undeclared_names(
    value: Any, schema: Mapping[str, Any], document: SchemaDocument, names_by_id: dict[int, dict[str, None]]
) -> None:
    """Add the names of members that a schema has no place for, by the ids of the schemas of their objects."""
    schema = _referenced_schema(schema, document)
    if type(value) is list and isinstance(items := schema.get("items"), dict):
        for each in value:
            _collect_undeclared_names(each, items, document, names_by_id)
    if type(value) is not dict or "object" not in schema.get("type", ()):
        return
    properties, required = schema.get("properties", {}), schema.get("required", ())
    additional = schema.get("additionalProperties", True)
    if isinstance(additional, dict) and not (properties or required):
        for each in value.values():
            _collect_undeclared_names(each, additional, document, names_by_id)
    elif properties or required:
        for name, each in value.items():
            if isinstance(part := properties.get(name), dict):
                _collect_undeclared_names(each, part, document, names_by_id)
            elif name not in properties and name not in required and _is_plain_name(name):
                names_by_id.setdefault(id(schema), {})[name] = None


def _referenced_schema(schema: Mapping[str, Any], document: SchemaDocument) -> Mapping[str, Any]:
    """The schema that a reference points at; none for a reference to a reference, which may lead in a circle."""
    if "$ref" not in schema:
        return schema
    target = document.find_target(schema["$ref"])
    return target if isinstance(target, Mapping) and "$ref" not in target else {}


def make_batch_decoder(
    document: SchemaDocument, compile_parts: CompileParts, *, has_metadata: bool
) -> BatchDecoder | None:
    """What decodes events of this schema, if a type can. `has_metadata` is of events that must have some."""
    root = {"type": "object", **document.root}  # events are objects, whether the schema says so or not
    if root["type"] != "object" or not (root.get("properties") or root.get("required")):
        return None
    made = _make_batch_type(root, document, has_metadata, NO_NAMES)
    if made is None:
        return None
    check = UntypedPartCheck(compile_parts)
    check.prepare(made.untyped_parts)
    return BatchDecoder(root, document, made, check, has_metadata=has_metadata)


def _make_batch_type(
    root: Mapping[str, Any], document: SchemaDocument, has_metadata: bool, undeclared_names: Mapping[int, Iterable[str]]
) -> _BatchType | None:
    shapes = MsgspecTypes(_ANY_JSON_TYPE, undeclared_names, document)
    if has_metadata:
        # Held to their pattern in `_is_valid`: within a type that takes twice as long.
        shapes.set_type(root["properties"]["metadata"]["properties"]["eid"], str)
    shape = shapes.find_or_make_type(root)
    if shape is None or not issubclass(shape.type, Struct):
        return None
    max_objects = _MAX_DECODED_MEMORY_BYTES // (_MEMORY_BYTES_OF_OBJECT + _MEMORY_BYTES_OF_MEMBER * shapes.max_members)
    decode = msgspec.json.Decoder(list[shape.type]).decode  # type: ignore[name-defined]  # made here
    return _BatchType(decode, max_objects, shape.untyped_parts)

"""Decodes a whole batch at once, to a type of msgspec that says what the schema does.

Then no event becomes a `dict`, which takes most of the time of reading one. What a type cannot say is checked after it,
for the parts of the schema that say it. Members that the schema does not name are added to the type when they are met:
producers send the same ones again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Literal

import msgspec
import orjson
from msgspec import UNSET, Struct, UnsetType, defstruct

from nakadi.common.work import check_may_block
from nakadi.schemas.document import EID_PATTERN, SchemaDocument
from nakadi.schemas.formats import is_usual_timestamp
from nakadi.schemas.shapes import NO_NAMES, MsgspecTypes, any_scalar_type
from nakadi.schemas.strict_json import count_colons
from nakadi.schemas.untyped_parts import CompileParts, UntypedPart, UntypedPartCheck


class UsualMetadata(Struct, gc=False, forbid_unknown_fields=True, kw_only=True):
    """What most producers send of an event's metadata. Of what the broker adds, it has what they may say themselves."""

    eid: str
    occurred_at: str
    event_type: str | UnsetType = UNSET
    flow_id: str | UnsetType = UNSET
    span_ctx: dict[str, str] | UnsetType = UNSET


def _make_usual_metadata_type(event_types: Sequence[str]) -> type[Struct]:
    """The same for events that may name these event types only."""
    event_type: Any = Literal[tuple(event_types)]
    return defstruct(
        "Metadata", [("event_type", event_type | UnsetType, UNSET)], bases=(UsualMetadata,), gc=False, kw_only=True
    )


METADATA_MEMBER_PREFIX = b'"metadata":{'

# The letters of that name are these, if they are escaped.
_ESCAPED_LETTER_PREFIXES = (b"\\u006", b"\\u007")

_ENCODER = msgspec.json.Encoder()
_DECODING_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, OverflowError, RecursionError)
_is_eid = re.compile(EID_PATTERN.strip("^$")).fullmatch
_get_eid, _get_occurred_at = attrgetter("eid"), attrgetter("occurred_at")

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
    """Events that are valid for certain, their metadata if they have any, and their array without blanks.

    `METADATA_MEMBER_PREFIX` stands in `text` once for each event, and nowhere else, if it is there so often.
    """

    events: Sequence[Any]
    metadata: Sequence[UsualMetadata]
    text: bytes

    def texts_at(self, path: Sequence[str]) -> list[str] | None:
        """What each event has in the place that is reached by these names; None unless all have texts or integers."""
        value, fields = self.events[0], []
        for name in path:
            names = getattr(value, "__struct_encode_fields__", ())
            if name not in names:
                return None
            fields.append(value.__struct_fields__[names.index(name)])
            value = getattr(value, fields[-1])
        try:
            values = list(map(attrgetter(".".join(fields)), self.events))
        except AttributeError:
            return None
        kinds = set(map(type, values))
        if kinds == {str}:
            return values
        return list(map(str, values)) if kinds <= {str, int} else None


class _BatchType(Struct, frozen=True):
    """A type of msgspec for the events of a batch, made ready, and how many objects these may have."""

    decode: Callable[[bytes], list[Any]]
    metadata_of: Callable[[Any], UsualMetadata] | None
    max_objects: int
    untyped_parts: Sequence[UntypedPart]


class BatchDecoder:
    """Decodes the array of a batch and holds each event to the schema, at once. What it declines may be valid as well.

    Struct types know no repeated members, and pass over those that they have no place for. Both are found by counting:
    written down again, events in which something was lost have fewer colons.
    """

    def __init__(
        self, document: SchemaDocument, made: _BatchType, check: UntypedPartCheck, *, has_metadata: bool
    ) -> None:
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
            written = _ENCODER.encode(events)
            text = _text_without_blanks(body, written)
            if text is None:
                if not self._add_undeclared_names(body):
                    self._pause_after_decline()
                return None
        except _DECODING_ERRORS:
            self._pause_after_decline()
            return None
        metadata = list(map(made.metadata_of, events)) if made.metadata_of else ()
        if not (
            all(map(_is_eid, map(_get_eid, metadata))) and all(map(is_usual_timestamp, map(_get_occurred_at, metadata)))
        ) or (metadata and b"\\" in text and any(each in text for each in _ESCAPED_LETTER_PREFIXES)):
            self._pause_after_decline()
            return None
        if made.untyped_parts and not self._check.accepts(events, made.untyped_parts):
            self._pause_after_decline()
            return None
        self._declined = 0
        return DecodedBatch(events, metadata, text)

    def _pause_after_decline(self) -> None:
        self._declined += 1
        self._left_out = 2 ** min(self._declined, _MAX_PAUSE_DOUBLINGS) - 2

    def _add_undeclared_names(self, body: bytes) -> bool:
        """Give members that the schema does not name a place in the type, for the next batch; False if none is new."""
        before = sum(map(len, self._undeclared_names.values()))
        if before >= _MAX_UNDECLARED_NAMES:
            return False
        check_may_block()
        names = {key: dict.fromkeys(each) for key, each in self._undeclared_names.items()}
        try:
            for event in orjson.loads(body):
                _collect_undeclared_names(event, self._document.root, self._document, names)
        except orjson.JSONDecodeError:
            return False
        if not before < sum(map(len, names.values())) <= _MAX_UNDECLARED_NAMES:
            return False
        made = _make_batch_type(self._document, self._has_metadata, names)
        if made is None:
            return False
        self._check.prepare(made.untyped_parts)
        self._type, self._undeclared_names = made, names
        return True


def _text_without_blanks(body: bytes, reencoded: bytes) -> bytes | None:
    """The text of events that were `reencoded`; None if something was lost in them."""
    escaped = b"\\" in body
    if reencoded.count(b":") != (count_colons(body) if escaped else body.count(b":")):
        return None
    # Without escapes, their strings are written as they came. So where there are as many spaces, all are within them.
    if escaped or b"\n" in body or b"\t" in body or b"\r" in body or body.count(b" ") != reencoded.count(b" "):
        return msgspec.json.format(body, indent=-1)
    return body


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
    if isinstance(additional, dict):
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
    schema = document.root
    if schema.get("type") != "object" or not (schema.get("properties") or schema.get("required")):
        return None
    made = _make_batch_type(document, has_metadata, NO_NAMES)
    if made is None:
        return None
    check = UntypedPartCheck(compile_parts)
    check.prepare(made.untyped_parts)
    return BatchDecoder(document, made, check, has_metadata=has_metadata)


def _make_batch_type(
    document: SchemaDocument, has_metadata: bool, undeclared_names: Mapping[int, Iterable[str]]
) -> _BatchType | None:
    schema = document.root
    shapes, metadata_of = MsgspecTypes(_ANY_JSON_TYPE, undeclared_names, document), None
    if has_metadata:
        metadata = schema.get("properties", {}).get("metadata")
        if metadata is None:
            return None
        shapes.set_type(metadata, _make_usual_metadata_type(metadata["properties"]["event_type"]["enum"]))
    shape = shapes.find_or_make_type(schema)
    if shape is None or not issubclass(shape.type, Struct):
        return None
    if has_metadata:
        field = next(each.name for each in msgspec.structs.fields(shape.type) if each.encode_name == "metadata")
        metadata_of = attrgetter(field)
    max_objects = _MAX_DECODED_MEMORY_BYTES // (_MEMORY_BYTES_OF_OBJECT + _MEMORY_BYTES_OF_MEMBER * shapes.max_members)
    decode = msgspec.json.Decoder(list[shape.type]).decode  # type: ignore[name-defined]  # made here
    return _BatchType(decode, metadata_of, max_objects, shape.untyped_parts)

"""A first look at events: much of what schemas say can be said by a type of msgspec.

Such a type is made of objects, lists, texts and numbers as most schemas have them. Converting an event to it takes a
third of the time of the code that is made of a schema, and succeeds for valid events alone. What it fails for may be
valid all the same: then that code decides.

A look goes through a value once, and is taken only where a value is held to one schema. So its time is bounded by the
size of the event, and it takes no steps.

Where such a type says all that a schema does, a whole batch is decoded to it, from its bytes: then no event becomes a
`dict`, which takes most of the time of reading one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, ValidationError, convert, defstruct

from nakadi.schemas.document import EID, RawSchema
from nakadi.schemas.formats import FORMATS, USUAL_TIMESTAMP, is_usual_timestamp
from nakadi.schemas.strict_json import MAX_DEPTH, count_colons, holds_too_long_integer

Look = Callable[[Any], bool]
"""Whether a value is certainly valid."""

# Looking at less than this takes longer than the code.
_LEAST_PARTS = 4
# A type takes three kilobytes, and a twentieth of a millisecond to make.
_MOST_TYPES = 30
# Up to this, integers and floats are compared alike.
_LARGEST_BOUND = 2**53
# Beyond this, an integer is no strict JSON.
_LARGEST_INTEGER = 2**63 - 1

# What may be said of each type of value. `_KNOWN` is what a type of msgspec can say of it.
_OF_ANYTHING = {"$ref", "allOf", "anyOf", "oneOf", "not", "if", "const", "enum"}
_OF_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_OF_TYPE: Mapping[str, set[str]] = {
    "string": {"minLength", "maxLength", "pattern", "format"},
    "integer": _OF_NUMBERS,
    "number": _OF_NUMBERS,
    "array": {"items", "minItems", "maxItems", "uniqueItems", "contains"},
    "object": {
        *("required", "properties", "patternProperties", "additionalProperties"),
        *("minProperties", "maxProperties", "dependencies", "propertyNames"),
    },
}
_OF_ALL = set().union(*_OF_TYPE.values())
_KNOWN = {
    *("enum", "minLength", "maxLength", "pattern", "format", "minimum", "maximum", "items", "minItems", "maxItems"),
    *("required", "properties", "additionalProperties"),
}

_PATTERNS = {EID: rf"\A{EID.strip('^$')}\Z"}


class _NoShape(Exception):
    """Raised for a schema that says what a type cannot say."""


class _Shape(Struct, frozen=True):
    """A type of msgspec, and of how many parts it consists."""

    type: Any
    parts: int = 1


def looks_at(root: RawSchema, referred: frozenset[int]) -> Mapping[int, Look]:
    """The looks that are worth taking, by the ids of the schemas of objects that they stand for.

    `referred` are the ids of schemas that references point at: a value may be held to one of them many times.
    """
    shapes = _Shapes()
    looks: dict[int, Look] = {}
    waiting = [root]
    while waiting:
        schema = waiting.pop()
        if isinstance(schema, bool) or "$ref" in schema or id(schema) in referred:
            continue
        shape = shapes.of(schema)
        look = _look(shape.type) if shape and shape.parts >= _LEAST_PARTS and "properties" in schema else None
        if look is not None:
            looks[id(schema)] = look
        else:
            items = schema.get("items")
            waiting += schema.get("properties", {}).values()
            waiting += [items] if isinstance(items, dict) else []
    return looks


def _look(shape: Any) -> Look | None:
    def is_valid(value: Any) -> bool:
        try:
            convert(value, shape)
        except ValidationError:
            return False
        return True

    try:
        is_valid({})
    except (TypeError, ValueError):  # it says so with the first value
        return None
    return is_valid


class _Shapes:
    """The shapes of the schemas of a document, each made once."""

    def __init__(self) -> None:
        self._found: dict[int, _Shape | None] = {}
        self._made = 0
        # What was met so far: the names of members, the most members of an object, values that may be anything, and
        # objects that may have members of any name which are objects themselves.
        self.names: list[str] = []
        self.most_members = 0
        self.has_any = False
        self.has_named_objects = False

    def stand_in(self, schema: Mapping[str, Any], kind: type) -> None:
        """Take a type for a schema."""
        self._found[id(schema)] = _Shape(kind)

    def of(self, schema: RawSchema) -> _Shape | None:
        if id(schema) not in self._found:
            try:
                self._found[id(schema)] = self._made_of(schema)
            except (_NoShape, ValueError, TypeError):  # msgspec has its own opinion on names and bounds
                self._found[id(schema)] = None
        return self._found[id(schema)]

    def _part(self, schema: RawSchema) -> _Shape:
        shape = self.of(schema)
        if shape is None:
            raise _NoShape
        return shape

    def _made_of(self, schema: RawSchema) -> _Shape:
        if schema is True:
            self.has_any = True
            return _Shape(Any)
        if not isinstance(schema, dict):
            raise _NoShape
        types = schema.get("type", [])
        names = [types] if isinstance(types, str) else types
        kinds = [each for each in names if each != "null"]
        if len(kinds) > 1 or ("type" in schema and not names):
            raise _NoShape
        said = schema.keys() & (_OF_ANYTHING | (_OF_TYPE.get(kinds[0], set()) if kinds else _OF_ALL))
        if not said <= _KNOWN or (not kinds and said):
            raise _NoShape
        # An enumeration is about null as well.
        if "enum" in schema and not (names == ["string"] and all(type(each) is str for each in schema["enum"])):
            raise _NoShape
        if not kinds:
            self.has_any |= not names
            return _Shape(None if names else Any)
        shape = self._of_kind(kinds[0], schema)
        return shape if len(names) == 1 else _Shape(shape.type | None, shape.parts)

    def _of_kind(self, kind: str, schema: Mapping[str, Any]) -> _Shape:
        match kind:
            case "string":
                return _Shape(_text(schema))
            case "integer":
                return _Shape(_number(int, schema))
            case "number":
                return _Shape(_number(int, schema) | _number(float, schema))
            case "boolean":
                return _Shape(bool)
            case "array":
                return self._list(schema)
            case _:
                return self._object(schema)

    def _list(self, schema: Mapping[str, Any]) -> _Shape:
        items = self._part(schema.get("items", True))
        limits = Meta(min_length=schema.get("minItems"), max_length=schema.get("maxItems"))
        return _Shape(Annotated[list[items.type], limits], items.parts + 1)  # type: ignore[name-defined]  # made here

    def _object(self, schema: Mapping[str, Any]) -> _Shape:
        properties, required = schema.get("properties", {}), set(schema.get("required", ()))
        additional = schema.get("additionalProperties", True)
        if isinstance(additional, dict):
            if properties or required:
                raise _NoShape
            values = self._part(additional)
            self.has_named_objects |= "object" in additional.get("type", ())
            return _Shape(dict[str, values.type], values.parts + 1)  # type: ignore[name-defined]  # made here
        if self._made >= _MOST_TYPES or not (additional or required <= properties.keys()):
            raise _NoShape
        names = list({**properties, **dict.fromkeys(schema.get("required", ()))})
        parts = [self._part(properties.get(name, True)) for name in names]
        fields = [
            (f"f{number}", part.type) if name in required else (f"f{number}", part.type | UnsetType, UNSET)
            for number, (name, part) in enumerate(zip(names, parts, strict=True))
        ]
        self._made += 1
        self.names += names
        self.most_members = max(self.most_members, len(names))
        # What it holds has no circles, and none is kept: there is nothing to collect.
        made = defstruct(
            "Shape",
            fields,
            kw_only=True,
            gc=False,
            forbid_unknown_fields=not additional,
            rename={f"f{number}": name for number, name in enumerate(names)},
        )
        return _Shape(made, 1 + sum(each.parts for each in parts))


def _text(schema: Mapping[str, Any]) -> Any:
    pattern, form = schema.get("pattern"), schema.get("format")
    if "enum" in schema:
        if len(schema.keys() & {"minLength", "maxLength", "pattern", "format"}):
            raise _NoShape
        return Literal[tuple(schema["enum"])]
    if form in FORMATS and (form != "date-time" or pattern is not None):
        raise _NoShape
    # Only ours: a stranger's pattern could run wild.
    if pattern is not None and pattern not in _PATTERNS:
        raise _NoShape
    ours = USUAL_TIMESTAMP if form in FORMATS else pattern and _PATTERNS[pattern]
    return Annotated[str, Meta(min_length=schema.get("minLength"), max_length=schema.get("maxLength"), pattern=ours)]


def _number(kind: type[int | float], schema: Mapping[str, Any]) -> Any:
    bounds = {"ge": schema.get("minimum"), "le": schema.get("maximum")}
    for bound in bounds.values():
        if bound is not None and not (type(bound) is int and abs(bound) <= _LARGEST_BOUND):
            raise _NoShape
    if kind is int:
        widest = {"ge": -_LARGEST_INTEGER - 1, "le": _LARGEST_INTEGER}
        bounds = {name: widest[name] if bound is None else bound for name, bound in bounds.items()}
    return Annotated[kind, Meta(**bounds)]


# Whole batches --------------------------------------------------------------------------------------------------------


class UsualMetadata(Struct, gc=False, forbid_unknown_fields=True, kw_only=True):
    """What most producers send of an event's metadata. Of what the broker adds, it has what they may say themselves."""

    eid: str
    occurred_at: str
    event_type: str | UnsetType = UNSET
    flow_id: str | UnsetType = UNSET
    span_ctx: dict[str, str] | UnsetType = UNSET


METADATA_BEGINNING = b'"metadata":{'

_ENCODER = msgspec.json.Encoder()
_DECODING_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, OverflowError, RecursionError)
_is_eid = re.compile(EID.strip("^$")).fullmatch
_eid_of, _time_of = attrgetter("eid"), attrgetter("occurred_at")

# What the decoded events of a batch may take: so much as their parsed form may.
_MOST_MEMORY = 8 * 1024 * 1024
_MEMORY_OF_OBJECT, _MEMORY_OF_MEMBER = 64, 8
# Batches of another form are left out after two of them, twice as many each time, and this often doubled at most.
_MOST_DOUBLINGS = 8


class DecodedBatch(Struct, frozen=True):
    """Events that are valid for certain: how many, their metadata if they have any, and their array without blanks.

    `METADATA_BEGINNING` stands in `text` once for each event, and nowhere else, if it is there so often.
    """

    count: int
    metadata: Sequence[UsualMetadata]
    text: bytes


class BatchDecoder:
    """Decodes the array of a batch and holds each event to the schema, at once. What it declines may be valid as well.

    Struct types know no repeated members, and pass over unknown ones. Both are found by counting: written down again,
    events in which something was lost have fewer colons.
    """

    def __init__(self, root: Any, metadata: Callable[[Any], UsualMetadata] | None, shapes: _Shapes) -> None:
        self._decode = msgspec.json.Decoder(list[root]).decode
        self._metadata_of = metadata
        self._has_any = shapes.has_any
        self._memory_of_object = _MEMORY_OF_OBJECT + _MEMORY_OF_MEMBER * shapes.most_members
        # Threads may count these at the same time and lose a step: then a batch more or less is tried.
        self._declined = 0
        self._left_out = 0

    def decode(self, body: bytes) -> DecodedBatch | None:
        if self._left_out:
            self._left_out -= 1
            return None
        decoded = self._decoded(body)
        if decoded is not None:
            self._declined = 0
        else:
            self._declined += 1
            self._left_out = 2 ** min(self._declined, _MOST_DOUBLINGS) - 2
        return decoded

    def _decoded(self, body: bytes) -> DecodedBatch | None:
        if body.count(b"{") * self._memory_of_object > _MOST_MEMORY:
            return None
        try:
            events = self._decode(body)
            written = _ENCODER.encode(events)
            text = msgspec.json.format(body, indent=-1)
        except _DECODING_ERRORS:
            return None
        if written.count(b":") != count_colons(text) or (self._has_any and not _is_strict(text)):
            return None
        metadata = list(map(self._metadata_of, events)) if self._metadata_of else ()
        if all(map(_is_eid, map(_eid_of, metadata))) and all(map(is_usual_timestamp, map(_time_of, metadata))):
            return DecodedBatch(len(events), metadata, text)
        return None


def _is_strict(text: bytes) -> bool:
    """Whether values are certainly strict JSON that may be anything."""
    return text.count(b"{") + text.count(b"[") <= MAX_DEPTH and not holds_too_long_integer(text)


def batch_decoder(root: Mapping[str, Any], *, has_metadata: bool) -> BatchDecoder | None:
    """What decodes events of this schema, if a type says all of it. `has_metadata` is of events that must have some."""
    shapes = _Shapes()
    if has_metadata:
        if "metadata" not in root.get("properties", {}):
            return None
        shapes.stand_in(root["properties"]["metadata"], UsualMetadata)
    shape = shapes.of(root)
    if shape is None or root.get("type") != "object" or not shapes.names:
        return None
    if not has_metadata:
        return BatchDecoder(shape.type, None, shapes)
    # The place of the metadata must be plain from the text: no other object may be called so, however far within.
    if shapes.has_any or shapes.has_named_objects or sum(each.endswith("metadata") for each in shapes.names) != 1:
        return None
    field = next(each.name for each in msgspec.structs.fields(shape.type) if each.encode_name == "metadata")
    return BatchDecoder(shape.type, attrgetter(field), shapes)

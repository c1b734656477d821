"""A first look at events: much of what schemas say can be said by a type of msgspec.

Such a type is made of objects, lists, texts and numbers as most schemas have them. Converting an event to it takes a
third of the time of the code that is made of a schema, and succeeds for valid events alone. What it fails for may be
valid all the same: then that code decides.

A look goes through a value once, and is taken only where a value is held to one schema. So its time is bounded by the
size of the event, and it takes no steps.

Where such a type says all that a schema does, a whole batch is decoded to it, from its bytes: then no event becomes a
`dict`, which takes most of the time of reading one. Members that the schema does not name are added to the type when
they are met: producers send the same ones again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec
import orjson
from msgspec import UNSET, Meta, Struct, UnsetType, ValidationError, convert, defstruct

from nakadi.common.work import refuse_if_quick
from nakadi.schemas.document import EID_PATTERN, RawSchema
from nakadi.schemas.formats import FORMAT_CHECKS, USUAL_TIMESTAMP_PATTERN, is_usual_timestamp
from nakadi.schemas.strict_json import count_colons

NO_NAMES: Mapping[int, Iterable[str]] = {}

QuickCheck = Callable[[Any], bool]
"""Whether a value is certainly valid."""

# Looking at less than this takes longer than the code.
_MIN_PARTS = 4
# A type takes three kilobytes, and a twentieth of a millisecond to make.
_MAX_TYPES = 30
# Up to this, integers and floats are compared alike.
_MAX_EXACT_FLOAT_INTEGER = 2**53
# Beyond this, an integer is no strict JSON.
_MAX_INTEGER = 2**63 - 1

# What may be said of each type of value. `_SUPPORTED_KEYWORDS` is what a type of msgspec can say of it.
_KEYWORDS_FOR_ANYTHING = {"$ref", "allOf", "anyOf", "oneOf", "not", "if", "const", "enum"}
_KEYWORDS_FOR_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_KEYWORDS_BY_TYPE: Mapping[str, set[str]] = {
    "string": {"minLength", "maxLength", "pattern", "format"},
    "integer": _KEYWORDS_FOR_NUMBERS,
    "number": _KEYWORDS_FOR_NUMBERS,
    "array": {"items", "minItems", "maxItems", "uniqueItems", "contains"},
    "object": {
        *("required", "properties", "patternProperties", "additionalProperties"),
        *("minProperties", "maxProperties", "dependencies", "propertyNames"),
    },
}
_KEYWORDS_OF_ALL_TYPES = set().union(*_KEYWORDS_BY_TYPE.values())
_SUPPORTED_KEYWORDS = {
    *("enum", "minLength", "maxLength", "pattern", "format", "minimum", "maximum", "items", "minItems", "maxItems"),
    *("required", "properties", "additionalProperties"),
}

_SUPPORTED_PATTERNS = {EID_PATTERN: rf"\A{EID_PATTERN.strip('^$')}\Z"}


class _NoStructType(Exception):
    """Raised for a schema that says what a type cannot say."""


class _StructType(Struct, frozen=True):
    """A type of msgspec, and of how many parts it consists."""

    type: Any
    parts: int = 1


def quick_checks(root: RawSchema, referred: frozenset[int]) -> Mapping[int, QuickCheck]:
    """The looks that are worth taking, by the ids of the schemas of objects that they stand for.

    `referred` are the ids of schemas that references point at: a value may be held to one of them many times.
    """
    shapes = _StructTypes()
    looks: dict[int, QuickCheck] = {}
    waiting = [root]
    while waiting:
        schema = waiting.pop()
        if isinstance(schema, bool) or "$ref" in schema or id(schema) in referred:
            continue
        shape = shapes.of(schema)
        look = _quick_check(shape.type) if shape and shape.parts >= _MIN_PARTS and "properties" in schema else None
        if look is not None:
            looks[id(schema)] = look
        else:
            items = schema.get("items")
            waiting += schema.get("properties", {}).values()
            waiting += [items] if isinstance(items, dict) else []
    return looks


def _quick_check(shape: Any) -> QuickCheck | None:
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


class _StructTypes:
    """The shapes of the schemas of a document, each made once.

    `anything` is the type of values that may be anything. `further_names` are of members that the schema of an object
    does not name, by its id.
    """

    def __init__(self, anything: Any = Any, further_names: Mapping[int, Iterable[str]] = NO_NAMES) -> None:
        self._found: dict[int, _StructType | None] = {}
        self._made = 0
        self._anything = anything
        self._further_names = further_names
        # The most members of an object that was met so far.
        self.max_members = 0

    def use_type(self, schema: Mapping[str, Any], kind: type) -> None:
        """Take a type for a schema."""
        self._found[id(schema)] = _StructType(kind)

    def of(self, schema: RawSchema) -> _StructType | None:
        if id(schema) not in self._found:
            try:
                self._found[id(schema)] = self._make_type(schema)
            except (_NoStructType, ValueError, TypeError):  # msgspec has its own opinion on names and bounds
                self._found[id(schema)] = None
        return self._found[id(schema)]

    def _part_type(self, schema: RawSchema) -> _StructType:
        shape = self.of(schema)
        if shape is None:
            raise _NoStructType
        return shape

    def _make_type(self, schema: RawSchema) -> _StructType:
        if schema is True:
            return _StructType(self._anything)
        if not isinstance(schema, dict):
            raise _NoStructType
        types = schema.get("type", [])
        names = [types] if isinstance(types, str) else types
        kinds = [each for each in names if each != "null"]
        if len(kinds) > 1 or ("type" in schema and not names):
            raise _NoStructType
        said = schema.keys() & (
            _KEYWORDS_FOR_ANYTHING | (_KEYWORDS_BY_TYPE.get(kinds[0], set()) if kinds else _KEYWORDS_OF_ALL_TYPES)
        )
        if not said <= _SUPPORTED_KEYWORDS or (not kinds and said):
            raise _NoStructType
        # An enumeration is about null as well.
        if "enum" in schema and not (names == ["string"] and all(type(each) is str for each in schema["enum"])):
            raise _NoStructType
        if not kinds:
            return _StructType(None if names else self._anything)
        shape = self._type_of_kind(kinds[0], schema)
        return shape if len(names) == 1 else _StructType(shape.type | None, shape.parts)

    def _type_of_kind(self, kind: str, schema: Mapping[str, Any]) -> _StructType:
        match kind:
            case "string":
                return _StructType(_string_type(schema))
            case "integer":
                return _StructType(_number_type(int, schema))
            case "number":
                return _StructType(_number_type(int, schema) | _number_type(float, schema))
            case "boolean":
                return _StructType(bool)
            case "array":
                return self._list_type(schema)
            case _:
                return self._object_type(schema)

    def _list_type(self, schema: Mapping[str, Any]) -> _StructType:
        items = self._part_type(schema.get("items", True))
        limits = Meta(min_length=schema.get("minItems"), max_length=schema.get("maxItems"))
        return _StructType(Annotated[list[items.type], limits], items.parts + 1)  # type: ignore[name-defined]  # made here

    def _object_type(self, schema: Mapping[str, Any]) -> _StructType:
        properties, required = schema.get("properties", {}), set(schema.get("required", ()))
        additional = schema.get("additionalProperties", True)
        if isinstance(additional, dict):
            if properties or required:
                raise _NoStructType
            values = self._part_type(additional)
            return _StructType(dict[str, values.type], values.parts + 1)  # type: ignore[name-defined]  # made here
        if self._made >= _MAX_TYPES or not (additional or required <= properties.keys()):
            raise _NoStructType
        further = self._further_names.get(id(schema), ())
        names = list(dict.fromkeys((*properties, *schema.get("required", ()), *further)))
        if not names and additional and self._anything is not Any:
            return _StructType(dict[str, self._anything])  # type: ignore[name-defined]  # made here
        parts = [self._part_type(properties.get(name, True)) for name in names]
        fields = [
            (f"f{number}", part.type) if name in required else (f"f{number}", part.type | UnsetType, UNSET)
            for number, (name, part) in enumerate(zip(names, parts, strict=True))
        ]
        self._made += 1
        self.max_members = max(self.max_members, len(names))
        # What it holds has no circles, and none is kept: there is nothing to collect.
        made = defstruct(
            "Shape",
            fields,
            kw_only=True,
            gc=False,
            forbid_unknown_fields=not additional,
            rename={f"f{number}": name for number, name in enumerate(names)},
        )
        return _StructType(made, 1 + sum(each.parts for each in parts))


def _string_type(schema: Mapping[str, Any]) -> Any:
    pattern, form = schema.get("pattern"), schema.get("format")
    if "enum" in schema:
        if len(schema.keys() & {"minLength", "maxLength", "pattern", "format"}):
            raise _NoStructType
        return Literal[tuple(schema["enum"])]
    if form in FORMAT_CHECKS and (form != "date-time" or pattern is not None):
        raise _NoStructType
    # Only ours: a stranger's pattern could run wild.
    if pattern is not None and pattern not in _SUPPORTED_PATTERNS:
        raise _NoStructType
    ours = USUAL_TIMESTAMP_PATTERN if form in FORMAT_CHECKS else pattern and _SUPPORTED_PATTERNS[pattern]
    return Annotated[str, Meta(min_length=schema.get("minLength"), max_length=schema.get("maxLength"), pattern=ours)]


def _number_type(kind: type[int | float], schema: Mapping[str, Any]) -> Any:
    bounds = {"ge": schema.get("minimum"), "le": schema.get("maximum")}
    for bound in bounds.values():
        if bound is not None and not (type(bound) is int and abs(bound) <= _MAX_EXACT_FLOAT_INTEGER):
            raise _NoStructType
    if kind is int:
        widest = {"ge": -_MAX_INTEGER - 1, "le": _MAX_INTEGER}
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


def _usual_metadata_of(event_types: Sequence[str]) -> type[Struct]:
    """The same for events that may name these event types only."""
    event_type: Any = Literal[tuple(event_types)]
    return defstruct(
        "Metadata", [("event_type", event_type | UnsetType, UNSET)], bases=(UsualMetadata,), gc=False, kw_only=True
    )


METADATA_MEMBER_START = b'"metadata":{'

# The letters of that name are these, if they are escaped.
_ESCAPED_LETTERS = (b"\\u006", b"\\u007")

_ENCODER = msgspec.json.Encoder()
_DECODING_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, OverflowError, RecursionError)
_is_eid = re.compile(EID_PATTERN.strip("^$")).fullmatch
_get_eid, _get_occurred_at = attrgetter("eid"), attrgetter("occurred_at")

# What the decoded events of a batch may take: so much as their parsed form may.
_MAX_DECODED_MEMORY = 8 * 1024 * 1024
_MEMORY_OF_OBJECT, _MEMORY_OF_MEMBER = 64, 8
_MIN_OBJECT_BYTES = len("{}")
# Batches of another form are left out after two of them, twice as many each time, and this often doubled at most.
_MAX_DOUBLINGS = 8
# So many members are met before those that are new are left to the thorough way, and no name is longer than this.
_MAX_FURTHER_NAMES = 30
_IS_PLAIN_NAME = re.compile(r'[^"\\\x00-\x1f]{1,100}').fullmatch


def _json_type(levels: int) -> Any:
    """Values that may be anything: strict JSON, and not nested deeper than this."""
    scalar = str | bool | None | _number_type(int, {}) | float
    kind: Any = scalar
    for _ in range(levels):  # each has twice the parts of the one before
        kind = scalar | list[kind] | dict[str, kind]
    return kind


_ANYTHING = _json_type(levels=3)


class DecodedBatch(Struct, frozen=True):
    """Events that are valid for certain, their metadata if they have any, and their array without blanks.

    `METADATA_MEMBER_START` stands in `text` once for each event, and nowhere else, if it is there so often.
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


class BatchDecoder:
    """Decodes the array of a batch and holds each event to the schema, at once. What it declines may be valid as well.

    Struct types know no repeated members, and pass over those that they have no place for. Both are found by counting:
    written down again, events in which something was lost have fewer colons.
    """

    def __init__(self, schema: Mapping[str, Any], made: _BatchType, *, has_metadata: bool) -> None:
        self._schema = schema
        self._has_metadata = has_metadata
        # Threads may replace and count these at the same time and lose a step: then a batch more or less is tried.
        self._type = made
        self._further_names: Mapping[int, Mapping[str, None]] = {}
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
            if written.count(b":") != count_colons(body):
                if not self._add_further_names(body):
                    self._decline()
                return None
            text = _without_blanks(body, written)
        except _DECODING_ERRORS:
            self._decline()
            return None
        metadata = list(map(made.metadata_of, events)) if made.metadata_of else ()
        if not (
            all(map(_is_eid, map(_get_eid, metadata))) and all(map(is_usual_timestamp, map(_get_occurred_at, metadata)))
        ) or (metadata and b"\\" in text and any(each in text for each in _ESCAPED_LETTERS)):
            self._decline()
            return None
        self._declined = 0
        return DecodedBatch(events, metadata, text)

    def _decline(self) -> None:
        self._declined += 1
        self._left_out = 2 ** min(self._declined, _MAX_DOUBLINGS) - 2

    def _add_further_names(self, body: bytes) -> bool:
        """Give members that the schema does not name a place in the type, for the next batch; False if none is new."""
        before = sum(map(len, self._further_names.values()))
        if before >= _MAX_FURTHER_NAMES:
            return False
        refuse_if_quick()
        names = {key: dict.fromkeys(each) for key, each in self._further_names.items()}
        try:
            for event in orjson.loads(body):
                _find_further_names(event, self._schema, names)
        except orjson.JSONDecodeError:
            return False
        if not before < sum(map(len, names.values())) <= _MAX_FURTHER_NAMES:
            return False
        made = _batch_type(self._schema, self._has_metadata, names)
        if made is None:
            return False
        self._type, self._further_names = made, names
        return True


def _without_blanks(body: bytes, written: bytes) -> bytes:
    """The text of events that were `written` without any loss."""
    # Without escapes, their strings are written as they came. So where there are as many spaces, all are within them.
    if b"\\" in body or b"\n" in body or b"\t" in body or b"\r" in body or body.count(b" ") != written.count(b" "):
        return msgspec.json.format(body, indent=-1)
    return body


def _find_further_names(value: Any, schema: Mapping[str, Any], found: dict[int, dict[str, None]]) -> None:
    """Add the names of members that a schema has no place for, by the ids of the schemas of their objects."""
    if type(value) is list and isinstance(items := schema.get("items"), dict):
        for each in value:
            _find_further_names(each, items, found)
    if type(value) is not dict or "object" not in schema.get("type", ()):
        return
    properties, required = schema.get("properties", {}), schema.get("required", ())
    additional = schema.get("additionalProperties", True)
    if isinstance(additional, dict):
        for each in value.values():
            _find_further_names(each, additional, found)
    elif properties or required:
        for name, each in value.items():
            if isinstance(part := properties.get(name), dict):
                _find_further_names(each, part, found)
            elif name not in properties and name not in required and _IS_PLAIN_NAME(name):
                found.setdefault(id(schema), {})[name] = None


def batch_decoder(schema: Mapping[str, Any], *, has_metadata: bool) -> BatchDecoder | None:
    """What decodes events of this schema, if a type says all of it. `has_metadata` is of events that must have some."""
    if schema.get("type") != "object" or not (schema.get("properties") or schema.get("required")):
        return None
    made = _batch_type(schema, has_metadata, NO_NAMES)
    return BatchDecoder(schema, made, has_metadata=has_metadata) if made else None


def _batch_type(
    schema: Mapping[str, Any], has_metadata: bool, further_names: Mapping[int, Iterable[str]]
) -> _BatchType | None:
    shapes, metadata_of = _StructTypes(_ANYTHING, further_names), None
    if has_metadata:
        metadata = schema.get("properties", {}).get("metadata")
        if metadata is None:
            return None
        shapes.use_type(metadata, _usual_metadata_of(metadata["properties"]["event_type"]["enum"]))
    shape = shapes.of(schema)
    if shape is None or not issubclass(shape.type, Struct):
        return None
    if has_metadata:
        field = next(each.name for each in msgspec.structs.fields(shape.type) if each.encode_name == "metadata")
        metadata_of = attrgetter(field)
    max_objects = _MAX_DECODED_MEMORY // (_MEMORY_OF_OBJECT + _MEMORY_OF_MEMBER * shapes.max_members)
    return _BatchType(msgspec.json.Decoder(list[shape.type]).decode, metadata_of, max_objects)  # type: ignore[name-defined]  # made here

"""A first look at events: much of what schemas say can be said by a type of msgspec.

Such a type is made of objects, lists, texts and numbers as most schemas have them. Converting an event to it takes a
third of the time of the code that is made of a schema, and succeeds for valid events alone. What it fails for may be
valid all the same: then that code decides.

A look goes through a value once, and is taken only where a value is held to one schema. So its time is bounded by the
size of the event, and it takes no steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, ValidationError, convert, defstruct

from nakadi.schemas.document import EID, RawSchema
from nakadi.schemas.formats import FORMATS, USUAL_TIMESTAMP

Look = Callable[[Any], bool]
"""Whether a value is certainly valid."""

# Looking at less than this takes longer than the code.
_LEAST_PARTS = 4
# A type takes three kilobytes, and a twentieth of a millisecond to make.
_MOST_TYPES = 30
# Up to this, integers and floats are compared alike.
_LARGEST_BOUND = 2**53

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
    return Annotated[kind, Meta(**bounds)]

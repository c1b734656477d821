"""Types of msgspec that express a schema, for the objects, lists, texts and numbers that most schemas have.

`batch_check` converts parsed values to such a type, which succeeds only for valid values. A part of the schema that
no type can express is checked separately: it is one of the `untyped_parts` of the type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import ceil, floor
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, defstruct
from msgspec.structs import replace

from nakadi.schemas.document import RawSchema, SchemaDocument
from nakadi.schemas.formats import FORMAT_CHECKS
from nakadi.schemas.untyped_parts import KEYWORDS_ABOUT_FURTHER_MEMBERS, Elements, PathStep, UntypedPart

# A type takes three kilobytes, and a twentieth of a millisecond to create.
_MAX_STRUCTS_PER_SCHEMA = 30
# Integers and floats up to this number compare alike.
_MAX_EXACT_FLOAT_INTEGER = 2**53
# Keywords that apply to each type of value. `_SUPPORTED_KEYWORDS` are the ones that a type of msgspec can express.
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
_SCALAR_TYPES = frozenset({"string", "integer", "number", "boolean", "null"})
_KEYWORDS_OF_ALL_TYPES = set().union(*_KEYWORDS_BY_TYPE.values())
_SUPPORTED_KEYWORDS = {
    *("enum", "minLength", "maxLength", "pattern", "format", "minimum", "maximum", "items", "minItems", "maxItems"),
    *("required", "properties", "additionalProperties"),
}

_SEPARABLE_KEYWORDS_FOR_OBJECTS = {
    *("allOf", "anyOf", "oneOf", "not", "if", "minProperties", "maxProperties", "dependencies", "propertyNames"),
}
_KEYWORDS_BESIDE_IF = frozenset({"then", "else"})


class _NoMsgspecType(Exception):
    """Raised for a schema that no type can express."""


class _MsgspecType(Struct, frozen=True):
    """A type of msgspec, and the parts that it does not express."""

    type: Any
    untyped_parts: tuple[UntypedPart, ...] = ()


class MsgspecTypes:
    """The types for the schemas of a document, each created once. Parts that no type can express stay untyped."""

    def __init__(self, document: SchemaDocument) -> None:
        self._document = document
        self._type_by_schema_id: dict[int, _MsgspecType | None] = {}
        self._struct_count = 0
        # The largest number of members of an object so far.
        self.max_members = 0

    def type_of_part(self, schema: RawSchema) -> _MsgspecType:
        """The type for a schema. If no type can express it, a type that accepts anything, with the whole schema as an
        untyped part.
        """
        made = self._find_or_make_type(schema)
        if made is not None:
            return made
        if not isinstance(schema, dict):  # false, or the schemas of a list's items by their position
            raise _NoMsgspecType
        return _MsgspecType(Any, (UntypedPart((), schema),))

    def _find_or_make_type(self, schema: RawSchema) -> _MsgspecType | None:
        if id(schema) not in self._type_by_schema_id:
            # If the schema refers to itself, it finds this None, so it gets no type for the inner part.
            self._type_by_schema_id[id(schema)] = None
            try:
                self._type_by_schema_id[id(schema)] = self._make_type(schema)
            except (_NoMsgspecType, ValueError, TypeError):  # msgspec has its own rules for names and bounds
                self._type_by_schema_id[id(schema)] = None
        return self._type_by_schema_id[id(schema)]

    def _make_type(self, schema: RawSchema) -> _MsgspecType:
        if schema is True:
            return _MsgspecType(Any)
        if not isinstance(schema, dict):
            raise _NoMsgspecType
        if "$ref" in schema:
            return self.type_of_part(self._document.find_target(schema["$ref"]) or False)
        types = schema.get("type", [])
        names = [types] if isinstance(types, str) else types
        kinds = [each for each in names if each != "null"]
        if len(kinds) > 1 or ("type" in schema and not names):
            raise _NoMsgspecType
        said = schema.keys() & (
            _KEYWORDS_FOR_ANYTHING | (_KEYWORDS_BY_TYPE.get(kinds[0], set()) if kinds else _KEYWORDS_OF_ALL_TYPES)
        )
        separate = said & _separable_keywords(names, schema)
        if not said - separate <= _SUPPORTED_KEYWORDS or (not kinds and said):
            raise _NoMsgspecType
        # An enumeration also applies to null.
        if "enum" in schema and not (names == ["string"] and all(type(each) is str for each in schema["enum"])):
            raise _NoMsgspecType
        if not kinds:
            return _MsgspecType(None if names else Any)
        shape = self._make_type_of_kind(kinds[0], schema)
        if separate:
            further = _KEYWORDS_BESIDE_IF & schema.keys() if "if" in separate else frozenset()
            part = UntypedPart((), schema, frozenset(separate | further))
            shape = replace(shape, untyped_parts=(*shape.untyped_parts, part))
        return shape if len(names) == 1 else replace(shape, type=shape.type | None)

    def _make_type_of_kind(self, kind: str, schema: Mapping[str, Any]) -> _MsgspecType:
        match kind:
            case "string":
                return _MsgspecType(_msgspec_string_type(schema))
            case "integer":
                return _MsgspecType(msgspec_number_type(int, schema))
            case "number":
                return _MsgspecType(msgspec_number_type(int, schema) | msgspec_number_type(float, schema))
            case "boolean":
                return _MsgspecType(bool)
            case "array":
                return self._make_list_type(schema)
            case _:
                return self._make_object_type(schema)

    def _make_list_type(self, schema: Mapping[str, Any]) -> _MsgspecType:
        items = self.type_of_part(schema.get("items", True))
        limits = Meta(min_length=schema.get("minItems"), max_length=schema.get("maxItems"))
        list_type = Annotated[list[items.type], limits]  # type: ignore[name-defined]  # made here
        return _MsgspecType(list_type, _parts_below(Elements.OF_LIST, items))

    def _make_object_type(self, schema: Mapping[str, Any]) -> _MsgspecType:
        properties, required = schema.get("properties", {}), set(schema.get("required", ()))
        additional = schema.get("additionalProperties", True)
        if _keywords_about_further_members(schema):
            additional = True
        if isinstance(additional, dict):
            if properties or required:
                raise _NoMsgspecType
            values = self.type_of_part(additional)
            mapping = dict[str, values.type]  # type: ignore[name-defined]  # made here
            return _MsgspecType(mapping, _parts_below(Elements.OF_OBJECT, values))
        if self._struct_count >= _MAX_STRUCTS_PER_SCHEMA or not (additional or required <= properties.keys()):
            raise _NoMsgspecType
        names = list(dict.fromkeys((*properties, *schema.get("required", ()))))
        if not names and additional:
            return _MsgspecType(dict[str, Any])
        parts = [self.type_of_part(properties.get(name, True)) for name in names]
        fields = [
            (f"f{number}", part.type) if name in required else (f"f{number}", part.type | UnsetType, UNSET)
            for number, (name, part) in enumerate(zip(names, parts, strict=True))
        ]
        self._struct_count += 1
        self.max_members = max(self.max_members, len(names))
        # Values of the type have no cycles and are not kept, so the garbage collector need not track them.
        made = defstruct(
            "Shape",
            fields,
            kw_only=True,
            gc=False,
            forbid_unknown_fields=not additional,
            rename={f"f{number}": name for number, name in enumerate(names)},
        )
        untyped = [each for name, part in zip(names, parts, strict=True) for each in _parts_below(name, part)]
        return _MsgspecType(made, tuple(untyped))


def _separable_keywords(names: Sequence[str], schema: Mapping[str, Any]) -> AbstractSet[str]:
    """The keywords that can be checked alone, because no other keyword changes their meaning for values of these
    types.
    """
    if names == ["object"]:
        return _SEPARABLE_KEYWORDS_FOR_OBJECTS | _keywords_about_further_members(schema)
    if "string" in names and "enum" not in schema:
        # The names of other formats are documentation.
        return {"pattern", "format"} if schema.get("format") in FORMAT_CHECKS else {"pattern"}
    return frozenset()


def _keywords_about_further_members(schema: Mapping[str, Any]) -> AbstractSet[str]:
    """The keywords about members that the schema does not name. They have a meaning only together with the named
    ones.
    """
    if not (schema.get("properties") or schema.get("required")):
        return frozenset()
    is_said = "patternProperties" in schema or isinstance(schema.get("additionalProperties"), dict)
    return KEYWORDS_ABOUT_FURTHER_MEMBERS if is_said else frozenset()


def _parts_below(step: PathStep, part: _MsgspecType) -> tuple[UntypedPart, ...]:
    return tuple(each.below(step) for each in part.untyped_parts)


def _msgspec_string_type(schema: Mapping[str, Any]) -> Any:
    if "enum" in schema:
        if schema.keys() & {"minLength", "maxLength", "pattern", "format"}:
            raise _NoMsgspecType
        return Literal[tuple(schema["enum"])]
    return Annotated[str, Meta(min_length=schema.get("minLength"), max_length=schema.get("maxLength"))]


def msgspec_number_type(kind: type[int | float], schema: Mapping[str, Any]) -> Any:
    least, most = schema.get("minimum"), schema.get("maximum")
    for bound in (least, most):
        if bound is not None and not (type(bound) in (int, float) and abs(bound) <= _MAX_EXACT_FLOAT_INTEGER):
            raise _NoMsgspecType
    if kind is int:  # the bounds of integers must be integers
        least, most = None if least is None else ceil(least), None if most is None else floor(most)
    return Annotated[kind, Meta(ge=least, le=most)]

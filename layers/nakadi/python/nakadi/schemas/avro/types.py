"""Reads Avro schemas: from their text to types that refer to each other.

    parse_avro_schema('{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}')

The rules and their order match Avro's library for Java, version 1.11, which the reference uses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
from msgspec import UNSET, Struct

from nakadi.model.outcomes import Invalid
from nakadi.schemas.limits import check_schema_length, check_schema_size
from nakadi.schemas.strict_json import StrictJsonError, parse_strict
from nakadi.schemas.values import RemainingSteps, StepsExhausted, canonical_text, spend_steps

PRIMITIVE_NAMES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")

# In the library for Java, an `error` is a type that other parts of a protocol may raise; it has the values of a record.
_RECORD_NAMES = ("record", "error")
_NAMED = (*_RECORD_NAMES, "enum", "fixed")

INT_BITS, LONG_BITS = 32, 64
MAX_FIXED_BYTES = 1_000_000
# A decimal with more digits counts as plain bytes.
MAX_DECIMAL_DIGITS = 1000
MAX_SHOWN_CHARACTERS = 200
# The most steps for checking a default, which take a tenth of a second. Defaults of records whose fields have defaults
# of their own can multiply.
MAX_STEPS_OF_DEFAULT = 100_000


class DecimalForm(Struct, frozen=True):
    """The number of digits of a decimal: all of them, and those after the point."""

    precision: int
    scale: int


class Primitive(Struct, frozen=True):
    """`decimal` is set for bytes that are a decimal."""

    kind: str
    decimal: DecimalForm | None = None


class ArrayType(Struct, eq=False):
    items: AvroType

    kind = "array"


class MapType(Struct, eq=False):
    values: AvroType

    kind = "map"


class UnionType(Struct, eq=False):
    branches: Sequence[AvroType]

    kind = "union"


class EnumType(Struct, eq=False):
    name: str
    symbols: tuple[str, ...]
    default: str | None = None

    kind = "enum"


class FixedType(Struct, eq=False):
    """`decimal` is set for bytes that are a decimal."""

    name: str
    size: int
    decimal: DecimalForm | None = None

    kind = "fixed"


class RecordField(Struct, eq=False):
    """`default` is `UNSET` if there is none."""

    name: str
    type: AvroType
    default: Any = UNSET
    aliases: tuple[str, ...] = ()
    doc: str = ""


class RecordType(Struct, eq=False):
    """`fields` is None until all fields are known, because a field may have the type of the record that it is in."""

    name: str
    fields: tuple[RecordField, ...] | None = None
    doc: str = ""

    kind = "record"

    @property
    def known_fields(self) -> tuple[RecordField, ...]:
        if self.fields is None:
            raise _invalid("Schema fields not set yet")
        return self.fields


AvroType = Primitive | ArrayType | MapType | UnionType | EnumType | FixedType | RecordType

PRIMITIVES: Mapping[str, AvroType] = {name: Primitive(name) for name in PRIMITIVE_NAMES}


def parse_avro_schema(text: str) -> AvroType:
    """The type that a schema describes. Raises `Invalid`."""
    return _SchemaReader().read(parse_schema_json(text), "")


def parse_record_schema(text: str) -> RecordType:
    """Parse the schema of events, which must be a record. Raises `Invalid`."""
    found = parse_avro_schema(text)
    if not isinstance(found, RecordType):
        raise _invalid("its root must be a record, because events are objects")
    if any(each.name == "metadata" for each in found.known_fields):
        raise Invalid('"metadata" property is reserved')
    return found


def parse_schema_json(text: str) -> Any:
    check_schema_length(text)
    try:
        tree = parse_strict(text)
    except StrictJsonError as error:
        raise _invalid(str(error)) from error
    check_schema_size({"": tree})
    return tree


def canonical_form(text: str) -> str:
    """The Parsing Canonical Form of a valid schema: it contains what determines the binary form of values, and nothing
    else.
    """
    return orjson.dumps(_normalize(parse_schema_json(text), "", keeps_attributes=False)).decode()


def are_equal_schemas(one: str, other: str) -> bool:
    """Whether two valid schemas differ in nothing but layout, documentation and aliases."""
    first, second = (
        canonical_text(_normalize(parse_schema_json(text), "", keeps_attributes=True)) for text in (one, other)
    )
    return first == second


def _invalid(reason: str) -> Invalid:
    return Invalid(f"failed to parse avro schema {reason}")


def _display_text(value: Any) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:MAX_SHOWN_CHARACTERS]}…"


class _SchemaReader:
    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}

    def read(self, schema: Any, space: str) -> AvroType:
        match schema:
            case str():
                found = self._find(schema, space)
                if found is None:
                    raise _invalid(f"Undefined name: {_display_text(schema)}")
                return found
            case dict():
                return self._read_object(schema, space)
            case list():
                return self._read_union(schema, space)
        raise _invalid(f"Schema not yet supported: {_display_text(schema)}")

    def _find(self, name: str, space: str) -> AvroType | None:
        return PRIMITIVES.get(name) or self._named.get(full_name(name, space))

    def _read_object(self, schema: Mapping[str, Any], space: str) -> AvroType:
        kind = _required_text(schema, "type", f"No type: {_display_text(schema)}")
        if kind in _NAMED:
            return self._read_named(kind, schema, space)
        match kind:
            case "array":
                if "items" not in schema:
                    raise _invalid(f"Array has no items type: {_display_text(schema)}")
                return ArrayType(self.read(schema["items"], space))
            case "map":
                if "values" not in schema:
                    raise _invalid(f"Map has no values type: {_display_text(schema)}")
                return MapType(self.read(schema["values"], space))
            case "bytes":
                return Primitive("bytes", _decimal_form(schema))
        found = self._find(kind, space)
        if found is None:
            raise _invalid(f"Type not supported: {_display_text(kind)}")
        return found

    def _read_named(self, kind: str, schema: Mapping[str, Any], space: str) -> AvroType:
        name = _name_of(schema, space)
        _check_name(name.rpartition(".")[2])
        if name in PRIMITIVES:
            raise _invalid(f"Schemas may not be named after primitives: {name}")
        if name in self._named:
            raise _invalid(f"Can't redefine: {name}")
        match kind:
            case "enum":
                self._named[name] = _read_enum(name, schema)
            case "fixed":
                self._named[name] = _read_fixed(name, schema)
            case _:
                record = self._named[name] = RecordType(name, doc=_doc_of(schema))
                record.fields = tuple(self._read_fields(schema, _space_of(name)))
        return self._named[name]

    def _read_fields(self, schema: Mapping[str, Any], space: str) -> Iterator[RecordField]:
        listed, seen = schema.get("fields"), set()
        if not isinstance(listed, list):
            raise _invalid(f"Record has no fields: {_display_text(schema)}")
        for each in listed:
            if not isinstance(each, dict):
                raise _invalid(f"No field name: {_display_text(each)}")
            name = _required_text(each, "name", f"No field name: {_display_text(each)}")
            _check_name(name)
            if "type" not in each:
                raise _invalid(f"No field type: {_display_text(each)}")
            if name in seen:
                raise _invalid(f"Duplicate field {name} in record")
            seen.add(name)
            of = self._read_field_type(name, each["type"], space)
            field = RecordField(name, of, aliases=_aliases_of(each), doc=_doc_of(each))
            if "default" in each:
                field.default = _checked_default(field, each["type"], each["default"])
            yield field

    def _read_field_type(self, name: str, schema: Any, space: str) -> AvroType:
        if isinstance(schema, str) and self._find(schema, space) is None:
            raise _invalid(
                f'{_display_text(schema)} is not a defined name. The type of the "{name}" field must be '
                'a defined name or a {"type": ...} expression.'
            )
        return self.read(schema, space)

    def _read_union(self, schemas: Sequence[Any], space: str) -> UnionType:
        branches = [self.read(each, space) for each in schemas]
        seen: set[str] = set()
        for each in branches:
            if isinstance(each, UnionType):
                raise _invalid(f"Nested union: {_display_text(schemas)}")
            if (name := branch_name(each)) in seen:
                raise _invalid(f"Duplicate in union:{name}")
            seen.add(name)
        return UnionType(branches)


def _read_enum(name: str, schema: Mapping[str, Any]) -> EnumType:
    symbols, default = schema.get("symbols"), schema.get("default")
    if not isinstance(symbols, list):
        raise _invalid(f"Enum has no symbols: {_display_text(schema)}")
    seen: set[str] = set()
    for symbol in symbols:
        if not isinstance(symbol, str):
            raise _invalid(f"Enum has no symbols: {_display_text(schema)}")
        _check_name(symbol)
        if symbol in seen:
            raise _invalid(f"Duplicate enum symbol: {symbol[:MAX_SHOWN_CHARACTERS]}")
        seen.add(symbol)
    if default is not None and default not in symbols:
        raise _invalid(
            f"The Enum Default: {_display_text(default)} is not in the enum symbol set: {_display_text(symbols)}"
        )
    return EnumType(name, tuple(symbols), default)


def _read_fixed(name: str, schema: Mapping[str, Any]) -> FixedType:
    size = schema.get("size")
    if type(size) is not int or not 0 <= size <= MAX_FIXED_BYTES:
        raise _invalid(f"Invalid or no size: {_display_text(schema)}")
    form = _decimal_form(schema)
    # A decimal whose precision does not fit into its bytes counts as plain bytes.
    holds = form is not None and form.precision <= math.floor((8 * size - 1) * math.log10(2))
    return FixedType(name, size, form if holds else None)


def _decimal_form(schema: Mapping[str, Any]) -> DecimalForm | None:
    """The form of a decimal; None for other bytes. As in the library, an invalid decimal counts as plain bytes."""
    if schema.get("logicalType") != "decimal":
        return None
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if type(precision) is not int or type(scale) is not int or not 0 < precision <= MAX_DECIMAL_DIGITS:
        return None
    return DecimalForm(precision, scale) if 0 <= scale <= precision else None


def branch_name(branch: AvroType) -> str:
    """The name by which a branch differs from the others of its union."""
    return branch.name if isinstance(branch, EnumType | FixedType | RecordType) else branch.kind


def full_name(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"


def _space_of(name: str) -> str:
    return name.rpartition(".")[0]


def _name_of(schema: Mapping[str, Any], space: str) -> str:
    name = _required_text(schema, "name", f"No name in schema: {_display_text(schema)}")
    own = schema.get("namespace")
    return full_name(name, own if isinstance(own, str) else space)


def _doc_of(schema: Mapping[str, Any]) -> str:
    doc = schema.get("doc")
    return doc if isinstance(doc, str) else ""


def _required_text(schema: Mapping[str, Any], key: str, problem: str) -> str:
    value = schema.get(key)
    if not isinstance(value, str):
        raise _invalid(problem)
    return value


def _check_name(name: str) -> None:
    if not name:
        raise _invalid("Empty name")
    if not (name[0].isalpha() or name[0] == "_"):
        raise _invalid(f"Illegal initial character: {name[:MAX_SHOWN_CHARACTERS]}")
    if not name.replace("_", "a").isalnum():
        raise _invalid(f"Illegal character in: {name[:MAX_SHOWN_CHARACTERS]}")


def _aliases_of(schema: Mapping[str, Any]) -> tuple[str, ...]:
    aliases = schema.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(each, str) for each in aliases):
        raise _invalid(f"aliases not an array of texts: {_display_text(schema)}")
    return tuple(aliases)


def _checked_default(field: RecordField, schema: Any, value: Any) -> Any:
    if field.type.kind in ("float", "double") and isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise _invalid(f"Invalid default for field {field.name}: {_display_text(value)}") from None
    try:
        valid = _is_valid_default(field.type, value, [MAX_STEPS_OF_DEFAULT])
    except (RecursionError, StepsExhausted):
        valid = False
    if not valid:
        raise _invalid(f"Invalid default for field {field.name}: {_display_text(value)} not a {_display_text(schema)}")
    return value


def _is_valid_default(of: AvroType, value: Any, steps: RemainingSteps) -> bool:
    spend_steps(steps, 1)
    match of:
        case Primitive(kind):
            return _is_valid_primitive(kind, value)
        case EnumType() | FixedType():
            return isinstance(value, str)
        case ArrayType(items):
            return isinstance(value, list) and all(_is_valid_default(items, each, steps) for each in value)
        case MapType(values):
            return isinstance(value, dict) and all(_is_valid_default(values, each, steps) for each in value.values())
        case UnionType(branches):
            return bool(branches) and _is_valid_default(branches[0], value, steps)
        case RecordType():
            return isinstance(value, dict) and all(
                _is_valid_default(each.type, value.get(each.name, each.default), steps) for each in of.known_fields
            )


def _is_valid_primitive(kind: str, value: Any) -> bool:
    match kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int" | "long":
            bits = INT_BITS if kind == "int" else LONG_BITS
            return type(value) is int and -(1 << bits - 1) <= value < 1 << bits - 1
        case "float" | "double":
            return type(value) in (int, float)
        case _:
            return isinstance(value, str)


# Attributes without meaning, or whose meaning another member of the normal form has.
_WITHOUT_MEANING = frozenset(("doc", "aliases", "namespace"))
_CANONICAL_ORDER = ("name", "type", "fields", "symbols", "items", "values", "size")


def _normalize(schema: Any, space: str, *, keeps_attributes: bool) -> Any:
    """A valid schema with full names, without documentation and aliases."""
    match schema:
        case str():
            return schema if schema in PRIMITIVES else full_name(schema, space)
        case list():
            return [_normalize(each, space, keeps_attributes=keeps_attributes) for each in schema]
    kind, own = schema["type"], dict(schema)
    if kind in _NAMED:
        own["name"] = _name_of(schema, space)
        space = _space_of(own["name"])
    elif kind not in ("array", "map"):
        own["type"] = kind if kind in PRIMITIVES else full_name(kind, space)
    for name in ("items", "values"):
        if name in own:
            own[name] = _normalize(own[name], space, keeps_attributes=keeps_attributes)
    if kind in _RECORD_NAMES:
        own["fields"] = [_normalized_field(each, space, keeps_attributes) for each in own["fields"]]
    if keeps_attributes:
        own = {name: value for name, value in own.items() if name not in _WITHOUT_MEANING}
    else:
        own = {name: own[name] for name in _CANONICAL_ORDER if name in own}
    return own["type"] if own.keys() == {"type"} else own


def _normalized_field(field: Mapping[str, Any], space: str, keeps_attributes: bool) -> Mapping[str, Any]:
    of = _normalize(field["type"], space, keeps_attributes=keeps_attributes)
    if not keeps_attributes:
        return {"name": field["name"], "type": of}
    kept = {name: value for name, value in field.items() if name not in ("doc", "aliases")}
    return {"order": "ascending", **kept, "type": of}

"""Derives the columns of an event type's table from all of its schemas. This module needs no Spark.

A property has a column if its values have one type and its name is a valid column name. If the columns do not hold an
event completely, the table also keeps its text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Protocol, TypeGuard

import msgspec
import orjson
from msgspec.structs import replace

from nakadi.model.event_type import Category, CleanupPolicy, CompatibilityMode, SchemaType
from nakadi.schemas.avro.json_schema import json_schema_of
from nakadi.schemas.avro.types import RecordType, parse_record_schema
from nakadi.schemas.document import SchemaDocument, effective_schema

RESERVED_PREFIX = "nakadi_"
"""The prefix of the columns that say where an event is. A property with this prefix has no column."""

NAME = re.compile(r"[A-Za-z0-9_]{1,120}")

MAX_FIELDS = 1000
"""The greatest number of columns. The values of other properties are in the text of the event."""


MAX_LEVELS = 16
"""The greatest depth of objects, or twice the greatest depth of arrays. Deeper values are kept as JSON text: Spark
fails on much deeper columns, above all on arrays, each of which needs a function nested in the function for the array
around it.
"""


class Scalar(msgspec.Struct, frozen=True):
    name: str


class Json(msgspec.Struct, frozen=True):
    """An object or array of unknown content, kept as JSON text."""


class Texts(msgspec.Struct, frozen=True):
    """A map from names to texts."""


class Array(msgspec.Struct, frozen=True):
    of: Kind


class Struct(msgspec.Struct, frozen=True):
    """An object with known members. `closed`, only used for all columns of a table, says that they hold every event of
    its schemas completely.
    """

    fields: tuple[Field, ...]
    closed: bool = False


Kind = Scalar | Json | Texts | Array | Struct


class Field(msgspec.Struct, frozen=True):
    """A column. `has_several_types` means that another schema version gives it another type, so it may lack published
    values.

    `source` is set for an additional column for values of another type, and names the property. Both columns read the
    text of the property, and take the values that fit.
    """

    name: str
    kind: Kind
    has_several_types: bool = False
    source: str = ""


STRING, BIGINT, DOUBLE, BOOLEAN = Scalar("string"), Scalar("bigint"), Scalar("double"), Scalar("boolean")

TIMESTAMP = Scalar("timestamp")

MAX_DIGITS = 38
"""The digits of every decimal column, so that a later schema never needs more."""

MAX_DECIMALS = 18
"""The decimals of a column whose schema does not say how many it needs."""

SCALAR_KINDS: Mapping[str, Kind] = {"string": STRING, "integer": BIGINT, "number": DOUBLE, "boolean": BOOLEAN}

# The members that the broker adds to the metadata of an event.
BROKER_METADATA_FIELDS = tuple(Field(name, STRING) for name in ("published_by", "received_at", "version"))


class SchemaOwner(Protocol):
    """An event type, as far as its columns depend on it."""

    @property
    def name(self) -> str: ...

    @property
    def category(self) -> Category: ...


KnownSchema = Mapping[str, Any] | RecordType
"""A JSON schema, or the record of an Avro schema."""


def parse_schema(of: SchemaType, text: str) -> KnownSchema:
    """The schema of a version of an event type, from its text."""
    if of is SchemaType.AVRO:
        return parse_record_schema(text)
    schema: Mapping[str, Any] = orjson.loads(text)
    return schema


def derive_columns(event_type: SchemaOwner, schemas: Iterable[KnownSchema], existing: Struct | None = None) -> Struct:
    """The columns for events of all these schemas, oldest first: JSON schemas, or the records of Avro schemas. Later
    schemas only add columns.

    `existing` are the columns of an existing table. They stay as they are, even if an earlier version of this job
    derived them differently.
    """
    columns, closed = Struct(()), True
    for schema in schemas:
        effective = whole_event_schema(event_type, schema)
        is_avro = isinstance(schema, RecordType)
        columns = merge_columns(columns, _derive_from_version(effective, stamped=is_avro or _is_stamped(event_type)))
        # The metadata of Avro events contain members without columns.
        closed = closed and not is_avro and _columns_hold_all_of(effective, SchemaDocument.from_root(effective))
    shallow = Struct(tuple(replace(field, kind=_limit_depth(field.kind, MAX_LEVELS)) for field in columns.fields))
    columns = shallow if existing is None else _keep_existing_types(shallow, existing)
    kept = _limit_fields(columns, existing or Struct(()))
    return replace(
        kept, closed=closed and bool(kept.fields) and kept == columns and not contains_several_types(columns)
    )


def text_properties(columns: Struct) -> frozenset[str]:
    """The properties that had several types. They are read as text, and each of their columns takes the values that
    fit.
    """
    return frozenset(field.name for field in columns.fields if field.has_several_types and not field.source)


def contains_several_types(kind: Kind) -> bool:
    """Whether any property inside this type had several types."""
    match kind:
        case Struct(fields):
            return any(field.has_several_types or contains_several_types(field.kind) for field in fields)
        case Array(element):
            return contains_several_types(element)
    return False


def innermost_types(kind: Kind) -> Iterator[Scalar | Json | Texts]:
    """The innermost types, whose values have no parts."""
    match kind:
        case Struct(fields):
            for field in fields:
                yield from innermost_types(field.kind)
        case Array(element):
            yield from innermost_types(element)
        case _:
            yield kind


def is_decimal(kind: Kind) -> TypeGuard[Scalar]:
    return isinstance(kind, Scalar) and kind.name.startswith("decimal")


def merge_columns(old: Struct, new: Struct) -> Struct:
    """Merge columns: old ones stay as they are, and new ones follow, with an additional column for each additional
    type.

    If a column cannot hold its property's new values, it stays, and a second one is added beside it, such as a__double.
    """
    fields = {field.name.lower(): field for field in old.fields}
    properties = {field.name.lower() for field in new.fields}
    for field in new.fields:
        known = fields.setdefault(field.name.lower(), field)
        # If names differ only by case, the first one gets the column. A name that an additional column already has gets
        # none.
        if known is field or known.name != field.name or known.source:
            continue
        kind = _join_kinds(known.kind, field.kind)
        if kind is not None:
            fields[field.name.lower()] = replace(known, kind=kind)
            continue
        fields[field.name.lower()] = replace(known, has_several_types=True)
        extra = _extra_field(field)
        if extra.name.lower() not in properties and NAME.fullmatch(extra.name):
            _add_extra_field(fields, extra)
    return Struct(tuple(fields.values()))


def _add_extra_field(fields: dict[str, Field], extra: Field) -> None:
    known = fields.setdefault(extra.name.lower(), extra)
    if known is not extra and known.source == extra.source:
        kind = _join_kinds(known.kind, extra.kind)
        fields[extra.name.lower()] = known if kind is None else replace(known, kind=kind)


def _extra_field(field: Field) -> Field:
    """An additional column for values of another type; an object is kept as text."""
    kind = field.kind
    if isinstance(kind, Scalar):
        return Field(f"{field.name}__{_type_suffix(kind)}", kind, has_several_types=True, source=field.name)
    if isinstance(kind, Array) and isinstance(kind.of, Scalar):
        return Field(f"{field.name}__{_type_suffix(kind.of)}_array", kind, has_several_types=True, source=field.name)
    return Field(f"{field.name}__string", STRING, has_several_types=True, source=field.name)


def _type_suffix(kind: Scalar) -> str:
    """A type as part of a name: decimal_2 is a decimal with two decimal places."""
    return re.sub(r"\(\d+,(\d+)\)", r"_\1", kind.name)


def _keep_existing_types(wanted: Struct, existing: Struct) -> Struct:
    """The columns with the types of an existing table. A column that does not fit gets an additional column."""
    known = {field.name.lower(): field for field in existing.fields}
    fields = {field.name.lower(): field for field in wanted.fields}
    for field in wanted.fields:
        found = known.get(field.name.lower())
        if found is None or ddl_of(found.kind) == ddl_of(field.kind):
            continue
        kind = _keep_existing_kind(field.kind, found.kind)
        if kind is not None:
            fields[field.name.lower()] = replace(field, kind=kind)
        elif not field.source:
            fields[field.name.lower()] = replace(field, kind=found.kind, has_several_types=True)
            _add_extra_field(fields, _extra_field(field))
    return Struct(tuple(fields.values()))


def _keep_existing_kind(wanted: Kind, existing: Kind) -> Kind | None:
    match wanted, existing:
        case Struct(), Struct():
            return _keep_existing_types(wanted, existing)
        case Array(element), Array(known):
            kind = _keep_existing_kind(element, known)
            return None if kind is None else Array(kind)
    if ddl_of(wanted) == ddl_of(existing):
        return wanted
    return existing if _join_kinds(existing, wanted) == existing else None


def derive_kind(schema: Any, document: SchemaDocument, within: tuple[str, ...] = ()) -> Kind | None:
    """The type of the values that a schema allows; None if there is no single one."""
    match schema:
        case {"$ref": str(reference)}:
            return (
                None
                if reference in within
                else derive_kind(document.find_target(reference), document, (*within, reference))
            )
        case {"allOf": list()}:
            return _derive_from_all(schema, document, within)
        case {"anyOf": list(choices)} | {"oneOf": list(choices)} if "type" not in schema and "properties" not in schema:
            return _common_kind(derive_kind(each, document, within) for each in choices if not _is_null(each))
        case Mapping():
            return _derive_from_type(schema, document, within)
    return None


def _derive_from_type(schema: Mapping[str, Any], document: SchemaDocument, within: tuple[str, ...]) -> Kind | None:
    match _schema_type(schema):
        case "object":
            return _derive_object(schema, document, within)
        case "number" if decimals := _count_decimals(schema):
            return Scalar(f"decimal({MAX_DIGITS},{decimals})")
        case "string" if schema.get("format") == "date-time":
            return TIMESTAMP
        case "array":
            element = derive_kind(schema.get("items"), document, within)
            return Json() if element is None else Array(element)
        case name:
            return SCALAR_KINDS.get(name)


def _count_decimals(schema: Mapping[str, Any]) -> int:
    """The number of decimal places; 0 if the schema does not say."""
    unit = schema.get("multipleOf")
    if isinstance(unit, float) and unit > 0:
        exponent = Decimal(repr(unit)).normalize().as_tuple().exponent
        decimals = -exponent if isinstance(exponent, int) else 0
        return decimals if 0 < decimals <= MAX_DECIMALS else 0
    return MAX_DECIMALS if schema.get("format") == "decimal" else 0


def ddl_of(kind: Kind) -> str:
    """The type as Spark and Iceberg write it."""
    match kind:
        case Scalar(name):
            return name
        case Json():
            return "string"
        case Texts():
            return "map<string,string>"
        case Array(element):
            return f"array<{ddl_of(element)}>"
        case Struct(fields):
            return "struct<" + ",".join(f"`{each.name}`:{ddl_of(each.kind)}" for each in fields) + ">"


def new_columns(existing: Struct, wanted: Struct, above: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], str]]:
    """The columns that a table lacks, as path and type, outermost first. Elements of an array are called `element`."""
    known = {field.name.lower(): field for field in existing.fields}
    found: list[tuple[tuple[str, ...], str]] = []
    for field in wanted.fields:
        path = (*above, field.name)
        if field.name.lower() not in known:
            found.append((path, ddl_of(field.kind)))
        else:
            found += _new_inner_columns(known[field.name.lower()].kind, field.kind, path)
    return found


def _new_inner_columns(existing: Kind, wanted: Kind, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], str]]:
    match existing, wanted:
        case Struct(), Struct():
            return new_columns(existing, wanted, path)
        case Array(old), Array(new):
            return _new_inner_columns(old, new, (*path, "element"))
    return []


def whole_event_schema(event_type: SchemaOwner, schema: KnownSchema) -> Mapping[str, Any]:
    """The JSON schema of whole events, for events of any age. The compatibility mode of the event type may have been
    another one before, so only schemas that themselves forbid further members do so here. The event type may have been
    compacted before, so events may have compaction keys. Avro events have metadata whatever their category is.
    """
    category = Category.BUSINESS if isinstance(schema, RecordType) else event_type.category
    policy = CleanupPolicy.DELETE if category is Category.UNDEFINED else CleanupPolicy.COMPACT
    return effective_schema(
        json_schema_of(schema) if isinstance(schema, RecordType) else schema,
        event_type=event_type.name,
        category=category,
        mode=CompatibilityMode.FORWARD,
        cleanup_policy=policy,
    )


def _is_stamped(event_type: SchemaOwner) -> bool:
    """Whether the broker adds to the metadata of events."""
    return event_type.category is not Category.UNDEFINED


def _derive_from_version(effective: Mapping[str, Any], *, stamped: bool) -> Struct:
    kind = derive_kind(effective, SchemaDocument.from_root(effective))
    fields = kind.fields if isinstance(kind, Struct) else ()
    fields = tuple(field for field in fields if not field.name.lower().startswith(RESERVED_PREFIX))
    return Struct(tuple(map(_add_broker_metadata, fields)) if stamped else fields)


def _columns_hold_all_of(schema: Any, document: SchemaDocument, within: tuple[str, ...] = ()) -> bool:
    """Whether columns hold everything that this schema allows: no unnamed members, no nulls, no alternative types."""
    match schema:
        case {"$ref": str(reference)}:
            return reference not in within and _columns_hold_all_of(
                document.find_target(reference), document, (*within, reference)
            )
        case {"allOf": _} | {"anyOf": _} | {"oneOf": _} | {"patternProperties": _}:
            return False
        case {"type": "object"}:
            return _is_closed_object(schema, document, within)
        case {"type": "array", "items": Mapping() as items}:
            return _columns_hold_all_of(items, document, within)
        case {"type": str(name)}:
            return name in SCALAR_KINDS
    return False


def _is_closed_object(schema: Mapping[str, Any], document: SchemaDocument, within: tuple[str, ...]) -> bool:
    properties, others = schema.get("properties"), schema.get("additionalProperties")
    if not properties:
        return others == {"type": "string"}
    return (
        others is False
        and len({name.lower() for name in properties}) == len(properties)
        and all(
            NAME.fullmatch(name)
            and not name.lower().startswith(RESERVED_PREFIX)
            and _columns_hold_all_of(each, document, within)
            for name, each in properties.items()
        )
    )


def _add_broker_metadata(field: Field) -> Field:
    if field.name == "metadata" and isinstance(field.kind, Struct):
        return replace(field, kind=merge_columns(field.kind, Struct(BROKER_METADATA_FIELDS)))
    return field


def _derive_object(schema: Mapping[str, Any], document: SchemaDocument, within: tuple[str, ...]) -> Kind:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        others = schema.get("additionalProperties")
        return Texts() if others and derive_kind(others, document, within) == STRING else Json()
    kinds = {name: derive_kind(each, document, within) for name, each in properties.items() if NAME.fullmatch(name)}
    fields = Struct(tuple(Field(name, kind) for name, kind in kinds.items() if kind is not None))
    # Two names that differ only by case cannot both be columns.
    taken = merge_columns(Struct(()), fields)
    return taken if taken.fields else Json()


def _derive_from_all(schema: Mapping[str, Any], document: SchemaDocument, within: tuple[str, ...]) -> Kind | None:
    rest = {keyword: value for keyword, value in schema.items() if keyword != "allOf"}
    kinds = [derive_kind(each, document, within) for each in (rest, *schema["allOf"])]
    found = [kind for kind in kinds if kind is not None]
    structs = [kind for kind in found if isinstance(kind, Struct)]
    if structs:
        whole = Struct(())
        for struct in structs:
            whole = merge_columns(whole, struct)
        return whole
    return _common_kind(found)


def _common_kind(kinds: Iterable[Kind | None]) -> Kind | None:
    first, *others = [*kinds] or [None]
    return first if all(each == first for each in others) else None


def _is_null(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "null"


def _schema_type(schema: Mapping[str, Any]) -> str:
    named = schema.get("type")
    types = {each for each in (named if isinstance(named, list) else [named]) if each not in ("null", None)}
    if types == {"integer", "number"}:
        return "number"
    if len(types) == 1:
        return str(types.pop())
    if types:
        return ""
    return _implied_type(schema)


def _implied_type(schema: Mapping[str, Any]) -> str:
    if "properties" in schema:
        return "object"
    if "items" in schema:
        return "array"
    values = schema.get("enum", [])
    return "string" if values and all(isinstance(each, str) for each in values) else ""


def _join_kinds(known: Kind, other: Kind) -> Kind | None:
    """The older type, extended by the newer one; None if the result could not hold all values of the newer one."""
    match known, other:
        case Struct(), Struct():
            return merge_columns(known, other)
        case Array(old), Array(new):
            element = _join_kinds(old, new)
            return None if element is None else Array(element)
        # Only reading shows the types in the unknown parts of objects and arrays.
        case (Json(), Struct() | Array() | Texts()) | (Struct() | Array() | Texts(), Json()):
            return known
        case Scalar(name=have), Scalar(name=want):
            return known if have == want or _holds_all_values_of(have, want) else None
    return known if known == other else None


def _holds_all_values_of(have: str, want: str) -> bool:
    """Whether a column of one type holds the values of another, except for rare ones, which stay in the text of the
    event.
    """
    if have.startswith("decimal"):
        return want == "bigint" or (want.startswith("decimal") and decimal_scale(want) <= decimal_scale(have))
    return (have, want) == ("string", "timestamp") or (
        have == "double" and (want == "bigint" or want.startswith("decimal"))
    )


def decimal_scale(decimal: str) -> int:
    """The number of decimal places of a type such as decimal(38,2)."""
    return int(decimal.rpartition(",")[2].rstrip(")"))


def _limit_depth(kind: Kind, levels: int) -> Kind:
    """The same type with texts instead of its deeper parts."""
    match kind:
        case Struct() | Array() if levels <= 0:
            return Json()
        case Struct(fields):
            return replace(
                kind, fields=tuple(replace(each, kind=_limit_depth(each.kind, levels - 1)) for each in fields)
            )
        case Array(element):
            return Array(_limit_depth(element, levels - 2))
    return kind


def _limit_fields(columns: Struct, existing: Struct) -> Struct:
    """The first columns, up to the limit. Existing columns of the table stay: rows without them would be rejected."""
    known = {field.name.lower(): field.kind for field in existing.fields}
    left = MAX_FIELDS - sum(
        _count_fields(known[name]) for field in columns.fields if (name := field.name.lower()) in known
    )
    kept: list[Field] = []
    for field in columns.fields:
        has = known.get(field.name.lower())
        more = _count_fields(field.kind) - (0 if has is None else _count_fields(has))
        if more <= left:
            kept.append(field)
            left -= more
        elif has is not None:
            kept.append(replace(field, kind=_intersect(field.kind, has)))
    return Struct(tuple(kept))


def _intersect(kind: Kind, existing: Kind) -> Kind:
    """The same type without the members for which the table has no column."""
    match kind, existing:
        case Struct(fields), Struct():
            known = {field.name.lower(): field.kind for field in existing.fields}
            found = (each for each in fields if each.name.lower() in known)
            return Struct(tuple(replace(each, kind=_intersect(each.kind, known[each.name.lower()])) for each in found))
        case Array(element), Array(has):
            return Array(_intersect(element, has))
    return kind


def _count_fields(kind: Kind) -> int:
    match kind:
        case Struct(fields):
            return 1 + sum(_count_fields(each.kind) for each in fields)
        case Array(element):
            return 1 + _count_fields(element)
    return 1

"""The JSON form of the values of an Avro type, as a JSON schema.

Declared reads, projections and columns of tables use this schema. Nothing is validated against it, because a value that
was read from its binary form conforms to its type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nakadi.schemas.avro.types import (
    ArrayType,
    AvroType,
    DecimalForm,
    EnumType,
    FixedType,
    MapType,
    Primitive,
    RecordType,
    UnionType,
)

JsonSchema = dict[str, Any]

# Every number with this many digits fits into 64 bits.
MAX_LONG_DIGITS = 18

_PRIMITIVE_TYPES = {
    "null": "null",
    "boolean": "boolean",
    "int": "integer",
    "long": "integer",
    "float": "number",
    "double": "number",
    "bytes": "string",
    "string": "string",
}


def json_schema_of(record: RecordType) -> JsonSchema:
    """The JSON schema of a record's objects. Records that occur more than once become definitions."""
    counts: dict[str, int] = {}
    records: dict[str, RecordType] = {}
    waiting: list[AvroType] = [record]
    while waiting:
        for each in _records_within(waiting.pop()):
            counts[each.name] = counts.get(each.name, 0) + 1
            if each.name not in records:
                records[each.name] = each
                waiting.extend(field.type for field in each.known_fields)
    repeated = frozenset(name for name, count in counts.items() if count > 1)
    schema = _object_schema(record, repeated)
    if repeated:
        schema["definitions"] = {name: _object_schema(records[name], repeated) for name in sorted(repeated)}
    return schema


def _records_within(of: AvroType) -> Iterator[RecordType]:
    match of:
        case RecordType():
            yield of
        case ArrayType(inner) | MapType(inner):
            yield from _records_within(inner)
        case UnionType(branches):
            for each in branches:
                yield from _records_within(each)


def _object_schema(record: RecordType, repeated: frozenset[str]) -> JsonSchema:
    return {
        **_description(record.doc),
        "type": "object",
        "properties": {
            each.name: {**_schema_of(each.type, repeated), **_description(each.doc)} for each in record.known_fields
        },
        "required": [each.name for each in record.known_fields],
        "additionalProperties": False,
    }


def _description(doc: str) -> JsonSchema:
    return {"description": doc} if doc else {}


def _schema_of(of: AvroType, repeated: frozenset[str]) -> JsonSchema:  # noqa: PLR0911  # one for each type
    match of:
        case Primitive("bytes", DecimalForm() as form) | FixedType(_, _, DecimalForm() as form):
            return _decimal_schema(form)
        case Primitive(kind):
            return {"type": _PRIMITIVE_TYPES[kind]}
        case EnumType():
            return {"type": "string", "enum": list(of.symbols)}
        case FixedType():
            return {"type": "string"}
        case ArrayType(items):
            return {"type": "array", "items": _schema_of(items, repeated)}
        case MapType(values):
            return {"type": "object", "additionalProperties": _schema_of(values, repeated)}
        case RecordType(name):
            return {"$ref": f"#/definitions/{name}"} if name in repeated else _object_schema(of, repeated)
        case UnionType(branches):
            return _union_schema([_schema_of(each, repeated) for each in branches])


def _decimal_schema(form: DecimalForm) -> JsonSchema:
    if form.scale:
        return {"type": "number", "multipleOf": float(f"1e-{form.scale}")}
    return {"type": "integer"} if form.precision <= MAX_LONG_DIGITS else {"type": "number", "format": "decimal"}


def _union_schema(schemas: list[JsonSchema]) -> JsonSchema:
    """The schema of a union. A union of null and one other schema becomes that schema, made nullable."""
    if len(schemas) == 1:
        return schemas[0]
    others = [each for each in schemas if each != {"type": "null"}]
    if len(others) == 1 and _is_nullable_by_type(others[0]):
        return {**others[0], "type": [others[0]["type"], "null"]}
    return {"anyOf": schemas}


def _is_nullable_by_type(schema: Mapping[str, Any]) -> bool:
    return isinstance(schema.get("type"), str) and "enum" not in schema

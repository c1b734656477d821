"""Finds the descriptions of columns in the schema of an event type. This module needs no Spark.

>>> schema = {"properties": {"total": {"type": "number", "description": "with taxes"}}}
>>> column_descriptions(Struct((Field("total", DOUBLE),)), schema)
{'total': 'with taxes'}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nakadi.schemas.document import SchemaDocument
from nakadi_jobs.columns import Array, Kind, Struct

MAX_CHARACTERS = 1000
"""The greatest length of a comment. Catalogs cut longer ones, or refuse them."""

_CHOICES = ("allOf", "anyOf", "oneOf")


def column_descriptions(columns: Struct, schema: Mapping[str, Any]) -> Mapping[str, str]:
    """The description of each column that the schema still names, by its path. A description is empty if the schema has
    none for the column.

    Elements of an array are called `element`, as Iceberg does.
    """
    return dict(_describe(columns, [schema], SchemaDocument.from_root(schema), ""))


def schema_description(schema: Mapping[str, Any]) -> str:
    """The schema's description of the whole event; empty if it has none."""
    return _first_description([schema]) or _text(schema.get("title"))


def _describe(kind: Kind, schemas: Iterable[Any], document: SchemaDocument, path: str) -> Iterator[tuple[str, str]]:
    parts = list(_schemas_within(schemas, document))
    match kind:
        case Struct(fields):
            for field in fields:
                name = field.source or field.name
                inner = [part["properties"][name] for part in parts if name in _mapping(part.get("properties"))]
                if inner:
                    yield from _describe_value(field.kind, inner, document, f"{path}.{field.name}".removeprefix("."))
        case Array(element):
            inner = [part["items"] for part in parts if isinstance(part.get("items"), Mapping)]
            if inner:
                yield from _describe_value(element, inner, document, f"{path}.element")


def _describe_value(
    kind: Kind, schemas: Iterable[Any], document: SchemaDocument, path: str
) -> Iterator[tuple[str, str]]:
    parts = list(_schemas_within(schemas, document))
    yield path, _first_description(parts)
    yield from _describe(kind, parts, document, path)


def _schemas_within(schemas: Iterable[Any], document: SchemaDocument) -> Iterator[Mapping[str, Any]]:
    """The schemas themselves, the schemas that they refer to, and their parts and alternatives, each once."""
    waiting, seen = list(schemas), set[int]()
    while waiting:
        schema = waiting.pop(0)
        if not isinstance(schema, Mapping) or id(schema) in seen:
            continue
        seen.add(id(schema))
        yield schema
        reference = schema.get("$ref")
        waiting += [document.find_target(reference)] if isinstance(reference, str) else []
        waiting += [each for choice in _CHOICES if isinstance(schema.get(choice), list) for each in schema[choice]]


def _first_description(schemas: Iterable[Mapping[str, Any]]) -> str:
    return next(filter(None, (_text(each.get("description")) for each in schemas)), "")


def _text(value: Any) -> str:
    return " ".join(value.split())[:MAX_CHARACTERS] if isinstance(value, str) else ""


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}

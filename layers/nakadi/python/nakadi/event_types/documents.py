"""Event types and schemas as JSON documents of the registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import to_builtins

from nakadi.common.converting import Converter
from nakadi.model.event_type import (
    EventType,
    Schema,
    Version,
)
from nakadi.ports.registry import Document

DocumentBody = Mapping[str, Any]

_event_types = Converter(EventType)
_schemas = Converter(Schema)


def event_type_body(event_type: EventType) -> DocumentBody:
    body = to_builtins(event_type, str_keys=True)
    # The key and the revision of a document are not in its body.
    del body["name"], body["revision"]
    return {**body, "schema": schema_body(event_type.schema)}


def event_type_from_document(document: Document) -> EventType:
    schema = schema_from_body(document.body["schema"])
    return _event_types.from_builtins(
        {**document.body, "name": document.key, "schema": schema, "revision": document.revision}
    )


def schema_body(schema: Schema) -> DocumentBody:
    return {**to_builtins(schema), "version": str(schema.version)}


def schema_from_body(body: DocumentBody) -> Schema:
    return _schemas.from_builtins({**body, "version": Version.parse(body["version"])})

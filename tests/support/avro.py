"""Avro schemas and values for tests."""

from __future__ import annotations

import json
from typing import Any

AvroJson = dict[str, Any]


def a_record(*fields: AvroJson, name: str = "Order", **changes: Any) -> AvroJson:
    return {"type": "record", "name": name, "namespace": "shop", **changes, "fields": list(fields)}


def a_field(name: str, of: Any = "string", **changes: Any) -> AvroJson:
    return {"name": name, "type": of, **changes}


ORDER = a_record(a_field("id"), a_field("lines", {"type": "array", "items": "int"}))


def schema_draft(schema: Any = ORDER) -> dict[str, str]:
    """A schema as it is sent."""
    return {"type": "avro_schema", "schema": schema if isinstance(schema, str) else json.dumps(schema)}

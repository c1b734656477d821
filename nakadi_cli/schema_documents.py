"""Schemas in the documents of files: the API uses text, and people write documents."""

from __future__ import annotations

import json
from typing import Any

PUBLISHERS_AFFECTED = "REQUIRED_ARRAY_EXTENDED"
"""The rule of a change that may be permitted although the broker then rejects events that publishers send today."""


def schema_text(document: Any) -> str:
    """Write a schema as the API accepts it; a text stays as it is."""
    return document if isinstance(document, str) else json.dumps(document, ensure_ascii=False)


def with_readable_schema(definition: dict[str, Any]) -> dict[str, Any]:
    """Return the definition with its schema as a document instead of as text."""
    text = definition["schema"]["schema"]
    try:
        return {**definition, "schema": {**definition["schema"], "schema": json.loads(text)}}
    except ValueError:
        return definition


def with_schema_as_text(definition: dict[str, Any]) -> dict[str, Any]:
    """Return the definition as the API accepts it."""
    schema = definition.get("schema")
    if isinstance(schema, dict) and isinstance(schema.get("schema"), dict | bool):
        return {**definition, "schema": {**schema, "schema": schema_text(schema["schema"])}}
    return definition

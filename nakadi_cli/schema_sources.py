"""Reads event types for the commands that generate source text and events: from a broker, or from a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nakadi.model.event_type import Category, CleanupPolicy, CompatibilityMode
from nakadi.model.outcomes import Invalid
from nakadi.schemas.limits import MAX_SCHEMA_VALUES, check_schema_length
from nakadi.schemas.submission import parse_submitted_schema
from nakadi_cli.api import path
from nakadi_cli.commands import connect
from nakadi_cli.failures import BadInput
from nakadi_cli.files import parse_document, read_text
from nakadi_cli.generating.event_types import EventTypeSchema

_SUFFIXES = (".json", ".yaml", ".yml", ".schema")

# The parts of a definition around its schema need additional room.
_MOST_VALUES = 2 * MAX_SCHEMA_VALUES


def fetch_event_type(label: str) -> EventTypeSchema:
    """Read an event type from the broker: `NAME` with its newest schema, or `NAME@VERSION`."""
    name, _, version = label.partition("@")
    api = connect()
    definition = api.get(path("event-types", name))
    if version:
        definition = {**definition, "schema": api.get(path("event-types", name, "schemas", version))}
    return _parse_definition(definition, name, definition["schema"].get("version"))


def read_event_type(file: str) -> EventTypeSchema:
    """Read an event type from a file, which has its definition, or only a schema that is named after the file."""
    document = parse_document(read_text(file), file)
    _check_size(document, file)
    if not isinstance(document, dict):
        raise BadInput(f"{file} is neither a JSON schema nor the definition of an event type.")
    if "name" in document and isinstance(document.get("schema"), dict):
        return _parse_definition(document, file, None)
    return EventTypeSchema(_name_of_file(file), parse_schema(json.dumps(document), file))


def parse_schema(text: str, source: str, category: Category = Category.UNDEFINED) -> dict[str, Any]:
    """Parse a schema as the broker would on registration. Raises `BadInput`, with `source`, if the broker would reject
    it.
    """
    try:
        check_schema_length(text)
        return parse_submitted_schema(text, category=category)
    except Invalid as error:
        raise BadInput(f"{source}: {error}.") from error
    except RecursionError as error:
        raise BadInput(f"{source}: the schema is nested too deeply.") from error


def _parse_definition(definition: Mapping[str, Any], source: str, version: str | None) -> EventTypeSchema:
    schema = definition["schema"].get("schema")
    text = schema if isinstance(schema, str) else json.dumps(schema)
    try:
        category = Category(definition.get("category", "undefined"))
        mode = CompatibilityMode(definition.get("compatibility_mode", "forward"))
        cleanup_policy = CleanupPolicy(definition.get("cleanup_policy", "delete"))
    except ValueError as error:
        raise BadInput(f"{source}: {error}.") from error
    if definition["schema"].get("type", "json_schema") != "json_schema":
        raise BadInput(f"{source}: only JSON schemas can be read, not {definition['schema']['type']}.")
    return EventTypeSchema(
        name=str(definition["name"]),
        schema=parse_schema(text, source, category),
        category=category,
        mode=mode,
        cleanup_policy=cleanup_policy,
        version=version,
        partition_strategy=str(definition.get("partition_strategy", "random")),
    )


def _check_size(document: Any, file: str) -> None:
    """Raise `BadInput` for more values than any schema may have: aliases in YAML can multiply without end."""
    waiting, count = [document], 0
    while waiting:
        value = waiting.pop()
        count += 1
        if count > _MOST_VALUES:
            raise BadInput(f"{file}: the schema is too large: at most {MAX_SCHEMA_VALUES} values are possible.")
        if isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


def _name_of_file(file: str) -> str:
    name = Path(file).name
    while name.endswith(_SUFFIXES):
        name = name[: name.rindex(".")]
    return name.strip("-") or "event"

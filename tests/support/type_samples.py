"""Schemas from which tests generate types: one with every feature, and hostile ones."""

from __future__ import annotations

from typing import Any

from nakadi.model.event_type import Category
from nakadi_cli.generating.event_types import EventTypeSchema

RICH: dict[str, Any] = {
    "type": "object",
    "title": "An order",
    "description": "Placed by a customer.\nAnd paid, perhaps.",
    "additionalProperties": False,
    "definitions": {
        "node": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "value": {"type": "string"},
                "next": {"$ref": "#/definitions/node"},
                "children": {"type": "array", "items": {"$ref": "#/definitions/node"}},
            },
            "required": ["value"],
        },
        "money": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"amount": {"type": "number"}, "currency": {"type": "string", "format": "iso-4217"}},
            "required": ["amount", "currency"],
        },
    },
    "properties": {
        "order_number": {"type": "string", "description": "Unique for each shop."},
        "class": {"type": "string"},
        "a-b": {"type": "integer"},
        "a_b": {"type": "integer"},
        "str": {"type": "string"},
        "model_id": {"type": "string"},
        "hashCode": {"type": "integer"},
        "count": {"type": "integer", "minimum": 0},
        "amount": {"type": "number"},
        "flag": {"type": "boolean"},
        "placed_at": {"type": "string", "format": "date-time"},
        "state": {"type": "string", "enum": ["open", "in progress", "closed!", "in-progress"]},
        "note": {"type": ["string", "null"]},
        "ratings": {"type": "array", "items": {"type": ["integer", "null"]}},
        "tags": {"type": "array", "items": {"type": "string"}},
        "by_sku": {"type": "object", "additionalProperties": {"type": "integer"}},
        "lines": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "properties": {"sku": {"type": "string"}, "price": {"$ref": "#/definitions/money"}},
                "required": ["sku"],
            },
        },
        "total": {"$ref": "#/definitions/money"},
        "either": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
        "anything": {},
        "tree": {"$ref": "#/definitions/node"},
        "matrix": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
        "nothing": {"type": "object", "additionalProperties": False, "properties": {}},
    },
    "required": ["order_number", "count", "amount", "flag", "note", "lines", "state"],
}

# Texts that end literals, comments or docstrings, open templates, or are escapes that a compiler reads first.
FRAGMENTS = (
    *('"', "'", '"""', "`", "\\", "\\\\", "\\u0022", "\\u000a", "\\u002a/", "\n", "\r", "\u2028", "\u2029", "\x00"),
    *("*/", "/*", "//", "#", "${pwned()}", "$pwned", "{", "}", "<", ">", "?", ";", ")", "]", "\u202e", "\x85", "\f"),
    *("pwned();", "import os", "class", "def", "lambda", "__proto__", "constructor", "__class__", "None", "-", " "),
    *("+build ignore", "go:generate pwned", "@ts-ignore", "-*- coding: utf-7 -*-", "type: ignore", ",omitempty", "é"),
    *(
        "String",
        "Long",
        "List",
        "JsonElement",
        "Any",
        "BaseModel",
        "metadata",
        "\U0001f600",
        "0",
        "_",
        "json.RawMessage",
    ),
)


def an_event_type(schema: dict[str, Any], name: str = "order.placed", **attributes: Any) -> EventTypeSchema:
    return EventTypeSchema(name, schema, **attributes)


def a_hostile_schema() -> dict[str, Any]:
    """A schema with each fragment, alone and combined, as a name, a title, a description and a value."""
    names = [*FRAGMENTS, *(f"{first}{second}" for first, second in zip(FRAGMENTS, FRAGMENTS[7:], strict=False))]
    members: dict[str, Any] = {}
    for number, name in enumerate(names):
        kind: dict[str, Any] = [
            {"type": "string", "enum": [name, f"{name}pwned", "other"]},
            {"type": "integer"},
            {"type": "object", "title": name, "properties": {name: {"type": "string"}}},
        ][number % 3]
        members[name] = {**kind, "description": f"{name} {name}pwned();{name}"}
    return {"type": "object", "title": '"""*/', "description": "\\u002a/ pwned(); '''", "properties": members}


EVENT_TYPES = (
    an_event_type(RICH, "order.placed", category=Category.BUSINESS, version="1.2.0"),
    an_event_type(RICH, "order.changed", category=Category.DATA, version="1.0.0"),
    an_event_type({"type": "object"}, "string"),
)

"""Examples of what a schema describes: the one that it gives, or else one put together from those of its parts."""

from __future__ import annotations

from typing import Any

from nakadi.http.openapi import Node, resolved

PLAIN = {"string": "…", "integer": 1, "number": 1.5, "boolean": True}


def of_media_type(content: Node) -> list[tuple[str, Any]]:
    """Examples of a body with their headings."""
    if "examples" in content:
        return [(each["summary"], each["value"]) for each in content["examples"].values()]
    return [("Example", content["example"] if "example" in content else of_schema(content["schema"]))]


def of_schema(schema: Node) -> Any:
    schema = resolved(schema)
    if "example" in schema:
        return schema["example"]
    if schema["type"] == "array":
        return [of_schema(schema["items"])]
    if schema["type"] == "object":
        return {name: of_schema(each) for name, each in schema.get("properties", {}).items()}
    return schema["enum"][0] if "enum" in schema else schema.get("default", PLAIN[schema["type"]])


def of_parameter(parameter: Node) -> str:
    """What a parameter may look like in a URL or a header."""
    value = parameter["example"] if "example" in parameter else of_schema(parameter["schema"])
    return str(value).lower() if isinstance(value, bool) else str(value)

"""Examples of values, for the page of the API and for tests."""

from __future__ import annotations

from typing import Any

from nakadi.openapi import Node, resolve_reference

_PLAIN_EXAMPLES = {"string": "…", "integer": 1, "number": 1.5, "boolean": True}


def examples_of_media_type(content: Node) -> list[tuple[str, Any]]:
    if "examples" in content:
        return [(each["summary"], each["value"]) for each in content["examples"].values()]
    return [("Example", content["example"] if "example" in content else example_of_schema(content["schema"]))]


def example_of_schema(schema: Node) -> Any:
    schema = resolve_reference(schema)
    if "example" in schema:
        return schema["example"]
    if schema["type"] == "array":
        return [example_of_schema(schema["items"])]
    if schema["type"] == "object":
        return {name: example_of_schema(each) for name, each in schema.get("properties", {}).items()}
    return schema["enum"][0] if "enum" in schema else schema.get("default", _PLAIN_EXAMPLES[schema["type"]])


def example_of_parameter(parameter: Node) -> str:
    value = parameter["example"] if "example" in parameter else example_of_schema(parameter["schema"])
    return str(value).lower() if isinstance(value, bool) else str(value)

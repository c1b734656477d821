"""Converts the JSON schemas that pydantic and msgspec make of models into schemas that the broker accepts. The
libraries use draft 2020-12, and the broker supports drafts 04 to 07. This module converts everything to draft 04, so
that an event type in mode `compatible` can use the result too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nakadi.model.event_type import Category
from nakadi.schemas.formats import BadPattern, compile_pattern

_DROPPED = frozenset(
    """
    $schema $defs $id $anchor $comment discriminator examples propertyNames contentEncoding contentMediaType readOnly
    writeOnly deprecated unevaluatedProperties unevaluatedItems minContains maxContains contains
    """.split()  # noqa: SIM905  # a table reads better than twenty words in quotes
)
_BOUNDS = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}
_DRAFT_4_NAMES = {"prefixItems": "items"}
_MEMBERS_OF_DATA_EVENTS = ("metadata", "data_type", "data_op", "data")


def as_draft_4(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Translate a schema of draft 2020-12. A root that is only a reference is replaced by its target."""
    definitions: Mapping[str, Any] = schema.get("$defs", {})
    root: Mapping[str, Any] = schema
    if "$ref" in schema:
        root = definitions[_name_in(schema["$ref"])]
    translated: dict[str, Any] = _translate(root)
    if definitions:
        translated["definitions"] = {name: _translate(each) for name, each in definitions.items()}
        _drop_unused_definitions(translated)
    return translated


def guessed_category(members: Mapping[str, Any]) -> Category:
    """The category of events with these members."""
    if all(each in members for each in _MEMBERS_OF_DATA_EVENTS):
        return Category.DATA
    return Category.BUSINESS if "metadata" in members else Category.UNDEFINED


def owned_part(schema: Mapping[str, Any], category: Category) -> dict[str, Any]:
    """The owner's part of an event type's schema: the broker adds the rest by the category."""
    members = schema.get("properties", {})
    owned = dict(schema)
    if category is Category.DATA and "data" in members and "data_op" in members:
        definitions = schema.get("definitions", {})
        owned = dict(members["data"])
        while "$ref" in owned:
            owned = dict(definitions[_name_in(owned["$ref"])])
        if definitions:
            owned["definitions"] = definitions
    elif category is Category.BUSINESS and "metadata" in members:
        owned["properties"] = {name: each for name, each in members.items() if name != "metadata"}
        owned["required"] = [each for each in schema.get("required", ()) if each != "metadata"]
        owned = {name: each for name, each in owned.items() if name != "required" or each}
    return _with_definitions_in_use(owned)


def _with_definitions_in_use(schema: dict[str, Any]) -> dict[str, Any]:
    if "definitions" in schema:
        schema = {**schema, "definitions": dict(schema["definitions"])}
        _drop_unused_definitions(schema)
    return schema


def _drop_unused_definitions(schema: dict[str, Any]) -> None:
    definitions = schema["definitions"]
    used: set[str] = set()
    waiting: list[Any] = [{name: each for name, each in schema.items() if name != "definitions"}]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            reference = value.get("$ref")
            if isinstance(reference, str) and (name := _name_in(reference)) in definitions and name not in used:
                used.add(name)
                waiting.append(definitions[name])
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
    schema["definitions"] = {name: each for name, each in definitions.items() if name in used}
    if not used:
        del schema["definitions"]


def _translate(schema: Any) -> Any:
    if isinstance(schema, bool):
        return {} if schema else {"not": {}}
    result: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword not in _DROPPED and keyword != "$ref":
            result |= _translated_keyword(keyword, value)
    if "additionalItems" in result and not isinstance(result.get("items"), list):
        del result["additionalItems"]
    if "$ref" not in schema:
        return result
    reference = {"$ref": f"#/definitions/{schema['$ref'].removeprefix('#/$defs/')}"}
    # In draft 04, members beside a reference are ignored.
    return {**result, "allOf": [reference]} if result else reference


def _translated_keyword(keyword: str, value: Any) -> dict[str, Any]:
    match keyword:
        case "const":
            return {"enum": [value]}
        case "items" if isinstance(value, bool):
            return {} if value else {"additionalItems": False}
        case "exclusiveMinimum" | "exclusiveMaximum":
            return {_BOUNDS[keyword]: value, keyword: True}
        case "pattern" if not _is_known_pattern(value):
            return {}
        case "additionalProperties" if isinstance(value, bool):
            return {keyword: value}
    return {_DRAFT_4_NAMES.get(keyword, keyword): _translated_value(keyword, value)}


def _translated_value(keyword: str, value: Any) -> Any:
    """The value of a keyword, with the schemas that are in it."""
    match keyword:
        case "properties" | "patternProperties":
            return {name: _translate(each) for name, each in value.items()}
        case "anyOf" | "oneOf" | "allOf" | "prefixItems":
            return [_translate(each) for each in value]
        case "items" | "not" | "additionalProperties":
            return _translate(value)
    return value


def _is_known_pattern(text: str) -> bool:
    """Whether the broker accepts a pattern. pydantic's patterns for decimals use lookaround, which RE2 does not
    support.
    """
    try:
        compile_pattern(text)
    except BadPattern:
        return False
    return True


def _name_in(reference: str) -> str:
    return reference.rpartition("/")[2].replace("~1", "/").replace("~0", "~")

"""The effective schema: what a whole event has to look like, metadata and envelope included."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nakadi.model.event_type import Category, CleanupPolicy, CompatibilityMode
from nakadi.model.outcomes import Invalid
from nakadi.schemas.document import COMBINATORS, SchemaDocument, keywords_with_schemas

Schema = dict[str, Any]

EID = "^[a-fA-F0-9]{8}-[a-fA-F0-9]{4}-[a-fA-F0-9]{4}-[a-fA-F0-9]{4}-[a-fA-F0-9]{12}$"

_ABOUT_OBJECTS = frozenset({"properties", "required", "minProperties", "maxProperties"})
_ABOUT_ARRAYS = frozenset({"minItems", "maxItems", "uniqueItems", "items"})
_ABOUT_ANYTHING = _ABOUT_OBJECTS | _ABOUT_ARRAYS | {*COMBINATORS, "$ref", "type"}

_NAMED = frozenset({"properties", "patternProperties", "dependencies", "definitions"})
_CLOSED_WITHIN = ("properties", "definitions", "dependencies", "items", *COMBINATORS)

# What a data event's envelope takes over from its owner's schema, since it means the document as a whole.
_OF_THE_DOCUMENT = ("$schema", "definitions")


def effective_schema(
    schema: Mapping[str, Any],
    *,
    event_type: str,
    category: Category,
    mode: CompatibilityMode,
    cleanup_policy: CleanupPolicy,
) -> Schema:
    """What events are validated against; `schema` stays as it is."""
    body = closed_schema(schema) if mode is CompatibilityMode.COMPATIBLE else dict(schema)
    match category:
        case Category.UNDEFINED:
            return body
        case Category.BUSINESS:
            return _with_metadata(body, metadata_schema(event_type, cleanup_policy))
        case Category.DATA:
            return _in_envelope(body, metadata_schema(event_type, cleanup_policy))


def metadata_schema(event_type: str, cleanup_policy: CleanupPolicy) -> Schema:
    properties: Schema = {
        "eid": {"type": "string", "pattern": EID},
        "occurred_at": {"type": "string"},
        "event_type": {"type": "string", "enum": [event_type]},
        "partition": {"type": "string"},
        "flow_id": {"type": "string"},
        "span_ctx": {"type": "object", "additionalProperties": {"type": "string"}},
        "parent_eids": {"type": "array", "items": {"type": "string", "pattern": EID}},
    }
    required = ["eid", "occurred_at"]
    if cleanup_policy.compacts:
        properties["partition_compaction_key"] = {"type": "string", "minLength": 1}
        required.append("partition_compaction_key")
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _with_metadata(schema: Schema, metadata: Schema) -> Schema:
    root = _with_root_resolved(schema)
    return root | {
        "type": "object",
        "properties": {**root.get("properties", {}), "metadata": metadata},
        "required": [*root.get("required", []), "metadata"],
    }


def _with_root_resolved(schema: Schema) -> Schema:
    """A root that refers to another schema is that one: beside a reference nothing counts, not even metadata."""
    document, target = SchemaDocument.of(schema), schema
    seen: set[str] = set()
    while "$ref" in target and target["$ref"] not in seen:
        seen.add(target["$ref"])
        found = document.target(target["$ref"])
        target = dict(found) if isinstance(found, Mapping) else {}
    return {keyword: schema[keyword] for keyword in _OF_THE_DOCUMENT if keyword in schema} | target


def _in_envelope(schema: Schema, metadata: Schema) -> Schema:
    moved = _moved_references(schema)
    data = {keyword: value for keyword, value in moved.items() if keyword not in _OF_THE_DOCUMENT}
    envelope: Schema = {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "metadata": metadata,
            "data_type": {"type": "string"},
            "data_op": {"type": "string", "enum": ["C", "U", "D", "S"]},
            "data": data,
        },
        "required": ["metadata", "data_type", "data_op", "data"],
    }
    return {keyword: moved[keyword] for keyword in _OF_THE_DOCUMENT if keyword in moved} | envelope


def _moved_references(schema: Schema) -> Schema:
    """References go on pointing at what they pointed at before the schema moved to where the data is."""
    keywords = ("definitions", *keywords_with_schemas(SchemaDocument.of(schema).draft))

    def moved(value: Any, _: str) -> Any:
        if not isinstance(value, dict):
            return value
        rebuilt = _with_subschemas_changed(value, keywords, moved)
        return (
            rebuilt | {"$ref": _moved_reference(rebuilt["$ref"])} if isinstance(rebuilt.get("$ref"), str) else rebuilt
        )

    root: Schema = moved(schema, "")
    return root


def _moved_reference(reference: str) -> str:
    if reference == "#/definitions" or reference.startswith("#/definitions/"):
        return reference
    return f"#/properties/data{reference.removeprefix('#')}"


def closed_schema(schema: Mapping[str, Any]) -> Schema:
    """The schema with every object and array in it closed to what it does not name."""
    for combinator in COMBINATORS:
        if not isinstance(schema.get(combinator, []), list):
            raise Invalid(f'schema must be a valid json: JSONObject["{combinator}"] is not a JSONArray.')
    closed = _with_subschemas_changed(schema, _CLOSED_WITHIN, _closed_within)
    types = schema.get("type", [])
    named = types if isinstance(types, list) else [types]
    if "object" in named or not _ABOUT_OBJECTS.isdisjoint(schema) or _ABOUT_ANYTHING.isdisjoint(schema):
        closed["additionalProperties"] = False
    if "array" in named or not _ABOUT_ARRAYS.isdisjoint(schema):
        closed["additionalItems"] = False
    return closed


def _closed_within(value: Any, place: str) -> Schema:
    if not isinstance(value, dict):
        raise Invalid(f"schema must be a valid json: {place} is not a JSONObject.")
    return closed_schema(value)


def _with_subschemas_changed(
    schema: Mapping[str, Any], keywords: tuple[str, ...], change: Callable[[Any, str], Any]
) -> Schema:
    """A copy in which the schemas under these keywords are changed ones; `change` also learns where each stands."""
    rebuilt = dict(schema)
    for keyword in (each for each in keywords if each in schema):
        match schema[keyword]:
            case dict() as named if keyword in _NAMED:
                rebuilt[keyword] = {name: change(each, f'JSONObject["{name}"]') for name, each in named.items()}
            case list() as listed if keyword not in _NAMED:
                rebuilt[keyword] = [change(each, f"JSONArray[{index}]") for index, each in enumerate(listed)]
            case dict() as alone:
                rebuilt[keyword] = change(alone, f'JSONObject["{keyword}"]')
    return rebuilt

"""Effective schemas."""

import copy
import re

import pytest

from nakadi.model.event_type import Category, CleanupPolicy, CompatibilityMode
from nakadi.schemas.document import (
    EID_PATTERN,
    SchemaDocument,
    effective_schema,
    metadata_schema,
    schema_forbidding_additions,
)
from nakadi.schemas.submission import check_loadable

DELETE = CleanupPolicy.DELETE


def effective(schema, category=Category.UNDEFINED, mode=CompatibilityMode.FORWARD, cleanup_policy=DELETE):
    before = copy.deepcopy(schema)
    result = effective_schema(
        schema, event_type="shop.order", category=category, mode=mode, cleanup_policy=cleanup_policy
    )
    assert schema == before
    return result


@pytest.mark.parametrize("mode", [CompatibilityMode.FORWARD, CompatibilityMode.NONE])
@pytest.mark.parametrize("schema", [{}, {"properties": {"a": {}}}, {"type": "object", "additionalProperties": False}])
def test_undefined_events_follow_the_schema_as_it_is(schema, mode):
    """Events without a category are validated against the submitted schema. (R169, R170, R178, R271, R272, P57)"""
    assert effective(schema, mode=mode) == schema


def test_undefined_events_are_closed_in_mode_compatible():
    """In the mode `compatible`, undeclared members are forbidden; `{}` then accepts only an empty object. (R169, R178,
    P60)"""
    assert effective({}, mode=CompatibilityMode.COMPATIBLE) == {"additionalProperties": False}


def test_business_events_carry_metadata():
    """A business event is an object with metadata beside the members of the submitted schema. (R171, P58)"""
    schema = {
        "description": "An order",
        "properties": {"id": {"type": "string"}},
        "required": ["id"],
        "additionalProperties": False,
    }

    assert effective(schema, Category.BUSINESS) == {
        "description": "An order",
        "type": "object",
        "properties": {"id": {"type": "string"}, "metadata": metadata_schema("shop.order", DELETE)},
        "required": ["id", "metadata"],
        "additionalProperties": False,
    }


def test_business_events_carry_metadata_behind_a_reference():
    """A schema that only refers to another one is treated like the other one: the broker adds required metadata to
    its properties. (R171)
    """
    schema = {
        "$ref": "#/definitions/a",
        "definitions": {"a": {"$ref": "#/definitions/b"}, "b": {"properties": {"c": {}}, "required": ["c"]}},
    }

    found = effective(schema, Category.BUSINESS)

    assert "$ref" not in found
    assert found["definitions"] == schema["definitions"]
    assert set(found["properties"]) == {"c", "metadata"}
    assert found["required"] == ["c", "metadata"]


def test_business_events_need_nothing_else():
    """With an empty schema, metadata is required, and in the mode `compatible`, nothing else is allowed. (R171, R178,
    P61)"""
    metadata = metadata_schema("shop.order", DELETE)
    bare = {"type": "object", "properties": {"metadata": metadata}, "required": ["metadata"]}

    assert effective({}, Category.BUSINESS) == bare
    assert effective({}, Category.BUSINESS, CompatibilityMode.COMPATIBLE) == bare | {"additionalProperties": False}


def test_data_events_are_enveloped():
    """A data event is an envelope with a fixed set of members; the submitted schema applies to `data`. (R172, P59)"""
    schema = {"properties": {"id": {"$ref": "#/definitions/id"}}, "definitions": {"id": {"type": "string"}}}

    assert effective(schema, Category.DATA) == {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "metadata": metadata_schema("shop.order", DELETE),
            "data_type": {"type": "string"},
            "data_op": {"type": "string", "enum": ["C", "U", "D", "S"]},
            "data": {"properties": {"id": {"$ref": "#/definitions/id"}}},
        },
        "required": ["metadata", "data_type", "data_op", "data"],
        "definitions": {"id": {"type": "string"}},
    }


def test_references_of_data_events_keep_their_meaning():
    """References keep their meaning although the schema has moved, including those in definitions. (R172, deviation)"""
    schema = {
        "properties": {
            "self": {"$ref": "#"},
            "other": {"$ref": "#/properties/self"},
            "defined": {"$ref": "#/definitions/d"},
            "$ref": {"items": [{"not": {"$ref": "#/properties/other"}}]},
            "odd": {"enum": [{"$ref": "#"}], "default": {"$ref": "#"}},
        },
        "definitions": {"d": {"additionalProperties": {"$ref": "#"}}},
    }

    moved = effective(schema, Category.DATA)

    data = moved["properties"]["data"]["properties"]
    assert data["self"] == {"$ref": "#/properties/data"}
    assert data["other"] == {"$ref": "#/properties/data/properties/self"}
    assert data["defined"] == {"$ref": "#/definitions/d"}
    assert data["$ref"] == {"items": [{"not": {"$ref": "#/properties/data/properties/other"}}]}
    assert data["odd"] == {"enum": [{"$ref": "#"}], "default": {"$ref": "#"}}
    assert moved["definitions"] == {"d": {"additionalProperties": {"$ref": "#/properties/data"}}}
    check_loadable(SchemaDocument.from_root(moved))


def test_data_events_keep_their_draft():
    """The envelope of a data event has the draft of the submitted schema. (R172, deviation)"""
    draft_7 = {"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"n": {"exclusiveMinimum": 5}}}

    moved = effective(draft_7, Category.DATA)

    assert moved["$schema"] == draft_7["$schema"]
    assert "$schema" not in moved["properties"]["data"]
    check_loadable(SchemaDocument.from_root(moved))


def test_data_is_closed_in_mode_compatible():
    """In the mode `compatible`, the submitted schema and its definitions are closed within `data`. (R169, R172,
    R177)
    """
    schema = {"properties": {"a": {"$ref": "#/definitions/d"}}, "definitions": {"d": {"properties": {}}}}

    moved = effective(schema, Category.DATA, CompatibilityMode.COMPATIBLE)

    assert moved["properties"]["data"] == {
        "properties": {"a": {"$ref": "#/definitions/d"}},
        "additionalProperties": False,
    }
    assert moved["definitions"] == {"d": {"properties": {}, "additionalProperties": False}}


def test_metadata_is_what_it_is():
    """The metadata in an effective schema has exactly the members that the contract lists, two of which are required.
    (R173, R175, P62, P63)
    """
    assert metadata_schema("shop.order", DELETE) == {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "eid": {"type": "string", "pattern": EID_PATTERN},
            "occurred_at": {"type": "string"},
            "event_type": {"type": "string", "enum": ["shop.order"]},
            "partition": {"type": "string"},
            "flow_id": {"type": "string"},
            "span_ctx": {"type": "object", "additionalProperties": {"type": "string"}},
            "cloudevent": {"type": "object", "additionalProperties": {"type": "string"}},
            "parent_eids": {"type": "array", "items": {"type": "string", "pattern": EID_PATTERN}},
        },
        "required": ["eid", "occurred_at"],
    }


def test_event_ids_are_uuids_in_either_case():
    """An event id is a UUID in either letter case. (R173)"""
    assert re.search(EID_PATTERN, "105a76d8-db49-4144-ace7-E683E8F4BA46")
    assert not re.search(EID_PATTERN, "105a76d8db494144ace7e683e8f4ba46")


@pytest.mark.parametrize("policy", [CleanupPolicy.COMPACT, CleanupPolicy.COMPACT_AND_DELETE])
def test_compacted_events_have_a_key(policy):
    """Compaction requires a key in the metadata, which other events must not have. (R174, P62)"""
    compacted, plain = metadata_schema("shop.order", policy), metadata_schema("shop.order", DELETE)

    assert compacted["properties"]["partition_compaction_key"] == {"type": "string", "minLength": 1}
    assert compacted["required"] == ["eid", "occurred_at", "partition_compaction_key"]
    assert "partition_compaction_key" not in plain["properties"]


OBJECT, ARRAY = {"additionalProperties": False}, {"additionalItems": False}


@pytest.mark.parametrize(
    ("schema", "closed_by"),
    [
        ({}, OBJECT),
        ({"description": "d"}, OBJECT),
        ({"pattern": "a"}, OBJECT),
        ({"type": "object"}, OBJECT),
        ({"type": ["null", "object"]}, OBJECT),
        ({"properties": {}}, OBJECT),
        ({"required": ["a"]}, OBJECT),
        ({"minProperties": 1}, OBJECT),
        ({"maxProperties": 1}, OBJECT),
        ({"type": "array"}, ARRAY),
        ({"type": ["null", "array"]}, ARRAY),
        ({"minItems": 1}, ARRAY),
        ({"maxItems": 1}, ARRAY),
        ({"uniqueItems": True}, ARRAY),
        ({"type": ["object", "array"]}, OBJECT | ARRAY),
        ({"type": "array", "properties": {}}, OBJECT | ARRAY),
        ({"type": "string"}, {}),
        ({"$ref": "#/definitions/d"}, {}),
        ({"type": "object", "additionalProperties": {"type": "string"}}, OBJECT),
        ({"type": "array", "additionalItems": {"type": "string"}}, ARRAY),
        ({"patternProperties": {"a": {"type": "object"}}}, OBJECT),
        ({"dependencies": {}}, OBJECT),
    ],
)
def test_strictness_closes_objects_and_arrays(schema, closed_by):
    """Objects and arrays are closed to members that they do not name, whatever the schema said before. (R177, R179)"""
    assert schema_forbidding_additions(schema) == schema | closed_by


@pytest.mark.parametrize("criterion", ["allOf", "anyOf", "oneOf"])
def test_a_combination_is_closed_in_its_members(criterion):
    """A combinator itself stays open, but each of its members is closed. (R177, R179)"""
    schema = {criterion: [{"properties": {"a": {"type": "string"}}}, {"type": "null"}]}

    assert schema_forbidding_additions(schema) == {
        criterion: [{"properties": {"a": {"type": "string"}}, **OBJECT}, {"type": "null"}]
    }


@pytest.mark.parametrize(
    "around",
    [
        lambda schema: {"properties": {"a": schema}},
        lambda schema: {"definitions": {"a": schema}},
        lambda schema: {"dependencies": {"a": schema}},
        lambda schema: {"items": schema},
        lambda schema: {"items": [schema, {"type": "null"}]},
        lambda schema: {"properties": {"a": {"items": {"anyOf": [schema]}}}},
    ],
)
def test_strictness_reaches_schemas_within(around):
    """Schemas within properties, definitions, dependencies, items and combinators are closed too. (R177)"""
    within = {"type": "object", "properties": {"x": {"type": "object"}}}
    assert _is_closed(schema_forbidding_additions(around(within)))
    assert not _is_closed(around(within))


def _is_closed(schema) -> bool:
    """Whether every object type in the schema is closed."""
    if isinstance(schema, dict):
        return (schema.get("type") != "object" or schema.get("additionalProperties") is False) and all(
            map(_is_closed, schema.values())
        )
    return all(map(_is_closed, schema)) if isinstance(schema, list) else True


@pytest.mark.parametrize("beside", [{}, {"type": "object"}, {"properties": {"a": {}}}, {"items": {}}])
def test_strictness_leaves_listed_values_alone(beside):
    """A schema with an `enum` stays unchanged: its values may have members that it does not name. (R177)"""
    schema = {"enum": [{"a": {"b": 1}}, [1, 2]]} | beside
    assert schema_forbidding_additions({"properties": {"p": schema}})["properties"]["p"] == schema


@pytest.mark.parametrize("keyword", ["patternProperties", "not"])
def test_strictness_leaves_some_schemas_alone(keyword):
    """Schemas under `patternProperties` and `not` stay unchanged. (R177)"""
    within = {"a": {"type": "object"}} if keyword == "patternProperties" else {"type": "object"}
    assert schema_forbidding_additions({"type": "object", keyword: within})[keyword] == within

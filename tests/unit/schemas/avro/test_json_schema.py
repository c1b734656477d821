"""How the values of an Avro type are represented in JSON."""

import json

import pytest

from nakadi.schemas.avro.json_schema import json_schema_of
from nakadi.schemas.avro.types import parse_record_schema
from tests.support.avro import a_decimal, a_field, a_record


def schema_of(*fields):
    return json_schema_of(parse_record_schema(json.dumps(a_record(*fields))))


INNER = a_record(a_field("b", "boolean"), name="Inner")
INNER_SCHEMA = {
    "type": "object",
    "properties": {"b": {"type": "boolean"}},
    "required": ["b"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("of", "schema"),
    [
        ("null", {"type": "null"}),
        ("int", {"type": "integer"}),
        ({"type": "long", "logicalType": "timestamp-millis"}, {"type": "integer"}),
        ("float", {"type": "number"}),
        ("bytes", {"type": "string"}),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, {"type": "string", "enum": ["A", "B"]}),
        ({"type": "fixed", "name": "F", "size": 2}, {"type": "string"}),
        ({"type": "array", "items": "string"}, {"type": "array", "items": {"type": "string"}}),
        ({"type": "map", "values": "double"}, {"type": "object", "additionalProperties": {"type": "number"}}),
        (["string"], {"type": "string"}),
        (a_decimal(9, 2), {"type": "number", "multipleOf": 0.01}),
        (["null", a_decimal(9, 2)], {"type": ["number", "null"], "multipleOf": 0.01}),
        (a_decimal(18), {"type": "integer"}),
        (a_decimal(19), {"type": "number", "format": "decimal"}),
        (a_decimal(4, 1) | {"type": "fixed", "name": "F", "size": 2}, {"type": "number", "multipleOf": 0.1}),
        (a_decimal(2000), {"type": "string"}),
        (["null", "string"], {"type": ["string", "null"]}),
        (["string", "int"], {"anyOf": [{"type": "string"}, {"type": "integer"}]}),
        (["null", INNER], INNER_SCHEMA | {"type": ["object", "null"]}),
        (INNER, INNER_SCHEMA),
    ],
)
def test_each_type_has_its_schema(of, schema):
    """Each Avro type has its JSON schema, in which all fields are required, because all are written. (R310)"""
    assert schema_of(a_field("a", of)) == {
        "type": "object",
        "properties": {"a": schema},
        "required": ["a"],
        "additionalProperties": False,
    }


def test_a_record_within_itself_becomes_a_definition():
    """A record that contains itself becomes a definition, to which its name refers. (R310)"""
    found = schema_of(a_field("next", ["null", "Order"]), a_field("c", INNER), a_field("d", "Inner"))

    assert found["properties"]["next"] == {"anyOf": [{"type": "null"}, {"$ref": "#/definitions/shop.Order"}]}
    assert found["properties"]["c"] == found["properties"]["d"] == {"$ref": "#/definitions/shop.Inner"}
    assert found["definitions"]["shop.Inner"] == INNER_SCHEMA

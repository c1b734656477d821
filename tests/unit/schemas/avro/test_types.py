"""How Avro schemas are parsed."""

import json

import fastavro
import pytest

from nakadi.model.outcomes import Invalid
from nakadi.schemas.avro.envelopes import BATCH_SCHEMAS
from nakadi.schemas.avro.types import (
    RecordType,
    are_equal_schemas,
    canonical_form,
    parse_avro_schema,
    parse_record_schema,
)
from tests.support.avro import ORDER, a_field, a_record


def refusal(schema, parse=parse_avro_schema):
    with pytest.raises(Invalid) as refused:
        parse(schema if isinstance(schema, str) else json.dumps(schema))
    return refused.value.detail.removeprefix("failed to parse avro schema ")


def refusal_of_field(of, **changes):
    return refusal(a_record(a_field("x", of, **changes)))


def enum(**changes):
    return {"type": "enum", "name": "E", "symbols": ["A"]} | changes


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ('"foo"', 'Undefined name: "foo"'),
        ("7", "Schema not yet supported: 7"),
        ('{"type":"record"}', 'No name in schema: {"type":"record"}'),
        ('{"type":"record","name":"a"}', 'Record has no fields: {"type":"record","name":"a"}'),
        ('{"type":"record","name":"1a","fields":[]}', "Illegal initial character: 1a"),
        ('{"type":"record","name":"a-b","fields":[]}', "Illegal character in: a-b"),
        ('{"type":"record","name":"","fields":[]}', "Empty name"),
        ('{"type":"record","name":"a","fields":[7]}', "No field name: 7"),
        ('{"type":"record","name":"a","fields":[{"name":"x"}]}', 'No field type: {"name":"x"}'),
        ('{"type":"record","name":"string","fields":[]}', "Schemas may not be named after primitives: string"),
        ('{"type":{"type":"string"}}', 'No type: {"type":{"type":"string"}}'),
        ('{"type":"foo"}', 'Type not supported: "foo"'),
        ('{"type":"array"}', 'Array has no items type: {"type":"array"}'),
        ('{"type":"map"}', 'Map has no values type: {"type":"map"}'),
        ('["int",["null"]]', 'Nested union: ["int",["null"]]'),
        ('["int","int"]', "Duplicate in union:int"),
        ('{"type":"fixed","name":"e"}', 'Invalid or no size: {"type":"fixed","name":"e"}'),
        ('{"type":"fixed","name":"e","size":-1}', 'Invalid or no size: {"type":"fixed","name":"e","size":-1}'),
        ('{"type":"enum","name":"e"}', 'Enum has no symbols: {"type":"enum","name":"e"}'),
        ('{"type":"enum","name":"e","symbols":[1]}', 'Enum has no symbols: {"type":"enum","name":"e","symbols":[1]}'),
        ('{"type":"enum","name":"e","symbols":["A","A"]}', "Duplicate enum symbol: A"),
        (enum(default="B"), 'The Enum Default: "B" is not in the enum symbol set: ["A"]'),
        (a_record(a_field("x", a_record())), "Can't redefine: shop.Order"),
        (a_record(a_field("x"), a_field("x")), "Duplicate field x in record"),
        (
            a_record(a_field("x", aliases="y")),
            'aliases not an array of texts: {"name":"x","type":"string","aliases":"y"}',
        ),
    ],
)
def test_what_is_no_schema_is_refused(schema, reason):
    """A text that is no Avro schema is refused with the same reason as in the library for Java, except for some
    details. (R159)
    """
    assert refusal(schema) == reason


def test_a_field_of_an_unknown_type_is_named():
    """The message names the field and the type. (R159)"""
    assert refusal_of_field("foo") == (
        '"foo" is not a defined name. The type of the "x" field must be a defined name or a {"type": ...} expression.'
    )


@pytest.mark.parametrize(
    ("of", "default"),
    [
        ("int", "x"),
        ("int", 2**31),
        ("int", True),
        ("long", 1.5),
        ("float", True),
        ("double", "x"),
        ("boolean", 1),
        ("null", 0),
        ("string", 1),
        ("bytes", None),
        (enum(), 1),
        ({"type": "array", "items": "int"}, [1, "a"]),
        ({"type": "map", "values": "int"}, {"a": None}),
        (["null", "int"], 1),
        ([], None),
        (a_record(a_field("y"), name="Inner"), {}),
    ],
)
def test_a_default_has_the_type_of_its_field(of, default):
    """A union's default has the type of its first branch. (R159)"""
    assert refusal_of_field(of, default=default).startswith("Invalid default for field x: ")


@pytest.mark.parametrize(
    ("of", "default"),
    [
        ("int", -(2**31)),
        ("double", "NaN"),
        ("bytes", "ÿ"),
        ("null", None),
        ("boolean", False),
        (["null", "int"], None),
        ({"type": "map", "values": {"type": "array", "items": "long"}}, {"a": [1]}),
        (a_record(a_field("y", default="z"), name="Inner"), {}),
    ],
)
def test_a_fitting_default_is_taken(of, default):
    """The default of a record may leave out fields that have defaults. (R159)"""
    parse_avro_schema(json.dumps(a_record(a_field("x", of, default=default))))


def test_a_default_within_its_own_record_is_refused():
    """A default cannot be of the record that contains it, whose fields are not known yet. (R159)"""
    assert refusal(a_record(a_field("x", "Order", default={}))) == "Schema fields not set yet"


def test_defaults_that_multiply_take_bounded_work():
    """Checking defaults takes bounded work: if each record contains the previous one twice, a kilobyte of schema
    could mean a thousand million values. (R159)
    """
    inner, fields = "string", []
    for level in range(30):
        twice = [
            a_field(name, inner if name == "a" or level == 0 else f"R{level - 1}", default={} if level else "")
            for name in "ab"
        ]
        inner = a_record(*twice, name=f"R{level}")
    fields.append(a_field("x", inner, default={}))

    assert refusal(a_record(*fields)).startswith("Invalid default for field")


def test_names_are_looked_up_in_the_namespace_around_them():
    """A name without dots belongs to the enclosing namespace; a record may contain itself. (R159)"""
    inner = {"type": "fixed", "name": "other.Id", "size": 4}
    parsed = parse_record_schema(
        json.dumps(a_record(a_field("a", inner), a_field("b", "other.Id"), a_field("c", ["null", {"type": "Order"}])))
    )

    assert isinstance(parsed, RecordType)
    assert [parsed.known_fields[index].type.name for index in (0, 1)] == ["other.Id", "other.Id"]
    assert parsed.known_fields[2].type.branches[1] is parsed


@pytest.mark.parametrize("schema", ['"string"', "[]", '["null"]', '{"type":"map","values":"int"}'])
def test_events_are_records(schema):
    """A schema whose root is not a record is refused, because its values are not objects. (R159)"""
    assert refusal(schema, parse_record_schema) == "its root must be a record, because events are objects"


def test_the_metadata_is_no_field():
    """The metadata of an event are beside its fields. (R159)"""
    assert refusal(a_record(a_field("metadata")), parse_record_schema) == '"metadata" property is reserved'


@pytest.mark.parametrize(
    "schema",
    [
        '{"type":"record","name":"a","fields":[]} x',
        "{",
        "",
        "[" * 150 + "]" * 150,
        json.dumps(["int", *({"type": "fixed", "name": f"F{n}", "size": 1} for n in range(4000))]),
        " " * 300_000,
    ],
)
def test_a_schema_is_strict_json_of_bounded_size(schema):
    """A schema is strict JSON of limited size; other texts are refused before the broker interprets them. (R159)"""
    with pytest.raises(Invalid):
        parse_avro_schema(schema)


@pytest.mark.parametrize("version", ["0", "1"])
@pytest.mark.parametrize("name", list(BATCH_SCHEMAS))
def test_the_canonical_form_is_that_of_fastavro(name, version):
    """The Parsing Canonical Form of each batch schema is the same as fastavro's. (R145, R248)"""
    text = json.dumps(BATCH_SCHEMAS[name][version])

    assert canonical_form(text) == fastavro.schema.to_parsing_canonical_form(json.loads(text))


@pytest.mark.parametrize(
    ("new", "equal"),
    [
        (a_record(a_field("id"), doc="x"), True),
        (a_record(a_field("id", doc="x")), True),
        (a_record(a_field("id", aliases=["key"])), True),
        (a_record(a_field("id", {"type": "string"})), True),
        (a_record(a_field("id"), name="shop.Order", namespace="elsewhere"), True),
        (a_record(a_field("id", order="ascending")), True),
        (a_record(a_field("id", order="descending")), False),
        (a_record(a_field("id", note="x")), False),
        (a_record(a_field("id", default="x")), False),
        (a_record(a_field("id", {"type": "string", "logicalType": "uuid"})), False),
        (a_record(a_field("id"), namespace="elsewhere"), False),
    ],
)
def test_documentation_and_aliases_make_no_difference(new, equal):
    """Documentation and aliases make no difference between schemas; everything else does, even attributes that Avro
    does not define. (R187)
    """
    assert are_equal_schemas(json.dumps(a_record(a_field("id"))), json.dumps(new)) is equal


def test_the_order_schema_is_valid():
    """The schema that other tests use is valid."""
    assert parse_record_schema(json.dumps(ORDER)).name == "shop.Order"

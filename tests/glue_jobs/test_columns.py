import json

import pytest

from nakadi.model.event_type import Category
from nakadi.schemas.avro.types import parse_record_schema
from nakadi_jobs.columns import (
    BIGINT,
    DOUBLE,
    MAX_LEVELS,
    STRING,
    Array,
    Field,
    Json,
    Scalar,
    Struct,
    Texts,
    ddl_of,
    derive_columns,
    new_columns,
    text_properties,
)
from nakadi_jobs.tables import Table
from tests.support.avro import a_decimal, a_field, a_record
from tests.support.builders import an_event_type

UNDEFINED = an_event_type()


def columns_of(*versions):
    """The columns of payloads with these properties, one version after the other."""
    schemas = [{"type": "object", "properties": properties} for properties in versions]
    return derive_columns(UNDEFINED, schemas)


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "string"}, STRING),
        ({"type": "integer"}, BIGINT),
        ({"type": "number"}, DOUBLE),
        ({"type": ["integer", "number"]}, DOUBLE),
        ({"type": "boolean"}, Scalar("boolean")),
        ({"type": ["string", "null"]}, STRING),
        ({"enum": ["a", "b"]}, STRING),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, BIGINT),
        ({"$ref": "#/definitions/name"}, None),
        ({"type": "array", "items": {"type": "integer"}}, Array(BIGINT)),
        ({"type": "array"}, Json()),
        ({"type": "object"}, Json()),
        ({"type": "object", "additionalProperties": {"type": "string"}}, Texts()),
        ({"properties": {"a": {"type": "integer"}}}, Struct((Field("a", BIGINT),))),
        ({"allOf": [{"properties": {"a": {"type": "integer"}}}]}, Struct((Field("a", BIGINT),))),
        ({"type": ["string", "integer"]}, None),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, None),
        ({}, None),
        (True, None),
    ],
)
def test_a_type_becomes_a_column(schema, kind):
    """A property is a column if its values have one type."""
    assert columns_of({"it": schema}) == Struct(() if kind is None else (Field("it", kind),))


def test_references_are_followed():
    """A reference within the schema is replaced by its target; one in a circle is no column."""
    schema = {
        "definitions": {"name": {"type": "string"}, "tree": {"properties": {"child": {"$ref": "#/definitions/tree"}}}},
        "properties": {"name": {"$ref": "#/definitions/name"}, "tree": {"$ref": "#/definitions/tree"}},
    }
    assert derive_columns(UNDEFINED, [schema]) == Struct((Field("name", STRING), Field("tree", Json())))


@pytest.mark.parametrize("name", ["a.b", "", "a b", "order-number", "nakadi_offset", "x" * 200])
def test_a_name_that_cannot_be_a_column_is_none(name):
    """A name that no query engine would accept stays in the text of the event."""
    assert columns_of({name: {"type": "string"}, "fine": {"type": "string"}}) == Struct((Field("fine", STRING),))


def test_names_that_differ_by_case_alone():
    """Of two names that differ only by case, the first gets a column."""
    assert columns_of({"id": {"type": "string"}, "ID": {"type": "string"}}) == Struct((Field("id", STRING),))


def test_a_new_property_is_a_new_column():
    """Later versions only add columns, on every level."""
    first = {"a": {"type": "string"}, "b": {"properties": {"c": {"type": "string"}}}}
    second = {"b": {"properties": {"d": {"type": "integer"}}}, "e": {"type": "boolean"}}

    known, both = columns_of(first), columns_of(first, second)

    assert both.fields[: len(known.fields)][0] == known.fields[0]
    assert new_columns(known, both) == [(("b", "d"), "bigint"), (("e",), "boolean")]


def test_new_columns_in_lists():
    """The elements of a list can also get new columns."""
    items = {"type": "array", "items": {"properties": {"a": {"type": "string"}}}}
    more = {"type": "array", "items": {"properties": {"b": {"type": "string"}}}}
    assert new_columns(columns_of({"items": items}), columns_of({"items": items}, {"items": more})) == [
        (("items", "element", "b"), "string")
    ]


def test_a_type_that_changed_is_contested():
    """A column keeps its first type, and values of the other type get an additional column. Both are marked as
    incomplete.
    """
    further = Field("a__bigint", BIGINT, has_several_types=True, source="a")
    assert columns_of({"a": {"type": "string"}}, {"a": {"type": "integer"}}) == Struct(
        (Field("a", STRING, has_several_types=True), further)
    )


def test_the_metadata_of_a_business_event():
    """Metadata has the columns that publishers may fill, and those that the broker fills. (E7)"""
    columns = derive_columns(an_event_type(category=Category.BUSINESS), [{"properties": {"a": {"type": "string"}}}])

    metadata = next(field.kind for field in columns.fields if field.name == "metadata")
    names = {field.name for field in metadata.fields}

    assert {"eid", "occurred_at", "partition_compaction_key", "published_by", "received_at", "version"} <= names
    assert {field.name for field in metadata.fields if field.kind == Texts()} == {"span_ctx", "cloudevent"}
    assert [field.name for field in columns.fields if field.name != "metadata"] == ["a"]


def test_the_envelope_of_a_data_event():
    """A data event has its envelope as columns, and its payload within `data`."""
    columns = derive_columns(an_event_type(category=Category.DATA), [{"properties": {"a": {"type": "string"}}}])

    kinds = {field.name: field.kind for field in columns.fields}

    assert kinds["data"] == Struct((Field("a", STRING),))
    assert kinds["data_op"] == STRING


def test_a_very_wide_schema():
    """A table has at most a thousand columns; the values of all other properties are in the text of the event."""
    wide = {f"p{number}": {"type": "string"} for number in range(1500)}
    assert len(columns_of(wide).fields) == 1000


@pytest.mark.parametrize(("kind", "levels"), [("object", MAX_LEVELS), ("array", MAX_LEVELS // 2)])
def test_a_very_deep_schema(kind, levels):
    """Values that are nested deeper than Spark allows become texts."""
    schema = {"type": "number"}
    for _ in range(90):
        schema = {"type": "array", "items": schema} if kind == "array" else {"properties": {"a": schema}}
    columns = columns_of({"a": schema})
    assert ddl_of(columns.fields[0].kind).count("<") == levels
    assert "string" in ddl_of(columns)
    assert not columns.closed
    assert columns_of({"a": schema}, {"a": schema}) == columns


def test_the_types_as_spark_writes_them():
    """In the text of a type for Spark, the names of members are quoted."""
    kind = Struct((Field("a", Array(Struct((Field("b", BIGINT),)))), Field("c", Json()), Field("d", Texts())))
    assert ddl_of(kind) == "struct<`a`:array<struct<`b`:bigint>>,`c`:string,`d`:map<string,string>>"


def test_a_property_whose_type_changes_has_further_columns():
    """The property has a column for each scalar type that it had. An object becomes text. A name that is taken gets no
    column.
    """
    versions = [
        {"properties": {"a": {"type": "integer"}, "b": {"type": "string"}, "b__bigint": {"type": "string"}}},
        {"properties": {"a": {"type": "number"}, "b": {"type": "integer"}}},
        {"properties": {"a": {"properties": {"c": {"type": "string"}}}}},
        {"properties": {"a": {"type": "number"}}},
    ]
    columns = derive_columns(an_event_type(category=Category.UNDEFINED), versions)
    assert [(field.name, ddl_of(field.kind), field.source) for field in columns.fields] == [
        ("a", "bigint", ""),
        ("b", "string", ""),
        ("b__bigint", "string", ""),
        ("a__double", "double", "a"),
        ("a__string", "string", "a"),
    ]
    assert text_properties(columns) == {"a", "b"}


def test_a_table_that_is_there_keeps_its_types():
    """A column that an earlier version of the job created keeps its type, and a further column gets the values of the
    new type.
    """
    there = Struct((Field("price", DOUBLE), Field("at", STRING), Field("in", Struct((Field("n", BIGINT),)))))
    schema = {
        "properties": {
            "price": {"type": "number", "multipleOf": 0.01},
            "at": {"type": "string", "format": "date-time"},
            "in": {"properties": {"n": {"type": "number"}}},
        }
    }
    columns = derive_columns(UNDEFINED, [schema], there)
    assert ddl_of(columns) == "struct<`price`:double,`at`:string,`in`:struct<`n`:bigint,`n__double`:double>>"


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        ({"type": "number", "multipleOf": 0.01}, "decimal(38,2)"),
        ({"type": "number", "multipleOf": 0.05}, "decimal(38,2)"),
        ({"type": "number", "multipleOf": 1e-20}, "double"),
        ({"type": "number", "multipleOf": 2}, "double"),
        ({"type": "number", "format": "decimal"}, "decimal(38,18)"),
        ({"type": "string", "format": "date-time"}, "timestamp"),
    ],
)
def test_decimals_and_moments(schema, name):
    """Decimals and dates in a schema determine the types of columns."""
    assert ddl_of(columns_of({"it": schema})) == f"struct<`it`:{name}>"


def test_columns_that_hold_everything():
    """Columns hold everything only if a schema is closed, and each of its values has one type and a name that can be
    a column.
    """
    line = {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": False}

    def is_closed(changes=None, **properties):
        first = {"a": {"type": "string"}, "l": {"type": "array", "items": line}}
        schema = {"type": "object", "properties": first | properties, "additionalProperties": False}
        return derive_columns(an_event_type(category=Category.BUSINESS), [schema | (changes or {})]).closed

    assert is_closed()
    assert not is_closed({"additionalProperties": True})
    assert not is_closed(a={"type": ["string", "null"]})
    assert not is_closed(b={"type": "object", "properties": {"c": {"type": "string"}}})
    assert not is_closed(b={"anyOf": [{"type": "string"}]})
    assert not is_closed(A={"type": "string"})
    assert not derive_columns(UNDEFINED, [line, line | {"properties": {"n": {"type": "string"}}}]).closed


def test_columns_come_into_a_table_in_one_change_of_it(jobs):
    """One change adds all new columns, also nested ones. If another run has added some of the columns meanwhile, the
    others are still added."""
    table = Table(jobs.spark(), jobs.database, "grown")
    table.create([("a", "struct<x:int>", "")], {})
    table.add([(("a", "y"), "int"), (("b",), "string"), (("c",), "int")])
    changes = jobs.spark().table(f"{table.path}.metadata_log_entries")
    before = changes.count()
    table.add([(("d",), "string"), (("e",), "int")])
    assert changes.count() == before + 1

    table.add([(("e",), "int"), (("a", "y"), "int"), (("f",), "int")])

    assert (
        ddl_of(table.columns()) == "struct<`a`:struct<`x`:int,`y`:int>,`b`:string,`c`:int,`d`:string,`e`:int,`f`:int>"
    )


def test_an_avro_schema_has_columns_for_its_fields():
    """Unions with null, and logical types, have columns for their values; the row also keeps the text. (R310)"""
    record = a_record(
        a_field("id"),
        a_field("at", {"type": "long", "logicalType": "timestamp-millis"}),
        a_field("day", {"type": "int", "logicalType": "date"}),
        a_field("uuid", {"type": "string", "logicalType": "uuid"}),
        a_field("cost", a_decimal(9, 2)),
        a_field("count", a_decimal(9)),
        a_field("price", ["null", "double"]),
        a_field("inner", ["null", a_record(a_field("sizes", {"type": "array", "items": "int"}), name="Inner")]),
        a_field("notes", {"type": "map", "values": "string"}),
    )
    found = derive_columns(an_event_type(category=Category.DATA), [parse_record_schema(json.dumps(record))])

    assert [ddl_of(each.kind) for each in found.fields if each.name != "metadata"] == [
        "string",
        "bigint",
        "bigint",
        "string",
        "decimal(38,2)",
        "bigint",
        "double",
        "struct<`sizes`:array<bigint>>",
        "map<string,string>",
    ]
    assert "metadata" in [each.name for each in found.fields]
    assert not found.closed

"""The rows of events: which values columns hold, and which they do not."""

import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from nakadi.model.event_type import Category
from nakadi_jobs.columns import derive_columns
from nakadi_sql.rows import LoggedEvent, RowMaker
from tests.support.builders import an_event_type


def make_row(event, *schemas):
    """The row of an event; of the columns that begin with `nakadi_`, it has only `nakadi_event`."""
    text = event if isinstance(event, bytes) else json.dumps(event).encode()
    columns = derive_columns(an_event_type(category=Category.UNDEFINED), schemas)
    [row] = RowMaker(columns).make_rows([LoggedEvent(1, 0, 7, None, None, None, text)]).to_pylist()
    assert (row["nakadi_timeline"], row["nakadi_offset"], row["nakadi_size"]) == (1, 7, len(text))
    return {name: value for name, value in row.items() if not name.startswith("nakadi_") or name == "nakadi_event"}


def schema_of(**properties):
    return {"type": "object", "properties": properties}


def read_value(kind, text):
    """The value in the column of a property with this schema, and whether the row also keeps the whole event."""
    row = make_row(b'{"a":%b}' % text.encode(), schema_of(a=kind))
    return row["a"], row["nakadi_event"] is not None


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ({"type": "string"}, '"x\\u00e9\\ud83d\\ude00"', "xé😀"),
        ({"type": "integer"}, "-9223372036854775808", -(2**63)),
        ({"type": "number"}, "1.10", 1.1),
        ({"type": "number"}, "3", 3.0),
        ({"type": "number"}, "0.1234567890123456", 0.1234567890123456),
        ({"type": "number"}, "1E3", 1000.0),
        ({"type": "number", "multipleOf": 0.01}, "12345678901234567890.10", Decimal("12345678901234567890.10")),
        ({"type": "number", "multipleOf": 0.01}, "1e1", Decimal("10.00")),
        ({"type": "boolean"}, "false", False),
        (
            {"type": "string", "format": "date-time"},
            '"2026-11-20T12:00:00.1230000+02:00"',
            datetime(2026, 11, 20, 10, 0, 0, 123000, tzinfo=UTC),
        ),
        ({"type": "array", "items": {"type": "integer"}}, "[1,null,3]", [1, None, 3]),
        ({"type": "object"}, '{"b":[1.10,"x"]}', '{"b":[1.10,"x"]}'),
        ({"type": "object", "additionalProperties": {"type": "string"}}, '{"b":"c"}', [("b", "c")]),
        (schema_of(b={"type": "integer"}), '{"b":1}', {"b": 1}),
    ],
)
def test_a_column_has_the_value_as_it_was_published(kind, text, value):
    """A value that fits is in its column, and the row does not also keep the event. (Q5)"""
    assert read_value(kind, text) == (value, False)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ({"type": "string"}, '"\\ud800"'),
        ({"type": "string"}, "1"),
        ({"type": "integer"}, "9223372036854775808"),
        ({"type": "integer"}, "1" * 5000),
        ({"type": "integer"}, "1.0"),
        ({"type": "integer"}, '"1"'),
        ({"type": "number"}, "0.12345678901234567890"),
        ({"type": "number"}, "1e400"),
        ({"type": "number"}, "true"),
        ({"type": "number", "multipleOf": 0.01}, "1.001"),
        ({"type": "number", "multipleOf": 0.01}, "1e999999999"),
        ({"type": "number", "multipleOf": 0.01}, "9" * 37),
        ({"type": "boolean"}, '"true"'),
        ({"type": "string", "format": "date-time"}, '"2026-11-20T12:00:00.1234567Z"'),
        ({"type": "string", "format": "date-time"}, '"2026-02-30T12:00:00Z"'),
        ({"type": "string", "format": "date-time"}, '"0001-01-01T00:00:00+14:00"'),
        ({"type": "array", "items": {"type": "integer"}}, "[1,1.5]"),
        ({"type": "array", "items": schema_of(b={"type": "integer"})}, "[1]"),
        ({"type": "object"}, '"text"'),
        ({"type": "object"}, '{"b":"\\ud800"}'),
        ({"type": "object", "additionalProperties": {"type": "string"}}, '{"b":1}'),
        ({"type": "integer"}, "null"),
    ],
)
def test_what_does_not_fit_is_null_and_in_the_text(kind, text):
    """A value that a column cannot hold exactly is NULL, and the row has the whole event. (Q5)"""
    assert read_value(kind, text) == (None, True)


def test_what_has_no_column_is_in_the_text():
    """Members that no schema names, at the top and within objects and lists, are not lost. (Q5)"""
    schema = schema_of(
        a=schema_of(b={"type": "integer"}), c={"type": "array", "items": schema_of(d={"type": "integer"})}
    )
    for event in ({"x": 1}, {"a": {"b": 1, "x": 2}}, {"c": [{"d": 1}, {"x": 1}]}):
        assert json.loads(make_row(event, schema)["nakadi_event"]) == event
    assert make_row({"a": {"b": 1}, "c": [{"d": 1}]}, schema) == {"a": {"b": 1}, "c": [{"d": 1}], "nakadi_event": None}


def test_a_property_of_several_types_has_several_columns():
    """Each column has the values that fit its type, and a text column has all values. (Q5)"""
    versions = (schema_of(a={"type": "integer"}), schema_of(a={"type": "string"}), schema_of(a={"type": "boolean"}))
    found = [make_row({"a": value}, *versions) for value in (7, "x", True, {"b": 1}, None)]
    assert [(row["a"], row["a__string"], row["a__boolean"]) for row in found] == [
        (7, "7", None),
        (None, "x", None),
        (None, "true", True),
        (None, '{"b": 1}', None),
        (None, None, None),
    ]
    assert all(row["nakadi_event"] for row in found)

"""No column has a value that was not published: an inexact value is NULL, and the event is in its text."""

import json
from datetime import datetime
from decimal import Decimal

import pytest

from nakadi_jobs.columns import DOUBLE, STRING, Array, Field, Json, Struct
from nakadi_jobs.exact_values import may_differ
from tests.support.jobs import order


def row_of(jobs, *columns):
    return jobs.rows("order_placed", *columns, "nakadi_event")


def test_numbers_are_exact_or_missing(jobs, data):
    """Numbers that a column would round or cannot hold are NULL, alone and in lists and texts."""
    number, numbers = {"type": "number"}, {"type": "array", "items": {"type": "number"}}
    schema = {"properties": {"n": number, "l": numbers, "i": {"type": "integer"}, "o": {"type": "object"}}}
    events = [
        b'{"n":0.30000000000000004,"l":[1,2.5],"i":9223372036854775807,"o":{"x":1.50}}',
        b'{"n":0.1000000000000000000001,"l":[1,9007199254740993],"i":1}',
        b'{"n":1e400,"l":[-1E400],"i":9223372036854775808}',
        b'{"n":1e5,"o":{"x":[1e400,12345678901234567890.123]}}',
        b'{"n":1e-400,"i":2,"s":[1.0000000000000001]}',
    ]
    data.archive_events(data.event_type("order.placed", schema=schema), events)

    assert jobs.compact().code == 0

    texts = [event.decode() for event in events]
    assert row_of(jobs, "n", "l", "i", "o") == [
        (0.30000000000000004, [1.0, 2.5], 2**63 - 1, '{"x":1.50}', None),
        (None, None, 1, None, texts[1]),
        (None, None, None, None, texts[2]),
        (100000.0, None, None, '{"x":[1e400,12345678901234567890.123]}', None),
        (None, None, 2, None, texts[4]),
    ]


SPELLINGS = ("1.10", "1e5", "1E+2", "-0", "-0.0", "12345678.9", "0.0001", "100", "-7", "1e-400", "1e400", "1" * 30)
"""Ways to write numbers, most of which Spark would change."""


def test_open_objects_keep_how_numbers_are_written(jobs, data):
    """The text of an open object, or of a list of anything, has every digit, every member and their order."""
    opened = {"type": "object"}
    schema = {
        "properties": {
            "o": opened,
            "a": {"type": "array"},
            "l": {"type": "array", "items": {"properties": {"o": opened}}},
            "ll": {"type": "array", "items": {"type": "array", "items": opened}},
        }
    }
    inner = [f'{{"b":1,"a":{{"x":[{number}]}},"b":2}}' for number in SPELLINGS]
    events = [
        *(f'{{"o":{each}}}' for each in inner),
        *(f'{{"a":[{each}]}}' for each in SPELLINGS),
        *(f'{{"l":[{{"o":{each}}}]}}' for each in inner),
        *(f'{{"ll":[[{each}]]}}' for each in inner),
    ]
    data.archive_events(data.event_type("order.placed", schema=schema), [event.encode() for event in events])

    assert jobs.compact().code == 0

    columns = ("o", "a", "l[0].o", "ll[0][0]")
    found = ["".join(filter(None, row)) for row in jobs.rows("order_placed", *columns)]
    assert found == [*inner, *(f"[{each}]" for each in SPELLINGS), *inner, *inner]


@pytest.mark.long("tests/glue_jobs/test_exact_values.py::test_numbers_are_exact_or_missing")
def test_numbers_in_lists_are_exact_or_missing(jobs, data):
    """Numbers of objects in lists, and of lists in them, are exact or missing, too."""
    number = {"type": "number"}
    item = {"properties": {"n": number, "inner": {"type": "array", "items": {"properties": {"m": number}}}}}
    data.archive_events(
        data.event_type("order.placed", schema={"properties": {"l": {"type": "array", "items": item}}}),
        events := [
            b'{"l":[{"n":0,"inner":[{"m":2.5}]},{"n":1.5}]}',
            b'{"l":[{"n":1.5},{"n":1e-400}]}',
            b'{"l":[{"n":1.5},null,{"n":-1e400}]}',
            b'{"l":[{"n":1.5},{"inner":[{"m":1},{"m":1E400}]}]}',
            b'{"l":[{"inner":null},{"inner":[{"m":1e-400}]}]}',
        ],
    )

    assert jobs.compact().code == 0

    texts = [event.decode() for event in events]
    assert row_of(jobs, "l.n", "flatten(l.inner).m") == [
        ([0.0, 1.5], None, None),
        ([1.5, None], None, texts[1]),
        ([1.5, None, None], None, texts[2]),
        ([1.5, None], None, texts[3]),
        ([None, None], None, texts[4]),
    ]
    assert jobs.rows("order_placed", "l[1].inner.m")[3:] == [([1.0, None],), ([None],)]


def test_lists_are_looked_through_without_lambdas():
    """Expressions for lists use no lambdas, because Spark does not compile these, and each would cost a copy of every
    row.
    """
    inner = Struct((Field("n", DOUBLE), Field("o", Json()), Field("s", STRING)))
    assert "->" not in may_differ("value", "line", Struct((Field("l", Array(inner)), Field("m", Array(DOUBLE)))))
    assert "->" in may_differ("value", "line", Struct((Field("l", Array(Array(inner))),)))


def test_halves_of_surrogate_pairs(jobs, data):
    """A string that is not valid Unicode becomes NULL; complete pairs and other escapes become strings as usual."""
    text = {"type": "string"}
    schema = {"properties": {"a": text, "l": {"type": "array", "items": text}, "o": {"type": "object"}}}
    events = [
        rb'{"a":"\ud83d\ude00 \u0041","l":["\\ud83d"],"o":{"b":"\ud83d\ude00"}}',
        rb'{"a":"x\ud83d","l":["y"],"o":{"b":"z"}}',
        rb'{"a":"x","l":["\ude00"],"o":{"\ud83d":"z"}}',
        rb'{"a":"\u0001 7"}',
    ]
    data.archive_events(data.event_type("order.placed", schema=schema), events)

    assert jobs.compact().code == 0

    texts = [event.decode() for event in events]
    assert row_of(jobs, "a", "l", "o") == [
        ("\U0001f600 A", ["\\ud83d"], r'{"b":"\uD83D\uDE00"}', None),
        (None, ["y"], '{"b":"z"}', texts[1]),
        ("x", None, None, texts[2]),
        (None, None, None, texts[3]),
    ]


def test_decimals_and_moments(jobs, data):
    """Numbers whose decimals the schema limits are decimals, date-times are timestamps; both are exact or missing."""
    schema = {
        "properties": {
            "price": {"type": "number", "multipleOf": 0.01},
            "rate": {"type": "number", "format": "decimal"},
            "at": {"type": "string", "format": "date-time"},
            "list": {"type": "array", "items": {"properties": {"at": {"type": "string", "format": "date-time"}}}},
        }
    }
    events = [
        b'{"price":12.30,"rate":0.000000000000000001,"at":"2026-11-20T12:00:00.123456+02:00"}',
        b'{"price":123456789012345678901234567890.12,"rate":1.5,"at":"2026-11-20T10:00:00.1234567Z"}',
        b'{"price":1e36,"rate":0.0000000000000000001,"list":[{"at":"2026-11-20t10:00:00.1200000z"}]}',
        b'{"price":1.005,"rate":-2.5}',
        b'{"price": 15.5e-3 }',
        b'{"price":1.500,"at":"2026-11-20T10:00:00.12345Z"}',
    ]
    data.archive_events(data.event_type("order.placed", schema=schema), events)

    assert jobs.compact().code == 0

    texts = [event.decode() for event in events]
    assert row_of(jobs, "price", "rate", "at", "list[0].at") == [
        (Decimal("12.30"), Decimal("1E-18"), utc_time(10, 0, 0, 123456), None, None),
        (Decimal("123456789012345678901234567890.12"), Decimal("1.5"), None, None, texts[1]),
        (None, None, None, utc_time(10, 0, 0, 120000), texts[2]),
        (None, Decimal("-2.5"), None, None, texts[3]),
        (None, None, None, None, texts[4]),
        (Decimal("1.50"), None, utc_time(10, 0, 0, 123450), None, None),
    ]


def utc_time(*time):
    return datetime(2026, 11, 20, *time)  # noqa: DTZ001  # as Spark gives it, in the zone of the machine


CHANGING = [
    ({"type": "integer"}, [1, 2**53 + 1]),
    ({"type": "number"}, [1.5, 2]),
    ({"type": "string"}, ["1.5", "true", "{}"]),
    ({"type": "boolean"}, [True]),
    ({"properties": {"b": {"type": "number"}}}, [{"b": 1.25}]),
    ({"type": "array", "items": {"type": "integer"}}, [[1, 2]]),
    ({"type": "array", "items": {"type": "string"}}, [["x", "1"]]),
]


def test_types_that_change_below_the_top(jobs, data):
    """A property of an object in a list has a column for each of its types, and each column has the values that fit its
    type.
    """
    published = []
    for number, (kind, values) in enumerate(CHANGING):
        schema = {"properties": {"list": {"type": "array", "items": {"properties": {"a": kind}}}}}
        orders = data.new_schema("order.placed", schema) if number else data.event_type("order.placed", schema=schema)
        data.archive_events(orders, [{"list": [{"a": value}]} for value in values])
        published += values
        # Columns are added to existing tables.
        if number in (0, 3):
            assert jobs.compact().code == 0

    told = jobs.compact()

    assert (told.code, "Warning" in told.told) == (0, False)
    names = ("a", "a__double", "a__string", "a__boolean", "a__bigint_array", "a__string_array")
    rows = row_of(jobs, *(f"list[0].{name}" for name in names))
    assert [json.loads(row[-1])["list"][0]["a"] for row in rows[2:]] == published[2:]
    assert [row[:-1] for row in rows[3:]] == [
        (2, 2.0, "2", None, None, None),
        (None, None, "1.5", None, None, None),
        (None, None, "true", None, None, None),
        (None, None, "{}", None, None, None),
        (None, None, "true", True, None, None),
        (None, None, '{"b":1.25}', None, None, None),
        (None, None, "[1,2]", None, [1, 2], None),
        (None, None, '["x","1"]', None, None, ["x", "1"]),
    ]


@pytest.mark.long
def test_a_structure_that_becomes_a_text(jobs, data):
    """The column of an object keeps its type, even for events after texts; a column of texts has only texts."""
    customer = {"properties": {"id": {"type": "string"}, "rank": {"type": "integer"}}}
    tags = {"type": "object", "additionalProperties": {"type": "string"}}
    orders = data.event_type("order.placed", schema={"properties": {"customer": customer, "tags": tags}})
    data.archive_events(orders, [order(1, customer={"id": "1", "rank": 1}, tags={"a": "x"})])
    jobs.compact()
    tags = {"properties": {"a": {"properties": {"b": {"type": "boolean"}}}}}
    schema = {"properties": {"customer": {"type": "string"}, "tags": tags}}
    orders = data.new_schema("order.placed", schema)
    later = [{"customer": '{"id":"2"}'}, {"customer": {"id": "3", "rank": 3}, "tags": {"a": {"b": True}}}]
    data.archive_events(orders, later)

    assert jobs.compact().code == 0

    found = jobs.rows("order_placed", "customer.id", "customer.rank", "customer__string", "tags", "tags__string")
    assert found == [
        ("1", 1, None, {"a": "x"}, None),
        (None, None, '{"id":"2"}', None, None),
        ("3", 3, '{"id":"3","rank":3}', None, '{"a":{"b":true}}'),
    ]

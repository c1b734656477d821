"""Why events do not fit the columns of their table."""

import pytest

from nakadi_jobs.columns import BIGINT, BOOLEAN, DOUBLE, STRING, TIMESTAMP, Array, Field, Json, Scalar, Struct, Texts
from nakadi_jobs.misfits import NOT_JSON, OTHER, misfit_reasons

COLUMNS = Struct(
    (
        Field("number", BIGINT),
        Field("small", Scalar("int")),
        Field("total", DOUBLE),
        Field("price", Scalar("decimal(38,2)")),
        Field("paid", BOOLEAN),
        Field("at", TIMESTAMP),
        Field("note", STRING),
        Field("labels", Texts()),
        Field("more", Json()),
        Field("customer", Struct((Field("id", STRING), Field("points", BIGINT)))),
        Field("items", Array(Struct((Field("quantity", BIGINT),)))),
        Field("either", BIGINT, has_several_types=True),
    )
)


ALL_FIT = (
    '{"number": 1, "total": 1, "paid": true, "at": "2026-11-20T10:00:00.5+01:00", "note": 1, "labels": {"a": "b"}, '
    '"more": [1], "customer": null, "items": [{"quantity": null}], "either": "text", "unknown": 1}'
)


@pytest.mark.parametrize(
    ("event", "reasons"),
    [
        ('{"number": "1"}', [("bigint", "number")]),
        ('{"number": true, "small": 2147483648}', [("bigint", "number"), ("int", "small")]),
        ('{"number": 9223372036854775808, "small": -2147483648}', [("bigint", "number")]),
        (
            '{"total": "much", "price": "1.0", "paid": 1}',
            [("boolean", "paid"), ("decimal(38,2)", "price"), ("double", "total")],
        ),
        ('{"total": false}', [("double", "total")]),
        ('{"at": "yesterday"}', [("timestamp", "at")]),
        ('{"labels": [], "customer": 7, "items": {}}', [("array", "items"), ("map", "labels"), ("struct", "customer")]),
        ('{"customer": {"id": 1, "points": 1.5}}', [("bigint", "customer.points")]),
        (
            '{"items": [{"quantity": "a"}, {}, {"quantity": "b"}, 7]}',
            [("bigint", "items[].quantity"), ("struct", "items[]")],
        ),
        ("{broken", [NOT_JSON]),
        ("[" * 100_000, [NOT_JSON]),
        (
            ALL_FIT,
            [OTHER],
        ),
    ],
)
def test_reasons_name_the_type_and_the_path_of_the_column(event, reasons):
    """Each reason occurs once, and does not reveal the value. (T3)"""
    assert sorted(misfit_reasons(event, COLUMNS)) == reasons

import json

import pytest
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from nakadi_jobs.columns import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    STRING,
    TIMESTAMP,
    Array,
    Field,
    Json,
    Scalar,
    Struct,
    Texts,
    ddl,
)
from nakadi_jobs.transform import members_in_columns, names_in


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Struct((Field("a", BIGINT),)), "(cast(v.`a` is not null as int))"),
        (Struct((Field("a", STRING, contested=True),)), "(0)"),
        (Struct((Field("a", Array(STRING)),)), "(cast(v.`a` is not null as int))"),
        (Struct(()), "(0)"),
        (
            Struct((Field("a", Struct((Field("b", BIGINT),))),)),
            "(if(v.`a` is null, 0, 1 + (cast(v.`a`.`b` is not null as int))))",
        ),
        (Struct((Field("a", Texts()),)), "(if(v.`a` is null, 0, 1 + coalesce(size(v.`a`), 0)))"),
    ],
)
def test_members_are_counted_by_type(kind, said):
    """Each member that a column holds counts once; one whose column was of another type counts for nothing."""
    assert members_in_columns("v", kind) == said


def test_elements_are_counted_one_by_one():
    """The members of the objects in a list count, each list with names of its own."""
    inner = Array(Struct((Field("c", BIGINT),)))
    said = members_in_columns("v", Struct((Field("a", Array(Struct((Field("b", inner),)))),)))
    assert "each0" in said
    assert "each1.`c`" in said


def test_names_in_free_text():
    """In free JSON only names that are certainly names count."""
    said = members_in_columns("v", Struct((Field("a", Json()),)))
    assert names_in("v.`a`") in said
    assert "div 3" in said


PRICE = Struct((Field("amount", DOUBLE), Field("exact", Scalar("decimal(38,18)"))))
ITEM = Struct(
    (
        Field("sku", STRING),
        Field("count", BIGINT),
        Field("new", BOOLEAN),
        Field("at", TIMESTAMP),
        Field("price", PRICE),
        Field("tags", Array(STRING)),
    )
)
WHOLE = {
    "sku": "a",
    "count": 1,
    "new": True,
    "at": "2026-11-20T10:00:00Z",
    "price": {"amount": 1.5, "exact": 2},
    "tags": ["x"],
}
LISTS = [
    None,
    [],
    [WHOLE],
    [WHOLE, WHOLE],
    [WHOLE, None],
    [WHOLE, {}],
    *([WHOLE, {name: value for name, value in WHOLE.items() if name != left_out}] for left_out in WHOLE),
    [WHOLE, {**WHOLE, "price": {"amount": 1.5}}],
    [WHOLE, {**WHOLE, "price": {"exact": 2}}],
    # What is asked for, to see whether there is nothing.
    [WHOLE, {**WHOLE, "sku": "\0", "count": -99991}],
]


def test_members_in_lists(jobs):
    """Members of objects in lists are counted, whatever is missing in one of them, and so in lists in lists."""
    columns = Struct((Field("items", Array(ITEM)), Field("parcels", Array(Struct((Field("items", Array(ITEM)),))))))
    values = [{"items": items, "parcels": [None, {"items": items}, {}]} if items is not None else {} for items in LISTS]
    texts = F.from_json(F.lit(json.dumps(values)), f"array<{ddl(columns)}>")
    rows = jobs.spark().range(1).select(F.posexplode(texts).alias("number", "v"))
    counted = rows.selectExpr("number", f"{members_in_columns('v', columns)} AS members").orderBy("number").collect()
    assert [row["members"] for row in counted] == [members(value) for value in values]


def members(value):
    match value:
        case dict():
            return sum(1 + members(each) for each in value.values())
        case list():
            return sum(map(members, value))
    return 0

import json
from functools import reduce

import pytest
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from nakadi_jobs import columns
from nakadi_jobs.columns import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    MAX_LEVELS,
    STRING,
    TIMESTAMP,
    Array,
    Field,
    Json,
    Scalar,
    Struct,
    Texts,
    ddl_of,
)
from nakadi_jobs.exact_values import MISFIT
from nakadi_jobs.transform import count_column_members, member_count_expression


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Struct((Field("a", BIGINT),)), "(cast(v.`a` is not null as int))"),
        (Struct((Field("a", STRING, has_several_types=True),)), "(0)"),
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
    """Each member that a column holds counts once; one whose column had another type does not count."""
    assert count_column_members("v", kind) == said


def test_elements_are_counted_one_by_one():
    """The members of the objects in a list count, with separate names for each list."""
    inner = Array(Struct((Field("c", BIGINT),)))
    said = count_column_members("v", Struct((Field("a", Array(Struct((Field("b", inner),)))),)))
    assert "each0" in said
    assert "each1.`c`" in said


def test_names_in_free_text():
    """In free JSON, only texts that are certainly names count."""
    said = count_column_members("v", Struct((Field("a", Json()),)))
    assert member_count_expression("v.`a`") in said
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
    # The expected members, to prove an absence.
    [WHOLE, {**WHOLE, "sku": "\0", "count": -99991}],
]


@pytest.mark.long
def test_members_in_lists(jobs):
    """Members of objects in lists are counted, even if some objects lack some, and so are those in nested lists."""
    columns = Struct((Field("items", Array(ITEM)), Field("parcels", Array(Struct((Field("items", Array(ITEM)),))))))
    values = [{"items": items, "parcels": [None, {"items": items}, {}]} if items is not None else {} for items in LISTS]
    one = jobs.spark().range(1)
    texts = F.from_json(F.lit(json.dumps(values)), f"array<{ddl_of(columns)}>")
    rows = one.select(F.posexplode(texts).alias("number", "v"))
    counted = rows.selectExpr("number", f"{count_column_members('v', columns)} AS members").orderBy("number").collect()
    assert [row["members"] for row in counted] == [count_members(value) for value in values]


def count_members(value):
    match value:
        case dict():
            return sum(1 + count_members(each) for each in value.values())
        case list():
            return sum(map(count_members, value))
    return 0


def test_a_sum_of_many_members_is_not_deep():
    """A thousand members are counted without a thousand nested terms, for which Spark's stack is not deep enough."""
    counted = count_column_members("v", Struct(tuple(Field(f"n{number}", DOUBLE) for number in range(1000))))
    depths, depth = [], 0
    for letter in counted:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        depths.append(depth)
    assert max(depths) < 15
    assert counted.count(" + ") == 999


@pytest.mark.long
def test_schemas_that_would_be_too_much_for_spark(jobs, data):
    """Lists and objects of any depth, and a property with the name of the publisher's column, are in the table."""
    lists = reduce(lambda inner, _: {"type": "array", "items": inner}, range(40), {"type": "number"})
    objects = reduce(lambda inner, _: {"properties": {"a": inner}}, range(40), {"type": "number"})
    metadata = {"properties": {"published_by": {"type": "array", "items": {"type": "integer"}}}}
    properties = {"lists": lists, "objects": objects, "metadata": metadata}
    event = {
        "lists": reduce(lambda inner, _: [inner], range(40), 1.5),
        "objects": reduce(lambda inner, _: {"a": inner}, range(40), 1.5),
        "metadata": {"published_by": [1]},
    }
    data.archive_events(data.event_type("order.placed", {"properties": properties}), [event])

    assert jobs.compact().code == 0

    [(publisher, text, lists, object_within, known)] = jobs.rows(
        "order_placed",
        "metadata.published_by",
        "nakadi_event",
        "lists",
        f"objects{'.a' * MAX_LEVELS}",
        "nakadi_publisher",
    )
    assert (publisher, text, known) == ([1], None, None)
    assert json.loads(object_within) == reduce(lambda inner, _: {"a": inner}, range(40 - MAX_LEVELS), 1.5)
    [inner] = reduce(lambda found, _: found[0], range(MAX_LEVELS // 2 - 1), lists)
    assert json.loads(inner) == reduce(lambda inner, _: [inner], range(40 - MAX_LEVELS // 2), 1.5)


@pytest.mark.long("tests/glue_jobs/test_columns.py::test_a_very_wide_schema")
def test_a_table_with_as_many_columns_as_there_may_be(jobs, data, monkeypatch):
    """The columns of a table are still written if later schemas would need more columns than allowed."""
    monkeypatch.setattr(columns, "MAX_FIELDS", 4)
    number = {"type": "integer"}
    first = {"properties": {"a": {"properties": {"x": number}}, "b": number}}
    second = {"properties": {"a": {"properties": {"x": number, "y": number, "z": number}}, "b": number, "c": number}}
    event = {"a": {"x": 1, "y": 2}, "b": 3, "c": 4}
    data.archive_events(data.event_type("order.placed", first), [{"a": {"x": 1}, "b": 3}])
    assert jobs.compact().code == 0
    data.archive_events(data.new_schema("order.placed", second), [event])

    assert jobs.compact().code == 0

    [before, after] = jobs.rows("order_placed", "a.x", "b", "c", "nakadi_event")
    assert before == (1, 3, None, None)
    assert after[:3] == (1, 3, 4)
    assert json.loads(after[3]) == event


def test_properties_that_are_called_as_what_the_job_works_with(jobs, data):
    """Properties may have the names that the job uses internally."""
    names = [MISFIT, "_misfit", "doubtful", "file", "head", "line", "misfit", "partition", "stamped", "topic", "value"]
    schema = {"properties": {name: {"type": "integer"} for name in names}}
    event = {name: number for number, name in enumerate(names)}
    data.archive_events(data.event_type("order.placed", schema), [event, {}])

    assert jobs.compact().code == 0

    [first, second] = jobs.rows("order_placed", *names[1:], "nakadi_event")
    assert first[:-1] == tuple(range(1, len(names)))
    # A name that begins like the columns of an event's position has no column.
    assert json.loads(first[-1]) == event
    assert {*second} == {None}

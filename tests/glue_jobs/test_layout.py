"""The columns by which tables are partitioned and sorted."""

import pytest

from nakadi.event_types.table_layout import BadTableLayout, TablePartitionColumn, TableSortColumn
from nakadi.model.annotations import PARTITION_BY_ANNOTATION, SORT_BY_ANNOTATION
from nakadi_jobs import compaction
from nakadi_jobs.columns import BIGINT, BOOLEAN, DOUBLE, STRING, TIMESTAMP, Array, Field, Struct, Texts
from nakadi_jobs.layout import DEFAULT_LAYOUT, choose_layout
from tests.support.builders import an_event_type
from tests.support.jobs import order
from tests.support.table_readers import assert_read_alike

COLUMNS = Struct(
    (
        Field("at", TIMESTAMP),
        Field("Customer", Struct((Field("id", STRING), Field("rank", BIGINT)))),
        Field("items", Array(Struct((Field("sku", STRING),)))),
        Field("tags", Texts()),
        Field("total", DOUBLE),
        Field("paid", BOOLEAN),
    )
)


def layout_from_annotations(**texts):
    names = {"partition_by": PARTITION_BY_ANNOTATION, "sort_by": SORT_BY_ANNOTATION}
    return choose_layout(an_event_type(annotations={names[name]: text for name, text in texts.items()}), COLUMNS)


def test_columns_are_called_as_the_table_calls_them():
    """The names of columns in annotations are found in any case; without an annotation, the defaults apply."""
    found = layout_from_annotations(partition_by="bucket(4, customer.ID), day(AT)", sort_by="customer.rank desc, total")
    assert found.partition_by == (TablePartitionColumn("Customer.id", "bucket", 4), TablePartitionColumn("at", "day"))
    assert found.sort_by == (TableSortColumn("Customer.rank", descending=True), TableSortColumn("total"))
    assert layout_from_annotations(sort_by="at").partition_by == DEFAULT_LAYOUT.partition_by
    assert layout_from_annotations(partition_by="at").sort_by == DEFAULT_LAYOUT.sort_by
    assert layout_from_annotations() is DEFAULT_LAYOUT


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("other", "there is no column other outside of lists and maps"),
        ("items.sku", "there is no column items.sku outside of lists and maps"),
        ("tags.a", "there is no column tags.a outside of lists and maps"),
        ("customer", "customer is not a single value"),
        ("day(customer.id)", "Customer.id is a string, and no table is partitioned by day of such a column"),
        ("total", "total is a double, and no table is partitioned by identity of such a column"),
        ("bucket(4, paid)", "paid is a boolean, and no table is partitioned by bucket of such a column"),
        ("truncate(4, at)", "at is a timestamp, and no table is partitioned by truncate of such a column"),
    ],
)
def test_columns_that_no_table_is_partitioned_by(text, reason):
    """A layout that does not fit the columns of the table is refused with a reason."""
    with pytest.raises(BadTableLayout, match=f"^{reason}$"):
        layout_from_annotations(partition_by=text)


@pytest.mark.long
def test_a_table_is_partitioned_and_sorted_as_annotations_say(jobs, data, tables, monkeypatch):
    """Annotations apply to files that are written later, including merged small files; existing files stay unchanged,
    and every engine reads both. A wrong annotation is a warning, and the table continues as before.
    """
    orders = data.event_type("order.placed")
    data.archive_events(orders, [order(1), order(2)])
    jobs.compact()
    before = files(jobs)

    orders = data.annotate(
        orders, {PARTITION_BY_ANNOTATION: "bucket(2, customer.id)", SORT_BY_ANNOTATION: "customer.id desc, total"}
    )
    data.archive_events(orders, [order(number) for number in range(3, 17)])
    assert jobs.compact().code == 0

    assert before == [before[0]] == [each for each in files(jobs) if each[1] == 0]
    assert not any("customer" in path.rpartition("/order_placed/")[2] for path, *_ in files(jobs))
    assert ids(jobs) == [DESCENDING, DESCENDING]

    monkeypatch.setattr("nakadi_jobs.tables.SMALL_FILES", 2)
    wrong = data.annotate(orders, {PARTITION_BY_ANNOTATION: "day(total)"})
    data.archive_events(wrong, [order(number) for number in range(7)])
    told = jobs.run(compaction.main)
    assert told.code == 0
    assert "Warning: order.placed: order_placed is partitioned and sorted as it was. total is a double" in told.told
    assert "files made larger" in told.told
    assert ids(jobs) == [DESCENDING, DESCENDING]

    data.annotate(wrong, {})
    data.archive_events(wrong, [order(20)])
    assert jobs.compact().code == 0
    assert jobs.rows("order_placed") == [(0, offset) for offset in range(24)]
    assert [rows for _, spec, rows in files(jobs) if spec == 0] == [1, 2]
    assert len(assert_read_alike(jobs.table("order_placed"), tables / jobs.database / "order_placed")) == 24


DESCENDING = "in descending order"


def files(jobs):
    """The path, the number of the partitioning, and the rows of each file."""
    found = jobs.spark().table(f"nakadi.{jobs.database}.order_placed.files")
    rows = found.select("file_path", "spec_id", "record_count").collect()
    return sorted((tuple(row) for row in rows), key=lambda row: row[1:])


def ids(jobs):
    """The order of ids in each file of a table that is partitioned by customer."""
    found = []
    for path, spec, _ in files(jobs):
        if spec == 1:
            customers = [row["id"] for row in jobs.spark().read.parquet(path).select("customer.id").collect()]
            found.append(DESCENDING if customers == sorted(customers, reverse=True) else customers)
    return found

"""How tables are partitioned and sorted, as the annotations of event types specify."""

import pytest

from nakadi.event_types.table_layout import (
    MAX_TABLE_LAYOUT_COLUMNS,
    TableLayout,
    TablePartitionColumn,
    TableSortColumn,
    table_layout_from_annotations,
)
from nakadi.event_types.table_retention import check_data_lake_annotations
from nakadi.model.annotations import PARTITION_BY_ANNOTATION, SORT_BY_ANNOTATION
from nakadi.model.outcomes import Invalid


def test_partitions_and_order():
    """The fields in an annotation are separated by commas; spaces, and the letter case of functions and directions, do
    not matter.
    """
    text = "day( metadata.occurred_at ),Bucket(16,customer.id) , truncate(4, sku), country"
    assert table_layout_from_annotations(
        {PARTITION_BY_ANNOTATION: text, SORT_BY_ANNOTATION: "customer.id, nakadi_time DESC,sku asc"}
    ) == TableLayout(
        (
            TablePartitionColumn("metadata.occurred_at", "day"),
            TablePartitionColumn("customer.id", "bucket", 16),
            TablePartitionColumn("sku", "truncate", 4),
            TablePartitionColumn("country"),
        ),
        (TableSortColumn("customer.id"), TableSortColumn("nakadi_time", descending=True), TableSortColumn("sku")),
    )
    assert table_layout_from_annotations({"other": "x"}) == TableLayout()


@pytest.mark.parametrize(
    ("annotation", "text", "reason"),
    [
        (PARTITION_BY_ANNOTATION, "", '"" is not a column, nor one of year'),
        (PARTITION_BY_ANNOTATION, "a,", '"" is not a column'),
        (PARTITION_BY_ANNOTATION, "week(a)", '"week(a)" is not a column'),
        (PARTITION_BY_ANNOTATION, "bucket(a, 16)", '"bucket(a, 16)" is not a column'),
        (PARTITION_BY_ANNOTATION, "bucket(a)", '"bucket(a)" is not a column'),
        (PARTITION_BY_ANNOTATION, "day(a", '"day(a" is not a column'),
        (PARTITION_BY_ANNOTATION, "a; DROP TABLE b", '"a; DROP TABLE b" is not a column'),
        (PARTITION_BY_ANNOTATION, "bucket(0, a)", "the number in bucket is from 1 to 4096, and not 0"),
        (PARTITION_BY_ANNOTATION, "truncate(1001, a)", "the number in truncate is from 1 to 1000, and not 1001"),
        (PARTITION_BY_ANNOTATION, "day(a), hour(A)", "A is there twice"),
        (PARTITION_BY_ANNOTATION, "bucket(2, a), bucket(4, a)", "a is there twice"),
        (
            PARTITION_BY_ANNOTATION,
            ", ".join(f"a{number}" for number in range(MAX_TABLE_LAYOUT_COLUMNS + 1)),
            "it has 9 fields, and 8 are",
        ),
        (SORT_BY_ANNOTATION, "a up", '"a up" is not a column, optionally followed by asc or desc'),
        (SORT_BY_ANNOTATION, "a.b., c", '"a.b." is not a column'),
        (SORT_BY_ANNOTATION, "a, a desc", "a is there twice"),
    ],
)
def test_what_is_refused(annotation, text, reason):
    """An event type whose annotation is invalid is refused with a message that names the annotation, the fault and the
    value. (R256)
    """
    with pytest.raises(Invalid) as refused:
        check_data_lake_annotations({annotation: text})
    assert refused.value.detail.startswith(f"Annotation {annotation} is not valid: {reason}")
    assert refused.value.detail.endswith(f'Provided value: "{text}".')


def test_one_column_in_several_ways():
    """A column may partition a table by its value, by a bucket and by a truncation at the same time."""
    check_data_lake_annotations({PARTITION_BY_ANNOTATION: "bucket(4, a), truncate(2, a), a, day(b)"})

"""The rows of a table, read as Parquet files if those have the same rows, and the positions at which the table ends and
reading of the log begins.
"""

import re
from datetime import UTC, datetime

import pytest

from nakadi_jobs.archive_ranges import Progress
from nakadi_spark import BadRead
from nakadi_spark.tables import open_table, table_seam
from tests.support.jobs import open_reading_session

PROGRESS = Progress({("a", 0): 10, ("b", 0): 4, ("b", 1): 6}, {}, timelines={"a": 1, "b": 2})


def test_the_seam_is_that_of_the_state_of_the_table():
    """The log is read from where the state of the table ends, which may be later than the source says: the table may
    have events of a timeline or partition that the source does not name. The table has all events of older timelines
    that the source does not name. (K1)
    """
    assert table_seam(PROGRESS, {0: {2: 3}, 1: {2: 6}}) == {0: {2: 4}, 1: {2: 6}}
    assert table_seam(PROGRESS, {0: {1: 8}}) == {0: {1: 10, 2: 4}, 1: {2: 6}}
    assert table_seam(PROGRESS, {0: {3: 0}, 1: {3: 0}}) == {0: {3: 0}, 1: {3: 0}}


def test_a_progress_without_timelines_gives_no_seam():
    """If a stored progress has no timelines, as those of older versions, it does not say where the table ends. (K1)"""
    assert table_seam(Progress({("a", 0): 10}, {}), {0: {1: 10}}) is None


def test_a_table_that_has_too_few_events_is_refused():
    """A table with fewer events than the source says is refused, because it is a different table, or was restored to an
    earlier state. (K1)
    """
    with pytest.raises(BadRead, match="fewer events"):
        table_seam(PROGRESS, {0: {2: 5}})


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    return open_reading_session(f"file://{tmp_path_factory.mktemp('tables')}")


@pytest.fixture
def table(spark, request):
    """A table with two events from two days, a tombstone, and an event for a single subscription."""
    path = f"nakadi.t.{re.sub(r'[^a-z]+', '_', request.node.name)}"
    spark.sql("CREATE NAMESPACE IF NOT EXISTS nakadi.t")
    spark.sql(
        f"CREATE TABLE {path} (nakadi_partition int, nakadi_time timestamp, nakadi_tombstone boolean, "
        "nakadi_directed_to string, n int, customer struct<id:string>) USING iceberg "
        "PARTITIONED BY (days(nakadi_time)) TBLPROPERTIES ('format-version'='2', 'write.delete.mode'='merge-on-read', "
        f"'nakadi.progress'='{Progress({}, {}).to_text()}')"
    )
    spark.sql(
        f"INSERT INTO {path} VALUES (0, timestamp'2026-11-20 10:00:00', false, null, 1, struct('a')), "
        "(0, timestamp'2026-11-21 10:00:00', false, null, 2, struct('b')), "
        "(0, timestamp'2026-11-21 10:00:00', true, null, null, null), "
        "(0, timestamp'2026-11-21 10:00:00', false, 'subscription', 3, struct('c'))"
    )
    return path


def is_parquet(rows):
    return "FileScan parquet" in rows._jdf.queryExecution().executedPlan().toString()


def values(rows, *columns):
    return sorted(tuple(row) for row in rows.selectExpr(*columns).collect())


def test_spark_reads_the_files_of_a_plain_table(spark, table):
    """Read from its files, a plain table has the rows that streams deliver. (K1)"""
    rows = open_table(spark, table, {}).rows
    assert is_parquet(rows)
    assert values(rows, "n", "customer.id") == [(1, "a"), (2, "b")]


def has_filter(rows):
    return "nakadi_tombstone" in rows._jdf.queryExecution().optimizedPlan().toString().partition("Relation")[0]


def test_only_rows_that_may_not_be_delivered_are_filtered(spark, table):
    """If the statistics of all files say that streams deliver every row, Spark does not read the columns that would say
    so. (K1)
    """
    for values_of_row in ("true, null, null, null", "false, 'subscription', 3, struct('c')"):
        assert has_filter(open_table(spark, table, {}).rows)
        spark.sql(f"DELETE FROM {table} WHERE nakadi_tombstone OR nakadi_directed_to IS NOT NULL")
        # The deletion only marks rows.
        spark.sql(f"CALL nakadi.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))")
        rows = open_table(spark, table, {}).rows
        assert not has_filter(rows)
        assert values(rows, "n", "customer.id") == [(1, "a"), (2, "b")]
        spark.sql(f"INSERT INTO {table} VALUES (0, timestamp'2026-11-21 10:00:00', {values_of_row})")


def test_only_files_of_the_time_are_read(spark, table):
    """A table yields only the rows of the files with events since the given time. (K4)"""
    rows = open_table(spark, table, {}, datetime(2026, 11, 21, tzinfo=UTC)).rows
    assert values(rows, "n") == [(2,)]


def test_a_column_that_older_files_lack_is_null(spark, table):
    """A column that was added to the table is null in the rows of older files. (K3)"""
    spark.sql(f"ALTER TABLE {table} ADD COLUMNS (more string, customer.name string)")
    spark.sql(
        f"INSERT INTO {table} VALUES "
        "(0, timestamp'2026-11-22 10:00:00', false, null, 4, named_struct('id', 'd', 'name', 'D'), 'x')"
    )
    rows = open_table(spark, table, {}).rows
    assert is_parquet(rows)
    found = [tuple(row) for row in rows.orderBy("n").selectExpr("n", "customer.name", "more").collect()]
    assert found == [(1, None, None), (2, None, None), (4, "D", "x")]


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE {} RENAME COLUMN n TO m",
        "ALTER TABLE {} ALTER COLUMN n TYPE bigint",
        "DELETE FROM {} WHERE n = 3",
    ],
    ids=["renamed", "widened", "deleted"],
)
def test_iceberg_reads_a_table_that_is_more_than_its_files(spark, table, change):
    """If a column was renamed or has another type, or rows are only marked as deleted, the files alone are not enough,
    and Iceberg reads the table. (K3)
    """
    assert is_parquet(open_table(spark, table, {}).rows)
    spark.sql(change.format(table))
    rows = open_table(spark, table, {}).rows
    assert not is_parquet(rows)
    # This state of the table is older than the renaming of a column.
    assert values(rows, "n", "customer.id") == [(1, "a"), (2, "b")]

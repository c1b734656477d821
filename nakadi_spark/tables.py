"""The table of an event type in the state that it has now, and up to where this state has the events.

Iceberg's own reader takes columns with objects or lists row by row, and took 1.7 to 2.9 times as long as Spark's reader
of Parquet. So if the table is nothing but its Parquet files, these are read: `_plain_files` says when.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from nakadi_jobs.archive_ranges import Progress
from nakadi_jobs.data_files import TimeRange, has_files_with, java_elements, plan_files
from nakadi_jobs.tables import stored_progress
from nakadi_spark.errors import BadRead
from nakadi_sql.sources import Seam, seam_condition

DELIVERED = "NOT coalesce(nakadi_tombstone, false) AND nakadi_directed_to IS NULL"
"""The condition for rows that streams of the event type deliver."""

MAX_FILES = 2000
"""Listing the files of a table takes a millisecond each. Iceberg alone reads tables with more."""

BEFORE_ALL, AFTER_ALL = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)


class TableRows(Struct, frozen=True):
    """Rows that streams deliver, perhaps some of other times, and the seam after which the log has further ones."""

    rows: DataFrame
    seam: Seam


def open_table(
    spark: SparkSession, path: str, said: Seam, since: datetime | None = None, until: datetime | None = None
) -> TableRows:
    """The rows of a table, at least those from `since` until `until`. Raises `BadRead`.

    `said` is the seam that the source stated earlier; by now, the table may have more events.
    """
    jvm: Any = spark._jvm  # noqa: SLF001  # the only way to Iceberg's own interface
    java = _load(spark, path)
    snapshot = java.currentSnapshot().snapshotId()
    if files := _plain_files(spark, java, TimeRange("nakadi_time", since or BEFORE_ALL, until or AFTER_ALL)):
        rows = spark.read.schema(_schema_of(jvm, java, snapshot)).parquet(*files)
    else:
        rows = spark.sql(f"SELECT * FROM {path} VERSION AS OF {snapshot}")  # noqa: S608  # a number
    # Without the filter, Spark reads none of its columns, and can count rows without reading any.
    if has_files_with(java, _undelivered(jvm)):
        rows = rows.where(DELIVERED)
    seam = table_seam(Progress.read(stored_progress(java)), said)
    if seam is None:
        return TableRows(rows.where(seam_condition(said, _pick_end)), said)
    return TableRows(rows, seam)


def _load(spark: SparkSession, path: str) -> Any:
    """Iceberg's table. It is loaded once, by a call of Spark: only such calls open a catalog with the settings of this
    session.
    """
    relation: Any = spark.table(path)._jdf.queryExecution().analyzed().collectLeaves().head()  # noqa: SLF001  # as above
    java = relation.table().table()
    # The catalog of a session may remember an older state.
    java.refresh()
    return java


def _schema_of(jvm: Any, java: Any, snapshot: int) -> StructType:
    """The columns of a snapshot, as Spark has them."""
    found = jvm.org.apache.iceberg.util.SnapshotUtil.schemaFor(java, snapshot)
    return StructType.fromJson(json.loads(jvm.org.apache.iceberg.spark.SparkSchemaUtil.convert(found).json()))


def table_seam(progress: Progress, said: Seam) -> Seam | None:
    """The seam of a state of a table with this progress; None if an older version stored the progress, which does not
    name its timelines. Raises `BadRead`.
    """
    if not progress.timelines.keys() >= {topic for topic, _ in progress.following}:
        return None
    ends: dict[int, dict[int, int]] = {}
    for (topic, partition), following in progress.following.items():
        ends.setdefault(partition, {})[progress.timelines[topic]] = following
    seam = {}
    for partition in said.keys() | ends.keys():
        known, there = said.get(partition, {}), ends.get(partition, {})
        # The table contains all older timelines that the source does not mention.
        orders = {*known, *(order for order in there if order > max(known, default=0))}
        seam[partition] = {order: there.get(order, 0) for order in orders}
        if any(seam[partition][order] < following for order, following in known.items()):
            raise BadRead("The table has fewer events than a job has put into the table of this event type.")
    return seam


def _undelivered(jvm: Any) -> Any:
    """Iceberg's condition for the rows that streams do not deliver."""
    expressions = jvm.org.apache.iceberg.expressions.Expressions
    is_tombstone, is_directed = expressions.equal("nakadi_tombstone", True), expressions.notNull("nakadi_directed_to")
    return getattr(expressions, "or")(is_tombstone, is_directed)


def _pick_end(ends: str) -> str:
    return f"get(array({ends}), nakadi_partition)"


def _plain_files(spark: SparkSession, java: Any, times: TimeRange) -> Sequence[str]:
    """The files with the rows of a time, if Spark reads the same from them as Iceberg; else none.

    It does so if no row is merely marked as deleted, no column was renamed, dropped or given another type, and Spark
    reaches the files without settings of the catalog.
    """
    jvm: Any = spark._jvm  # noqa: SLF001  # the only way to Iceberg's own interface
    if int(java.currentSnapshot().summary().get("total-data-files") or MAX_FILES + 1) > MAX_FILES:
        return ()
    if not (_is_reached(spark, java) and _has_only_grown(java, jvm)):
        return ()
    files = plan_files(java, jvm, times)
    return [file.path for file in files] if all(file.is_plain for file in files) else ()


def _is_reached(spark: SparkSession, java: Any) -> bool:
    jvm: Any = spark._jvm  # noqa: SLF001  # the only way to Hadoop's file systems
    try:
        if any(name.startswith(("s3.", "client.")) for name in java_elements(java.io().properties().keySet())):
            return False
        configuration = spark._jsc.hadoopConfiguration()  # noqa: SLF001  # as above
        jvm.org.apache.hadoop.fs.Path(java.location()).getFileSystem(configuration)
    except Py4JJavaError:
        return False
    return True


def _has_only_grown(java: Any, jvm: Any) -> bool:
    """Whether the columns of all earlier schemas are still there, with the names and types that they had."""
    to_json = jvm.org.apache.iceberg.SchemaParser.toJson
    current = {*_fields(json.loads(to_json(java.schema())), "")}
    schemas = java.schemas()
    return all(
        current.issuperset(_fields(json.loads(to_json(schemas[number])), ""))
        for number in java_elements(schemas.keySet())
    )


def _fields(kind: Any, path: str) -> Iterator[tuple[str, str]]:
    """The path, with Iceberg's numbers, and the type of each column and each member."""
    match kind:
        case {"type": "struct", "fields": fields}:
            for field in fields:
                yield from _fields(field["type"], f"{path}.{field['name']}:{field['id']}")
        case {"type": "list", "element-id": number, "element": element}:
            yield from _fields(element, f"{path}[{number}]")
        case {"type": "map", "key-id": key, "value-id": number, "key": key_kind, "value": value}:
            yield from _fields(key_kind, f"{path}{{{key}}}")
            yield from _fields(value, f"{path}[{number}]")
        case _:
            yield path, str(kind)

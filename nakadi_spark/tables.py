"""Reads the current state of the table of an event type, and up to which offsets this state has the events.

Iceberg's own reader takes columns with objects or lists row by row, and took 1.7 to 2.9 times as long as Spark's reader
of Parquet. So Spark reads the Parquet files directly if it finds the same rows there: `_plain_files` says when.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from nakadi_jobs.archive_ranges import Progress
from nakadi_jobs.data_files import TimeRange, has_files_with, java_elements, plan_files
from nakadi_jobs.tables import stored_progress
from nakadi_spark.errors import BadRead
from nakadi_sql.sources import Seam, seam_condition

DELIVERED = "NOT coalesce(nakadi_tombstone, false) AND nakadi_directed_to IS NULL"
"""The SQL condition for rows whose events streams of the event type deliver."""

MAX_FILES = 2000
"""Tables with more files than this are read by Iceberg's reader, because listing takes a millisecond for each file."""

BEFORE_ALL, AFTER_ALL = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)


class TableRows(Struct, frozen=True):
    """The rows to read from a table, perhaps with some of other times, and the `Seam` between table and log."""

    rows: DataFrame
    seam: Seam


def open_table(
    spark: SparkSession, path: str, said: Seam, since: datetime | None = None, until: datetime | None = None
) -> TableRows:
    """The rows of a table whose events streams deliver, at least those from `since` until `until`. Raises `BadRead`.

    `said` is the `Seam` that the source reported earlier; by now, the table may have more events.
    """
    jvm: Any = spark._jvm  # noqa: SLF001  # the only way to Iceberg's own interface
    java = _load(spark, path)
    snapshot = java.currentSnapshot().snapshotId()
    if files := _plain_files(spark, java, TimeRange("nakadi_time", since or BEFORE_ALL, until or AFTER_ALL)):
        rows = spark.read.schema(_schema_of(jvm, java, snapshot)).parquet(*files)
    else:
        rows = spark.sql(f"SELECT * FROM {path} VERSION AS OF {snapshot}")  # noqa: S608  # a number
    # Without this filter, Spark need not read the columns of the condition, and can count rows without reading any.
    if has_files_with(java, _undelivered(jvm)):
        rows = rows.where(DELIVERED)
    seam = table_seam(Progress.read(stored_progress(java)), said)
    if seam is None:
        return TableRows(rows.where(seam_condition(said, _pick_end)), said)
    return TableRows(rows, seam)


def _load(spark: SparkSession, path: str) -> Any:
    """Load Iceberg's object for the table through Spark, because only Spark opens a catalog with the settings of this
    session. Raises `BadRead` if the session has no such table.
    """
    try:
        table: Any = spark.table(path)
    except AnalysisException as error:
        raise BadRead(
            f"The Spark session has no table {path}: `tables` names a catalog of the session and a database. {error}"
        ) from error
    java = table._jdf.queryExecution().analyzed().collectLeaves().head().table().table()  # noqa: SLF001  # as above
    # The catalog of a session may remember an older state.
    java.refresh()
    return java


def _schema_of(jvm: Any, java: Any, snapshot: int) -> StructType:
    """The columns of a snapshot, as a schema of Spark."""
    found = jvm.org.apache.iceberg.util.SnapshotUtil.schemaFor(java, snapshot)
    return StructType.fromJson(json.loads(jvm.org.apache.iceberg.spark.SparkSchemaUtil.convert(found).json()))


def table_seam(progress: Progress, said: Seam) -> Seam | None:
    """The `Seam` of a table with this stored progress. Returns None if an older version stored the progress, without
    the timelines of its topics. Raises `BadRead` if the table has fewer events than `said`.
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
    """The condition, for Iceberg, for rows whose events streams do not deliver."""
    expressions = jvm.org.apache.iceberg.expressions.Expressions
    is_tombstone, is_directed = expressions.equal("nakadi_tombstone", True), expressions.notNull("nakadi_directed_to")
    return getattr(expressions, "or")(is_tombstone, is_directed)


def _pick_end(ends: str) -> str:
    return f"get(array({ends}), nakadi_partition)"


def _plain_files(spark: SparkSession, java: Any, times: TimeRange) -> Sequence[str]:
    """The files with the rows of a time, if Spark's own reader finds the same rows in them as Iceberg's; else none.

    The two find the same if no row is merely marked as deleted, no column was renamed, dropped or given another type,
    and Spark reaches the files without settings of the catalog. There are also none if the table has too many files.
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
    """Each column and each member within it, as a path that contains Iceberg's field numbers, with its type."""
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

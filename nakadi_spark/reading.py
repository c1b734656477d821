"""Reads events as a DataFrame: Spark itself reads the rows of tables, and tasks read newer events from the log.

`read` chooses the current state of the table, which says up to which offsets it has the events, and takes all later
events from the log. So no event is missing or read twice, even if jobs write to the table meanwhile. `read` also fixes
which events to read: each action on the DataFrame has the same events, as long as the broker keeps them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from functools import partial, reduce
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from nakadi_jobs.columns import Struct as Columns
from nakadi_jobs.columns import derive_columns
from nakadi_jobs.transform import frame_columns
from nakadi_spark.errors import BadRead
from nakadi_spark.shares import Wanted, as_utc, choose_names, column_names, read_log, row_tuples
from nakadi_spark.sources import Broker, OpenSource, Source
from nakadi_spark.tables import open_table
from nakadi_sql.http_source import LogRange
from nakadi_sql.sources import EventTypeInfo

EVENT_TYPE = "nakadi_event_type"
"""The column with the name of the event type, if there may be several."""

PATTERN = frozenset("*?[")

_Times = tuple[datetime | None, datetime | None]
"""The wanted time of storing: from the first, to before the second; None is no limit."""


def read(
    spark: SparkSession,
    source: str | Source,
    event_type: str | Sequence[str],
    *,
    from_: datetime | None = None,
    until: datetime | None = None,
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """Read each event that exists now once. Raises `BadRead` and `NakadiError`.

    source      A `Broker`, the `Stores` of one, or just the URL of a broker.
    event_type  A name; a pattern such as `order.*`; or several of them. Unless it is a single name, the first column is
                `nakadi_event_type`, and columns that an event type lacks are null.
    from_       Read only events that were stored at this time or later. A time without a zone is in UTC.
    until       Read only events that were stored before this time.
    columns     The names of the columns to read. Default: all.
    """
    named = Broker(source) if isinstance(source, str) else source
    times = as_utc(from_), as_utc(until)
    with named.open() as opened:
        if isinstance(event_type, str) and not PATTERN & {*event_type}:
            planned = _plan(spark, named, opened, event_type, times)
            return _read_one(spark, opened, planned, times, choose_names(planned.columns, columns, event_type))
        names = _matching_names(opened, [event_type] if isinstance(event_type, str) else event_type)
        return _read_several(
            spark, opened, [_plan(spark, named, opened, name, times) for name in names], times, columns
        )


def _matching_names(source: OpenSource, patterns: Sequence[str]) -> Sequence[str]:
    names = sorted(source.names())
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise BadRead(f"There is no event type {pattern}.")
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


class _Planned(Struct, frozen=True):
    """An event type, the source that has its log, its columns, and the rows to read from its table, if any."""

    source: Source
    event_type: EventTypeInfo
    columns: Columns
    table: DataFrame | None


def _plan(spark: SparkSession, source: Source, opened: OpenSource, name: str, times: _Times) -> _Planned:
    event_type = opened.find(name)
    if event_type is None:
        raise BadRead(f"There is no event type {name}.")
    # Only the broker decides whether the caller may read single events.
    if not (source.tables and event_type.table) or event_type.has_owners:
        event_type = replace(event_type, seam={})
        return _Planned(source, event_type, derive_columns(event_type, event_type.schemas), None)
    table = open_table(spark, f"{source.tables}.`{event_type.table}`", event_type.seam, *times)
    columns = derive_columns(event_type, event_type.schemas, frame_columns(table.rows))
    return _Planned(source, replace(event_type, seam=table.seam), columns, table.rows)


def _read_several(
    spark: SparkSession,
    opened: OpenSource,
    planned: Sequence[_Planned],
    times: _Times,
    chosen: Sequence[str] | None,
) -> DataFrame:
    """The rows of all these event types, with a column for the name of each."""
    known = {name: None for each in planned for name in column_names(each.columns)}
    for name in chosen or ():
        if name not in known:
            raise BadRead(f"None of {', '.join(each.event_type.name for each in planned)} has a column {name}.")
    wanted = [*known] if chosen is None else chosen
    frames = []
    for each in planned:
        there = {*column_names(each.columns)}
        # Rows count even if the event type has none of these columns.
        names = [name for name in wanted if name in there] or ["nakadi_offset"]
        rows = _read_one(spark, opened, each, times, names)
        frames.append(rows.select(F.lit(each.event_type.name).alias(EVENT_TYPE), "*"))
    together = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), frames)
    return together.select(EVENT_TYPE, *(f"`{name}`" for name in wanted))


def _read_one(
    spark: SparkSession,
    opened: OpenSource,
    planned: _Planned,
    times: _Times,
    names: Sequence[str],
) -> DataFrame:
    wanted = Wanted(planned.event_type, planned.columns, names, *times)
    ranges = opened.pin(planned.event_type, opened.plan(planned.event_type, *times))
    if planned.table is None:
        return rows_of_log(spark, planned.source, wanted, ranges)
    in_table = _rows_of_table(planned.table, wanted)
    # Spark takes longer for rows from two sources, even if one of them has none.
    if not ranges and len(in_table.columns) == len(names):
        return in_table
    return rows_of_log(spark, planned.source, wanted, ranges).unionByName(in_table, allowMissingColumns=True)


def rows_of_log(spark: SparkSession, source: Source, wanted: Wanted, ranges: Sequence[LogRange]) -> DataFrame:
    """The rows of ranges of the log. A separate task reads each range."""
    if not ranges:
        return spark.createDataFrame([], wanted.ddl())
    shares = spark.sparkContext.parallelize(ranges, len(ranges))
    return spark.createDataFrame(
        shares.mapPartitions(partial(_read_in_task, source, wanted)), wanted.ddl(), verifySchema=False
    )


def _read_in_task(source: Source, wanted: Wanted, ranges: Iterable[LogRange]) -> Iterator[tuple[Any, ...]]:
    return row_tuples(read_log(source, wanted, ranges))


def _rows_of_table(rows: DataFrame, wanted: Wanted) -> DataFrame:
    """The rows of a table in the wanted period, with the wanted columns that the table has."""
    if wanted.since is not None:
        rows = rows.where(F.col("nakadi_time") >= F.lit(wanted.since))
    if wanted.until is not None:
        rows = rows.where(F.col("nakadi_time") < F.lit(wanted.until))
    known = {name.lower() for name in rows.columns}
    return rows.select(*(f"`{name}`" for name in wanted.names if name.lower() in known))

"""Reads events as a DataFrame: the rows of tables by Spark itself, and the rest of the log by tasks.

The order matters, as for queries: first the broker says up to where the tables have the events, and only then they are
read. Rows after that place are taken from the log. So no event is missing, and none is there twice, whatever jobs do
meanwhile. What is read is fixed then: each action on the DataFrame has the same events, as long as they are kept.
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
from nakadi_spark.brokers import Broker
from nakadi_spark.errors import BadRead
from nakadi_spark.shares import Wanted, as_utc, choose_names, column_names, read_log, row_tuples
from nakadi_sql.http_source import HttpSource, LogRange
from nakadi_sql.sources import EventTypeInfo, seam_condition

EVENT_TYPE = "nakadi_event_type"
"""The column with the name of the event type, if there may be several."""

PATTERN = frozenset("*?[")

_Times = tuple[datetime | None, datetime | None]
"""Two times between which events were stored."""


def read(
    spark: SparkSession,
    source: str | Broker,
    event_type: str | Sequence[str],
    *,
    from_: datetime | None = None,
    until: datetime | None = None,
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """Read the events that there are now, each of them once. Raises `BadRead` and `NakadiError`.

    source      A broker, or just its URL.
    event_type  A name; a pattern such as `order.*`; or several of them. Unless it is a single name, the first column is
                `nakadi_event_type`, and columns that an event type lacks are null.
    from_       Only events stored then or later. A time without a zone is in UTC.
    until       Only events stored before.
    columns     The names of columns to read; all without it. Others are not looked at.
    """
    broker = Broker(source) if isinstance(source, str) else source
    times = as_utc(from_), as_utc(until)
    with broker.open() as opened:
        if isinstance(event_type, str) and not PATTERN & {*event_type}:
            planned = _plan(spark, broker, opened, event_type)
            return _read_one(spark, opened, planned, times, choose_names(planned.columns, columns, event_type))
        names = _matching_names(opened, [event_type] if isinstance(event_type, str) else event_type)
        return _read_several(spark, opened, [_plan(spark, broker, opened, name) for name in names], times, columns)


def _matching_names(source: HttpSource, patterns: Sequence[str]) -> Sequence[str]:
    names = sorted(source.names())
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise BadRead(f"There is no event type {pattern}.")
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


class _Planned(Struct, frozen=True):
    """An event type, the broker that has its log, and its columns and its table, if that is read."""

    broker: Broker
    event_type: EventTypeInfo
    columns: Columns
    table: DataFrame | None


def _plan(spark: SparkSession, broker: Broker, source: HttpSource, name: str) -> _Planned:
    event_type = source.find(name)
    if event_type is None:
        raise BadRead(f"There is no event type {name}.")
    table = None
    # Whether somebody may read single events, only the broker decides.
    if broker.tables and event_type.table and not event_type.has_owners:
        table = spark.table(f"{broker.tables}.`{event_type.table}`")
    else:
        event_type = replace(event_type, table="", seam={})
    existing = None if table is None else frame_columns(table)
    return _Planned(broker, event_type, derive_columns(event_type, event_type.schemas, existing), table)


def _read_several(
    spark: SparkSession,
    source: HttpSource,
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
        rows = _read_one(spark, source, each, times, [name for name in wanted if name in there])
        frames.append(rows.select(F.lit(each.event_type.name).alias(EVENT_TYPE), "*"))
    together = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), frames)
    return together.select(EVENT_TYPE, *(f"`{name}`" for name in wanted))


def _read_one(
    spark: SparkSession,
    source: HttpSource,
    planned: _Planned,
    times: _Times,
    names: Sequence[str],
) -> DataFrame:
    wanted = Wanted(planned.event_type, planned.columns, names, *times)
    ranges = source.pin(planned.event_type, source.plan(planned.event_type, *times))
    rows = _rows_of_log(spark, planned.broker, wanted, ranges)
    if planned.table is None:
        return rows
    return rows.unionByName(_rows_of_table(planned.table, wanted), allowMissingColumns=True)


def _rows_of_log(spark: SparkSession, broker: Broker, wanted: Wanted, ranges: Sequence[LogRange]) -> DataFrame:
    """The rows of ranges of the log, each read by a task of its own."""
    if not ranges:
        return spark.createDataFrame([], wanted.ddl())
    shares = spark.sparkContext.parallelize(ranges, len(ranges))
    return spark.createDataFrame(
        shares.mapPartitions(partial(_read_in_task, broker, wanted)), wanted.ddl(), verifySchema=False
    )


def _read_in_task(broker: Broker, wanted: Wanted, ranges: Iterable[LogRange]) -> Iterator[tuple[Any, ...]]:
    return row_tuples(read_log(broker, wanted, ranges))


def _rows_of_table(table: DataFrame, wanted: Wanted) -> DataFrame:
    """The rows of a table up to the seam, with those of the wanted columns that it has."""
    rows = table.where("NOT coalesce(nakadi_tombstone, false) AND nakadi_directed_to IS NULL")
    rows = rows.where(seam_condition(wanted.event_type.seam, _pick_end))
    if wanted.since is not None:
        rows = rows.where(F.col("nakadi_time") >= F.lit(wanted.since))
    if wanted.until is not None:
        rows = rows.where(F.col("nakadi_time") < F.lit(wanted.until))
    known = {name.lower() for name in table.columns}
    return rows.select(*(f"`{name}`" for name in wanted.names if name.lower() in known))


def _pick_end(ends: str) -> str:
    return f"get(array({ends}), nakadi_partition)"

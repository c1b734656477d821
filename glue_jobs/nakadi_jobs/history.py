"""The table of measurements, window by window."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from io import BytesIO
from operator import itemgetter
from typing import Any

import pyarrow as pa
from msgspec import Struct
from pyarrow import parquet
from pyspark.sql import SparkSession

from nakadi.model.event_type import EventType
from nakadi_jobs.data_files import FieldIds, FileContents, TimeRange
from nakadi_jobs.measuring import Advice, Traffic, window_start
from nakadi_jobs.tables import DAY, ChangedMeanwhile, Table

TABLE_NAME = "nakadi__statistics"
"""No event type's table has two adjacent underscores."""

ATTEMPTS = 5

SMALLEST_TIME = timedelta(microseconds=1)

END_OF_TIME = datetime(9999, 1, 1, tzinfo=UTC)

ARROW_TYPES = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}

Row = Mapping[str, Any]
"""A measurement as a row of the table."""

_ORDER = itemgetter("event_type", "window_start")

COLUMNS = (
    ("event_type", "string", "the name of the event type"),
    ("event_type_id", "string", "its id, which is new when a name is used again"),
    ("window_start", "timestamp", "when the window began"),
    ("window_minutes", "int", "how long windows are"),
    ("measured_minutes", "double", "how much of this window had passed"),
    ("events", "bigint", "events in the window"),
    ("bytes", "bigint", "their bytes, metadata included"),
    ("size_mean", "double", "bytes of an event on average"),
    ("size_p50", "bigint", "half of the events have at most so many bytes, within one percent"),
    ("size_p95", "bigint", "95 percent have at most so many"),
    ("size_max", "bigint", "the greatest event"),
    ("per_minute_mean", "double", "events a minute"),
    ("per_minute_peak", "bigint", "the most in one minute"),
    ("publishers", "int", "distinct publishing applications"),
    ("consumers", "int", "distinct subscribed applications and groups"),
    ("partitions", "int", "partitions there are"),
    ("partition_skew", "double", "events of the fullest partition, in even shares"),
    ("recommended_partitions", "int", "partitions that the whole period asks for"),
    ("partition_error", "int", "partitions too many; too few, if negative"),
    ("measured_at", "timestamp", "when this was measured"),
)


class Measurement(Struct, frozen=True):
    """A window of an event type."""

    event_type: EventType
    traffic: Traffic
    consumers: int
    advice: Advice


def history_table(spark: SparkSession, database: str) -> Table:
    table = Table(spark, database, TABLE_NAME)
    if not table.exists():
        table.create(COLUMNS, {}, "PARTITIONED BY (days(window_start))")
        table.set_order("event_type", "window_start")
    return table


def record(
    table: Table,
    measurements: Sequence[Measurement],
    length: timedelta,
    since: datetime,
    until: datetime,
    now: datetime,
) -> None:
    """Replace earlier measurements of the same windows. This rewrites the days of these windows."""
    if not measurements:
        return
    names = [name for name, _, _ in COLUMNS]
    new = [dict(zip(names, _make_row(each, length, now), strict=True)) for each in measurements]
    ids, minutes = {each.event_type.id for each in measurements}, round(_minutes(length))

    def is_replaced(row: Row) -> bool:
        return row["event_type_id"] in ids and row["window_minutes"] == minutes and since <= row["window_start"] < until

    def replace_windows(fields: FieldIds, contents: FileContents) -> Mapping[str, bytes]:
        by_day: defaultdict[datetime, list[Row]] = defaultdict(list)
        for row in (*(row for row in _read_rows(contents) if not is_replaced(row)), *new):
            by_day[window_start(row["window_start"], DAY)].append(row)
        return {f"window_start_day={day:%Y-%m-%d}": _write_rows(rows, fields) for day, rows in by_day.items()}

    days = TimeRange("window_start", window_start(since, DAY), window_start(until - SMALLEST_TIME, DAY) + DAY)
    for _ in range(ATTEMPTS):
        try:
            table.rewrite(days, replace_windows)
        except ChangedMeanwhile:
            continue
        return
    raise ChangedMeanwhile(f"table {table.name}: changed by other runs during {ATTEMPTS} attempts")


def rows_since(table: Table, since: datetime) -> Sequence[Row]:
    """Return the measurements since a moment, by event type and time."""
    found = _read_rows(table.contents(TimeRange("window_start", since, END_OF_TIME)))
    return sorted((row for row in found if row["window_start"] >= since), key=_ORDER)


def _read_rows(contents: FileContents) -> Iterator[Row]:
    for content in contents:
        yield from parquet.read_table(BytesIO(content)).to_pylist()


def _write_rows(rows: Iterable[Row], fields: FieldIds) -> bytes:
    """Write rows as Parquet, with the table's own column numbers."""
    schema = pa.schema(
        pa.field(name, ARROW_TYPES[kind], metadata={"PARQUET:field_id": str(fields[name])}) for name, kind, _ in COLUMNS
    )
    content = BytesIO()
    written = pa.Table.from_pylist(sorted(rows, key=_ORDER), schema)
    parquet.write_table(written, content, compression="zstd", store_schema=False)
    return content.getvalue()


def _make_row(measured: Measurement, length: timedelta, now: datetime) -> tuple[object, ...]:
    window, recommended = measured.traffic, measured.advice
    return (
        measured.event_type.name,
        measured.event_type.id,
        window.since,
        round(_minutes(length)),
        _minutes(window.until - window.since),
        window.events,
        window.bytes,
        window.size_mean,
        window.size_p50,
        window.size_p95,
        window.size_max,
        window.per_minute_mean,
        window.per_minute_peak,
        window.publishers,
        measured.consumers,
        recommended.partitions,
        window.partition_skew,
        recommended.recommended,
        recommended.error,
        now,
    )


def _minutes(length: timedelta) -> float:
    return length / timedelta(minutes=1)

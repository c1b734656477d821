"""The table of measurements, window by window."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec import Struct
from pyspark.sql import SparkSession

from nakadi.model.event_type import EventType
from nakadi_jobs.measuring import Advice, Traffic
from nakadi_jobs.small_tables import Row, SmallTable

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

MEASUREMENTS = SmallTable(
    # No event type's table has two adjacent underscores.
    name="nakadi__statistics",
    columns=COLUMNS,
    time="window_start",
    order=("event_type", "window_start"),
)


class Measurement(Struct, frozen=True):
    """The measurements of an event type in one window."""

    event_type: EventType
    traffic: Traffic
    consumers: int
    advice: Advice


def record_measurements(
    spark: SparkSession,
    database: str,
    measurements: Sequence[Measurement],
    length: timedelta,
    between: tuple[datetime, datetime],
    now: datetime,
) -> None:
    """Replace earlier measurements of the same windows."""
    if not measurements:
        return
    names = [name for name, _, _ in COLUMNS]
    new = [dict(zip(names, _make_row(each, length, now), strict=True)) for each in measurements]
    ids, minutes = {each.event_type.id for each in measurements}, round(_minutes(length))
    since, until = between

    def is_replaced(row: Row) -> bool:
        return row["event_type_id"] in ids and row["window_minutes"] == minutes and since <= row["window_start"] < until

    MEASUREMENTS.replace(spark, database, new, between, is_replaced)


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

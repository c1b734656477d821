"""The table of what was measured, window by window."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from msgspec import Struct
from pyspark.sql import Row, SparkSession

from nakadi.model.event_type import EventType
from nakadi_jobs.measuring import Advice, Traffic, begun
from nakadi_jobs.session import rows_of_values
from nakadi_jobs.tables import DAY, ChangedMeanwhile, Table

NAME = "nakadi__statistics"
"""No event type's table has two underscores together."""

ATTEMPTS = 5

MOMENT = timedelta(microseconds=1)

COLUMNS = (
    ("event_type", "string", "the name of the event type"),
    ("event_type_id", "string", "its id, which is new when a name is used again"),
    ("window_start", "timestamp", "when the window began"),
    ("window_minutes", "int", "how long windows are"),
    ("measured_minutes", "double", "how much of this one was over"),
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
    table = Table(spark, database, NAME)
    if not table.exists():
        table.create(COLUMNS, {}, "PARTITIONED BY (days(window_start))")
        table.ordered_by("event_type", "window_start")
    return table


def record(
    table: Table,
    measurements: Sequence[Measurement],
    length: timedelta,
    since: datetime,
    until: datetime,
    now: datetime,
) -> None:
    """Replace earlier measurements of the same windows by these: the days of the windows are written anew."""
    if not measurements:
        return
    kinds = ", ".join(f"{name} {kind}" for name, kind, _ in COLUMNS)
    rows = rows_of_values(table.spark, (_row(each, length, now) for each in measurements), kinds)
    again = _again({each.event_type.id for each in measurements}, length, since, until)
    first, last = begun(since, DAY), begun(until - MOMENT, DAY) + DAY
    for _ in range(ATTEMPTS):
        try:
            table.rewrite(
                _between(first, last),
                lambda there: (
                    there.where(f"not ({again})")
                    .unionByName(rows)
                    .coalesce(1)
                    .sortWithinPartitions("event_type", "window_start")
                ),
            )
        except ChangedMeanwhile:
            continue
        return
    raise ChangedMeanwhile(f"table {table.name}: changed by other runs during {ATTEMPTS} attempts")


def rows_since(table: Table, since: datetime) -> Sequence[Row]:
    """Return the measurements since a moment, by event type and time."""
    later = table.rows().where(f"window_start >= TIMESTAMP '{since:%Y-%m-%d %H:%M:%S}'")
    return later.orderBy("event_type", "window_start").collect()


def _again(ids: Collection[str], length: timedelta, since: datetime, until: datetime) -> str:
    """The condition that says which rows are measured anew."""
    listed = ", ".join(f"'{each}'" for each in sorted(ids))
    minutes = f"{_minutes(length):.0f}"
    return f"event_type_id IN ({listed}) AND window_minutes = {minutes} AND {_between(since, until)}"


def _between(since: datetime, until: datetime) -> str:
    first, last = (f"TIMESTAMP '{moment:%Y-%m-%d %H:%M:%S}'" for moment in (since, until))
    return f"window_start >= {first} AND window_start < {last}"


def _row(measured: Measurement, length: timedelta, now: datetime) -> tuple[object, ...]:
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

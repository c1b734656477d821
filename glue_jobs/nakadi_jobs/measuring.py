"""Counts traffic in lines of the archive, and derives measurements from the counts."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce

from msgspec import Struct
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from nakadi.event_types.rules import partition_count
from nakadi.model.event_type import Statistics
from nakadi_jobs.transform import SIZE

STEPS = 100
"""Sizes are counted in steps of one percent, so percentiles are exact to one percent."""


BY_STEP, BY_MINUTE, BY_PARTITION, BY_PUBLISHER = "step", "minute", "partition", "publisher"


class Count(Struct, frozen=True, array_like=True):
    """Counts the events of one window that share a size step, a minute, a partition, or a publisher.

    Each event of a window is in four of these, one of each kind. No measurement needs counts by two kinds at once,
    which would be as numerous as the events. For a publisher, `what` is its `publisher_digest`.
    """

    window: datetime
    by: str
    what: str | None
    events: int
    bytes: int
    largest: int

    def merge_with(self, other: Count) -> Count:
        """Add events of the same window and kind."""
        both = (self.events + other.events, self.bytes + other.bytes, max(self.largest, other.largest))
        return Count(self.window, self.by, self.what, *both)


class Traffic(Struct, frozen=True, kw_only=True):
    """The traffic of an event type between two moments. A skew of 1 means that all partitions had the same traffic."""

    since: datetime
    until: datetime
    events: int
    bytes: int
    size_mean: float
    size_p50: int
    size_p95: int
    size_max: int
    per_minute_mean: float
    per_minute_peak: int
    publishers: int
    partition_skew: float


class Advice(Struct, frozen=True, kw_only=True):
    """How many partitions there are, how many the traffic needs, and the difference."""

    partitions: int
    recommended: int

    @property
    def error(self) -> int:
        return self.partitions - self.recommended


def size_step(size: int) -> int:
    return math.floor(math.log(max(size, 1)) * STEPS)


def traffic_of_period(counts: Sequence[Count], since: datetime, until: datetime, partitions: int) -> Traffic:
    """The traffic of a period, possibly none. `counts` are the counts of its windows."""
    by_step = [each for each in counts if each.by == BY_STEP]
    events = sum(each.events for each in by_step)
    size = sum(each.bytes for each in by_step)
    minutes = (until - since) / timedelta(minutes=1)
    largest = max((each.largest for each in by_step), default=0)
    sizes: Counter[int] = Counter()
    for each in by_step:
        sizes[int(each.what or 0)] += each.events
    return Traffic(
        since=since,
        until=until,
        events=events,
        bytes=size,
        size_mean=size / events if events else 0.0,
        size_p50=min(largest, percentile(sizes, 0.5)),
        size_p95=min(largest, percentile(sizes, 0.95)),
        size_max=largest,
        per_minute_mean=events / minutes if minutes else 0.0,
        per_minute_peak=max(_sum_by(counts, BY_MINUTE).values(), default=0),
        publishers=len(_sum_by(counts, BY_PUBLISHER).keys() - {None}),
        partition_skew=_skew(_sum_by(counts, BY_PARTITION), partitions),
    )


def first_minute(counts: Iterable[Count]) -> datetime:
    """The minute in which the first counted event was stored."""
    return datetime.fromtimestamp(60 * min(int(each.what or 0) for each in counts if each.by == BY_MINUTE), UTC)


def percentile(sizes: Mapping[int, int], part: float) -> int:
    """The size that this fraction of the events does not exceed, from counts by size step."""
    left = part * sum(sizes.values())
    for step in sorted(sizes):
        left -= sizes[step]
        if left <= 0:
            return round(math.exp((step + 0.5) / STEPS))
    return 0


def default_statistic(measured: Traffic, consumers: int) -> Statistics:
    """The traffic as a default statistic of an event type."""
    return Statistics(
        messages_per_minute=round(measured.per_minute_mean),
        message_size=round(measured.size_mean),
        read_parallelism=consumers,
        write_parallelism=measured.publishers,
    )


def advise_partition_count(measured: Statistics, partitions: int, most: int) -> Advice:
    """The number of partitions that a new event type with this statistic would get."""
    recommended = max(1, partition_count(measured, default=partitions, maximum=most))
    return Advice(partitions=partitions, recommended=recommended)


def split_into_windows(since: datetime, until: datetime, length: timedelta) -> Sequence[tuple[datetime, datetime]]:
    """The windows of a period; the last one may end early."""
    found = []
    while since < until:
        found.append((since, min(since + length, until)))
        since += length
    return found


def window_start(moment: datetime, length: timedelta) -> datetime:
    """The beginning of a moment's window. Windows begin with the day."""
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight + (moment - midnight) // length * length


def _skew(by_partition: Mapping[str | None, int], partitions: int) -> float:
    events = sum(by_partition.values())
    return max(by_partition.values()) * max(partitions, 1) / events if events else 1.0


def _sum_by(counts: Iterable[Count], by: str) -> Counter[str | None]:
    found: Counter[str | None] = Counter()
    for each in counts:
        if each.by == by:
            found[each.what] += each.events
    return found


PUBLISHER = '"published_by":"'

_FIRST_MINUTE = 'substring(substring_index(head, \'"time":"\', -1), 1, 16)'

_AT_ONCE = f"nullif(substring_index(substring_index(value, '{PUBLISHER}', -1), '\"', 1), '{{')"
"""SQL for the publisher: the text after the name of its member, wherever that name is in the line. Parsing the whole
event takes many times as long."""

_ONLY_ONCE = f"locate('{PUBLISHER}', value, locate('{PUBLISHER}', value) + 1) = 0"
"""SQL for whether the name of that member occurs only once in the line, and not in the payload too."""

_IN_LINE = f"if({_ONLY_ONCE}, {_AT_ONCE}, get_json_object(value, '$.event.metadata.published_by'))"

_IN_TABLE = "if(nakadi_publisher is null and nakadi_size > 0, '', nakadi_publisher)"

COUNTED_COLUMNS = ("type", "minute", "partition", "publisher", "size")


def events_in_lines(lines: DataFrame, since: datetime, until: datetime) -> DataFrame:
    """The events of a period, from lines with known places. `stamped` says whether the broker names publishers."""
    minute = F.expr(_FIRST_MINUTE)
    timely = lines.where((minute >= _format_minute(since)) & (minute < _format_minute(until)))
    return timely.select(
        "type",
        (F.unix_timestamp(minute, "yyyy-MM-dd'T'HH:mm") / 60).cast("long").alias("minute"),
        "partition",
        F.expr(f"if(stamped, {_IN_LINE}, null)").alias("publisher"),
        F.expr(SIZE).cast("int").alias("size"),
    )


def events_in_table(rows: DataFrame, event_type: str, since: datetime, until: datetime, *, stamped: bool) -> DataFrame:
    """The events of a period, from an event type's table. This reads no structures, because Iceberg would then read row
    by row.
    """
    timely = rows.where((F.col("nakadi_time") >= F.lit(since)) & (F.col("nakadi_time") < F.lit(until)))
    return timely.select(
        # A string, because Spark does not write strings into the code that it compiles, so the code is the same for all
        # tables.
        F.lit(event_type).alias("type"),
        F.expr("unix_micros(nakadi_time) div 60000000").alias("minute"),
        F.col("nakadi_partition").alias("partition"),
        F.expr(_IN_TABLE if stamped else "cast(null as string)").alias("publisher"),
        F.col("nakadi_size").alias("size"),
    )


def count_events(sources: Sequence[DataFrame], window: timedelta) -> DataFrame:
    """Count events by type and window."""
    size = F.when(F.col("size").isNotNull(), F.greatest(F.col("size"), F.lit(1)))
    kinds = (BY_STEP, BY_MINUTE, BY_PARTITION, BY_PUBLISHER)
    minutes = window // timedelta(minutes=1)
    each = F.explode(
        F.array(*(F.struct(F.lit(kind).alias("by"), F.col(kind).cast("string").alias("what")) for kind in kinds))
    )
    return (
        reduce(DataFrame.unionAll, (source.select(*COUNTED_COLUMNS) for source in sources))
        .withColumn("step", F.floor(F.log(size) * STEPS).cast("int"))
        .groupBy("type", "minute", "partition", "publisher", "step")
        .agg(F.count("*").alias("events"), F.sum("size").alias("bytes"), F.max("size").alias("largest"))
        .select("type", F.expr(f"minute - minute % {minutes}").alias("window"), "events", "bytes", "largest", each)
        .select("type", "window", "events", "bytes", "largest", "col.by", "col.what")
        .groupBy("type", "window", "by", "what")
        .agg(F.sum("events").alias("events"), F.sum("bytes").alias("bytes"), F.max("largest").alias("largest"))
    )


def lacks_measurements(count: Count) -> bool:
    """Whether rows lack sizes or publishers, as rows of earlier versions do."""
    return (count.by == BY_STEP and count.what is None) or (count.by == BY_PUBLISHER and count.what == "")


def read_count(row: Row) -> Count:
    window = datetime.fromtimestamp(60 * row["window"], UTC)
    what = publisher_digest(row["what"]) if row["by"] == BY_PUBLISHER else row["what"]
    return Count(window, row["by"], what, row["events"], row["bytes"] or 0, row["largest"] or 0)


def publisher_digest(publisher: str | None) -> str | None:
    """A digest that distinguishes publishers, whose names are not stored, because they may have to be erased. An
    unknown publisher stays as it is.
    """
    return hashlib.sha256(publisher.encode()).hexdigest()[:16] if publisher else publisher


def _format_minute(moment: datetime) -> str:
    """A minute as lines write it."""
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M}"

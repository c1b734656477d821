"""Traffic, counted from lines of the archive, and the measures made of the counts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from msgspec import Struct
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from nakadi.event_types.rules import partition_count
from nakadi.model.event_type import Statistics
from nakadi_jobs.transform import SIZE

What = TypeVar("What")

STEPS = 100
"""Sizes are counted in steps of a hundredth: percentiles are within one percent."""


class Counts(Struct, frozen=True):
    """Events of one kind: the same minute, partition, publisher, and nearly the same size."""

    minute: datetime
    partition: int
    publisher: str | None
    step: int
    events: int
    bytes: int
    largest: int


class Traffic(Struct, frozen=True, kw_only=True):
    """What an event type carried between two moments. A skew of 1 means that all partitions carried the same."""

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
    """How many partitions there are, how many the traffic asks for, and by how many that is wrong."""

    partitions: int
    recommended: int

    @property
    def error(self) -> int:
        return self.partitions - self.recommended


def step_of(size: int) -> int:
    return math.floor(math.log(max(size, 1)) * STEPS)


def traffic(counts: Sequence[Counts], since: datetime, until: datetime, partitions: int) -> Traffic:
    """The traffic of a time, which may have been none."""
    events = sum(each.events for each in counts)
    size = sum(each.bytes for each in counts)
    minutes = (until - since) / timedelta(minutes=1)
    largest = max((each.largest for each in counts), default=0)
    sizes = _summed((each.step, each.events) for each in counts)
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
        per_minute_peak=max(_summed((each.minute, each.events) for each in counts).values(), default=0),
        publishers=len({each.publisher for each in counts} - {None}),
        partition_skew=_skew(_summed((each.partition, each.events) for each in counts), partitions),
    )


def percentile(sizes: Mapping[int, int], part: float) -> int:
    """The size that this part of the events does not exceed, from counts by step."""
    left = part * sum(sizes.values())
    for step in sorted(sizes):
        left -= sizes[step]
        if left <= 0:
            return round(math.exp((step + 0.5) / STEPS))
    return 0


def statistic(measured: Traffic, consumers: int) -> Statistics:
    """The traffic in the words in which owners expect it."""
    return Statistics(
        messages_per_minute=round(measured.per_minute_mean),
        message_size=round(measured.size_mean),
        read_parallelism=consumers,
        write_parallelism=measured.publishers,
    )


def advice(measured: Statistics, partitions: int, most: int) -> Advice:
    """As many partitions as an event type would get that is made with this statistic."""
    recommended = max(1, partition_count(measured, default=partitions, maximum=most))
    return Advice(partitions=partitions, recommended=recommended)


def windows(since: datetime, until: datetime, length: timedelta) -> Sequence[tuple[datetime, datetime]]:
    """The windows of a time, the last of which may end early."""
    found = []
    while since < until:
        found.append((since, min(since + length, until)))
        since += length
    return found


def begun(moment: datetime, length: timedelta) -> datetime:
    """When the window of a moment began; windows begin with the day."""
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight + (moment - midnight) // length * length


def _skew(by_partition: Mapping[int, int], partitions: int) -> float:
    events = sum(by_partition.values())
    return max(by_partition.values()) * max(partitions, 1) / events if events else 1.0


def _summed(pairs: Iterable[tuple[What, int]]) -> Counter[What]:
    found: Counter[What] = Counter()
    for what, number in pairs:
        found[what] += number
    return found


# Counting lines. They are not parsed: that takes many times as long ---------------------------------------------------


PUBLISHER = '"published_by":"'

_MINUTE = 'substring(substring_index(head, \'"time":"\', -1), 1, 16)'


def sized(lines: DataFrame) -> DataFrame:
    """The minute and the size of lines whose heads are known."""
    return lines.withColumns({"minute": F.expr(_MINUTE), "size": F.expr(SIZE)})


def of_table(rows: DataFrame) -> DataFrame:
    """The same of rows of an event type's table; minutes are counted since 1970."""
    minute = F.expr("unix_micros(nakadi_time) div 60000000")
    return rows.withColumns({"minute": minute, "size": F.col("nakadi_size"), "partition": F.col("nakadi_partition")})


def between(lines: DataFrame, since: str, until: str) -> DataFrame:
    """Those of some minutes, both written as they are in lines."""
    return lines.where((F.col("minute") >= since) & (F.col("minute") < until))


def counted(lines: DataFrame, publisher: str) -> DataFrame:
    """Events and bytes by minute, partition, size and publisher."""
    size = F.when(F.col("size").isNotNull(), F.greatest(F.col("size"), F.lit(1)))
    step = F.floor(F.log(size) * STEPS).cast("int")
    return (
        lines.select("minute", "partition", "size", F.expr(publisher).alias("publisher"), step.alias("step"))
        .groupBy("minute", "partition", "publisher", "step")
        .agg(F.count("*").alias("events"), F.sum("size").alias("bytes"), F.max("size").alias("largest"))
    )


NO_PUBLISHER = "cast(null as string)"
"""For events that the broker does not stamp."""

PUBLISHER_IN_TABLE = "coalesce(metadata.published_by, get_json_object(nakadi_event, '$.metadata.published_by'))"

PUBLISHER_AT_ONCE = f"nullif(substring_index(substring_index(value, '{PUBLISHER}', -1), '\"', 1), '{{')"
"""What stands behind the name, wherever that stands."""

PUBLISHER_EXACTLY = "get_json_object(value, '$.event.metadata.published_by')"
"""The same where payloads may have such a name too."""


def ambiguous(lines: DataFrame, sample: int = 1000) -> bool:
    """Whether payloads have a name like the one that publishers stand behind."""
    twice = F.substring_index("value", PUBLISHER, 1) != F.expr(
        f"substring(value, 1, length(value) - length(substring_index(value, '{PUBLISHER}', -1)) - {len(PUBLISHER)})"
    )
    return not lines.limit(sample).where(F.col("value").contains(PUBLISHER) & twice).isEmpty()

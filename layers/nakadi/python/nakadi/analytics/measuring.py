"""Measures of traffic from counts. Nothing here knows where the counts come from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from nakadi.event_types.rules import partition_count
from nakadi.model.event_type import Statistics

What = TypeVar("What")

STEPS = 100
"""Sizes are counted in steps of a hundredth: percentiles are within one percent."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Events of one kind: the same minute, partition, publisher, and nearly the same size."""

    minute: datetime
    partition: int
    publisher: str | None
    step: int
    events: int
    bytes: int
    largest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
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

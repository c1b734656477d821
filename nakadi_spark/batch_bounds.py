"""Decides where a batch of a stream ends, so that the first batch of a long log does not have all its events."""

from __future__ import annotations

from collections.abc import Mapping

from nakadi_spark.sources import OpenSource
from nakadi_sql.http_source import BEGIN
from nakadi_sql.sources import EventTypeInfo

Offsets = Mapping[str, str]
"""For each partition, the offset of the last event of a batch."""


def end_of_batch(
    opened: OpenSource, event_type: EventTypeInfo, start: Offsets, end: Offsets, max_events: int | None
) -> Offsets:
    """Where a batch with events after `start` ends: at `end`, or earlier if there are more than `max_events`."""
    if max_events is None:
        return end
    starts = {name: start.get(name, BEGIN) for name in end}
    waiting = opened.count_events(event_type, starts, end)
    shares = divide(waiting, max_events)
    cut = {name: offset for name, offset in starts.items() if shares[name] < waiting[name]}
    return {**end, **opened.shift(event_type, cut, shares)}


def divide(waiting: Mapping[str, int], max_events: int) -> Mapping[str, int]:
    """How many of the waiting events of each partition a batch takes: all, or as large a part of each partition.

    Each partition with events has at least one in the batch, so that none waits for ever. A batch may therefore have
    more than `max_events` if there are more partitions than that.
    """
    total = sum(waiting.values())
    if total <= max_events:
        return waiting
    return {name: min(count, max(1, count * max_events // total)) for name, count in waiting.items()}

"""Objectives: how soon the events of a subscription should be consumed, and how well they are met."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from msgspec import Struct

from nakadi.model.events import microseconds_since_epoch

MAX_OBJECTIVE_SECONDS = 7 * 24 * 3600
MAX_OBJECTIVE_PERCENT = 99.999
"""The greatest percentage: an objective that allows no late events could only be missed, and has no burn rate."""

WINDOWS_IN_MINUTES = SHORT_WINDOW, LONG_WINDOW = 5, 60
"""The windows over which the burn rates of subscriptions are computed."""

_MICROSECONDS_PER_MINUTE = 60_000_000


class Objective(Struct, frozen=True):
    """`percent` of the events should be consumed within `within_seconds` after they were stored.

    Events that were stored before `set_at` do not count.
    """

    percent: float
    within_seconds: int
    set_at: datetime

    def is_met_by(self, age: timedelta) -> bool:
        return age <= timedelta(seconds=self.within_seconds)


class ConsumedBatch(Struct, frozen=True):
    """Events that were sent together and are committed now; `stored_at` is when the first event, the oldest one, was
    stored.
    """

    events: int
    stored_at: datetime


class MinuteCounts(Struct, frozen=True, array_like=True):
    """The events that were consumed in a minute, counted from the epoch: those in time, and the late ones."""

    minute: int
    in_time: int = 0
    late: int = 0

    def __add__(self, other: MinuteCounts) -> MinuteCounts:
        return MinuteCounts(self.minute, self.in_time + other.in_time, self.late + other.late)


class Window(Struct, frozen=True):
    """The events that were consumed in the last `minutes`.

    `burn_rate` is the share of late events, in relation to the share that the objective allows: at 1, the objective is
    just met, and at 10, one hour uses up what ten hours allow.
    """

    minutes: int
    events: int
    late: int
    burn_rate: float


class LagCause(StrEnum):
    """The reason why a partition is behind its objective, as far as the broker can see it."""

    NO_CONSUMER = "no_consumer"
    FAILING_EVENT = "failing_event"
    STALLED_CONSUMER = "stalled_consumer"
    HOT_PARTITION = "hot_partition"
    SLOW_CONSUMER = "slow_consumer"


class SlowestPartition(Struct, frozen=True):
    """The partition whose next event has waited longest. `cause` is None as long as that is within the objective."""

    event_type: str
    partition: str
    lag_seconds: int
    unconsumed_events: int
    cause: LagCause | None = None


def minute_of(moment: datetime) -> int:
    return microseconds_since_epoch(moment) // _MICROSECONDS_PER_MINUTE


def count_batches(objective: Objective, batches: Iterable[ConsumedBatch], now: datetime) -> MinuteCounts:
    """How many of these events are consumed in time, and how many too late."""
    in_time = late = 0
    for each in batches:
        if each.stored_at < objective.set_at:
            continue
        if objective.is_met_by(now - each.stored_at):
            in_time += each.events
        else:
            late += each.events
    return MinuteCounts(minute_of(now), in_time, late)


def merge_counts(counts: Iterable[MinuteCounts], now: datetime, longest: int = LONG_WINDOW) -> tuple[MinuteCounts, ...]:
    """One entry for each minute of the longest window, in order. Counts of earlier minutes are dropped."""
    merged: dict[int, MinuteCounts] = {}
    for each in _within(counts, longest, now):
        merged[each.minute] = merged[each.minute] + each if each.minute in merged else each
    return tuple(merged[minute] for minute in sorted(merged))


def windows_of(
    percent: float, counts: Sequence[MinuteCounts], now: datetime, lengths: Sequence[int] = WINDOWS_IN_MINUTES
) -> Sequence[Window]:
    return [_window(percent, minutes, tuple(_within(counts, minutes, now))) for minutes in lengths]


def lasting_burn_rate(windows: Sequence[Window]) -> float:
    """The lowest burn rate of all windows. A problem raises it only if the problem has lasted for a while and still
    exists.
    """
    return min(each.burn_rate for each in windows)


def pressure_of(lag_seconds: float, within_seconds: int) -> float:
    """The age of the longest waiting event, in relation to what an objective allows."""
    return round(lag_seconds / within_seconds, 3)


def _within(counts: Iterable[MinuteCounts], minutes: int, now: datetime) -> Iterator[MinuteCounts]:
    # Counts of a later minute are included, because the clocks of two processes may differ.
    oldest = minute_of(now) - minutes
    return (each for each in counts if each.minute > oldest)


def _window(percent: float, minutes: int, counts: Sequence[MinuteCounts]) -> Window:
    late = sum(each.late for each in counts)
    events = late + sum(each.in_time for each in counts)
    allowed = 1 - percent / 100
    return Window(minutes, events, late, round(late / events / allowed, 3) if events else 0.0)

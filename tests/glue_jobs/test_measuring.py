from datetime import UTC, datetime, timedelta

import pytest

from nakadi.model.event_type import Statistics
from nakadi_jobs.measuring import (
    BY_MINUTE,
    BY_PARTITION,
    BY_PUBLISHER,
    BY_STEP,
    Count,
    advise_partition_count,
    default_statistic,
    first_minute,
    percentile,
    size_step,
    split_into_windows,
    traffic_of_period,
    window_start,
)

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


def same_counts(events, *, size=100, minute=0, partition=0, publisher="shop"):
    """Counts of the same events by size, minute, partition and publisher."""
    at = str(int(NOON.timestamp()) // 60 + minute)
    kinds = {BY_STEP: str(size_step(size)), BY_MINUTE: at, BY_PARTITION: str(partition), BY_PUBLISHER: publisher}
    return [Count(NOON, by, what, events, events * size, size) for by, what in kinds.items()]


def test_the_mean_and_peak_rates_of_a_period():
    """The mean rate includes every minute of the period; the peak is the rate of the busiest minute."""
    told = traffic_of_period([*same_counts(30), *same_counts(90, minute=3)], NOON, NOON + HOUR, 1)
    assert (told.events, told.per_minute_mean, told.per_minute_peak) == (120, 2.0, 90)
    assert first_minute([*same_counts(90, minute=3), *same_counts(30, minute=1)]) == NOON + timedelta(minutes=1)


def test_sizes():
    """Percentiles are within one percent of the true sizes; the mean and the greatest size are exact."""
    told = traffic_of_period([*same_counts(90, size=100), *same_counts(10, size=1000)], NOON, NOON + HOUR, 1)
    assert told.size_p50 == pytest.approx(100, rel=0.01)
    assert told.size_p95 == pytest.approx(1000, rel=0.01)
    assert (told.size_mean, told.size_max) == (190, 1000)


def test_publishers_are_kept_apart():
    """Every publishing application counts once; events without one do not count."""
    found = [
        *same_counts(1),
        *same_counts(1, minute=1),
        *same_counts(1, publisher="b"),
        *same_counts(1, publisher=None),
    ]
    told = traffic_of_period(found, NOON, NOON, 1)
    assert told.publishers == 2


@pytest.mark.parametrize(("spread", "skew"), [([10, 10], 1.0), ([30, 10], 1.5), ([40], 2.0)])
def test_skew(spread, skew):
    """The skew is the share of the fullest partition as a multiple of an even share; empty partitions count too."""
    found = [each for number, events in enumerate(spread) for each in same_counts(events, partition=number)]
    assert traffic_of_period(found, NOON, NOON + HOUR, 2).partition_skew == skew


def test_no_traffic():
    """A period without events has measurements, too."""
    told = traffic_of_period([], NOON, NOON + HOUR, 3)
    assert (told.events, told.size_mean, told.size_p95, told.per_minute_peak, told.partition_skew) == (0, 0, 0, 0, 1.0)
    assert percentile({}, 0.5) == 0


@pytest.mark.parametrize(
    ("readers", "writers", "partitions", "recommended"),
    [(3, 1, 1, 3), (1, 5, 8, 5), (20, 1, 4, 8), (0, 0, 2, 1)],
)
def test_advice_is_what_a_new_event_type_would_get(readers, writers, partitions, recommended):
    """The recommended number of partitions follows the rule for new event types; the error is the difference from the
    current number.
    """
    measured = Statistics(messages_per_minute=1, message_size=1, read_parallelism=readers, write_parallelism=writers)
    told = advise_partition_count(measured, partitions, 8)
    assert (told.recommended, told.error) == (recommended, partitions - recommended)


def test_the_statistic():
    """The measured figures are reported in the terms of the owner's expectations."""
    told = traffic_of_period(
        [*same_counts(120, size=250), *same_counts(60, size=250, publisher="b")], NOON, NOON + HOUR, 1
    )
    assert default_statistic(told, 4) == Statistics(
        messages_per_minute=3, message_size=250, read_parallelism=4, write_parallelism=2
    )


def test_windows_begin_with_the_day():
    """Windows are the same whenever a run begins; the last one may be shorter."""
    since = window_start(NOON + timedelta(minutes=59), HOUR)
    assert since == NOON
    assert split_into_windows(since, NOON + timedelta(minutes=90), HOUR) == [
        (NOON, NOON + HOUR),
        (NOON + HOUR, NOON + timedelta(minutes=90)),
    ]

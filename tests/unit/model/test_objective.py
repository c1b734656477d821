"""How events are counted against an objective for freshness."""

from datetime import timedelta

import pytest

from nakadi.model.objective import (
    ConsumedBatch,
    MinuteCounts,
    Objective,
    count_batches,
    merge_counts,
    minute_of,
    windows_of,
)
from tests.support.builders import A_MOMENT

OBJECTIVE = Objective(percent=99, within_seconds=30, set_at=A_MOMENT)
MINUTE = minute_of(A_MOMENT)


def batch(events, stored_after):
    return ConsumedBatch(events, A_MOMENT + timedelta(seconds=stored_after))


def test_an_event_is_late_if_it_took_longer_than_the_objective_allows():
    """The time from storing the oldest event of a batch to the commit counts; a time equal to the limit is not late.
    (O3)"""
    now = A_MOMENT + timedelta(seconds=100)
    counts = count_batches(OBJECTIVE, [batch(5, 70), batch(3, 69.9), batch(2, 99)], now)
    assert counts == MinuteCounts(minute_of(now), in_time=7, late=3)


def test_events_from_before_the_objective_do_not_count():
    """An objective promises nothing about events that were stored before it. (O4)"""
    now = A_MOMENT + timedelta(seconds=100)
    assert count_batches(OBJECTIVE, [batch(5, -0.001), batch(1, 0)], now) == MinuteCounts(minute_of(now), 0, 1)


def test_counts_of_a_minute_are_added_up_and_old_ones_dropped():
    """A report has one entry for each minute of the last hour, whichever process counted, in any order. (O5)"""
    now = A_MOMENT + timedelta(minutes=60)
    counts = [MinuteCounts(MINUTE + minutes, 1, 2) for minutes in (60, 0, 1, 60, 2)]
    assert merge_counts(counts, now) == (
        MinuteCounts(MINUTE + 1, 1, 2),
        MinuteCounts(MINUTE + 2, 1, 2),
        MinuteCounts(MINUTE + 60, 2, 4),
    )


def test_the_clock_of_another_process_may_be_ahead():
    """What another process has counted for a future minute is kept. (O5)"""
    ahead = MinuteCounts(MINUTE + 1, 1, 0)
    assert merge_counts([ahead], A_MOMENT) == (ahead,)
    assert windows_of(OBJECTIVE.percent, [ahead], A_MOMENT)[0].events == 1


@pytest.mark.parametrize(
    ("percent", "late", "burn_rate"), [(99, 0, 0), (99, 10, 1), (99, 100, 10), (90, 100, 1), (99.9, 1, 1)]
)
def test_the_burn_rate_relates_late_events_to_those_that_are_allowed(percent, late, burn_rate):
    """At a burn rate of 1, as many events are late as the objective allows. (O6)"""
    objective = Objective(percent, 30, A_MOMENT)
    [short, long] = windows_of(objective.percent, [MinuteCounts(MINUTE, 1000 - late, late)], A_MOMENT)
    assert short.burn_rate == long.burn_rate == burn_rate
    assert (short.events, short.late) == (1000, late)


def test_a_window_has_its_minutes_only():
    """The short window forgets after five minutes, the long one after an hour; without events, the burn rate is 0.
    (O6)"""
    counts = [MinuteCounts(MINUTE, 0, 8)]
    [short, long] = windows_of(OBJECTIVE.percent, counts, A_MOMENT + timedelta(minutes=5))
    assert (short.events, short.burn_rate, long.late, long.burn_rate) == (0, 0, 8, 100)
    assert windows_of(OBJECTIVE.percent, counts, A_MOMENT + timedelta(minutes=60))[1].events == 0

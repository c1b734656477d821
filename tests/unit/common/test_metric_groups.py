"""Metrics of groups: how unevenly the events of an event type are distributed over its partitions."""

import pytest

from nakadi.common.metrics import Metrics
from tests.support.clock import HandMovedClock
from tests.support.metrics import collect_samples, sample_value


@pytest.fixture
def metrics():
    return Metrics(max_names=2)


def read_ratio(metrics, event_type="order"):
    return sample_value(collect_samples(metrics), "nakadi_busiest_partition_ratio", event_type=event_type)


def publish(metrics, partitions, *, event_type="order", **by_partition):
    counts = {int(partition.removeprefix("p")): range(events) for partition, events in by_partition.items()}
    metrics.partition_loads.count_batch(event_type, counts, partitions)


def test_the_busiest_partition_is_compared_with_the_average(metrics):
    """A partition with all events of four partitions has four times the average; an even spread has the ratio 1."""
    publish(metrics, 4, p0=200)
    assert read_ratio(metrics) == 4

    publish(metrics, 4, p1=200, p2=200, p3=200)
    assert read_ratio(metrics) == 1


def test_few_events_say_nothing(metrics):
    """For fewer than a hundred events, no ratio is reported."""
    publish(metrics, 4, p0=99)
    assert read_ratio(metrics) == 0

    publish(metrics, 4, p0=1)
    assert read_ratio(metrics) == 4


def test_one_partition_is_never_hot(metrics):
    """An event type with one partition has no ratio."""
    publish(metrics, 1, p0=1000)

    assert read_ratio(metrics) == 0


def test_recent_events_count_most(metrics):
    """Events published long ago have less and less weight: after an even spread, a formerly hot partition is no longer
    hot."""
    publish(metrics, 4, p0=100_000)
    for _ in range(20):
        publish(metrics, 4, p0=250, p1=250, p2=250, p3=250)

    assert 1 <= read_ratio(metrics) < 1.1


def test_a_process_without_new_events_says_nothing(metrics):
    """Five minutes after the last event, a partition is no longer hot: publishers may have moved to another process."""
    clock = HandMovedClock()
    metrics.partition_loads.monotonic = clock.monotonic
    publish(metrics, 4, p0=200)
    clock.move(299)
    assert read_ratio(metrics) == 4

    clock.move(2)
    assert read_ratio(metrics) == 0

    publish(metrics, 4, p1=200)
    assert read_ratio(metrics) == 2


def test_more_partitions_begin_anew(metrics):
    """When an event type gets more partitions, earlier events do not count."""
    publish(metrics, 2, p0=500)
    publish(metrics, 4, p0=50, p1=50, p2=50, p3=50)

    assert read_ratio(metrics) == 1


def test_event_types_that_are_deleted_or_too_many_have_no_ratio(metrics):
    """Only a limited number of event types, the first ones, have a ratio, and a deleted event type makes room for
    another one."""
    for name in ("a", "b", "c"):
        publish(metrics, 2, event_type=name, p0=200)
    assert [read_ratio(metrics, name) for name in ("a", "b", "c", "other")] == [2, 2, 0, 0]

    metrics.find_deleted = lambda names: names & {"a"}
    metrics.forget_deleted_event_types()
    publish(metrics, 2, event_type="c", p0=200)
    assert [read_ratio(metrics, name) for name in ("a", "b", "c")] == [0, 2, 2]

"""The flows that a load causes."""

import pytest

from infra.cost.flows import INDEX_RECORDS, Flows, compression_ratio, expected_distinct_places
from infra.cost.load import Assumed, BadLoad, Deployment, Load, Measured


def flows(deployment: Deployment | None = None, **load: float) -> Flows:
    return Flows(load=Load(**load), deployment=deployment or Deployment(), measured=Measured(), assumed=Assumed())


@pytest.mark.parametrize(
    ("things", "places", "expected"),
    [(0, 5, 0), (1, 5, 1), (7, 1, 1), (2, 2, 1.5), (1000, 8, 8), (0.5, 8, 0.5)],
)
def test_things_spread_over_places(things, places, expected):
    """Things that spread at random over places fill this number of them on average."""
    assert expected_distinct_places(things, places) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("events", "expected"), [(1, 1.0), (0.5, 1.0), (10, 0.5), (100, 0.3), (10_000, 0.3), (10**0.5, 0.75)]
)
def test_what_is_packed_together_is_smaller(events, expected):
    """Between two measured numbers of events, the ratio is interpolated by the logarithm; beyond them, the nearest
    measurement counts.
    """
    assert compression_ratio(((1, 1.0), (10, 0.5), (100, 0.3)), events) == pytest.approx(expected)


def test_a_batch_is_a_frame_for_each_partition_it_meets():
    """A publish call makes a record for each partition that gets any of its events."""
    assert flows(events_per_second=100, batch=10).frames == 10
    assert flows(events_per_second=100, batch=1, partitions=8).frames == 100
    assert flows(events_per_second=8000, batch=1000, partitions=8).frames == pytest.approx(64)


def test_shards_grow_with_the_load():
    """The number of shards follows the greater need of bytes and records, with room to spare."""
    assert flows(events_per_second=1).shards == 1
    assert flows(events_per_second=1400, batch=1, event_bytes=100).shards == 2
    assert flows(events_per_second=700, batch=1, event_bytes=2000).shards == 3
    assert flows(events_per_second=1, deployment=Deployment(shards=5)).shards == 5
    assert flows(events_per_second=1, deployment=Deployment(stream_mode="on-demand")).shards == 4


def test_readers_of_a_shard_share_what_it_gives():
    """Each polling task takes the stream once more from the output of a shard; a task to which records are pushed does
    not.
    """
    load = {"events_per_second": 4000.0, "event_bytes": 1000.0, "batch": 10.0, "streams": 10_000}
    asking, pushed = flows(**load), flows(Deployment(fan_out=True), **load)
    assert asking.tasks == pushed.tasks == 5
    megabytes = asking.stored_bytes / (1 << 20)
    assert asking.shards == pytest.approx(megabytes * 6 / 2 / 0.7, abs=1)
    assert pushed.shards == pytest.approx(megabytes / 0.7, abs=1)


def test_the_indexer_runs_once_for_each_window_that_has_records():
    """Few records cause few invocations; many records fill batches before the window ends."""
    assert flows(events_per_second=0.05, batch=1).index_batches == pytest.approx(0.05)
    assert flows(events_per_second=100, batch=1, deployment=Deployment(index_seconds=1)).index_batches == 1
    assert flows(events_per_second=100, batch=1, deployment=Deployment(index_seconds=4)).index_batches == 0.25
    busy = flows(events_per_second=600, batch=1, deployment=Deployment(index_seconds=60))
    assert busy.index_batches == pytest.approx(600 / INDEX_RECORDS)


def test_a_batch_of_the_indexer_touches_no_more_partitions_than_it_has_records():
    """The writes to the index depend on partitions or records, whichever are fewer."""
    assert flows(events_per_second=100, batch=10, event_types=1).partitions_per_index_batch == 1
    hasty = Deployment(index_seconds=1)
    assert (
        9 < flows(events_per_second=100, batch=10, event_types=1000, deployment=hasty).partitions_per_index_batch < 10
    )
    assert flows(events_per_second=0).partitions_per_index_batch == 0


def test_commits_come_by_number_or_by_time():
    """A busy stream commits by the batch, a quiet one at most as often as it receives events."""
    assert flows(events_per_second=1000, delivered_batch=100, event_types=1).commits == 10
    assert flows(events_per_second=1, event_types=10).commits == pytest.approx(10 / 30)
    assert flows(events_per_second=0.01, event_types=10).commits == 0.01


def test_tasks_grow_with_streams_and_with_events():
    """The number of tasks follows two limits of a task: its streams, and the events that it delivers."""
    assert flows(consumers=1).tasks == 1
    assert flows(consumers=100, streams=100, events_per_second=0).tasks == 5
    assert flows(events_per_second=100_000).tasks > 1


def test_less_memory_is_less_of_a_processor():
    """Below a whole core, work takes longer, and waiting does not."""
    assert flows().seconds(10, 5, 1769) == pytest.approx(0.015)
    assert flows().seconds(10, 5, 1769 // 2) == pytest.approx(0.025, rel=0.01)
    assert flows().seconds(10, 5, 3000) == pytest.approx(0.015)


@pytest.mark.parametrize("load", [{"events_per_second": -1}, {"batch": 0}, {"event_types": 0}, {"delivered_batch": 0}])
def test_a_load_that_cannot_be_is_refused(load):
    """A negative load gets no bill."""
    with pytest.raises(BadLoad):
        Load(**load)

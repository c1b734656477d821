"""What a Kinesis log has in the archive alone."""

from datetime import UTC, datetime, timedelta

import pytest

from nakadi.archive.manifest import archived
from nakadi.archive.sweeping import Sweep
from nakadi.eventlogs.kinesis.indexing import Indexer
from nakadi.eventlogs.kinesis.tails import Ancestry
from nakadi.model.events import Bounds, Record
from nakadi.model.outcomes import Unavailable
from tests.support.kinesis_faults import World


@pytest.fixture
def log(world: World):
    log = world.a_log()
    log.create_topic("t", 1)
    return log


def index_all(world: World) -> None:
    stream = world.a_stream()
    indexer = Indexer(stream, Ancestry(stream), world.index, world.archive)
    indexer.catch_up(indexer._ancestry.current.leaves()[0])


def newest(world: World) -> int:
    stream = world.a_stream()
    [shard] = stream.shards()
    return stream.page(shard.id, stream.from_beginning(shard.id)).records[-1].mark.sequence


def publish(world: World, log, *numbers: int) -> None:
    for number in numbers:
        log.append("t", {0: [Record(b"%d" % number)]})
    index_all(world)


def test_damage_is_told_with_its_offsets(world: World, log, caplog):
    """When the stream has forgotten what a damaged archive object had, its offsets are told and nothing is skipped."""
    publish(world, log, 0, 1, 2)
    publish(world, log, 3, 4)
    [first, _] = archived(world.index, "t", 0)
    world.archive.put(first.archived.key, b"what is this?" * 20)
    world.client.forgets(newest(world))
    reader = world.a_log()
    assert reader.bounds("t", [0]) == {0: Bounds(0, 5)}
    with pytest.raises(Unavailable):
        reader.read("t", 0, 0)
    assert "Offsets 0 to 2 of t/0 cannot be read" in caplog.text
    assert [event.offset for event in reader.read("t", 0, 3).events] == [3, 4]


def test_objects_go_with_what_was_in_them(world: World, log):
    """Objects of several partitions go when nothing of them is wanted any more, and the others stay."""
    publish(world, log, 0, 1)
    world.clock.move(3600)
    publish(world, log, 2)
    assert len(world.archive.kept()) == 2
    log.trim("t", 0, world.clock.now() - timedelta(minutes=1))
    sweep = Sweep(world.index, world.archive)
    assert sweep.run(datetime.now(UTC) + timedelta(seconds=1)).removed == 1
    assert world.archive.kept() == [each.archived.key for each in archived(world.index, "t", 0)]
    log.delete_topic("t")
    Sweep(world.index, world.archive, (world.name,)).run(datetime.now(UTC) + timedelta(seconds=1))
    assert world.archive.kept() == []

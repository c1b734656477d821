"""The stream forgets what is older than its retention: offsets stay what they were, and no answer is wrong."""

import time

import pytest
from msgspec.structs import replace

from nakadi.engines.common import frames
from nakadi.engines.kinesis import envelopes, tails
from nakadi.model.events import OffsetBounds, Record
from nakadi.model.outcomes import Unavailable
from tests.support.kinesis_faults import HURRIED, World

FORGETFUL = replace(HURRIED, window_bytes=1000)
"""Remembers about three records."""

BOTH = pytest.mark.parametrize("strict", [False, True], ids=["lenient", "strict"])
"""How the service answers who asks for a place that it has forgotten is not written down anywhere."""


@pytest.fixture
def log(world: World):
    log = world.a_log()
    log.create_topic("t", 2)
    return log


def publish(log, *numbers: int, partition: int = 0) -> None:
    for number in numbers:
        log.append("t", {partition: [Record(b"%d" % number)]})


def newest(world: World) -> int:
    """The last record's sequence number."""
    stream = world.a_stream()
    [shard] = stream.list_shards()
    return stream.read_page(shard.id, stream.request_iterator_from_start(shard.id)).records[-1].position.sequence


def events(log, start: int = 0) -> list[tuple[int, bytes | None]]:
    found = []
    while (piece := log.read("t", 0, start)).events:
        found += [(event.offset, event.record.value) for event in piece.events]
        start = piece.next_offset
    return found


def numbered(*numbers: int) -> list[tuple[int, bytes]]:
    return [(number, b"%d" % number) for number in numbers]


@BOTH
def test_what_is_forgotten_is_read_from_the_archive(world: World, log, strict):
    """A reader crosses from the archive to the stream without a gap, though the stream begins in the middle."""
    publish(log, *range(10))
    world.index_all()
    publish(log, *range(10, 12))
    world.index_all()
    world.client.forgets(newest(world) - 1, strict=strict)
    publish(log, *range(12, 15))
    for reader in (world.a_log(), world.a_log(FORGETFUL)):
        assert events(reader) == numbered(*range(15))
        assert events(reader, 11) == numbered(*range(11, 15))


@BOTH
def test_an_idle_partition_goes_on_where_it_was(world: World, log, strict):
    """When all of a partition is forgotten by the stream, its next event has the next offset."""
    publish(log, *range(5))
    world.index_all()
    world.client.forgets(newest(world), strict=strict)
    reader = world.a_log()
    assert reader.bounds("t", [0]) == {0: OffsetBounds(0, 5)}
    publish(log, 5)
    world.index_all()
    assert events(reader) == events(world.a_log()) == numbered(*range(6))


@BOTH
@pytest.mark.parametrize("archived", [True, False])
def test_what_no_one_has_is_not_made_up(world: World, log, strict, archived):
    """When neither archive nor stream has an event, another one is not shown in its place."""
    publish(log, *range(10))
    world.index_all(archived=archived)
    world.client.forgets(newest(world) - 3, strict=strict)
    world.archive.remove(world.archive.all_keys())
    reader = world.a_log(archived=archived)
    publish(log, 10)
    with pytest.raises(Unavailable):
        reader.read("t", 0, 0)
    with pytest.raises(Unavailable):
        reader.read("t", 0, 8)
    assert events(reader, 10) == numbered(10)


@BOTH
def test_a_process_that_slept_counts_anew(world: World, log, monkeypatch, strict):
    """A process that did not read for long begins where the index ends: it may have missed what is forgotten."""
    publish(log, *range(3))
    world.index_all()
    sleeper = world.a_log()
    assert events(sleeper) == numbered(*range(3))
    publish(log, *range(3, 8))
    world.index_all()
    world.client.forgets(newest(world) - 1, strict=strict)
    later = time.time() + 2 * tails.MAX_READ_PAUSE_SECONDS
    monkeypatch.setattr(time, "time", lambda: later)
    assert events(sleeper) == events(world.a_log()) == numbered(*range(8))


@BOTH
def test_an_append_that_was_given_up_stops_no_one(world: World, log, strict):
    """Parts of an append that never was completed can be forgotten; indexer and readers go on without them."""
    publish(log, 0)
    half = envelopes.pack_parts(3, 0, bytes(1000), b"a" * 8, 500)
    world.put("t/0", half[0])
    world.index_all()
    world.client.forgets(newest(world), strict=strict)
    publish(log, 1)
    world.index_all()
    assert world.index.index_heads([("t", 0)])["t", 0].state.next_offset == 2
    assert events(world.a_log()) == numbered(0, 1)


@pytest.mark.usefixtures("log")
def test_a_long_append_whose_beginning_is_forgotten_is_not_shown_in_part(world: World):
    """A reader that is thrown back on the stream and finds half of an append says so, rather than leaving it out."""
    first, second = long_append()
    world.put("t/0", first)
    world.index_all()
    world.put("t/0", second)
    world.index_all()
    assert world.index.index_heads([("t", 0)])["t", 0].state.next_offset == 2
    world.client.forgets(newest(world) - 1)
    assert events(world.a_log()) == [(0, b"1" * 400), (1, b"2" * 400)]
    world.archive.remove(world.archive.all_keys())
    with pytest.raises(Unavailable):
        world.a_log().read("t", 0, 0)


def long_append() -> list[bytes]:
    frame = frames.encode([Record(b"1" * 400), Record(b"2" * 400)])
    return envelopes.pack_parts(2, 0, frame, b"b" * 8, 500)


def test_what_is_remembered_of_a_scan_is_remembered_for_a_while_only(world: World, log, monkeypatch):
    """Where a scan ended is a place to go on from for as long as the stream certainly has what comes next."""
    publish(log, *range(10))
    world.index_all(archived=False)
    reader = world.a_log(FORGETFUL, archived=False)
    piece = reader.read("t", 0, 0, max_bytes=1)
    assert piece.next_offset == 1
    world.client.forgets(newest(world) - 5)
    monkeypatch.setattr("nakadi.engines.kinesis.scanning.REMEMBERED_STATE_MAX_AGE_SECONDS", 0.0)
    with pytest.raises(Unavailable):
        reader.read("t", 0, 1)


def test_a_record_of_another_is_no_record_of_ours(world: World, log):
    """What others put into the stream has no offset, wherever it lies."""
    publish(log, 0)
    for key, data in (("t/0", b"not ours"), ("no place", b"nk"), ("t/9", b"")):
        world.put(key, data)
    publish(log, 1)
    world.index_all()
    assert events(world.a_log()) == numbered(0, 1)
    assert sum(key.startswith("set-aside/") for key in world.archive.all_keys()) == 3
